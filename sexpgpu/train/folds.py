"""How values of microbatches become one value: in f32, in the order of the microbatches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from sexpgpu.ir.evaluate import evaluate
from sexpgpu.ir.graph import Graph
from sexpgpu.ir.opdef import Array
from sexpgpu.lang.experiment import MeasureInfo, Objective

ONE: Array = np.asarray(1, np.float32)


def weighted_mean(values: Sequence[Array], weights: Sequence[Array]) -> tuple[Array, np.float32]:
    """ΣWV/ΣW, left to right, and ΣW; where ΣW is 0 the value is NaN. What has weight 0 counts for nothing, NaN too."""
    total = _share(values[0], weights[0])
    weight = np.float32(weights[0])
    for value, w in zip(values[1:], weights[1:], strict=True):
        total = total + _share(value, w)
        weight = np.float32(weight + np.float32(w))
    with np.errstate(all="ignore"):
        return np.asarray(total / weight, np.float32), weight


def _share(value: Array, weight: Array) -> Array:
    wide = np.asarray(value, np.float32)
    return wide * np.float32(weight) if weight else np.zeros_like(wide)


def fold(reduce: str, values: Sequence[Array], weights: Sequence[Array]) -> Array:
    """One value of many by a reducer: mean, sum, max, min, last."""
    match reduce:
        case "mean":
            return weighted_mean(values, weights)[0]
        case "last":
            return np.asarray(values[-1])
    folded = np.asarray(values[0])
    operation = {"sum": np.add, "max": np.maximum, "min": np.minimum}[reduce]
    for value in values[1:]:
        folded = operation(folded, value)
    return folded


def apply_after(after: Graph | None, value: Array) -> Array:
    """The function of `:after`, element by element, in double precision."""
    if after is None:
        return value
    flat = [float(evaluate(after, {"x": np.asarray(v, np.float64)})["y"]) for v in np.atleast_1d(value).ravel()]
    return np.asarray(flat, np.float64).reshape(np.shape(value))


def microbatch_results(results: Sequence[Mapping[str, Array]], name: str, stacking: int) -> list[Array]:
    """The values of result `name`, one per microbatch, from calls that each ran `stacking` of them."""
    if stacking == 1:
        return [r[name] for r in results]
    return [value for r in results for value in r[name]]


def fold_measures(
    objective: Objective, results: Sequence[Mapping[str, Array]], stacking: int, due: Sequence[MeasureInfo]
) -> dict[str, Array]:
    """The measures that are due, folded over all microbatches, by path."""
    found = {}
    for measure in due:
        values = microbatch_results(results, f"measure:{measure.path}", stacking)
        if measure.weighted:
            weights = microbatch_results(results, f"measure-weight:{measure.path}", stacking)
        else:
            weights = [ONE] * len(values)
        found[measure.path] = apply_after(measure.after, fold(measure.reduce, values, weights))
    return found
