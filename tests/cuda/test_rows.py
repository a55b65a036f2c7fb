"""Composites as row programs: which ones are, and their kernels executed on the CPU against the interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sexpgpu.ir.ops  # noqa: F401
from sexpgpu.backend.kernels import rows
from sexpgpu.backend.kernels.flags import flag_message, read_flag
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
from tests.kernels.emulator import DIALECTS, Placed, Unit, compiler

SPELT = [printer.dialect.name for printer in DIALECTS]
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
        "cross-entropy-gradient": [full, ids, row, row],
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
    printer: Printer, node: Node, arrays: list[Array], backwards: bool, narrow: bool, padding: int = 0
) -> tuple[list[Array], list[str]]:
    program = program_of(node.bodies[0])
    assert program is not None
    inputs = []
    for value, array in zip(node.inputs, arrays, strict=True):
        strides = contiguous((*value.shape[:-1], value.shape[-1] + padding)) if value.shape else ()
        inputs.append(Placed(value.type, strides, 0, printer))
        inputs[-1].array[...] = array
    types = [t.with_dtype("bf16") if narrow and i == 0 else t for i, t in enumerate(node.types)]
    outputs = [Placed(type, contiguous(type.shape), 0, printer) for type in types]
    around = [placed.others() for placed in outputs]
    given = enumerate(zip(node.inputs, inputs, strict=True))
    reads = [Argument(printer.dialect, ("input", i), v.type, p.layout) for i, (v, p) in given]
    made = enumerate(zip(types, outputs, strict=True))
    writes = [Argument(printer.dialect, ("output", i), t, p.layout) for i, (t, p) in made]
    launches = print_rows(program, reads, writes)
    partials = [np.full(n + 16, 0xFF, np.uint8) for n in rows.workspace_bytes(printer.dialect, program)]
    places = [x.ctypes.data + -x.ctypes.data % 16 for x in partials]
    flag = np.zeros(8, np.uint32)
    at_flag = flag.ctypes.data + -flag.ctypes.data % 16
    unit = Unit(launches, printer)
    known: dict[Any, int] = {("input", i): p.pointer for i, p in enumerate(inputs)}
    known |= {("output", i): p.pointer for i, p in enumerate(outputs)}
    known |= {("workspace", i): place for i, place in enumerate(places)} | {("flag", 0): at_flag}
    for launch in launches:
        unit.run(launch, [known[operand] for operand in launch.operands], backwards)
    assert [placed.others() for placed in outputs] == around, "a byte beside an output was written"
    start = (at_flag - flag.ctypes.data) // 4
    found = read_flag(flag[start : start + 4])
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
@pytest.mark.parametrize("printer", DIALECTS, ids=SPELT)
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
    found, faults = run(printer, node, arrays, False, narrow, padding)
    again, _ = run(printer, node, arrays, True, narrow, padding)
    assert faults == list(dict.fromkeys(flagged))
    for x, y, z in zip(found, wanted, again, strict=True):
        tolerance = 1e-2 if x.dtype == NUMPY_DTYPES["bf16"] else 3e-5
        np.testing.assert_allclose(x.astype(np.float64), y.astype(np.float64), tolerance, tolerance)
        assert x.tobytes() == z.tobytes(), "the order of threads shows"
    program_of.cache_clear()


@pytest.mark.parametrize("shape, axes", [((40, 70), (0,)), ((40, 70), (1,)), ((3, 50, 64), (0, 1)), ((600, 96), (0,))])
@pytest.mark.parametrize("printer", DIALECTS, ids=SPELT)
def test_a_sum_of_bf16(printer: Printer, shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    """What a cast to f32 and a sum become: the sum reads bf16, its workspaces are those of the sum of f32."""
    b = Builder()
    narrow = b.input("x0", TensorType("bf16", shape))
    summed = b.sum(b.cast(narrow, "f32"), axes).node
    region = b.node("region", [narrow], {"kind": "sum"}, (b.graph("region", [("y0", summed.outputs[0])], [narrow]),))
    x, out = (
        Placed(TensorType("bf16", shape), contiguous(shape), 0, printer),
        Placed(summed.types[0], contiguous(summed.types[0].shape), 0, printer),
    )
    x.array[...] = np.random.default_rng(0).normal(size=shape).astype(NUMPY_DTYPES["bf16"])
    node = narrow_sum(Step(region, (x.layout,), (out.layout,))).node
    sizes = printer.workspace_bytes(Step(summed, (x.layout,), (out.layout,)))
    raw = [np.zeros(n + 16, np.uint8) for n in sizes]
    launches = printer.print_step(Step(node, (x.layout,), (out.layout,)))
    unit = Unit(launches, printer)
    known: dict[Any, int] = {("input", 0): x.pointer, ("output", 0): out.pointer}
    known |= {("workspace", i): r.ctypes.data + -r.ctypes.data % 16 for i, r in enumerate(raw)}
    for launch in launches:
        unit.run(launch, [known[operand] for operand in launch.operands], False)
    np.testing.assert_allclose(out.array, x.array.astype(np.float64).sum(axes), 1e-5, 1e-4)
    ends = [(-r.ctypes.data % 16 + n, r) for n, r in zip(sizes, raw, strict=True)]
    assert not any(r[end:].any() for end, r in ends), "a state was written behind its workspace"
