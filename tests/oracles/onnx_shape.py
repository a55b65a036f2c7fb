"""How ONNX's casts, movements, indexing, windows and running folds are written in our language."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import helper, numpy_helper

from tests.oracles.cases import NARROWED, Skip, number, vector
from tests.oracles.onnx_nodes import OnnxWriter
from tests.oracles.torch_shape import _mask, permuted, repeat
from tests.oracles.torch_windows import _back, _first_last, _padded

W = OnnxWriter
Adapter = Callable[..., str]
OURS = {"float32": "f32", "float64": "f32", "float16": "f32", "bfloat16": "bf16", "bool": "bool", "int32": "i32",
        "int64": "i64", "int8": "i32", "int16": "i32", "uint8": "i32", "uint16": "i32", "uint32": "i64",
        "uint64": "i64"}  # fmt: skip


def _ints(value: Any) -> list[int]:
    return [int(v) for v in np.asarray(value).reshape(-1)]


def _to(w: W, x: Any, dtype: np.dtype[Any]) -> str:
    name = dtype.name
    if name not in OURS:
        raise Skip(f"the dtype {name}")
    if name in NARROWED and NARROWED[name].startswith("int") and x.dtype.kind in "fV":
        raise Skip(f"a cast to {name}, which has bounds of its own")
    return f"(cast {w(x)} {OURS[name]})"


def cast(w: W, x: Any, to: int, saturate: int = 1, round_mode: str = "up") -> str:
    return _to(w, x, np.dtype(helper.tensor_dtype_to_np_dtype(to)))


def cast_like(w: W, x: Any, like: Any, saturate: int = 1, round_mode: str = "up") -> str:
    return _to(w, x, like.dtype)


def reshape(w: W, x: Any, shape: Any, allowzero: int = 0) -> str:
    sizes = _ints(shape)
    if not allowzero:
        sizes = [x.shape[i] if n == 0 else n for i, n in enumerate(sizes)]
    if -1 in sizes and math.prod(n for n in sizes if n >= 0) == 0:
        raise Skip("an open size beside a size of 0")
    return f"(reshape {w(x)} {vector(['_' if n < 0 else n for n in sizes])})"


def flatten(w: W, x: Any, axis: int = 1) -> str:
    a = axis % x.ndim if axis < 0 else axis
    return f"(reshape {w(x)} {vector([math.prod(x.shape[:a]), math.prod(x.shape[a:])])})"


def squeeze(w: W, x: Any, axes: Any = None) -> str:
    gone = {a % x.ndim for a in _ints(axes)} if axes is not None else {i for i, n in enumerate(x.shape) if n == 1}
    return f"(reshape {w(x)} {vector([n for i, n in enumerate(x.shape) if i not in gone])})"


def unsqueeze(w: W, x: Any, axes: Any) -> str:
    return f"(reshape {w(x)} {vector(np.expand_dims(x, tuple(_ints(axes))).shape)})"


def transpose(w: W, x: Any, perm: Any = None) -> str:
    return permuted(w, x, perm if perm is not None else range(x.ndim)[::-1])  # type: ignore[arg-type]


def concat(w: W, *xs: Any, axis: int) -> str:
    return f"(concat {vector([w(x) for x in xs])} :axis {axis})"


def expand(w: W, x: Any, shape: Any) -> str:
    return f"(broadcast {w(x)} {vector(np.broadcast_shapes(x.shape, tuple(_ints(shape))))})"


def tile(w: W, x: Any, times: Any) -> str:
    return repeat(w, x, _ints(times))  # type: ignore[arg-type]


def split(w: W, x: Any, sizes: Any = None, axis: int = 0, num_outputs: int | None = None, split: Any = None) -> str:
    given = sizes if sizes is not None else split
    n = x.shape[axis]
    if given is not None:
        parts = _ints(given)
    else:
        count = num_outputs or len(w.outputs)
        each = -(-n // count)
        parts = [max(0, min(each, n - i * each)) for i in range(count)]
    return f"(split {w(x)} {vector(parts)} :axis {axis})"


def slice_(w: W, x: Any, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> str:
    text = w(x)
    which = _ints(axes) if axes is not None else range(len(starts))
    strides = _ints(steps) if steps is not None else [1] * len(starts)
    for axis, start, end, step in zip(which, _ints(starts), _ints(ends), strides, strict=True):
        first, last, step = slice(start, end, step).indices(x.shape[axis])
        if step < 0:
            places = list(range(first, last, step))
            if not places:
                raise Skip("an empty slice that runs backwards")
            text = f"(reverse (slice {text} {places[-1]} {places[0] + 1} :axis {axis} :step 1) :axis {axis})"
            text = text if step == -1 else f"(slice {text} 0 {places[0] - places[-1] + 1} :axis {axis} :step {-step})"
        else:
            text = f"(slice {text} {first} {max(first, last)} :axis {axis} :step {step})"
    return text


def shape(w: W, x: Any, start: int = 0, end: int | None = None) -> str:
    sizes = list(x.shape[slice(start, end)])
    if not sizes:
        raise Skip("a vector of no sizes")
    first, last, _ = slice(start, end).indices(x.ndim)
    return f"(cast (slice (cast (shape {w(x)}) i64) {first} {last}) i64)"


def size(w: W, x: Any) -> str:
    return f"(full (i64) (size {w(x)}))"


def pad(w: W, x: Any, pads: Any, value: Any = None, axes: Any = None, mode: str = "constant") -> str:
    which = [a % x.ndim for a in _ints(axes)] if axes is not None else list(range(x.ndim))
    text, sizes, amounts = w(x), list(x.shape), _ints(pads)
    fill = float(value.reshape(-1)[0]) if value is not None and value.size else 0.0
    mode = {"edge": "replicate", "wrap": "circular"}.get(mode, mode)
    if fill and x.dtype.name != "float32":
        raise Skip("padding with a number other than 0 of another dtype than f32")
    for i, axis in enumerate(which):
        low, high = amounts[i], amounts[i + len(which)]
        text = _padded(text, sizes, axis, low, high, mode, fill)
        sizes[axis] += low + high
    return text


def trilu(w: W, x: Any, k: Any = None, upper: int = 1) -> str:
    n, m = x.shape[-2:]
    mask = f"(reshape {_mask(n, m, '>=' if upper else '<=', int(k) if k is not None else 0)} " \
           f"{vector([*[1] * (x.ndim - 2), n, m])})"  # fmt: skip
    return f"(where {mask} {w(x)} 0)"


def depth_to_space(w: W, x: Any, blocksize: int, mode: str = "DCR") -> str:
    inner = "(i j c)" if mode == "DCR" else "(c i j)"
    return f'(rearrange "b {inner} h w -> b c (h i) (w j)" {w(x)} :i {blocksize} :j {blocksize})'


def space_to_depth(w: W, x: Any, blocksize: int, mode: str = "DCR") -> str:
    inner = "(i j c)" if mode == "DCR" else "(c i j)"
    return f'(rearrange "b c (h i) (w j) -> b {inner} h w" {w(x)} :i {blocksize} :j {blocksize})'


def eye(w: W, x: Any, dtype: int | None = None, k: int = 0) -> str:
    return f"(cast {_mask(*x.shape, '=', k)} {OURS[w.outputs[0].dtype.name]})"


def constant_of_shape(w: W, x: Any, value: Any = None) -> str:
    made = numpy_helper.to_array(value) if value is not None else np.zeros(1, np.float32)
    return f"(full ({OURS[made.dtype.name]} {' '.join(map(str, x))}) {number(made.reshape(-1)[0].item())})"


def range_(w: W, start: Any, limit: Any, delta: Any) -> str:
    n = w.outputs[0].shape[0]
    dtype = OURS[start.dtype.name]
    return f"(+ {w(start)} (* {w(delta)} (iota ({dtype} {n}))))"


def reverse_sequence(w: W, x: Any, lengths: Any, batch_axis: int = 1, time_axis: int = 0) -> str:
    n, m = x.shape[batch_axis], x.shape[time_axis]
    places = np.array([[e - 1 - t if t < e else t for t in range(m)] for e in _ints(lengths)], np.int32)
    flat = (places + np.arange(n, dtype=np.int32)[:, None] * m).reshape(-1)
    names = [f"a{i}" for i in range(x.ndim)]
    b, t = names[batch_axis], names[time_axis]
    rest = [name for name in names if name not in (b, t)]
    there = f'(rearrange "{" ".join(names)} -> {" ".join([f"({b} {t})", *rest])}" {w(x)})'
    return f'(rearrange "{" ".join([f"({b} {t})", *rest])} -> {" ".join(names)}" (gather {there} {w(flat)}) :{b} {n})'


def center_crop_pad(w: W, x: Any, shape: Any, axes: Any = None) -> str:
    which = [a % x.ndim for a in _ints(axes)] if axes is not None else range(x.ndim)
    text = w(x)
    for axis, wanted in zip(which, _ints(shape), strict=True):
        n = x.shape[axis]
        if wanted < n:
            first = (n - wanted) // 2
            text = f"(slice {text} {first} {first + wanted} :axis {axis})"
        else:
            low = (wanted - n) // 2
            text = f"(pad {text} {low} {wanted - n - low} :axis {axis})"
    return text


SHAPES: dict[str, Adapter] = {
    "Cast": cast, "CastLike": cast_like, "Reshape": reshape, "Flatten": flatten, "Squeeze": squeeze,
    "Unsqueeze": unsqueeze, "Transpose": transpose, "Concat": concat, "Expand": expand, "Tile": tile, "Split": split,
    "Slice": slice_, "Shape": shape, "Size": size, "Trilu": trilu, "DepthToSpace": depth_to_space,
    "SpaceToDepth": space_to_depth, "EyeLike": eye, "ConstantOfShape": constant_of_shape, "Range": range_,
    "ReverseSequence": reverse_sequence, "CenterCropPad": center_crop_pad,
}  # fmt: skip


# Reading and writing by index.


def _from_start(index: Any, size: int) -> Any:
    """Places counted from the end, counted from the start; ours are so at run time."""
    return np.where(index < 0, index + size, index)


def gather(w: W, x: Any, index: Any, axis: int = 0) -> str:
    return f"(gather {w(x)} {w(_from_start(index, x.shape[axis]))} :axis {axis})"


def _flat_places(index: Any, sizes: Any, axis: int) -> Any:
    grid = list(np.indices(index.shape))
    grid[axis] = _from_start(index, sizes[axis])
    return np.ravel_multi_index(tuple(grid), sizes).astype(np.int32)


def gather_elements(w: W, x: Any, index: Any, axis: int = 0) -> str:
    return f"(gather (reshape {w(x)} [_]) {w(_flat_places(index, x.shape, axis % x.ndim))})"


def gather_nd(w: W, x: Any, index: Any, batch_dims: int = 0) -> str:
    if batch_dims:
        raise Skip("places within a batch")
    k = index.shape[-1]
    parts = tuple(_from_start(index[..., i], x.shape[i]) for i in range(k))
    flat = np.ravel_multi_index(parts, x.shape[:k]).astype(np.int32)
    return f"(gather (reshape {w(x)} {vector([math.prod(x.shape[:k]), *x.shape[k:]])}) {w(flat)})"


FOLDS = {"none": "set", "add": "add", "max": "max", "min": "min"}


def scatter_elements(w: W, x: Any, index: Any, value: Any, axis: int = 0, reduction: str = "none") -> str:
    if reduction not in FOLDS:
        raise Skip("a scatter that multiplies")
    flat = _flat_places(index, x.shape, axis % x.ndim).reshape(-1)
    return (f"(reshape (scatter (reshape {w(x)} [_]) {w(flat)} (reshape {w(value)} [_]) :fold {FOLDS[reduction]}) "
            f"{vector(x.shape)})")  # fmt: skip


def scatter_nd(w: W, x: Any, index: Any, value: Any, reduction: str = "none") -> str:
    if reduction not in FOLDS:
        raise Skip("a scatter that multiplies")
    k = index.shape[-1]
    parts = tuple(_from_start(index[..., i], x.shape[i]) for i in range(k))
    flat = np.ravel_multi_index(parts, x.shape[:k]).astype(np.int32).reshape(-1)
    rest = list(x.shape[k:])
    table, new = vector([math.prod(x.shape[:k]), *rest]), vector([flat.size, *rest])
    return (f"(reshape (scatter (reshape {w(x)} {table}) {w(flat)} (reshape {w(value)} {new}) "
            f":fold {FOLDS[reduction]}) {vector(x.shape)})")  # fmt: skip


def one_hot(w: W, index: Any, depth: Any, values: Any, axis: int = -1) -> str:
    n = int(depth.reshape(-1)[0])
    ids = index.astype(np.int64)
    ids = np.where(ids < 0, ids + n, ids)
    at = axis % (ids.ndim + 1)
    names = [f"a{i}" for i in range(ids.ndim)]
    target = [*names[:at], "v", *names[at:]]
    off, on = (f"(gather {w(values)} {i})" for i in (0, 1))
    return f'(where (!= (rearrange "{" ".join(names)} v -> {" ".join(target)}" (one-hot {w(ids)} {n})) 0) {on} {off})'


def tensor_scatter(w: W, past: Any, update: Any, at: Any = None, axis: int = -2, mode: str = "linear") -> str:
    a = axis % past.ndim
    begins = _ints(at) if at is not None else [0] * past.shape[0]
    rows = []
    for i, begin in enumerate(begins):
        places = [(begin + t) % past.shape[a] for t in range(update.shape[a])]
        at_places = f"(cast {vector(places)} i32) (gather {w(update)} {i})"
        rows.append(f"(scatter (gather {w(past)} {i}) {at_places} :axis {a - 1})")
    return f"(stack {vector(rows)})"


INDEX: dict[str, Adapter] = {
    "Gather": gather, "GatherElements": gather_elements, "GatherND": gather_nd, "ScatterElements": scatter_elements,
    "Scatter": scatter_elements, "ScatterND": scatter_nd, "OneHot": one_hot, "TensorScatter": tensor_scatter,
}  # fmt: skip


# Windows.


def _pads(sizes: Any, taps: Any, steps: Any, gaps: Any, pads: Any, auto: str) -> list[tuple[int, int]]:
    rank = len(taps)
    if auto in ("NOTSET", ""):
        return list(zip(pads[:rank], pads[rank:], strict=True)) if pads is not None else [(0, 0)] * rank
    if auto == "VALID":
        return [(0, 0)] * rank
    found = []
    for n, k, s, g in zip(sizes, taps, steps, gaps, strict=True):
        total = max(0, (-(-n // s) - 1) * s + g * (k - 1) + 1 - n)
        found.append((total // 2, total - total // 2) if auto == "SAME_UPPER" else (total - total // 2, total // 2))
    return found


def _pairs(pads: Any) -> str:
    return vector([vector(p) for p in pads])


def conv(w: W, x: Any, kernel: Any, bias: Any = None, auto_pad: str = "NOTSET", dilations: Any = None, group: int = 1,
         kernel_shape: Any = None, pads: Any = None, strides: Any = None) -> str:  # fmt: skip
    rank = x.ndim - 2
    steps, gaps = strides or [1] * rank, dilations or [1] * rank
    ends = _pads(x.shape[2:], kernel.shape[2:], steps, gaps, pads, auto_pad)
    text, _ = _first_last(w, x, rank)  # type: ignore[arg-type]
    made = (f'(conv {text} (rearrange "o i ... -> ... i o" {w(kernel)}) :stride {vector(steps)} :pad {_pairs(ends)} '
            f":dilation {vector(gaps)} :groups {group})")  # fmt: skip
    return _back(made if bias is None else f"(+ {made} {w(bias)})", False)


def conv_transpose(w: W, x: Any, kernel: Any, bias: Any = None, auto_pad: str = "NOTSET", dilations: Any = None,
                   group: int = 1, kernel_shape: Any = None, output_padding: Any = None, output_shape: Any = None,
                   pads: Any = None, strides: Any = None) -> str:  # fmt: skip
    rank = x.ndim - 2
    steps, gaps, more = strides or [1] * rank, dilations or [1] * rank, output_padding or [0] * rank
    wanted = w.outputs[0].shape[2:]
    text, _ = _first_last(w, x, rank)  # type: ignore[arg-type]
    kernel_text = f'(rearrange "(g i) o ... -> ... i (g o)" {w(kernel)} :g {group})'
    options = f":stride {vector(steps)} :dilation {vector(gaps)} :groups {group}"
    made = f"(conv {text} {kernel_text} :transposed true {options})"
    for i in range(rank):
        full = (x.shape[2 + i] - 1) * steps[i] + gaps[i] * (kernel.shape[2 + i] - 1) + 1
        total = full + more[i] - wanted[i]
        early = total // 2 if auto_pad in ("SAME_UPPER", "NOTSET") else total - total // 2
        low = pads[i] if pads is not None else max(0, early)
        if full < low + wanted[i]:
            made = f"(pad {made} 0 {low + wanted[i] - full} :axis {i + 1})"
        made = f"(slice {made} {low} {low + wanted[i]} :axis {i + 1})"
    return _back(made if bias is None else f"(+ {made} {w(bias)})", False)


def pool(kind: str) -> Adapter:
    def adapter(w: W, x: Any, kernel_shape: Any, auto_pad: str = "NOTSET", ceil_mode: int = 0,
                count_include_pad: int = 0, dilations: Any = None, pads: Any = None, storage_order: int = 0,
                strides: Any = None, p: int = 2) -> str:  # fmt: skip
        rank = x.ndim - 2
        if len(w.outputs) > 1:
            raise Skip("the places of a pool")
        steps, gaps = strides or [1] * rank, dilations or [1] * rank
        ends = _pads(x.shape[2:], kernel_shape, steps, gaps, pads, auto_pad)
        text, _ = _first_last(w, x, rank)  # type: ignore[arg-type]
        if x.dtype.kind in "iu":
            text = f"(cast {text} f32)"
        if kind == "lp":
            text = f"(pow (abs {text}) {float(p)!r})"
        if kind == "lp" or (kind == "mean" and count_include_pad):
            if ceil_mode:
                raise Skip("a mean over a window that hangs over padding that counts")
            for i, (low, high) in enumerate(ends):
                text = f"(pad {text} {low} {high} :axis {i + 1})"
            ends = [(0, 0)] * rank
        made = (f"(pool {text} :kind {'max' if kind == 'max' else 'mean'} :window {vector(kernel_shape)} "
                f":stride {vector(steps)} :dilation {vector(gaps)} :pad {_pairs(ends)} "
                f":ceil {number(bool(ceil_mode))})")  # fmt: skip
        if kind == "lp":
            made = f"(pow (* {float(math.prod(kernel_shape))!r} {made}) {1 / p!r})"
        made = f"(cast {made} i32)" if x.dtype.kind in "iu" else made
        return _back(made, False)

    return adapter


def whole(fold: str) -> Adapter:
    return lambda w, x: f"({fold} {w(x)} :axis {vector(range(2, x.ndim))} :keep true)"


WINDOWS: dict[str, Adapter] = {
    "Conv": conv, "ConvTranspose": conv_transpose, "MaxPool": pool("max"), "AveragePool": pool("mean"),
    "LpPool": pool("lp"), "GlobalAveragePool": whole("mean"), "GlobalMaxPool": whole("max"), "Pad": pad,
}  # fmt: skip


# Running folds, orders and recurrences.


def running(name: str, neutral: int) -> Adapter:
    def adapter(w: W, x: Any, axis: Any, exclusive: int = 0, reverse: int = 0) -> str:
        a = int(axis.reshape(-1)[0]) % x.ndim
        text = f"(reverse {w(x)} :axis {a})" if reverse else w(x)
        if exclusive:
            one = [1 if i == a else n for i, n in enumerate(x.shape)]
            first = f"(full ({OURS[x.dtype.name]} {' '.join(map(str, one))}) {neutral})"
            text = f"(concat [{first} (slice {text} 0 {x.shape[a] - 1} :axis {a})] :axis {a})"
        made = f"({name} {text} :axis {a})"
        return f"(reverse {made} :axis {a})" if reverse else made

    return adapter


def top_k(w: W, x: Any, k: Any, axis: int = -1, largest: int = 1, sorted: int = 1) -> str:
    n = int(k.reshape(-1)[0])
    if largest:
        return f"(top-k {w(x)} {n} :axis {axis})"
    return f"(let [[v i] (top-k (- {w(x)}) {n} :axis {axis})] [(- v) i])"


def scan(w: W, *xs: Any, body: Any, num_scan_inputs: int, **options: Any) -> str:
    """The bodies of these cases add what they read to what they carry, and emit it."""
    if options or any(x is None for x in xs) or [n.op_type for n in body.node] != ["Add", "Identity"]:
        raise Skip("a loop whose body is a graph of its own")
    carry, sequence = xs
    return f"(scan [c {w(carry)}] [r {w(sequence)}] (let [n (+ c r)] (next :c n :emit n)))"


def recurrent(kind: str) -> Adapter:
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[kind]

    def adapter(w: W, x: Any, weight: Any, again: Any, bias: Any = None, lengths: Any = None, first: Any = None,
                memory: Any = None, peepholes: Any = None, hidden_size: int = 0, layout: int = 0,
                direction: str = "forward", linear_before_reset: int = 0, **options: Any) -> str:  # fmt: skip
        if options or peepholes is not None:
            raise Skip("peepholes, or other functions of a recurrent cell")
        if lengths is not None and len(set(_ints(lengths))) > 1:
            raise Skip("sequences of several lengths in a batch")
        h = hidden_size
        batch = x.shape[0 if layout else 1]
        time = 1 if layout else 0
        made = []
        for d in range(weight.shape[0]):
            wd, rd = f"(gather {w(weight)} {d})", f"(gather {w(again)} {d})"
            bd = f"(gather {w(bias)} {d})" if bias is not None else f"(zeros (f32 {2 * gates * h}))"
            back = " :reverse true" if direction == "reverse" or d == 1 else ""
            cells = _cell(kind, h, linear_before_reset)
            begin = f"(gather {w(first)} {d})" if first is not None else f"(zeros (f32 {batch} {h}))"
            carry = f"h {begin}" + (f" c (zeros (f32 {batch} {h}))" if kind == "LSTM" else "")
            made.append(f"(let [w {wd} r {rd} b {bd} [wb rb] (split b 2)] "
                        f"(scan [{carry}] [x {w(x)}] :axis {time}{back} {cells}))")  # fmt: skip
        return _arranged(w, kind, made, layout)

    return adapter


def _cell(kind: str, h: int, after: int) -> str:
    given = '(+ (product "b i, g i -> b g" x w) wb)'
    kept = '(+ (product "b i, g i -> b g" h r) rb)'
    if kind == "RNN":
        return f"(let [n (tanh (+ {given} {kept}))] (next :h n :emit n))"
    if kind == "LSTM":
        return (f"(let [[i o f g] (split (+ {given} {kept}) 4 :axis 1) "
                f"n (+ (* (sigmoid f) c) (* (sigmoid i) (tanh g))) "
                f"y (* (sigmoid o) (tanh n))] (next :h y :c n :emit y))")  # fmt: skip
    last = f'(+ (product "b i, g i -> b g" (* s h) (slice r {2 * h})) (slice rb {2 * h}))'
    if after:
        last = f'(* s (+ (product "b i, g i -> b g" h (slice r {2 * h})) (slice rb {2 * h})))'
    return (f"(let [a {given} k {kept} z (sigmoid (+ (slice a 0 {h} :axis 1) (slice k 0 {h} :axis 1))) "
            f"s (sigmoid (+ (slice a {h} {2 * h} :axis 1) (slice k {h} {2 * h} :axis 1))) "
            f"n (tanh (+ (slice a {2 * h} :axis 1) {last})) y (+ (* (- 1.0 z) n) (* z h))] "
            f"(next :h y :emit y))")  # fmt: skip


def _arranged(w: W, kind: str, made: list[str], layout: int) -> str:
    """The outputs that the case has: every state (t d b h), or the last ones (d b h)."""
    last = 2 if kind == "LSTM" else 1
    names = [f"r{i}" for i in range(len(made))]
    bound = " ".join(f"{n} {text}" for n, text in zip(names, made, strict=True))
    every = f"(stack {vector([f'(nth {n} {last})' for n in names])} :axis {2 if layout else 1})"
    final = f"(stack {vector([f'(nth {n} 0)' for n in names])} :axis {1 if layout else 0})"
    memory = final.replace("(nth r0 0)", "(nth r0 1)").replace("(nth r1 0)", "(nth r1 1)")
    ends = iter([final, memory])
    parts = [every if o.ndim == 4 else next(ends) for o in w.outputs]
    return f"(let [{bound}] {parts[0] if len(parts) == 1 else vector(parts)})"


RUNNING: dict[str, Adapter] = {
    "CumSum": running("cumsum", 0), "CumProd": running("cumprod", 1), "TopK": top_k, "Scan": scan,
    "RNN": recurrent("RNN"), "GRU": recurrent("GRU"), "LSTM": recurrent("LSTM"),
}  # fmt: skip

SHAPE: dict[str, dict[str, Adapter]] = {
    "casts and shape": SHAPES, "gather, scatter, one-hot": INDEX, "convolutions, pools, pads": WINDOWS,
    "running folds, orders, recurrences": RUNNING,
}  # fmt: skip
