"""What a run does step after step: states, measures, diagnostics, several updates, the guard, and what it writes."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from sexpgpu.backend.cpu.device import CpuDevice
from sexpgpu.backend.protocol import Budget
from sexpgpu.diagnostics import DiagnosticError
from sexpgpu.lang.load import load_experiment
from sexpgpu.train import loop
from sexpgpu.train.checkpoint import Best, latest, load
from sexpgpu.train.evaluation import run_evaluation
from sexpgpu.train.folder import RunFolder, store_of
from sexpgpu.train.identity import experiment_digest
from sexpgpu.train.loop import Training, memory_line
from sexpgpu.train.metrics import read_annotations, read_metrics
from sexpgpu.train.phases import assemble
from sexpgpu.train.progress import Progress
from sexpgpu.train.writer import CheckpointWriter
from tests.train.trial import open_trial, write_experiment

RNG = np.random.default_rng(3)
X = RNG.standard_normal((40, 6)).astype(np.float32)
HEAD = '(defdata rows-of (arrays "data.npz"))\n'


def train(folder: Path, text: str, arrays: dict, last_step: int | None = None) -> RunFolder:
    """A whole run through `Training`, as `sexpgpu run` makes it."""
    experiment = load_experiment(write_experiment(folder, text, **arrays))
    assembly = assemble(experiment)
    device = CpuDevice(threads=1)
    plan = device.plan(assembly.program, Budget(snapshot=experiment.run.saves_between))
    session = device.open(plan)
    rule = experiment.run.checkpoint
    run = RunFolder(folder / "run")
    run.path.mkdir()
    steps = min(last_step or experiment.run.steps, experiment.run.steps)
    try:
        Training(
            experiment,
            assembly,
            session,
            run,
            Progress(Console(), steps, 0, quiet=True),
            CheckpointWriter(store_of(run), rule.keep, Best(rule.best, rule.higher) if rule.best else None),
            plan=plan,
            digest=experiment_digest(experiment, assembly.program),
            start_step=0,
            last_step=steps,
            stop=lambda: False,
        ).run()
    finally:
        session.close()
    return run


# --- memory against the plan --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "peak, planned, unplanned, told",
    [
        (3 << 20, 1 << 20, 2 << 21, "3.0 MiB of 1.0 MiB planned (±4.0 MiB are Python's own)"),
        (28 << 30, 27 << 30, 64 << 20, "28.0 GiB of 27.0 GiB planned (+3.7%)"),
        (26 << 30, 27 << 30, 0, "26.0 GiB of 27.0 GiB planned (-3.7%)"),
    ],
)
def test_a_difference_that_means_nothing_is_no_percentage(peak: int, planned: int, unplanned: int, told: str) -> None:
    assert memory_line(peak, planned, unplanned) == f"memory: peak {told}"


# --- which rows, which step ---------------------------------------------------------------------------------

ROWS = """
(defmodel net ((x (f32 _ 1))) (linear x 1))
(defloader train (rows rows-of) :batch 1 {shuffle})
(defmetric see (x)
  (measure row (sum x) :reduce {reduce})
  (measure first (sum x) :reduce min)
  (mean (square (net x))))
(defupdate a :loader train :loss see :optimizer (sgd :rate 0.0) {a})
(defupdate b :loader train :loss see :over "net.w" :optimizer (sgd :rate 0.0) {b})
(defrun go :updates [a b] :microbatches {micro} :steps 12 :seed 5)
"""
NUMBERS = np.arange(7, dtype=np.float32)[:, None]


def rows_text(a: str = "", b: str = "", micro: int = 1, shuffle: str = "", reduce: str = "last") -> str:
    return HEAD + ROWS.format(a=a, b=b, micro=micro, shuffle=shuffle, reduce=reduce)


def test_a_step_reads_its_own_microbatches(tmp_path: Path) -> None:
    with open_trial(tmp_path, rows_text(micro=3), {"x": NUMBERS}) as trial:
        for step in range(1, 9):
            measures = trial.step()["a"].measures
            assert measures["row"] == ((step - 1) * 3 + 2) % 7
    with open_trial(tmp_path, rows_text(micro=3, reduce="sum"), {"x": NUMBERS}) as trial:
        for step in range(1, 9):
            assert trial.step()["b"].measures["row"] == sum(((step - 1) * 3 + j) % 7 for j in range(3))


@pytest.mark.parametrize("stacking", [1, 2])
def test_times_counts_microbatches_of_its_own(tmp_path: Path, stacking: int) -> None:
    with open_trial(tmp_path, rows_text(a=":times 2", micro=2), {"x": NUMBERS}, stacking=stacking) as trial:
        for step in range(1, 6):
            found = trial.step()
            # the last of the two times: microbatches (s − 1)·M·times + M … + 2·M − 1
            assert found["a"].measures["row"] == ((step - 1) * 4 + 3) % 7
            assert found["b"].measures["row"] == ((step - 1) * 2 + 1) % 7


@pytest.mark.parametrize("stacking", [1, 2])
@pytest.mark.parametrize("begin", [0, 1, 3, 4, 5])
def test_an_update_that_is_not_always_due_reads_by_the_step(tmp_path: Path, begin: int, stacking: int) -> None:
    """Whether the run began here or was resumed: a step's rows depend on the step alone."""
    with open_trial(tmp_path, rows_text(b=":every 4", micro=2), {"x": NUMBERS}, stacking=stacking) as trial:
        trial.at = begin
        seen = {}
        for step in range(begin + 1, 13):
            found = trial.step()
            assert found["a"].measures["row"] == ((step - 1) * 2 + 1) % 7
            if "b" in found:
                seen[step] = int(found["b"].measures["row"])
    assert seen == {s: ((s - 1) * 2 + 1) % 7 for s in (1, 4, 8, 12) if s > begin}


def test_a_shuffled_epoch_sees_every_row_once(tmp_path: Path) -> None:
    with open_trial(tmp_path, rows_text(shuffle=":shuffle true"), {"x": NUMBERS}) as trial:
        epochs = [[int(trial.step()["a"].measures["row"]) for _ in range(7)] for _ in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(7)) and epochs[0] != epochs[1]


# --- several updates ----------------------------------------------------------------------------------------

TWO = """
(defmetric pull ()
  (let [p (param p (f32) 1.0) q (param q (f32) 1.0)]
    (measure p p) (measure q q)
    (+ (square p) (* p q))))
(defupdate first :loss pull :over "p" :optimizer (sgd :rate 0.1) :times 2)
(defupdate second :loss pull :over "q" :optimizer (sgd :rate 0.5))
(defrun go :updates [first second] :steps 5)
"""


def test_each_update_reads_what_those_before_it_wrote(tmp_path: Path) -> None:
    p = q = 1.0
    with open_trial(tmp_path, TWO, double=True) as trial:
        for _ in range(5):
            found = trial.step()
            p_seen = p - 0.1 * (2 * p + q)
            assert found["first"].measures["p"] == pytest.approx(p_seen, rel=1e-7)
            p = p_seen - 0.1 * (2 * p_seen + q)
            assert found["second"].measures["p"] == pytest.approx(p, rel=1e-7)
            assert found["second"].loss == pytest.approx(p * p + p * q, rel=1e-6)
            q -= 0.5 * p
            assert (trial.read("p"), trial.read("q")) == (pytest.approx(p), pytest.approx(q))


def test_two_updates_of_one_parameter_keep_states_of_their_own(tmp_path: Path) -> None:
    text = TWO.replace('"p"', '"*"').replace('"q"', '"*"').replace("sgd", "momentum").replace(":times 2", "")
    with open_trial(tmp_path, text) as trial:
        names = {s.name for s in trial.assembly.program.saved}
        assert names == {"p", "q", "p/m@first", "q/m@first", "p/m@second", "q/m@second"}
        trial.step()
        assert trial.read("p/m@first") == 3.0 and trial.read("p/m@second") != 3.0


# --- states -------------------------------------------------------------------------------------------------

COUNTERS = """
(defmetric see (x)
  (let [w    (param w (f32) 0.0)
        mean-of (state mean-of (f32) 0.0)
        sum-of  (state sum-of (f32) 0.0)
        top     (state top (f32) -9.0)
        least   (state least (f32) 9.0)
        newest  (state newest (f32) 0.0)
        ewma    (state ewma (f32) 1.0)
        here    (sum x)]
    (set-state mean-of here)
    (set-state sum-of here :reduce sum)
    (set-state top here :reduce max)
    (set-state least here :reduce min)
    (set-state newest here :reduce last)
    (set-state ewma here :using (fn (old seen) (+ (* 0.5 old) (* 0.25 seen))))
    (measure read (+ ewma 0.0))
    (+ w here)))
(defloader train (rows rows-of) :batch 1)
(defeval look :loader train :batches 3 see)
(defrun go :loader train :loss see :microbatches 4 :steps 6 :optimizer (sgd :rate 0.1) :evaluate (every 2 look))
"""


@pytest.mark.parametrize("stacking", [1, 2, 4])
def test_states_fold_over_the_microbatches_and_commit_with_the_update(tmp_path: Path, stacking: int) -> None:
    text = HEAD + COUNTERS
    values = np.asarray([3.0, -1.0, 4.0, 1.0, -5.0, 9.0, 2.0], np.float32)
    ewma = 1.0
    with open_trial(tmp_path, text, {"x": values}, stacking=stacking) as trial:
        for step in range(1, 7):
            seen = [float(values[((step - 1) * 4 + j) % 7]) for j in range(4)]
            result = trial.step()["go"]
            assert result.measures["read"] == pytest.approx(ewma), "as it was when the update began"
            ewma = 0.5 * ewma + 0.25 * sum(seen) / 4
            states = {n: float(v) for n, v in trial.read_all("state").items()}
            assert states == {
                "mean-of": pytest.approx(sum(seen) / 4),
                "sum-of": pytest.approx(sum(seen)),
                "top": max(seen),
                "least": min(seen),
                "newest": seen[-1],
                "ewma": pytest.approx(ewma),
            }


def test_evaluations_move_nothing(tmp_path: Path) -> None:
    with open_trial(tmp_path, HEAD + COUNTERS, {"x": np.arange(7, dtype=np.float32)}) as trial:
        trial.step()
        before = trial.read_all("state", "parameter", "optimizer")
        evaluation = trial.experiment.evaluations["look"]
        found = [
            run_evaluation(
                trial.experiment, trial.assembly.program, trial.session, trial.stepper.schedule, evaluation, 1
            )
            for _ in range(2)
        ]
        assert found[0] == found[1], "an evaluation draws and reads the same each time"
        assert found[0].keys() == {"eval/look/see", "eval/look/read"}
        for name, value in trial.read_all("state", "parameter", "optimizer").items():
            np.testing.assert_array_equal(value, before[name])


NORMALISED = """
(defmodel net ((x (f32 _ 6))) (linear (relu (batch-norm (linear x 4 :name up) :rate 0.2 :name bn)) 1 :name out))
(defloader train (rows rows-of) :batch 8)
(defmetric see (x) (mean (square (- (net x) 1.0))))
(defeval look :loader train :batches 2 see)
(defrun go :loader train :loss see :microbatches 2 :steps 4 :optimizer (sgd :rate 0.1) :evaluate (every 2 look))
"""


@pytest.mark.parametrize("stacking", [1, 2])
def test_batch_norm_against_numpy(tmp_path: Path, stacking: int) -> None:
    with open_trial(tmp_path, HEAD + NORMALISED, {"x": X}, double=True, stacking=stacking) as trial:
        mean, variance = np.zeros(4), np.ones(4)
        for step in range(1, 5):
            p = trial.read_all("parameter")
            losses, means, variances = [], [], []
            for j in range(2):
                m = ((step - 1) * 2 + j) % 5
                h = X[m * 8 : m * 8 + 8].astype(np.float64) @ p["net.up.w"] + p["net.up.b"]
                mu, var = h.mean(0), h.var(0)
                y = np.maximum((h - mu) / np.sqrt(var + 1e-5) * p["net.bn.scale"] + p["net.bn.bias"], 0)
                losses.append(float(((y @ p["net.out.w"] + p["net.out.b"] - 1.0) ** 2).mean()))
                means.append(mu)
                variances.append(h.var(0, ddof=1))
            assert trial.step()["go"].loss == pytest.approx(np.mean(losses), rel=1e-6)
            mean = mean + 0.2 * (np.mean(means, 0) - mean)
            variance = variance + 0.2 * (np.mean(variances, 0) - variance)
            np.testing.assert_allclose(trial.read("net.bn.mean"), mean, rtol=1e-6, atol=1e-9)
            np.testing.assert_allclose(trial.read("net.bn.variance"), variance, rtol=1e-6)
        # outside training the running values stand in
        p = trial.read_all("parameter")
        h = X[:16].astype(np.float64) @ p["net.up.w"] + p["net.up.b"]
        y = np.maximum((h - mean) / np.sqrt(variance + 1e-5) * p["net.bn.scale"] + p["net.bn.bias"], 0)
        expected = ((y @ p["net.out.w"] + p["net.out.b"] - 1.0) ** 2).mean()
        found = run_evaluation(
            trial.experiment,
            trial.assembly.program,
            trial.session,
            trial.stepper.schedule,
            trial.experiment.evaluations["look"],
            4,
        )
        assert found["eval/look/see"] == pytest.approx(expected, rel=1e-6)


# --- measures and diagnostics -------------------------------------------------------------------------------

MEASURES = """
(defmodel net ((x (f32 _))) (* x (param w (f32) 1.0)))
(defloader train (rows rows-of) :batch 2)
(defmetric see (x)
  (let [first (gather x 0)]
    (measure plain first)
    (measure weighted-one first :weight (gather x 1))
    (measure total x :reduce sum)
    (measure top first :reduce max)
    (measure seldom first :every 3)
    (measure root (square first) :after sqrt)
    (mean (square (net x)))))
(defrun go :loader train :loss see :microbatches 2 :steps 8 :optimizer (sgd :rate 0.01))
"""


@pytest.mark.parametrize("stacking", [1, 2])
def test_measures_reduce_weigh_and_wait(tmp_path: Path, stacking: int) -> None:
    x = np.asarray([1, 2, 3, 5, -4, 1, 2, 0], np.float32)
    with open_trial(tmp_path, HEAD + MEASURES, {"x": x}, stacking=stacking, last_step=8) as trial:
        for step in range(1, 9):
            m = [((step - 1) * 2 + j) % 4 for j in range(2)]
            (a0, a1), (b0, b1) = (x[2 * i : 2 * i + 2] for i in m)
            found = trial.step()["go"].measures
            assert found["plain"] == pytest.approx((a0 + b0) / 2)
            assert found["weighted-one"] == pytest.approx((a0 * a1 + b0 * b1) / (a1 + b1))
            np.testing.assert_array_equal(found["total"], [a0 + b0, a1 + b1])
            assert found["top"] == max(a0, b0)
            assert ("seldom" in found) == (step in (1, 3, 6, 8)), "step 1, multiples, the last step"
            assert found["root"] == pytest.approx(math.sqrt((a0**2 + b0**2) / 2)), "of the folded value"


DIAGNOSED = """
(defmodel net ((x (f32 _ 6)))
  (repeat [i 2] [x x] (tanh (linear x 6 :name (layer i)))))
(defloader train (rows rows-of) :batch 8)
(defmetric see (x) (mean (square (- (net x) 1.0))))
(defdiagnostic each (p g new) :over "*.w" (norm (- new p)))
(defdiagnostic grouped (p g new) :group "net.layer.{i}.*" :reduce sum :after sqrt (sum (square g)))
(defdiagnostic largest (p g new) :group "net.*.{what}" :reduce max :every 3 (max (abs new)))
(defdiagnostic middle (p g new) :group "net.layer.{i}.*" (mean p))
(defrun go :loader train :loss see :microbatches 2 :steps 5 :clip 0.1 :optimizer (sgd :rate 0.5)
  :diagnose [each grouped largest middle])
"""


def test_diagnostics_by_parameter_and_group(tmp_path: Path) -> None:
    with open_trial(tmp_path, HEAD + DIAGNOSED, {"x": X}, double=True) as trial:
        for step in range(1, 6):
            p = trial.read_all("parameter")
            found = trial.step()["go"]
            new = trial.read_all("parameter")
            g = {n: (p[n] - new[n]) / 0.5 for n in p}  # what the rule saw: averaged and clipped
            shown = found.diagnostics
            for i in range(2):
                w, b = f"net.layer.{i}.w", f"net.layer.{i}.b"
                assert shown[f"each/{w}"] == pytest.approx(np.linalg.norm(new[w] - p[w]), rel=1e-5)
                assert f"each/{b}" not in shown
                squares = (g[w] ** 2).sum() + (g[b] ** 2).sum()
                (grouped,) = [v for n, v in shown.items() if n.startswith(f"grouped/net.layer.{i}")]
                assert grouped == pytest.approx(math.sqrt(squares), rel=1e-5)
                (middle,) = [v for n, v in shown.items() if n.startswith(f"middle/net.layer.{i}")]
                assert middle == pytest.approx((p[w].mean() + p[b].mean()) / 2, rel=1e-5, abs=1e-8)
            assert any(n.startswith("largest/") for n in shown) == (step in (1, 3, 5))
            assert found.gradient_norm is not None and found.gradient_norm > 0.1


# --- the guard ----------------------------------------------------------------------------------------------

# At step 4 row 3 is enormous: its square overflows.
BLOWN = """
(defmodel net ((x (f32 _)))
  (let [seen (state seen (f32) 0.0)]
    (set-state seen (mean x) :using (fn (old new) (+ old new)))
    (+ (* x (param w (f32) 1.0 )) (param b (f32) 0.0))))
(defloader train (rows rows-of) :batch 1)
(defmetric see (x) (mean (square (net x))))
(defrun go :loader train :loss see :steps 6 :optimizer (momentum :rate 0.01) :checkpoint (every 1) GUARD)
"""
HUGE = np.asarray([1, 2, 3, 1e30, 2, 1], np.float32)


def test_stop_publishes_nothing_of_the_bad_step(tmp_path: Path) -> None:
    text = HEAD + BLOWN.replace("GUARD", "")
    with pytest.raises(DiagnosticError) as caught:
        train(tmp_path, text, {"x": HUGE})
    (found,) = caught.value.diagnostics
    assert found.code == "E-RUN-001"
    assert "step 4" in found.message and "`net.w`" in found.message and "loss is inf" in found.message
    assert found.span is not None and found.span.source.name.endswith("file.sx")
    run = RunFolder(tmp_path / "run")
    newest, skipped = latest(store_of(run))
    assert newest is not None and newest.step == 3 and not skipped
    assert [step for step, _ in read_metrics(run.metrics)["train/loss"]] == [1, 2, 3]
    with open_trial(tmp_path / "again", text, {"x": HUGE}) as trial:
        trial.losses(3)
        before = trial.read_all("parameter", "optimizer", "state")
        for name, value in newest.tensors.items():
            np.testing.assert_array_equal(value, before[name])
        with pytest.raises(DiagnosticError):
            trial.step()
        for name, value in trial.read_all("parameter", "optimizer", "state").items():
            np.testing.assert_array_equal(value, before[name], err_msg=name)


def test_skip_leaves_that_update_out_and_goes_on(tmp_path: Path) -> None:
    text = HEAD + BLOWN.replace("GUARD", ":on-nonfinite skip")
    with open_trial(tmp_path / "by-hand", text, {"x": HUGE}) as trial:
        for step in range(1, 7):
            before = trial.read_all("parameter", "optimizer", "state")
            result = trial.step()["go"]
            after = trial.read_all("parameter", "optimizer", "state")
            assert result.num_skipped == (step == 4)
            for name, value in after.items():
                assert (value == before[name]).all() == (step == 4), name
    run = train(tmp_path, text, {"x": HUGE})
    series = read_metrics(run.metrics)
    assert [step for step, _ in series["train/loss"]] == [1, 2, 3, 4, 5, 6]
    assert series["train/loss"][3][1] == math.inf
    (said,) = [a for a in read_annotations(run.metrics) if a["annotation"] == "skipped"]
    assert said["step"] == 4 and said["update"] == "go" and said["count"] == 1
    assert said["tensors"] == ["net.w"]
    headline, cause = said["text"].splitlines()
    assert headline == "step 4: the update `go` was skipped, its proposals for `net.w` were not finite"
    place = f"{tmp_path / 'file.sx'}:8:26"
    assert cause == f"  {place}: the first value that is not finite: `mul` of 6.43776e+29 and 6.43776e+29 is inf at [0]"
    newest, _ = latest(store_of(run))
    assert newest is not None
    for name, value in newest.tensors.items():
        np.testing.assert_array_equal(value, after[name])


def test_only_the_first_skipped_update_is_made_again_on_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched = []

    def search(*arguments: object) -> None:
        searched.append(arguments)

    monkeypatch.setattr(loop, "first_non_finite", search)
    text = HEAD + BLOWN.replace("GUARD", ":on-nonfinite skip")
    with open_trial(tmp_path, text, {"x": np.where(HUGE == 2, HUGE[3], HUGE)}) as trial:
        assert [trial.step()["go"].num_skipped for _ in range(6)] == [0, 1, 0, 1, 1, 0]
    assert len(searched) == 1


def test_every_time_that_was_skipped_counts(tmp_path: Path) -> None:
    text = (
        HEAD
        + """
(defmetric see (x) (mean (square (* x (param w (f32) 1.0)))))
(defloader train (rows rows-of) :batch 1)
(defupdate a :loader train :loss see :optimizer (sgd :rate 0.01) :times 3)
(defupdate b :loader train :loss see :optimizer (sgd :rate 0.01))
(defrun go :updates [a b] :steps 2 :on-nonfinite skip)
"""
    )
    run = train(tmp_path, text, {"x": np.asarray([1, 1e30, 1, 1, 1, 1], np.float32)})
    said = [a for a in read_annotations(run.metrics) if a["annotation"] == "skipped"]
    assert [(a["step"], a["update"], a["count"]) for a in said] == [(1, "a", 1), (2, "b", 1)]
    assert read_metrics(run.metrics).keys() >= {"train/a/loss", "train/b/loss"}


def test_a_finite_loss_with_a_state_that_is_not(tmp_path: Path) -> None:
    text = """
(defmetric see ()
  (let [w (param w (f32) 1.0) s (state s (f32) 1.0)]
    (set-state s (/ s (- 3.0 step)) :reduce last)
    (square w)))
(defrun go :loss see :steps 5 :optimizer (sgd :rate 0.1))
"""
    with open_trial(tmp_path, text) as trial:
        trial.losses(2)
        with pytest.raises(DiagnosticError, match=r"E-RUN-001.*`s`"):
            trial.step()


# --- checks at run time -------------------------------------------------------------------------------------

INDEXED = """(defdata rows-of (arrays "data.npz"))
(defloader train (rows rows-of) :batch 2)
(defmodel net ((id (i32 _)))
  (gather (param table (f32 5 3) 1.0)
          id))
(defmetric see (id) (mean (square (net id))))
(defeval look :loader train :batches 3 see)
(defrun go :loader train :loss see :microbatches 2 :steps 3 :optimizer (sgd :rate 0.1) EVALUATE)
"""


@pytest.mark.parametrize("bad", [5, -1, 1 << 30])
def test_an_index_out_of_range_names_the_line(tmp_path: Path, bad: int) -> None:
    ids = np.asarray([0, 1, 2, 3, 4, bad, 1, 1], np.int32)
    with open_trial(tmp_path, INDEXED.replace("EVALUATE", ""), {"id": ids}) as trial:
        trial.step()
        before = trial.read("net.table")
        with pytest.raises(DiagnosticError) as caught:
            trial.step()
        found = caught.value.diagnostics[0]
        assert found.code == "E-RUN-003" and "step 2" in found.message
        assert found.span is not None and (found.span.line, found.span.source.name) == (4, str(tmp_path / "file.sx"))
        np.testing.assert_array_equal(trial.read("net.table"), before)


def test_an_index_out_of_range_in_an_evaluation(tmp_path: Path) -> None:
    ids = np.asarray([0, 1, 2, 3, 4, 9], np.int32)
    text = INDEXED.replace("EVALUATE", ":evaluate (every 1 look)")
    with pytest.raises(DiagnosticError, match="E-RUN-003") as caught:
        train(tmp_path, text, {"id": ids})
    found = caught.value.diagnostics[0]
    assert "`look`" in found.message and found.span is not None and found.span.line == 4


# --- the whole run ------------------------------------------------------------------------------------------

WHOLE = """
(defmodel net ((x (f32 _ 6))) (linear (dropout (tanh (linear x 8 :name up)) 0.2) 1 :name out))
(defloader train (rows rows-of) :batch 4 :shuffle true)
(defloader all (rows rows-of) :batch 3)
(defmetric see (x)
  (measure size (rms (net x)))
  (mean (square (- (net x) (sum x :axis 1 :keep true)))))
(defeval look :loader all :batches 4 see)
(defrun go :loader train :loss see :microbatches 2 :steps 20 :seed 3
  :optimizer (adamw :rate (warmup-cosine 0.05 :warmup 5 :total 20))
  :evaluate (every 4 look) :checkpoint (every 5 :keep 2))
"""


def test_what_a_run_leaves_behind(tmp_path: Path) -> None:
    run = train(tmp_path, HEAD + WHOLE, {"x": X})
    series = read_metrics(run.metrics)
    assert [s for s, _ in series["train/loss"]] == list(range(1, 21))
    assert [s for s, _ in series["eval/look/see"]] == [1, 4, 8, 12, 16, 20]
    runtime = {"runtime/step_ms", "runtime/peak_bytes", "runtime/held_bytes"}
    assert series.keys() == {"train/loss", "train/size", "eval/look/see", "eval/look/size", *runtime}
    peaks = [value for _, value in series["runtime/peak_bytes"]]
    assert peaks == sorted(peaks), "a high-water mark never falls"
    assert all(held <= peak for (_, held), peak in zip(series["runtime/held_bytes"], peaks, strict=True))
    assert series["train/loss"][-1][1] < series["train/loss"][0][1] / 2
    plan, stacking, end = read_annotations(run.metrics)
    assert (plan["step"], plan["annotation"], plan["fullest_phase"]) == (1, "memory", "update.go.commit")
    assert plan["fullest_place"].startswith("std/optimizers.sx:")
    assert sum(v for n, v in plan.items() if n.endswith("_bytes") and n != "planned_bytes") == plan["planned_bytes"]
    assert (stacking["step"], stacking["annotation"], stacking["stacking"]) == (1, "stacking", 1)
    assert (end["step"], end["annotation"], end["planned_bytes"]) == (20, "memory", plan["planned_bytes"])
    assert end["peak_bytes"] >= peaks[-1]
    assert sorted(p.name for p in run.checkpoints.iterdir()) == ["step-00000015", "step-00000020"]
    status = json.loads(run.status.read_text())
    assert (status["phase"], status["step"], status["last_checkpoint"]) == ("done", 20, "step-00000020")
    saved = load(store_of(run), "step-00000020")
    assert saved.meta["cursor"] == {"microbatch": 40} and saved.meta["seed"] == 3
    assert saved.meta["file_text"] == HEAD + WHOLE
    assert {r for r in saved.meta["roles"].values()} == {"parameter", "optimizer"}


@pytest.mark.parametrize("better", ["lower", "higher"])
def test_the_best_checkpoint_stays(tmp_path: Path, better: str) -> None:
    saving = f'(every 4 :keep 1 :keep-best "eval/look/size" :better {better})'
    run = train(tmp_path, HEAD + WHOLE.replace("(every 5 :keep 2)", saving), {"x": X})
    values = dict(read_metrics(run.metrics)["eval/look/size"])
    best = (min if better == "lower" else max)(values, key=lambda step: values[step])
    kept = {int(p.name[5:]) for p in run.checkpoints.iterdir()}
    assert kept == {best, 20} and len(values) == 6
    assert load(store_of(run), f"step-{best:08d}").meta["scores"] == {"eval/look/size": values[best]}


def test_fewer_steps_keep_the_schedule(tmp_path: Path) -> None:
    whole = read_metrics(train(tmp_path / "whole", HEAD + WHOLE, {"x": X}).metrics)
    cut = read_metrics(train(tmp_path / "cut", HEAD + WHOLE, {"x": X}, last_step=7).metrics)
    assert cut["train/loss"] == whole["train/loss"][:7]
    assert [s for s, _ in cut["eval/look/see"]] == [1, 4, 7], "the last step is due too"
    assert cut["eval/look/see"][:2] == whole["eval/look/see"][:2]


def test_equal_runs_have_equal_bits(tmp_path: Path) -> None:
    states = []
    for name in ("a", "b"):
        run = train(tmp_path / name, HEAD + WHOLE, {"x": X})
        states.append((run.checkpoints / "step-00000020" / "state.safetensors").read_bytes())
    assert states[0] == states[1]


@pytest.mark.parametrize(
    "text",
    [DIAGNOSED, NORMALISED, COUNTERS, MEASURES, WHOLE],
    ids=["diagnosed", "normalised", "counters", "measures", "whole"],
)
@pytest.mark.parametrize("stacking", [1, 2])
def test_no_call_reads_what_another_left_behind(tmp_path: Path, text: str, stacking: int) -> None:
    """Memory that no value lives in is filled with NaN after every step of every call."""
    x = np.arange(40, dtype=np.float32) if text in (COUNTERS, MEASURES) else X
    results = []
    for poison in (False, True):
        with open_trial(tmp_path, HEAD + text, {"x": x}, stacking=stacking, poison=poison) as trial:
            losses = trial.losses(4)
            results.append((losses, trial.read_all("parameter", "optimizer", "state")))
    assert results[0][0] == results[1][0] and np.isfinite(results[0][0]).all()
    for name, value in results[0][1].items():
        np.testing.assert_array_equal(results[1][1][name], value, err_msg=name)


def test_diagnostics_change_no_bit_of_the_training(tmp_path: Path) -> None:
    found = []
    for text in (DIAGNOSED, DIAGNOSED.replace(":diagnose [each grouped largest middle]", "")):
        with open_trial(tmp_path, HEAD + text, {"x": X}) as trial:
            found.append((trial.losses(5), trial.read_all("parameter")))
    assert found[0][0] == found[1][0]
    for name, value in found[0][1].items():
        np.testing.assert_array_equal(found[1][1][name], value)


@pytest.mark.parametrize("name", ["loss", "gradient-norm", "pull"])
def test_a_measure_takes_no_series_of_the_run(tmp_path: Path, name: str) -> None:
    text = f"""(defmetric pull ()
  (let [p (param p (f32) 3.0)]
    (measure {name} p)
    (square p)))
(defrun go :loss pull :steps 2 :optimizer (sgd :rate 0.1))
"""
    with pytest.raises(DiagnosticError) as caught:
        open_trial(tmp_path, text)
    found = caught.value.diagnostics[0]
    assert found.code == "E-NAME-002" and found.span is not None and found.span.line == 3


def test_the_loss_that_is_shown_is_of_one_update(tmp_path: Path) -> None:
    text = """
(defmetric rare () (+ 100.0 (square (param p (f32) 1.0))))
(defmetric usual () (square (param p (f32) 1.0)))
(defupdate a :loss rare :optimizer (sgd :rate 0.0) :every 2)
(defupdate b :loss usual :optimizer (sgd :rate 0.0))
(defrun go :updates [a b] :steps 4)
"""
    run = train(tmp_path, text, {})
    series = read_metrics(run.metrics)
    assert [s for s, _ in series["train/a/loss"]] == [1, 2, 4]
    assert [s for s, _ in series["train/b/loss"]] == [1, 2, 3, 4]
    assert json.loads(run.status.read_text())["loss"] == 1.0
