"""The checker: what every graph and every program must satisfy, whoever made it.

Flow: runs after each pass in tests, and on a program before a device plans it. What it finds is a fault of
ours, never of the user, so it raises AssertionError with the node in question printed.
"""

from __future__ import annotations

from sexpgpu.ir.graph import Attr, Graph, Node, Value, reachable
from sexpgpu.ir.opdef import OPS
from sexpgpu.ir.program import FEED, RESULT, ROLES, SLOT, Phase, Program
from sexpgpu.ir.types import DTYPES, TensorType, TypeFault

HOST_SCALAR = TensorType("f64", ())
"""The type of everything in a schedule."""


def verify(graph: Graph) -> None:
    """Check that `graph` is well formed, bodies included. Raises AssertionError.

    Inputs of a node come before it; types are those that its rule gives; attributes are plain data;
    `inputs` are just the input nodes; `nodes` holds just what the outputs need; names of inputs and outputs
    are unique.
    """
    _verify(graph, set())


def _verify(graph: Graph, checked: set[int]) -> None:
    """`checked` holds the identities of bodies that have passed already: layers share them."""
    defined: set[Value] = set()
    ids: set[int] = set()
    for value in graph.inputs:
        assert value.node.op == "input", f"{graph.name}: input {value.node!r} is not an `input`"
        defined.add(value)
    _unique(graph, "inputs", graph.input_names)
    for node in graph.nodes:
        assert node.id not in ids, f"{graph.name}: two nodes with the id of {node!r}"
        ids.add(node.id)
        if node.op == "input":
            assert node.outputs[0] in defined, f"{graph.name}: {node!r} is not among the inputs"
        _verify_node(graph, node, defined, checked)
        defined.update(node.outputs)
    for name, value in graph.outputs:
        assert value in defined, (
            f"{graph.name}: output `{name}` is {value.node!r}, which the graph does not hold"
        )
    _unique(graph, "outputs", tuple(name for name, _ in graph.outputs))
    held = set(graph.nodes)
    needed = set(reachable(graph.output_values))
    for node in graph.nodes:
        assert node in needed, f"{graph.name}: no output needs {node!r}"
    for node in needed:
        assert node in held, f"{graph.name}: `nodes` lacks {node!r}"


def _verify_node(graph: Graph, node: Node, defined: set[Value], checked: set[int]) -> None:
    def place() -> str:
        return f"{graph.name}: {node!r} {dict(node.attrs)}"

    assert node.op in OPS, f"{place()}: there is no such operation"
    for value in node.inputs:
        assert value in defined, f"{place()}: its input {value!r} does not come before it"
    for key, attr in node.attrs.items():
        assert type(key) is str and _is_plain(attr), f"{place()}: attribute `{key}` is not plain data"
    for type_ in node.types:
        assert type_.dtype in DTYPES and all(type(n) is int and n >= 0 for n in type_.shape), (
            f"{place()}: bad type"
        )
    assert tuple(value.type for value in node.outputs) == node.types, f"{place()}: outputs of other types"
    assert all(v.node is node and v.index == i for i, v in enumerate(node.outputs)), (
        f"{place()}: foreign outputs"
    )
    for body in node.bodies:
        if id(body) not in checked:
            _verify(body, checked)
            checked.add(id(body))
    try:
        types = OPS[node.op].type_rule([value.type for value in node.inputs], node.attrs, node.bodies)
    except TypeFault as fault:
        raise AssertionError(f"{place()}: {fault.message}") from fault
    assert types == node.types, f"{place()}: its rule gives {' '.join(map(str, types))}"


def _is_plain(attr: Attr) -> bool:
    """Whether an attribute is exactly of the kinds that have a text form; NumPy's scalars are not."""
    if type(attr) is tuple:
        return all(_is_plain(item) for item in attr)
    return attr is None or type(attr) in (int, float, str, bool)


def _unique(graph: Graph, what: str, names: tuple[str, ...]) -> None:
    assert len(set(names)) == len(names), f"{graph.name}: {what} share a name: {sorted(names)}"


# --- programs -----------------------------------------------------------------------------------------------


def verify_program(program: Program) -> None:
    """Check every phase and how phases fit the slots and each other. Raises AssertionError.

    Slots that a phase reads or writes exist with that type; a guard is a bool scalar result; a feed has one
    dtype everywhere, and is a scalar where the schedule gives it; `initialise` writes every initialised slot.
    """
    types = {slot.name: slot.type for slot in program.slots}
    assert len(types) == len(program.slots), (
        f"slots share a name: {sorted(slot.name for slot in program.slots)}"
    )
    for slot in program.slots:
        assert slot.role in ROLES, f"slot `{slot.name}` has the unknown role {slot.role}"
    names = [phase.name for phase in program.phases]
    assert len(set(names)) == len(names), f"phases share a name: {sorted(names)}"
    scheduled = _verify_schedule(program.schedule)
    feeds: dict[str, TensorType] = {}
    for phase in program.phases:
        verify(phase.graph)
        _verify_names(phase)
        _verify_slots(phase, types)
        _verify_guard(phase)
        for name, type in phase.feeds.items():
            first = feeds.setdefault(name, type)
            assert first.dtype == type.dtype, f"{phase.name}: feed `{name}` is {type}, elsewhere {first}"
            assert name not in scheduled or type.rank == 0, (
                f"{phase.name}: feed `{name}` of the schedule is {type}"
            )
        if phase.name == "initialise":
            missing = {slot.name for slot in program.slots if slot.initialised} - set(phase.writes)
            assert not missing, f"initialise does not write {sorted(missing)}"


def _verify_schedule(schedule: Graph) -> set[str]:
    """Check the schedule; the names of the scalars that it gives."""
    verify(schedule)
    for value in (*schedule.inputs, *schedule.output_values):
        assert value.type == HOST_SCALAR, f"schedule: {value.node!r} is not an f64 scalar"
    return {name.removeprefix(RESULT) for name, _ in schedule.outputs}


def _verify_names(phase: Phase) -> None:
    for name in phase.graph.input_names:
        assert name.startswith((SLOT, FEED)), f"{phase.name}: input `{name}` is neither a slot nor a feed"
    for name, _ in phase.graph.outputs:
        assert name.startswith((SLOT, RESULT)), (
            f"{phase.name}: output `{name}` is neither a slot nor a result"
        )


def _verify_slots(phase: Phase, types: dict[str, TensorType]) -> None:
    written = {name.removeprefix(SLOT): v.type for name, v in phase.graph.outputs if name.startswith(SLOT)}
    for verb, used in (("reads", phase.reads), ("writes", written)):
        for name, type in used.items():
            assert name in types, f"{phase.name} {verb} slot `{name}`, which the program lacks"
            assert types[name] == type, f"{phase.name} {verb} slot `{name}` as {type}; it is {types[name]}"


def _verify_guard(phase: Phase) -> None:
    if phase.guard is None:
        return
    assert phase.guard in phase.results, f"{phase.name}: its guard `{phase.guard}` is not a result"
    guard = phase.graph.output(RESULT + phase.guard)
    assert guard.type == TensorType("bool", ()), f"{phase.name}: its guard `{phase.guard}` is {guard.type}"
