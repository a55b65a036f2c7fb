"""Attention and its gradient as kernels on the lane engine, against the composites' meaning."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import sexpgpu.ir.ops  # noqa: F401
from sexpgpu.backend.kernels.attention import reason_against, workspace_bytes
from sexpgpu.backend.kernels.launch import Operand
from sexpgpu.ir.builder import Builder
from sexpgpu.ir.composites import make
from sexpgpu.ir.graph import Node
from sexpgpu.ir.opdef import Array, Context
from sexpgpu.ir.ops.composite import _meaning
from sexpgpu.ir.types import NUMPY_DTYPES, TensorType
from sexpgpu.plan.layout import contiguous
from sexpgpu.plan.phase import Step
from tests.kernels.emulator import MSL, RUNS, Placed, Unit, compiler, space
from tests.lanes.unit import Buffer

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs g++")


def attention(
    batch: tuple[int, ...], t: int, s: int, d: int, e: int, dtype: str, causal: bool, mask: bool
) -> tuple[Node, Node]:
    """The composite and its gradient."""
    b = Builder()
    shapes = [(dtype, (*batch, t, d)), (dtype, (*batch, s, d)), (dtype, (*batch, s, e))]
    shapes += [("bool", (*batch, t, s))] if mask else []
    inputs = [b.input(f"x{i}", TensorType(*each)) for i, each in enumerate(shapes)]
    params: dict[str, Any] = {"causal": causal, "scale": 0.3}
    beside = [("f32", (*batch, t, e)), ("f32", (*batch, t)), ("f32", (*batch, t, e))]
    more = [b.input(f"g{i}", TensorType(*each)) for i, each in enumerate(beside)]
    return make(b, "attention", inputs, **params), make(b, "attention-gradient", [*inputs, *more], **params)


def heads_inside(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a value whose heads lie between rows and columns, as a projection leaves them."""
    if len(shape) < 4:
        return contiguous(shape)
    _, heads, rows, columns = shape
    return (heads * rows * columns, columns, heads * columns, 1)


def run(unit: Unit, node: Node, arrays: list[Array], order: str, checked: bool) -> list[Array]:
    inputs = [Placed(MSL, v.type, heads_inside(v.shape)) for v in node.inputs]
    outputs = [Placed(MSL, type, contiguous(type.shape)) for type in node.types]
    for placed, array in zip(inputs, arrays, strict=True):
        placed.array[...] = array
    spaces = [space(n) for n in workspace_bytes(node)]
    known: dict[Operand, Buffer] = {("input", i): x.buffer("input") for i, x in enumerate(inputs)}
    known |= {("output", i): x.buffer("output") for i, x in enumerate(outputs)}
    known |= {("workspace", i): buffer for i, (_, buffer) in enumerate(spaces)}
    around = [x.others() for x in outputs]
    for launch in MSL.print_attention(step_of(node)):
        unit.run(launch, known, order, checked)
        known |= {operand: replace(known[operand], initialised=True) for operand in launch.operands}
    assert [x.others() for x in outputs] == around, "a byte beside an output was written"
    return [x.value for x in outputs]


def step_of(node: Node) -> Step:
    places = [Placed(MSL, v.type, heads_inside(v.shape)).layout for v in node.inputs]
    return Step(node, tuple(places), tuple([Placed(MSL, t, contiguous(t.shape)).layout for t in node.types]))


CASES = [
    ((2, 2), 40, 40, 16, 16, "f32", True, False),
    ((3,), 33, 50, 20, 12, "f32", False, False),
    ((2,), 9, 70, 64, 64, "bf16", True, False),
    ((1, 2), 35, 20, 72, 128, "f32", True, True),
    ((2, 2), 17, 24, 8, 8, "bf16", False, True),
]


def test_kernels() -> None:
    rng = np.random.default_rng(0)
    made = [attention(*case) for case in CASES]
    nodes = [node for pair in made for node in pair]
    assert not any(reason_against(node) for node in nodes)
    unit = Unit(MSL, [x for n in nodes for x in MSL.print_attention(step_of(n))])
    for case, (forward, backward) in zip(CASES, made, strict=True):
        tolerance = 2e-2 if case[5] == "bf16" else 2e-5
        arrays = []
        for value in forward.inputs:
            drawn = rng.normal(size=value.shape) if value.dtype != "bool" else rng.random(value.shape) > 0.3
            arrays.append(np.asarray(drawn).astype(NUMPY_DTYPES[value.dtype]))
        if case[7]:
            arrays[3][..., 1, :] = False  # a query that sees nothing
        wanted = _meaning(Context(), forward, arrays)
        cotangent = rng.normal(size=forward.types[0].shape).astype(np.float32)
        slopes = _meaning(Context(), backward, [*arrays, *wanted, cotangent])
        for order, checked in RUNS:
            found = run(unit, forward, arrays, order, checked)
            found += run(unit, backward, [*arrays, *wanted, cotangent], order, checked)
            for x, y in zip(found, (*wanted, *slopes), strict=True):
                both = (z.astype(np.float64) for z in (x, y))
                np.testing.assert_allclose(*both, tolerance, tolerance, err_msg=str(case))


def test_what_has_no_kernel() -> None:
    assert reason_against(attention((1,), 8, 8, 136, 8, "f32", False, False)[0])
    assert reason_against(attention((0,), 8, 8, 8, 8, "f32", False, False)[0])
