"""Stacking: a graph on k microbatches at once gives what k graphs give one after the other."""

from collections.abc import Collection

import numpy as np
import pytest

from sexpgpu.ir.builder import Builder
from sexpgpu.ir.evaluate import evaluate
from sexpgpu.ir.graph import Graph
from sexpgpu.ir.stacking import stack_into
from sexpgpu.ir.types import TensorType
from sexpgpu.ir.verify import verify
from sexpgpu.transform.autodiff import differentiate
from sexpgpu.transform.stacking import stack

X = TensorType("f32", (2, 3))
W = TensorType("f32", (3, 4))


def model() -> Graph:
    """A dense layer; `scale` is made of parameters alone."""
    b = Builder()
    x, w = b.input("feed:x", X), b.input("slot:w", W)
    scale = b.op("exp", b.sum(w, (0, 1)))
    y = b.op("tanh", b.product("ab,bc->ac", x, w))
    loss = b.mul(b.sum(y, (0, 1)), scale)
    return b.graph("model", [("result:loss", loss), ("result:scale", scale), ("result:y", y)])


def values(graph: Graph, k: int, batched: Collection[str]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        name: rng.uniform(-1, 1, (k, *v.shape) if name in batched else v.shape)
        for name, v in zip(graph.input_names, graph.inputs, strict=True)
    }


@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize("batched", [(), ("feed:x",), ("slot:w",), ("feed:x", "slot:w")])
def test_stacked_is_looped(k: int, batched: tuple[str, ...]) -> None:
    graph = model()
    stacked = stack(graph, k, batched)
    verify(stacked)
    given = values(graph, k, batched)
    together = evaluate(stacked, given, double=True)
    for i in range(k):
        each = {name: value[i] if name in batched else value for name, value in given.items()}
        for name, value in evaluate(graph, each, double=True).items():
            np.testing.assert_allclose(together[name][i], value, rtol=1e-12)


def test_what_no_microbatch_changes_exists_once() -> None:
    stacked = stack(model(), 4, ["feed:x"])
    (exp,) = [node for node in stacked.nodes if node.op == "exp"]
    assert exp.types[0].shape == ()
    assert stacked.output("result:scale").shape == (4,)
    (product,) = [node for node in stacked.nodes if node.op == "product"]
    assert [v.shape for v in product.inputs] == [(4, 2, 3), (3, 4)]


def test_the_gradient_of_a_parameter_is_one_product() -> None:
    b = Builder()
    graph = stack(model(), 4, ["feed:x"])
    given = {name: b.input(name, v.type) for name, v in zip(graph.input_names, graph.inputs, strict=True)}
    loss = b.copy(graph)[0]
    (gradient,) = differentiate(b, {loss: b.like(1.0, loss)}, [given["slot:w"]])
    assert gradient is not None
    products = [n for n in b.graph("g", [("g", gradient)]).nodes if n.op == "product" and n.types[0] == W]
    assert len(products) == 1
    assert {v.shape for v in products[0].inputs} == {(4, 2, 3), (4, 2, 4)}


def test_into_a_builder_says_what_is_batched() -> None:
    b = Builder()
    x = b.op("exp", b.input("rows", X.with_shape((3, *X.shape))))
    made = stack_into(b, model(), {"feed:x": x}, {"feed:x"}, 3)
    assert {name: flag for name, (_, flag) in made.items()} == {
        "result:loss": True, "result:scale": False, "result:y": True
    }  # fmt: skip
    graph = b.graph("g", [(name, value) for name, (value, _) in made.items()])
    verify(graph)
    assert set(graph.input_names) == {"rows", "slot:w"}


def test_inputs_keep_their_order_and_those_that_nothing_reads() -> None:
    b = Builder()
    x, w = b.input("x", X), b.input("w", W)
    stacked = stack(b.graph("g", [("y", b.neg(x))], [w, x]), 2, ["x"])
    assert stacked.input_names == ("w", "x")


def test_unknown_inputs_are_refused() -> None:
    with pytest.raises(AssertionError, match="feed:z"):
        stack(model(), 2, ["feed:z"])
