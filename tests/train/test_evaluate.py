"""Evaluations: every batch counts by its weight, padding for nothing, and training is off."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sexpgpu.diagnostics import DiagnosticError
from sexpgpu.train.evaluation import CHUNK, run_evaluation
from tests.train.trial import Trial, open_trial

RNG = np.random.default_rng(11)
X = RNG.standard_normal((37, 3)).astype(np.float32)
Y = RNG.integers(0, 2, 37).astype(np.int32)

TEXT = """
(defdata rows-of (arrays "data.npz"))
(defmodel net ((x (f32 _ 3))) (linear (dropout x 0.5) 2))
(defloader train (rows rows-of) :batch 4 :shuffle true)
(defloader padded (rows rows-of) :batch BATCH :last pad)
(defmetric nll (x y valid)
  (let [logits (net x)]
    (measure accuracy (mean (cast (= (argmax logits :axis 1) y) f32) :where valid) :weight (count valid))
    (measure hits (sum (where valid (cast (= (argmax logits :axis 1) y) f32) 0.0)) :reduce sum)
    (measure per-class (sum (one-hot y 2) :axis 0) :reduce sum)
    (measure perplexity (mean (cross-entropy logits y) :where valid) :weight (count valid) :after exp)
    (mean-over (cross-entropy logits y) valid)))
(defmetric size (x) (mean (square x)))
(defmetric drawn () (sum (random-normal (f32 4))))
(defeval whole :loader padded :batches all nll)
(defeval some :loader train :batches 2 size drawn)
(defrun go :loader train :loss nll :steps 3 :seed 2 :optimizer (sgd :rate 0.1) :evaluate (every 1 [whole some]))
"""


def evaluate(trial: Trial, name: str, step: int = 1) -> dict[str, np.ndarray]:
    experiment, program = trial.experiment, trial.assembly.program
    evaluation = experiment.evaluations[name]
    return run_evaluation(experiment, program, trial.session, trial.stepper.schedule, evaluation, step)


@pytest.mark.parametrize("batch", [1, 4, 37, 50])
def test_every_row_counts_once_whatever_the_batch(tmp_path: Path, batch: int) -> None:
    assert batch > 1 or len(X) > 2 * CHUNK, "more than one chunk of batches"
    with open_trial(tmp_path, TEXT.replace("BATCH", str(batch)), {"x": X, "y": Y}) as trial:
        p = trial.read_all("parameter")
        found = evaluate(trial, "whole")
    logits = X @ p["net.w"] + p["net.b"]
    ce = np.log(np.exp(logits).sum(1)) - logits[np.arange(37), Y]
    right = logits.argmax(1) == Y
    assert found["eval/whole/nll"] == pytest.approx(ce.mean(), rel=1e-5)
    assert found["eval/whole/accuracy"] == pytest.approx(right.mean(), rel=1e-6)
    assert found["eval/whole/hits"] == right.sum()
    assert found["eval/whole/perplexity"] == pytest.approx(np.exp(ce.mean()), rel=1e-5)
    assert found["eval/whole/per-class"].sum() == -(-37 // batch) * batch, "what ignores `valid` sees the padding"


def test_an_evaluation_draws_the_same_each_time(tmp_path: Path) -> None:
    with open_trial(tmp_path, TEXT.replace("BATCH", "4"), {"x": X, "y": Y}) as trial:
        first = evaluate(trial, "some", 1)
        trial.losses(3)
        assert evaluate(trial, "some", 3) == first
        rows = [trial.experiment.loaders["train"].batch(m)["x"] for m in range(2)]
        assert first["eval/some/size"] == pytest.approx(np.mean(np.square(rows)), rel=1e-5)


def test_a_stacked_program_evaluates_one_batch_at_a_time(tmp_path: Path) -> None:
    text = TEXT.replace("BATCH", "4").replace(":steps 3", ":steps 3 :microbatches 2")
    with open_trial(tmp_path / "a", text, {"x": X, "y": Y}) as one:
        expected = evaluate(one, "whole")
    with open_trial(tmp_path / "b", text, {"x": X, "y": Y}, stacking=2) as stacked:
        found = evaluate(stacked, "whole")
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)


DRAWN = """
(defmetric go-on () (sum (param w (f32 3) 1.0)))
(defmetric drawn () (let [x (random-normal (f32 4))] (measure spread (mean (square x))) (mean x)))
(defeval fresh BATCHES drawn)
(defrun go :loss go-on :steps 3 :optimizer (sgd :rate 0.1) :evaluate (every 1 fresh))
"""


def test_metrics_that_draw_their_data_need_no_loader(tmp_path: Path) -> None:
    with open_trial(tmp_path, DRAWN.replace("BATCHES", ":batches 500")) as trial:
        found = evaluate(trial, "fresh")
    assert found["eval/fresh/drawn"] == pytest.approx(0.0, abs=0.1)
    assert found["eval/fresh/spread"] == pytest.approx(1.0, abs=0.2)


@pytest.mark.parametrize("batches", ["", ":batches all"])
def test_without_a_loader_the_number_of_batches_is_said(tmp_path: Path, batches: str) -> None:
    with pytest.raises(DiagnosticError) as caught, open_trial(tmp_path, DRAWN.replace("BATCHES", batches)):
        pass
    assert [(d.code, d.span.text[:14]) for d in caught.value.diagnostics] == [("E-FORM-004", "(defeval fresh")]
