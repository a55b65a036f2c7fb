"""The run-time loop: a body applied once for each place along an axis, with values carried from place to place.

Inputs are the first carries, then sequences, whose leading axis is walked, then captured values, the same in
every trip. The one body has inputs `c0 …`, `x0 …`, `k0 …` of those; its outputs are the new carries `c0 …` and what it
emits, `e0 …`. Outputs of the node are the final carries, then what was emitted, each at the place of its trip. A
reversed scan begins at the last place. A body that must know its place walks a sequence of places.

Its gradient is a scan the other way round whose body computes a trip again from the carries that it began
with, so `scan` emits these too, behind what it is asked for, and what is gathered from a carry, so that a table
need not be kept for the rows that were read. `transform.loops` drops what nobody reads.

Flow: `lang.loops` makes scans; devices run them by their body.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sexpgpu.ir.builder import Builder
from sexpgpu.ir.evaluate import run_graph
from sexpgpu.ir.graph import NOWHERE, Attrs, Graph, Node, Value, reachable
from sexpgpu.ir.opdef import OPS, Array, Context, Cost, OpDef, Sample, Work, bytes_moved, register
from sexpgpu.ir.ops.rules import attr_int, batch, body_flops
from sexpgpu.ir.stacking import stack_into
from sexpgpu.ir.sweep import sweep
from sexpgpu.ir.types import TensorType, TypeFault


def scan(
    b: Builder, starts: Sequence[Value], sequences: Sequence[Value], captured: Sequence[Value],
    inner: Builder, inputs: Sequence[Value], nexts: Sequence[Value], emits: Sequence[Value],
    *, length: int, reverse: bool,
) -> Node:  # fmt: skip
    """The node of a body under construction in `inner`; it also emits the carries that each trip begins with.

    Args: inputs: of the body, in order. nexts, emits: what the body gives.
    """
    carries = inputs[: len(starts)]
    reads = _reads(reachable((*nexts, *emits)), carries)
    outputs = [(f"c{i}", v) for i, v in enumerate(nexts)]
    outputs += [(f"e{i}", v) for i, v in enumerate((*emits, *carries, *reads))]
    attrs = {
        "num_carries": len(starts),
        "num_sequences": len(sequences),
        "length": length,
        "reverse": reverse,
    }
    return b.node("scan", (*starts, *sequences, *captured), attrs, (inner.graph("scan", outputs, inputs),))


def _reads(nodes: Sequence[Node], carries: Sequence[Value]) -> list[Value]:
    """What a body gathers from its carries."""
    held = set(carries)
    return [n.outputs[0] for n in nodes if OPS[n.op].work is Work.GATHER and n.inputs[0] in held]


def split(node: Node) -> tuple[int, int]:
    """Where the sequences begin among the inputs, and where the captured values do."""
    carries = attr_int(node.attrs, "num_carries")
    return carries, carries + attr_int(node.attrs, "num_sequences")


def places(node: Node) -> range:
    """The places of a scan in the order of its trips."""
    forward = range(attr_int(node.attrs, "length"))
    return forward[::-1] if node.attrs["reverse"] else forward


def _type(types: Sequence[TensorType], attrs: Attrs, bodies: Sequence[Graph]) -> tuple[TensorType, ...]:
    (body,) = bodies
    carries, sequences, length = (attr_int(attrs, n) for n in ("num_carries", "num_sequences", "length"))
    first = carries + sequences
    if len(types) < first or length < 0:
        raise TypeFault(f"`scan` of {len(types)} values has {carries} carries and {sequences} sequences")
    for type in types[carries:first]:
        if type.rank == 0 or type.shape[0] != length:
            raise TypeFault(f"`scan` of {length} places walks {type}")
    wanted = {f"c{i}": t for i, t in enumerate(types[:carries])}
    wanted |= {f"x{i}": t.with_shape(t.shape[1:]) for i, t in enumerate(types[carries:first])}
    wanted |= {f"k{i}": t for i, t in enumerate(types[first:])}
    if list(zip(body.input_names, [v.type for v in body.inputs], strict=True)) != list(wanted.items()):
        given = ", ".join(f"{name} {v.type}" for name, v in zip(body.input_names, body.inputs, strict=True))
        raise TypeFault(f"the body of `scan` takes {given}; it is given {wanted}")
    names = [name for name, _ in body.outputs]
    if names != [*(f"c{i}" for i in range(carries)), *(f"e{i}" for i in range(len(names) - carries))]:
        raise TypeFault(f"the body of `scan` gives {names}")
    made = [v.type for v in body.output_values]
    for i, (before, after) in enumerate(zip(types[:carries], made[:carries], strict=True)):
        if before != after:
            raise TypeFault(f"carry {i} of `scan` begins as {before} and becomes {after}")
    return (*made[:carries], *(t.with_shape((length, *t.shape)) for t in made[carries:]))


def inside(ctx: Context, node: Node) -> Context:
    """The context of a body: what has no origin of its own is at fault where the scan stands."""
    flag = ctx.flag
    if flag is None:
        return ctx
    return Context(ctx.dtypes, lambda inner, fault: flag(node if inner.origin == NOWHERE else inner, fault))


def _meaning(ctx: Context, node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    ctx = inside(ctx, node)
    body = node.bodies[0]
    sequences, captured = split(node)
    carries = list(inputs[:sequences])
    emitted = [np.empty(t.shape, ctx.dtype(t)) for t in node.types[sequences:]]
    for place in places(node):
        given = [*carries, *(x[place, ...] for x in inputs[sequences:captured]), *inputs[captured:]]
        results = run_graph(ctx, body, given)
        carries = list(results[:sequences])
        for stacked, value in zip(emitted, results[sequences:], strict=True):
            stacked[place] = value
    return (*map(np.asarray, carries), *emitted)


# Gradient.


def _saved(b: Builder, node: Node) -> tuple[Value, ...]:
    """For each carry, what every trip began with, stacked: an output of the node, or of one that emits it too."""
    body, (carries, _) = node.bodies[0], split(node)
    held = {value: node.outputs[i] for i, value in enumerate(body.output_values) if i >= carries}
    if all(value in held for value in body.inputs[:carries]):
        return tuple([held[value] for value in body.inputs[:carries]])
    count = len(body.outputs) - carries
    outputs = (*body.outputs, *((f"e{count + i}", v) for i, v in enumerate(body.inputs[:carries])))
    wider = Graph(body.name, body.inputs, outputs, reachable(tuple([v for _, v in outputs])))
    return b.node("scan", node.inputs, node.attrs, (wider,)).outputs[-carries:]


def _gradient(b: Builder, node: Node, cotangents: Sequence[Value | None]) -> Sequence[Value | None]:
    if not any(g is not None and g.type.is_float for g in cotangents):
        return (None,) * len(node.inputs)
    body, (carries, first) = node.bodies[0], split(node)
    inner = Builder()

    def zeros(type: TensorType, into: Builder = inner) -> Value:
        return into.constant(0.0, type)

    # The body: cotangents of carries come in as carries, everything of the forward trip as sequences.
    moving = [i for i in range(carries) if node.types[i].is_float]
    received = {i: g for i, g in enumerate(cotangents) if i >= carries and g is not None and g.type.is_float}
    inputs = [inner.input(f"c{n}", node.types[i]) for n, i in enumerate(moving)]
    given: list[Value | None] = [None] * len(node.types)
    for i, value in zip(moving, inputs, strict=True):
        given[i] = value
    walked = [inner.input(f"x{n}", v.type) for n, v in enumerate(body.inputs[:first])]
    for n, i in enumerate(received, first):
        given[i] = inner.input(f"x{n}", body.output_values[i].type)
    emitted_too = {v: node.outputs[i] for i, v in enumerate(body.output_values) if i >= carries}
    reads = [v for v in _reads(body.nodes, body.inputs[:carries]) if v in emitted_too]
    known = {v: inner.input(f"x{n}", v.type) for n, v in enumerate(reads, first + len(received))}
    held = [inner.input(f"k{n}", v.type) for n, v in enumerate(node.inputs[first:])]
    found = sweep(inner, body, [*walked, *held], given, known)
    nexts = [found[i] or zeros(node.types[i]) for i in moving]
    starts = [cotangents[i] or zeros(node.types[i], b) for i in moving]
    emitted = [i for i in range(carries, first) if found[i] is not None]
    # What a captured value receives is added up from trip to trip, of bf16 in f32.
    summed = [i for i in range(first, len(node.inputs)) if found[i] is not None]
    for i in summed:
        part = found[i]
        assert part is not None
        wide = inner.cast(part, "f32") if part.dtype == "bf16" else part
        total = inner.input(f"c{len(inputs)}", wide.type)
        inputs.append(total)
        nexts.append(inner.add(total, wide))
        starts.append(zeros(wide.type, b))
    sequences = [*_saved(b, node), *node.inputs[carries:first], *received.values()]
    sequences += [emitted_too[v] for v in reads]
    inputs += [inner.input(f"x{n}", v.type.with_shape(v.shape[1:])) for n, v in enumerate(sequences)]
    back = scan(
        b, starts, sequences, node.inputs[first:], inner, [*inputs, *held],
        nexts, [v for i in emitted if (v := found[i]) is not None],
        length=attr_int(node.attrs, "length"), reverse=not node.attrs["reverse"],
    ).outputs  # fmt: skip
    result: list[Value | None] = [None] * len(node.inputs)
    for i, value in zip((*moving, *summed, *emitted), back, strict=False):
        result[i] = b.cast(value, node.inputs[i].dtype)
    return result


# Stacking.


def _stacking(b: Builder, node: Node, inputs: Sequence[Value], batched: Sequence[bool], k: int) -> tuple[Value, ...]:
    body, (carries, first) = node.bodies[0], split(node)
    flags = [*[True] * carries, *batched[carries:]]
    inner = Builder()
    given = [
        inner.input(name, v.type.with_shape((k, *v.shape)) if flag else v.type)
        for name, v, flag in zip(body.input_names, body.inputs, flags, strict=True)
    ]
    names = [name for name, flag in zip(body.input_names, flags, strict=True) if flag]
    made = stack_into(inner, body, dict(zip(body.input_names, given, strict=True)), names, k)
    outputs = [(name, batch(inner, value, flag, k)) for name, (value, flag) in made.items()]
    stacked = inner.graph(body.name, outputs, given)
    values = [batch(b, v, flag, k) for v, flag in zip(inputs[:carries], batched[:carries], strict=True)]
    for value, flag in zip(inputs[carries:first], batched[carries:first], strict=True):
        values.append(_swapped(b, value) if flag else value)
    results = b.node("scan", (*values, *inputs[first:]), node.attrs, (stacked,)).outputs
    return (*results[:carries], *(_swapped(b, value) for value in results[carries:]))


def _swapped(b: Builder, value: Value) -> Value:
    """`value` with its first two axes exchanged."""
    return b.transpose(value, (1, 0, *range(2, value.rank)))


def _cost(node: Node) -> Cost:
    return Cost(attr_int(node.attrs, "length") * body_flops(node), bytes_moved(node))


# Samples.


def _sample(
    types: Sequence[TensorType], carries: int, sequences: int, body: Graph, length: int, reverse: bool = False
) -> Sample:
    attrs = {"num_carries": carries, "num_sequences": sequences, "length": length, "reverse": reverse}
    return Sample(tuple(types), attrs, bodies=(body,))


def _samples() -> tuple[Sample, ...]:
    state, matrix = TensorType("f32", (2, 3)), TensorType("f32", (3, 3))
    count = TensorType("i32", ())

    def cell(saves: bool) -> Graph:
        """c0 ← tanh(c0·k0 + x0), emitted; the bare body does not emit what its gradient needs."""
        b = Builder()
        c, x, w = b.input("c0", state), b.input("x0", state), b.input("k0", matrix)
        h = b.op("tanh", b.add(b.product("ij,jk->ik", c, w), x))
        outputs = [("c0", h), ("e0", b.mul(h, c)), *([("e1", c)] if saves else [])]
        return b.graph("scan", outputs, (c, x, w))

    def counted() -> Graph:
        """Two carries, one of them a count that scales the other, two sequences of which one is not read."""
        b = Builder()
        c, n = b.input("c0", state), b.input("c1", count)
        x, unread = b.input("x0", state), b.input("x1", count)
        times = b.broadcast(b.cast(n, "f32"), state.shape, ())
        moved = b.add(b.scale(c, 0.5), b.mul(x, times))
        outputs = [("c0", moved), ("c1", b.add(n, b.like(1, n))), ("e0", b.sum(b.mul(moved, c), (0, 1)))]
        return b.graph("scan", outputs, (c, n, x, unread))

    def walked(type: TensorType, length: int) -> TensorType:
        return type.with_shape((length, *type.shape))

    return (
        _sample((state, walked(state, 4), matrix), 1, 1, cell(True), 4),
        _sample((state, walked(state, 3), matrix), 1, 1, cell(False), 3, reverse=True),
        _sample((state, count, walked(state, 3), walked(count, 3)), 2, 2, counted(), 3),
        _sample((state, walked(state, 1), matrix), 1, 1, cell(True), 1),
        _sample((state, walked(state, 0), matrix), 1, 1, cell(True), 0),
    )


register(
    OpDef(
        name="scan",
        doc="The body over the leading axis of the sequences: carries, sequences [n, …], captured values -> "
        "final carries, emitted values [n, …].",
        work=Work.SCAN,
        params={
            "num_carries": "how many inputs are first carries",
            "num_sequences": "how many inputs after them are walked",
            "length": "how many places there are",
            "reverse": "whether the last place comes first",
        },
        type_rule=_type,
        meaning=_meaning,
        stacking=_stacking,
        gradient=_gradient,
        cost=_cost,
        samples=_samples(),
    )
)
