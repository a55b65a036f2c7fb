"""A phase's steps as prepared calls: every NumPy view made once, so that a call of the phase only loops.

Flow: `session` prepares each phase when a plan is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from sexpgpu.backend.cpu.blocks import MIN_ELEMENTS, Elementwise, Workers, in_blocks
from sexpgpu.ir.opdef import OPS, Array, Context, Work
from sexpgpu.ir.types import TensorType
from sexpgpu.plan.layout import Layout, extent
from sexpgpu.plan.phase import Step

MAX_RUN = 32
"""Elementwise steps that share one walk over their blocks, at most."""


@dataclass(frozen=True, slots=True)
class Memory:
    """The buffers of an opened plan, as bytes by name, and how each IR dtype is stored."""

    buffers: dict[str, Array]
    dtypes: Mapping[str, np.dtype[Any]]

    def view(self, layout: Layout, type: TensorType) -> Array:
        """The window of a buffer that holds a value."""
        dtype = self.dtypes[type.dtype]
        strides = [stride * dtype.itemsize for stride in layout.strides]
        return np.ndarray(type.shape, dtype, self.buffers[layout.buffer].data, layout.offset_bytes, strides)


def prepare(
    steps: Sequence[Step], memory: Memory, ctx: Context, workers: Workers, *, together: bool = True
) -> list[Callable[[], None]]:
    """Calls that execute `steps` in order. together: runs of large elementwise steps share their blocks."""
    calls: list[Callable[[], None]] = []
    run: list[Step] = []

    def flush() -> None:
        if run:
            calls.append(in_blocks([_elementwise(step, memory, ctx) for step in run], workers))
            run.clear()

    for step in steps:
        if not _is_large_map(step):
            flush()
            calls.append(_call(step, memory, ctx))
            continue
        if run and not (together and len(run) < MAX_RUN and _may_join(run, step, memory)):
            flush()
        run.append(step)
    flush()
    return calls


def _arrays(step: Step, memory: Memory) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    inputs = [memory.view(layout, v.type) for layout, v in zip(step.inputs, step.node.inputs, strict=True)]
    outputs = [memory.view(layout, t) for layout, t in zip(step.outputs, step.node.types, strict=True)]
    return tuple(inputs), tuple(outputs)


def _call(step: Step, memory: Memory, ctx: Context) -> Callable[[], None]:
    op = OPS[step.node.op]
    inputs, outputs = _arrays(step, memory)
    if op.into is not None:
        return partial(op.into, ctx, step.node, inputs, outputs)
    return partial(_assign, ctx, step.node, inputs, outputs)


def _assign(ctx: Context, node: Any, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """Compute a meaning and copy its results to their places."""
    result = OPS[node.op].meaning(ctx, node, inputs)
    results = result if isinstance(result, tuple) else (result,)
    for out, made in zip(outputs, results, strict=True):
        np.copyto(out, made)


def _elementwise(step: Step, memory: Memory, ctx: Context) -> Elementwise:
    op = OPS[step.node.op]
    inputs, outputs = _arrays(step, memory)
    return Elementwise(partial(op.into or _assign, ctx, step.node), inputs, outputs)


def _is_large_map(step: Step) -> bool:
    node = step.node
    return (
        OPS[node.op].work is Work.MAP and node.types[0].size >= MIN_ELEMENTS and len(node.types[0].shape) > 0
    )


@dataclass(frozen=True, slots=True)
class _Use:
    """One operand of a step: its bytes in a buffer, and how it walks over them."""

    layout: Layout
    item_bytes: int
    low: int
    high: int
    writes: bool

    def clashes(self, other: _Use) -> bool:
        """Whether one of the two writes what the other touches at another element."""
        if not (self.writes or other.writes) or self.layout.buffer != other.layout.buffer:
            return False
        if self.low >= other.high or other.low >= self.high:
            return False
        return self.layout != other.layout or self.item_bytes != other.item_bytes


def _uses(step: Step, memory: Memory) -> list[_Use]:
    operands = [(layout, v.type, False) for layout, v in zip(step.inputs, step.node.inputs, strict=True)]
    operands += [(layout, t, True) for layout, t in zip(step.outputs, step.node.types, strict=True)]
    uses = []
    for layout, type, writes in operands:
        size = memory.dtypes[type.dtype].itemsize
        low, high = extent(type.shape, layout.strides)
        start = layout.offset_bytes
        uses.append(_Use(layout, size, start + low * size, start + (high + 1) * size, writes))
    return uses


def _may_join(run: Sequence[Step], step: Step, memory: Memory) -> bool:
    """Whether `step` may run on a block before the steps of `run` have finished with the others."""
    if step.node.types[0].shape != run[0].node.types[0].shape:
        return False
    uses = _uses(step, memory)
    return not any(
        use.clashes(earlier) for before in run for earlier in _uses(before, memory) for use in uses
    )
