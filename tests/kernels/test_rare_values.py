"""Values that samples do not have: NaN, infinities, signed zeros, every bf16, ties; and planted bugs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import sexpgpu.ir.ops  # noqa: F401
from sexpgpu.backend.kernels.printer import Printer
from sexpgpu.ir.builder import Builder
from sexpgpu.ir.opdef import OPS, Array, Context, Work
from sexpgpu.ir.types import NUMPY_DTYPES, TensorType
from sexpgpu.plan.layout import contiguous
from sexpgpu.plan.phase import Copy, Step
from tests.kernels.emulator import DIALECTS, RUNS, Placed, Unit, compiler, execute

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs g++")

RARE = np.array(
    [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1, -1, 0.5, 1.5, 2.5, -2.5, 1e-42, 3e38, -3e38, 1e-7, 88.9, -104],
    np.float32,
)
IR_DTYPES = {dtype: name for name, dtype in NUMPY_DTYPES.items()}


def prepared(
    printer: Printer, op: str, arrays: Sequence[Array], **attrs: Any
) -> tuple[Step, list[Placed], list[Placed]]:
    b = Builder()
    types = [TensorType(IR_DTYPES[a.dtype], a.shape) for a in arrays]
    node = b.node(op, [b.input(f"x{i}", t) for i, t in enumerate(types)], attrs)
    inputs = [Placed(printer, t, contiguous(t.shape)) for t in types]
    for placed, array in zip(inputs, arrays, strict=True):
        placed.array[...] = array
    outputs = [Placed(printer, t, contiguous(t.shape)) for t in node.types]
    return Step(node, tuple(p.layout for p in inputs), tuple(p.layout for p in outputs)), inputs, outputs


def expected(step: Step, inputs: Sequence[Placed]) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(OPS[step.node.op].meaning(Context(), step.node, [p.value for p in inputs]))


@pytest.mark.parametrize("printer", DIALECTS)
def test_order_of_rare_values(printer: Printer) -> None:
    rows = np.stack([np.roll(np.resize(RARE, 40), 7 * n) for n in range(3)])
    many = np.resize(RARE, (2, 2500))
    made = [prepared(printer, "sort", (x,), axis=1, descending=d) for x in (rows, many) for d in (False, True)]
    made += [prepared(printer, "top-k", (x,), axis=1, k=k) for x in (rows, many) for k in (1, 30)]
    unit = Unit(printer, [launch for step, _, _ in made for launch in printer.print_step(step)])
    for step, inputs, outputs in made:
        execute(unit, step, inputs, outputs, "forward")
        wanted = OPS[step.node.op].meaning(Context(), step.node, [p.value for p in inputs])
        for placed, result in zip(outputs, wanted, strict=True):
            np.testing.assert_array_equal(placed.value, result)


@pytest.mark.parametrize("printer", DIALECTS)
def test_elementwise_of_rare_values(printer: Printer) -> None:
    x, y = (np.ascontiguousarray(a.reshape(-1)) for a in np.meshgrid(RARE, RARE))
    made = []
    for name, op in OPS.items():
        if op.work is Work.MAP and name not in ("cast", "quotient", "rem", "where", "and", "or", "not"):
            made.append(prepared(printer, name, (x, y)[: len(op.samples[0].types)]))
    unit = Unit(printer, [launch for step, _, _ in made for launch in printer.print_step(step)])
    for step, inputs, outputs in made:
        execute(unit, step, inputs, outputs, "forward")
        np.testing.assert_allclose(
            outputs[0].value.astype(np.float32), expected(step, inputs).astype(np.float32), 2e-6, 1e-30,
            err_msg=step.node.op,
        )  # fmt: skip


@pytest.mark.parametrize("printer", DIALECTS)
def test_every_bfloat16_and_its_roundings(printer: Printer) -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(ml_dtypes.bfloat16)
    wide = every.astype(np.float32).view(np.uint32)
    near = np.concatenate([wide + d for d in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)]).view(np.float32)
    up, down = prepared(printer, "cast", [every], dtype="f32"), prepared(printer, "cast", [near], dtype="bf16")
    unit = Unit(printer, [launch for step, _, _ in (up, down) for launch in printer.print_step(step)])
    for (step, inputs, outputs), bits in ((up, np.uint32), (down, np.uint16)):
        execute(unit, step, inputs, outputs, "reverse")
        found, wanted = outputs[0].value, expected(step, inputs)
        numbers = ~np.isnan(wanted.astype(np.float32))
        np.testing.assert_array_equal(found.view(bits)[numbers], wanted.view(bits)[numbers])
        assert np.isnan(found.astype(np.float32)[~numbers]).all()
        if bits is np.uint16:
            np.testing.assert_array_equal(found.view(bits), wanted.view(bits))


@pytest.mark.parametrize("shape, axis", [((6, 40), 1), ((40, 6), 0), ((3, 3000), 1)])
@pytest.mark.parametrize("printer", DIALECTS)
def test_extrema_with_nan_and_ties(printer: Printer, shape: tuple[int, int], axis: int) -> None:
    rng = np.random.default_rng(5)
    x = rng.integers(0, 3, shape).astype(np.float32)
    rows = np.moveaxis(x, axis, 1)
    rows[0, 7], rows[1, 3], rows[1, 9], rows[2] = np.nan, np.nan, np.inf, np.nan
    made = [prepared(printer, op, [x], axis=axis) for op in ("argmax", "argmin", "cummax")]
    made += [prepared(printer, op, [x], axes=(axis,)) for op in ("max", "min")]
    unit = Unit(printer, [launch for step, _, _ in made for launch in printer.print_step(step)])
    for step, inputs, outputs in made:
        execute(unit, step, inputs, outputs, "reverse")
        np.testing.assert_array_equal(outputs[0].value, expected(step, inputs), err_msg=step.node.op)


@pytest.mark.parametrize("printer", DIALECTS)
def test_a_scatter_adds_in_the_order_of_its_indices(printer: Printer) -> None:
    """One place gets most of the values, as in texts; sums in another order have other bits."""
    rng = np.random.default_rng(3)
    places = (rng.zipf(1.3, 3000) % 90).astype(np.int32)
    values = rng.normal(0, 1, (3000, 8)).astype(np.float32)
    step, inputs, outputs = prepared(
        printer, "scatter", [np.zeros((90, 8), np.float32), places, values], axis=0, batch=0, fold="add"
    )
    unit = Unit(printer, printer.print_step(step))
    for order, checked in RUNS:
        execute(unit, step, inputs, outputs, order, checked)
        np.testing.assert_array_equal(outputs[0].value, expected(step, inputs))


@pytest.mark.parametrize("printer", DIALECTS)
def test_a_map_may_write_over_its_input(printer: Printer) -> None:
    x, y = np.arange(1000, dtype=np.float32), np.ones(1000, np.float32)
    step, inputs, _ = prepared(printer, "sub", [x, y])
    execute(Unit(printer, printer.print_step(step)), step, inputs, [inputs[0]], "forward")
    np.testing.assert_array_equal(inputs[0].value, x - y)


@pytest.mark.parametrize("printer", DIALECTS)
def test_copies_of_a_plan(printer: Printer) -> None:
    type = TensorType("bf16", (40, 50))
    source, target = Placed(printer, type, (1, 40)), Placed(printer, type, (50, 1))
    source.array[...] = np.arange(2000).reshape(40, 50).astype(NUMPY_DTYPES["bf16"])
    launches = printer.print_copy(Copy(type, source.layout, target.layout))
    unit = Unit(printer, launches)
    for launch in launches:
        unit.run(launch, {("input", 0): source.buffer("input"), ("output", 0): target.buffer("output")})
    np.testing.assert_array_equal(source.value, target.value)


@pytest.mark.parametrize("printer", DIALECTS)
def test_equal_work_has_one_kernel(printer: Printer) -> None:
    rng = np.random.default_rng(0)
    first, second = (prepared(printer, "add", [rng.normal(size=(8, 4)).astype(np.float32)] * 2)[0] for _ in range(2))
    assert printer.print_step(first) == printer.print_step(second)
    (launch,) = printer.print_step(first)
    assert printer.module_source([launch, *printer.print_step(second)]).count(f"{launch.name}(") == 1
