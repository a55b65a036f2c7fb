"""How JAX's gather, scatter and products are written in our language: by places in the flat operand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from string import ascii_lowercase
from typing import Any

import numpy as np

from tests.oracles.cases import ArrayWriter, Skip, vector
from tests.oracles.jax_harnesses import Adapter, Known
from tests.oracles.jax_math import cast

W = ArrayWriter
CLIP, FILL, INSIDE = 1, 2, 0
"""Numbers of JAX's modes: clipped, filled or dropped, promised."""


def _mode(mode: Any) -> int:
    text = str(mode).lower()
    return CLIP if "clip" in text else FILL if "fill" in text else INSIDE


def window_places(
    shape: Sequence[int], indices: np.ndarray, sizes: Sequence[int], index_map: Sequence[int],
    operand_batch: Sequence[int], index_batch: Sequence[int], mode: int,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Flat places of every window, and whether it lies inside: (batch…, sizes…) and (batch…).

    `indices` has its vectors along the last axis. Windows are moved inside under CLIP.
    """
    batch = indices.shape[:-1]
    starts = np.zeros((*batch, len(shape)), np.int64)
    for k, axis in enumerate(index_map):
        starts[..., axis] = indices[..., k]
    for axis, own in zip(operand_batch, index_batch, strict=True):
        line = np.arange(batch[own]).reshape([-1 if i == own else 1 for i in range(len(batch))])
        starts[..., axis] = np.broadcast_to(line, batch)
    highest = np.array(shape) - np.array(sizes)
    inside = np.all((starts >= 0) & (starts <= highest), -1)
    starts = np.clip(starts, 0, np.maximum(highest, 0)) if mode == CLIP else np.where(inside[..., None], starts, 0)
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    flat = (starts @ np.array(strides, np.int64)) if shape else np.zeros(batch, np.int64)
    offsets = np.zeros(tuple(sizes), np.int64)
    for axis, (size, stride) in enumerate(zip(sizes, strides, strict=True)):
        offsets = offsets + (np.arange(size) * stride).reshape([-1 if i == axis else 1 for i in range(len(sizes))])
    places = flat.reshape([*batch, *[1] * len(sizes)]) + offsets
    return places, inside if mode != CLIP else np.ones(batch, bool)


def gather(w: W, x: Known, i: Known, dimension_numbers: Any, slice_sizes: Sequence[int], mode: Any, fill_value: Any,
           **ignored: Any) -> str:  # fmt: skip
    d = dimension_numbers
    indices = i.array.astype(np.int64)
    places, inside = window_places(x.shape, indices, slice_sizes, d.start_index_map, d.operand_batching_dims,
                                   d.start_indices_batching_dims, FILL if _mode(mode) == FILL else CLIP)  # fmt: skip
    if (
        _mode(mode) == INSIDE
        and not window_places(
            x.shape,
            indices,
            slice_sizes,
            d.start_index_map,
            d.operand_batching_dims,
            d.start_indices_batching_dims,
            INSIDE,
        )[1].all()
    ):
        raise Skip("a promise of places inside that is broken")
    batch = indices.ndim - 1
    gone = {*d.collapsed_slice_dims, *d.operand_batching_dims}
    flat = places.reshape([*indices.shape[:-1], *[n for a, n in enumerate(slice_sizes) if a not in gone]])
    rank = flat.ndim
    windows, batches = iter(range(batch, rank)), iter(range(batch))
    order = [next(windows) if a in d.offset_dims else next(batches) for a in range(rank)]
    table = np.array(flat.transpose(order), np.int32, order="C")
    if x.array.size == 0:
        raise Skip("a read from an empty axis, which we refuse")
    text = f"(gather (reshape {x.text} [_]) {w(table)})"
    if inside.all():
        return text
    seen = np.broadcast_to(inside.reshape([*inside.shape, *[1] * (rank - batch)]), flat.shape).transpose(order)
    fill = "nan" if fill_value is None and x.array.dtype.kind in "fV" else None
    if fill is None:
        raise Skip("a filling of integers")
    return f"(where {w(np.array(seen, order='C'))} {text} {fill})"


def scatter(fold: str) -> Adapter:
    def adapter(w: W, x: Known, i: Known, v: Known, dimension_numbers: Any, mode: Any, **ignored: Any) -> str:
        d = dimension_numbers
        indices = i.array.astype(np.int64)
        gone = {*d.inserted_window_dims, *d.operand_batching_dims}
        windows = iter(v.shape[a] for a in d.update_window_dims)
        sizes = [1 if a in gone else next(windows) for a in range(x.ndim)]
        batches = d.operand_batching_dims, d.scatter_indices_batching_dims
        places, inside = window_places(x.shape, indices, sizes, d.scatter_dims_to_operand_dims, *batches, _mode(mode))
        if not inside.all() and _mode(mode) == INSIDE:
            raise Skip("a promise of places inside that is broken")
        batch = indices.ndim - 1
        outside = ~inside.reshape([*inside.shape, *[1] * len(sizes)])
        places = np.where(outside, -1, places)
        flat = places.reshape([*indices.shape[:-1], *[n for a, n in enumerate(sizes) if a not in gone]])
        order_windows, order_batches = iter(range(batch, flat.ndim)), iter(range(batch))
        order = [next(order_windows) if a in d.update_window_dims else next(order_batches) for a in range(flat.ndim)]
        table = np.ascontiguousarray(flat.transpose(order)).reshape(-1).astype(np.int32)
        kept = table[table >= 0]
        if fold == "set" and len(set(kept.tolist())) < kept.size:
            raise Skip("two writes to one place, of which JAX lets any stand")
        if x.array.size == 0 or table.size == 0:
            return x.text
        value = v.text if v.dtype == x.dtype else cast(v.text, x.array.dtype)
        if fold == "mul":
            return _multiplied(w, x, table, value)
        made = f"(scatter (reshape {x.text} [_]) {w(table)} (reshape {value} [_]) :fold {fold})"
        return f"(reshape {made} {vector(x.shape)})"

    return adapter


def _multiplied(w: W, x: Known, table: np.ndarray, value: str) -> str:
    """Each place times the product of what is written there: 1 where nothing is."""
    n, m = table.size, x.array.size
    if n * m > 200_000:
        raise Skip("a scatter that multiplies, large")
    hit = f"(= (broadcast (reshape {w(table)} [{n} 1]) [{n} {m}]) (iota (i32 {n} {m}) :axis 1))"
    spread = f"(where {hit} (broadcast (reshape {value} [{n} 1]) [{n} {m}]) 1)"
    if x.array.dtype.kind in "fV":
        spread = spread.removesuffix("1)") + "1.0)"
    return f"(reshape (* (reshape {x.text} [_]) (prod {spread} :axis 0)) {vector(x.shape)})"


def dot_general(w: W, x: Known, y: Known, dimension_numbers: Any, preferred_element_type: Any, **ignored: Any) -> str:
    if x.array.dtype != y.array.dtype:
        raise Skip("a product of two dtypes, which we refuse")
    (left, right), (batch_left, batch_right) = dimension_numbers
    letters = iter(ascii_lowercase)
    a = [next(letters) for _ in range(x.ndim)]
    b = [next(letters) for _ in range(y.ndim)]
    for i, j in zip((*left, *batch_left), (*right, *batch_right), strict=True):
        b[j] = a[i]
    out = [*(a[i] for i in batch_left), *(c for i, c in enumerate(a) if i not in (*left, *batch_left)),
           *(c for j, c in enumerate(b) if j not in (*right, *batch_right))]  # fmt: skip
    texts = [x.text, y.text]
    dtype = np.dtype(preferred_element_type) if preferred_element_type is not None else x.array.dtype
    if dtype != x.array.dtype:
        texts = [cast(t, np.float32 if dtype.kind in "fV" else dtype) for t in texts]
    made = f'(product "{" ".join(a)}, {" ".join(b)} -> {" ".join(out)}" {" ".join(texts)})'
    return cast(made, dtype)


INDEX: dict[str, Adapter] = {
    "gather": gather, "scatter": scatter("set"), "scatter-add": scatter("add"), "scatter_add": scatter("add"),
    "scatter-mul": scatter("mul"), "scatter_mul": scatter("mul"), "scatter-max": scatter("max"),
    "scatter_max": scatter("max"), "scatter-min": scatter("min"), "scatter_min": scatter("min"),
    "dot_general": dot_general,
}  # fmt: skip
