"""Elementwise operations on scalars, which NumPy computes as numbers rather than arrays."""

from __future__ import annotations

import numpy as np
import pytest

from sexpgpu.ir.opdef import OPS, OpDef, Work
from tests.ir.ops.calls import call

UNARY = [op for op in OPS.values() if op.work is Work.MAP and op.samples and len(op.samples[0].types) == 1]


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf, 0.0])
def test_zero_times_anything_is_zero(special: float) -> None:
    zero, other = np.array(0, np.float32), np.array(special, np.float32)
    assert call("mul-or-zero", zero, other) == 0
    assert np.isnan(call("mul-or-zero", np.array(np.nan, np.float32), other))


@pytest.mark.parametrize("op", UNARY, ids=lambda op: op.name)
def test_a_scalar_is_an_element(op: OpDef) -> None:
    sample = op.samples[0]
    low, high = (sample.ranges or (None,))[0] or (0.5, 0.9)
    dtype = {"f32": np.float32, "bool": np.bool_, "i32": np.int32}[sample.types[0].dtype]
    x = np.array((low + high) / 2, dtype)
    alone = call(op.name, x, **sample.attrs)
    assert alone.shape == ()
    assert alone == call(op.name, x.reshape(1), **sample.attrs)[0]
