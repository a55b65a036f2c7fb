"""Runs that save on S3, as a user goes through them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sexpgpu.train.metrics import read_metrics
from sexpgpu.train.store import open_store
from tests.s3_server import S3Server
from tests.train.test_kills import SHORT
from tests.train.test_resume import X, invoke
from tests.train.trial import write_experiment


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_experiment(tmp_path / "here", SHORT, "tiny.sx", x=X)
    return tmp_path / "here"


def test_a_run_remembers_where_it_saves(folder: Path, s3: S3Server) -> None:
    place = "s3://lab/remembered"
    assert invoke(folder, "run", "tiny.sx", "--steps", "5", "--checkpoints", place + "/").exit_code == 0
    run = folder / "runs" / "tiny"
    assert not (run / "checkpoints").exists()
    assert json.loads((run / "run.json").read_text())["checkpoints"] == place
    found = invoke(folder, "run", "tiny.sx", "--resume", "latest", "--steps", "8")
    assert found.exit_code == 0 and "run: runs/tiny" in found.output and "after step 5" in found.output
    assert open_store(place).names()[-1] == "step-00000008"
    assert [step for step, _ in read_metrics(run / "metrics.jsonl")["train/loss"]] == list(range(1, 9))
    listed = invoke(folder, "checkpoints", "tiny", "--verify").output
    assert "best eval/look/see" in listed and "newest of 2 kept" in listed and "verified" in listed
    report = invoke(folder, "report", "tiny")
    assert report.exit_code == 0 and "step-00000008" in (run / "report.html").read_text()


def test_another_machine_goes_on(folder: Path, s3: S3Server, tmp_path: Path) -> None:
    place = "s3://lab/elsewhere"
    assert invoke(folder, "run", "tiny.sx", "--checkpoints", place, "--steps", "7").exit_code == 0
    write_experiment(tmp_path / "there", SHORT, "tiny.sx", x=X)
    found = invoke(tmp_path / "there", "run", "tiny.sx", "--checkpoints", place, "--resume", "latest")
    assert found.exit_code == 0 and "resuming after step 7" in found.output
    assert invoke(folder, "run", "tiny.sx", "--out", "alone").exit_code == 0
    ours, theirs = open_store(place), open_store(folder / "alone" / "checkpoints")
    assert (
        json.loads(ours.read_record("step-00000012"))["state"]["sha256"]
        == (json.loads(theirs.read_record("step-00000012"))["state"]["sha256"])
    )
    again = invoke(tmp_path / "there", "run", "tiny.sx", "--resume", place)
    assert again.exit_code == 0 and "nothing to do" in again.output
    assert [p.name for p in (tmp_path / "there" / "runs").iterdir()] == ["tiny"], "the folder that belongs to the place"


def test_an_earlier_checkpoint_supersedes_the_later_ones(folder: Path, s3: S3Server) -> None:
    place = "s3://lab/superseded"
    assert invoke(folder, "run", "tiny.sx", "--checkpoints", place).exit_code == 0
    whole = open_store(place).read_record("step-00000012")
    earlier = f"{place}/{open_store(place).names()[0]}"
    assert invoke(folder, "run", "tiny.sx", "--resume", earlier).exit_code == 0
    found = open_store(place)
    assert found.read_record("superseded-step-00000012") == found.read_record("step-00000012") == whole
    assert invoke(folder, "checkpoints", place, "--verify").exit_code == 0
    assert invoke(folder, "run", "tiny.sx", "--resume", earlier).exit_code == 0
    assert "superseded-step-00000012-2" in found.names()


def test_what_is_made_of_a_checkpoint(folder: Path, s3: S3Server) -> None:
    place = "s3://lab/made"
    assert invoke(folder, "run", "tiny.sx", "--checkpoints", place, "--steps", "4").exit_code == 0
    for commands in (
        ("evaluate", "tiny.sx", "--checkpoint", place),
        ("evaluate", "tiny.sx", "--checkpoint", f"{place}/step-00000003"),
        ("generate", "tiny.sx"),
        ("export", place, "net.safetensors"),
        ("export", f"{place}/step-00000004", "net.safetensors"),
    ):
        found = invoke(folder, *commands)
        assert found.exit_code == 0, (commands, found.output)


@pytest.mark.parametrize(
    "arguments, code, said",
    [
        (("--out", "s3://lab/run"), "E-IO-004", "--checkpoints s3://lab/run"),
        (("--checkpoints", "some/folder"), "E-IO-004", "--out"),
        (("--checkpoints", "s3://"), "E-IO-004", "s3://BUCKET/PREFIX"),
        (("--checkpoints", "s3:///key"), "E-IO-004", "s3://BUCKET/PREFIX"),
        (("--checkpoints", "s3://no bucket/x"), "E-IO-001", "s3://BUCKET/PREFIX"),
        (("--resume", "s3://lab/empty"), "E-CKPT-001", "s3://lab/empty"),
        (("--resume", "s3://lab/empty/step-00000003"), "E-CKPT-001", "step-00000003"),
        (("--resume", "latest", "--checkpoints", "s3://lab/empty"), "E-CKPT-001", "s3://lab/empty"),
    ],
)
def test_what_is_no_place(folder: Path, s3: S3Server, arguments: tuple[str, ...], code: str, said: str) -> None:
    found = invoke(folder, "run", "tiny.sx", *arguments)
    assert found.exit_code == 1 and code in found.output and said in found.output, found.output
    assert not (folder / "runs").exists()
