"""How JAX's elementwise primitives, reductions, orders and movements are written in our language."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.oracles.cases import ArrayWriter, Skip, vector
from tests.oracles.jax_harnesses import Adapter, Known, dtype_of

W = ArrayWriter


def unary(form: str) -> Adapter:
    """An expression of `x`."""
    return lambda w, x, **ignored: f"(let [x {x.text}] {form})"


def binary(form: str) -> Adapter:
    """An expression of `x` and `y`, which have one shape."""
    return lambda w, x, y, **ignored: f"(let [x {x.text} y {y.text}] {form})"


def cast(text: str, dtype: Any) -> str:
    """An expression in the dtype of a NumPy array."""
    if np.dtype(dtype).name == "float16":
        raise Skip("the dtype float16")
    return f"(cast {text} {dtype_of(dtype)})"


def convert(w: W, x: Known, new_dtype: Any, **ignored: Any) -> str:
    dtype = np.dtype(new_dtype)
    if x.array.dtype.kind in "fV" and dtype.kind in "iu" and not _fits(x.array, dtype):
        raise Skip("a cast of floats outside the integers")
    return cast(x.text, dtype)


def _fits(array: Any, dtype: Any) -> bool:
    wide = array.astype(np.float64)
    bounds = np.iinfo(dtype)
    return bool(np.all((wide > bounds.min - 1.0) & (wide < bounds.max + 1.0)))


def integer_pow(w: W, x: Known, y: int) -> str:
    if y == 0:
        return f"(ones-like {x.text})"
    product = " ".join(["x"] * abs(y))
    made = f"(* {product})" if abs(y) > 1 else "x"
    wide = f"(let [x (cast {x.text} f32)] {made if y > 0 else f'(/ 1.0 {made})'})"
    return cast(wide, x.array.dtype) if x.array.dtype.kind in "fV" else f"(let [x {x.text}] {made})"


def power(w: W, x: Known, y: Known, **ignored: Any) -> str:
    if x.dtype != y.dtype:
        return f"(pow {x.text} (cast {y.text} {x.dtype}))"
    return f"(pow {x.text} {y.text})"


def remainder(w: W, x: Known, y: Known) -> str:
    """The sign is that of x."""
    if x.array.dtype.kind in "iu":
        return f"(let [x {x.text} y {y.text}] (* (sign x) (rem (abs x) (abs y))))"
    return cast(f"(let [x (cast {x.text} f32) y (cast {y.text} f32) q (/ x y)] "
                f"(- x (* y (stop-gradient (* (sign q) (floor (abs q)))))))", x.array.dtype)  # fmt: skip


def division(w: W, x: Known, y: Known) -> str:
    if x.array.dtype.kind in "iu":
        return f"(let [x {x.text} y {y.text}] (* (* (sign x) (sign y)) (quotient (abs x) (abs y))))"
    return f"(/ {x.text} {y.text})"


def rounded(w: W, x: Known, rounding_method: Any) -> str:
    if int(rounding_method) == 1:
        return f"(round {x.text})"
    half = "(where (>= (- a f) 0.5) 1.0 0.0)"
    return cast(f"(let [x (cast {x.text} f32) a (abs x) f (floor a)] (* (sign x) (+ f {half})))", x.array.dtype)


def select(w: W, which: Known, *options: Known) -> str:
    if which.array.dtype == bool:
        return f"(where {which.text} {options[1].text} {options[0].text})"
    text = options[-1].text
    for i in reversed(range(len(options) - 1)):
        text = f"(where (= {which.text} {i}) {options[i].text} {text})"
    return text


def clamp(w: W, low: Known, x: Known, high: Known) -> str:
    if (low.array > high.array).any():
        raise Skip("bounds that cross")
    return f"(minimum (maximum {x.text} {low.text}) {high.text})"


def precision(w: W, x: Known, exponent_bits: int, mantissa_bits: int) -> str:
    if (exponent_bits, mantissa_bits) == (8, 7):
        return cast(f"(cast {x.text} bf16)", x.array.dtype)
    if (exponent_bits, mantissa_bits) == (8, 23) or (exponent_bits, mantissa_bits) == (11, 52):
        return x.text
    raise Skip("a rounding to a dtype that we lack")


MATH: dict[str, Adapter] = {
    **{name: unary(f"({name} x)") for name in ("abs", "sign", "floor", "ceil", "exp", "log", "expm1", "log1p", "tanh",
                                               "sin", "cos", "sqrt", "rsqrt", "erf")},
    "neg": unary("(- x)"), "tan": unary("(/ (sin x) (cos x))"), "logistic": unary("(sigmoid x)"),
    "sinh": unary("(let [y (cast x f32)] (cast (/ (- (expm1 y) (expm1 (- y))) 2.0) (dtype x)))"),
    "cosh": unary("(let [y (cast x f32)] (cast (/ (+ (exp y) (exp (- y))) 2.0) (dtype x)))"),
    "asinh": unary("(let [z (cast x f32) y (abs z)] (cast (* (sign z) (log1p (+ y (/ (* y y) (+ 1.0 (sqrt (+ 1.0 "
                   "(* y y)))))))) (dtype x)))"),
    "acosh": unary("(let [y (cast x f32)] (cast (log (+ y (sqrt (- (* y y) 1.0)))) (dtype x)))"),
    "atanh": unary("(let [y (cast x f32)] (cast (* 0.5 (- (log1p y) (log1p (- y)))) (dtype x)))"),
    "cbrt": unary("(let [y (cast x f32)] (cast (* (sign y) (pow (abs y) 0.3333333333333333)) (dtype x)))"),
    "erfc": unary("(let [y (cast x f32)] (cast (- 1.0 (erf y)) (dtype x)))"),
    "erf_inv": unary("(let [y (cast x f32)] (cast (where (< (abs y) 1.0) (erf-inverse (where (< (abs y) 1.0) y 0.0)) "
                     "(where (= (abs y) 1.0) (* (sign y) inf) nan)) (dtype x)))"),
    "is_finite": unary("(is-finite x)"), "square": unary("(* x x)"), "not": unary("(not x)"), "copy": unary("x"),
    "copy_p": unary("x"), "device_put": lambda w, *xs, **ignored: [x.text for x in xs], "stop_gradient": unary("x"),
    "exp2": unary("(exp (* x 0.6931471805599453))"),
    "add": binary("(+ x y)"), "sub": binary("(- x y)"), "mul": binary("(* x y)"), "add_any": binary("(+ x y)"),
    "max": binary("(maximum x y)"), "min": binary("(minimum x y)"), "div": division, "rem": remainder, "pow": power,
    "eq": binary("(= x y)"), "ne": binary("(!= x y)"), "lt": binary("(< x y)"), "le": binary("(<= x y)"),
    "gt": binary("(> x y)"), "ge": binary("(>= x y)"), "and": binary("(and x y)"), "or": binary("(or x y)"),
    "integer_pow": integer_pow, "round": rounded, "select_n": select, "clamp": clamp, "reduce_precision": precision,
    "convert_element_type": convert,
}  # fmt: skip


# Movements.


def broadcast_in_dim(w: W, x: Known, shape: Sequence[int], broadcast_dimensions: Sequence[int], **ignored: Any) -> str:
    wide = [1] * len(shape)
    for at, n in zip(broadcast_dimensions, x.shape, strict=True):
        wide[at] = n
    return f"(broadcast (reshape {x.text} {vector(wide)}) {vector(shape)})"


def reshape(w: W, x: Known, new_sizes: Sequence[int], dimensions: Any = None, **ignored: Any) -> str:
    text = transposed(x.text, x.ndim, dimensions) if dimensions is not None else x.text
    return f"(reshape {text} {vector(new_sizes)})"


def squeeze(w: W, x: Known, dimensions: Sequence[int]) -> str:
    gone = {d % x.ndim for d in dimensions}
    return f"(reshape {x.text} {vector([n for i, n in enumerate(x.shape) if i not in gone])})"


def transposed(text: str, rank: int, order: Sequence[int]) -> str:
    """An expression with its axes in another order."""
    names = [f"a{i}" for i in range(rank)]
    return f'(rearrange "{" ".join(names)} -> {" ".join(names[i] for i in order)}" {text})' if rank else text


def transpose(w: W, x: Known, permutation: Sequence[int]) -> str:
    return transposed(x.text, x.ndim, permutation)


def reverse(w: W, x: Known, dimensions: Sequence[int]) -> str:
    return f"(reverse {x.text} :axis {vector(dimensions)})" if dimensions else x.text


def concatenate(w: W, *xs: Known, dimension: int) -> str:
    return f"(concat {vector([x.text for x in xs])} :axis {dimension})"


def iota(w: W, dtype: Any, shape: Sequence[int], dimension: int, **ignored: Any) -> str:
    return f"(iota ({dtype_of(dtype)} {' '.join(map(str, shape))}) :axis {dimension})"


def padded(text: str, shape: Sequence[int], dtype: str, config: Any, value: str) -> str:
    """Low, high and interior padding by a number, axis by axis; less than none cuts."""
    sizes = list(shape)

    def block(axis: int, count: int) -> str:
        wide = [count if i == axis else n for i, n in enumerate(sizes)]
        return f"(full ({dtype} {' '.join(map(str, wide))}) {value})"

    for axis, (low, high, between) in enumerate(config):
        n = sizes[axis]
        if between and n > 1:
            sizes.insert(axis + 1, 1)
            text = f"(reshape {text} {vector(sizes)})"
            text = f"(concat [{text} {block(axis + 1, between)}] :axis {axis + 1})"
            del sizes[axis + 1]
            sizes[axis] = n * (between + 1)
            text = f"(slice (reshape {text} {vector(sizes)}) 0 {sizes[axis] - between} :axis {axis})"
            sizes[axis] -= between
        parts = [block(axis, low) if low > 0 else "", text, block(axis, high) if high > 0 else ""]
        if low > 0 or high > 0:
            text = f"(concat {vector([p for p in parts if p])} :axis {axis})"
            sizes[axis] += max(0, low) + max(0, high)
        if low < 0 or high < 0:
            text = f"(slice {text} {max(0, -low)} {sizes[axis] - max(0, -high)} :axis {axis})"
            sizes[axis] -= max(0, -low) + max(0, -high)
    return text


def pad(w: W, x: Known, value: Known, padding_config: Any) -> str:
    return padded(x.text, x.shape, x.dtype, padding_config, value.text)


def slice_(w: W, x: Known, start_indices: Any, limit_indices: Any, strides: Any) -> str:
    text = x.text
    for axis, (a, b) in enumerate(zip(start_indices, limit_indices, strict=True)):
        step = strides[axis] if strides is not None else 1
        if (a, b, step) != (0, x.shape[axis], 1):
            text = f"(slice {text} {a} {b} :axis {axis} :step {step})"
    return text


def _begins(x: Known, starts: Sequence[Known], sizes: Sequence[int]) -> list[int]:
    """Where a dynamic slice begins: moved inside where it would hang over."""
    return [min(max(int(s.array), 0), n - k) for s, n, k in zip(starts, x.shape, sizes, strict=True)]


def dynamic_slice(w: W, x: Known, *starts: Known, slice_sizes: Sequence[int]) -> str:
    """At run time the places are a tensor: they are gathered axis by axis."""
    text = x.text
    for axis, (s, n, k) in enumerate(zip(starts, x.shape, slice_sizes, strict=True)):
        if n == 0:
            raise Skip("a read from an empty axis, which we refuse")
        if k == 0:
            text = f"(slice {text} 0 0 :axis {axis})"
            continue
        at = f"(cast (minimum (maximum {s.text} 0) {n - k}) i32)"
        text = f"(gather {text} (+ {at} (iota (i32 {k}))) :axis {axis})"
    return text


def dynamic_update_slice(w: W, x: Known, update: Known, *starts: Known) -> str:
    """The written box as a mask, and the update moved under it."""
    if 0 in update.shape:
        return x.text
    begins = _begins(x, starts, update.shape)
    ends = [(b, n - b - k, 0) for b, n, k in zip(begins, x.shape, update.shape, strict=True)]
    moved = padded(update.text, update.shape, x.dtype, ends, "0")
    mask = padded(f"(ones (bool {' '.join(map(str, update.shape))}))", update.shape, "bool", ends, "false")
    return f"(where {mask.replace('(full (bool', '(zeros (bool').replace(') false)', '))')} {moved} {x.text})"


MATH |= {
    "broadcast_in_dim": broadcast_in_dim, "reshape": reshape, "squeeze": squeeze, "transpose": transpose,
    "rev": reverse, "concatenate": concatenate, "iota": iota, "pad": pad, "slice": slice_,
    "dynamic_slice": dynamic_slice, "dynamic_update_slice": dynamic_update_slice,
    "expand_dims": lambda w, x, dimensions: f"(reshape {x.text} {vector(np.expand_dims(x.array, dimensions).shape)})",
}  # fmt: skip


# Reductions and orders.


def fold(name: str) -> Adapter:
    def adapter(w: W, x: Known, axes: Sequence[int], **ignored: Any) -> str:
        if x.array.dtype == bool:
            return f"({ {'max': 'any', 'min': 'all'}[name] } {x.text} :axis {vector(axes)})"
        return f"({name} {x.text} :axis {vector(axes)})"

    return adapter


def reduce(w: W, *operands: Known, computation: Any, jaxpr: Any, dimensions: Sequence[int], **ignored: Any) -> str:
    raise Skip("a reduction by a function")


def place(name: str) -> Adapter:
    def adapter(w: W, x: Known, axes: Sequence[int], index_dtype: Any) -> str:
        if np.isnan(x.array.astype(np.float32)).any() and name == "argmin":
            raise Skip("the smallest beside NaN, which is the largest by our rule and the smallest by JAX's")
        return cast(f"({name} {x.text} :axis {axes[0]})", np.int32 if np.dtype(index_dtype).itemsize < 8 else np.int64)

    return adapter


def running(text: str) -> Adapter:
    def adapter(w: W, x: Known, axis: int, reverse: bool) -> str:
        given = f"(reverse {x.text} :axis {axis})" if reverse else x.text
        made = text.format(x=given, a=axis)
        return f"(reverse {made} :axis {axis})" if reverse else made

    return adapter


def sort(w: W, *xs: Known, dimension: int, is_stable: bool, num_keys: int) -> list[str]:
    if num_keys > 1 or xs[0].array.dtype == bool:
        raise Skip("an order by several keys, or of booleans")
    if np.isnan(xs[0].array.astype(np.float32)).any():
        raise Skip("NaN in an order")
    key = f"(sort {xs[0].text} :axis {dimension})"
    names = [f"a{i}" for i in range(xs[0].ndim)]
    rest = [n for i, n in enumerate(names) if i != dimension]
    turn = f'(rearrange "{" ".join(names)} -> {" ".join([*rest, names[dimension]])}"'
    back = f'(rearrange "{" ".join([*rest, names[dimension]])} -> {" ".join(names)}"'
    n = xs[0].shape[dimension]
    rows = math.prod(xs[0].shape) // n if n else 0
    made = [f"(nth {key} 0)"]
    for x in xs[1:]:
        sizes = vector([*(s for i, s in enumerate(x.shape) if i != dimension), n])
        places = f"(+ (reshape {turn} (nth {key} 1)) [{rows} {n}]) (* {n} (iota (i32 {rows} {n}) :axis 0)))"
        made.append(f"{back} (reshape (gather (reshape {turn} {x.text}) [_]) {places}) {sizes}))")
    return made


def top_k(w: W, x: Known, k: int, axis: int = -1, **ignored: Any) -> list[str]:
    if x.array.dtype == bool or np.isnan(x.array.astype(np.float32)).any():
        raise Skip("an order of booleans, or of NaN")
    return [f"(nth (top-k {x.text} {k} :axis {axis}) {i})" for i in range(2)]


def approx_top_k(w: W, x: Known, k: int, reduction_dimension: int, is_max_k: bool, **ignored: Any) -> list[str]:
    axis = reduction_dimension
    if is_max_k:
        return top_k(w, x, k, axis)
    return [f"(- (nth (top-k (- {x.text}) {k} :axis {axis}) 0))", f"(nth (top-k (- {x.text}) {k} :axis {axis}) 1)"]


MATH |= {
    "reduce_sum": fold("sum"), "reduce_prod": fold("prod"), "reduce_max": fold("max"), "reduce_min": fold("min"),
    "reduce_or": fold("max"), "reduce_and": fold("min"), "argmax": place("argmax"), "argmin": place("argmin"),
    "cumsum": running("(cumsum {x} :axis {a})"), "cumprod": running("(cumprod {x} :axis {a})"),
    "cummax": running("(cummax {x} :axis {a})"), "cummin": running("(- (cummax (- {x}) :axis {a}))"),
    "cumlogsumexp": running("(let [x {x} m (stop-gradient (max x :axis {a} :keep true))] "
                            "(+ m (log (cumsum (exp (- x m)) :axis {a}))))"),
    "sort": sort, "top_k": top_k, "approx_top_k": approx_top_k, "reduce": reduce,
}  # fmt: skip
