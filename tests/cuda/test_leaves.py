"""Many tensors in one launch: what the kernels give on an emulation of blocks and threads, and that they compile."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import sexpgpu.ir.ops  # noqa: F401
from sexpgpu.backend.kernels import copies, leaves
from sexpgpu.backend.kernels.cuda import CUDA, NVRTC_OPTIONS, module_source
from sexpgpu.backend.kernels.launch import Operand
from sexpgpu.backend.kernels.printer import Printer
from sexpgpu.backend.kernels.tables import located
from sexpgpu.ir.builder import Builder
from sexpgpu.ir.evaluate import evaluate
from sexpgpu.ir.graph import Graph, Node
from sexpgpu.ir.ops.region import shares
from sexpgpu.ir.types import NUMPY_DTYPES, TensorType
from sexpgpu.plan.layout import contiguous
from tests.kernels.emulator import DIALECTS, RUNS, Placed, Unit, space
from tests.lanes.unit import Buffer

SHAPES = [(3, 5), (4096,), (65, 63), (2, 2, 1025), (1,), (70, 128)]


def rule(shape: tuple[int, ...]) -> Graph:
    """A step against a gradient, its bf16 copy, whether it is finite, and the sum of its squares."""
    b = Builder()
    type = TensorType("f32", shape)
    p, g, rate = b.input("x0", type), b.input("x1", TensorType("bf16", shape)), b.input("x2", TensorType("f32", ()))
    scaled = b.mul(b.cast(g, "f32"), b.broadcast(rate, shape, ()))
    new = b.sub(p, b.mul(scaled, b.like(0.5, p)))
    axes = tuple(range(len(shape)))
    outputs = [new, b.cast(new, "bf16"), b.op("all", b.op("is-finite", new), axes=axes), b.sum(b.mul(new, new), axes)]
    return b.graph("region", [(f"y{i}", value) for i, value in enumerate(outputs)], [p, g, rate])


def node_of(shapes: list[tuple[int, ...]]) -> Node:
    bodies = [rule(shape) for shape in shapes]
    b = Builder()
    types = [value.type for body in bodies for value in body.inputs]
    return b.node("region", [b.input(f"x{i}", type) for i, type in enumerate(types)], {"kind": "leaves"}, bodies)


def entry(printer: Printer, address: int, bases: list[int]) -> int:
    """What a table holds for an address, counted from the last buffer that begins before it."""
    if printer.dialect.has_addresses:
        return address
    number = max([i for i, base in enumerate(bases) if base <= address])
    return located(number, address - bases[number])


def base_buffers(bases: list[int]) -> dict[Operand, Buffer]:
    """The starts of buffers, through which a kernel reaches what lies behind its tables."""
    return {("base", i): Buffer(base, base, 0, 1, True, True) for i, base in enumerate(bases)}


def run(
    printer: Printer, node: Node, order: str, checked: bool, packs: bool, first_bytes: int, bad: int | None
) -> list[Placed]:
    rng = np.random.default_rng(0)
    inputs = [Placed(printer, v.type, contiguous(v.shape), first_bytes if v.rank else 0) for v in node.inputs]
    outputs = [Placed(printer, t, contiguous(t.shape), first_bytes if t.rank else 0) for t in node.types]
    for x in inputs:
        x.array[...] = rng.normal(size=x.array.shape).astype(NUMPY_DTYPES[x.type.dtype])
    if bad is not None:
        inputs[3 * bad].array.reshape(-1)[-1] = np.nan
    starts = leaves.first_blocks(printer.dialect, node)
    table: list[int] = []
    # Two buffers whose starts a table counts from, where it holds no addresses.
    bases = [0, min([x.pointer for x in (*inputs, *outputs)])]
    wanted = []
    for first, (body, read, made) in zip(starts, shares(node), strict=False):
        table += [first, leaves.num_elements(body)]
        table += [entry(printer, x.pointer, bases) for x in (*inputs[read], *outputs[made])]
        wanted += list(evaluate(body, {f"x{i}": x.value for i, x in enumerate(inputs[read])}).values())
    numbers = np.array(table, np.uint64)
    partials = [space(n) for n in leaves.partial_bytes(printer.dialect, node)]
    known: dict[Operand, Buffer] = {("input", 0): Buffer.of(numbers)}
    known |= {("workspace", r): buffer for r, (_, buffer) in enumerate(partials)}
    known |= base_buffers(bases)
    behind = [x.buffer("input") for x in inputs] + [x.buffer("output") for x in outputs]
    launches = printer.print_leaves(node, packs, len(bases))
    around = [x.others() for x in outputs]
    unit = Unit(printer, launches)
    for launch in launches:
        unit.run(launch, known, order, checked, behind)
        known = {operand: replace(buffer, initialised=True) for operand, buffer in known.items()}
    assert [x.others() for x in outputs] == around, "a byte beside an output was written"
    for x, array in zip(outputs, wanted, strict=True):
        np.testing.assert_allclose(x.value.astype(np.float64), array.astype(np.float64), 1e-5, 1e-6)
    return outputs


@pytest.mark.parametrize("packs, first_bytes", [(True, 0), (False, 8)])
@pytest.mark.parametrize("order, checked", RUNS)
@pytest.mark.parametrize("printer", DIALECTS)
def test_what_they_give(printer: Printer, order: str, checked: bool, packs: bool, first_bytes: int) -> None:
    run(printer, node_of(SHAPES), order, checked, packs, first_bytes, None)


@pytest.mark.parametrize("bad", [0, 3])
@pytest.mark.parametrize("printer", DIALECTS)
def test_one_bad_element_is_that_of_its_leaf(printer: Printer, bad: int) -> None:
    outputs = run(printer, node_of(SHAPES), "forward", False, True, 0, bad)
    flags = [bool(x.array) for x in outputs[2::4]]
    assert flags == [i != bad for i in range(len(SHAPES))]


@pytest.mark.parametrize("printer", DIALECTS)
def test_a_fold_does_not_depend_on_its_neighbours(printer: Printer) -> None:
    alone = run(printer, node_of([SHAPES[0], (65, 63)]), "forward", False, True, 0, None)
    among = run(printer, node_of([SHAPES[0], (65, 63), (9000,)]), "forward", False, True, 0, None)
    assert [x.array.tobytes() for x in alone] == [x.array.tobytes() for x in among[:8]]


@pytest.mark.parametrize("printer", DIALECTS)
def test_single_elements_are_joined(printer: Printer) -> None:
    source, target = (Placed(printer, TensorType("bf16", (300,)), (1,)) for _ in range(2))
    source.array[...] = np.random.default_rng(0).normal(size=300).astype(NUMPY_DTYPES["bf16"])
    places = [source.array[i : i + 1].ctypes.data for i in range(300)]
    table = np.array([entry(printer, place, [source.pointer]) for place in places], np.uint64)
    known: dict[Operand, Buffer] = {("input", 0): Buffer.of(table), **base_buffers([source.pointer])}
    launch = copies.join(printer.dialect, 300, "bf16")
    known[("output", 0)] = target.buffer("output")
    for order, checked in RUNS:
        Unit(printer, [launch]).run(launch, known, order, checked, [source.buffer("input")])
        assert target.array.tobytes() == source.array.tobytes()


@pytest.mark.parametrize("packs", [True, False])
def test_texts_compile(packs: bool) -> None:
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc")
    launches = [*leaves.print_leaves(CUDA, node_of(SHAPES), packs), copies.join(CUDA, 5, "bool")]
    _, program = nvrtc.nvrtcCreateProgram(module_source(launches).encode(), b"unit.cu", 0, [], [])
    options = [option.encode() for option in (*NVRTC_OPTIONS, "--gpu-architecture=sm_80")]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    assert int(status) == 0, launches[0].source
