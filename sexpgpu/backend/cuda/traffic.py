"""Bytes that a lowered phase moves, against the fewest that it could.

Flow: `report` and the benchmarks read it; nothing is decided by it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sexpgpu.ir.graph import Node
from sexpgpu.ir.types import ITEM_BYTES, TensorType
from sexpgpu.plan.layout import ARENA, Layout, extent
from sexpgpu.plan.phase import PhasePlan, Step

Key = tuple[str, int]


def moved_bytes(plan: PhasePlan) -> list[int]:
    """Per step: what it reads, each window once, and what it writes for others to read."""
    spans = [_spans(step) for step in plan.steps]
    found = []
    for position, (reads, writes) in enumerate(spans):
        read: dict[Key, int] = {}
        for span, value in zip(reads, plan.steps[position].node.inputs, strict=True):
            read[span.key] = max(read.get(span.key, 0), distinct_bytes(span.layout, value.type))
        kept = [span for span in writes if _is_read_later(plan, spans, span, position + 1)]
        found.append(sum(read.values()) + sum([span.end - span.start for span in kept]))
    return found


def copied_bytes(plan: PhasePlan) -> int:
    """What the copies at the end of a call, into slots, read and write."""
    return 2 * sum([copy.type.num_bytes for copy in (*plan.saves, *plan.commits)])


def fewest_bytes(plan: PhasePlan, by_library: Callable[[Node], bool]) -> int:
    """What library calls move, and what the other steps read or write of slots and feeds, once each way."""
    moved = sum([n for n, step in zip(moved_bytes(plan), plan.steps, strict=True) if by_library(step.node)])
    touched: dict[tuple[Key, bool], int] = {}
    for copy in (*plan.saves, *plan.commits):
        touched[(copy.target.buffer, copy.target.offset_bytes), True] = copy.type.num_bytes
    for step in plan.steps:
        if by_library(step.node):
            continue
        operands = [(layout, v.type, False) for layout, v in zip(step.inputs, step.node.inputs, strict=True)]
        operands += [(layout, type, True) for layout, type in zip(step.outputs, step.node.types, strict=True)]
        for layout, type, writes in operands:
            if layout.buffer != ARENA:
                key = (layout.buffer, layout.offset_bytes), writes
                touched[key] = max(touched.get(key, 0), distinct_bytes(layout, type))
    return moved + sum(touched.values())


def distinct_bytes(layout: Layout, type: TensorType) -> int:
    """Bytes of a window, an axis that repeats counted once."""
    sizes = [n for n, stride in zip(type.shape, layout.strides, strict=True) if stride]
    return math.prod(sizes) * ITEM_BYTES[type.dtype]


@dataclass(frozen=True, slots=True)
class _Span:
    """The bytes of a buffer that a window lies within."""

    layout: Layout
    start: int
    end: int

    @property
    def key(self) -> Key:
        return self.layout.buffer, self.layout.offset_bytes

    def meets(self, other: _Span) -> bool:
        same = self.layout.buffer == other.layout.buffer
        return same and self.start < other.end and other.start < self.end


def _span(layout: Layout, type: TensorType) -> _Span:
    low, high = extent(type.shape, layout.strides)
    size = ITEM_BYTES[type.dtype]
    return _Span(layout, layout.offset_bytes + low * size, layout.offset_bytes + (high + 1) * size)


def _spans(step: Step) -> tuple[list[_Span], list[_Span]]:
    reads = [_span(layout, v.type) for layout, v in zip(step.inputs, step.node.inputs, strict=True)]
    return reads, [_span(layout, t) for layout, t in zip(step.outputs, step.node.types, strict=True)]


def _is_read_later(plan: PhasePlan, spans: Sequence[tuple[list[_Span], list[_Span]]], span: _Span, start: int) -> bool:
    """Whether something reads `span` from step `start` on, before it is overwritten; a slot is always read."""
    if span.layout.buffer != ARENA:
        return True
    for reads, writes in spans[start:]:
        if any(span.meets(other) for other in reads):
            return True
        if any(other.start <= span.start and span.end <= other.end for other in writes if span.meets(other)):
            return False
    return True
