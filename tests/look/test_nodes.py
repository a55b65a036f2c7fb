"""`sexpgpu diff --graph`: a difference that was planted is found, at its step, its node and its line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.train.test_resume import invoke
from tests.train.trial import write_experiment

TEXT = """(def rate 0.1)
(def start 1.0)
(defmodel net ((x (f32 _ 6)))
  (linear (dropout (tanh
      (linear x 8 :name up))
    0.2) 1 :name out))
(defdata rows-of (arrays "data.npz"))
(defloader train (rows rows-of) :batch 4 :shuffle true)
(defmetric miss (x)
  (mean (square (- (net x) (sum x :axis 1 :keep true)))))
(defeval look :loader train :batches 2 miss)
(defrun go :loader train :loss miss :microbatches 2 :steps 12 :seed 3
  :optimizer (momentum
    :rate (minimum rate (/ start step)))
  :evaluate (every 4 look) :checkpoint (every 4 :keep 9))
"""
X = np.random.default_rng(3).standard_normal((30, 6)).astype(np.float32)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the run `a`."""
    write_experiment(tmp_path, TEXT, "tiny.sx", x=X)
    assert invoke(tmp_path, "run", "tiny.sx", "--out", "a", "--quiet").exit_code == 0
    return tmp_path


def parted(folder: Path, change: tuple[str, str] | None = None, *options: str) -> list[str]:
    """What `diff --graph` says of `a` and of another run, from its line on."""
    if change is not None:
        assert change[0] in TEXT
        (folder / "tiny.sx").write_text(TEXT.replace(*change))
    assert invoke(folder, "run", "tiny.sx", "--out", "b", "--quiet", *options).exit_code == 0
    result = invoke(folder, "diff", "a", "b", "--graph")
    assert result.exit_code == 1, result.output
    lines = result.output.splitlines()
    begin, end = (next(i for i, line in enumerate(lines) if line.startswith(w)) for w in ("graph:", "checkpoint of"))
    return lines[begin:end]


def test_another_function(folder: Path) -> None:
    head, what, a, b, *values = parted(folder, ("tanh", "sigmoid"))
    assert head == "graph: made again on the cpu from the beginning, they part in step 1, phase update.go.first:"
    assert what == "  the graphs part at this node"
    assert a == "    a: `tanh` at tiny.sx:4:20: (tanh (linear x 8 :name up))"
    assert b.startswith("    b: `") and ":4:20: (sigmoid (linear x 8 :name up))" in b
    assert values[0].startswith("  its value at [0 0], and 31 more of 32") and len(values) == 3


def test_another_number_on_another_line(folder: Path) -> None:
    text = TEXT.replace("    0.2) 1", "    0.25) 1")
    (folder / "tiny.sx").write_text("; a comment first\n" + text)
    head, what, a, b, *values = parted(folder)
    assert "step 1, phase update.go.first:" in head
    assert what == "  the first node whose bits differ"
    assert a.startswith("    a: `constant` 0.8") and ":4:11: (dropout" in a
    assert b.startswith("    b: `constant` 0.75") and ":5:11: (dropout" in b
    assert values[0] == "  its value"
    assert values[2] == "    b: 0.75 0x1.8000000000000p-1"


def test_a_schedule_that_differs_late_begins_at_the_checkpoint_before(folder: Path) -> None:
    head, what, first, a, b, *_ = parted(folder, None, "--set", "start=0.9")
    assert "from the checkpoint of step 8, they part in step 10, phase update.go.commit:" in head
    assert what == "  a number that depends on `step` differs"
    assert first == "  the first node whose bits differ"
    assert a == "    a: `constant` 1.0 at tiny.sx:14:25: (/ start step)"
    assert b == "    b: `constant` 0.9 at tiny.sx:14:25: (/ start step)"


def test_another_seed(folder: Path) -> None:
    head, what, *_ = parted(folder, (":seed 3", ":seed 4"))
    assert "they part in the first values, phase initialise:" in head
    assert "the key of its draws, made of the seed and the update, differs" in what


def test_other_rows(folder: Path) -> None:
    head, what, a, b = parted(folder, (":shuffle true", ":shuffle false"))
    assert "step 1, phase update.go.first:" in head
    assert what == "  the field `x` of its batch differs at [0 0], and 23 more of 24"
    assert a.startswith("    a: ") and b.startswith("    b: ") and "0x" in a


def test_another_evaluation(folder: Path) -> None:
    text = TEXT.replace("(sum x :axis 1 :keep true)", "(if training (sum x :axis 1 :keep true) 1.5)")
    (folder / "tiny.sx").write_text(text)
    head, what, a, b, *_ = parted(folder)
    assert "they part in step 1, phase eval.look.0:" in head
    assert what == "  the graphs part at this node" and "tiny.sx:10:" in a and "tiny.sx:10:" in b


def test_a_difference_that_no_experiment_explains(folder: Path) -> None:
    assert invoke(folder, "run", "tiny.sx", "--out", "b", "--quiet").exit_code == 0
    stream = folder / "b" / "metrics.jsonl"
    lines = [json.loads(line) for line in stream.read_text().splitlines()]
    for line in lines:
        if line.get("series") == "train/loss" and line["step"] == 6:
            line["value"] += 1e-7
    stream.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = invoke(folder, "diff", "a", "b", "--graph")
    assert result.exit_code == 1
    assert "from the checkpoint of step 4, the bits of both are equal up to step 6" in result.output
    assert "another device, library or machine" in result.output


def test_data_that_changed_since_is_told(folder: Path) -> None:
    np.savez(folder / "data.npz", x=X + 1)
    assert invoke(folder, "run", "tiny.sx", "--out", "b", "--quiet").exit_code == 0
    result = invoke(folder, "diff", "a", "b", "--graph")
    assert result.exit_code == 1 and "E-CKPT-003" in result.output and "the data or the version" in result.output


def test_equal_runs_have_no_node(folder: Path) -> None:
    assert invoke(folder, "run", "tiny.sx", "--out", "b", "--quiet").exit_code == 0
    result = invoke(folder, "diff", "a", "b", "--graph")
    assert result.exit_code == 0 and "graph" not in result.output
