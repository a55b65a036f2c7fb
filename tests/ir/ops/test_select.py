"""Sorting and the largest k: ties, NaN, places, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from sexpgpu.ir.builder import Builder
from sexpgpu.ir.evaluate import evaluate
from sexpgpu.ir.opdef import Array
from sexpgpu.ir.types import TensorType, TypeFault
from tests.ir.ops.calls import build

NAN, INF = np.float32(np.nan), np.float32(np.inf)
ROW = np.array([1, NAN, -INF, 2, 1, -0.0, NAN, 0.0, INF], np.float32)


def both(op: str, x: Array, **attrs: object) -> tuple[Array, Array]:
    b, node = build(op, (x,), attrs)  # type: ignore[arg-type]
    graph = b.graph("test", [("values", node.outputs[0]), ("places", node.outputs[1])])
    found = evaluate(graph, {"x0": x})
    return found["values"], found["places"]


@pytest.mark.parametrize("descending", [False, True])
def test_ties_keep_their_order_and_nan_is_largest(descending: bool) -> None:
    values, places = both("sort", ROW, axis=0, descending=descending)
    np.testing.assert_array_equal(places, [1, 6, 8, 3, 0, 4, 5, 7, 2] if descending else [2, 5, 7, 0, 4, 3, 8, 1, 6])
    np.testing.assert_array_equal(values, ROW[places])
    assert places.dtype == np.int32


@pytest.mark.parametrize("k", [1, 3, 9])
def test_the_largest_are_the_first_of_the_order(k: int) -> None:
    for whole, part in zip(both("sort", ROW, axis=0, descending=True), both("top-k", ROW, axis=0, k=k), strict=True):
        np.testing.assert_array_equal(part, whole[:k])


def test_many_equal_integers_against_lexsort() -> None:
    x = np.random.default_rng(0).integers(-3, 3, (50, 40), np.int64)
    _, places = both("sort", x, axis=1, descending=True)
    for row, found in zip(x, places, strict=True):
        np.testing.assert_array_equal(found, np.lexsort((np.arange(40), -row)))
    lowest = np.array([-(2**63), 2**63 - 1, 0, -(2**63)], np.int64)
    np.testing.assert_array_equal(both("sort", lowest, axis=0, descending=True)[1], [1, 2, 0, 3])


@pytest.mark.parametrize(
    ("op", "dtype", "attrs"),
    [
        ("sort", "bf16", {"axis": 0, "descending": False}),
        ("sort", "f32", {"axis": 2, "descending": False}),
        ("top-k", "bool", {"axis": 0, "k": 1}),
        ("top-k", "f32", {"axis": 1, "k": 5}),
        ("top-k", "f32", {"axis": 1, "k": 0}),
    ],
)
def test_what_is_refused(op: str, dtype: str, attrs: dict[str, int]) -> None:
    b = Builder()
    with pytest.raises(TypeFault):
        b.node(op, [b.input("x", TensorType(dtype, (3, 4)))], attrs)
