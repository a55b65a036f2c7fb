"""The checker finds each kind of malformed graph and program."""

import dataclasses

import numpy as np
import pytest

from sexpgpu.ir.builder import Builder
from sexpgpu.ir.graph import NOWHERE, Graph, Node
from sexpgpu.ir.program import Phase, Program, Slot
from sexpgpu.ir.types import TensorType
from sexpgpu.ir.verify import verify, verify_program

F = TensorType("f32", (3, 4))
SCALAR = TensorType("f32", ())
HOST = TensorType("f64", ())


def good() -> Graph:
    b = Builder()
    x = b.input("feed:x", F)
    return b.graph("good", [("result:y", b.neg(b.op("exp", x)))])


def refuses(graph: Graph, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        verify(graph)


def test_a_good_graph() -> None:
    verify(good())


def test_an_input_that_comes_later() -> None:
    x, exp, neg = good().nodes
    graph = Graph("g", x.outputs, (("y", neg.outputs[0]),), (x, neg, exp))
    refuses(graph, r"%2 = neg.*does not come before it")


def test_a_value_of_another_graph() -> None:
    graph, other = good(), good()
    refuses(dataclasses.replace(graph, outputs=(("y", other.output_values[0]),)), "does not hold")


def test_types_other_than_the_rules() -> None:
    graph = good()
    node = Node(7, "exp", (graph.inputs[0],), {}, (SCALAR,), (), NOWHERE)
    refuses(Graph("g", graph.inputs, (("y", node.outputs[0]),), (graph.inputs[0].node, node)), "its rule gives")


def test_a_rule_that_refuses() -> None:
    x = Builder().input("x", TensorType("bool", (2,)))
    node = Node(7, "exp", (x,), {}, (TensorType("bool", (2,)),), (), NOWHERE)
    refuses(Graph("g", (x,), (("y", node.outputs[0]),), (x.node, node)), "`exp` takes")


def test_an_unknown_operation() -> None:
    node = Node(0, "frobnicate", (), {}, (SCALAR,), (), NOWHERE)
    refuses(Graph("g", (), (("y", node.outputs[0]),), (node,)), "no such operation")


@pytest.mark.parametrize("value", [np.float32(1.0), np.float64(1.0), np.int64(1), [1.0], (np.int32(1),)])
def test_attributes_that_are_not_plain(value: object) -> None:
    attrs = {"value": value, "dtype": "f32", "shape": ()}
    node = Node(0, "constant", (), attrs, (SCALAR,), (), NOWHERE)  # type: ignore[arg-type]
    refuses(Graph("g", (), (("y", node.outputs[0]),), (node,)), "attribute `value` is not plain data")


def test_names_that_are_shared() -> None:
    b = Builder()
    x = b.input("x", F)
    refuses(b.graph("g", [("y", x), ("y", b.neg(x))]), "outputs share a name")
    other = Builder().input("x", F)
    refuses(Graph("g", (x, other), (("y", x),), (x.node,)), "inputs share a name")


def test_inputs() -> None:
    b = Builder()
    x, y = b.input("x", F), b.input("y", F)
    z = b.add(x, y)
    refuses(b.graph("g", [("z", z)], [x]), "not among the inputs")
    refuses(b.graph("g", [("z", z)], [x, y, z]), "is not an `input`")
    verify(b.graph("g", [("z", x)], [x, y]))


def test_dead_nodes() -> None:
    b = Builder()
    x = b.input("x", F)
    dead = b.op("exp", x)
    refuses(Graph("g", (x,), (("y", x),), (x.node, dead.node)), "no output needs %1 = exp")


def test_bodies_are_checked() -> None:
    inner = Builder()
    x = inner.input("x0", F)
    wrong = Node(9, "exp", (x,), {}, (F,), (), NOWHERE)
    body = Graph("body", (x,), (("y0", wrong.outputs[0]),), (x.node,))
    b = Builder()
    node = b.node("composite", [b.input("x", F)], {"name": "odd"}, (body,))
    refuses(b.graph("g", [("y", node.outputs[0])]), "body: output `y0`")


# Programs.


def phase(name: str, outputs: dict[str, str], guard: str | None = None) -> Phase:
    """A phase that computes each output from the input of that name: both are f32 (3 4)."""
    b = Builder()
    return Phase(name, b.graph(name, [(out, b.neg(b.input(source, F))) for out, source in outputs.items()]), guard)


def program(*phases: Phase, slots: tuple[Slot, ...] = (Slot("w", F, "parameter"),)) -> Program:
    b = Builder()
    step = b.input("feed:step", HOST)
    return Program(slots, phases, b.graph("schedule", [("result:rate", b.scale(step, 0.5))]))


def refuses_program(bad: Program, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        verify_program(bad)


INITIALISE = phase("initialise", {"slot:w": "slot:w"})


def test_a_good_program() -> None:
    verify_program(program(INITIALISE, phase("update", {"slot:w": "slot:w", "result:y": "feed:x"})))


def test_slots_of_phases() -> None:
    refuses_program(program(phase("p", {"result:y": "slot:v"})), "p reads slot `v`, which the program lacks")
    refuses_program(program(phase("p", {"slot:v": "slot:w"})), "p writes slot `v`, which the program lacks")
    slots = (Slot("w", SCALAR, "parameter"),)
    refuses_program(program(phase("p", {"result:y": "slot:w"}), slots=slots), "p reads slot `w` as")
    refuses_program(program(phase("p", {"slot:w": "feed:x"}), slots=slots), "p writes slot `w` as")


def test_names_of_a_program() -> None:
    slot = Slot("w", F, "parameter")
    refuses_program(program(slots=(slot, slot)), "slots share a name")
    refuses_program(program(slots=(Slot("w", F, "weights"),)), "unknown role")
    refuses_program(program(INITIALISE, INITIALISE), "phases share a name")
    refuses_program(program(phase("p", {"result:y": "x"})), "neither a slot nor a feed")
    refuses_program(program(phase("p", {"y": "feed:x"})), "neither a slot nor a result")


def test_guards() -> None:
    refuses_program(program(phase("p", {"result:y": "feed:x"}, "ok")), "is not a result")
    refuses_program(program(phase("p", {"result:ok": "feed:x"}, "ok")), r"its guard `ok` is \(f32 3 4\)")
    b = Builder()
    test = b.op("all", b.op("is-finite", b.input("feed:x", F)), axes=(0, 1))
    verify_program(program(Phase("p", b.graph("p", [("result:ok", test)]), "ok")))


def test_feeds() -> None:
    b = Builder()
    other = Phase("q", b.graph("q", [("result:y", b.neg(b.input("feed:x", TensorType("i32", (3, 4)))))]))
    refuses_program(program(phase("p", {"result:y": "feed:x"}), other), "feed `x` is")
    refuses_program(program(phase("p", {"result:y": "feed:rate"})), "feed `rate` of the schedule")


def test_schedule() -> None:
    b = Builder()
    schedule = b.graph("schedule", [("result:rate", b.input("feed:step", SCALAR))])
    refuses_program(dataclasses.replace(program(), schedule=schedule), "is not an f64 scalar")


def test_initialise_writes_what_it_must() -> None:
    slots = (Slot("w", F, "parameter"), Slot("v", F, "optimizer"), Slot("f", F, "fold", initialised=False))
    refuses_program(program(INITIALISE, slots=slots), r"initialise does not write \['v'\]")
