"""A phase's steps as prepared calls: every NumPy view made once, so that a call of the phase only loops.

Flow: `session` prepares each phase when a plan is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from sexpgpu.backend.cpu.blocks import MIN_ELEMENTS, Operation, Run, operation
from sexpgpu.backend.cpu.bodies import is_loop
from sexpgpu.backend.cpu.kernels import stages
from sexpgpu.backend.cpu.loops import LoopCall
from sexpgpu.backend.cpu.memory import Memory
from sexpgpu.backend.cpu.native.lowering import Native
from sexpgpu.backend.cpu.workers import Workers
from sexpgpu.ir.graph import Node
from sexpgpu.ir.opdef import OPS, Context, Work
from sexpgpu.plan.phase import Step

PreparedCall = Callable[[], Any]


class StageCall:
    """The independent calls of one stage of a node, shared by threads."""

    def __init__(self, node: Node, calls: Sequence[PreparedCall], workers: Workers) -> None:
        self.nodes = [node]
        self._calls, self._workers = calls, workers

    def __call__(self) -> None:
        self._workers.run(self._work, len(self._calls))

    def _work(self, lane: int, numbers: Iterator[int]) -> None:
        for number in numbers:
            self._calls[number]()


class InOrder:
    """Several calls as one."""

    def __init__(self, calls: Sequence[PreparedCall]) -> None:
        self._calls = calls

    def __call__(self) -> None:
        for call in self._calls:
            call()


def prepare(
    steps: Sequence[Step],
    memory: Memory,
    ctx: Context,
    workers: Workers,
    native: Native | None = None,
    *,
    together: bool = True,
) -> list[PreparedCall]:
    """Calls that execute `steps` in order.

    native: what compiles steps to C; what it cannot take is interpreted. together: several steps may become one call;
    otherwise each is one.
    """
    if native is not None:
        return native.calls(steps, memory, partial(_interpreted, memory, ctx, workers, native), together=together)
    calls: list[PreparedCall] = []
    run = Run()

    def flush() -> None:
        nonlocal run
        if not run.operations:
            return
        if run.largest >= MIN_ELEMENTS and (run.num_elements >= 2 * MIN_ELEMENTS or not together):
            calls.append(run.build(workers))
        else:
            for step in run.steps():
                calls.append(_call(step, memory, ctx, workers))
        run = Run()

    for step in steps:
        candidate = _candidate(step, memory, ctx)
        if candidate is None:
            flush()
            calls.append(_call(step, memory, ctx, workers))
            continue
        if not together or not run.add(candidate):
            flush()
            if not run.add(candidate):
                calls.append(_call(step, memory, ctx, workers))
    flush()
    return calls


def _candidate(step: Step, memory: Memory, ctx: Context) -> Operation | None:
    if OPS[step.node.op].work not in (Work.MAP, Work.REDUCE):
        return None
    return operation(step, memory, ctx)


def _interpreted(memory: Memory, ctx: Context, workers: Workers, native: Native, step: Step) -> PreparedCall:
    """One step among others that are C."""
    if is_loop(step.node):
        return _call(step, memory, ctx, workers, native)
    (call,) = prepare((step,), memory, ctx, workers)
    return call


def _call(step: Step, memory: Memory, ctx: Context, workers: Workers, native: Native | None = None) -> PreparedCall:
    node = step.node
    inputs = [memory.view(layout, v.type) for layout, v in zip(step.inputs, node.inputs, strict=True)]
    outputs = [memory.view(layout, t) for layout, t in zip(step.outputs, node.types, strict=True)]
    if is_loop(node):
        return LoopCall(node, inputs, outputs, memory, ctx, partial(prepare, workers=workers, native=native))
    calls: list[PreparedCall] = []
    for stage in stages(ctx, node, tuple(inputs), tuple(outputs)):
        calls.append(stage[0] if len(stage) == 1 else StageCall(node, stage, workers))
    return calls[0] if len(calls) == 1 else InOrder(calls)
