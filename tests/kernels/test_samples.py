"""Every sample of every operation, in several layouts and both dialects, on the lane engine against NumPy."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

import sexpgpu.ir.ops  # noqa: F401
from sexpgpu.backend.kernels import nest
from sexpgpu.backend.kernels import printer as printers
from sexpgpu.backend.kernels.flags import flag_message, read_flag
from sexpgpu.backend.kernels.printer import Printer, supported
from sexpgpu.ir.builder import Builder
from sexpgpu.ir.graph import Node
from sexpgpu.ir.opdef import OPS, Array, Context, Sample, Work
from sexpgpu.ir.types import NUMPY_DTYPES
from sexpgpu.plan.layout import VIEWS, Strides, constant_strides, contiguous
from sexpgpu.plan.phase import Step
from tests.kernels.emulator import CUDA, DIALECTS, RUNS, Placed, Unit, compiler, execute
from tests.kernels.larger import LARGER
from tests.lanes.unit import Fault

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs g++")

OPERATIONS = [
    name
    for name, op in sorted(OPS.items())
    if op.work not in (Work.INPUT, Work.EXPAND) and not any(sample.bodies for sample in op.samples)
]


def values(sample: Sample, position: int, rng: np.random.Generator) -> Array:
    type = sample.types[position]
    limits = sample.ranges[position] if position < len(sample.ranges) else None
    low, high = limits or ((0, 3) if type.is_integer else (-2, 2))
    if type.is_integer:
        made = rng.integers(int(low), max(int(low) + 1, int(high)), type.shape)
    else:
        made = rng.uniform(low, high, type.shape)
    return np.asarray(made > 0 if type.dtype == "bool" else made).astype(NUMPY_DTYPES[type.dtype])


def transposed(shape: Sequence[int]) -> Strides:
    """The strides of a value whose axes lie in reverse order, with a gap after each line."""
    steps, step = [], 1
    for size in shape:
        steps.append(step)
        step *= size + 1
    return tuple(steps)


def repeated(shape: Sequence[int]) -> Strides:
    """The strides of a value that repeats along its first axis."""
    return tuple(0 if axis == 0 else s for axis, s in enumerate(contiguous(tuple(shape))))


def reversed_(shape: Sequence[int]) -> Strides:
    """The strides of a value that runs backwards."""
    return tuple(-s for s in contiguous(tuple(shape)))


LAYOUTS = {"contiguous": contiguous, "transposed": transposed, "repeated": repeated, "reversed": reversed_}


@dataclass
class Case:
    sample: Sample
    node: Node
    step: Step
    inputs: list[Placed]
    outputs: list[Placed]


def case(name: str, sample: Sample, layout: str, seed: int, printer: Printer = CUDA) -> Case:
    b = Builder()
    node = b.node(name, [b.input(f"x{i}", t) for i, t in enumerate(sample.types)], sample.attrs)
    rng = np.random.default_rng(seed)
    inputs = []
    for i, type in enumerate(sample.types):
        # The second layout also begins where no pack may.
        placed = Placed(printer, type, LAYOUTS[layout](type.shape), 0 if layout == "contiguous" else 8)
        placed.array[...] = values(sample, i, rng)
        inputs.append(placed)
    strides = [constant_strides(node) if OPS[name].work is Work.FILL else contiguous(t.shape) for t in node.types]
    outputs = [Placed(printer, t, s) for t, s in zip(node.types, strides, strict=True)]
    step = Step(node, tuple(p.layout for p in inputs), tuple(p.layout for p in outputs))
    return Case(sample, node, step, inputs, outputs)


def exact(node: Node) -> bool:
    """Whether a device has no freedom: no rounding, or one that is written down."""
    return OPS[node.op].work in (Work.MOVE, Work.FILL, Work.GATHER, Work.SELECT) or node.op in (
        "add", "sub", "mul", "div", "neg", "sqrt", "rsqrt", "cast", "where", "random-uniform", "cumsum", "cumprod",
        "cummax", "scatter", "max", "min", "argmax", "argmin", "any", "all", "abs", "sign", "floor", "ceil", "round",
        "maximum", "minimum", "mul-or-zero", "is-finite", "eq", "ne", "lt", "le", "gt", "ge",
    )  # fmt: skip


def check(unit: Unit, case: Case) -> None:
    node = case.node
    faults: list[str] = []
    context = Context(flag=lambda node, message: faults.append(message))
    with np.errstate(all="ignore"):
        expected = OPS[node.op].meaning(context, node, [p.value for p in case.inputs])
    wanted = expected if isinstance(expected, tuple) else (expected,)
    before = [p.raw.tobytes() for p in case.inputs]
    for order, checked in RUNS:
        for placed in case.outputs:
            placed.raw[:] = 0xA5
        clean = [p.others() for p in case.outputs]
        words = execute(unit, case.step, case.inputs, case.outputs, order, checked)
        assert [p.others() for p in case.outputs] == clean, "wrote outside an output"
        assert [p.raw.tobytes() for p in case.inputs] == before, "wrote into an input"
        flag = read_flag(words)
        assert ([] if flag is None else [flag_message(node, flag)]) == faults
        for placed, result in zip(case.outputs, wanted, strict=True):
            if exact(node):
                np.testing.assert_array_equal(placed.value, np.asarray(result))
            else:
                found = placed.value.astype(np.float64)
                np.testing.assert_allclose(found, np.asarray(result).astype(np.float64), 2e-5, 1e-5)


def run(printer: Printer, cases: Sequence[Case]) -> None:
    launches = [launch for c in cases for launch in printer.print_step(c.step)]
    if not launches:
        return
    unit = Unit(printer, launches)
    for c in cases:
        try:
            check(unit, c)
        except (AssertionError, Fault) as error:
            error.add_note(f"{c.node}\n{c.step}\n" + "\n".join(launch.source for launch in printer.print_step(c.step)))
            raise


def held(samples: Sequence[Sample], printer: Printer) -> list[Sample]:
    """The samples whose dtypes a dialect has."""
    memory = printer.dialect.memory
    return [s for s in samples if all(t.dtype in memory for t in s.types) and s.attrs.get("dtype", "f32") in memory]


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("printer", DIALECTS)
def test_samples_in_every_layout(printer: Printer, name: str) -> None:
    cases = [
        case(name, sample, layout, zlib.crc32(f"{name}{number}".encode()), printer)
        for number, sample in enumerate(held([*OPS[name].samples, *LARGER.get(name, ())], printer))
        for layout in (LAYOUTS if sample.types else ("contiguous",))
    ]
    assert all(supported(c.node) for c in cases)
    run(printer, cases)


WIDE = (
    "add",
    "transpose",
    "pad",
    "concat",
    "sum",
    "argmax",
    "cumsum",
    "gather",
    "scatter",
    "random-normal",
    "product",
    "conv",
    "top-k",
)


@pytest.mark.parametrize("name", WIDE)
@pytest.mark.parametrize("printer", DIALECTS)
def test_indices_of_64_bits(printer: Printer, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The texts of tensors with more than 2^31 elements, on small ones."""
    monkeypatch.setattr(nest, "LIMIT", 1)
    printers._print.cache_clear()
    samples = held([*OPS[name].samples, *LARGER.get(name, ())][::2], printer)
    cases = [case(name, sample, layout, 1, printer) for sample in samples for layout in ("contiguous", "reversed")]
    try:
        run(printer, cases)
    finally:
        printers._print.cache_clear()


def test_every_view_is_covered() -> None:
    assert VIEWS.keys() <= set(OPERATIONS)
