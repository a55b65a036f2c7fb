"""What the kernel of a region of elementwise work reads and writes, that its text compiles, and what it gives."""

from __future__ import annotations

import numpy as np
import pytest

import sexpgpu.ir.ops  # noqa: F401
from sexpgpu.backend.kernels.cuda import NVRTC_OPTIONS, module_source, print_group
from sexpgpu.backend.kernels.fusion import group_of
from sexpgpu.backend.kernels.printer import Printer
from sexpgpu.ir.builder import Builder
from sexpgpu.ir.evaluate import evaluate
from sexpgpu.ir.graph import Value
from sexpgpu.ir.types import NUMPY_DTYPES, TensorType
from sexpgpu.plan.layout import ARENA, Layout, contiguous
from sexpgpu.plan.phase import Step
from tests.kernels.emulator import DIALECTS, RUNS, Placed, Unit

SHAPE = (24, 48)
F, H, COLUMN, ROW = (
    TensorType("f32", SHAPE), TensorType("bf16", SHAPE), TensorType("f32", (48,)), TensorType("f32", (24,)),
)  # fmt: skip


def region(b: Builder, inputs: list[Value], outputs: list[Value]) -> Step:
    """A step of a region, every operand dense in a range of its own."""
    body = b.graph("region", [(f"y{i}", value) for i, value in enumerate(outputs)], inputs)
    outside = Builder()
    given = [outside.input(f"x{i}", value.type) for i, value in enumerate(inputs)]
    node = outside.node("region", given, {"kind": "maps"}, (body,))
    layouts = [Layout(ARENA, 1 << 20 + i, contiguous(v.shape)) for i, v in enumerate((*node.inputs, *node.outputs))]
    return Step(node, tuple(layouts[: len(inputs)]), tuple(layouts[len(inputs) :]))


def mixed() -> Step:
    """A bf16, a vector of columns that is rounded first, a number of each row, a constant; two results."""
    b = Builder()
    x, bias, row = b.input("x0", H), b.input("x1", COLUMN), b.input("x2", ROW)
    column = b.broadcast(b.cast(bias, "bf16"), SHAPE, (1,))
    total = b.add(b.cast(x, "f32"), b.cast(column, "f32"))
    scaled = b.mul(total, b.broadcast(row, SHAPE, (0,)))
    chosen = b.where(b.op("gt", scaled, b.like(0.1, scaled)), b.op("tanh", scaled), total)
    return region(b, [x, bias, row], [b.cast(chosen, "bf16"), scaled])


def test_smaller_values_are_read_at_each_element() -> None:
    group = group_of(mixed())
    assert [value.layout.strides for value in group.reads] == [(48, 1), (0, 1), (1, 0)]
    assert [value.type.shape for value in group.reads] == [SHAPE] * 3
    assert [value.type.dtype for value in group.writes] == ["bf16", "f32"]
    assert [node.op for node, _, _ in group.lines].count("cast") == 4


def test_one_value_along_two_axes_is_two_reads() -> None:
    b = Builder()
    square = TensorType("f32", (16, 16))
    v = b.input("x0", TensorType("f32", (16,)))
    group = group_of(region(b, [v], [b.add(b.broadcast(v, square.shape, (0,)), b.broadcast(v, square.shape, (1,)))]))
    assert [value.layout.strides for value in group.reads] == [(1, 0), (0, 1)]


@pytest.mark.parametrize("order, checked", RUNS)
@pytest.mark.parametrize("printer", DIALECTS)
def test_what_it_gives(printer: Printer, order: str, checked: bool) -> None:
    step = mixed()
    group, body = group_of(step), step.node.bodies[0]
    rng = np.random.default_rng(0)
    placed = {}
    for layout, value in zip((*step.inputs, *step.outputs), (*step.node.inputs, *step.node.outputs), strict=True):
        placed[layout.offset_bytes] = Placed(printer, value.type, layout.strides)
    arrays = {}
    for i, layout in enumerate(step.inputs):
        x = placed[layout.offset_bytes]
        x.array[...] = rng.normal(size=x.array.shape).astype(NUMPY_DTYPES[x.type.dtype])
        arrays[f"x{i}"] = x.value
    launch = printer.print_group(group)
    known = {
        operand: placed[layout.offset_bytes].buffer(operand[0])
        for operand, layout in zip(launch.operands, group.places, strict=True)
    }
    Unit(printer, [launch]).run(launch, known, order, checked)
    for wanted, layout in zip(evaluate(body, arrays).values(), step.outputs, strict=True):
        found = placed[layout.offset_bytes].value
        np.testing.assert_allclose(found.astype(np.float64), wanted.astype(np.float64), 1e-6, 1e-6)


CONSTANTS = {"f32": -0.1, "bf16": 0.5, "f64": 0.1, "i32": -3, "i64": -(2**40), "bool": True}


@pytest.mark.parametrize(
    ("printer", "dtype"),
    [
        pytest.param(*p.values, dtype, id=f"{p.id}-{dtype}", marks=p.marks)
        for p in DIALECTS
        for dtype in p.values[0].dialect.memory
    ],
)
def test_a_constant_is_exact(printer: Printer, dtype: str) -> None:
    type, test = TensorType(dtype, (3,)), TensorType("bool", (3,))
    b = Builder()
    x, chosen = b.input("x0", type), b.input("x1", test)
    group = group_of(region(b, [x, chosen], [b.where(chosen, b.like(CONSTANTS[dtype], x), x)]))
    source, mask, target = (Placed(printer, each, (1,)) for each in (type, test, type))
    source.array[...], mask.array[...] = 0, True
    launch = printer.print_group(group)
    reads = [source if dtype != "bool" and value.type == type else mask for value in group.reads]
    known = {operand: x.buffer(operand[0]) for operand, x in zip(launch.operands, [*reads, target], strict=True)}
    Unit(printer, [launch]).run(launch, known)
    assert target.value.tobytes() == np.full(3, CONSTANTS[dtype], NUMPY_DTYPES[dtype]).tobytes()


@pytest.mark.parametrize("columns", [48, 47])
def test_texts_compile(columns: int) -> None:
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc")
    f, h = TensorType("f32", (64, columns)), TensorType("bf16", (64, columns))
    b = Builder()
    x, y = b.input("x0", h), b.input("x1", f)
    wide = b.cast(x, "f32")
    chosen = b.where(b.op("gt", wide, y), b.op("tanh", wide), y)
    launch = print_group(group_of(region(b, [x, y], [b.cast(chosen, "bf16")])))
    _, program = nvrtc.nvrtcCreateProgram(module_source([launch]).encode(), b"unit.cu", 0, [], [])
    options = [option.encode() for option in (*NVRTC_OPTIONS, "--gpu-architecture=sm_80")]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    assert int(status) == 0, launch.source
