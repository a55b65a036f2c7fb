"""Gather, pick and scatter: torch and plain loops as the reference, faults, duplicates, order."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from sexpgpu.ir.builder import Builder
from sexpgpu.ir.graph import Node
from sexpgpu.ir.opdef import OPS, Array, Context
from sexpgpu.ir.types import TensorType, TypeFault
from tests.effort import calls
from tests.ir.ops.calls import call, gradients, normal

CASES = [
    # x, indices, axis, batch
    ((5, 4), (3,), 0, 0),
    ((5, 4), (2, 3), 1, 0),
    ((2, 5, 3), (2, 4), 1, 1),
    ((2, 3, 5, 2), (2, 4), 2, 1),
    ((2, 3, 5, 2), (2, 3, 4, 2), 2, 2),
    ((2, 3, 4), (2, 3), 2, 2),
    ((6,), (), 0, 0),
    ((3, 0, 2), (4,), 0, 0),
]


def ids(seed: int, shape: tuple[int, ...], low: int, high: int, dtype: type = np.int32) -> Array:
    return np.asarray(np.random.default_rng(seed).integers(low, high, shape), dtype)


def loop_gather(x: Array, i: Array, axis: int, num_batch: int) -> Array:
    shape = x.shape[:axis] + i.shape[num_batch:] + x.shape[axis + 1 :]
    out = np.zeros(shape, x.dtype)
    own = i.ndim - num_batch
    for place in np.ndindex(shape):
        at = i[place[:num_batch] + place[axis : axis + own]]
        out[place] = x[(*place[:axis], np.clip(at, 0, x.shape[axis] - 1), *place[axis + own :])]
    return out


def loop_scatter(x: Array, i: Array, v: Array, axis: int, num_batch: int, fold: str) -> Array:
    """Each write after the other; those into one place in the row-major order of i."""
    out = x.copy()
    own = i.ndim - num_batch
    for place in np.ndindex(v.shape):
        at = i[place[:num_batch] + place[axis : axis + own]]
        if not 0 <= at < x.shape[axis]:
            continue
        target = (*place[:axis], at, *place[axis + own :])
        old, new = out[target], v[place]
        folds = {"set": lambda o, n: n, "add": lambda o, n: o + n, "max": np.maximum, "min": np.minimum}
        out[target] = folds[fold](old, new)
    return out


@pytest.mark.parametrize(("x_shape", "i_shape", "axis", "num_batch"), CASES)
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_gather(x_shape: tuple[int, ...], i_shape: tuple[int, ...], axis: int, num_batch: int, dtype: type) -> None:
    x, i = normal(1, *x_shape), ids(2, i_shape, -2, x_shape[axis] + 2, dtype)
    np.testing.assert_array_equal(call("gather", x, i, axis=axis, batch=num_batch), loop_gather(x, i, axis, num_batch))
    turned = np.asfortranarray(x)
    np.testing.assert_array_equal(
        call("gather", turned, i, axis=axis, batch=num_batch), loop_gather(x, i, axis, num_batch)
    )


@pytest.mark.parametrize(("x_shape", "i_shape", "axis", "num_batch"), CASES)
@pytest.mark.parametrize("fold", ["set", "add", "max", "min"])
@pytest.mark.parametrize("zero", [False, True])
def test_scatter(
    x_shape: tuple[int, ...], i_shape: tuple[int, ...], axis: int, num_batch: int, fold: str, zero: bool
) -> None:
    x = np.broadcast_to(np.float32(0), x_shape) if zero else normal(1, *x_shape)
    i = ids(2, i_shape, -2, x_shape[axis] + 2)
    v = normal(3, *x_shape[:axis], *i_shape[num_batch:], *x_shape[axis + 1 :])
    found = call("scatter", x, i, np.asarray(v), axis=axis, batch=num_batch, fold=fold)
    np.testing.assert_array_equal(found, loop_scatter(x, i, np.asarray(v), axis, num_batch, fold))


@pytest.mark.torch
def test_embedding_gradient_agrees_with_torch() -> None:
    torch = pytest.importorskip("torch")
    table, i = normal(1, 50, 8), ids(2, (4, 16), 0, 50)
    g = normal(3, 4, 16, 8)
    tt = torch.tensor(table, requires_grad=True)
    torch.nn.functional.embedding(torch.tensor(i), tt).backward(torch.tensor(g))
    found, none = gradients("gather", (table, i), g, axis=0, batch=0)
    assert none is None
    np.testing.assert_allclose(found, tt.grad.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.torch
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_pick_agrees_with_torch(axis: int) -> None:
    torch = pytest.importorskip("torch")
    x = normal(1, 3, 4, 5)
    i = ids(2, tuple(n for a, n in enumerate(x.shape) if a != axis), 0, x.shape[axis])
    tx = torch.tensor(x, requires_grad=True)
    expected = torch.gather(tx, axis, torch.tensor(i.astype(np.int64)).unsqueeze(axis)).squeeze(axis)
    actual = call("pick", x, i, axis=axis)
    np.testing.assert_array_equal(actual, expected.detach().numpy())
    g = normal(3, *actual.shape)
    expected.backward(torch.tensor(g))
    np.testing.assert_array_equal(gradients("pick", (x, i), g, axis=axis)[0], tx.grad.numpy())


@pytest.mark.torch
@pytest.mark.parametrize(("fold", "reduce"), [("add", "sum"), ("max", "amax"), ("min", "amin")])
def test_scatter_agrees_with_torch(fold: str, reduce: str) -> None:
    torch = pytest.importorskip("torch")
    x, i, v = normal(1, 5, 3), ids(2, (9,), 0, 5), normal(3, 9, 3)
    tx, tv = (torch.tensor(a, requires_grad=True) for a in (x, v))
    at = torch.tensor(i.astype(np.int64))[:, None].expand(9, 3)
    expected = tx.scatter_reduce(0, at, tv, reduce)
    np.testing.assert_allclose(
        call("scatter", x, i, v, axis=0, batch=0, fold=fold), expected.detach().numpy(), rtol=1e-5
    )
    g = normal(4, 5, 3)
    expected.backward(torch.tensor(g))
    dx, _, dv = gradients("scatter", (x, i, v), g, axis=0, batch=0, fold=fold)
    np.testing.assert_allclose(dx, tx.grad.numpy(), rtol=1e-5)
    np.testing.assert_allclose(dv, tv.grad.numpy(), rtol=1e-5)


def test_set_gives_its_cotangent_to_the_last_write_only() -> None:
    x, v = np.zeros(4, np.float32), np.arange(6, dtype=np.float32)
    i = np.array([1, 3, 1, -1, 3, 9], np.int32)
    g = np.array([1, 2, 4, 8], np.float32)
    dx, none, dv = gradients("scatter", (x, i, v), g, axis=0, batch=0, fold="set")
    assert none is None
    np.testing.assert_array_equal(dx, [1, 0, 4, 0])
    np.testing.assert_array_equal(dv, [0, 0, 2, 0, 8, 0])


def test_extrema_give_their_cotangent_to_the_first_that_attains_it() -> None:
    x = np.array([5, 1, 0, 7, 2], np.float32)
    i = np.array([0, 1, 1, 2, 2, 1, -1, 4], np.int32)
    v = np.array([5, 3, 3, -1, np.nan, 2, 9, 1], np.float32)
    g = np.array([1, 2, 4, 8, 16], np.float32)
    dx, _, dv = gradients("scatter", (x, i, v), g, axis=0, batch=0, fold="max")
    np.testing.assert_array_equal(dx, [1, 0, 0, 8, 16])
    np.testing.assert_array_equal(dv, [0, 2, 0, 0, 4, 0, 0, 0])


def test_faults_are_flagged_with_the_first_index_and_its_place() -> None:
    seen: list[str] = []

    def flag(node: Node, message: str) -> None:
        seen.append(f"{node.op}: {message}")

    x, i = normal(1, 5, 2), np.array([[0, 4], [5, -1]], np.int32)
    read = call("gather", x, i, flag=flag, axis=0, batch=0)
    np.testing.assert_array_equal(read, x[np.array([[0, 4], [4, 0]])])
    call("pick", x.T, np.array([1, -1], np.int32), flag=flag, axis=1)
    v = np.ones((2, 2, 2), np.float32)
    written = call("scatter", x, i, v, flag=flag, axis=0, batch=0, fold="set")
    np.testing.assert_array_equal(written, np.where([[1], [0], [0], [0], [1]], 1, x))
    call("scatter", x, np.array(-1, np.int32), v[0, 0], flag=flag, axis=0, batch=0, fold="set")
    call("gather", x, np.array(7, np.int64), flag=flag, axis=0, batch=0)
    assert seen == [
        "gather: index 5 at [1, 0] is outside 0 to 4",
        "pick: index -1 at [1] is outside 0 to 4",
        "scatter: index 5 at [1, 0] is outside 0 to 4",
        "gather: index 7 is outside 0 to 4",
    ]


@pytest.mark.parametrize("fold", ["set", "add", "max", "min"])
def test_the_gradient_of_a_scatter_flags_nothing_again(fold: str) -> None:
    b = Builder()
    x, i, v, g = (
        b.input(name, t)
        for name, t in (
            ("x", TensorType("f32", (3,))),
            ("i", TensorType("i32", (2,))),
            ("v", TensorType("f32", (2,))),
            ("g", TensorType("f32", (3,))),
        )
    )
    node = b.node("scatter", (x, i, v), {"axis": 0, "batch": 0, "fold": fold})
    rule = OPS["scatter"].gradient
    assert rule is not None
    dx, _, dv = rule(b, node, [g])
    assert dv is not None
    from sexpgpu.ir.evaluate import evaluate

    seen: list[str] = []
    feeds = {"x": normal(1, 3), "i": np.array([-1, 1], np.int32), "v": normal(2, 2), "g": normal(3, 3)}
    evaluate(b.graph("test", [("dv", dv), ("dx", dx or g)]), feeds, flag=lambda node, m: seen.append(m))
    assert not seen


def test_additions_run_in_input_order() -> None:
    values = np.array([1e8, 1, -1e8, 1], np.float32)
    for order in itertools.permutations(range(4)):
        expected = np.float32(0.5)
        for place in order:
            expected = np.float32(expected + values[place])
        v = values[list(order)]
        x = np.full(1, 0.5, np.float32)
        assert call("scatter", x, np.zeros(4, np.int32), v, axis=0, batch=0, fold="add")[0] == expected
        wide = np.repeat(v[:, None], 700, 1)
        found = call(
            "scatter",
            np.full((1, 700), 0.5, np.float32),
            np.zeros(4, np.int32),
            wide,
            axis=0,
            batch=0,
            fold="add",
        )
        assert (found == expected).all()


def test_the_embedding_gradient_makes_no_call_per_index() -> None:
    b = Builder()
    zeros = b.constant(0.0, TensorType("f32", (50304, 768)))
    i, v = b.input("i", TensorType("i32", (1024,))), b.input("v", TensorType("f32", (1024, 768)))
    node = b.node("scatter", (zeros, i, v), {"axis": 0, "batch": 0, "fold": "add"})
    arrays = [np.broadcast_to(np.float32(0), (50304, 768)), ids(1, (1024,), 0, 50304), normal(2, 1024, 768)]
    n = calls(lambda: OPS["scatter"].meaning(Context(), node, arrays))
    assert n < 500, "no call per index"


@pytest.mark.parametrize(
    ("op", "types", "attrs"),
    [
        ("gather", ("f32 5 4", "f32 3"), {"axis": 0, "batch": 0}),
        ("gather", ("f32 5 4", "i32 3"), {"axis": 2, "batch": 0}),
        ("gather", ("f32 5 4", "i32 3 2"), {"axis": 1, "batch": 1}),
        ("gather", ("f32 3 4", "i32 3 2"), {"axis": 0, "batch": 1}),
        ("gather", ("f32 0 4", "i32 3"), {"axis": 0, "batch": 0}),
        ("pick", ("f32 5 4", "i32 4"), {"axis": 1}),
        ("scatter", ("f32 5 4", "i32 3", "f32 3"), {"axis": 0, "batch": 0, "fold": "add"}),
        ("scatter", ("f32 5", "i32 3", "i32 3"), {"axis": 0, "batch": 0, "fold": "add"}),
        ("scatter", ("bf16 5", "i32 3", "bf16 3"), {"axis": 0, "batch": 0, "fold": "add"}),
        ("scatter", ("f32 5", "i32 3", "f32 3"), {"axis": 0, "batch": 0, "fold": "mean"}),
    ],
)
def test_faults(op: str, types: tuple[str, ...], attrs: dict[str, int | str]) -> None:
    b = Builder()
    inputs = []
    for number, text in enumerate(types):
        dtype, *shape = text.split()
        inputs.append(b.input(f"x{number}", TensorType(dtype, tuple(map(int, shape)))))
    with pytest.raises(TypeFault):
        b.node(op, inputs, attrs)
