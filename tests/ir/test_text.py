"""The text form of graphs and programs, written and read back."""

import math
import struct

import pytest

from sexpgpu.diagnostics import DiagnosticError
from sexpgpu.ir.builder import Builder
from sexpgpu.ir.graph import Graph, Node
from sexpgpu.ir.program import Phase, Program, Slot
from sexpgpu.ir.text import digest, graph_text, parse_graph, parse_program, program_text, same_graph
from sexpgpu.ir.types import TensorType
from tests.effort import calls

F = TensorType("f32", (3, 4))
SCALAR = TensorType("f32", ())


def small(b: Builder) -> Graph:
    w = b.input("slot:net.w", F)
    return b.graph("loss", [("result:loss", b.sum(b.scale(w, 0.5), (0, 1)))])


TEXT = """\
(graph "loss"
  (inputs
    (%0 "slot:net.w" (f32 3 4)))
  (%1 (constant :dtype "f32" :shape [] :value 0.5) (f32))
  (%2 (broadcast %1 :axes [] :shape [3 4]) (f32 3 4))
  (%3 (mul %0 %2) (f32 3 4))
  (%4 (sum %3 :axes [0 1]) (f32))
  (outputs
    ("result:loss" %4)))"""


def test_text_of_a_small_graph() -> None:
    assert graph_text(small(Builder())) == TEXT


def test_reading_inverts_writing() -> None:
    graph = parse_graph(TEXT)
    assert graph_text(graph) == TEXT
    assert graph.name == "loss" and graph.input_names == ("slot:net.w",)
    assert graph.nodes[-1].origin.span is not None
    assert graph.nodes[-1].origin.span.text == "(%4 (sum %3 :axes [0 1]) (f32))"


def test_text_does_not_depend_on_the_builders_history() -> None:
    b = Builder()
    b.op("exp", b.input("feed:other", SCALAR))
    assert same_graph(small(b), small(Builder()))
    assert not same_graph(small(b), parse_graph(TEXT.replace("0.5", "0.25")))


def test_people_may_leave_out_quotes() -> None:
    loose = TEXT.replace('"f32"', "f32").replace('"loss"', "loss")
    assert graph_text(parse_graph(loose)) == TEXT


NUMBERS = [0.0, -0.0, 1.0, 0.1, 1e16, 1e-7, 5e-324, 1.7976931348623157e308, -3.4028234663852886e38,
           math.inf, -math.inf, math.nan, 1e22, 123456789.123456789]  # fmt: skip


@pytest.mark.parametrize("number", NUMBERS)
def test_floats_keep_their_bits(number: float) -> None:
    b = Builder()
    text = graph_text(b.graph("g", [("y", b.constant(number, SCALAR))]))
    value = parse_graph(text).nodes[0].attrs["value"]
    assert isinstance(value, float)
    assert struct.pack("<d", value) == struct.pack("<d", number)


@pytest.mark.parametrize("value", [0, 1, -7, 2**63 + 1, -(2**62), True, False, (1, 2, 3), (0.5, -math.inf), ()])
def test_other_attributes_keep_value_and_kind(value: int | bool | tuple[float, ...]) -> None:
    b = Builder()
    node = Node(
        0,
        "constant",
        (),
        {"value": value, "dtype": "f32", "shape": (), "extra": None},
        (SCALAR,),
        (),
        b.origin,
    )
    text = graph_text(Graph("g", (), (("y", node.outputs[0]),), (node,)))
    attrs = parse_graph(text).nodes[0].attrs
    assert attrs["extra"] is None
    assert repr(attrs["value"]) == repr(value)


@pytest.mark.parametrize(
    "name", ["none", "a b", 'quo"te', "back\\slash", "line\nbreak\tand tab", "%0", ":k", "", "ünï"]
)
def test_any_string_is_a_name(name: str) -> None:
    b = Builder()
    graph = b.graph(name, [(f"result:{name}", b.op("exp", b.input(f"feed:{name}", F)))])
    again = parse_graph(graph_text(graph))
    assert (again.name, again.input_names, again.outputs[0][0]) == (name, (f"feed:{name}",), f"result:{name}")


def composite_graph() -> Graph:
    inner = Builder()
    x = inner.input("x0", F)
    body = inner.graph("twice", [("y0", inner.add(x, x)), ("y1", inner.neg(x))])
    b = Builder()
    node = b.node("composite", [b.input("feed:x", F)], {"name": "twice"}, (body,))
    return b.graph("outer", [("result:a", node.outputs[0]), ("result:b", node.outputs[1])])


def test_bodies_and_several_outputs() -> None:
    text = graph_text(composite_graph())
    assert '(body "twice"' in text and '("result:b" %1.1)' in text
    assert graph_text(parse_graph(text)) == text


def test_unread_inputs_stay() -> None:
    b = Builder()
    x, y = b.input("x", F), b.input("y", F)
    graph = b.graph("g", [("z", b.neg(x))], [y, x])
    again = parse_graph(graph_text(graph))
    assert again.input_names == ("y", "x") and len(again.nodes) == 2


def test_the_order_of_nodes_stays() -> None:
    b = Builder()
    x = b.input("x", F)
    y, z = b.op("exp", x), b.neg(x)
    depth_first = b.graph("g", [("s", b.add(y, z))])
    planned = Graph("g", (x,), depth_first.outputs, (x.node, z.node, y.node, depth_first.nodes[-1]))
    assert [n.op for n in parse_graph(graph_text(planned)).nodes] == ["input", "neg", "exp", "add"]


@pytest.mark.parametrize(
    "old, new, code",
    [
        ("(mul %0 %2)", "(mul %0 %9)", "E-FORM-001"),
        ("(mul %0 %2)", "(mull %0 %2)", "E-FORM-001"),
        ("(mul %0 %2)", "(mul %0 %1)", "E-TYPE-002"),
        ("(mul %0 %2)", "(mul %0 3)", "E-FORM-001"),
        ("(%3 (mul %0 %2) (f32 3 4))", "(%3 (mul %0 %2) (f32 3 5))", "E-TYPE-003"),
        ("(%3 (mul", "(%2 (mul", "E-FORM-001"),
        (" :axes [0 1])", ")", "E-FORM-001"),
        (":axes [0 1]", ":axes", "E-FORM-001"),
        (":axes [0 1]", ':axes "all"', "E-FORM-001"),
        ("(f32 3 4)))", "(f33 3 4)))", "E-FORM-001"),
        ("(f32 3 4)))", "(f32 3 -4)))", "E-FORM-001"),
        ('("result:loss" %4)', '("result:loss" %5)', "E-FORM-001"),
        ('("result:loss" %4)))', '("result:loss" %4)', "E-READ-003"),
        ("(outputs", "(output", "E-FORM-001"),
        ("(graph", "(grph", "E-FORM-001"),
    ],
)
def test_faults_are_diagnostics(old: str, new: str, code: str) -> None:
    assert old in TEXT
    with pytest.raises(DiagnosticError) as caught:
        parse_graph(TEXT.replace(old, new, 1))
    assert caught.value.diagnostics[0].code == code
    assert caught.value.diagnostics[0].span is not None


@pytest.mark.parametrize("text", ["", "(graph) (graph)", "3", "(graph loss)", "()"])
def test_texts_that_are_no_graph(text: str) -> None:
    with pytest.raises(DiagnosticError):
        parse_graph(text)


def small_program() -> Program:
    b = Builder()
    slot = b.input("slot:net.w", F)
    ok = b.op("all", b.op("is-finite", slot), axes=(0, 1))
    update = b.graph("update", [("slot:net.w", b.neg(slot)), ("result:ok", ok)])
    b = Builder()
    first = b.graph("initialise", [("slot:net.w", b.constant(0.0, F))])
    b = Builder()
    step = b.input("feed:step", TensorType("f64", ()))
    schedule = b.graph("schedule", [("result:rate", b.scale(step, 0.1))])
    slots = (Slot("net.w", F, "parameter"), Slot("sum", SCALAR, "fold", initialised=False))
    return Program(slots, (Phase("initialise", first), Phase("update.go.first", update, "ok")), schedule)


PROGRAM_TEXT = """\
(program
  (slots
    (slot "net.w" (f32 3 4) parameter :initialised true)
    (slot "sum" (f32) fold :initialised false))
  (schedule
    (graph "schedule"
      (inputs
        (%0 "feed:step" (f64)))
      (%1 (constant :dtype "f64" :shape [] :value 0.1) (f64))
      (%2 (mul %0 %1) (f64))
      (outputs
        ("result:rate" %2))))
  (phase "initialise" :guard none
    (graph "initialise"
      (inputs)
      (%0 (constant :dtype "f32" :shape [] :value 0.0) (f32))
      (%1 (broadcast %0 :axes [] :shape [3 4]) (f32 3 4))
      (outputs
        ("slot:net.w" %1))))
  (phase "update.go.first" :guard "ok"
    (graph "update"
      (inputs
        (%0 "slot:net.w" (f32 3 4)))
      (%1 (neg %0) (f32 3 4))
      (%2 (is-finite %0) (bool 3 4))
      (%3 (all %2 :axes [0 1]) (bool))
      (outputs
        ("slot:net.w" %1)
        ("result:ok" %3)))))"""


def test_programs() -> None:
    program = small_program()
    assert program_text(program) == PROGRAM_TEXT
    again = parse_program(PROGRAM_TEXT)
    assert again.slots == program.slots
    assert [(p.name, p.guard) for p in again.phases] == [("initialise", None), ("update.go.first", "ok")]
    assert program_text(again) == PROGRAM_TEXT
    assert digest(again) == digest(program) and len(digest(program)) == 64
    assert digest(parse_program(PROGRAM_TEXT.replace("0.1", "0.2"))) != digest(program)


@pytest.mark.parametrize(
    "old, new",
    [("parameter", "weights"), (":initialised true", ""), (':guard "ok"', ""), (':guard "ok"', ":guard 3"),
     ("(schedule", "(rates"), ("(program", "(prog")],
)  # fmt: skip
def test_faults_of_programs(old: str, new: str) -> None:
    with pytest.raises(DiagnosticError) as caught:
        parse_program(PROGRAM_TEXT.replace(old, new, 1))
    assert caught.value.diagnostics[0].code == "E-FORM-001"


def test_large_graphs_are_little_work_per_node() -> None:
    b = Builder()
    x = b.input("feed:x", TensorType("f32", (8, 512)))
    y = x
    for i in range(2000):
        y = b.add(b.scale(y, 0.5 + i), x)
    graph = b.graph("large", [("result:y", y)])
    assert len(graph.nodes) > 6000

    text = graph_text(graph)
    assert graph_text(parse_graph(text)) == text
    written, read = calls(lambda: graph_text(graph)), calls(lambda: parse_graph(text))
    assert written < 50 * len(graph.nodes) and read < 500 * len(graph.nodes)
