"""Composites as row programs: which ones are, and their kernels executed on the CPU against the interpreter."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import sexpgpu.ir.ops  # noqa: F401
from sexpgpu.backend.kernels import rows
from sexpgpu.backend.kernels.flags import FLAG_BYTES, flag_message, read_flag
from sexpgpu.backend.kernels.launch import Operand
from sexpgpu.backend.kernels.lowering import narrow_sum
from sexpgpu.backend.kernels.operands import Argument
from sexpgpu.backend.kernels.printer import Printer
from sexpgpu.backend.kernels.rows import print_rows, program_of
from sexpgpu.ir.builder import Builder
from sexpgpu.ir.composites import COMPOSITES, make
from sexpgpu.ir.graph import Node
from sexpgpu.ir.opdef import Array, Context
from sexpgpu.ir.ops.composite import _meaning
from sexpgpu.ir.types import NUMPY_DTYPES, TensorType
from sexpgpu.plan.layout import contiguous
from sexpgpu.plan.phase import Step
from tests.kernels.emulator import DIALECTS, RUNS, Placed, Unit, compiler, space
from tests.lanes.unit import Buffer

pytestmark = pytest.mark.skipif(compiler() is None, reason="there is no g++")


def node_of(name: str, rows_: tuple[int, ...], width: int, dtype: str = "f32") -> Node:
    b = Builder()
    full, row, column = TensorType(dtype, (*rows_, width)), TensorType("f32", rows_), TensorType("f32", (width,))
    ids = TensorType("i32", rows_)
    types = {
        "softmax": [full],
        "softmax-gradient": [full, full],
        "logsumexp": [full],
        "logsumexp-gradient": [full, row, row],
        "cross-entropy": [full, ids],
        "cross-entropy-gradient": [full, ids, row, row, row],
        "layer-norm": [full, column, column],
        "layer-norm-gradient": [full, column, row, row, full],
        "rms-norm": [full, column],
        "rms-norm-gradient": [full, column, row, full],
        "gelu": [full],
    }[name]
    params = {"eps": 1e-5} if "eps" in COMPOSITES[name].parameters or "norm" in name else {}
    return make(b, name, [b.input(f"x{i}", type) for i, type in enumerate(types)], **params)


def test_what_is_a_row_program() -> None:
    for name in ("softmax", "logsumexp-gradient", "cross-entropy", "layer-norm-gradient", "rms-norm"):
        assert program_of(node_of(name, (3, 4), 128).bodies[0]) is not None, name
    assert program_of(node_of("gelu", (3, 4), 128).bodies[0]) is None, (
        "elementwise steps are fused with their neighbours"
    )
    assert program_of(node_of("softmax", (3, 4), 12).bodies[0]) is None, "short rows"
    assert program_of(node_of("layer-norm-gradient", (3, 4), 50304).bodies[0]) is None, (
        "too many columns to sum in registers"
    )
    assert program_of(node_of("layer-norm", (128,), 128).bodies[0]) is not None, "as many rows as columns"


def run(
    printer: Printer, node: Node, arrays: list[Array], order: str, checked: bool, narrow: bool, padding: int = 0
) -> tuple[list[Array], list[str]]:
    program = program_of(node.bodies[0])
    assert program is not None
    inputs = []
    for value, array in zip(node.inputs, arrays, strict=True):
        strides = contiguous((*value.shape[:-1], value.shape[-1] + padding)) if value.shape else ()
        inputs.append(Placed(printer, value.type, strides))
        inputs[-1].array[...] = array
    types = [t.with_dtype("bf16") if narrow and i == 0 else t for i, t in enumerate(node.types)]
    outputs = [Placed(printer, type, contiguous(type.shape)) for type in types]
    around = [placed.others() for placed in outputs]
    reads = [Argument(printer.dialect, ("input", i), x.type, x.layout) for i, x in enumerate(inputs)]
    writes = [Argument(printer.dialect, ("output", i), x.type, x.layout) for i, x in enumerate(outputs)]
    launches = print_rows(program, reads, writes)
    flag, flag_buffer = space(FLAG_BYTES, 0)
    known: dict[Operand, Buffer] = {("input", i): p.buffer("input") for i, p in enumerate(inputs)}
    known |= {("output", i): p.buffer("output") for i, p in enumerate(outputs)} | {("flag", 0): flag_buffer}
    spaces = [space(n) for n in rows.workspace_bytes(printer.dialect, program)]
    known |= {("workspace", i): buffer for i, (_, buffer) in enumerate(spaces)}
    unit = Unit(printer, launches)
    for launch in launches:
        unit.run(launch, known, order, checked)
        known |= {operand: replace(known[operand], initialised=True) for operand in launch.operands}
    assert [placed.others() for placed in outputs] == around, "a byte beside an output was written"
    found = read_flag(flag.view(np.uint32))
    return [p.value for p in outputs], [] if found is None else [flag_message(program.picks[0], found)]


CASES = [
    ("softmax", (3,), 130, "f32", False, 0),
    ("softmax-gradient", (2, 3), 128, "f32", False, 0),
    ("logsumexp", (5,), 64, "f32", False, 0),
    ("cross-entropy", (2, 3), 4500, "bf16", False, 0),
    ("cross-entropy", (5,), 67, "f32", False, 3),
    ("cross-entropy-gradient", (2, 3), 4500, "bf16", False, 0),
    ("layer-norm", (2, 3), 768, "f32", True, 0),
    ("layer-norm", (7,), 65, "f32", False, 1),
    ("layer-norm-gradient", (2, 3), 768, "f32", True, 0),
    ("layer-norm-gradient", (9,), 70, "f32", False, 0),
    ("rms-norm", (3,), 96, "f32", True, 4),
    ("rms-norm-gradient", (5,), 128, "f32", False, 0),
]


@pytest.mark.parametrize("name, rows_, width, dtype, narrow, padding", CASES)
@pytest.mark.parametrize("printer", DIALECTS)
def test_kernels(
    printer: Printer, name: str, rows_: tuple[int, ...], width: int, dtype: str, narrow: bool, padding: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(rows, "MAX_BLOCKS", 4)
    program_of.cache_clear()
    node = node_of(name, rows_, width, dtype)
    rng = np.random.default_rng(0)
    arrays = []
    for value in node.inputs:
        made = rng.integers(-1, width + 1, value.shape) if value.type.is_integer else rng.normal(size=value.shape)
        if name.endswith("norm-gradient") and value.shape == rows_:
            made = np.abs(made) + 0.5
        arrays.append(np.asarray(made).astype(NUMPY_DTYPES[value.dtype]))
    flagged: list[str] = []
    with np.errstate(all="ignore"):
        wanted = _meaning(Context(flag=lambda _, message: flagged.append(message)), node, arrays)
    runs = [run(printer, node, arrays, order, checked, narrow, padding) for order, checked in RUNS]
    found, faults = runs[0]
    assert faults == list(dict.fromkeys(flagged))
    for x, y in zip(found, wanted, strict=True):
        tolerance = 1e-2 if x.dtype == NUMPY_DTYPES["bf16"] else 3e-5
        np.testing.assert_allclose(x.astype(np.float64), y.astype(np.float64), tolerance, tolerance)
    for again, _ in runs[1:]:
        assert [x.tobytes() for x in again] == [x.tobytes() for x in found], "the order of threads shows"
    program_of.cache_clear()


@pytest.mark.parametrize("shape, axes", [((40, 70), (0,)), ((40, 70), (1,)), ((3, 50, 64), (0, 1)), ((600, 96), (0,))])
@pytest.mark.parametrize("printer", DIALECTS)
def test_a_sum_of_bf16(printer: Printer, shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    """What a cast to f32 and a sum become: the sum reads bf16, its workspaces are those of the sum of f32."""
    b = Builder()
    narrow = b.input("x0", TensorType("bf16", shape))
    summed = b.sum(b.cast(narrow, "f32"), axes).node
    region = b.node("region", [narrow], {"kind": "sum"}, (b.graph("region", [("y0", summed.outputs[0])], [narrow]),))
    x, out = (
        Placed(printer, TensorType("bf16", shape), contiguous(shape)),
        Placed(printer, summed.types[0], contiguous(summed.types[0].shape)),
    )
    x.array[...] = np.random.default_rng(0).normal(size=shape).astype(NUMPY_DTYPES["bf16"])
    node = narrow_sum(Step(region, (x.layout,), (out.layout,))).node
    sizes = printer.workspace_bytes(Step(summed, (x.layout,), (out.layout,)))
    spaces = [space(n) for n in sizes]
    launches = printer.print_step(Step(node, (x.layout,), (out.layout,)))
    unit = Unit(printer, launches)
    known: dict[Operand, Buffer] = {("input", 0): x.buffer("input"), ("output", 0): out.buffer("output")}
    known |= {("workspace", i): replace(buffer, initialised=True) for i, (_, buffer) in enumerate(spaces)}
    for launch in launches:
        unit.run(launch, known, checked=True)
    np.testing.assert_allclose(out.array, x.array.astype(np.float64).sum(axes), 1e-5, 1e-4)
