"""Lane states: an entry for each microbatch of a step, never folded, committed with the update."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sexpgpu.train.evaluation import run_evaluation
from tests.lang.files import faults
from tests.train.trial import open_trial

X = np.arange(24, dtype=np.float32)
SUMS = """
(defdata d (arrays "data.npz"))
(defloader train (rows d) :batch 1)
(defmetric loss (x)
  (let [seen (state seen (f32 1) 0.0 :lane true) n (state n (i32) 7 :lane true) on (state on (bool 2) false :lane true)
        total (+ seen x) w (param w (f32 1) 0.0)]
    (set-state seen total) (set-state n (+ n 1)) (set-state on (not on))
    (measure total (mean total))
    (mean (square (- w total)))))
(defeval look :loader train :batches 3 loss)
(defrun go :loader train :loss loss :optimizer (sgd :rate 0.0) :microbatches 4 :steps 6)
"""


@pytest.mark.parametrize("stacking", [1, 2, 4])
def test_each_microbatch_has_its_own(tmp_path: Path, stacking: int) -> None:
    with open_trial(tmp_path, SUMS, {"x": X}, stacking=stacking) as trial:
        assert trial.read("seen").shape == (4, 1)
        np.testing.assert_array_equal(trial.read("n"), [7] * 4)
        for step in range(1, 4):
            result = trial.step()["go"]
            # Microbatch j has seen rows j, 4 + j, …
            expected = X[: 4 * step].reshape(step, 4).sum(0)
            np.testing.assert_array_equal(trial.read("seen")[:, 0], expected)
            np.testing.assert_array_equal(trial.read("n"), [7 + step] * 4)
            np.testing.assert_array_equal(trial.read("on"), np.full((4, 2), step % 2 == 1))
            assert float(result.measures["total"]) == expected.mean()


def test_one_microbatch(tmp_path: Path) -> None:
    with open_trial(tmp_path, SUMS.replace(":microbatches 4", ""), {"x": X}) as trial:
        trial.step()
        trial.step()
        np.testing.assert_array_equal(trial.read("seen"), [[1.0]])


def test_an_evaluation_reads_and_keeps_the_first_values(tmp_path: Path) -> None:
    with open_trial(tmp_path, SUMS, {"x": X}) as trial:
        trial.step()
        before = trial.read("seen")
        found = run_evaluation(
            trial.experiment, trial.assembly.program, trial.session, trial.stepper.schedule,
            trial.experiment.evaluations["look"], 1,
        )  # fmt: skip
        assert float(found["eval/look/total"]) == X[:3].mean()
        np.testing.assert_array_equal(trial.read("seen"), before)


def test_lanes_are_saved(tmp_path: Path) -> None:
    with open_trial(tmp_path, SUMS, {"x": X}) as trial:
        assert {"seen", "n", "on"} <= {slot.name for slot in trial.assembly.program.saved}


def test_a_skipped_update_leaves_its_lanes(tmp_path: Path) -> None:
    text = SUMS.replace(":steps 6", ":steps 6 :on-nonfinite skip")
    with open_trial(tmp_path, text, {"x": np.r_[X[:4], np.inf, X[5:]].astype(np.float32)}) as trial:
        trial.step()
        before = trial.read("seen")
        assert trial.step()["go"].num_skipped == 1
        np.testing.assert_array_equal(trial.read("seen"), before)


SHARED = """
(defn kept () (state kept (bf16 2) 0.0 :lane true))
(defmetric collect () (let [k (kept)] (set-state k (cast (random-normal (f32 2)) bf16)) 0.0))
(defmetric learn ()
  (let [k (cast (kept) f32)]
    (measure seen (sum k) :reduce sum)
    (mean (square (- (param w (f32 2) 0.0) k)))))
(defupdate play :loss collect)
(defupdate study :loss learn :times 3 :optimizer (sgd :rate 0.5))
(defrun go :updates [play study] :microbatches 3 :steps 4)
"""


def test_updates_share_lanes(tmp_path: Path) -> None:
    with open_trial(tmp_path, SHARED) as trial:
        kept = []
        for _ in range(3):
            w = trial.read("w")
            result = trial.step()
            lanes = trial.read("kept").astype(np.float32)
            assert lanes.shape == (3, 2) and len(np.unique(lanes, axis=0)) == 3
            assert float(result["study"].measures["seen"]) == pytest.approx(lanes.sum(), rel=1e-5)
            for _ in range(3):
                w = w - 0.5 * (w - lanes).mean(0)
            np.testing.assert_allclose(trial.read("w"), w, rtol=1e-5, atol=1e-6)
            kept.append(lanes)
        assert not np.array_equal(kept[0], kept[1])


STREAMS = """
(defdata d (text "words.txt" :by bytes))
(defloader train (streams d :length 4) :batch 2)
(defmetric loss (tokens (first (bool _)))
  (let [kept (state kept (i32 2) -1 :lane true)]
    (set-state kept (gather tokens -1 :axis 1))
    (measure fits (mean (cast (or first (= (gather tokens 0 :axis 1) (+ kept 1))) f32)))
    (square (param w (f32) 1.0))))
(defrun go :loader train :loss loss :optimizer (sgd :rate 0.0) :microbatches 3 :steps 30)
"""


def test_streams_go_on_in_their_lanes(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_bytes(bytes(range(200)))
    with open_trial(tmp_path, STREAMS) as trial:
        assert all(float(trial.step()["go"].measures["fits"]) == 1.0 for _ in range(20))


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ("(set-state s x) (set-state s x)", "E-STATE-001", "twice"),
        ("(set-state s x :reduce sum)", "E-STATE-001", "never folded"),
        ("(set-state s x :using (fn (a b) b))", "E-STATE-001", "never folded"),
        ("(set-state (state s (f32 1) 0.0) x)", "E-PARAM-001", "in one place"),
    ],
)
def test_mistakes(body: str, code: str, words: str) -> None:
    text = f"""
(defmetric loss ()
  (let [s (state s (f32 1) 0.0 :lane true) x (param w (f32 1) 1.0)]
    {body}
    (mean x)))
(defrun go :loss loss :optimizer (sgd :rate 0.0) :steps 1)
"""
    (fault,) = faults(text)
    assert fault.code == code and words in fault.message
