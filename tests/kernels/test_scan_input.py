"""The evidence for running folds that make their input: what qualifies, and that it changes no bit and no launch.

`docs/metal-internals.md` names the expressions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

import sexpgpu.ir.ops  # noqa: F401
from sexpgpu.backend.kernels.printer import Printer
from sexpgpu.backend.kernels.scans import absorbs
from sexpgpu.ir.builder import Builder
from sexpgpu.ir.evaluate import evaluate
from sexpgpu.ir.graph import Node, Value
from sexpgpu.ir.opdef import OPS, Work
from sexpgpu.ir.program import Phase
from sexpgpu.ir.types import NUMPY_DTYPES, TensorType
from sexpgpu.plan.constants import Constants
from sexpgpu.plan.layout import contiguous
from sexpgpu.plan.memory import MemoryProfile
from sexpgpu.plan.phase import PhasePlan, Step, plan_phase
from sexpgpu.plan.regions import Rules
from tests.kernels.emulator import DIALECTS, RUNS, Placed, Unit, compiler, execute

RULES = Rules(lambda body: False, lambda node: False, lambda node: False, absorbs)
SHAPE = (35, 70)
F, H, ROW, COUNTS = (
    TensorType("f32", SHAPE), TensorType("bf16", SHAPE), TensorType("f32", (35,)), TensorType("i32", SHAPE),
)  # fmt: skip
pytestmark = pytest.mark.skipif(compiler() is None, reason="needs g++")
Make = Callable[[Builder, Sequence[Value]], list[Value]]


def cumsum(b: Builder, x: Value, axis: int = 1) -> Value:
    return b.op("cumsum", x, axis=axis)


def chain(count: int) -> Make:
    def make(b: Builder, v: Sequence[Value]) -> list[Value]:
        x = v[0]
        for i in range(count):
            x = b.add(x, v[1]) if i % 2 else b.sub(x, v[1])
        return [cumsum(b, x)]

    return make


ABSORBED: dict[str, tuple[list[TensorType], Make]] = {
    "a sum": ([F, F], lambda b, v: [cumsum(b, b.add(v[0], v[1]))]),
    "down the columns": ([F, F], lambda b, v: [cumsum(b, b.add(v[0], v[1]), 0)]),
    "four additions": ([F, F], chain(4)),
    "a number": ([F], lambda b, v: [cumsum(b, b.add(v[0], b.like(0.5, v[0])))]),
    "a number of each row": ([F, ROW], lambda b, v: [cumsum(b, b.sub(v[0], b.broadcast(v[1], SHAPE, (0,))))]),
    "a widened bf16": ([F, H], lambda b, v: [cumsum(b, b.add(v[0], b.cast(v[1], "f32")))]),
    "a running product": ([F, F], lambda b, v: [b.op("cumprod", b.add(v[0], v[1]), axis=1)]),
    "a running maximum": ([F, F], lambda b, v: [b.op("cummax", b.sub(v[0], v[1]), axis=1)]),
    "one value twice": ([F, F], lambda b, v: [cumsum(b, b.add(v[0], v[0]))]),
}  # fmt: skip
LEFT: dict[str, tuple[list[TensorType], Make]] = {
    "five additions": ([F, F], chain(5)),
    "a product": ([F, F], lambda b, v: [cumsum(b, b.mul(v[0], v[1]))]),
    "read by another": ([F, F], lambda b, v: [cumsum(b, b.add(v[0], v[1])), b.op("tanh", b.add(v[0], v[1]))]),
    "shown": ([F, F], lambda b, v: [cumsum(b, s := b.add(v[0], v[1])), s]),
    "integers": ([COUNTS, COUNTS], lambda b, v: [cumsum(b, b.add(v[0], v[1]))]),
    "rounded on the way": ([F, F], lambda b, v: [cumsum(b, b.cast(b.cast(b.add(v[0], v[1]), "bf16"), "f32"))]),
}


def planned(types: list[TensorType], make: Make, rules: Rules | None) -> PhasePlan:
    b = Builder()
    made = make(b, [b.input(f"feed:x{i}", type) for i, type in enumerate(types)])
    graph = b.graph("step", [(f"result:y{i}", value) for i, value in enumerate(made)])
    return plan_phase(Phase("step", graph), MemoryProfile("card", rules=rules), Constants())


def fold(plan: PhasePlan) -> Step:
    """The step of the running fold, alone or with what makes its input."""

    def folds(node: Node) -> bool:
        return OPS[node.op].work is Work.SCAN or any(folds(inner) for body in node.bodies for inner in body.nodes)

    (found,) = [step for step in plan.steps if folds(step.node)]
    return found


@pytest.mark.parametrize("name", ABSORBED)
def test_what_is_absorbed(name: str) -> None:
    plan, plain = (planned(*ABSORBED[name], rules) for rules in (RULES, None))
    assert [step.node.attrs.get("kind") for step in plan.steps] == ["scan"]
    assert plan.arena_bytes < plain.arena_bytes, "the input of the fold lies nowhere"


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left(name: str) -> None:
    plan = planned(*LEFT[name], RULES)
    assert fold(plan).node.op == "cumsum" and len(plan.steps) > 1


@pytest.mark.parametrize("printer", DIALECTS)
def test_bits_and_launches_stay(printer: Printer) -> None:
    """The interpreter adds, rounds and folds in the order of the graph; the same bits mean the same order."""
    steps = {name: fold(planned(*case, RULES)) for name, case in ABSORBED.items()}
    launches = {name: printer.print_step(step) for name, step in steps.items()}
    unit = Unit(printer, [launch for found in launches.values() for launch in found])
    rng = np.random.default_rng(0)
    for name, step in steps.items():
        alone = printer.print_step(fold(planned(*ABSORBED[name], None)))
        assert [(x.grid, x.block) for x in launches[name]] == [(x.grid, x.block) for x in alone]
        inputs = [Placed(printer, v.type, contiguous(v.shape)) for v in step.node.inputs]
        for x in inputs:
            x.array[...] = (1 + 0.1 * rng.normal(size=x.array.shape)).astype(NUMPY_DTYPES[x.type.dtype])
        output = Placed(printer, step.node.types[0], contiguous(SHAPE))
        body = step.node.bodies[0]
        named = {name: x.value for name, x in zip(body.input_names, inputs, strict=True)}
        (wanted,) = evaluate(body, named).values()
        for order, checked in RUNS:
            output.raw[:] = 0xA5
            execute(unit, step, inputs, [output], order, checked)
            np.testing.assert_array_equal(output.value, wanted, name)
