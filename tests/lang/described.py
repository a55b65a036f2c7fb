"""Everything of an experiment as text, places included: two elaborations that say the same are the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from sexpgpu.ir.graph import Graph, Node, Origin, Value
from sexpgpu.ir.types import TensorType
from sexpgpu.lang.experiment import Experiment
from sexpgpu.lang.trace import Schedule
from sexpgpu.source import Span


def described(experiment: Experiment) -> str:
    """An experiment as lines of text: every graph node by node, and where each node comes from."""
    return "\n".join(_lines(experiment, "experiment"))


def _lines(value: Any, name: str) -> Iterator[str]:
    match value:
        case Graph():
            yield from _graph(value, name)
        case Schedule():
            yield from _graph(value.graph(), name)
        case Value():
            yield f"{name} = {value!r} {value.type}"
        case Span():
            yield f"{name} = {_place(value)}"
        case TensorType() | None | bool() | int() | float() | str():
            yield f"{name} = {value!r}"
        case Mapping():
            yield f"{name}: {' '.join(map(str, value))}"
            for key, part in value.items():
                yield from _lines(part, f"{name}.{key}")
        case tuple() | list():
            yield f"{name}: {len(value)}"
            for index, part in enumerate(value):
                yield from _lines(part, f"{name}.{index}")
        case _ if is_dataclass(value) and type(value).__module__.startswith("sexpgpu.lang"):
            for field in fields(value):
                if field.name not in ("path", "text"):
                    yield from _lines(getattr(value, field.name), f"{name}.{field.name}")
        case _:
            yield f"{name} is {type(value).__name__}"


def _graph(graph: Graph, name: str) -> Iterator[str]:
    numbers: dict[Value, str] = {}
    yield f"{name}: graph {graph.name}"
    for index, value in enumerate(graph.inputs):
        numbers[value] = f"input{index}"
        yield f"  {numbers[value]} {value.node.attrs['name']} {value.type} {_way(value.node.origin)}"
    for place, node in enumerate(graph.nodes):
        if node.op != "input":
            numbers.update((output, f"%{place}.{output.index}") for output in node.outputs)
            yield f"  %{place} #{node.id} {_node(node, numbers)}"
            for index, body in enumerate(node.bodies):
                yield from _graph(body, f"{name}.%{place}.{index}")
    yield "  " + " ".join(f"{output}={numbers[value]}" for output, value in graph.outputs)


def _node(node: Node, numbers: Mapping[Value, str]) -> str:
    operands = " ".join(numbers[value] for value in node.inputs)
    types = " ".join(map(str, node.types))
    return f"{node.op} {operands} {sorted(node.attrs.items())} {types} {_way(node.origin)}"


def _way(origin: Origin | None) -> str:
    """The places that an origin goes back through."""
    parts = []
    while origin is not None:
        parts.append(f"{origin.note} {_place(origin.span)}")
        origin = origin.parent
    return " < ".join(parts)


def _place(span: Span | None) -> str:
    return "nowhere" if span is None else f"{span}+{span.end - span.start}"
