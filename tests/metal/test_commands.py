"""Commands on a Mac of paper: what a user types, through the real host code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sexpgpu.backend import registry
from sexpgpu.backend.metal.pool import PAGE_BYTES
from sexpgpu.cli.main import main
from tests.lanes.unit import compiler
from tests.metal.fake_metal import Device
from tests.metal.mac import mac

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs g++")

TEXT = """
(defmodel net ((x (f32 _ 3)))
  (linear (layer-norm (tanh (linear x 64 :name up)) :name norm) 2 :name out))
(defmetric loss () (with :compute bf16 (mean (square (net (random-normal (f32 5 3)))))))
(defeval look :batches 2 loss)
(defrun go :loss loss :steps 4 :seed 1 :microbatches 2 :optimizer (adam :rate 1e-2) :evaluate (every 2 look)
  :checkpoint (every 2))
"""


@pytest.fixture(scope="module")
def paper() -> Iterator[Device]:
    """One Mac for all tests of this file, so that each kernel is compiled once."""
    card, gpu = mac(name="Apple M1 Pro")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_KINDS", {**registry._KINDS, "metal": registry._Kind(lambda _: card)})
        yield gpu


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, paper: Device) -> Path:
    monkeypatch.chdir(tmp_path)
    path = Path("net.sx")
    path.write_text(TEXT, "utf-8")
    return path


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments], catch_exceptions=False)


def series(folder: str, name: str) -> list[float]:
    points = [json.loads(line) for line in Path(folder, "metrics.jsonl").read_text().splitlines()]
    return [point["value"] for point in points if point.get("series") == name]


def test_a_run_is_that_of_the_interpreter_and_resumes() -> None:
    result = invoke("run", "net.sx", "--device", "metal", "--out", "whole")
    assert result.exit_code == 0, result.output
    assert "lowering: metal Apple M1 Pro, bf16 as f32 and integers as i64 in memory" in result.output
    assert json.loads(Path("whole/run.json").read_text())["device"] == "metal"
    invoke("run", "net.sx", "--device", "cpu", "--out", "host")
    losses = series("whole", "train/loss")
    assert len(losses) == 4 and losses == pytest.approx(series("host", "train/loss"), rel=2e-3)
    assert invoke("run", "net.sx", "--device", "metal", "--out", "part", "--steps", "2").exit_code == 0
    assert invoke("run", "net.sx", "--device", "metal", "--out", "part", "--resume", "latest").exit_code == 0
    assert series("part", "train/loss") == losses, "to the same bits"


def test_the_lowering_report() -> None:
    result = invoke("lower", "net.sx", "--device", "metal")
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert lines[0] == "lowering: metal Apple M1 Pro, bf16 as f32 and integers as i64 in memory"
    rows = {line.split()[0]: line for line in lines[1:]}
    assert "kernels (" in rows["update.go.first"] and "copies" not in result.output
    assert "row program" in rows["taken"] and rows.keys() >= {"initialise", "memory", "stacking"}


def test_every_node_is_that_of_the_interpreter() -> None:
    """Of the file, and of the samples of every operation."""
    result = invoke("verify", "net.sx", "--kernels", "--device", "metal")
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[-1].endswith("all within their bounds")


def test_the_planned_memory_is_what_the_pool_gives() -> None:
    result = invoke("run", "net.sx", "--device", "metal", "--out", "run", "--steps", "2")
    assert result.exit_code == 0
    planned = json.loads(Path("run/run.json").read_text())["planned_bytes"]
    (peak,) = set(series("run", "runtime/peak_bytes"))
    assert planned - 4 * PAGE_BYTES <= peak <= planned
