"""How JAX's convolutions and folds over windows are written in our language."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from tests.oracles.cases import ArrayWriter, Skip, vector
from tests.oracles.jax_harnesses import Adapter, Known
from tests.oracles.jax_math import cast, padded, transposed

W = ArrayWriter


def conv(w: W, x: Known, kernel: Known, window_strides: Sequence[int], padding: Any, lhs_dilation: Sequence[int],
         rhs_dilation: Sequence[int], dimension_numbers: Any, feature_group_count: int, batch_group_count: int,
         preferred_element_type: Any, **ignored: Any) -> str:  # fmt: skip
    """Padding, which may cut, and gaps between the elements of x are written before the convolution."""
    d, rank = dimension_numbers, x.ndim - 2
    if rank not in (1, 2, 3):
        raise Skip("a convolution over none or more than three axes")
    text = transposed(x.text, x.ndim, [d.lhs_spec[0], *d.lhs_spec[2:], d.lhs_spec[1]])
    sizes = [x.shape[d.lhs_spec[0]], *[x.shape[i] for i in d.lhs_spec[2:]], x.shape[d.lhs_spec[1]]]
    config = [(0, 0, 0), *[(lo, hi, g - 1) for (lo, hi), g in zip(padding, lhs_dilation, strict=True)], (0, 0, 0)]
    wide = [n + max(0, n - 1) * g + lo + hi for n, (lo, hi, g) in zip(sizes, config, strict=True)][1:-1]
    taps = [kernel.shape[i] for i in d.rhs_spec[2:]]
    if any(n < (k - 1) * g + 1 for n, k, g in zip(wide, taps, rhs_dilation, strict=True)):
        raise Skip("a kernel that fits nowhere, which we refuse")
    text = padded(text, sizes, x.dtype, config, "0" if x.array.dtype.kind in "iu" else "0.0")
    weight = transposed(kernel.text, kernel.ndim, [*d.rhs_spec[2:], d.rhs_spec[1], d.rhs_spec[0]])
    dtype = np.dtype(preferred_element_type) if preferred_element_type is not None else x.array.dtype
    if dtype != x.array.dtype or kernel.array.dtype != x.array.dtype:
        text, weight = cast(text, np.float32), cast(weight, np.float32)
    options = f":stride {vector(window_strides)} :dilation {vector(rhs_dilation)} :groups {feature_group_count}"
    if batch_group_count == 1:
        made = f"(conv {text} {weight} {options})"
    else:
        n, o = sizes[0] // batch_group_count, kernel.shape[d.rhs_spec[0]] // batch_group_count
        parts = [f"(conv (slice a {g * n} {(g + 1) * n}) (slice k {g * o} {(g + 1) * o} :axis -1) {options})"
                 for g in range(batch_group_count)]  # fmt: skip
        made = f"(let [a {text} k {weight}] (concat {vector(parts)} :axis -1))"
    back = [0] * x.ndim
    for ours, theirs in enumerate([d.out_spec[0], *d.out_spec[2:], d.out_spec[1]]):
        back[theirs] = ours
    return cast(transposed(made, x.ndim, back), dtype)


def window_fold(form: str, start: dict[str, str]) -> Adapter:
    """A fold over windows: strided slices, one for each place of a window, folded pair by pair."""

    def adapter(w: W, x: Known, window_dimensions: Sequence[int], window_strides: Sequence[int], padding: Any,
                base_dilation: Sequence[int], window_dilation: Sequence[int], **ignored: Any) -> str:  # fmt: skip
        neutral = start["float" if x.array.dtype.kind in "fV" else "int"]
        config = [(lo, hi, g - 1) for (lo, hi), g in zip(padding, base_dilation, strict=True)]
        text = padded(x.text, x.shape, x.dtype, config, neutral)
        sizes = [n + (n - 1) * g + lo + hi if n else lo + hi for n, (lo, hi, g) in zip(x.shape, config, strict=True)]
        counts = [(n - (k - 1) * g - 1) // s + 1 for n, k, g, s in
                  zip(sizes, window_dimensions, window_dilation, window_strides, strict=True)]  # fmt: skip
        if min(counts, default=1) <= 0:
            raise Skip("windows of which none fits")
        parts = []
        for taps in product(*map(range, window_dimensions)):
            part = "p"
            for axis, tap in enumerate(taps):
                first, s = tap * window_dilation[axis], window_strides[axis]
                last = first + (counts[axis] - 1) * s + 1
                if (first, last, s) != (0, sizes[axis], 1):
                    part = f"(slice {part} {first} {last} :axis {axis} :step {s})"
            parts.append(part)
        folded = parts[0] if len(parts) == 1 else f"({form} {' '.join(parts)})"
        wide = x.dtype == "bf16"
        made = f"(let [p {f'(cast {text} f32)' if wide else text}] {folded})"
        return f"(cast {made} bf16)" if wide else made

    return adapter


FOLDS = {
    "add": ("+", {"float": "0.0", "int": "0"}), "mul": ("*", {"float": "1.0", "int": "1"}),
    "max": ("maximum", {"float": "(- inf)", "int": "-2147483648"}),
    "min": ("minimum", {"float": "inf", "int": "2147483647"}),
}  # fmt: skip


def any_fold(w: W, x: Known, first: Known, jaxpr: Any, consts: Any, **params: Any) -> str:
    """A fold by a function of one equation, beginning at a number."""
    names = [e.primitive.name for e in jaxpr.eqns]
    if len(names) != 1 or names[0] not in FOLDS:
        raise Skip("a fold over windows by a function")
    form, start = FOLDS[names[0]]
    made = window_fold(form, start)(w, x, **params)
    return f"({form} {made} {first.text})"


WINDOWS: dict[str, Adapter] = {
    "conv_general_dilated": conv, "reduce_window_sum": window_fold(*FOLDS["add"]),
    "reduce_window_max": window_fold(*FOLDS["max"]), "reduce_window_min": window_fold(*FOLDS["min"]),
    "reduce_window": any_fold,
}  # fmt: skip
