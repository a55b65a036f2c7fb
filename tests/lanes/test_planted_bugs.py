"""The checks themselves: right kernels pass every layer, and each planted bug is caught by the layer that it names."""

from __future__ import annotations

import numpy as np
import pytest

from tests.lanes import rules, strict
from tests.lanes.planted import CASES, HEAD, KNOWN, NEW, NOBODY, Bug, Case
from tests.lanes.unit import Buffer, Fault, Refused, Unit, compiler

pytestmark = pytest.mark.skipif(compiler() is None or strict.clang() is None, reason="needs g++ and clang")

FENCE = 64
"""Elements around each array, which nobody may touch."""
RUNS = [
    ("forward", "forward", False),
    ("orders", "reverse", False),
    ("orders", "shuffled", False),
    ("checker", "forward", True),
]
UNSEEN = {"fewer threads declared than launched", "a result below the normal numbers, which Metal may flush"}
"""What no layer catches: a card refuses the launch; the values are right to more digits than we ask for."""


class Fenced:
    """An array with rubbish on both sides."""

    def __init__(self, array: np.ndarray, empty: bool) -> None:
        self.raw = np.full(array.size + 2 * FENCE, -77, np.float64).astype(array.dtype)
        self.array = self.raw[FENCE:-FENCE].reshape(array.shape)
        if not empty:
            self.array[...] = array
        self.kept = self.raw.copy()

    def torn(self, may_change: bool) -> bool:
        edges = [slice(None, FENCE), slice(-FENCE, None)] if may_change else [slice(None)]
        return any(self.raw[edge].tobytes() != self.kept[edge].tobytes() for edge in edges)


def wrong(case: Case, unit: Unit, order: str, checked: bool) -> bool:
    """Whether a run faults, writes where it must not, or gives other numbers."""
    arrays, wanted = case.make()
    fenced = [Fenced(a, i in case.outputs and i not in case.kept) for i, a in enumerate(arrays)]
    buffers = [
        Buffer.of(f.array, i in case.outputs, i not in case.outputs or i in case.kept) for i, f in enumerate(fenced)
    ]
    (name,) = unit.kernels
    try:
        unit.run(name, buffers, case.grid, case.group, order, checked)
    except Fault:
        return True
    if any(f.torn(i in case.outputs) for i, f in enumerate(fenced)):
        return True
    made = [fenced[i].array for i in case.outputs]
    return not all(np.allclose(a, b, case.tolerance, case.tolerance) for a, b in zip(made, wanted, strict=True))


def caught_by(case: Case, text: str) -> str:
    """The first layer that does not let a kernel pass."""
    whole = HEAD[case.dialect] + text
    try:
        unit = Unit(whole, case.dialect)
        rules.check(whole, case.dialect)
    except Refused:
        return "text rules"
    if case.dialect == "msl":
        try:
            strict.check(whole)
        except Refused:
            return "clang"
    for layer, order, checked in RUNS:
        if wrong(case, unit, order, checked):
            return layer
    return NOBODY


@pytest.mark.parametrize("name", CASES)
def test_right_kernels_pass(name: str) -> None:
    assert caught_by(CASES[name], CASES[name].text) == NOBODY


@pytest.mark.parametrize("bug", [*KNOWN, *NEW], ids=lambda bug: f"{bug.case}: {bug.name}")
def test_a_bug_is_caught(bug: Bug) -> None:
    assert caught_by(CASES[bug.case], bug.plant()) == bug.layer


def test_what_is_missed() -> None:
    missed = {bug.name for bug in (*KNOWN, *NEW) if bug.layer == NOBODY}
    assert missed == UNSEEN
    assert len(KNOWN) - len(missed & {bug.name for bug in KNOWN}) >= 32
    assert len(NEW) - len(missed) >= 8
