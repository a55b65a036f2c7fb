"""Curves as HTML: the lines in one SVG that stretches to any width, the words beside it in HTML, which do not.

Points are thinned before they are drawn, so a page holds at most some thousand of a series however long it is.
Colours are classes (`c0` … `c7`) of `report.css`; `report.js` reads values back from the paths under the pointer.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from sexpgpu.look.series import Series, short, smoothed, thinned

NUM_COLUMNS = 600
"""Columns of pixels that a curve is drawn for."""
NUM_COLOURS = 8
SIDE = 1000.0
"""Width and height of the drawing, in its own units."""
Scale: TypeAlias = Literal["any", "plain", "amount"]
_DOTS = 60
_SMOOTH_FROM = 150
_LOG_RATIO = 8.0


@dataclass(frozen=True, eq=False)
class Line:
    """One curve of a chart. smooth: a long and noisy series is drawn faint, with its moving mean over it."""

    label: str
    series: Series
    smooth: bool = False


@dataclass(frozen=True)
class Mark:
    """A vertical line at a step, with what happened there."""

    step: int
    text: str
    bad: bool = False


@dataclass(frozen=True)
class _Axis:
    """Values to places between 0 and `SIDE`, by their logarithm or as they are."""

    low: float
    high: float
    log: bool

    def place(self, values: np.ndarray) -> np.ndarray:
        shown = np.log10(values) if self.log else values
        low, high = (math.log10(self.low), math.log10(self.high)) if self.log else (self.low, self.high)
        return np.asarray((shown - low) / (high - low) * SIDE)

    def ticks(self) -> list[float]:
        if not self.log:
            return _round_numbers(self.low, self.high)
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        step = max(1, (last - first) // 5)
        factors = (1,) if last - first > 3 else (1, 2, 5)
        found = [f * 10.0**e for e in range(first, last + 1, step) for f in factors]
        inside = [v for v in found if self.low <= v <= self.high]
        return inside if len(inside) > 1 else _round_numbers(self.low, self.high)


def chart(
    title: str,
    lines: Sequence[Line],
    last_step: int,
    marks: Sequence[Mark] = (),
    tell: Callable[[float], str] = short,
    limit: tuple[str, float] | None = None,
    scale: Scale = "any",
) -> str:
    """A figure of curves from step 1 to `last_step`; empty where no point is finite.

    tell: a value in words. limit: a named level that is drawn across. scale: `any` is logarithmic where all values are
    positive and most of them span more than a factor of eight; `plain` never is; `amount` begins at zero.
    """
    drawn = [(line, line.series.finite()) for line in lines]
    drawn = [(line, series) for line, series in drawn if len(series.steps)]
    if not drawn:
        return ""
    values = np.concatenate([thinned(series, NUM_COLUMNS)[1] for _, series in drawn])
    levels = values if limit is None else np.append(values, limit[1])
    y = _value_axis(values, levels, scale)
    x = _Axis(float(min(1, min(s.steps[0] for _, s in drawn))), float(max(last_step, 2)), False)
    shapes: list[str] = []
    for value in y.ticks():
        shapes.append(_path("grid", f"M0 {_y(y, value)}H{SIDE:.0f}"))
    for mark in marks:
        place = f"{x.place(np.array([mark.step]))[0]:.1f}"
        kind, label = "mark bad" if mark.bad else "mark", html.escape(mark.text)
        shapes.append(f'<path class="{kind}" d="M{place} 0V1000"><title>{label}</title></path>')
    if limit is not None:
        shapes.append(_path("limit", f"M0 {_y(y, limit[1])}H{SIDE:.0f}"))
    legend: list[str] = []
    for index, (line, series) in enumerate(drawn):
        colour = f"c{index % NUM_COLOURS}"
        smooth = line.smooth and _is_noisy(series)
        label = html.escape(line.label)
        shapes.append(_curve(f"line {colour}{' faint' if smooth else ''}", series, x, y, "" if smooth else label))
        if smooth:
            mean = smoothed(series, max(2, len(series.steps) // 50))
            shapes.append(_curve(f"line {colour}", mean, x, y, f"{label} (mean)"))
        elif len(series.steps) <= _DOTS:
            shapes.append(_path(f"dot {colour}", _dots(series, x, y)))
        told = html.escape(tell(series.last))
        legend.append(f'<span class="{colour}"><i></i>{label} <b>{told}</b></span>')
    if limit is not None:
        legend.append(f'<span class="limit"><i></i>{html.escape(limit[0])} <b>{html.escape(tell(limit[1]))}</b></span>')
    rows = "".join(
        f'<span style="top:{float(_y(y, v)) / SIDE * 100:.2f}%">{html.escape(_tick(v, tell))}</span>' for v in y.ticks()
    )
    columns = "".join(
        f'<span style="left:{x.place(np.array([v]))[0] / SIDE * 100:.2f}%">{"" if i else "step "}{_count(v)}</span>'
        for i, v in enumerate(v for v in _round_numbers(x.low, x.high) if v == int(v))
    )
    remark = " <small>logarithmic scale</small>" if y.log else ""
    data = f'data-x0="{x.low:.0f}" data-x1="{x.high:.0f}" data-log="{int(y.log)}"'
    data += f' data-y0="{y.low!r}" data-y1="{y.high!r}"'
    caption = f'<h3>{html.escape(title)}{remark}</h3><p class="legend">{"".join(legend)}</p>'
    return (
        f'<figure class="chart"><figcaption>{caption}</figcaption>'
        f'<div class="plot"><div class="y">{rows}</div><div class="field" {data}>'
        f'<svg viewBox="0 0 1000 1000" preserveAspectRatio="none" role="img" aria-label="{html.escape(title)}">'
        f'{"".join(shapes)}</svg></div><div class="x">{columns}</div></div></figure>\n'
    )


def spark(series: Series) -> str:
    """A small curve without axes, for a row of a table; empty where no point is finite."""
    good = series.finite()
    if not len(good.steps):
        return ""
    _, values = thinned(good, 80)
    y = _value_axis(values, values, "any")
    x = _Axis(float(good.steps[0]), float(max(good.steps[-1], good.steps[0] + 1)), False)
    drawn = _curve("line c0", good, x, y, "", 80)
    return f'<svg class="spark" viewBox="0 0 1000 1000" preserveAspectRatio="none" aria-hidden="true">{drawn}</svg>'


def _is_noisy(series: Series) -> bool:
    """Whether a long series goes up and down more than it goes anywhere."""
    values = series.values
    return len(values) >= _SMOOTH_FROM and np.abs(np.diff(values)).sum() > 4 * (values.max() - values.min())


def _value_axis(values: np.ndarray, levels: np.ndarray, scale: Scale) -> _Axis:
    """An axis for `values` that also shows the other `levels`, with a little room around them."""
    low, high = float(levels.min()), float(levels.max())
    if scale == "any" and low > 0:
        few, most = np.quantile(values, [0.02, 0.98])
        if most / few > _LOG_RATIO or high / low > 100 * _LOG_RATIO:
            room = (high / low) ** 0.03
            return _Axis(low / room, high * room, True)
    if scale == "amount" and high > 0:
        return _Axis(0.0, high * 1.06, False)
    if high == low:
        room = abs(high) * 0.05 or 1.0
        return _Axis(low - room, high + room, False)
    room = (high - low) * 0.04
    return _Axis(low - room if low < 0 or low > room else 0.0, high + room, False)


def _round_numbers(low: float, high: float, num: int = 5) -> list[float]:
    """About `num` round numbers between two."""
    rough = (high - low) / num
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(f * size for f in (1, 2, 5, 10) if f * size >= rough * 0.99)
    first, last = math.ceil(low / step), math.floor(high / step)
    return [float(f"{i * step:.10g}") for i in range(first, last + 1)]


def _tick(value: float, tell: Callable[[float], str]) -> str:
    """A round number, without the zeros that `short` would end it with."""
    return f"{value:,.6g}" if tell is short and (value == 0 or 1e-3 <= abs(value) < 1e7) else tell(value)


def _count(value: float) -> str:
    """A number of steps: `500`, `20k`, `1.5M`."""
    for unit, size in (("M", 1e6), ("k", 1e4)):
        if value >= size:
            return f"{value / (1e3 if unit == 'k' else 1e6):.4g}{unit}"
    return f"{value:,.0f}"


def _y(axis: _Axis, value: float) -> str:
    return f"{SIDE - axis.place(np.array([value]))[0]:.1f}"


def _path(kind: str, d: str) -> str:
    return f'<path class="{kind}" d="{d}"/>'


def _places(series: Series, x: _Axis, y: _Axis, num_columns: int) -> list[tuple[float, float]]:
    steps, values = thinned(series, num_columns)
    across, up = x.place(steps.astype(np.float64)), SIDE - y.place(values)
    return list(zip(across.round(1).tolist(), up.round(1).tolist(), strict=True))


def _curve(kind: str, series: Series, x: _Axis, y: _Axis, label: str, num_columns: int = NUM_COLUMNS) -> str:
    points = " ".join(f"{a:g} {b:g}" for a, b in _places(series, x, y, num_columns))
    told = f' data-label="{label}"' if label else ""
    return f'<path class="{kind}"{told} d="M{points}"/>'


def _dots(series: Series, x: _Axis, y: _Axis) -> str:
    return "".join(f"M{a:g} {b:g}h0" for a, b in _places(series, x, y, NUM_COLUMNS))
