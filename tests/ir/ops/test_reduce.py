"""Reductions and running reductions: torch as the reference, ties, NaN, zeros, nothing at all."""

from __future__ import annotations

import numpy as np
import pytest

from sexpgpu.ir.builder import Builder
from sexpgpu.ir.opdef import Array
from sexpgpu.ir.types import TensorType, TypeFault
from tests.ir.ops.calls import call, gradients, normal

NAN = np.float32(np.nan)
INF = np.float32(np.inf)


def row(*values: float) -> Array:
    return np.array(values, np.float32)


@pytest.mark.torch
@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 2), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize("name", ["sum", "prod", "max", "min"])
def test_folds_agree_with_torch(name: str, axes: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    x = normal(1, 3, 4, 5)
    tx = torch.tensor(x, requires_grad=True)
    expected = tx
    for axis in reversed(axes):
        expected = getattr(expected, {"max": "amax", "min": "amin"}.get(name, name))(axis)
    actual = call(name, x, axes=axes)
    np.testing.assert_allclose(actual, expected.detach().numpy(), rtol=1e-5, atol=1e-5)
    g = np.asarray(normal(2, *actual.shape))
    expected.backward(torch.tensor(g))
    (found,) = gradients(name, (x,), g, axes=axes)
    np.testing.assert_allclose(found, tx.grad.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.torch
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("name", ["cumsum", "cumprod", "cummax"])
@pytest.mark.parametrize("zeros", [False, True])
def test_running_folds_agree_with_torch(name: str, axis: int, zeros: bool) -> None:
    torch = pytest.importorskip("torch")
    x = normal(1, 4, 7, 9)
    if zeros:
        x[np.random.default_rng(0).random(x.shape) < 0.2] = 0
    tx = torch.tensor(x, requires_grad=True)
    expected = getattr(torch, name)(tx, axis)
    expected = expected.values if name == "cummax" else expected
    actual = call(name, x, axis=axis)
    np.testing.assert_allclose(actual, expected.detach().numpy(), rtol=1e-5, atol=1e-5)
    g = normal(2, *actual.shape)
    expected.backward(torch.tensor(g))
    (found,) = gradients(name, (x,), g, axis=axis)
    if name != "cummax" or not zeros:  # torch gives a tie to its last element
        np.testing.assert_allclose(found, tx.grad.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.torch
@pytest.mark.parametrize("num_zeros", [0, 1, 2, 3])
def test_gradient_of_prod_with_zeros(num_zeros: int) -> None:
    torch = pytest.importorskip("torch")
    x = normal(1, 2, 5)
    x[0, :num_zeros] = 0
    tx = torch.tensor(x, requires_grad=True)
    torch.prod(tx, 1).backward(torch.tensor(row(2, 3)))
    (found,) = gradients("prod", (x,), row(2, 3), axes=(1,))
    np.testing.assert_allclose(found, tx.grad.numpy(), rtol=1e-5)


@pytest.mark.parametrize(
    ("values", "largest", "smallest"),
    [
        (row(1, 3, 3, 0, 0), 1, 3),
        (row(1, NAN, 3, NAN, 0), 1, 4),
        (row(NAN, INF, 3, INF), 0, 2),
        (row(NAN, INF, NAN, INF), 0, 1),
        (row(NAN, NAN), 0, 0),
        (row(-INF, INF, -INF, INF), 1, 0),
        (row(0.0, -0.0), 0, 0),
        (np.array([2, 5, 5, 2], np.int64), 1, 0),
    ],
)
def test_positions_of_ties_and_nan(values: Array, largest: int, smallest: int) -> None:
    for axis, x in ((0, np.stack([values, values], 1)), (1, np.stack([values, values]))):
        for name, expected in (("argmax", largest), ("argmin", smallest)):
            found = call(name, x, axis=axis)
            assert found.dtype == np.int32
            assert found.tolist() == [expected, expected]


@pytest.mark.parametrize(
    ("name", "values", "place"),
    [
        ("max", row(1, 4, 4, 0), 1),
        ("min", row(1, 0, 4, 0), 1),
        ("max", row(1, NAN, 4, NAN), 1),
        ("min", row(1, 0, NAN, NAN), 2),
        ("max", row(-INF, -INF), 0),
    ],
)
def test_gradient_of_an_extremum_goes_to_the_first(name: str, values: Array, place: int) -> None:
    (found,) = gradients(name, (values,), np.array(5, np.float32), axes=(0,))
    assert found is not None
    assert found.tolist() == [5.0 if i == place else 0.0 for i in range(len(values))]


def test_first_in_row_major_order_of_the_reduced_axes() -> None:
    x = np.zeros((2, 3, 2), np.float32)
    (found,) = gradients("max", (x,), row(1, 2, 3), axes=(0, 2))
    expected = np.zeros((2, 3, 2))
    expected[0, :, 0] = [1, 2, 3]
    np.testing.assert_array_equal(found, expected)
    x[1, 1, 0] = x[0, 1, 1] = 5
    (found,) = gradients("max", (x,), row(1, 2, 3), axes=(0, 2))
    expected[0, 1] = [0, 2]
    np.testing.assert_array_equal(found, expected)


def test_cummax_gives_its_cotangent_to_the_first_that_set_it() -> None:
    x = row(1, 3, 3, 2, 4, NAN, 9, NAN)
    np.testing.assert_array_equal(call("cummax", x, axis=0), row(1, 3, 3, 3, 4, NAN, NAN, NAN))
    (found,) = gradients("cummax", (x,), row(1, 2, 4, 8, 16, 32, 64, 128), axis=0)
    np.testing.assert_array_equal(found, row(1, 14, 0, 0, 16, 224, 0, 0))


def test_folds_of_nothing() -> None:
    nothing = np.zeros((2, 0), np.float32)
    assert call("sum", nothing, axes=(1,)).tolist() == [0, 0]
    assert call("prod", nothing, axes=(1,)).tolist() == [1, 1]
    assert call("any", nothing.astype(bool), axes=(1,)).tolist() == [False, False]
    assert call("all", nothing.astype(bool), axes=(1,)).tolist() == [True, True]
    b = Builder()
    x = b.input("x", TensorType("f32", (2, 0)))
    for name in ("max", "min"):
        with pytest.raises(TypeFault):
            b.op(name, x, axes=(1,))
    for name in ("argmax", "argmin"):
        with pytest.raises(TypeFault):
            b.op(name, x, axis=1)


def test_integers_wrap_in_their_own_width() -> None:
    x = np.array([2**31 - 1, 1], np.int32)
    assert call("sum", x, axes=(0,)) == -(2**31)
    assert call("cumsum", x, axis=0).tolist() == [2**31 - 1, -(2**31)]
    assert call("prod", np.array([2**16, 2**16], np.int32), axes=(0,)) == 0


def test_long_sums_keep_their_precision() -> None:
    x = np.full((3, 1 << 20), 0.1, np.float32)
    np.testing.assert_allclose(call("sum", x, axes=(1,)), np.float32(0.1) * (1 << 20), rtol=1e-6)


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min"])
def test_bf16_is_refused(name: str) -> None:
    b = Builder()
    with pytest.raises(TypeFault) as fault:
        b.op(name, b.input("x", TensorType("bf16", (2,))), axes=(0,))
    assert fault.value.code == "E-TYPE-001"
    assert "f32" in fault.value.help
