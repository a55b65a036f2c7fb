"""Loops written out, trip after trip, for a device that has no loops of its own.

What a trip reads of a sequence is a window of it, carries are the values themselves, and what is emitted is joined at
the end; so a planner that knows windows moves nothing but the joined values. Work that no carry and no sequence
changes is done once.

Flow: `backend.cuda.device` applies it before it plans. A device captures the launches of all trips with the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

from sexpgpu.ir.builder import Builder
from sexpgpu.ir.graph import NOWHERE, Graph, Node, Value
from sexpgpu.ir.ops.scan import places, split
from sexpgpu.ir.program import Phase, Program
from sexpgpu.ir.types import TensorType

PARTS_AT_A_TIME = 64
"""Of what is joined: a kernel has room for a few hundred operands."""


def unroll_program(program: Program) -> Program:
    """`program` without loops; the same one if it has none."""
    phases = tuple([Phase(phase.name, unroll(phase.graph), phase.guard) for phase in program.phases])
    if all(new.graph is old.graph for new, old in zip(phases, program.phases, strict=True)):
        return program
    return Program(program.slots, phases, program.schedule)


def unroll(graph: Graph) -> Graph:
    """`graph` with every scan replaced by its trips, at any depth; the same one if it has none."""
    if not any(node.op == "scan" for node in graph.walk()):
        return graph
    b = Builder()
    inputs = [b.input(name, value.type) for name, value in zip(graph.input_names, graph.inputs, strict=True)]
    outputs = _copied(b, graph, inputs)
    return b.graph(graph.name, list(zip([name for name, _ in graph.outputs], outputs, strict=True)), inputs)


def num_unrolled(graph: Graph) -> int:
    """How many nodes `unroll` gives at most, joins left out."""
    total = 0
    for node in graph.nodes:
        inside = sum([num_unrolled(body) for body in node.bodies])
        total += len(places(node)) * inside if node.op == "scan" else 1 + inside
    return total


def _copied(b: Builder, graph: Graph, inputs: Sequence[Value], around: Node | None = None) -> tuple[Value, ...]:
    """The outputs of `graph` in `b`. around: the loop whose trip this is."""
    made: dict[Value, Value] = dict(zip(graph.inputs, inputs, strict=True))
    for node in graph.nodes:
        if node.op == "input":
            continue
        given = [made[value] for value in node.inputs]
        with b.at(around.origin if around is not None and node.origin == NOWHERE else node.origin):
            if node.op == "scan":
                results = _trips(b, node, given)
            else:
                results = b.node(node.op, given, node.attrs, [unroll(body) for body in node.bodies]).outputs
        made.update(zip(node.outputs, results, strict=True))
    return tuple([made[value] for value in graph.output_values])


def _trips(b: Builder, node: Node, inputs: Sequence[Value]) -> tuple[Value, ...]:
    sequences, captured = split(node)
    carries = list(inputs[:sequences])
    emitted: dict[int, tuple[Value, ...]] = {}
    for place in places(node):
        walked = [b.reshape(b.slice(x, 0, place, place + 1), x.shape[1:]) for x in inputs[sequences:captured]]
        results = _copied(b, node.bodies[0], [*carries, *walked, *inputs[captured:]], node)
        carries = list(results[:sequences])
        emitted[place] = results[sequences:]
    joined = [
        _joined(b, [emitted[place][i] for place in sorted(emitted)], type)
        for i, type in enumerate(node.types[sequences:])
    ]
    return (*carries, *joined)


def _joined(b: Builder, values: Sequence[Value], type: TensorType) -> Value:
    """Values one after the other along a new first axis."""
    if not values:
        return b.constant(False if type.dtype == "bool" else 0.0 if type.is_float else 0, type)
    parts = [b.reshape(value, (1, *value.shape)) for value in values]
    while len(parts) > 1:
        groups = [parts[i : i + PARTS_AT_A_TIME] for i in range(0, len(parts), PARTS_AT_A_TIME)]
        parts = [b.op("concat", *group, axis=0) if len(group) > 1 else group[0] for group in groups]
    return parts[0]
