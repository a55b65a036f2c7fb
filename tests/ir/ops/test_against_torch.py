"""Every operation and its gradient against PyTorch in double precision, sample by sample."""

from __future__ import annotations

import numpy as np
import pytest

from sexpgpu.ir.opdef import OPS, OpDef, Sample
from sexpgpu.ir.types import ORACLE_DTYPES
from tests.ir.ops.test_derived import CASES, arrays_of, built, run

torch = pytest.importorskip("torch")
from tests.ir.torched import MEANINGS, tensor  # noqa: E402

pytestmark = pytest.mark.torch

ITSELF = {"input", "random-uniform", "random-normal"}
"""An argument, and draws, whose bits test_random.py compares with published ones."""


def test_every_operation_has_its_peer() -> None:
    assert set(MEANINGS) | {"input"} == set(OPS)


@pytest.mark.parametrize(("op", "sample"), [c for c in CASES if c.values[0].name not in ITSELF])
def test_values_and_gradients(op: OpDef, sample: Sample) -> None:
    b, node = built(op, sample)
    arrays = [a.astype(ORACLE_DTYPES[t.dtype]) for a, t in zip(arrays_of(op, sample), sample.types, strict=True)]
    given = [tensor(a, t.dtype) for a, t in zip(arrays, sample.types, strict=True)]
    made = MEANINGS[op.name](node, *given)
    wanted = made if isinstance(made, list) else [made]
    for found, expected in zip(run(b, node.outputs, arrays, double=True), wanted, strict=True):
        np.testing.assert_allclose(found, expected.detach().numpy(), rtol=1e-12, atol=1e-13)

    floats = [i for i, t in enumerate(sample.types) if t.is_float]
    if op.gradient is None or not sample.differentiable or not floats:
        return
    rng = np.random.default_rng(1)
    cotangents, feeds, total = [], list(arrays), torch.zeros((), dtype=torch.float64)
    for type, value in zip(node.types, wanted, strict=True):
        if not type.is_float:
            cotangents.append(None)
            continue
        cotangents.append(b.input(f"x{len(feeds)}", type))
        feeds.append(rng.uniform(-1, 1, type.shape))
        total = total + (value * torch.tensor(feeds[-1])).sum()
    slopes = [None] * len(floats)
    if total.requires_grad:
        slopes = torch.autograd.grad(total, [given[i] for i in floats], allow_unused=True)
    gradients = op.gradient(b, node, cotangents)
    for i, slope in zip(floats, slopes, strict=True):
        g = gradients[i]
        found = np.zeros(sample.types[i].shape) if g is None else run(b, [g], feeds, double=True)[0]
        expected = np.zeros(found.shape) if slope is None else slope.detach().numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-11)
