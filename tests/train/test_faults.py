"""What is said of a run that cannot go on: code, step, names and the user's own line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sexpgpu.backend.protocol import Fault
from sexpgpu.diagnostics import Diagnostic, DiagnosticError
from sexpgpu.ir.graph import Origin
from sexpgpu.lang.load import load_experiment
from sexpgpu.source import Source, Span
from sexpgpu.train.faults import non_finite, stop_on_faults, zero_weight
from tests.train.trial import open_trial, write_experiment

USER, LIBRARY = Source("mine.sx", "(a)\n(b)\n"), Source("std/layers.sx", "(c)\n")


def told(error: DiagnosticError) -> Diagnostic:
    (found,) = error.diagnostics
    return found


def test_the_place_is_the_innermost_in_the_users_files() -> None:
    outer = Origin(Span(USER, 0, 3))
    inner = Origin(Span(USER, 4, 7), "", outer)
    library = Origin(Span(LIBRARY, 0, 3), "", inner)
    assert library.place == inner.span and inner.place == inner.span and outer.place == outer.span
    assert Origin(Span(LIBRARY, 0, 3)).place == Span(LIBRARY, 0, 3)
    assert Origin(None, "gradient of", library).place == inner.span
    assert Origin(None).place is None


def test_at_most_five_checks_are_told() -> None:
    stop_on_faults([], "step 1")
    faults = [Fault(f"check {i}", Origin(Span(USER, 0, 3))) for i in range(8)]
    with pytest.raises(DiagnosticError) as caught:
        stop_on_faults(faults, "step 3")
    found = caught.value.diagnostics
    assert [d.message for d in found] == [f"step 3: check {i}" for i in range(5)]
    assert {d.code for d in found} == {"E-RUN-003"}


def test_names_of_what_is_not_finite(tmp_path: Path) -> None:
    text = "(defmetric m () (square (param p (f32) 1.0)))\n(defrun go :loss m :steps 1 :optimizer (sgd :rate 0.1))\n"
    (update,) = load_experiment(write_experiment(tmp_path, text)).run.updates
    found = told(non_finite(update, 9, float("nan"), ["a", "b"], None))
    assert found.code == "E-RUN-001" and "step 9" in found.message and "`a`, `b`" in found.message
    assert found.message.endswith("its loss is nan")
    many = told(non_finite(update, 9, 1.5, list("abcde"), None)).message
    assert "`a`, `b`, `c` and 2 more" in many and "1.5" in many
    weightless = told(zero_weight(update, 4))
    assert weightless.code == "E-RUN-002" and "step 4" in weightless.message and "`m`" in weightless.message


CHECKED = """
(defdata rows-of (arrays "data.npz"))
(defloader train (rows rows-of) :batch 4)
(defmetric see (i)
  (let [w (param w (f32 4) 1.0)]
    (sum (* w
      {form}))))
(defrun go :loader train :loss see :steps 2 :optimizer (sgd :rate 0.1))
"""


@pytest.mark.parametrize(
    ("form", "good", "bad"),
    [
        ("(gather w i)", 3, 4),
        ("(gather w i)", 0, -1),
        ("(pick (broadcast w [4 4]) i)", 3, 7),
        ("(scatter w i w :fold add)", -1, 4),
        ("(scatter w i w :fold add)", 3, -2),
        ("(cast (quotient 7 i) f32)", 2, 0),
        ("(cast (rem 7 i) f32)", -2, 0),
    ],
)
def test_checks_at_run_time_name_the_users_line(tmp_path: Path, form: str, good: int, bad: int) -> None:
    rows = np.asarray([1, 1, good, 1, 1, bad, 1, 1], np.int32)
    with open_trial(tmp_path, CHECKED.format(form=form), {"i": rows}) as trial:
        trial.step()
        before = trial.read("w")
        with pytest.raises(DiagnosticError) as caught:
            trial.step()
        found = caught.value.diagnostics[0]
        assert found.code == "E-RUN-003" and found.message.startswith("step 2: ")
        assert found.span is not None and found.span.line == 7, str(found.span)
        np.testing.assert_array_equal(trial.read("w"), before)


def test_a_check_inside_the_library_is_told_where_it_was_called(tmp_path: Path) -> None:
    text = """
(defdata rows-of (arrays "data.npz"))
(defloader train (rows rows-of) :batch 4)
(defmetric see (i)
  (mean (cross-entropy (broadcast (param w (f32 5) 1.0) [4 5])
                       i)))
(defrun go :loader train :loss see :steps 2 :optimizer (sgd :rate 0.1))
"""
    rows = np.asarray([1, 2, 3, 4, 1, 2, 3, 5], np.int32)
    with open_trial(tmp_path, text, {"i": rows}) as trial:
        trial.step()
        with pytest.raises(DiagnosticError) as caught:
            trial.step()
        span = caught.value.diagnostics[0].span
        assert span is not None and (span.source.name, span.line) == (str(tmp_path / "file.sx"), 5)
