"""How PyTorch's movements of elements are written in our language."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch

from tests.oracles.cases import Adapter, Skip, number, vector
from tests.oracles.opinfo import TorchWriter
from tests.oracles.torch_elementwise import options

W = TorchWriter


def _letters(rank: int) -> list[str]:
    return [f"a{i}" for i in range(rank)]


def permuted(w: W, x: Any, order: Any) -> str:
    """x with its axes in another order."""
    names = _letters(x.ndim)
    return f'(rearrange "{" ".join(names)} -> {" ".join(names[i] for i in order)}" {w(x)})' if x.ndim else w(x)


def _flat(values: Any) -> list[int]:
    """Sizes given one by one or as one tuple."""
    if len(values) == 1 and isinstance(values[0], list | tuple | torch.Size):
        values = values[0]
    return [int(v) for v in values]


def reshape(w: W, x: Any, *shape: Any) -> str:
    sizes = _flat(shape)
    known = math.prod(n for n in sizes if n >= 0)
    if -1 in sizes and known == 0:
        raise Skip("an open size beside a size of 0")
    return f"(reshape {w(x)} {vector(['_' if n < 0 else n for n in sizes])})"


def expand(w: W, x: Any, *shape: Any) -> str:
    sizes = _flat(shape)
    offset = len(sizes) - x.ndim
    return f"(broadcast {w(x)} {vector([x.shape[i - offset] if n < 0 else n for i, n in enumerate(sizes)])})"


def transpose(w: W, x: Any, a: int, b: int) -> str:
    order = list(range(x.ndim))
    if x.ndim:
        a, b = a % x.ndim, b % x.ndim
        order[a], order[b] = order[b], order[a]
    return permuted(w, x, order)


def movedim(w: W, x: Any, source: Any, destination: Any) -> str:
    return permuted(w, x, _moved(x.ndim, source, destination))


def _moved(rank: int, source: Any, destination: Any) -> list[int]:
    sources = [source] if isinstance(source, int) else list(source)
    targets = [destination] if isinstance(destination, int) else list(destination)
    sources, targets = [s % rank for s in sources], [t % rank for t in targets]
    rest = iter(i for i in range(rank) if i not in sources)
    placed = dict(zip(targets, sources, strict=True))
    return [placed[i] if i in placed else next(rest) for i in range(rank)]


def flip(w: W, x: Any, *given: Any, dims: Any = None) -> str:
    axes = _flat(given) if dims is None else _flat([dims])
    return f"(reverse {w(x)} :axis {vector(axes)})" if axes else w(x)


def roll_text(text: str, n: int, shift: int, axis: int) -> str:
    """An expression rolled along an axis of n places."""
    at = (-shift) % n if n else 0
    if at == 0:
        return text
    return f"(let [r {text}] (concat [(slice r {at} :axis {axis}) (slice r 0 {at} :axis {axis})] :axis {axis}))"


def roll(w: W, x: Any, shifts: Any, dims: Any = None) -> str:
    text = w(x)
    if dims is None or dims == ():
        shift = shifts if isinstance(shifts, int) else shifts[0]
        return f"(reshape {roll_text(f'(reshape {text} [_])', x.numel(), shift, 0)} {vector(x.shape)})"
    pairs = zip(*[[v] if isinstance(v, int) else v for v in (shifts, dims)], strict=True)
    for shift, axis in pairs:
        text = roll_text(text, x.shape[axis], shift, axis)
    return text


def rot90(w: W, x: Any, k: int = 1, dims: Any = (0, 1)) -> str:
    a, b = dims[0] % x.ndim, dims[1] % x.ndim
    order = list(range(x.ndim))
    order[a], order[b] = order[b], order[a]
    turned = permuted(w, x, order)
    return [w(x), f"(reverse {turned} :axis {a})", f"(reverse {w(x)} :axis {vector([a, b])})",
            f"(reverse {turned} :axis {b})"][k % 4]  # fmt: skip


def squeeze(w: W, x: Any, dim: Any = None) -> str:
    dims = range(x.ndim) if dim is None else [dim] if isinstance(dim, int) else dim
    gone = {d % x.ndim for d in dims if x.ndim and x.shape[d] == 1}
    return f"(reshape {w(x)} {vector([n for i, n in enumerate(x.shape) if i not in gone])})"


def unsqueeze(w: W, x: Any, dim: int) -> str:
    at = dim % (x.ndim + 1)
    return f"(reshape {w(x)} {vector([*x.shape[:at], 1, *x.shape[at:]])})"


def _parts(w: W, parts: Any) -> str:
    return vector([w(p) for p in parts])


def cat(w: W, parts: Any, dim: int = 0) -> str:
    if len({p.ndim for p in parts}) > 1:
        raise Skip("an empty vector beside tensors of another rank")
    return f"(concat {_parts(w, parts)} :axis {dim})"


def stack(w: W, parts: Any, dim: int = 0) -> str:
    return f"(stack {_parts(w, parts)} :axis {dim})"


def lifted(w: W, x: Any, rank: int) -> str:
    """x with at least so many axes, as `atleast_nd` adds them."""
    shape = list(x.shape)
    if rank == 1 and not shape:
        shape = [1]
    if rank >= 2 and len(shape) < 2:
        shape = [1, *shape] if shape else [1, 1]
    if rank == 3 and len(shape) < 3:
        shape = [*shape, 1]
    return f"(reshape {w(x)} {vector(shape)})"


def atleast(rank: int) -> Adapter:
    def adapter(w: W, x: Any, *more: Any) -> str:
        parts = x if isinstance(x, list | tuple) else [x, *more]
        made = [lifted(w, p, rank) for p in parts]
        return made[0] if len(made) == 1 else vector(made)

    return adapter


def joined(rank: int, axis: int) -> Adapter:
    def adapter(w: W, parts: Any) -> str:
        at = 0 if rank == 1 and parts[0].ndim <= 1 else axis
        return f"(concat {vector([lifted(w, p, rank) for p in parts])} :axis {at})"

    return adapter


def column_stack(w: W, parts: Any) -> str:
    made = [f"(reshape {w(p)} [{p.numel()} 1])" if p.ndim <= 1 else w(p) for p in parts]
    return f"(concat {vector(made)} :axis 1)"


def chunk(w: W, x: Any, chunks: int, dim: int = 0) -> str:
    return split(w, x, -(-x.shape[dim] // chunks), dim)


def split(w: W, x: Any, size: Any, dim: int = 0) -> str:
    n = x.shape[dim]
    sizes = list(size) if isinstance(size, list | tuple) else [min(size, n - i) for i in range(0, n, size)]
    made = f"(split {w(x)} {vector(sizes)} :axis {dim})"
    return made if len(sizes) > 1 else f"(nth {made} 0)"


def tensor_split(w: W, x: Any, indices: Any, dim: int = 0) -> str:
    n = x.shape[dim]
    if isinstance(indices, torch.Tensor):
        indices = indices.tolist()
    if isinstance(indices, int):
        small, extra = divmod(n, indices)
        sizes = [small + (i < extra) for i in range(indices)]
    else:
        cuts = [0, *[min(max(i if i >= 0 else i + n, 0), n) for i in indices], n]
        sizes = [max(0, b - a) for a, b in pairwise(cuts)]
        if sum(sizes) != n:
            raise Skip("cuts that run backwards")
    made = f"(split {w(x)} {vector(sizes)} :axis {dim})"
    return made if len(sizes) > 1 else f"(nth {made} 0)"


def narrow(w: W, x: Any, dim: int, start: Any, length: int) -> str:
    start = int(start)
    start += x.shape[dim] if start < 0 else 0
    return f"(slice {w(x)} {start} {start + length} :axis {dim})"


def select(w: W, x: Any, dim: int, index: int) -> str:
    return f"(gather {w(x)} {index} :axis {dim})"


def slice_(w: W, x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> str:
    first, last, step = slice(start, end, step).indices(x.shape[dim])
    return f"(slice {w(x)} {first} {max(first, last)} :axis {dim} :step {step})"


def repeat(w: W, x: Any, *sizes: Any) -> str:
    times = _flat(sizes)
    shape = [1] * (len(times) - x.ndim) + list(x.shape)
    between = [n for pair in zip([1] * len(times), shape, strict=True) for n in pair]
    wide = [n for pair in zip(times, shape, strict=True) for n in pair]
    flat = [a * b for a, b in zip(times, shape, strict=True)]
    return f"(reshape (broadcast (reshape {w(x)} {vector(between)}) {vector(wide)}) {vector(flat)})"


def tile(w: W, x: Any, *sizes: Any) -> str:
    dims = _flat(sizes)
    return repeat(w, x, [1] * (x.ndim - len(dims)) + list(dims))


def repeat_interleave(w: W, x: Any, repeats: Any, dim: int | None = None, output_size: int | None = None) -> str:
    text, shape = (f"(reshape {w(x)} [_])", [x.numel()]) if dim is None else (w(x), list(x.shape))
    axis = (dim or 0) % max(1, len(shape))
    if isinstance(repeats, torch.Tensor):
        if repeats.numel() > 1:
            places = [i for i, n in enumerate(repeats.tolist()) for _ in range(n)]
            return f"(gather {text} (cast {vector(places)} i32) :axis {axis})"
        repeats = int(repeats)
    wide = [*shape[: axis + 1], repeats, *shape[axis + 1 :]]
    flat = [n * repeats if i == axis else n for i, n in enumerate(shape)]
    between = [*shape[: axis + 1], 1, *shape[axis + 1 :]]
    return f"(reshape (broadcast (reshape {text} {vector(between)}) {vector(wide)}) {vector(flat)})"


def flatten(w: W, x: Any, start_dim: int = 0, end_dim: int = -1) -> str:
    if x.ndim == 0:
        return f"(reshape {w(x)} [1])"
    a, b = start_dim % x.ndim, end_dim % x.ndim
    return f"(reshape {w(x)} {vector([*x.shape[:a], math.prod(x.shape[a : b + 1]), *x.shape[b + 1 :]])})"


def unflatten(w: W, x: Any, dim: int, sizes: Any) -> str:
    a = dim % x.ndim
    known = math.prod(n for n in sizes if n >= 0)
    whole = [x.shape[a] // known if n < 0 else n for n in sizes]
    return f"(reshape {w(x)} {vector([*x.shape[:a], *whole, *x.shape[a + 1 :]])})"


def unbind(w: W, x: Any, dim: int = 0) -> str:
    if x.shape[dim] == 1:
        return f"(nth (unstack {w(x)} :axis {dim}) 0)"
    return f"(unstack {w(x)} :axis {dim})"


def diagonal(w: W, x: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> str:
    """A diagonal is a gather from the two axes made one."""
    a, b = dim1 % x.ndim, dim2 % x.ndim
    order = [*(i for i in range(x.ndim) if i not in (a, b)), a, b]
    n, m = x.shape[a], x.shape[b]
    rows, columns = max(0, -offset), max(0, offset)
    count = max(0, min(n - rows, m - columns))
    if count == 0:
        raise Skip("an empty diagonal")
    lead = vector([*(x.shape[i] for i in order[:-2]), n * m])
    places = f"(+ (* (iota (i32 {count})) {m + 1}) {rows * m + columns})"
    return f"(gather (reshape {permuted(w, x, order)} {lead}) {places} :axis -1)"


def _mask(n: int, m: int, op: str, offset: int) -> str:
    return f"({op} (iota (i32 {n} {m}) :axis 1) (+ (iota (i32 {n} {m}) :axis 0) {offset}))"


def triangle(op: str) -> Adapter:
    def adapter(w: W, x: Any, diagonal: int = 0) -> str:
        n, m = x.shape[-2:]
        lead = vector([*[1] * (x.ndim - 2), n, m])
        return f"(where (reshape {_mask(n, m, op, diagonal)} {lead}) {w(x)} 0.0)"

    return adapter


def diag_embed(w: W, x: Any, offset: int = 0, dim1: int = -2, dim2: int = -1) -> str:
    k = x.shape[-1]
    n, rank = k + abs(offset), x.ndim + 1
    low = max(0, -offset)
    lead = [*x.shape[:-1]]
    rows = f"(pad {w(x)} {low} {n - k - low} :axis -1)"
    wide = f"(broadcast (reshape {rows} {vector([*lead, n, 1])}) {vector([*lead, n, n])})"
    mask = f"(reshape {_mask(n, n, '=', offset)} {vector([*[1] * len(lead), n, n])})"
    made = f"(where {mask} {wide} 0.0)"
    a, b = dim1 % rank, dim2 % rank
    names = _letters(len(lead))
    target = list(names)
    for at, name in sorted([(a, "r"), (b, "c")]):
        target.insert(at, name)
    if (a, b) == (rank - 2, rank - 1):
        return made
    return f'(rearrange "{" ".join(names)} r c -> {" ".join(target)}" {made})'


def diag(w: W, x: Any, diagonal_: int = 0) -> str:
    return diag_embed(w, x, diagonal_) if x.ndim == 1 else diagonal(w, x, diagonal_)


def meshgrid(w: W, x: Any, *more: Any, indexing: str = "ij") -> str:
    parts = x if isinstance(x, list | tuple) else [x, *more]
    sizes = [p.numel() for p in parts]
    order = list(range(len(parts)))
    if indexing == "xy" and len(parts) > 1:
        order[0], order[1] = 1, 0
    shape = [sizes[i] for i in order]
    made = []
    for i, p in enumerate(parts):
        own = vector([sizes[i] if j == i else 1 for j in order])
        made.append(f"(broadcast (reshape {w(p)} {own}) {vector(shape)})")
    return made[0] if len(made) == 1 else vector(made)


def block_diag(w: W, *parts: Any) -> str:
    made = []
    shapes = [(1, p.numel()) if p.ndim < 2 else tuple(p.shape) for p in parts]
    width, at = sum(m for _, m in shapes), 0
    for p, (n, m) in zip(parts, shapes, strict=True):
        made.append(f"(pad (reshape {w(p)} [{n} {m}]) {at} {width - at - m} :axis 1)")
        at += m
    return f"(concat {vector(made)} :axis 0)"


def unfold(w: W, x: Any, dimension: int, size: int, step: int) -> str:
    if x.ndim == 0:
        return f"(reshape {w(x)} [1])"
    axis = dimension % x.ndim
    count = (x.shape[axis] - size) // step + 1
    parts = [f"(slice x {i * step} {i * step + size} :axis {axis})" for i in range(count)]
    names = _letters(x.ndim)
    moved = [*(n for i, n in enumerate(names) if i != axis), names[axis]]
    turned = [f'(rearrange "{" ".join(names)} -> {" ".join(moved)}" {p})' for p in parts]
    return f"(let [x {w(x)}] (stack {vector(turned)} :axis {axis}))"


def pixel_shuffle(w: W, x: Any, upscale_factor: int) -> str:
    if x.numel() == 0:
        raise Skip("sizes of 0 that a notation cannot infer")
    r = upscale_factor
    return f'(rearrange "... (c i j) h w -> ... c (h i) (w j)" {w(x)} :i {r} :j {r})'


def pixel_unshuffle(w: W, x: Any, downscale_factor: int) -> str:
    if x.numel() == 0:
        raise Skip("sizes of 0 that a notation cannot infer")
    r = downscale_factor
    return f'(rearrange "... c (h i) (w j) -> ... (c i j) h w" {w(x)} :i {r} :j {r})'


def filled(text: str) -> Adapter:
    def adapter(w: W, x: Any, *args: Any, dtype: Any = None, **ignored: Any) -> str:
        if dtype not in (None, torch.float32, torch.float64):
            raise Skip(f"a tensor of {dtype}")
        return text.format(x=w(x), v=number(float(args[0])) if args and not isinstance(args[0], tuple | list) else "")

    return adapter


def to(w: W, x: Any, *args: Any, **ignored: Any) -> str:
    if any(isinstance(a, torch.dtype) and a not in (torch.float32, torch.float64) for a in args):
        raise Skip("a cast to a dtype that we lack")
    return w(x)


def cast(name: str) -> Adapter:
    return lambda w, x, **ignored: f"(cast {w(x)} {name})"


def renorm_free(w: W, x: Any, **ignored: Any) -> str:
    return w(x)


SHAPE: dict[str, Adapter] = {
    "reshape": reshape, "view": reshape, "view_copy": reshape, "reshape_as": lambda w, x, y: reshape(w, x, y.shape),
    "view_as": lambda w, x, y: reshape(w, x, y.shape), "permute": lambda w, x, *d: permuted(w, x, _flat(d)),
    "permute_copy": lambda w, x, *d: permuted(w, x, _flat(d)), "transpose": transpose, "transpose_copy": transpose,
    "T": lambda w, x: permuted(w, x, range(x.ndim)[::-1]), "t": lambda w, x: permuted(w, x, range(x.ndim)[::-1]),
    "t_copy": lambda w, x: permuted(w, x, range(x.ndim)[::-1]), "H": lambda w, x: permuted(w, x, range(x.ndim)[::-1]),
    "mT": lambda w, x: transpose(w, x, -1, -2), "mH": lambda w, x: transpose(w, x, -1, -2), "movedim": movedim,
    "expand": expand, "expand_copy": expand, "expand_as": lambda w, x, y: expand(w, x, y.shape),
    "broadcast_to": expand, "flip": flip, "fliplr": lambda w, x: flip(w, x, 1), "flipud": lambda w, x: flip(w, x, 0),
    "roll": roll, "rot90": rot90, "squeeze": squeeze, "squeeze.multiple": squeeze, "squeeze_copy": squeeze,
    "unsqueeze": unsqueeze, "unsqueeze_copy": unsqueeze, "cat": cat, "stack": stack, "hstack": joined(1, 1),
    "vstack": joined(2, 0), "dstack": joined(3, 2), "column_stack": column_stack, "atleast_1d": atleast(1),
    "atleast_2d": atleast(2), "atleast_3d": atleast(3), "chunk": chunk, "unsafe_chunk": chunk, "split": split,
    "split.list_args": split, "unsafe_split": split, "split_with_sizes": split, "split_with_sizes_copy": split,
    "tensor_split": tensor_split, "hsplit": lambda w, x, n: tensor_split(w, x, n, 1 if x.ndim > 1 else 0),
    "vsplit": lambda w, x, n: tensor_split(w, x, n, 0), "dsplit": lambda w, x, n: tensor_split(w, x, n, 2),
    "narrow": narrow, "narrow_copy": narrow, "select": select, "slice": slice_, "repeat": repeat, "tile": tile,
    "repeat_interleave": repeat_interleave, "flatten": flatten, "ravel": lambda w, x: flatten(w, x),
    "unflatten": unflatten, "unbind": unbind, "unbind_copy": unbind, "diagonal": diagonal, "diagonal_copy": diagonal,
    "linalg.diagonal": lambda w, x, offset=0, dim1=-2, dim2=-1: diagonal(w, x, offset, dim1, dim2),
    "tril": triangle("<="), "triu": triangle(">="), "diag": diag, "diag_embed": diag_embed,
    "meshgrid.variadic_tensors": meshgrid, "meshgrid.list_of_tensors": meshgrid, "block_diag": block_diag,
    "unfold": unfold, "unfold_copy": unfold, "nn.functional.pixel_shuffle": pixel_shuffle,
    "nn.functional.pixel_unshuffle": pixel_unshuffle, "zeros_like": filled("(zeros-like {x})"),
    "ones_like": filled("(ones-like {x})"), "full_like": filled("(full (type-of {x}) {v})"), "clone": renorm_free,
    "contiguous": renorm_free, "to": to, "float": cast("f32"), "double": cast("f32"),
    "bfloat16": options(cast("bf16"), forward=True),
    "bool": cast("bool"), "int": cast("i32"), "long": cast("i64"), "alias_copy": renorm_free,
}  # fmt: skip
