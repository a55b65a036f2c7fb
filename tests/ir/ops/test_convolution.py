"""Convolutions and their gradients against torch, for many settings."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from sexpgpu.ir.builder import Builder
from sexpgpu.ir.opdef import OPS
from sexpgpu.ir.ops import convolution
from sexpgpu.ir.types import TensorType, TypeFault
from tests.ir.ops.calls import BF16, build, call, gradients, normal


def settings(rank: int, **given: int) -> dict[str, Any]:
    defaults = {"stride": 1, "low": 0, "high": 0, "dilation": 1, "input_dilation": 1}
    attrs: dict[str, Any] = {name: (given.get(name, default),) * rank for name, default in defaults.items()}
    return {**attrs, "groups": given.get("groups", 1)}


def torch_conv(torch: Any, x: Any, kernel: Any, attrs: dict[str, Any]) -> Any:
    """The same in torch: spread out by hand, pad (a negative amount crops), convolve."""
    rank = x.ndim - 2
    x = x.permute(0, rank + 1, *range(1, rank + 1))
    spread = [(n - 1) * d + 1 for n, d in zip(x.shape[2:], attrs["input_dilation"], strict=True)]
    wide = torch.zeros(*x.shape[:2], *spread, dtype=x.dtype)
    cuts = tuple(slice(None, None, d) for d in attrs["input_dilation"])
    wide[(slice(None), slice(None), *cuts)] = x
    pads = [p for low, high in zip(reversed(attrs["low"]), reversed(attrs["high"]), strict=True) for p in (low, high)]
    wide = torch.nn.functional.pad(wide, pads)
    weight = kernel.permute(rank + 1, rank, *range(rank))
    conv = (torch.nn.functional.conv1d, torch.nn.functional.conv2d, torch.nn.functional.conv3d)[rank - 1]
    y = conv(wide, weight, stride=attrs["stride"], dilation=attrs["dilation"], groups=attrs["groups"])
    return y.permute(0, *range(2, rank + 2), 1)


def check(attrs: dict[str, Any], x_shape: tuple[int, ...], kernel_shape: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    x, kernel = normal(1, *x_shape), normal(2, *kernel_shape)
    tx, tk = (torch.tensor(a, requires_grad=True) for a in (x, kernel))
    expected = torch_conv(torch, tx, tk, attrs)
    actual = call("conv", x, kernel, **attrs)
    np.testing.assert_allclose(actual, expected.detach().numpy(), rtol=1e-4, atol=1e-4)
    g = normal(3, *actual.shape)
    expected.backward(torch.tensor(g))
    for found, wanted in zip(gradients("conv", (x, kernel), g, **attrs), (tx, tk), strict=True):
        np.testing.assert_allclose(found, wanted.grad.numpy(), rtol=1e-4, atol=2e-4)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("stride", "low", "high", "dilation", "input_dilation", "groups"),
    [
        case
        for case in itertools.product((1, 2, 3), (0, 2, -1), (0, 1, -2), (1, 2), (1, 2, 3), (1, 2))
        if (9 - 1) * case[4] + 1 + case[1] + case[2] >= 2 * case[3] + 1
    ],
)
def test_one_axis(stride: int, low: int, high: int, dilation: int, input_dilation: int, groups: int) -> None:
    attrs = settings(
        1, stride=stride, low=low, high=high, dilation=dilation, input_dilation=input_dilation, groups=groups
    )
    check(attrs, (2, 9, 4), (3, 4 // groups, 6))


@pytest.mark.torch
@pytest.mark.parametrize("kernel", [(1, 1), (3, 3), (2, 4)])
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("stride", [(1, 1), (2, 1), (2, 3)])
def test_two_axes(kernel: tuple[int, int], groups: int, stride: tuple[int, int]) -> None:
    attrs: dict[str, Any] = {
        "stride": stride,
        "low": (1, 0),
        "high": (2, 1),
        "dilation": (1, 2),
        "input_dilation": (2, 1),
        "groups": groups,
    }
    check(attrs, (3, 5, 8, 4), (*kernel, 4 // groups, 8))


@pytest.mark.torch
def test_three_axes_and_a_large_padding() -> None:
    check(settings(3, stride=2, low=1, high=1), (2, 4, 5, 3, 2), (2, 3, 2, 2, 3))
    check(settings(2, low=5, high=4), (2, 3, 3, 2), (2, 2, 2, 3))
    check(settings(1, low=-7, high=9, input_dilation=3), (2, 3, 2), (2, 2, 3))


@pytest.mark.torch
def test_transposed_convolution() -> None:
    torch = pytest.importorskip("torch")
    x, kernel = normal(1, 2, 5, 5, 3), normal(2, 3, 3, 3, 4)
    # Stride 2 and padding 1 of torch's transposed convolution, whose kernel runs backwards.
    attrs = settings(2, input_dilation=2, low=1, high=1)
    expected = torch.nn.functional.conv_transpose2d(
        torch.tensor(x).permute(0, 3, 1, 2),
        torch.tensor(kernel[::-1, ::-1].copy()).permute(2, 3, 0, 1),
        stride=2,
        padding=1,
    )
    np.testing.assert_allclose(call("conv", x, kernel, **attrs), expected.permute(0, 2, 3, 1), rtol=1e-4, atol=1e-5)


def test_bf16_operands_give_f32_and_bf16_cotangents() -> None:
    x, kernel = normal(1, 2, 6, 3).astype(BF16), normal(2, 3, 3, 4).astype(BF16)
    attrs = settings(1, low=1, high=1)
    y = call("conv", x, kernel, **attrs)
    assert y.dtype == np.float32
    wide = [a.astype(np.float32) for a in (x, kernel)]
    np.testing.assert_allclose(y, call("conv", *wide, **attrs), rtol=1e-6)
    found = gradients("conv", (x, kernel), np.ones_like(y), **attrs)
    for narrow, exact in zip(found, gradients("conv", wide, np.ones_like(y), **attrs), strict=True):
        assert narrow is not None
        assert exact is not None
        assert narrow.dtype == BF16
        np.testing.assert_allclose(narrow.astype(np.float32), exact, rtol=1e-2, atol=1e-2)


def test_the_result_does_not_depend_on_the_window_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    x, kernel = normal(1, 5, 6, 3), normal(2, 3, 3, 4)
    whole = call("conv", x, kernel, **settings(1))
    monkeypatch.setattr(convolution, "WINDOW_BYTES", 1)
    np.testing.assert_allclose(call("conv", x, kernel, **settings(1)), whole, rtol=1e-5, atol=1e-6)


def test_flops() -> None:
    _, node = build("conv", (normal(1, 2, 8, 8, 4), normal(2, 3, 3, 2, 6)), settings(2, low=1, high=1, groups=2))
    assert OPS["conv"].cost(node).flops == 2 * (2 * 8 * 8 * 6) * 3 * 3 * 2


@pytest.mark.parametrize(
    ("x", "kernel", "given"),
    [
        ((2, 4, 3), (5, 3, 2), {}),
        ((2, 4, 3), (2, 2, 2), {}),
        ((2, 4, 3), (2, 1, 2), {"groups": 3}),
        ((2, 4, 3), (2, 3, 2), {"stride": 0}),
        ((2, 4, 3), (2, 2, 3, 2), {}),
        ((2, 4), (2, 3), {}),
    ],
)
def test_faults(x: tuple[int, ...], kernel: tuple[int, ...], given: dict[str, int]) -> None:
    b = Builder()
    with pytest.raises(TypeFault):
        b.node(
            "conv",
            [b.input("x", TensorType("f32", x)), b.input("kernel", TensorType("f32", kernel))],
            settings(max(len(x) - 2, 1), **given),
        )
