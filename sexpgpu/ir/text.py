"""The text form of graphs and programs: S-expressions that the project's own reader reads back.

Flow: `sexpgpu check --print graph` prints it, tests of passes compare it, caches are keyed by its digest.
Writing and reading are exact inverses, but for origins: a node that was read points at the text it came
from.

One rule for atoms. Symbols are names of ours: operations, `%3` and `%3.1` for values, dtypes in a type,
roles, and `none`, `inf`, `-inf`, `nan`. Whatever is a Python string in the IR is quoted. Tuples are
vectors. Attributes stand in alphabetical order, and nodes are numbered from their place in the graph (a
body counts afresh), so equal graphs have equal text whatever their builder did before.

    (graph "loss"
      (inputs
        (%0 "slot:net.w" (f32 3 1)))
      (%1 (sum %0 :axes [0 1]) (f32))
      (outputs
        ("result:loss" %1)))
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from typing import NoReturn

import sexpgpu.ir.ops  # noqa: F401  (fills the registry that reading a node asks)
from sexpgpu.diagnostics import Diagnostic, DiagnosticError
from sexpgpu.ir.builder import Builder
from sexpgpu.ir.graph import Attr, Graph, Node, Origin, Value, reachable
from sexpgpu.ir.opdef import OPS
from sexpgpu.ir.program import ROLES, Phase, Program, Slot
from sexpgpu.ir.types import DTYPES, TensorType, TypeFault
from sexpgpu.source import Source
from sexpgpu.syntax import Boolean, Float, Form, Integer, Keyword, List, String, Symbol, Vector, read, to_text

__all__ = [
    "digest", "graph_text", "operation_text", "parse_graph", "parse_program", "program_text", "quoted", "same_graph",
]  # fmt: skip

_PLAIN = re.compile(r'[^"\\\n\t]*')
_FLOATS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


# --- writing ------------------------------------------------------------------------------------------------


def graph_text(graph: Graph) -> str:
    """The graph as text, without a line break at the end."""
    return _Writer().graph("graph", graph, "")


def program_text(program: Program) -> str:
    """The program as text: its slots, its schedule, its phases in order."""
    writer = _Writer()
    slots = [
        f"(slot {quoted(slot.name)} {slot.type} {slot.role} :initialised {_atom(slot.initialised)})"
        for slot in program.slots
    ]
    phases = []
    for phase in program.phases:
        head = f"  (phase {quoted(phase.name)} :guard {_atom(phase.guard)}"
        phases.append(f"{head}\n{writer.graph('graph', phase.graph, '    ')})")
    schedule = f"  (schedule\n{writer.graph('graph', program.schedule, '    ')})"
    return "\n".join(["(program", _block("slots", slots, "  "), schedule, *phases]) + ")"


def operation_text(node: Node, indent: str) -> str:
    """An operation without its operands: its name, its attributes, and its bodies on lines that begin with `indent`."""
    call = [node.op, *[f":{key} {_atom(node.attrs[key])}" for key in sorted(node.attrs)]]
    writer = _Writer()
    return "(" + "\n".join([" ".join(call), *[writer.body(body, indent) for body in node.bodies]]) + ")"


def digest(program: Program) -> str:
    """SHA-256 of the program's text, in hexadecimal: equal for equal programs."""
    return hashlib.sha256(program_text(program).encode()).hexdigest()


def same_graph(a: Graph, b: Graph) -> bool:
    """Whether two graphs are the same up to the numbering and the origins of their nodes."""
    return a is b or graph_text(a) == graph_text(b)


class _Writer:
    """Remembers the text of types and bodies, which repeat."""

    def __init__(self) -> None:
        self.types: dict[TensorType, str] = {}
        self.bodies: dict[tuple[int, str], str] = {}

    def graph(self, head: str, graph: Graph, indent: str) -> str:
        names: dict[Value, str] = {}
        inputs: list[str] = []
        for value in graph.inputs:
            names[value] = f"%{len(names)}"
            inputs.append(
                f"({names[value]} {quoted(str(value.node.attrs['name']))} {self.type(value.type)})"
            )
        inner = indent + "  "
        lines = [f"{indent}({head} {quoted(graph.name)}", _block("inputs", inputs, inner)]
        number = len(names)
        for node in graph.nodes:
            if node.op == "input":
                assert node.outputs[0] in names, f"{node!r} is not among the inputs of `{graph.name}`"
                continue
            if len(node.outputs) == 1:
                names[node.outputs[0]] = f"%{number}"
            else:
                names.update((value, f"%{number}.{value.index}") for value in node.outputs)
            lines.append(self.node(node, number, names, inner))
            number += 1
        outputs = [f"({quoted(name)} {names[value]})" for name, value in graph.outputs]
        lines.append(_block("outputs", outputs, inner) + ")")
        return "\n".join(lines)

    def node(self, node: Node, number: int, names: dict[Value, str], indent: str) -> str:
        call = [node.op, *[names[value] for value in node.inputs]]
        attrs = node.attrs
        call.extend([f":{key} {_atom(attrs[key])}" for key in sorted(attrs)])
        text = " ".join(call)
        for body in node.bodies:
            text += "\n" + self.body(body, indent + "  ")
        types = " ".join([self.type(type) for type in node.types])
        return f"{indent}(%{number} ({text}) {types})"

    def body(self, body: Graph, indent: str) -> str:
        key = (id(body), indent)
        text = self.bodies.get(key)
        if text is None:
            text = self.bodies[key] = self.graph("body", body, indent)
        return text

    def type(self, type: TensorType) -> str:
        text = self.types.get(type)
        if text is None:
            text = self.types[type] = str(type)
        return text


def _block(head: str, items: Sequence[str], indent: str) -> str:
    return "".join([f"{indent}({head}", *[f"\n{indent}  {item}" for item in items], ")"])


def quoted(text: str) -> str:
    """A string as the reader reads it."""
    return f'"{text}"' if _PLAIN.fullmatch(text) else to_text(String(text))


def _atom(attr: Attr) -> str:
    match attr:
        case None:
            return "none"
        case bool():
            return "true" if attr else "false"
        case int():
            return int.__repr__(attr)
        case float():
            return float.__repr__(attr)
        case str():
            return quoted(attr)
        case tuple():
            return "[" + " ".join([_atom(item) for item in attr]) + "]"
    raise AssertionError(f"{attr!r} is no attribute")


# --- reading ------------------------------------------------------------------------------------------------


def parse_graph(text: str) -> Graph:
    """The graph that `graph_text` wrote, or that a person wrote in the same form.

    Raises: DiagnosticError: the reader's faults, E-FORM-001 for a malformed form, the code of a type rule.
    """
    return _graph(_single_form(text, "<graph>"), "graph")


def parse_program(text: str) -> Program:
    """The program that `program_text` wrote. Raises as `parse_graph` does."""
    form = _single_form(text, "<program>")
    match _items(form, "program"):
        case (List(items=(Symbol("slots"), *slots)), List(items=(Symbol("schedule"), schedule)), *phases):
            return Program(
                tuple(_slot(slot) for slot in slots),
                tuple(_phase(phase) for phase in phases),
                _graph(schedule, "graph"),
            )
    _fault(form, "`program` takes `(slots …)`, `(schedule GRAPH)` and phases")


def _single_form(text: str, name: str) -> Form:
    source = Source(name, text)
    result = read(source)
    if result.diagnostics:
        raise DiagnosticError(result.diagnostics)
    if len(result.forms) != 1:
        raise DiagnosticError(Diagnostic("E-FORM-001", f"one form is expected, not {len(result.forms)}"))
    return result.forms[0]


def _fault(form: Form, message: str, code: str = "E-FORM-001") -> NoReturn:
    raise DiagnosticError(Diagnostic(code, message, form.span))


def _items(form: Form, head: str) -> tuple[Form, ...]:
    """What follows `head` in its form."""
    match form:
        case List(items=(Symbol(name), *_)) if name == head:
            return form.items[1:]
    _fault(form, f"`({head} …)` is expected")


def _name(form: Form) -> str:
    match form:
        case String(text) | Symbol(text):
            return text
    _fault(form, "a name is expected")


def _slot(form: Form) -> Slot:
    match _items(form, "slot"):
        case (name, type, Symbol(role), Keyword("initialised"), Boolean(initialised)) if role in ROLES:
            return Slot(_name(name), _type(type), role, initialised)
    _fault(form, f"a slot has a name, a type, a role of {', '.join(ROLES)}, and `:initialised`")


def _phase(form: Form) -> Phase:
    match _items(form, "phase"):
        case (name, Keyword("guard"), guard, graph):
            result = _attr(guard)
            if result is None or isinstance(result, str):
                return Phase(_name(name), _graph(graph, "graph"), result)
    _fault(form, "a phase has a name, `:guard` with a result or `none`, and a graph")


def _type(form: Form) -> TensorType:
    match form:
        case List(items=(Symbol(dtype), *sizes)) if dtype in DTYPES:
            shape = tuple(size.value for size in sizes if isinstance(size, Integer) and size.value >= 0)
            if len(shape) == len(sizes):
                return TensorType(dtype, shape)
    _fault(form, "a type is expected, such as `(f32 8 512)`")


def _attr(form: Form) -> Attr:
    match form:
        case Integer(value) | Float(value) | String(value) | Boolean(value):
            return value
        case Symbol("none"):
            return None
        case Symbol(name):
            return _FLOATS.get(name, name)
        case Vector(items):
            return tuple([_attr(item) for item in items])
    _fault(form, "an attribute is a number, a string, `true`, `false`, `none` or a vector of these")


def _graph(form: Form, head: str) -> Graph:
    match _items(form, head):
        case (
            name,
            List(items=(Symbol("inputs"), *inputs)),
            *nodes,
            List(items=(Symbol("outputs"), *outputs)),
        ):
            pass
        case _:
            _fault(form, f"`{head}` takes a name, `(inputs …)`, nodes, and `(outputs …)`")
    b = Builder()
    values: dict[str, Value] = {}
    for item in inputs:
        _input(b, item, values)
    given = tuple(values.values())
    for item in nodes:
        _node(b, item, values)
    named = tuple(_output(item, values) for item in outputs)
    needed = {node.id for node in reachable(tuple(value for _, value in named))}
    # The order of the text, which may be one that a planner chose, rather than the builder's depth-first one.
    return Graph(_name(name), given, named, tuple(node for node in b.nodes if node.id in needed))


def _input(b: Builder, form: Form, values: dict[str, Value]) -> None:
    match form:
        case List(items=(Symbol(reference), String(name), type)) if reference not in values:
            value = b.input(name, _type(type))
            if value in values.values():
                _fault(form, f"there are two inputs called `{name}`")
            values[reference] = value
            return
    _fault(form, 'an input has a number of its own, a quoted name and a type, as in `(%0 "feed:x" (f32 8))`')


def _output(form: Form, values: dict[str, Value]) -> tuple[str, Value]:
    match form:
        case List(items=(String(name), reference)):
            return name, _value(reference, values)
    _fault(form, 'an output has a quoted name and a value, as in `("result:loss" %3)`')


def _value(form: Form, values: dict[str, Value]) -> Value:
    if isinstance(form, Symbol):
        found = values.get(form.name)
        if found is not None:
            return found
        _fault(form, f"no value `{form.name}` stands before this")
    _fault(form, "a value is expected, such as `%3`")


def _node(b: Builder, form: Form, values: dict[str, Value]) -> None:
    match form:
        case List(items=(Symbol(reference), List(items=(Symbol(op), *parts)) as call, *types)):
            pass
        case _:
            _fault(form, "a node has a number, a call and its types, as in `(%2 (add %0 %1) (f32 8))`")
    if op not in OPS or op == "input":
        _fault(call.items[0], f"there is no operation `{op}`")
    inputs: list[Value] = []
    attrs: dict[str, Attr] = {}
    bodies: list[Graph] = []
    at = 0
    while at < len(parts):
        part = parts[at]
        if isinstance(part, Keyword):
            if at + 1 == len(parts):
                _fault(part, f"`:{part.name}` has no value")
            attrs[part.name] = _attr(parts[at + 1])
            at += 1
        elif isinstance(part, List):
            bodies.append(_graph(part, "body"))
        else:
            inputs.append(_value(part, values))
        at += 1
    b.origin = Origin(form.span)
    made = _checked(b, call, op, inputs, attrs, bodies)
    if tuple(_type(type) for type in types) != made.types:
        _fault(form, f"`{op}` gives {' '.join(map(str, made.types))} here", "E-TYPE-003")
    names = [reference] if len(made.outputs) == 1 else [f"{reference}.{i}" for i in range(len(made.outputs))]
    for name, value in zip(names, made.outputs, strict=True):
        if name in values:
            _fault(form, f"there are two values `{name}`")
        values[name] = value


def _checked(
    b: Builder, call: Form, op: str, inputs: list[Value], attrs: dict[str, Attr], bodies: list[Graph]
) -> Node:
    """The node, with the refusals of its type rule told at `call`."""
    try:
        return b.node(op, inputs, attrs, bodies)
    except TypeFault as fault:
        help = (fault.help,) if fault.help else ()
        raise DiagnosticError(Diagnostic(fault.code, fault.message, call.span, help=help)) from fault
    except (
        KeyError,
        AssertionError,
    ) as error:  # an attribute that the rule reads is missing or of another kind
        wanted = ", ".join(f":{name}" for name in OPS[op].params)
        message = f"`{op}` wants other operands or attributes{f': {wanted}' if wanted else ''}"
        raise DiagnosticError(Diagnostic("E-FORM-001", message, call.span)) from error
