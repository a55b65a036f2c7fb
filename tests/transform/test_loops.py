"""Loops under passes: pruned of what nobody reads, stacked, and the same in a body as outside of it."""

from collections.abc import Collection

import numpy as np
import pytest

from sexpgpu.ir.builder import Builder
from sexpgpu.ir.evaluate import evaluate
from sexpgpu.ir.graph import Graph, Node, Value
from sexpgpu.ir.ops.scan import scan
from sexpgpu.ir.text import graph_text, parse_graph
from sexpgpu.ir.types import TensorType, TypeFault
from sexpgpu.ir.verify import verify
from sexpgpu.transform.autodiff import differentiate
from sexpgpu.transform.loops import prune_loops
from sexpgpu.transform.passes import FINAL_PASSES, run_passes
from sexpgpu.transform.raising import raise_composites
from sexpgpu.transform.stacking import stack

STATE, MATRIX = TensorType("f32", (2, 3)), TensorType("f32", (3, 3))
LENGTH = 4


def loop(b: Builder, h: Value, x: Value, w: Value, depth: int = 1, reverse: bool = False) -> Node:
    """Cells over x, and at each place another loop over x where `depth` says so; a second carry counts."""
    inner = Builder()
    c, n = inner.input("c0", STATE), inner.input("c1", TensorType("i32", ()))
    place, held, matrix = inner.input("x0", STATE), inner.input("k0", x.type), inner.input("k1", w.type)
    new = inner.op("tanh", inner.add(inner.product("ij,jk->ik", c, matrix), place))
    if depth > 1:
        deeper = loop(inner, new, held, matrix, depth - 1, not reverse)
        new = inner.add(deeper.outputs[0], inner.sum(deeper.outputs[2], (0,)))
    emits = [inner.mul(new, c), inner.cast(n, "f32")]
    count = b.constant(0, TensorType("i32", ()))
    inputs, nexts = [c, n, place, held, matrix], [new, inner.add(n, inner.like(1, n))]
    return scan(b, [h, count], [x], [x, w], inner, inputs, nexts, emits, length=LENGTH, reverse=reverse)


def model(depth: int = 1, reverse: bool = False, wrt: Collection[str] = ("h", "x", "w")) -> Graph:
    b = Builder()
    values = {"h": b.input("h", STATE), "x": b.input("x", STATE.with_shape((LENGTH, 2, 3))), "w": b.input("w", MATRIX)}
    node = loop(b, values["h"], values["x"], values["w"], depth, reverse)
    loss = b.add(b.sum(node.outputs[0], (0, 1)), b.sum(node.outputs[2], (0, 1, 2)))
    outputs = [("loss", loss)]
    if wrt:
        found = differentiate(b, {loss: b.constant(1.0, loss.type)}, [values[name] for name in wrt])
        outputs += [(f"d{name}", g) for name, g in zip(wrt, found, strict=True) if g is not None]
    return b.graph("model", outputs, list(values.values()))


def arrays(graph: Graph, k: int = 1, batched: Collection[str] = ()) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        name: rng.uniform(-1, 1, (k, *v.shape) if name in batched else v.shape)
        for name, v in zip(graph.input_names, graph.inputs, strict=True)
    }


def scans(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if node.op == "scan"]


@pytest.mark.parametrize("wrt", [(), ("h",), ("w",), ("x",), ("h", "x", "w")], ids=str)
@pytest.mark.parametrize("depth, reverse", [(1, False), (1, True), (2, False)])
def test_passes_keep_values_and_the_text_keeps_the_graph(depth: int, reverse: bool, wrt: tuple[str, ...]) -> None:
    graph = model(depth, reverse, wrt)
    verify(graph)
    given = arrays(graph)
    expected = evaluate(graph, given, double=True)
    for changed in (
        prune_loops(graph),
        run_passes(raise_composites(graph), FINAL_PASSES, check=True),
        parse_graph(graph_text(prune_loops(graph))),
    ):
        verify(changed)
        assert changed.input_names == graph.input_names
        for name, value in evaluate(changed, given, double=True).items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-10, atol=1e-12)


def test_nothing_is_left_that_nobody_reads() -> None:
    (forward,) = scans(prune_loops(model(wrt=())))
    assert [t.shape for t in forward.types] == [STATE.shape, (LENGTH, *STATE.shape)]
    assert forward.bodies[0].input_names == ("c0", "x0", "k0")
    (deep,) = scans(prune_loops(model(2, wrt=())))
    (inside,) = scans(deep.bodies[0])
    assert len(inside.types) == 2
    forward, backward = scans(prune_loops(model(wrt=("w",))))
    assert len(forward.types) == 3 and len(backward.types) == 2


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("batched", [("x",), ("h",), ("w",), ("h", "x"), ("h", "x", "w")], ids=str)
@pytest.mark.parametrize("depth", [1, 2])
def test_stacked_is_looped(depth: int, batched: tuple[str, ...], k: int) -> None:
    graph = model(depth)
    stacked = stack(graph, k, batched)
    verify(stacked)
    given = arrays(graph, k, batched)
    together = evaluate(stacked, given, double=True)
    for i in range(k):
        each = {name: value[i] if name in batched else value for name, value in given.items()}
        for name, value in evaluate(graph, each, double=True).items():
            np.testing.assert_allclose(together[name][i], value, rtol=1e-10, atol=1e-12)


def test_a_weight_that_all_microbatches_share_is_held_once() -> None:
    (node,) = scans(stack(model(wrt=()), 3, ["x"]))
    assert node.inputs[-1].shape == MATRIX.shape
    assert [v.shape for v in node.bodies[0].inputs[:1]] == [(3, *STATE.shape)]


def test_what_the_type_rule_refuses() -> None:
    graph = model(wrt=())
    (node,) = scans(graph)
    b = Builder()
    given = [b.input(f"v{i}", v.type) for i, v in enumerate(node.inputs)]
    for attrs in ({"length": 5}, {"num_carries": 1}, {"num_sequences": 0}, {"num_carries": 9}):
        with pytest.raises(TypeFault):
            b.node("scan", given, {**node.attrs, **attrs}, node.bodies)
    with pytest.raises(TypeFault):
        b.node("scan", given[:-1], node.attrs, node.bodies)
