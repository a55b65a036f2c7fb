"""Series as arrays: read whole or in part, thinned without losing a peak, told in few characters."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from sexpgpu.look.series import (
    Series,
    best,
    best_evaluation,
    duration,
    read_stream,
    short,
    smoothed,
    sparkline,
    thinned,
)
from sexpgpu.train import metrics


def series(values: list[float], name: str = "eval/look/nll") -> Series:
    return Series(name, np.arange(1, len(values) + 1), np.asarray(values, np.float64))


def write(path: Path, *records: dict) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_a_stream_comes_as_arrays(tmp_path: Path) -> None:
    path = write(
        tmp_path / "metrics.jsonl",
        {"step": 1, "series": "train/loss", "value": 2.5},
        {"step": 2, "series": "train/loss", "value": "nan"},
        {"step": 2, "annotation": "sample", "text": "x"},
        {"step": 2, "series": "eval/look/nll", "value": 1},
        {"step": 3, "series": "train/load", "value": [0.25, "inf"]},
        {"step": 1, "series": "train/loss", "value": 4.0},
    )
    with path.open("a") as stream:
        stream.write('{"step": 4, "series": "train/loss", "val')
    found = read_stream(path)
    assert list(found.series) == ["train/loss", "eval/look/nll", "train/load[0]", "train/load[1]"]
    loss = found.series["train/loss"]
    assert loss.steps.tolist() == [1, 2] and loss.values[0] == 4.0 and math.isnan(loss.values[1])
    assert found.series["train/load[1]"].values.tolist() == [math.inf]
    assert [note["text"] for note in found.annotations] == ["x"]
    assert list(read_stream(path, only=b'"eval/').series) == ["eval/look/nll"]
    assert not read_stream(tmp_path / "none").series


@pytest.mark.parametrize("block", [1, 7, 64, 1 << 22])
def test_blocks_end_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(metrics, "_BLOCK_BYTES", block)
    path = write(tmp_path / "m", *({"step": s, "series": "a", "value": s / 3} for s in range(1, 40)))
    with path.open("a") as stream:
        stream.write("{broken}\n" + json.dumps({"step": 40, "series": "a", "value": 0.5}) + "\n[1]\n")
    found = read_stream(path).series["a"]
    assert found.steps.tolist() == list(range(1, 41))
    assert found.values.tolist() == [*(s / 3 for s in range(1, 40)), 0.5]


def test_thinning_keeps_every_peak() -> None:
    draw = np.random.default_rng(0)
    values = draw.standard_normal(100_000)
    values[31_415] = 50.0
    values[92_653] = -60.0
    steps, kept = thinned(series(values.tolist()), 300)
    assert len(steps) <= 600 and (np.diff(steps) >= 0).all()
    assert kept.max() == 50.0 and kept.min() == -60.0
    assert steps[0] == 1 and steps[-1] == 100_000
    whole = series([3.0, 1.0, 2.0])
    assert thinned(whole, 300)[1] is whole.values


def test_thinning_is_by_step_and_not_by_number_of_points() -> None:
    steps = np.concatenate([np.arange(1, 1001), [1_000_000]])
    found, values = thinned(Series("a", steps, np.arange(1001.0)), 10)
    assert found.tolist() == [1, 1000, 1_000_000, 1_000_000] and values.tolist() == [0, 999, 1000, 1000]


def test_a_moving_mean() -> None:
    assert smoothed(series([4.0, 2.0, 6.0, 1.0]), 2).values.tolist() == [4.0, 3.0, 4.0, 3.5]


def test_the_best_of_a_series() -> None:
    assert best(series([3.0, 1.0, math.nan, 2.0])) == ("lowest", 2, 1.0)
    assert best(series([0.3, 0.9, 0.5], "eval/look/accuracy")) == ("highest", 2, 0.9)
    assert best(series([0.3, 0.9], "eval/look/accuracy"), is_loss=True) == ("lowest", 1, 0.3)
    assert best(series([math.nan])) is None


def test_a_run_is_judged_by_the_metric_it_trains_on() -> None:
    found = {n: series(v, n) for n, v in (("train/loss", [1.0]), ("eval/a/accuracy", [0.5]), ("eval/a/nll", [2.0]))}
    assert best_evaluation(found, ["nll"]) == ("eval/a/nll", ("lowest", 1, 2.0))
    assert best_evaluation(found, []) == ("eval/a/accuracy", ("highest", 1, 0.5))
    assert best_evaluation({"train/loss": series([1.0])}, ["nll"]) is None


def test_sparklines() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([7, 7, 0, 0], 2) == "█▁"
    assert sparkline([1.0, math.nan, 1.0], 3) == "▁ ▁"
    assert sparkline([], 5) == "" and sparkline([math.inf], 5) == " "


@pytest.mark.parametrize(
    "value, told",
    [
        (0.0, "0"), (1.0, "1"), (2.43061, "2.4306"), (-31.4159, "-31.42"), (1234.5, "1,234"), (12345678.0, "1.23e+07"),
        (0.00012, "0.00012"), (math.nan, "nan"),
    ],
)  # fmt: skip
def test_numbers_in_few_characters(value: float, told: str) -> None:
    assert short(value) == told


def test_durations() -> None:
    told = [duration(s) for s in (1.23, 45, 200, 18_720, 273_600)]
    assert told == ["1.2 s", "45 s", "3 min 20 s", "5 h 12 min", "3 d 4 h"]
