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
from sexpgpu.train.metrics import read_metrics

CASES = {
    "01-linear": ["--steps", "60"],
    "02-char": ["--variant", "smoke"],
    "04-resnet": ["--variant", "smoke"],
    "06-vae": ["--variant", "smoke"],
    "07-diffusion": ["--variant", "smoke"],
    "12-lora": ["--variant", "smoke"],
    "13-contrastive": ["--variant", "smoke"],
    "14-seq2seq": ["--variant", "smoke"],
    "17-diagnostics": ["--variant", "smoke"],
}


@pytest.fixture(scope="session")
def folder(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the experiments with their data made."""
    source = shared / "experiments"
    if not source.is_dir():
        pytest.skip("there is no folder of experiments")
    copied = tmp_path_factory.mktemp("experiments")
    for file in source.iterdir():
        shutil.copyfile(file, copied / file.name)
    subprocess.run([sys.executable, "make_data.py"], cwd=copied, check=True)
    return copied


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
def test_it_trains(folder: Path, name: str) -> None:
    invoke(folder, "run", f"{name}.sx", *CASES[name], "--quiet")
    series = read_metrics(folder / "runs" / name / "metrics.jsonl")
    losses = {path: [v for _, v in points] for path, points in series.items() if path.endswith("/loss")}
    assert losses
    for path, values in losses.items():
        tenth = max(1, len(values) // 10)
        first, last = np.mean(values[:tenth]), np.mean(values[-tenth:])
        assert np.isfinite(values).all() and last < first, f"{path}: {first} … {last}"
