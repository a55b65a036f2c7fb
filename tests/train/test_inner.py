"""Generators inside a loss: run before the training graph, on the loss's own bits, with no gradient through them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sexpgpu.ir.verify import verify_program
from sexpgpu.train.evaluation import run_evaluation
from tests.lang.files import faults
from tests.train.trial import Trial, open_trial

WALK = """
(defmodel rate () (param w (f32 2) 1.0))
(defgenerator walk (x :by 1.0)
  :trips [t 3] :carry [at x]
  (next :at (+ (* by (rate)) (+ at x)) :emit (cast t f32) :emit at))
(defmetric loss ()
  (let [x        (random-normal (f32 2))
        [at t s] (walk x :by 2.0)
        state    (state kept (f32 2) 0.0 :lane true)]
    (set-state state at)
    (measure end (mean at)) (measure trips (sum t)) (measure middle (gather s 1) :reduce last)
    (measure drift (max (abs (- at (+ (* 6.0 (stop-gradient (rate))) (* 4.0 x))))) :reduce max)
    (measure fits (max (abs (- (gather s 0) x))) :reduce max)
    (+ (mean (* (rate) x)) (* 0.0 (mean at)))))
(defrun go :loss loss :optimizer (sgd :rate 0.1) :microbatches 4 :steps 3)
"""


@pytest.mark.parametrize("stacking", [1, 2, 4])
def test_it_reads_what_the_loss_computed(tmp_path: Path, stacking: int) -> None:
    with open_trial(tmp_path, WALK, stacking=stacking) as trial:
        verify_program(trial.assembly.program)
        kept = None
        for _ in range(3):
            w = trial.read("rate.w")
            result = trial.step()["go"]
            assert float(result.measures["drift"]) < 1e-5
            assert float(result.measures["fits"]) == 0.0
            assert float(result.measures["trips"]) == 3.0
            kept = trial.read("kept")
            x = (kept - 6 * w) / 4
            # No gradient goes through the walk: only `x` itself moves the parameter.
            np.testing.assert_allclose(trial.read("rate.w"), w - 0.1 * x.mean(0) / 2, rtol=1e-4, atol=1e-5)
        assert kept is not None and len(np.unique(kept[:, 0])) == 4


def test_stacking_changes_nothing(tmp_path: Path) -> None:
    found = []
    for k in (1, 2, 4):
        with open_trial(tmp_path, WALK, stacking=k) as trial:
            trial.step()
            trial.step()
            found.append(trial.read("kept"))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6)
    np.testing.assert_allclose(found[0], found[2], rtol=1e-6)


BANDIT = """
(def actions 4) (def turns 3) (def batch 32)
(defmodel policy ((goal (i32 _)) (tokens (i32 _ turns)))
  (let [table (param table (f32 actions turns actions) (normal 0.1))]
    (+ (gather table goal) (* 0.0 (cast (rearrange "b t -> b t 1" tokens) f32)))))
(defgenerator rollout (goal)
  :trips [t turns] :carry [tokens (zeros (i32 (dim goal 0) turns))]
  (next :tokens (scatter tokens t (categorical (gather (policy goal tokens) t :axis 1)) :axis 1)))
(defmetric reinforce ()
  (let [goal   (categorical (zeros (f32 batch actions)))
        tokens (rollout goal)
        reward (mean (cast (= tokens (rearrange "b -> b 1" goal)) f32) :axis 1)
        score  (sum (pick (log-softmax (policy goal tokens)) tokens) :axis 1)]
    (measure reward (mean reward))
    (- (mean (* (- reward (mean reward)) score)))))
(defrun learn :loss reinforce :microbatches 2 :steps 60 :seed 5 :optimizer (adam :rate 0.1))
"""


def test_reinforce_learns(tmp_path: Path) -> None:
    with open_trial(tmp_path, BANDIT) as trial:
        rewards = [float(trial.step()["learn"].measures["reward"]) for _ in range(60)]
    assert rewards[0] < 0.5 and np.mean(rewards[-5:]) > 0.9


def test_one_generator_feeds_another(tmp_path: Path) -> None:
    text = """
(defgenerator twice (x) (* 2.0 x))
(defgenerator count (x) :trips [t 2] :axis 1 :carry [y x] (next :y (+ y x) :emit (cast y bf16)))
(defmetric loss ()
  (let [x (random-normal (f32 3)) [y e] (count (twice x))]
    (measure off (max (abs (- y (* 6.0 x)))))
    (measure emitted (max (abs (- (cast (gather e 1 :axis 1) f32) (* 4.0 x)))) :reduce max)
    (square (+ (param w (f32) 1.0) (if (= (shape e) [3 2]) 1.0 (error "another shape"))))))
(defrun go :loss loss :optimizer (sgd :rate 0.1) :microbatches 2 :steps 2)
"""
    for stacking in (1, 2):
        with open_trial(tmp_path, text, stacking=stacking) as trial:
            result = trial.step()["go"]
            assert float(result.measures["off"]) < 1e-5 and float(result.measures["emitted"]) < 0.1
            assert result.loss == 4.0


CHECKED = """
(defdata rows-of (arrays "data.npz"))
(defloader data (rows rows-of) :batch 4)
(defmodel rate () (param w (f32 3) 1.0))
(defgenerator twice (x) (* 2.0 x))
(defgenerator walk (x :by 1.0)
  :trips [t 3] :axis 1 :carry [at x]
  (next :at (+ (* by (rate)) at) :emit (+ at (random-normal (f32 4 3)))))
(defmetric loss (x) (mean (square (- (rate) x))))
(defmetric reached (x)
  (let [y        (+ x (random-uniform (f32 4 3)))
        kept     (state kept (f32 3) 5.0 :lane true)
        [at s]   (walk (twice y) :by 2.0)]
    (set-state kept (zeros (f32 3)))
    (measure off (max (abs (- at (+ (* 2.0 y) (* 6.0 (rate)))))) :reduce max)
    (measure lane (mean (twice kept)))
    (measure way (mean (- at (* 2.0 y))))
    (measure spread (max (abs (- (gather s 0 :axis 1) (* 2.0 y)))) :reduce max)
    (mean at)))
(defaverage slow :decay 0.5)
(defeval check :loader data :batches 3 reached reached)
(defeval behind :loader data :batches 3 :weights slow reached)
(defrun go :loss loss :loader data :optimizer (sgd :rate 0.1) :steps 4 :evaluate [(every 1 check) (every 1 behind)])
"""


def checked(trial: Trial, name: str) -> dict[str, float]:
    found = run_evaluation(
        trial.experiment, trial.assembly.program, trial.session, trial.stepper.schedule,
        trial.experiment.evaluations[name], max(trial.at, 1),
    )  # fmt: skip
    return {series.removeprefix(f"eval/{name}/"): float(value) for series, value in found.items()}


def test_an_evaluation_calls_generators(tmp_path: Path) -> None:
    x = np.random.default_rng(1).standard_normal((12, 3)).astype(np.float32)
    with open_trial(tmp_path, CHECKED, {"x": x}, poison=True) as trial:
        verify_program(trial.assembly.program)
        for _ in range(2):
            trial.step()
            before = trial.read_all("parameter", "state", "optimizer", "average")
            found, again, behind = checked(trial, "check"), checked(trial, "check"), checked(trial, "behind")
            assert found == again, "an evaluation draws the same each time"
            assert found["off"] < 1e-5 and behind["off"] < 1e-5 and found["lane"] == 10.0
            # What the generator walks by are the parameters, and in the other evaluation their average.
            rate, slow = before["rate.w"].mean(), before["average.slow/rate.w"].mean()
            assert abs(rate - slow) > 1e-3
            np.testing.assert_allclose([found["way"], behind["way"]], [6 * rate, 6 * slow], rtol=1e-5)
            assert 1 < found["spread"] < 6, "normal draws of the trips, on the uniform ones of the metric"
            after = trial.read_all("parameter", "state", "optimizer", "average")
            for slot, value in before.items():
                np.testing.assert_array_equal(after[slot], value, err_msg=slot)
        phases = [phase.name for phase in trial.assembly.program.phases]
    assert phases.index("eval.check.0.generate.walk.1.trip") < phases.index("eval.check.0")
    assert "eval.check.1.generate.twice.2.start" in phases


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("(defmetric m () (+ (square (param w (f32) 1.0)) (sum (g))))", "E-CALL-002", "takes 1"),
        ("(defmetric m () (sum (grad (fn (z) (sum (g z))) (param w (f32 2) 1.0))))", "E-CALL-001", "`grad`"),
        ("(defmetric m () (sum (recompute (* (param w (f32 2) 1.0) (g (ones (f32 2)))))))",
         "E-CALL-001", "`recompute`"),
        ("(defmetric m () (square (param w (f32) 1.0)))\n(defrun h :loss m :steps 1 :generate g)",
         "E-FORM-001", "by position"),
    ],
)  # fmt: skip
def test_mistakes(text: str, code: str, words: str) -> None:
    run = "" if "defrun" in text else "(defrun go :loss m :optimizer (sgd :rate 0.1) :steps 1)\n"
    data = '(defdata d (text "words.txt"))\n(defloader l (windows d :length 4) :batch 2)\n'
    (fault,) = faults(f"{data}(defgenerator g (x) (* 2.0 x))\n{text}\n{run}")
    assert fault.code == code and words in fault.message
