"""Series of a metrics stream as arrays, thinned for drawing, and numbers in few characters.

Flow: `read_stream` reads `metrics.jsonl`; `sexpgpu.look.chart` draws what comes out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sexpgpu.train.metrics import read_records

BARS = "▁▂▃▄▅▆▇█"
_RISING = re.compile(r"acc|auc|f1|recall|precision|reward|return|score|bleu|success", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class Series:
    """One series. steps: i64, strictly rising; values: f64 of the same length, of which some may not be finite."""

    name: str
    steps: np.ndarray
    values: np.ndarray

    @property
    def last(self) -> float:
        """The newest value."""
        return float(self.values[-1])

    def finite(self) -> Series:
        """Without the points that are NaN or infinite."""
        good = np.isfinite(self.values)
        return self if good.all() else Series(self.name, self.steps[good], self.values[good])


@dataclass(frozen=True, eq=False)
class Stream:
    """A metrics stream: series by name in order of their first point, and annotations in the order written."""

    series: Mapping[str, Series]
    annotations: Sequence[Mapping[str, Any]]


def read_stream(path: Path, only: bytes = b"") -> Stream:
    """Everything in a stream; only: of the lines that contain these bytes. No file is an empty stream.

    A vector becomes a series for each element, `name[0]`, `name[1]`, …

    Raises: E-IO-001
    """
    return Stream(*gather(read_records(path, only) if path.exists() else ()))


def gather(records: Iterable[Mapping[str, Any]]) -> tuple[dict[str, Series], list[Mapping[str, Any]]]:
    """Records as series and annotations; a step that was written twice has its last value."""
    columns: dict[str, tuple[list[int], list[Any]]] = {}
    annotations: list[Mapping[str, Any]] = []
    for record in records:
        name = record.get("series")
        if name is None:
            if "annotation" in record:
                annotations.append(record)
            continue
        column = columns.get(name)
        if column is None:
            column = columns[name] = ([], [])
        column[0].append(record["step"])
        column[1].append(record.get("value"))
    found: dict[str, Series] = {}
    for name, (steps, values) in columns.items():
        for label, kept_steps, kept in _elements(name, steps, values):
            found[label] = _rising(label, kept_steps, kept)
    return found, annotations


def _elements(name: str, steps: list[int], values: list[Any]) -> list[tuple[str, list[int], list[Any]]]:
    if not any(isinstance(value, list) for value in values):
        return [(name, steps, values)]
    width = max(len(value) for value in values if isinstance(value, list))
    found = []
    for i in range(width):
        rows = [(s, v[i]) for s, v in zip(steps, values, strict=True) if isinstance(v, list) and len(v) > i]
        found.append((f"{name}[{i}]", [s for s, _ in rows], [v for _, v in rows]))
    return found


def _rising(name: str, steps: list[int], values: list[Any]) -> Series:
    at = np.fromiter(steps, np.int64, len(steps))
    numbers = np.fromiter((_number(v) for v in values), np.float64, len(values))
    if (at[1:] <= at[:-1]).any():
        at, first = np.unique(at[::-1], return_index=True)
        numbers = numbers[::-1][first]
    return Series(name, at, numbers)


def _number(value: Any) -> float:
    """A value as the stream has it: `nan`, `inf` and `-inf` are strings there; anything else that is none is NaN."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def thinned(series: Series, num_columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Steps and values that draw the same picture: the least and the most of every column of pixels.

    A series of at most two points a column comes back as it is. All values must be finite.
    """
    steps, values = series.steps, series.values
    if len(steps) <= 2 * num_columns:
        return steps, values
    column = (steps - steps[0]) * num_columns // (steps[-1] - steps[0] + 1)
    starts = np.flatnonzero(np.diff(column, prepend=-1))
    ends = np.append(starts[1:], len(steps)) - 1
    least, most = np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts)
    rising = values[ends] >= values[starts]
    return (
        np.stack([steps[starts], steps[ends]], 1).ravel(),
        np.stack([np.where(rising, least, most), np.where(rising, most, least)], 1).ravel(),
    )


def smoothed(series: Series, window: int) -> Series:
    """The mean of each point and those before it, `window` together; nearer the beginning, of what there is."""
    total = np.cumsum(np.insert(series.values, 0, 0.0))
    index = np.arange(1, len(series.values) + 1)
    begin = np.maximum(index - window, 0)
    return Series(series.name, series.steps, (total[index] - total[begin]) / (index - begin))


def rises(name: str) -> bool:
    """Whether a series is better where it is higher, as far as its name tells: accuracy, reward, recall, …."""
    return _RISING.search(name.rpartition("/")[2]) is not None


def best(series: Series, is_loss: bool = False) -> tuple[str, int, float] | None:
    """`lowest` or `highest`, the step and the value there; None where nothing is finite.

    A loss is better where it is lower, and so is anything else unless its name says otherwise: accuracy, reward, ….
    """
    good = series.finite()
    if not len(good.values):
        return None
    highest = not is_loss and rises(series.name)
    at = int(np.argmax(good.values) if highest else np.argmin(good.values))
    return "highest" if highest else "lowest", int(good.steps[at]), float(good.values[at])


def best_evaluation(series: Mapping[str, Series], losses: Iterable[str]) -> tuple[str, tuple[str, int, float]] | None:
    """The evaluation to judge a run by, and its best point: of a metric that is a loss, else the first.

    series: all of a run; losses: names of the metrics that are trained on.
    """
    known = set(losses)
    names = [name for name in series if name.startswith("eval/") and series[name].finite().values.size]
    if not names:
        return None
    name = next((n for n in names if n.rpartition("/")[2] in known), names[0])
    found = best(series[name], name.rpartition("/")[2] in known)
    return None if found is None else (name, found)


def sparkline(values: Sequence[float], width: int) -> str:
    """Values as a row of at most `width` bars: each the mean of its part; a space where nothing is finite."""
    if not len(values):
        return ""
    parts = np.array_split(np.asarray(values, np.float64), min(width, len(values)))
    means = [float(np.mean(part[np.isfinite(part)])) if np.isfinite(part).any() else math.nan for part in parts]
    finite = [m for m in means if math.isfinite(m)]
    if not finite:
        return " " * len(means)
    low, high = min(finite), max(finite)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((m - low) * scale)] if math.isfinite(m) else " " for m in means)


def short(value: float) -> str:
    """A number in few characters: four digits that mean something."""
    if not math.isfinite(value):
        return str(value)
    size = abs(value)
    if size and (size < 1e-3 or size >= 1e7):
        return f"{value:.3g}"
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:.4f}" if size < 10 else f"{value:.2f}" if size < 1000 else f"{value:,.0f}"


def duration(seconds: float) -> str:
    """A stretch of time in one or two units: `1.2 s`, `3 min 20 s`, `5 h 12 min`, `3 d 4 h`."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"
