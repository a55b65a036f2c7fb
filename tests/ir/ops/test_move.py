"""Movement: faults, and what the derived tests cannot see."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sexpgpu.ir.builder import Builder
from sexpgpu.ir.types import TensorType, TypeFault
from tests.ir.ops.calls import BF16, call, gradients, normal


def test_views_share_memory_with_their_operand() -> None:
    x = normal(1, 3, 4)
    for op, attrs in (
        ("reshape", {"shape": (12,)}),
        ("transpose", {"perm": (1, 0)}),
        ("broadcast", {"shape": (2, 3, 4), "axes": (1, 2)}),
        ("slice", {"starts": (0, 1), "stops": (3, 4), "steps": (2, 1)}),
        ("reverse", {"axes": (0,)}),
    ):
        assert np.shares_memory(call(op, x, **attrs), x), op


def test_pad_and_slice_undo_each_other() -> None:
    x = normal(1, 3, 4)
    padded = call("pad", x, low=(1, 2), high=(0, 3), interior=(2, 0))
    assert padded.shape == (8, 9)
    np.testing.assert_array_equal(call("slice", padded, starts=(1, 2), stops=(8, 6), steps=(3, 1)), x)
    assert np.count_nonzero(padded) == np.count_nonzero(x)


@pytest.mark.parametrize("step", [1, 2, 3, 5])
@pytest.mark.parametrize("stop", [0, 3, 6, 7])
def test_gradient_of_a_strided_slice(step: int, stop: int) -> None:
    x = normal(1, 7)
    start = min(1, stop)
    y = call("slice", x, starts=(start,), stops=(stop,), steps=(step,))
    (found,) = gradients("slice", (x,), np.ones_like(y), starts=(start,), stops=(stop,), steps=(step,))
    expected = np.zeros(7)
    expected[start:stop:step] = 1
    np.testing.assert_array_equal(found, expected)


def test_bf16_repeated_sums_its_cotangent_in_f32() -> None:
    x = np.ones(2, BF16)
    g = np.full((2, 1000), 1.0, BF16)
    (found,) = gradients("broadcast", (x,), g, shape=(2, 1000), axes=(0,))
    assert found is not None
    assert found.dtype == BF16
    assert found.astype(np.float32).tolist() == [1000, 1000]


@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("reshape", {"shape": (5, 2)}),
        ("reshape", {"shape": (-3, -4)}),
        ("transpose", {"perm": (0, 0)}),
        ("transpose", {"perm": (0,)}),
        ("broadcast", {"shape": (4, 3), "axes": (1, 0)}),
        ("broadcast", {"shape": (3, 5), "axes": (0, 1)}),
        ("broadcast", {"shape": (3, 4), "axes": (0,)}),
        ("broadcast", {"shape": (3, 4), "axes": (0, 2)}),
        ("slice", {"starts": (0, 0), "stops": (4, 4), "steps": (1, 1)}),
        ("slice", {"starts": (2, 0), "stops": (1, 4), "steps": (1, 1)}),
        ("slice", {"starts": (0, 0), "stops": (3, 4), "steps": (0, 1)}),
        ("slice", {"starts": (0,), "stops": (3,), "steps": (1,)}),
        ("pad", {"low": (-1, 0), "high": (0, 0), "interior": (0, 0)}),
        ("pad", {"low": (0,), "high": (0, 0), "interior": (0, 0)}),
        ("concat", {"axis": 2}),
        ("reverse", {"axes": (2,)}),
        ("reverse", {"axes": (0, 0)}),
    ],
)
def test_faults(op: str, attrs: dict[str, Any]) -> None:
    b = Builder()
    with pytest.raises(TypeFault):
        b.op(op, b.input("x", TensorType("f32", (3, 4))), **attrs)


def test_concat_faults() -> None:
    b = Builder()
    x = b.input("x", TensorType("f32", (3, 4)))
    for other in (TensorType("f32", (4, 4)), TensorType("f32", (3,)), TensorType("i32", (3, 4))):
        with pytest.raises(TypeFault):
            b.op("concat", x, b.input(str(other), other), axis=1)
    with pytest.raises(TypeFault):
        b.op("concat", axis=0)
