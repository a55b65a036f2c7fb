"""Simplification: each rule on the smallest graph that shows it, and what must stay as it is."""

import inspect
import math

import pytest

from sexpgpu.ir.builder import Builder
from sexpgpu.ir.graph import Graph, Value
from sexpgpu.ir.opdef import OPS
from sexpgpu.ir.text import graph_text, parse_graph, same_graph
from sexpgpu.ir.types import TensorType
from sexpgpu.ir.verify import verify
from sexpgpu.transform import simplify as module
from sexpgpu.transform.passes import FINAL_PASSES, Pass, forward_passes, run_passes
from sexpgpu.transform.simplify import RULES, simplify
from tests.effort import calls

INPUTS = {
    "x": "f32 2 3", "y": "f32 2 3", "i": "i32 2 3", "j": "i32 2 3", "t": "bool 2 3", "u": "bool 2 3",
    "h": "bf16 2 3", "d": "f64 2 3", "o": "f32 1 3 1", "v": "f32 3", "s": "f32", "w": "f32 2 6",
    "z": "f32 0 3",
}  # fmt: skip


def simplified(lines: str, result: str) -> str:
    """What the value `result` of `lines`, each `name op operands :attributes`, is after simplification."""
    b = Builder()
    names: dict[str, Value] = {}
    for name, text in INPUTS.items():
        dtype, *sizes = text.split()
        names[name] = b.input(name, TensorType(dtype, tuple(map(int, sizes))))
    for line in filter(None, map(str.strip, lines.split(";"))):
        name, op, *rest = line.split(maxsplit=2)
        operands, _, attrs = (rest[0] if rest else "").partition(":")
        given = dict(part.split(maxsplit=1) for part in attrs.split(":") if part) if attrs else {}
        parsed = {key: eval(value) for key, value in given.items()}
        names[name] = b.op(op, *[constant(b, names, o) for o in operands.split()], **parsed)
    graph = simplify(b.graph("g", [("r", names[result])], [names[n] for n in INPUTS]))
    verify(graph)
    assert same_graph(graph, simplify(graph)), "a second sweep finds more"
    return render(graph.output("r"))


def constant(b: Builder, names: dict[str, Value], word: str) -> Value:
    """`x` by name; `0.5@x` is 0.5 in the type of x."""
    number, _, like = word.partition("@")
    return b.like(eval(number, {"inf": math.inf, "nan": math.nan}), names[like]) if like else names[word]


def render(value: Value) -> str:
    node = value.node
    if node.op == "input":
        return str(node.attrs["name"])
    if node.op == "constant":
        return repr(node.attrs["value"])
    if node.op == "broadcast" and node.inputs[0].node.op == "constant":
        return f"{render(node.inputs[0])}@{'x'.join(map(str, value.shape))}"
    attrs = "".join(f" {k}={v}" for k, v in sorted(node.attrs.items())).replace(", ", ",")
    return f"({node.op}{''.join(' ' + render(v) for v in node.inputs)}{attrs})"


CASES = [
    # arithmetic
    ("r add x 0.0@x", "x"),
    ("r add 0.0@x x", "x"),
    ("r add i 0@i", "i"),
    ("r add x -0.0@x", "x"),
    ("n neg y; r add x n", "(sub x y)"),
    ("n neg x; r add n y", "(sub y x)"),
    ("r sub x 0.0@x", "x"),
    ("r sub 0.0@x x", "(neg x)"),
    ("n neg y; r sub x n", "(add x y)"),
    ("r sub i i", "0@2x3"),
    ("r sub x x", "(sub x x)"),
    ("r mul x 1.0@x", "x"),
    ("r mul 1.0@x x", "x"),
    ("r mul x -1.0@x", "(neg x)"),
    ("r mul i 0@i", "0@2x3"),
    ("r mul x 0.0@x", "(mul x 0.0@2x3)"),
    ("a neg x; b neg y; r mul a b", "(mul x y)"),
    ("r mul-or-zero x 1.0@x", "x"),
    ("r mul-or-zero 0.0@x y", "0.0@2x3"),
    ("r mul-or-zero x 3.0@x", "(mul x 3.0@2x3)"),
    ("r mul-or-zero x inf@x", "(mul-or-zero x inf@2x3)"),
    ("r div x 1.0@x", "x"),
    ("r quotient i 1@i", "i"),
    ("r pow x 1.0@x", "x"),
    ("r pow x 0.0@x", "1.0@2x3"),
    ("n neg x; r neg n", "x"),
    ("n sub x y; r neg n", "(sub y x)"),
    ("n neg x; r abs n", "(abs x)"),
    ("n neg x; r cos n", "(cos x)"),
    ("n floor x; r floor n", "(floor x)"),
    ("r maximum x x", "x"),
    ("r minimum x x", "x"),
    ("r stop-gradient x", "x"),
    ("a mul x 2.0@x; r mul a 3.0@x", "(mul (mul x 2.0@2x3) 3.0@2x3)"),
    # constants
    ("r add 1.5@x 2.0@x", "3.5@2x3"),
    ("r mul 0.1@x 3.0@x", "0.30000001192092896@2x3"),
    ("r neg 2@i", "-2@2x3"),
    ("r exp 1.0@x", "(exp 1.0@2x3)"),
    ("r div 1.0@x 0.0@x", "inf@2x3"),
    ("r mul nan@x 0.0@x", "nan@2x3"),
    ("r quotient 7@i 0@i", "(quotient 7@2x3 0@2x3)"),
    ("r quotient 7@i 2@i", "3@2x3"),
    ("r lt 1.0@x 2.0@x", "True@2x3"),
    ("c constant :value 2.0 :dtype 'f32' :shape (2,3); r add x c", "(add x 2.0@2x3)"),
    ("r cast 0.1@x :dtype 'bf16'", "0.10009765625@2x3"),
    ("r cast 2.75@x :dtype 'i32'", "2@2x3"),
    ("r cast 3e9@x :dtype 'i32'", "(cast 3000000000.0@2x3 dtype=i32)"),
    ("r sum 0.0@x :axes (1,)", "0.0@2"),
    ("r sum 2.0@x :axes (1,)", "(sum 2.0@2x3 axes=(1,))"),
    ("r mul-or-zero nan@x 2.0@x", "nan@2x3"),
    (
        "c constant :value (1.0,2.0,3.0) :dtype 'f32' :shape (3,); r add c c",
        "(add (1.0, 2.0, 3.0) (1.0, 2.0, 3.0))",
    ),
    # logic and choice
    ("r and t True@t", "t"),
    ("r and False@t t", "False@2x3"),
    ("r or t False@t", "t"),
    ("r or t True@t", "True@2x3"),
    ("r and t t", "t"),
    ("n not t; r not n", "t"),
    ("r where True@t x y", "x"),
    ("r where False@t x y", "y"),
    ("r where t x x", "x"),
    ("n not t; r where n x y", "(where t y x)"),
    # casts
    ("r cast x :dtype 'f32'", "x"),
    ("a cast h :dtype 'f32'; r cast a :dtype 'bf16'", "h"),
    ("a cast x :dtype 'bf16'; r cast a :dtype 'f32'", "(cast (cast x dtype=bf16) dtype=f32)"),
    ("a cast h :dtype 'f32'; r cast a :dtype 'f64'", "(cast h dtype=f64)"),
    ("a cast i :dtype 'f32'; r cast a :dtype 'i32'", "(cast (cast i dtype=f32) dtype=i32)"),
    ("a cast i :dtype 'f64'; r cast a :dtype 'i32'", "i"),
    ("a cast x :dtype 'f64'; r cast a :dtype 'i32'", "(cast (cast x dtype=f64) dtype=i32)"),
    ("a cast t :dtype 'i32'; r cast a :dtype 'f32'", "(cast t dtype=f32)"),
    # movement
    ("r reshape x :shape (2,3)", "x"),
    ("a reshape x :shape (6,); r reshape a :shape (3,2)", "(reshape x shape=(3,2))"),
    ("a reshape x :shape (6,); r reshape a :shape (2,3)", "x"),
    ("r transpose x :perm (0,1)", "x"),
    ("a transpose x :perm (1,0); r transpose a :perm (1,0)", "x"),
    ("r transpose o :perm (2,1,0)", "o"),
    ("r transpose o :perm (1,0,2)", "(reshape o shape=(3,1,1))"),
    ("r transpose 1.0@x :perm (1,0)", "1.0@3x2"),
    ("r reshape 1.0@x :shape (6,)", "1.0@6"),
    ("r reshape 1.0@x :shape (6,1)", "1.0@6x1"),
    ("r reshape 1.0@s :shape (1,1)", "1.0@1x1"),
    (
        "a broadcast v :shape (2,3) :axes (1,); r broadcast a :shape (2,4,3) :axes (0,2)",
        "(broadcast v axes=(2,) shape=(2,4,3))",
    ),
    ("r broadcast v :shape (3,) :axes (0,)", "v"),
    ("r broadcast v :shape (1,3) :axes (1,)", "(reshape v shape=(1,3))"),
    ("r slice x :starts (0,0) :stops (2,3) :steps (1,1)", "x"),
    (
        "a slice w :starts (0,1) :stops (2,6) :steps (1,2);r slice a :starts (1,1) :stops (2,3) :steps (1,1)",
        "(slice w starts=(1,3) steps=(1,2) stops=(2,6))",
    ),
    ("r slice 1.0@x :starts (0,0) :stops (1,3) :steps (1,1)", "1.0@1x3"),
    (
        "c concat x y :axis 1; r slice c :starts (0,3) :stops (2,5) :steps (1,1)",
        "(slice y starts=(0,0) steps=(1,1) stops=(2,2))",
    ),
    (
        "c concat x y :axis 1; r slice c :starts (0,2) :stops (2,5) :steps (1,1)",
        "(slice (concat x y axis=1) starts=(0,2) steps=(1,1) stops=(2,5))",
    ),
    ("a reverse x :axes (0,); r reverse a :axes (0,)", "x"),
    ("r reverse o :axes (0,2)", "o"),
    ("r concat x :axis 0", "x"),
    ("a concat x y :axis 0; r concat a x :axis 0", "(concat x y x axis=0)"),
    ("r concat 0.0@x 0.0@x :axis 0", "0.0@4x3"),
    ("r concat 0.0@x -0.0@x :axis 0", "(concat 0.0@2x3 -0.0@2x3 axis=0)"),
    (
        "a slice w :starts (0,0) :stops (2,2) :steps (1,1);"
        "b slice w :starts (0,2) :stops (2,6) :steps (1,1);"
        "r concat a b :axis 1",
        "w",
    ),
    (
        "a slice w :starts (0,0) :stops (2,3) :steps (1,1);"
        "b slice w :starts (0,3) :stops (2,6) :steps (1,1);"
        "r concat b a :axis 1",
        "(concat (slice w starts=(0,3) steps=(1,1) stops=(2,6)) (slice w starts=(0,0) steps=(1,1) stops=(2,3)) axis=1)",
    ),
    ("r pad x :low (0,0) :high (0,0) :interior (0,0)", "x"),
    ("r pad 0.0@x :low (1,0) :high (0,0) :interior (0,0)", "0.0@3x3"),
    (
        "a pad x :low (0,0) :high (0,3) :interior (0,0);b pad y :low (0,3) :high (0,0) :interior (0,0); r add b a",
        "(concat x y axis=1)",
    ),
    (
        "a pad x :low (0,0) :high (0,4) :interior (0,0);b pad y :low (0,3) :high (0,1) :interior (0,0); r add a b",
        "(pad (concat x y axis=1) high=(0,1) interior=(0,0) low=(0,0))",
    ),
    (
        "a pad x :low (0,0) :high (0,2) :interior (0,0);b pad y :low (0,2) :high (0,0) :interior (0,0); r add a b",
        "(add (pad x high=(0,2) interior=(0,0) low=(0,0)) (pad y high=(0,0) interior=(0,0) low=(0,2)))",
    ),
    # reductions
    ("r sum o :axes (0,2)", "(reshape o shape=(3,))"),
    ("r sum x :axes ()", "x"),
    ("r max o :axes (0,)", "(reshape o shape=(3,1))"),
    ("r sum z :axes (0,)", "(sum z axes=(0,))"),
    ("r sum x :axes (0,)", "(sum x axes=(0,))"),
    ("r cumsum o :axis 0", "o"),
    ("a sum x :axes (0,); r sum a :axes (0,)", "(sum (sum x axes=(0,)) axes=(0,))"),
]


@pytest.mark.parametrize("lines, expected", CASES)
def test_rules(lines: str, expected: str) -> None:
    assert simplified(lines, "r") == expected


def test_every_rule_is_in_the_table_and_has_its_sentence() -> None:
    rules = {rule for rules in RULES.values() for rule in rules}
    defined = {
        f for _, f in inspect.getmembers(module, inspect.isfunction) if "node" in inspect.signature(f).parameters
    }
    assert defined == rules
    assert all(inspect.getdoc(rule) for rule in rules)
    assert RULES.keys() <= OPS.keys()


def test_common_subexpressions_of_one_graph_are_one_node() -> None:
    text = """(graph g (inputs (%0 "x" (f32 2)))
      (%1 (neg %0) (f32 2)) (%2 (neg %1) (f32 2))
      (%3 (exp %2) (f32 2)) (%4 (exp %0) (f32 2))
      (%5 (add %3 %4) (f32 2))
      (outputs ("y" %5)))"""
    graph = simplify(parse_graph(text))
    assert [node.op for node in graph.nodes] == ["input", "exp", "add"]


def test_three_slices_of_a_packed_value_meet_in_one_concat() -> None:
    b = Builder()
    parts = [b.input(name, TensorType("f32", (2, size))) for name, size in (("q", 3), ("k", 4), ("v", 5))]
    padded = []
    for start, part in zip((0, 3, 7), parts, strict=True):
        low, high = (0, start), (0, 12 - start - part.shape[1])
        padded.append(b.op("pad", part, low=low, high=high, interior=(0, 0)))
    q, k, v = padded
    for order in ((q, k, v), (v, k, q), (k, v, q), (k, q, v)):
        total = b.add(b.add(order[0], order[1]), order[2])
        assert render(simplify(b.graph("g", [("r", total)])).output("r")) == "(concat q k v axis=1)"


def test_equal_bodies_become_one_body() -> None:
    def body() -> Graph:
        inner = Builder()
        x = inner.input("x0", TensorType("f32", (2,)))
        return inner.graph("twice", [("y0", inner.add(x, inner.op("stop-gradient", x)))])

    b = Builder()
    x = b.input("x", TensorType("f32", (2,)))
    first, second = (b.node("composite", [x], {"name": "twice"}, (body(),)).outputs[0] for _ in range(2))
    graph = simplify(b.graph("g", [("r", b.add(first, second))]))
    assert [node.op for node in graph.nodes] == ["input", "composite", "add"]
    assert [node.op for node in graph.nodes[1].bodies[0].nodes] == ["input", "add"]


def test_the_signature_stays() -> None:
    b = Builder()
    x, y = b.input("x", TensorType("f32", (2,))), b.input("y", TensorType("f32", (2,)))
    graph = simplify(b.graph("g", [("a", b.add(x, b.like(0.0, x))), ("b", x)], [y, x]))
    assert graph.input_names == ("y", "x") and graph.name == "g"
    assert graph.outputs == (("a", graph.inputs[1]), ("b", graph.inputs[1]))
    assert graph_text(graph) == graph_text(simplify(graph))


def test_passes_are_verified_after_each() -> None:
    b = Builder()
    x = b.input("x", TensorType("f32", (2,)))
    graph = b.graph("g", [("y", b.neg(b.neg(x)))])
    done = run_passes(graph, (*forward_passes(3, ["x"]), *FINAL_PASSES), check=True)
    assert done.output("y") is done.inputs[0] and done.output("y").shape == (3, 2)

    def breaks(graph: Graph) -> Graph:
        return Graph(graph.name, graph.inputs, graph.outputs, graph.nodes[1:])

    with pytest.raises(AssertionError, match="after `break`: "):
        run_passes(graph, (Pass("break", breaks),), check=True)
    assert len(run_passes(graph, (Pass("break", breaks),)).nodes) == len(graph.nodes) - 1


def test_work_per_node() -> None:
    b = Builder()
    x = b.input("x", TensorType("f32", (8, 512)))
    y = x
    for i in range(1500):
        y = b.add(b.mul(b.op("tanh", y), b.like(0.5 + i, x)), b.reshape(b.reshape(x, (512, 8)), (8, 512)))
    graph = b.graph("g", [("y", y)])
    per_node = calls(lambda: simplify(graph)) / len(graph.nodes)
    assert per_node < 60
