"""How far a device's value may lie from the interpreter's, and how far it does.

Flow: `train.verification` and `train.samples` compare with it; `cli.verify` prints what comes out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from sexpgpu.ir.opdef import Array
from sexpgpu.ir.types import FLOATS

BOUNDS = {"f32": 3e-5, "bf16": 1e-2, "f64": 1e-10}
"""Of one node, relative: to the element, or to the root mean square of the value where the element is smaller."""
PHASE_BOUNDS = {"f32": 1e-3, "bf16": 5e-2}
"""Of an output of a whole phase, in which errors add up: the norm of the difference over the norm of the value."""
SLACK = 16
"""How many times the error of plain f32 a difference may always have: what cancels cannot be told more closely."""
SMALLEST = float(np.finfo(np.float32).tiny)
"""Below it a device may take a number for 0."""


@dataclass(frozen=True, slots=True)
class Difference:
    """absolute: the largest of an element. relative: as the bound has it. used: the share of what is allowed."""

    absolute: float
    relative: float
    used: float

    @property
    def broken(self) -> bool:
        """Whether it is more than the bound allows."""
        return self.used > 1


NOT_FINITE = Difference(np.inf, np.inf, np.inf)


def of_elements(found: Array, wanted: Array, dtype: str, exact: Callable[[], Array]) -> Difference:
    """The difference of one node's value, element by element.

    exact: the value in double precision from the same inputs, asked for where the bound alone does not hold.
    """
    if dtype not in FLOATS:
        return _of_integers(found, wanted)
    y, d = _compared(found, wanted)
    if d is None:
        return NOT_FINITE
    size = np.where(np.isfinite(y), np.abs(y), 0.0)
    scale = np.maximum(size, np.sqrt(np.mean(np.square(size)))) if size.size else size
    limit = BOUNDS[dtype] * scale + SMALLEST
    if (d > limit).any():
        limit = limit + SLACK * _largest(_gap(exact(), y))
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.where(d > SMALLEST, d / scale, 0.0)
    return Difference(_largest(d), _largest(relative), _largest(d / limit))


def of_norms(found: Array, wanted: Array, dtype: str, exact: Callable[[], Array], judged_as: str) -> Difference:
    """The difference of an output of a whole phase, in norm. judged_as: the dtype whose bound holds.

    Integers must be equal, but are shown only where the phase computes in bf16: a tie may fall otherwise there.
    """
    if dtype not in FLOATS:
        difference = _of_integers(found, wanted)
        return replace(difference, used=0.0) if judged_as == "bf16" else difference
    y, d = _compared(found, wanted)
    if d is None:
        return NOT_FINITE
    norm, away = float(np.linalg.norm(np.where(np.isfinite(y), y, 0.0))), float(np.linalg.norm(d))
    limit = PHASE_BOUNDS[judged_as] * norm + SMALLEST
    if away > limit:
        limit += SLACK * float(np.linalg.norm(_gap(exact(), y)))
    return Difference(_largest(d), 0.0 if away <= SMALLEST else away / norm if norm else np.inf, away / limit)


def _of_integers(found: Array, wanted: Array) -> Difference:
    d = np.abs(found.astype(np.int64) - wanted.astype(np.int64))
    share = float(np.mean(d != 0)) if d.size else 0.0
    return Difference(float(d.max(initial=0)), share, np.inf if share else 0.0)


def _compared(found: Array, wanted: Array) -> tuple[Array, Array | None]:
    """What is wanted, in double precision, and the distances from it.

    None in place of the distances where a number that is not finite stands on one side alone.
    """
    x, y = found.astype(np.float64), wanted.astype(np.float64)
    finite = np.isfinite(y)
    if not np.array_equal(x[~finite], y[~finite], equal_nan=True) or not np.isfinite(x[finite]).all():
        return y, None
    return y, _gap(x, y)


def _gap(x: Array, y: Array) -> Array:
    """Distances; 0 where one of the two is not finite."""
    with np.errstate(invalid="ignore"):
        d = np.abs(x.astype(np.float64) - y)
    return np.where(np.isfinite(d), d, 0.0)


def _largest(x: Array) -> float:
    return float(x.max(initial=0.0))
