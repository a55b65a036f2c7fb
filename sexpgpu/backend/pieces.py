"""What a device does in a call, piece by piece: what each is made of, the least that it should take, what it took.

Flow: a device cuts its phases into pieces; `cli.lower` shows them, and a run with `--profile` has a session time them
in a `Profile`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from sexpgpu.ir.graph import NOWHERE, Node, Origin
from sexpgpu.ir.opdef import OPS, Work
from sexpgpu.ir.ops.region import shares
from sexpgpu.ir.types import TensorType
from sexpgpu.plan.layout import Layout
from sexpgpu.plan.memory import ProgramPlan
from sexpgpu.plan.phase import Copy, Step

MAX_EVENTS = 100_000
"""Pieces of work whose times are kept one by one; what comes later is only added up."""
SECOND_PASS = " (second pass)"
"""What follows the name of a phase whose proposals are made again, straight into the slots."""
NAMED = 4
"""Operations that a title names."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A kernel, a call of a library, a copy, or what is interpreted.

    kind: one of these in a word. title: what it computes. origin: of the node that stands for it. flops, num_bytes: the
    least that it must compute and move. dtype: of what it computes with. reason: why it runs in this way. text: the
    name of its kernel; empty where it has none of its own.
    """

    kind: str
    title: str
    origin: Origin = NOWHERE
    flops: int = 0
    num_bytes: int = 0
    dtype: str = "f32"
    reason: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class Rates:
    """What a device does in a second at best. flops: by dtype of the operands; `f32` is there. launch_s: of a piece."""

    flops: Mapping[str, float]
    bytes_per_s: float
    launch_s: float

    def seconds(self, piece: Piece) -> float:
        """The least that a piece takes: its arithmetic or its traffic, whichever is more, and its launch."""
        flops_per_s = self.flops.get(piece.dtype, self.flops["f32"])
        return max(piece.flops / flops_per_s, piece.num_bytes / self.bytes_per_s) + self.launch_s


@dataclass(frozen=True, slots=True)
class Event:
    """A piece that ran: its phase, its number there, when it began and how long it took, in seconds."""

    phase: str
    number: int
    start_s: float
    seconds: float


@dataclass(slots=True)
class Profile:
    """Times of pieces while a program runs.

    calls: of each phase. seconds: of each piece of a phase, all calls together. events: one by one, up to `MAX_EVENTS`.
    """

    calls: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)

    def add(self, phase: str, times: Sequence[tuple[float, float]]) -> None:
        """One call of a phase: when each of its pieces began and how long it took, in seconds."""
        self.calls[phase] = self.calls.get(phase, 0) + 1
        sums = self.seconds.setdefault(phase, [0.0] * len(times))
        for number, (start, seconds) in enumerate(times):
            sums[number] += seconds
            if seconds > 0 and len(self.events) < MAX_EVENTS:
                self.events.append(Event(phase, number, start, seconds))


@runtime_checkable
class Profiling(Protocol):
    """A session that can time what it does."""

    def profile(self, profile: Profile) -> None:
        """Time every piece from now on, one after the other, and tell `profile`."""
        ...

    def pieces(self) -> Mapping[str, Sequence[Piece]]:
        """The pieces of each phase, in the order in which they run. A second pass is a phase of its own."""
        ...

    def rates(self) -> Rates:
        """What the device does at best."""
        ...


@runtime_checkable
class Printing(Protocol):
    """A device whose kernels have a text."""

    def kernels(self, plan: ProgramPlan) -> Mapping[str, str]:
        """The text of each kernel by name; empty where a plan takes none."""
        ...


# What steps are made of.


def flops_of(nodes: Sequence[Node]) -> int:
    """Floating-point operations of nodes; those of a region or a composite are those of its bodies."""
    total = 0
    for node in nodes:
        if node.op == "region" or OPS[node.op].work is Work.EXPAND:
            total += sum([flops_of(body.nodes) for body, _, _ in shares(node)])
        elif OPS[node.op].work not in (Work.INPUT, Work.FILL, Work.MOVE):
            total += OPS[node.op].cost(node).flops
    return total


def window_bytes(layout: Layout, type: TensorType, item_bytes: Mapping[str, int]) -> int:
    """Bytes of a window; an axis that repeats counts once."""
    sizes = [n for n, stride in zip(type.shape, layout.strides, strict=True) if stride]
    return math.prod(sizes) * item_bytes[type.dtype]


def step_bytes(step: Step, item_bytes: Mapping[str, int]) -> int:
    """Bytes that a step reads, each window once, and writes."""
    reads = {(layout, v.type) for layout, v in zip(step.inputs, step.node.inputs, strict=True)}
    writes = zip(step.outputs, step.node.types, strict=True)
    return sum([window_bytes(layout, type, item_bytes) for layout, type in (*reads, *writes)])


def copy_piece(copies: Sequence[Copy], item_bytes: Mapping[str, int], title: str) -> Piece:
    """Copies as one piece."""
    moved = 2 * sum([copy.type.size * item_bytes[copy.type.dtype] for copy in copies])
    return Piece("copies", f"{title} × {len(copies)}", num_bytes=moved, reason="it moves what it reads")


def title_of(nodes: Sequence[Node]) -> str:
    """What nodes compute, in a few words: `exp, sum, div, +3`."""
    names: dict[str, None] = {}
    for node in nodes:
        names |= dict.fromkeys(_names(node))
    shown = list(names)[:NAMED]
    return ", ".join([*shown, *([f"+{len(names) - NAMED}"] if len(names) > NAMED else [])])


def _names(node: Node) -> list[str]:
    if node.op == "region":
        inner = [name for body in node.bodies for member in body.nodes for name in _names(member)]
        return [name for name in inner if name not in ("input", "constant")]
    if node.op == "product":
        return [str(node.attrs["spec"])]
    return [str(node.attrs["name"]) if node.op == "composite" else node.op]
