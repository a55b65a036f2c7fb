"""Early stop: when it comes, what is said and saved, and that a resumed run stops at the same step."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from sexpgpu.lang.experiment import StopRule
from sexpgpu.train.checkpoint import load
from sexpgpu.train.metrics import read_annotations, read_metrics
from sexpgpu.train.stopping import EarlyStop
from sexpgpu.train.store import FolderStore
from tests.lang.files import faults, load_text
from tests.train.test_resume import invoke, newest
from tests.train.trial import write_experiment


def followed(values: list[float], rule: StopRule) -> tuple[int | None, EarlyStop]:
    """The position, from 1, of the value that ends the patience."""
    early = EarlyStop(rule)
    for step, value in enumerate(values, 1):
        early.see(step, {"s": np.float32(value)})
        early = EarlyStop(rule, json.loads(json.dumps(early.record())))  # as through a checkpoint
        if early.reason is not None:
            return step, early
    return None, early


@pytest.mark.parametrize(
    ("values", "by", "rising", "end"),
    [
        ([5, 4, 3, 3, 3, 3, 1], 0.0, False, 5),
        ([5, 4, 4.5, 3.9, 4, 3.8], 0.0, False, None),
        ([5, 4, 3.95, 3.92, 1], 0.1, False, 4),
        ([5, 4, 3.95, 3.8, 1], 0.1, False, None),
        ([1, 2, 3, 2, 3], 0.0, True, 5),
        ([math.nan, math.nan, 1], 0.0, False, 2),
        ([math.inf, 1, math.nan, 2], 0.0, False, 4),
        ([1, -math.inf, math.inf], 0.0, False, 3),
    ],
)
def test_patience_counts_values_that_are_not_better(
    values: list[float], by: float, rising: bool, end: int | None
) -> None:
    assert followed(values, StopRule("s", 1, 2, by, rising))[0] == end


def test_the_reason_names_the_best_value_and_its_step() -> None:
    _, early = followed([3, 2, 4, 2.5], StopRule("s", 1, 2, 0.25, False))
    assert early.reason == "s did not fall below 2, its value at step 2, by more than 0.25 in 2 values in a row"
    _, early = followed([3, 2], StopRule("s", 1, 1, 0.0, True))
    assert early.reason == "s did not rise above 3, its value at step 1, in 1 value"
    _, early = followed([math.nan], StopRule("s", 1, 1, 0.0, True))
    assert early.reason == "s was no number in 1 value"


def test_values_off_the_beat_and_of_other_series_do_not_count() -> None:
    early = EarlyStop(StopRule("s", 4, 1, 0.0, False))
    for step in (1, 2, 3, 5, 7):
        early.see(step, {"s": 1.0, "t": 0.0})
    early.see(4, {"t": 0.0})
    assert early.reason is None
    early.see(8, {"s": 1.0})
    assert early.reason is not None
    assert EarlyStop(StopRule("t", 4, 1, 0.0, False), early.record()).reason is None


# --- in a run -----------------------------------------------------------------------------------------------

# The loss falls to 0 by step 12 and stays; evaluations of steps 1, 4, 8, 12 better it, those of 16 and 20 do not.
TEXT = """
(defmetric far ()
  (let [p (param p (f32) 12.0)]
    (measure size (abs p))
    (measure pair (stack [p p]))
    (abs p)))
(defmetric away () (abs (- 20 step)))
(defeval look :batches 1 far)
(defeval other :batches 1 away)
(defgenerator draw () :trips [t 2] :carry [s 0.0] (next :emit (+ s (cast t f32))))
(defdiagnostic moved (p g new) (abs (- new p)))
(defrun go :loss far :optimizer (sgd :rate 1.0) :steps 60 :clip 100.0 :diagnose [moved]
  :evaluate [(every 4 look) (every 7 other)] :generate (every 50 draw) :checkpoint (every 6 :keep 9) STOP)
"""
STOP = ':stop (patience 2 "eval/look/far")'


def test_a_run_stops_early_says_why_and_is_saved(tmp_path: Path) -> None:
    write_experiment(tmp_path, TEXT.replace("STOP", STOP), "tiny.sx")
    result = invoke(tmp_path, "run", "tiny.sx")
    assert result.exit_code == 0, result.output
    reason = "eval/look/far did not fall below 0, its value at step 12, in 2 values in a row"
    assert result.output.splitlines()[-1] == f"stopped early at step 20 of 60, saved: {reason}"
    run = tmp_path / "runs" / "tiny"
    assert newest(run) == 20
    status = json.loads((run / "status.json").read_text())
    assert (status["phase"], status["step"], status["steps"], status["stopped"]) == ("done", 20, 60, reason)
    facts = json.loads((run / "run.json").read_text())
    assert facts["stop"] == {"series": "eval/look/far", "every": 4, "patience": 2, "by": 0.0, "rising": False}
    (said,) = [a for a in read_annotations(run / "metrics.jsonl") if a["annotation"] == "stopped"]
    assert said["step"] == 20 and reason in said["text"]
    assert [s for s, _ in read_metrics(run / "metrics.jsonl")["eval/other/away"]] == [1, 7, 14, 20], "as at a last step"
    assert (run / "samples" / "draw-00000020.npz").exists()
    again = invoke(tmp_path, "run", "tiny.sx", "--resume", "latest")
    assert again.exit_code == 0
    assert f"nothing to do: the checkpoint is of step 20, where the run stopped early: {reason}" in again.output
    shown = invoke(tmp_path, "watch", "tiny")
    assert shown.exit_code == 0 and f"It stopped early: {reason}." in shown.output


@pytest.mark.parametrize("cut", [1, 5, 12, 13, 16, 17, 19])
def test_a_resumed_run_stops_at_the_same_step(tmp_path: Path, cut: int) -> None:
    write_experiment(tmp_path, TEXT.replace("STOP", STOP), "tiny.sx")
    assert invoke(tmp_path, "run", "tiny.sx", "--out", "whole", "--quiet").exit_code == 0
    assert invoke(tmp_path, "run", "tiny.sx", "--out", "cut", "--quiet", "--steps", str(cut)).exit_code == 0
    assert invoke(tmp_path, "run", "tiny.sx", "--out", "cut", "--quiet", "--resume", "latest").exit_code == 0
    whole, resumed = (
        load(FolderStore(tmp_path / name / "checkpoints"), "step-00000020") for name in ("whole", "cut")
    )
    assert newest(tmp_path / "cut") == 20 and whole.meta == resumed.meta
    assert whole.meta["early_stop"] == {"series": "eval/look/far", "best": 0.0, "best_step": 12, "since": 2}


def test_more_patience_goes_on_where_a_run_stopped(tmp_path: Path) -> None:
    path = write_experiment(tmp_path, TEXT.replace("STOP", STOP), "tiny.sx")
    assert invoke(tmp_path, "run", "tiny.sx", "--quiet").exit_code == 0
    path.write_text(TEXT.replace("STOP", STOP.replace("patience 2", "patience 4")))
    result = invoke(tmp_path, "run", "tiny.sx", "--resume", "latest")
    assert result.exit_code == 0 and "stopped early at step 28" in result.output


def test_a_run_that_ends_first_says_nothing_of_patience(tmp_path: Path) -> None:
    write_experiment(tmp_path, TEXT.replace("STOP", STOP), "tiny.sx")
    result = invoke(tmp_path, "run", "tiny.sx", "--steps", "20")
    assert result.exit_code == 0 and "stopped early" not in result.output
    assert json.loads((tmp_path / "runs" / "tiny" / "status.json").read_text())["stopped"] is None


# --- in the language ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("series", "every"),
    [
        ("train/loss", 1), ("train/gradient-norm", 1), ("train/size", 1), ("train/moved/p", 1),
        ("eval/look/far", 4), ("eval/look/size", 4), ("eval/other/away", 7),
    ],
)  # fmt: skip
def test_every_series_of_numbers_can_be_waited_for(series: str, every: int) -> None:
    run = load_text(TEXT.replace("STOP", f':stop (patience 3 "{series}" :by 1 :best highest)')).run
    assert run.stop == StopRule(series, every, 3, 1.0, True)


@pytest.mark.parametrize(
    ("stop", "code", "message", "help"),
    [
        ('(patience 2 "eval/look/fa")', "E-NAME-001", 'no series of numbers "eval/look/fa"', "eval/look/far"),
        ('(patience 2 "train/pair")', "E-NAME-001", 'no series of numbers "train/pair"', ""),
        ("(patience 2 look)", "E-TYPE-006", "`patience` waits for a series, not for the eval `look`", "metrics.jsonl"),
        ('(patience 0 "train/loss")', "E-TYPE-005", "`patience` counts from 1", ""),
        ('(patience "train/loss")', "E-FORM-001", "this form is (patience n", ""),
        ('(patience 2 "train/loss" :by -1)', "E-TYPE-006", "`:by` is a number from 0 on", ""),
        ('(patience 2 "train/loss" :best smallest)', "E-FORM-003", "`:best` is one of lowest highest", ""),
        ("(every 5 look)", "E-TYPE-006", "`:stop` is (patience n SERIES), not an `every` form", ""),
    ],
)  # fmt: skip
def test_what_is_refused(stop: str, code: str, message: str, help: str) -> None:
    (found,) = faults(TEXT.replace("STOP", f":stop {stop}"))
    assert found.code == code and message in found.message and help in " ".join(found.help)
    assert found.span is not None and found.span.line == 13
