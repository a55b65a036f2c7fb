"""Running averages of parameters: they move with each commit, are read by `:weights`, and are checkpointed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sexpgpu.ir.program import SAVED_ROLES
from sexpgpu.train.evaluation import run_evaluation
from sexpgpu.train.generation import run_generator
from tests.lang.files import codes, faults
from tests.train.trial import open_trial

TEXT = """
(defmodel net ((x (f32 _ 3))) (linear x 2 :name out))
(defaverage slow :over "net.*" :decay {decay})
(defdata d (arrays "data.npz"))
(defloader train (rows d) :batch 4)
(defmetric loss (x) (mean (square (- (net x) 1.0))))
(defeval fast :loader train :batches 1 loss)
(defeval slowly :loader train :batches 1 :weights slow loss)
(defgenerator show () :weights slow (net (ones (f32 1 3))))
(defgenerator inner () (with :weights slow (net (ones (f32 1 3)))))
(defgenerator outer () :weights slow (with :weights none (net (ones (f32 1 3)))))
(defupdate u :loss loss :loader train :optimizer (sgd :rate 0.1) :times {times})
(defrun go :updates [u] :microbatches 2 :steps 6 :seed 1 :on-nonfinite {guard})
"""
X = np.random.default_rng(0).standard_normal((24, 3)).astype(np.float32)


def text(decay: str = "0.9", times: int = 1, guard: str = "stop") -> str:
    return TEXT.format(decay=decay, times=times, guard=guard)


@pytest.mark.parametrize(
    ("written", "decay"),
    [("0.9", lambda s: 0.9), ("(minimum 0.999 (/ (+ step 1) (+ step 10)))", lambda s: (s + 1) / (s + 10))],
)
def test_an_average_follows_its_parameter(tmp_path: Path, written: str, decay) -> None:
    with open_trial(tmp_path, text(written), {"x": X}) as trial:
        expected = trial.read("net.out.w")
        np.testing.assert_array_equal(trial.read("average.slow/net.out.w"), expected)
        for step in range(1, 5):
            trial.step()
            expected = expected + np.float32(1 - decay(step)) * (trial.read("net.out.w") - expected)
            np.testing.assert_allclose(trial.read("average.slow/net.out.w"), expected, rtol=1e-6)
        assert not np.array_equal(expected, trial.read("net.out.w"))


def test_every_commit_moves_the_average(tmp_path: Path) -> None:
    with open_trial(tmp_path, text("0.5", times=2), {"x": X}) as trial:
        first = trial.read("net.out.b")
        trial.step()
        last, average = trial.read("net.out.b"), trial.read("average.slow/net.out.b")
        # Of two commits the first is half of the way; only one commit would leave it at half of `last`.
        assert not np.allclose(average, first + 0.5 * (last - first))


def test_evaluations_and_generators_read_the_average(tmp_path: Path) -> None:
    with open_trial(tmp_path, text(), {"x": X}) as trial:
        for _ in range(3):
            trial.step()
        experiment, program = trial.experiment, trial.assembly.program

        def metric(name: str) -> float:
            found = run_evaluation(
                experiment, program, trial.session, trial.stepper.schedule, experiment.evaluations[name], 3
            )
            return float(found[f"eval/{name}/loss"])

        def shown(name: str) -> np.ndarray:
            generator = experiment.generators[name]
            return run_generator(experiment, program, trial.session, trial.stepper.schedule, generator, 3).carries[0]

        w, b = trial.read("average.slow/net.out.w"), trial.read("average.slow/net.out.b")
        expected = np.mean((X[:4] @ w + b - 1) ** 2)
        assert metric("slowly") == pytest.approx(expected, rel=1e-5)
        assert metric("fast") < metric("slowly")
        np.testing.assert_allclose(shown("show"), w.sum(0, keepdims=True) + b, rtol=1e-5)
        np.testing.assert_array_equal(shown("inner"), shown("show"))
        assert not np.allclose(shown("outer"), shown("show"))


def test_a_skipped_update_leaves_the_average(tmp_path: Path) -> None:
    data = X.copy()
    data[0] = np.inf
    with open_trial(tmp_path, text(guard="skip"), {"x": data}) as trial:
        before = trial.read("average.slow/net.out.w")
        assert trial.step()["u"].num_skipped == 1
        np.testing.assert_array_equal(trial.read("average.slow/net.out.w"), before)


def test_averages_are_saved(tmp_path: Path) -> None:
    with open_trial(tmp_path, text(), {"x": X}) as trial:
        slots = {s.name: s for s in trial.assembly.program.saved}
        assert slots["average.slow/net.out.w"].role == "average" in SAVED_ROLES


def test_a_teacher_inside_the_loss_is_a_constant(tmp_path: Path) -> None:
    teacher = """
(defmodel net () (param w (f32 2) 1.0))
(defaverage slow :decay 0.5)
(defmetric loss () (sum (square (- (net) (* 0.5 (with :weights slow (net)))))))
(defrun go :loss loss :optimizer (sgd :rate 0.25) :steps 3)
"""
    with open_trial(tmp_path, teacher) as trial:
        trial.step()
        np.testing.assert_allclose(trial.read("net.w"), [0.75, 0.75])
        np.testing.assert_allclose(trial.read("average.slow/net.w"), [0.875, 0.875])


def test_mistakes() -> None:
    run = "(defmetric m () (square (param w (f32) 1.0)))\n(defrun go :loss m :optimizer (sgd :rate 0.1) :steps 1)"
    assert codes(f'(defaverage slow :over "v" :decay 0.9)\n{run}') == ["E-NAME-001"]
    assert codes(f"(defaverage slow :decay 1.5)\n{run}") == ["E-TYPE-006"]
    assert codes(f"(defaverage slow)\n{run}") == ["E-FORM-001"]
    assert codes(f"(defgenerator g () :weights m (ones (f32 1)))\n{run}") == ["E-TYPE-006"]
    (fault,) = faults("(defmetric m () (with :weights 3 (square (param w (f32) 1.0))))\n"
                      "(defrun go :loss m :optimizer (sgd :rate 0.1) :steps 1)")  # fmt: skip
    assert "the integer 3" in fault.message
