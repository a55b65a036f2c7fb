"""Where a step first left the finite numbers: the step again, node by node on the host.

Flow: the loop calls it when a guard did not hold. Nothing of that step was written, so the slots still are what the
step read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sexpgpu.backend.protocol import Call
from sexpgpu.ir.graph import Graph, Node, Value
from sexpgpu.ir.opdef import OPS, Array, Context
from sexpgpu.ir.program import FEED, SLOT, Program
from sexpgpu.source import Span

MAX_BYTES = 4 * 2**30
"""A step whose calls hold more values than this at once is not repeated on the host."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The first value of a step that is not finite: in words, and its place in the file where it has one."""

    text: str
    span: Span | None


def first_non_finite(program: Program, calls: Sequence[Call], read: Callable[[str], Array]) -> Finding | None:
    """What first left the finite numbers in `calls`, made again from the slots as `read` gives them.

    None where the host finds nothing: its rounding differs from the device's, or the calls are too large for it.
    """
    phases = [program.phase(call.phase) for call in calls]
    if max(_held_bytes(phase.graph) for phase in phases) > MAX_BYTES:
        return None
    slots: dict[str, Array] = {}
    for call, phase in zip(calls, phases, strict=True):
        graph, given = phase.graph, []
        for name in graph.input_names:
            bare = name.removeprefix(SLOT).removeprefix(FEED)
            if name.startswith(SLOT) and bare not in slots:
                slots[bare] = read(bare)
            given.append(slots[bare] if name.startswith(SLOT) else np.asarray(call.feeds[bare]))
        found, outputs = _search(graph, given)
        if found is not None:
            return found
        slots |= {
            name.removeprefix(SLOT): value
            for (name, _), value in zip(graph.outputs, outputs, strict=True)
            if name.startswith(SLOT)
        }
    return None


def _search(graph: Graph, given: Sequence[Array]) -> tuple[Finding | None, list[Array]]:
    """The finding of one call, and its outputs. A NaN is to blame before an infinity, which may be meant."""
    for name, array in zip(graph.input_names, given, strict=True):
        if array.dtype.kind in "fV" and not np.isfinite(array.astype("f4", copy=False)).all():
            kind = "the field" if name.startswith(FEED + "batch.") else "the input"
            bare = name.removeprefix(SLOT).removeprefix(FEED).removeprefix("batch.")
            return Finding(f"{kind} `{bare}` holds {_extent(array)}", None), []
    ctx, last = Context(), last_uses(graph)
    known: dict[Value, Array] = dict(zip(graph.inputs, given, strict=True))
    infinite: Finding | None = None
    for index, node in enumerate(graph.nodes):
        if node.op == "input":
            continue
        inputs = [known[v] for v in node.inputs]
        with np.errstate(all="ignore"):
            made = OPS[node.op].meaning(ctx, node, inputs)
        results = made if isinstance(made, tuple) else (made,)
        known.update(zip(node.outputs, results, strict=True))
        for type, result in zip(node.types, results, strict=True):
            if type.is_float and node.op != "constant":
                wide = result.astype("f4", copy=False)
                if np.isnan(wide).any():
                    return Finding(_told(node, inputs, wide), node.origin.place), []
                if infinite is None and np.isinf(wide).any() and all(_finite(x) for x in inputs):
                    infinite = Finding(_told(node, inputs, wide), node.origin.place)
        for value in last.get(index, ()):
            del known[value]
    outputs = [known[v] for v in graph.output_values]
    bad = infinite is not None and not all(_finite(x) for x in outputs)
    return (infinite if bad else None), outputs


def _finite(array: Array) -> bool:
    return array.dtype.kind in "biu" or bool(np.isfinite(array.astype("f4", copy=False)).all())


def _told(node: Node, inputs: Sequence[Array], result: Array) -> str:
    first = np.unravel_index(int(np.argmin(np.isfinite(result))), result.shape)
    alike = [x for x in inputs if x.shape == result.shape]
    operands = " and ".join(f"{float(x[first]):.6g}" for x in alike)
    of = f" of {operands}" if alike and len(alike) == len(inputs) else ""
    inside = " in its gradient" if node.origin.note.startswith("gradient") else ""
    return f"the first value that is not finite{inside}: `{node.op}`{of} is {_extent(result)}"


def _extent(array: Array) -> str:
    """`nan at [0 3], one of 5 in (f32 8 16); the others lie between -1 and 2`."""
    wide = array.astype("f4", copy=False)
    good = np.isfinite(wide)
    first = np.unravel_index(int(np.argmin(good)), wide.shape)
    bad = int(wide.size - np.count_nonzero(good))
    at = f" at [{' '.join(str(int(i)) for i in first)}]" if wide.ndim else ""
    count = f", one of {bad:,} such among {wide.size:,}" if bad > 1 else ""
    rest = f"; the others lie between {wide[good].min():.4g} and {wide[good].max():.4g}" if good.any() else ""
    return f"{float(wide[first])}{at}{count}{rest}"


def last_uses(graph: Graph) -> dict[int, list[Value]]:
    """Values by the index of the last node that reads them; outputs of the graph are never let go."""
    kept, last = set(graph.output_values), dict[Value, int]()
    for index, node in enumerate(graph.nodes):
        for value in (*node.inputs, *node.outputs):
            last[value] = index
    found: dict[int, list[Value]] = {}
    for value, index in last.items():
        if value not in kept and value.node.op != "input":
            found.setdefault(index, []).append(value)
    return found


def _held_bytes(graph: Graph) -> int:
    """The most that values of the graph hold at once."""
    last = last_uses(graph)
    held = most = sum(v.type.num_bytes for v in graph.inputs)
    for index, node in enumerate(graph.nodes):
        held += 0 if node.op == "input" else sum(t.num_bytes for t in node.types)
        most = max(most, held)
        held -= sum(v.type.num_bytes for v in last.get(index, ()))
    return most
