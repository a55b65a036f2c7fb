"""bf16 that stays bf16 for longer: widening casts late, and the edges of library calls as narrow as they are.

A cast from bf16 to f32 loses nothing, so it may come after a movement of bytes as well as before it, and a cast back to
bf16 undoes it. A library that computes with bf16 operands and results is told of in f32 by the graph; rounding such an
edge to bf16, and widening it again, changes nothing of what the library does.

Flow: a device that stores bf16 as such applies it before it plans.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sexpgpu.ir.builder import Builder
from sexpgpu.ir.graph import Graph, Node, Value
from sexpgpu.ir.program import Phase, Program

Edges = Callable[[Node], tuple[Sequence[int], Sequence[int]]]
"""The inputs and the outputs of a node that a library rounds to bf16, by number."""

MOVES = frozenset({"concat", "reshape", "reverse", "slice", "transpose"})


def narrow_program(program: Program, edges: Edges) -> Program:
    """`program` with the same values, more of them as bf16."""
    phases = tuple([Phase(phase.name, narrow(phase.graph, edges), phase.guard) for phase in program.phases])
    return Program(program.slots, phases, program.schedule)


def narrow(graph: Graph, edges: Edges) -> Graph:
    """`graph` with widening casts sunk below movements; the same one if nothing of it is bf16."""
    if not any(type.dtype == "bf16" for node in graph.walk() for type in node.types):
        return graph
    b = Builder()
    made: dict[Value, Value] = {}
    for value in graph.inputs:
        made[value] = b.input(str(value.node.attrs["name"]), value.type)
    for node in graph.nodes:
        if node.op != "input":
            with b.at(node.origin):
                results = _copied(b, node, [made[value] for value in node.inputs], edges)
            made.update(zip(node.outputs, results, strict=True))
    outputs = [(name, made[value]) for name, value in graph.outputs]
    return b.graph(graph.name, outputs, [made[value] for value in graph.inputs])


def _copied(b: Builder, node: Node, inputs: Sequence[Value], edges: Edges) -> Sequence[Value]:
    if node.op == "cast" and node.types[0].dtype == "bf16" and _is_wide(inputs[0]):
        return inputs[0].node.inputs
    if node.op in MOVES and inputs and all(_is_wide(value) for value in inputs):
        moved = b.node(node.op, [value.node.inputs[0] for value in inputs], node.attrs).outputs
        return [b.cast(value, "f32") for value in moved]
    read, made = edges(node)
    given = [_rounded(b, value) if i in read else value for i, value in enumerate(inputs)]
    outputs = b.node(node.op, given, node.attrs, [narrow(body, edges) for body in node.bodies]).outputs
    return [_rounded(b, value) if i in made else value for i, value in enumerate(outputs)]


def _is_wide(value: Value) -> bool:
    """Whether a value is f32 and was bf16."""
    return value.node.op == "cast" and value.dtype == "f32" and value.node.inputs[0].dtype == "bf16"


def _rounded(b: Builder, value: Value) -> Value:
    return value if value.dtype != "f32" or _is_wide(value) else b.cast(b.cast(value, "bf16"), "f32")
