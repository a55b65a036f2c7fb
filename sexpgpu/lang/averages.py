"""`defaverage`: running averages of parameters, and which slot a parameter is read from under `:weights`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from sexpgpu.ir.graph import Value
from sexpgpu.lang.arithmetic import arithmetic
from sexpgpu.lang.elaborator import Elaborator
from sexpgpu.lang.trace import Initialised
from sexpgpu.lang.values import HostScalar, Reference, kind_of
from sexpgpu.syntax import Form


@dataclass(frozen=True, eq=False)
class Average:
    """A running average of the parameters that `patterns` match: after each commit it moves by `rate`, which is one
    minus the decay, towards what was committed. parameters: which ones those are."""

    name: str
    patterns: tuple[str, ...]
    rate: float | Value
    parameters: tuple[str, ...] = field(default=())

    def covers(self, parameter: str) -> bool:
        """Whether there is an average of the parameter."""
        return any(fnmatchcase(parameter, pattern) for pattern in self.patterns)

    def slot(self, parameter: str) -> str:
        """Where the average of a parameter is kept."""
        return f"average.{self.name}/{parameter}"

    def of(self, parameters: Mapping[str, Initialised]) -> Average:
        """The same, knowing every parameter of the experiment."""
        return Average(self.name, self.patterns, self.rate, tuple(filter(self.covers, parameters)))


def averaging_rate(el: Elaborator, decay: Any, form: Form) -> float | Value:
    """One minus the decay: in double precision on the host, where it depends on `step`."""
    if isinstance(decay, HostScalar):
        rate = arithmetic(el, "-", [1.0, decay])
        return float(rate) if isinstance(rate, int | float) else rate.value
    if isinstance(decay, bool) or not isinstance(decay, int | float) or not 0 <= decay <= 1:
        el.fail("E-TYPE-006", f"`:decay` is a number from 0 to 1, not {kind_of(decay)}", form.span)
    return 1.0 - float(decay)


def weights_name(el: Elaborator, value: Any, form: Form) -> str | None:
    """The average that `:weights` names; None for `none`, the parameters themselves."""
    if value is None:
        return None
    if not isinstance(value, Reference) or value.kind != "average":
        el.fail("E-TYPE-006", f"`:weights` names {kind_of(value)}", form.span,
                help="the name of a `defaverage`, or none")  # fmt: skip
    return value.name


def averages_of(averages: Mapping[str, Average], parameter: str) -> Iterator[Average]:
    """The averages that a parameter has."""
    return (average for average in averages.values() if parameter in average.parameters)
