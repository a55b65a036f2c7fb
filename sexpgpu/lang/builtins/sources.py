"""Views of data in a `defloader`: `part rows windows`."""

from __future__ import annotations

from typing import Any

from sexpgpu.data import Part, Rows, Windows
from sexpgpu.lang.builtins.registry import builtin
from sexpgpu.lang.elaborator import Elaborator
from sexpgpu.lang.values import DataHandle, kind_of


def _source(el: Elaborator, value: Any) -> Any:
    if isinstance(value, DataHandle):
        return value.dataset
    if isinstance(value, Part):
        return value
    el.fail("E-TYPE-006", f"{kind_of(value)} stands where data is expected", help="a name of a `defdata`, or (part …)")


@builtin("part")
def part(el: Elaborator, source: Any, start: Any, stop: Any) -> Part:
    """`(part DATA 0.0 0.9)`: the rows or tokens between two fractions."""
    for bound in (start, stop):
        if isinstance(bound, bool) or not isinstance(bound, int | float) or not 0 <= bound <= 1:
            el.fail("E-TYPE-005", f"`part` takes fractions from 0.0 to 1.0, not {kind_of(bound)}")
    if start >= stop:
        el.fail("E-TYPE-005", f"the part from {start} to {stop} is empty")
    return el.located(lambda: Part(_source(el, source), float(start), float(stop)))


@builtin("rows")
def rows(el: Elaborator, source: Any) -> Rows:
    """`(rows DATA)`: a view of arrays, a row at a time."""
    return el.located(lambda: Rows(_source(el, source)))


@builtin("windows")
def windows(el: Elaborator, source: Any, *, length: Any = None) -> Windows:
    """`(windows DATA :length n)`: a view of a sequence, n tokens at a time, with the targets one ahead."""
    if length is None:
        el.fail("E-FORM-004", "`windows` needs `:length`")
    return el.located(lambda: Windows(_source(el, source), el.size(length)))
