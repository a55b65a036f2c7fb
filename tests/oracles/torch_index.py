"""How PyTorch's reading and writing by index is written in our language."""

from __future__ import annotations

import math
from typing import Any

import torch

from tests.oracles.cases import Adapter, Skip, number, vector
from tests.oracles.opinfo import TorchWriter

W = TorchWriter
INTEGERS = (torch.int64, torch.int32, torch.uint8, torch.int8, torch.int16)


def _places(w: W, index: Any, shape: Any, axis: int) -> str:
    """Where elements of `index` stand in the flat x: as a tensor of i32, for `gather` in PyTorch's sense."""
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    sizes = "(i32 " + " ".join(map(str, index.shape)) + ")"
    terms = [f"(* {strides[i]} (iota {sizes} :axis {i}))" for i in range(len(shape)) if i != axis]
    own = f"(* {strides[axis]} (cast {w(index)} i32))"
    return f"(+ {own} {' '.join(terms)})" if terms else own


def _checked(index: Any, size: int) -> None:
    if size == 0:
        raise Skip("a read from an empty axis, which we refuse")
    if index.numel() and (int(index.min()) < 0 or int(index.max()) >= size):
        raise Skip("an index counted from the end at run time")


def gather(w: W, x: Any, dim: int, index: Any, sparse_grad: bool = False) -> str:
    if x.ndim == 0:
        return f"(reshape (gather (reshape {w(x)} [1]) {w(index)}) {vector(index.shape)})"
    if index.ndim != x.ndim:
        raise Skip("an empty index of another rank")
    return f"(gather (reshape {w(x)} [_]) {_places(w, index, x.shape, dim % x.ndim)})"


def take_along_dim(w: W, x: Any, index: Any, dim: int | None = None) -> str:
    _checked(index, x.numel() if dim is None else x.shape[dim])
    if dim is None:
        return f"(gather (reshape {w(x)} [_]) (reshape {w(index)} [_]))"
    axis = dim % x.ndim
    wide_x = [n if i == axis else max(n, index.shape[i]) for i, n in enumerate(x.shape)]
    wide_i = [n if i == axis else max(n, x.shape[i]) for i, n in enumerate(index.shape)]
    strides = [math.prod(wide_x[i + 1 :]) for i in range(len(wide_x))]
    sizes = "(i32 " + " ".join(map(str, wide_i)) + ")"
    terms = [f"(* {strides[i]} (iota {sizes} :axis {i}))" for i in range(len(wide_x)) if i != axis]
    own = f"(* {strides[axis]} (broadcast (cast {w(index)} i32) {vector(wide_i)}))"
    return f"(gather (reshape (broadcast {w(x)} {vector(wide_x)}) [_]) (+ {own} {' '.join(terms)}))"


def _flat_scatter(w: W, x: Any, dim: int, index: Any, value: Any, fold: str, base: str | None = None) -> str:
    rank = max(1, x.ndim)
    shape = list(x.shape) or [1]
    if index.ndim not in (x.ndim, rank) or (x.ndim == 0 and index.ndim > 1):
        raise Skip("an empty index of another rank")
    sizes = list(index.shape) or [1]
    places = f"(cast {w(index)} i32)" if x.ndim <= 1 else _places(w, index, shape, dim % rank)
    if isinstance(value, torch.Tensor) and value.ndim:
        cut = w(value)
        for axis, n in enumerate(sizes):
            if value.shape[axis] != n:
                cut = f"(slice {cut} 0 {n} :axis {axis})"
    else:
        cut = f"(full (f32 {' '.join(map(str, sizes))}) {w.f(value)})"
    held = base or f"(reshape {w(x)} [_])"
    return f"(reshape (scatter {held} (reshape {places} [_]) (reshape {cut} [_]) :fold {fold}) {vector(x.shape)})"


def _repeated(x: Any, dim: int, index: Any) -> bool:
    """Whether some place is written twice, so that the last stands by our rule and any by PyTorch's."""
    if x.ndim == 0 or index.numel() == 0:
        return index.numel() > 1
    hits = torch.zeros(x.shape, dtype=torch.int64)
    hits.scatter_add_(dim, index.long(), torch.ones_like(index, dtype=torch.int64))
    return bool((hits > 1).any())


def scatter(w: W, x: Any, dim: int, index: Any, src: Any = None, value: Any = None, reduce: str | None = None) -> str:
    src = value if src is None else src
    if reduce == "multiply":
        raise Skip("a scatter that multiplies")
    if reduce is None and _repeated(x, dim, index):
        raise Skip("two writes to one place, of which PyTorch lets any stand")
    return _flat_scatter(w, x, dim, index, src, "add" if reduce == "add" else "set")


def scatter_add(w: W, x: Any, dim: int, index: Any, src: Any) -> str:
    return _flat_scatter(w, x, dim, index, src, "add")


FOLDS = {"sum": "add", "amax": "max", "amin": "min"}


def scatter_reduce(w: W, x: Any, dim: int, index: Any, src: Any, reduce: str, include_self: bool = True) -> str:
    if reduce in ("prod",):
        raise Skip("a scatter that multiplies")
    flat = f"(reshape {w(x)} [_])"
    ones = f"(ones (f32 {' '.join(map(str, index.shape)) or '1'}))"
    kept = [f"(cast {w(index)} i32)" if x.ndim <= 1 else _places(w, index, list(x.shape), dim % max(1, x.ndim))]
    count = f"(scatter (zeros (f32 {x.numel()})) (reshape {kept[0]} [_]) (reshape {ones} [_]) :fold add)"
    if reduce == "mean":
        base = flat if include_self else f"(where (> {count} 0) 0.0 {flat})"
        total = _flat_scatter(w, x, dim, index, src, "add", base)
        less = "1.0" if include_self else "0.0"
        return f"(/ {total} (reshape (maximum 1.0 (+ {less} {count})) {vector(x.shape)}))"
    if include_self:
        base = flat
    else:
        start = {"sum": "0.0", "amax": "(- inf)", "amin": "inf"}[reduce]
        base = f"(where (> {count} 0) {start} {flat})"
    if reduce != "sum" and _repeated(x, dim, index):
        made = _flat_scatter(w, x, dim, index, src, FOLDS[reduce], base)
        return made
    return _flat_scatter(w, x, dim, index, src, FOLDS[reduce], base)


def index_select(w: W, x: Any, dim: int, index: Any) -> str:
    if x.ndim == 0:
        return f"(reshape (gather (reshape {w(x)} [1]) {w(index)}) [])"
    return f"(gather {w(x)} {w(index)} :axis {dim})"


def along(fold: str) -> Adapter:
    """`index_add` and its like: slices of `source` are folded in at places of an axis."""

    def adapter(w: W, x: Any, dim: int, index: Any, source: Any, alpha: float = 1) -> str:
        shape = list(x.shape) or [1]
        value = w.f(source) if alpha == 1 else f"(* {number(float(alpha))} {w.f(source)})"
        axis = dim % len(shape)
        if (isinstance(source, torch.Tensor) and source.ndim == 0) or not isinstance(source, torch.Tensor):
            wide = [index.numel() if i == axis else n for i, n in enumerate(shape)]
            value = f"(full (f32 {' '.join(map(str, wide))}) {value})"
        flat_index = f"(reshape {w(index)} [{index.numel()}])"
        if fold == "set" and len(set(index.flatten().tolist())) < index.numel():
            raise Skip("two writes to one place, of which PyTorch lets any stand")
        made = f"(scatter (reshape {w(x)} {vector(shape)}) {flat_index} {value} :axis {axis} :fold {fold})"
        return f"(reshape {made} {vector(x.shape)})"

    return adapter


def index_reduce(w: W, x: Any, dim: int, index: Any, source: Any, reduce: str, include_self: bool = True) -> str:
    if reduce == "prod" or reduce == "mean" or not include_self:
        raise Skip("a fold of `scatter` that multiplies, means or forgets")
    return along({"amax": "max", "amin": "min"}[reduce])(w, x, dim, index, source)


def take(w: W, x: Any, index: Any) -> str:
    _checked(index, x.numel())
    return f"(gather (reshape {w(x)} [{x.numel()}]) {w(index)})"


def put(w: W, x: Any, index: Any, source: Any, accumulate: bool = False) -> str:
    index_n = index.numel()
    if index_n and int(index.min()) < 0:
        index = torch.where(index < 0, index + x.numel(), index)
    if not accumulate and len(set(index.flatten().tolist())) < index_n:
        raise Skip("two writes to one place, of which PyTorch lets any stand")
    fold = "add" if accumulate else "set"
    return (f"(reshape (scatter (reshape {w(x)} [{x.numel()}]) (reshape {w(index)} [{index_n}]) "
            f"(reshape {w(source)} [{index_n}]) :fold {fold}) {vector(x.shape)})")  # fmt: skip


def embedding(w: W, x: Any, index: Any, padding_idx: Any = None, max_norm: Any = None, norm_type: float = 2.0,
              scale_grad_by_freq: bool = False, sparse: bool = False) -> str:  # fmt: skip
    """The weight and the index are given in the order of the sample, which is the other way round."""
    table, ids = (x, index) if x.is_floating_point() else (index, x)
    if max_norm is not None or scale_grad_by_freq or sparse or padding_idx is not None:
        raise Skip("an embedding with rules of its own for gradients or norms")
    return f"(gather {w(table)} {w(ids)})"


def select_scatter(w: W, x: Any, source: Any, dim: int, index: int) -> str:
    return f"(scatter {w(x)} {index % x.shape[dim]} {w(source)} :axis {dim})"


def slice_scatter(w: W, x: Any, source: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> str:
    first, last, step = slice(start, end, step).indices(x.shape[dim])
    places = list(range(first, last, step))
    return f"(scatter {w(x)} (cast {vector(places)} i32) {w(source)} :axis {dim})"


def diagonal_scatter(w: W, x: Any, source: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> str:
    if x.ndim != 2 or (dim1, dim2) != (0, 1):
        raise Skip("a diagonal of inner axes, written")
    rows, columns, m = max(0, -offset), max(0, offset), x.shape[1]
    places = f"(+ (* (iota (i32 {source.numel()})) {m + 1}) {rows * m + columns})"
    return f"(reshape (scatter (reshape {w(x)} [_]) {places} {w(source)}) {vector(x.shape)})"


def getitem(w: W, x: Any, index: Any) -> str:
    parts = list(index) if isinstance(index, tuple) else [index]
    if isinstance(index, list):
        parts = [index]
    if any((isinstance(p, torch.Tensor) and p.dtype == torch.bool) or p is None for p in parts):
        raise Skip("a mask or a new axis as an index")
    if Ellipsis in [p for p in parts if not isinstance(p, torch.Tensor)]:
        at = next(i for i, p in enumerate(parts) if p is Ellipsis)
        parts[at : at + 1] = [slice(None)] * (x.ndim - len(parts) + 1)
    lists = [i for i, p in enumerate(parts) if isinstance(p, list | tuple | torch.Tensor)]
    text, axis = w(x), 0
    if len(lists) > 1:
        return _several(w, x, parts, lists)
    for p in parts:
        if isinstance(p, int):
            text = f"(gather {text} {p} :axis {axis})"
            continue
        if isinstance(p, slice):
            first, last, step = p.indices(x.shape[parts.index(p)] if False else _size(x, parts, axis))
            text = f"(slice {text} {first} {max(first, last)} :axis {axis} :step {step})"
        else:
            ids = w(p) if isinstance(p, torch.Tensor) else f"(cast {vector(list(p))} i32)"
            text = f"(gather {text} {ids} :axis {axis})"
        axis += 1
    return text


def _size(x: Any, parts: list[Any], axis: int) -> int:
    """The size of the axis of x that the part at result axis `axis` reads."""
    seen = -1
    for i, p in enumerate(parts):
        seen += not isinstance(p, int)
        if seen == axis:
            return int(x.shape[i])
    raise AssertionError(parts)


def _several(w: W, x: Any, parts: list[Any], lists: list[int]) -> str:
    if lists != list(range(len(lists))) or len(lists) != len(parts):
        raise Skip("lists of places along axes that do not come first")
    columns = [torch.as_tensor(p) for p in parts]
    columns = [torch.where(c < 0, c + n, c) for c, n in zip(torch.broadcast_tensors(*columns), x.shape, strict=False)]
    flat = torch.zeros_like(columns[0])
    for c, n in zip(columns, x.shape, strict=False):
        flat = flat * n + c
    rest = list(x.shape[len(columns) :])
    w._kept_tensor = flat  # type: ignore[attr-defined]
    return f"(gather (reshape {w(x)} {vector([math.prod(x.shape[: len(columns)]), *rest])}) {w(flat)})"


def index_put(w: W, x: Any, indices: Any, values: Any, accumulate: bool = False) -> str:
    if len(indices) != 1:
        raise Skip("several lists of places to write")
    (index,) = indices
    if index.dtype == torch.bool:
        index = index.nonzero().flatten()
    if not accumulate and len(set(index.tolist())) < index.numel():
        raise Skip("two writes to one place, of which PyTorch lets any stand")
    wanted = [*index.shape, *x.shape[1:]]
    made = w(values) if list(values.shape) == wanted else f"(broadcast {w(values)} {vector(wanted)})"
    return f"(scatter {w(x)} {w(index)} {made} :fold {'add' if accumulate else 'set'})"


INDEX: dict[str, Adapter] = {
    "gather": gather, "take_along_dim": take_along_dim, "scatter": scatter, "scatter_add": scatter_add,
    **{f"scatter_reduce.{r}": scatter_reduce for r in ("sum", "mean", "amax", "amin", "prod")},
    "index_select": index_select, "index_add": along("add"), "index_copy": along("set"), "index_fill": along("set"),
    **{f"index_reduce.{r}": index_reduce for r in ("mean", "prod", "amax", "amin")},
    "take": take, "put": put, "nn.functional.embedding": embedding, "select_scatter": select_scatter,
    "slice_scatter": slice_scatter, "diagonal_scatter": diagonal_scatter, "__getitem__": getitem,
    "index_put": index_put,
}  # fmt: skip
