"""How PyTorch's convolutions, pools and paddings are written in our language, where channels stand last."""

from __future__ import annotations

import math
from typing import Any

from tests.oracles.cases import Adapter, Skip, number, vector
from tests.oracles.opinfo import TorchWriter
from tests.oracles.torch_elementwise import options

W = TorchWriter


def _each(value: Any, rank: int) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return values * rank if len(values) == 1 else values


def _first_last(w: W, x: Any, rank: int) -> tuple[str, bool]:
    """x as (b spatial… c), and whether a batch axis had to be made."""
    alone = x.ndim == rank + 1
    text = f"(reshape {w(x)} {vector([1, *x.shape])})" if alone else w(x)
    return f'(rearrange "b c ... -> b ... c" {text})', alone


def _back(text: str, alone: bool) -> str:
    made = f'(rearrange "b ... c -> b c ..." {text})'
    return f"(gather {made} 0)" if alone else made


def conv(rank: int) -> Adapter:
    def adapter(w: W, x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
                groups: int = 1) -> str:  # fmt: skip
        text, alone = _first_last(w, x, rank)
        gaps, taps = _each(dilation, rank), list(weight.shape[2:])
        if padding == "same":
            total = [g * (k - 1) for g, k in zip(gaps, taps, strict=True)]
            pad = "[" + " ".join(vector([t // 2, t - t // 2]) for t in total) + "]"
        else:
            pad = vector(_each(0 if padding == "valid" else padding, rank))
        kernel = f'(rearrange "o i ... -> ... i o" {w(weight)})'
        made = (f"(conv {text} {kernel} :stride {vector(_each(stride, rank))} :pad {pad} :dilation {vector(gaps)} "
                f":groups {groups})")  # fmt: skip
        return _back(made if bias is None else f"(+ {made} {w(bias)})", alone)

    return adapter


def conv_transpose(rank: int) -> Adapter:
    def adapter(w: W, x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0,
                output_padding: Any = 0, groups: int = 1, dilation: Any = 1) -> str:  # fmt: skip
        text, alone = _first_last(w, x, rank)
        cut, more = _each(padding, rank), _each(output_padding, rank)
        pad = "[" + " ".join(vector([p, max(0, p - m)]) for p, m in zip(cut, more, strict=True)) + "]"
        kernel = f'(rearrange "(g i) o ... -> ... i (g o)" {w(weight)} :g {groups})'
        made = (f"(conv {text} {kernel} :transposed true :stride {vector(_each(stride, rank))} :pad {pad} "
                f":dilation {vector(_each(dilation, rank))} :groups {groups})")  # fmt: skip
        for axis, (p, m) in enumerate(zip(cut, more, strict=True)):
            if m > p:
                made = f"(pad {made} 0 {m - p} :axis {axis + 1})"
        return _back(made if bias is None else f"(+ {made} {w(bias)})", alone)

    return adapter


def max_pool(rank: int) -> Adapter:
    """Values and gradients; the places that `return_indices` adds have no spelling, and are not compared."""

    def adapter(w: W, x: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
                ceil_mode: bool = False, return_indices: bool = False) -> str:  # fmt: skip
        text, alone = _first_last(w, x, rank)
        steps = kernel_size if stride is None or stride == () else stride
        made = (f"(pool {text} :window {vector(_each(kernel_size, rank))} :stride {vector(_each(steps, rank))} "
                f":pad {vector(_each(padding, rank))} :dilation {vector(_each(dilation, rank))} "
                f":ceil {number(ceil_mode)})")  # fmt: skip
        return _back(made, alone)

    return options(adapter, compared=1)


def avg_pool(rank: int) -> Adapter:
    """Padding that counts is written as zeros before the pool."""

    def adapter(w: W, x: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
                count_include_pad: bool = True, divisor_override: int | None = None) -> str:  # fmt: skip
        text, alone = _first_last(w, x, rank)
        taps = _each(kernel_size, rank)
        steps = _each(kernel_size if stride is None or stride == () else stride, rank)
        pads = _each(padding, rank)
        window = f":window {vector(taps)} :stride {vector(steps)}"
        if not count_include_pad and divisor_override is None:
            return _back(f"(pool {text} :kind mean {window} :pad {vector(pads)} :ceil {number(ceil_mode)})", alone)
        for axis in range(rank):
            size, p, k, s = x.shape[x.ndim - rank + axis], pads[axis], taps[axis], steps[axis]
            slack = size + 2 * p - k
            count = slack // s + 1
            if ceil_mode and slack % s and count * s < size + p:
                count += 1
            needed = max(0, (count - 1) * s + k - size - p)
            if needed > p and divisor_override is None:
                raise Skip("a mean over a window that hangs over padding that counts")
            text = f"(slice (pad {text} {p} {needed} :axis {axis + 1}) 0 {(count - 1) * s + k} :axis {axis + 1})"
        made = f"(pool {text} :kind mean {window})"
        if divisor_override is not None:
            made = f"(* {made} {math.prod(taps) / divisor_override!r})"
        return _back(made, alone)

    return adapter


def adaptive(rank: int, fold: str) -> Adapter:
    """Windows of nearly equal sizes, each a slice of its own."""

    def adapter(w: W, x: Any, output_size: Any, return_indices: bool = False) -> str:
        text = w(x)
        wanted = _each(output_size, rank) if not isinstance(output_size, int) else [output_size] * rank
        for axis in reversed(range(x.ndim - rank, x.ndim)):
            size, places = x.shape[axis], wanted[axis - x.ndim + rank]
            if places is None or places == size:
                continue
            if not places or not size:
                raise Skip("a pool to or from nothing")
            bounds = [(i * size // places, -(-(i + 1) * size // places)) for i in range(places)]
            parts = [f"({fold} (slice p {a} {b} :axis {axis}) :axis {axis} :keep true)" for a, b in bounds]
            text = f"(let [p {text}] (concat {vector(parts)} :axis {axis}))"
        return text

    return options(adapter, compared=1)


def pad(w: W, x: Any, pad: Any, mode: str = "constant", value: float | None = None) -> str:
    text, shape = w(x), list(x.shape)
    for i in range(len(pad) // 2):
        axis = x.ndim - 1 - i
        low, high = pad[2 * i], pad[2 * i + 1]
        text = _padded(text, shape, axis, low, high, mode, value or 0.0)
        shape[axis] += low + high
    return text


def _padded(text: str, shape: list[int], axis: int, low: int, high: int, mode: str, value: float) -> str:
    size = shape[axis]
    if low < 0 or high < 0:
        first, last = max(0, -low), size - max(0, -high)
        cut = f"(slice {text} {first} {last} :axis {axis})"
        inner = [*shape[:axis], last - first, *shape[axis + 1 :]]
        return _padded(cut, inner, axis, max(0, low), max(0, high), mode, value)
    if not low and not high:
        return text
    if size == 0 and mode != "constant":
        raise Skip("a read from an empty axis, which we refuse")
    if mode == "constant":
        if value == 0:
            return f"(pad {text} {low} {high} :axis {axis})"
        ends = [f"(full (f32 {' '.join(map(str, [*shape[:axis], n, *shape[axis + 1 :]]))}) {number(float(value))})"
                for n in (low, high)]  # fmt: skip
        return f"(concat [{ends[0]} {text} {ends[1]}] :axis {axis})"
    if mode == "reflect":
        places = [abs(i) if i < size else 2 * (size - 1) - i for i in range(-low, size + high)]
    elif mode == "replicate":
        places = [min(max(i, 0), size - 1) for i in range(-low, size + high)]
    else:
        places = [i % size for i in range(-low, size + high)]
    return f"(gather {text} (cast {vector(places)} i32) :axis {axis})"


def unfold(w: W, x: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> str:
    taps, gaps, pads, steps = (_each(v, 2) for v in (kernel_size, dilation, padding, stride))
    alone = x.ndim == 3
    b, c, n, m = [1, *x.shape] if alone else list(x.shape)
    text = f"(reshape {w(x)} {vector([b, c, n, m])})"
    counts = []
    for axis, size in ((2, n), (3, m)):
        i = axis - 2
        text = f"(pad {text} {pads[i]} {pads[i]} :axis {axis})"
        counts.append((size + 2 * pads[i] - gaps[i] * (taps[i] - 1) - 1) // steps[i] + 1)
    parts = []
    for p in range(taps[0]):
        for q in range(taps[1]):
            part = "p"
            for axis, tap in ((2, p), (3, q)):
                i = axis - 2
                first = tap * gaps[i]
                part = f"(slice {part} {first} {first + (counts[i] - 1) * steps[i] + 1} :axis {axis} :step {steps[i]})"
            parts.append(part)
    shape = vector([b, c * len(parts), math.prod(counts)])
    made = f"(let [p {text}] (reshape (stack {vector(parts)} :axis 2) {shape}))"
    return f"(gather {made} 0)" if alone else made


def nearest(exact: bool) -> Adapter:
    def adapter(w: W, x: Any, size: Any = None, scale_factor: Any = None, mode: str = "nearest",
                align_corners: Any = None, recompute_scale_factor: Any = None,
                antialias: bool = False) -> str:  # fmt: skip
        rank, text = x.ndim - 2, w(x)
        for i in range(rank):
            n = x.shape[i + 2]
            if size is not None:
                m = _each(size, rank)[i]
                scale = n / m
            else:
                factor = scale_factor if isinstance(scale_factor, float | int) else scale_factor[i]
                m = math.floor(n * factor)
                scale = n / m if recompute_scale_factor else 1 / factor
            shift = 0.5 if exact else 0.0
            places = [min(n - 1, math.floor((j + shift) * scale)) for j in range(m)]
            text = f"(gather {text} (cast {vector(places)} i32) :axis {i + 2})"
        return text

    return adapter


WINDOWS: dict[str, Adapter] = {
    **{f"nn.functional.conv{r}d": conv(r) for r in (1, 2, 3)},
    **{f"nn.functional.conv_transpose{r}d": conv_transpose(r) for r in (1, 2, 3)},
    **{f"nn.functional.max_pool{r}d": max_pool(r) for r in (1, 2, 3)},
    **{f"nn.functional.avg_pool{r}d": avg_pool(r) for r in (1, 2, 3)},
    **{f"nn.functional.adaptive_avg_pool{r}d": adaptive(r, "mean") for r in (1, 2, 3)},
    **{f"nn.functional.adaptive_max_pool{r}d": adaptive(r, "max") for r in (1, 2, 3)},
    **{f"nn.functional.pad.{m}": pad for m in ("constant", "reflect", "replicate", "circular", "replicate_negative")},
    "constant_pad_nd": lambda w, x, p, value=0: pad(w, x, p, "constant", value),
    "nn.functional.unfold": unfold, "nn.functional.interpolate.nearest": nearest(False),
    "nn.functional.interpolate.nearest-exact": nearest(True),
}  # fmt: skip
