"""Views of data in a `defloader`: `part rows windows streams mix`."""

from __future__ import annotations

from typing import Any

from sexpgpu.data import Part, Rows, Streams, Windows
from sexpgpu.lang.builtins.registry import builtin
from sexpgpu.lang.elaborator import Elaborator
from sexpgpu.lang.values import DataHandle, HostScalar, Mix, kind_of


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


@builtin("streams")
def streams(el: Elaborator, source: Any, *, length: Any = None) -> Streams:
    """`(streams DATA :length n)`: windows that go on where the same row of the batch before ended."""
    if length is None:
        el.fail("E-FORM-004", "`streams` needs `:length`")
    return el.located(lambda: Streams(_source(el, source), el.size(length)))


@builtin("mix")
def mix(el: Elaborator, parts: Any) -> Mix:
    """`(mix [VIEW W …])`: rows of several views, chosen by weights that may depend on `step`."""
    if not isinstance(parts, tuple) or not parts or len(parts) % 2:
        el.fail("E-FORM-001", "this form is (mix [VIEW W …])")
    views, weights = parts[::2], parts[1::2]
    for view in views:
        if not isinstance(view, Rows | Windows):
            el.fail("E-TYPE-006", f"{kind_of(view)} cannot be mixed", help="(rows S) or (windows S :length n)")
    for weight in weights:
        number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not isinstance(weight, HostScalar) and not (number and 0 <= weight < float("inf")):
            el.fail("E-TYPE-006", f"a weight is a number from 0 up, not {kind_of(weight)}")
    if all(not isinstance(weight, HostScalar) and weight == 0 for weight in weights):
        el.fail("E-TYPE-005", "no weight of this mixture is above 0")
    return Mix(views, weights)
