"""Where a step first left the finite numbers: the place in the file, the element, and what it was made of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sexpgpu.diagnostics import Diagnostic, DiagnosticError
from sexpgpu.train import blame
from tests.train.trial import open_trial

FILE = """(defdata rows-of (arrays "data.npz"))
(defloader train (rows rows-of) :batch 4)
(defmetric loss (x)
  (mean (* (param w (f32) 1.0)
    BODY)))
(defrun go :loader train :loss loss :steps 6 :optimizer (sgd :rate 0.1) :microbatches 2)
"""
X = np.arange(1, 9, dtype=np.float32)


def failed(folder: Path, body: str, x: np.ndarray = X, text: str = FILE) -> Diagnostic:
    """What the first step of a run with this loss says."""
    with open_trial(folder, text.replace("BODY", body), {"x": x}) as trial, pytest.raises(DiagnosticError) as caught:
        trial.step()
    (found,) = caught.value.diagnostics
    assert found.code == "E-RUN-001"
    return found


def told(found: Diagnostic) -> tuple[int, str]:
    """The line that is pointed at, and the words there."""
    assert found.span is not None
    (label,) = found.labels
    assert label.span == found.span
    return found.span.line, label.message


def test_the_first_nan_of_the_second_microbatch(tmp_path: Path) -> None:
    line, text = told(failed(tmp_path, "(log (- 6.5 x))"))
    assert line == 5
    assert text == "the first value that is not finite: `log` of -0.5 is nan at [2], one of 2 such among 4; " \
                   "the others lie between -0.6931 and 0.4055"  # fmt: skip


def test_an_infinity_that_reaches_the_loss(tmp_path: Path) -> None:
    line, text = told(failed(tmp_path, "(exp (* 30 x))"))
    assert line == 5 and text.startswith("the first value that is not finite: `exp` of 90 is inf at [2], one of 2")


def test_an_infinity_that_is_meant_is_not_to_blame(tmp_path: Path) -> None:
    line, text = told(failed(tmp_path, "(+ (exp (where (> x 100) x (- inf)))\n    (sqrt (- x 3)))"))
    assert line == 6 and "`sqrt` of -2 is nan at [0]" in text


def test_a_gradient(tmp_path: Path) -> None:
    # The loss is finite, the slope of the root at 0 is not.
    found = failed(tmp_path, "(sqrt (* (param u (f32) 0.0) x))")
    line, text = told(found)
    assert line == 5 and "its loss is 0" in found.message and "not finite in its gradient: " in text


def test_data(tmp_path: Path) -> None:
    text = FILE.replace('"data.npz"', '"data.npz" :missing true')
    found = failed(tmp_path, "x", np.where(X == 7, np.nan, X).astype(np.float32), text)
    assert found.span is not None and found.span.line == 6
    assert found.notes[0] == "the field `x` holds nan at [2]; the others lie between 5 and 8"


def test_a_proposal(tmp_path: Path) -> None:
    text = FILE.replace("0.1", "1e38")
    found = failed(tmp_path, "(* x 100)", text=text)
    assert found.span is not None and found.span.line == 6 and "its loss is 450" in found.message
    assert found.notes[0] == "the first value that is not finite: `mul` of 1e+38 and 450 is inf"


def test_a_step_too_large_to_repeat_names_the_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blame, "MAX_BYTES", 10)
    found = failed(tmp_path, "(log (- 6.5 x))")
    assert found.span is not None and found.span.line == 6 and not found.labels and len(found.notes) == 1


def test_a_step_without_weight_is_told_as_that(tmp_path: Path) -> None:
    text = FILE.replace("(mean ", "(weighted (mean ").replace("BODY)))", "BODY)) (* 0 (mean x))))")
    trial = open_trial(tmp_path, text.replace("BODY", "x"), {"x": X})
    with trial, pytest.raises(DiagnosticError, match="E-RUN-002"):
        trial.step()
