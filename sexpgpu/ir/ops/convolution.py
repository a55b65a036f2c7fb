"""Convolution over one to three spatial axes, channels last. Work shape Conv.

Shapes: x [b, s…, c], kernel [k…, c / groups, o], result [b, p…, o]. Along a spatial axis x is first spread
out (`input_dilation` − 1 zeros between neighbours), then padded by `low` and `high` (negative: cropped), then
read by the kernel, whose taps lie `dilation` apart, at every `stride`-th place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import as_strided

from sexpgpu.ir.builder import Builder
from sexpgpu.ir.graph import Attrs, Graph, Node, Value
from sexpgpu.ir.opdef import Array, Context, Cost, OpDef, Sample, Work, bytes_moved, register
from sexpgpu.ir.ops.contract import check_operand_dtypes
from sexpgpu.ir.ops.rules import attr_int, attr_ints, check_operands, float_gradient
from sexpgpu.ir.types import TensorType, TypeFault

WINDOW_BYTES = 1 << 24
"""How much of the unfolded input the meaning holds at a time."""

PER_AXIS = ("stride", "low", "high", "dilation", "input_dilation")


@dataclass(frozen=True, slots=True)
class Window:
    """One spatial axis of a convolution: sizes of input and kernel, and how one runs over the other."""

    size: int
    taps: int
    stride: int
    low: int
    high: int
    dilation: int
    input_dilation: int

    @property
    def spread(self) -> int:
        """Size of the input with zeros between its elements."""
        return (self.size - 1) * self.input_dilation + 1

    @property
    def padded(self) -> int:
        return self.low + self.spread + self.high

    @property
    def reach(self) -> int:
        """How many places the kernel covers."""
        return (self.taps - 1) * self.dilation + 1

    @property
    def places(self) -> int:
        """Size of the result."""
        return (self.padded - self.reach) // self.stride + 1


def windows(x: Sequence[int], kernel: Sequence[int], attrs: Attrs) -> tuple[Window, ...]:
    """The spatial axes of a convolution, given the shapes of its operands."""
    numbers = [attr_ints(attrs, name) for name in PER_AXIS]
    return tuple(Window(*axis) for axis in zip(x[1:-1], kernel[:-2], *numbers, strict=True))


def _windows(node: Node) -> tuple[Window, ...]:
    return windows(node.inputs[0].shape, node.inputs[1].shape, node.attrs)


def _type(types: Sequence[TensorType], attrs: Attrs, bodies: Sequence[Graph]) -> tuple[TensorType, ...]:
    check_operands("conv", types, 2)
    x, kernel = types
    dtype = check_operand_dtypes("conv", x, kernel)
    if not 3 <= x.rank <= 5:
        raise TypeFault(f"`conv` of {x}: a batch axis, one to three spatial axes and a channel axis are needed")
    if kernel.rank != x.rank:
        raise TypeFault(f"`conv` of {x} by {kernel}: the kernel has spatial axes, input and output channels")
    for name in PER_AXIS:
        if len(attr_ints(attrs, name)) != x.rank - 2:
            raise TypeFault(f"`conv` of {x} needs {x.rank - 2} {name}, not {len(attr_ints(attrs, name))}")
    for name in ("stride", "dilation", "input_dilation"):
        if min(attr_ints(attrs, name)) < 1:
            raise TypeFault(f"`conv` by {name} {list(attr_ints(attrs, name))}; each is at least 1")
    groups = attr_int(attrs, "groups")
    if groups < 1 or x.shape[-1] % groups or kernel.shape[-1] % groups:
        raise TypeFault(f"`conv` of {x} by {kernel}: their channels do not divide into {groups} groups")
    if kernel.shape[-2] * groups != x.shape[-1]:
        raise TypeFault(
            f"`conv` of {x} by {kernel}: {groups} groups of {kernel.shape[-2]} channels are not {x.shape[-1]}"
        )
    spatial = windows(x.shape, kernel.shape, attrs)
    for axis, w in enumerate(spatial):
        if w.size < 1 or w.taps < 1 or w.padded < w.reach:
            raise TypeFault(f"`conv` of {x} by {kernel}: the kernel is wider than the padded spatial axis {axis}")
    return (TensorType(dtype, (x.shape[0], *(w.places for w in spatial), kernel.shape[-1])),)


def _padded(x: Array, spatial: Sequence[Window]) -> Array:
    """x spread out, padded and cropped along its spatial axes; a view where that only crops."""
    if all(w.input_dilation == 1 and w.low <= 0 and w.high <= 0 for w in spatial):
        return x[(slice(None), *(slice(-w.low, w.size + w.high) for w in spatial))]
    source, target = [slice(None)], [slice(None)]
    for w in spatial:
        first = max(0, -(w.low // w.input_dilation))
        stop = max(first, min(w.size, (w.padded - 1 - w.low) // w.input_dilation + 1))
        start = w.low + first * w.input_dilation
        source.append(slice(first, stop))
        target.append(slice(start, start + max(0, (stop - first - 1) * w.input_dilation + 1), w.input_dilation))
        if stop == first:
            target[-1] = slice(0, 0)
    out = np.zeros((x.shape[0], *(w.padded for w in spatial), x.shape[-1]), x.dtype)
    out[tuple(target)] = x[tuple(source)]
    return out


def _unfolded(x: Array, spatial: Sequence[Window]) -> Array:
    """What the kernel reads at each place, as a view [b, p…, k…, c] of the padded x."""
    steps = x.strides[1:-1]
    return as_strided(
        x,
        (x.shape[0], *(w.places for w in spatial), *(w.taps for w in spatial), x.shape[-1]),
        (
            x.strides[0],
            *(s * w.stride for s, w in zip(steps, spatial, strict=True)),
            *(s * w.dilation for s, w in zip(steps, spatial, strict=True)),
            x.strides[-1],
        ),
        writeable=False,
    )


def _into(ctx: Context, node: Node, inputs: Sequence[Array], outs: Sequence[Array]) -> None:
    (out,) = outs
    x, kernel = (a.astype(out.dtype, copy=False) for a in inputs)
    spatial, groups = _windows(node), attr_int(node.attrs, "groups")
    places, taps = math.prod(w.places for w in spatial), math.prod(w.taps for w in spatial)
    width, per_group = x.shape[-1] // groups, kernel.shape[-1] // groups
    # [g, k·c/g, o/g]: one matrix for each group.
    matrices = kernel.reshape(taps * width, groups, per_group).transpose(1, 0, 2)
    read = _unfolded(_padded(x, spatial), spatial)
    rows = max(1, WINDOW_BYTES // max(1, places * taps * x.shape[-1] * out.itemsize))
    with np.errstate(all="ignore"):
        for start in range(0, x.shape[0], rows):
            part = read[start : start + rows]
            split = part.reshape(*part.shape[:-1], groups, width)
            columns = np.moveaxis(split, -2, 0).reshape(groups, part.shape[0] * places, taps * width)
            rest = out[start : start + rows]
            target = rest.reshape(part.shape[0] * places, groups, per_group).transpose(1, 0, 2)
            if np.may_share_memory(target, out):
                np.matmul(columns, matrices, out=target)
            else:
                rest[...] = np.matmul(columns, matrices).transpose(1, 0, 2).reshape(rest.shape)


def _meaning(ctx: Context, node: Node, inputs: Sequence[Array]) -> Array:
    out = np.empty(node.types[0].shape, ctx.dtype(node.types[0]))
    _into(ctx, node, inputs, (out,))
    return out


def _conv(b: Builder, x: Value, kernel: Value, spatial: Sequence[Window], groups: int) -> Value:
    attrs = {name: tuple(getattr(w, name) for w in spatial) for name in PER_AXIS}
    return b.node("conv", (x, kernel), {**attrs, "groups": groups}).outputs[0]


def _input_gradient(b: Builder, node: Node, g: Value) -> Value:
    """The cotangent, spread out by the stride, read by the reversed kernel with its channels swapped."""
    kernel, groups = node.inputs[1], attr_int(node.attrs, "groups")
    *taps, width, out = kernel.shape
    rank = len(taps)
    turned = b.op("reverse", kernel, axes=tuple(range(rank)))
    split = b.reshape(turned, (*taps, width, groups, out // groups))
    swapped = b.transpose(split, (*range(rank), rank + 2, rank + 1, rank))
    backwards = []
    for w in _windows(node):
        low = w.reach - 1 - w.low
        reached = (w.places - 1) * w.stride + 1
        high = w.spread + w.reach - 1 - low - reached
        backwards.append(Window(w.places, w.taps, w.input_dilation, low, high, w.dilation, w.stride))
    return _conv(b, g, b.reshape(swapped, (*taps, out // groups, groups * width)), backwards, groups)


def _kernel_gradient(b: Builder, node: Node, g: Value) -> Value:
    """x read by the cotangent: input channels take the place of the batch, and the batch that of channels."""
    x, groups = node.inputs[0], attr_int(node.attrs, "groups")
    num_rows, *sizes, channels = x.shape
    rank = len(sizes)
    width = channels // groups
    split = b.reshape(x, (num_rows, *sizes, groups, width))
    swapped = b.transpose(split, (rank + 2, *range(1, rank + 1), rank + 1, 0))
    as_kernel = b.transpose(g, (*range(1, rank + 1), 0, rank + 1))
    across = []
    for w in _windows(node):
        reached = (w.places - 1) * w.stride + 1
        high = w.reach - 1 + reached - w.low - w.spread
        across.append(Window(w.size, w.places, w.dilation, w.low, high, w.stride, w.input_dilation))
    result = _conv(b, b.reshape(swapped, (width, *sizes, groups * num_rows)), as_kernel, across, groups)
    return b.transpose(result, (*range(1, rank + 1), 0, rank + 1))


def _gradient(b: Builder, node: Node, g: Value) -> Sequence[Value | None]:
    x, kernel = node.inputs
    if x.type.size == 0:
        return b.like(0.0, x), b.like(0.0, kernel)
    narrow = b.cast(g, x.dtype)
    return (
        b.cast(_input_gradient(b, node, narrow), x.dtype),
        b.cast(_kernel_gradient(b, node, narrow), kernel.dtype),
    )


def _stacking(b: Builder, node: Node, inputs: Sequence[Value], batched: Sequence[bool], k: int) -> tuple[Value, ...]:
    """k joins the batch if the kernel is shared, the output channels if x is, the groups if none is."""
    x, kernel = inputs
    result = node.types[0].shape
    rank, groups, out = len(result) - 2, attr_int(node.attrs, "groups"), result[-1]
    if not batched[1]:
        folded = b.reshape(x, (k * x.shape[1], *x.shape[2:]))
        return (b.reshape(b.op("conv", folded, kernel, **node.attrs), (k, *result)),)
    if not batched[0]:
        split = b.reshape(kernel, (*kernel.shape[:-1], groups, out // groups))
        wide = b.transpose(split, (*range(1, rank + 2), rank + 2, 0, rank + 3))
        made = b.op("conv", x, b.reshape(wide, (*kernel.shape[1:-1], k * out)), **node.attrs)
        parts = b.reshape(made, (*result[:-1], groups, k, out // groups))
        moved = b.transpose(parts, (rank + 2, *range(rank + 1), rank + 1, rank + 3))
        return (b.reshape(moved, (k, *result)),)
    beside = b.transpose(x, (*range(1, rank + 2), 0, rank + 2))
    kernels = b.transpose(kernel, (*range(1, rank + 2), 0, rank + 2))
    made = b.op(
        "conv",
        b.reshape(beside, (*x.shape[1:-1], k * x.shape[-1])),
        b.reshape(kernels, (*kernel.shape[1:-1], k * out)),
        **{**node.attrs, "groups": k * groups},
    )
    return (b.transpose(b.reshape(made, (*result[:-1], k, out)), (rank + 1, *range(rank + 1), rank + 2)),)


def _cost(node: Node) -> Cost:
    return Cost(2 * node.types[0].size * math.prod(node.inputs[1].shape[:-1]), bytes_moved(node))


def _sample(dtype: str, x: tuple[int, ...], kernel: tuple[int, ...], groups: int = 1, **per_axis: int) -> Sample:
    defaults = {"stride": 1, "low": 0, "high": 0, "dilation": 1, "input_dilation": 1}
    attrs = {name: (per_axis.get(name, default),) * (len(x) - 2) for name, default in defaults.items()}
    return Sample((TensorType(dtype, x), TensorType(dtype, kernel)), {**attrs, "groups": groups})


register(
    OpDef(
        name="conv",
        doc="x [b, s…, c] read by kernel [k…, c / groups, o] at every `stride`-th place: [b, p…, o], f32 out of bf16.",
        work=Work.CONV,
        params={
            "stride": "places from one reading to the next, per spatial axis",
            "low": "zeros before, per spatial axis; negative crops",
            "high": "zeros after, per spatial axis; negative crops",
            "dilation": "places from tap to tap, per spatial axis",
            "input_dilation": "places from one element of x to the next, per spatial axis",
            "groups": "into how many groups the channels divide, the first of x with the first of the result",
        },
        type_rule=_type,
        meaning=_meaning,
        into=_into,
        stacking=_stacking,
        gradient=float_gradient(_gradient),
        samples=(
            _sample("f32", (2, 7, 3), (3, 3, 2)),
            _sample("f32", (2, 7, 4), (3, 2, 6), groups=2, stride=2, low=1, high=2),
            _sample("f32", (2, 5, 6, 2), (3, 2, 2, 3), stride=2, low=1, high=1, dilation=2),
            _sample("f32", (1, 4, 4, 2), (3, 3, 1, 4), groups=2, low=2, high=1, input_dilation=2),
            _sample("bf16", (2, 5, 5, 2), (3, 3, 2, 3), low=1, high=1),
            _sample("f32", (1, 3, 4, 3, 2), (2, 2, 2, 2, 2), low=1),
            _sample("f32", (2, 6, 2), (2, 2, 2), low=-1, high=-2),
            _sample("f32", (2, 6, 2), (2, 2, 2), low=-3, high=4, input_dilation=3, stride=2),
            _sample("i32", (1, 5, 2), (2, 2, 2)),
            _sample("f64", (1, 5, 2), (1, 2, 3), stride=3),
        ),
        cost=_cost,
    )
)
