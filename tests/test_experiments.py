"""Acceptance: experiments of many kinds, unchanged, check in every variant and train with a falling loss."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from sexpgpu.cli.main import main
from sexpgpu.lang.load import load_experiment
from sexpgpu.train.metrics import read_metrics
from tests.lang.test_replay import Counted

CASES = {
    "01-linear": ["--steps", "60"],
    "02-char": ["--variant", "smoke"],
    "03-llama": ["--variant", "smoke"],
    "04-resnet": ["--variant", "smoke"],
    "05-gan": ["--variant", "smoke"],
    "06-vae": ["--variant", "smoke"],
    "07-diffusion": ["--variant", "smoke"],
    "08-ssm": ["--variant", "smoke"],
    "09-memory": ["--variant", "smoke"],
    "10-moe": ["--variant", "smoke"],
    "11-reinforce": ["--variant", "smoke"],
    "12-lora": ["--variant", "smoke"],
    "13-contrastive": ["--variant", "smoke"],
    "14-seq2seq": ["--variant", "smoke"],
    "15-muon": ["--variant", "smoke"],
    "16-curriculum": ["--variant", "smoke"],
    "17-diagnostics": ["--variant", "smoke"],
    "18-tbptt": ["--variant", "smoke"],
    "19-ppo": ["--variant", "smoke"],
    "20-odds": ["--steps", "60"],
}
OPPOSED = {"05-gan"}
"""Whose losses work against one another: all stay finite, and one falls."""

REWARDED = {"19-ppo"}
"""Whose first update collects a reward, which rises, and whose second has a loss that has no level of its own."""

PARTS = {
    "09-memory": (('(def memory "table")', '(def memory "delta")'),),
}  # fmt: skip
"""Changes to experiments: to another of their models."""


def copy_with_data(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the experiments with their data made."""
    source = shared / "experiments"
    if not source.is_dir():
        pytest.skip("there is no folder of experiments")
    copied = tmp_path_factory.mktemp("experiments")
    for file in source.iterdir():
        shutil.copyfile(file, copied / file.name)
    subprocess.run([sys.executable, "make_data.py"], cwd=copied, check=True)
    return copied


@pytest.fixture(scope="session")
def folder(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_with_data(shared, tmp_path_factory)


def invoke(folder: Path, *arguments: str) -> str:
    before = Path.cwd()
    os.chdir(folder)
    try:
        result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    finally:
        os.chdir(before)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("name", CASES)
def test_every_variant_checks(folder: Path, name: str) -> None:
    output = invoke(folder, "check", f"{name}.sx")
    assert "good" in output and "warning" not in output


@pytest.mark.parametrize("name", CASES)
def test_replayed_calls_leave_what_evaluated_ones_do(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    file = Counted(folder / f"{name}.sx")
    for variant in (None, *load_experiment(file.path).variants):
        assert file.same(variant).startswith("experiment.")


@pytest.mark.parametrize("name", CASES)
def test_it_trains(folder: Path, name: str) -> None:
    train(folder, name, *CASES[name])


@pytest.mark.parametrize("name", PARTS)
def test_the_model_of_another_trains(folder: Path, name: str) -> None:
    text = (folder / f"{name}.sx").read_text("utf-8")
    for before, after in PARTS[name]:
        assert before in text, before
        text = text.replace(before, after)
    (folder / f"{name}-part.sx").write_text(text, "utf-8")
    train(folder, f"{name}-part", "--variant", "smoke")


def train(folder: Path, name: str, *options: str) -> None:
    """Train, and see that the loss falls."""
    invoke(folder, "run", f"{name}.sx", *options, "--quiet")
    series = read_metrics(folder / "runs" / name / "metrics.jsonl")
    losses = {path: [v for _, v in points] for path, points in series.items() if path.endswith("/loss")}
    assert losses
    falls, rises = {}, {}
    for path, values in losses.items():
        assert np.isfinite(values).all(), path
        tenth = max(1, len(values) // 10)
        first, last = np.mean(values[:tenth]), np.mean(values[-tenth:])
        falls[path], rises[path] = last < first, last > first
    if name in REWARDED:
        assert rises["train/play/loss"], losses
        return
    assert any(falls.values()) if name in OPPOSED else all(falls.values()), losses
