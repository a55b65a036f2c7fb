"""Disks, clocks and an S3 that fail while a run saves: a coded error or a recovery, and nothing lost either way.

The list is that of docs/checkpoints.md; runs that are killed are in `test_kills`.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from sexpgpu.train import store
from sexpgpu.train.checkpoint import latest
from sexpgpu.train.store import FolderStore, S3Store, open_store
from tests.s3_server import Fault, Request, S3Server
from tests.train.test_kills import NUM_STEPS, SHORT
from tests.train.test_resume import X, invoke, start, wait_for_checkpoint
from tests.train.trial import write_experiment

LAST = f"step-{NUM_STEPS:08d}"
WIDE = SHORT.replace("x 8 :name up", "x 2000 :name up")
"""States of some 200 KB."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    write_experiment(folder, SHORT, "tiny.sx", x=X)
    assert invoke(folder, "run", "tiny.sx", "--out", "run").exit_code == 0
    return folder / "run"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_experiment(tmp_path, SHORT, "tiny.sx", x=X)
    return tmp_path


def state_of(run: Path) -> bytes:
    return (run / "checkpoints" / LAST / "state.safetensors").read_bytes()


# --- disks --------------------------------------------------------------------------------------------------


@contextmanager
def mounted(disk: Path, size: str) -> Iterator[None]:
    """A file system of its own in `disk`, where this user may mount one."""
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("only root may mount a file system")
    try:
        yield
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_file_system_that_turns_read_only(folder: Path, whole: Path) -> None:
    disk = folder / "disk"
    with mounted(disk, "8m"):
        assert invoke(folder, "run", "tiny.sx", "--out", "disk/run", "--steps", "8").exit_code == 0
        run = disk / "run"
        before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        for arguments in (("--out", "disk/run", "--resume", "latest"), ("--out", "disk/new")):
            found = invoke(folder, "run", "tiny.sx", *arguments)
            assert found.exit_code == 1 and "E-IO-001" in found.output and "read-only" in found.output
        assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
        assert invoke(folder, "checkpoints", "disk/run", "--verify").exit_code == 0
        subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
        assert invoke(folder, "run", "tiny.sx", "--out", "disk/run", "--resume", "latest").exit_code == 0
        assert state_of(run) == state_of(whole)


@pytest.mark.skipif(os.geteuid() == 0, reason="permissions do not bind root")
def test_a_folder_that_may_not_be_written(folder: Path, whole: Path) -> None:
    assert invoke(folder, "run", "tiny.sx", "--out", "run", "--steps", "8").exit_code == 0
    run = folder / "run"
    for path in (run / "checkpoints", run):
        path.chmod(0o555)
        found = invoke(folder, "run", "tiny.sx", "--out", "run", "--resume", "latest")
        path.chmod(0o755)
        assert found.exit_code == 1 and "E-IO-001" in found.output and "not permitted" in found.output
    assert invoke(folder, "run", "tiny.sx", "--out", "run", "--resume", "latest").exit_code == 0
    assert state_of(run) == state_of(whole)


def test_a_file_system_that_is_full(folder: Path) -> None:
    """A real one, of half a megabyte, where this user may mount it."""
    write_experiment(folder, WIDE, "tiny.sx", x=X)
    disk = folder / "disk"
    with mounted(disk, "512k"):
        found = invoke(folder, "run", "tiny.sx", "--out", "disk/run")
        assert found.exit_code == 1 and "E-IO-001" in found.output and "no space is left" in found.output
        run = disk / "run"
        published = sorted(p.name for p in (run / "checkpoints").iterdir())
        assert published and all(name.startswith("step-") for name in published)
        assert not latest(FolderStore(run / "checkpoints"))[1]
        subprocess.run(["mount", "-o", "remount,size=8m", disk], check=True)
        found = invoke(folder, "run", "tiny.sx", "--out", "disk/run", "--resume", "latest")
        assert found.exit_code == 0, found.output
        assert invoke(folder, "run", "tiny.sx", "--out", "other").exit_code == 0
        assert state_of(run) == state_of(folder / "other")


def test_a_limit_that_the_system_sets(folder: Path) -> None:
    write_experiment(folder, WIDE, "tiny.sx", x=X)
    process = start(folder, "run", "tiny.sx", "--out", "run", limit_bytes=100 << 10)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1 and "Traceback" not in errors
    assert "E-IO-001" in errors and "step-00000001" in errors and "ulimit" in errors
    assert list((folder / "run" / "checkpoints").iterdir()) == []
    status = json.loads((folder / "run" / "status.json").read_text())
    assert (status["phase"], status["error_code"]) == ("failed", "E-IO-001")


def test_two_runs_in_one_folder(folder: Path, whole: Path) -> None:
    write_experiment(folder, SHORT.replace(f"steps {NUM_STEPS}", "steps 100000"), "long.sx", x=X)
    process = start(folder, "run", "long.sx", "--out", "run", "--quiet")
    try:
        wait_for_checkpoint(folder / "run", process)
        again = invoke(folder, "run", "long.sx", "--out", "run", "--resume", "latest")
        assert again.exit_code == 1 and "E-IO-003" in again.output
        anew = invoke(folder, "run", "long.sx", "--out", "run")
        assert anew.exit_code == 1 and "E-IO-002" in anew.output
        assert process.poll() is None
    finally:
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and not errors


def test_a_clock_that_jumps(folder: Path, whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, rng = time.time(), random.Random(1)
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: now + rng.uniform(-1e9, 1e9))
        assert invoke(folder, "run", "tiny.sx", "--out", "run", "--steps", "8").exit_code == 0
        for index, path in enumerate(sorted((folder / "run" / "checkpoints").iterdir())):
            os.utime(path, (0, -index * 1e6 + 1e9))  # the newest checkpoint looks the oldest
        found = invoke(folder, "run", "tiny.sx", "--out", "run", "--resume", "latest")
        assert found.exit_code == 0 and "resuming after step 8" in found.output
    assert state_of(folder / "run") == state_of(whole)


# --- S3 -----------------------------------------------------------------------------------------------------


def records(request: Request) -> bool:
    """Whether a request publishes a checkpoint."""
    return request.method == "PUT" and "checkpoint.json" in request.path


def states(request: Request) -> bool:
    """Whether a request sends a state."""
    return request.method == "PUT" and "/state-" in request.path


def once(what: str, where: Callable[[Request], bool], nth: int = 2) -> Fault:
    """Let the nth such request fail, and its repetitions succeed."""
    seen = []

    def fault(request: Request) -> str | None:
        seen.append(where(request))
        return what if seen[-1] and sum(seen) == nth else None

    return fault


def always(what: str, where: Callable[[Request], bool], nth: int = 2) -> Fault:
    """Let the nth such request fail, and all after it."""
    seen = []

    def fault(request: Request) -> str | None:
        seen.append(where(request))
        return what if seen[-1] and sum(seen) >= nth else None

    return fault


def published(place: str) -> list[str]:
    return [name for name in open_store(place).names() if name.startswith("step-")]


def assert_recovers(folder: Path, place: str, whole: Path) -> None:
    """That what is there is whole, and a resume ends as if nothing had been."""
    found, skipped = latest(open_store(place))
    assert found is not None and not skipped
    result = invoke(folder, "run", "tiny.sx", "--checkpoints", place, "--resume", "latest")
    assert result.exit_code == 0, result.output
    bucket = open_store(place)
    assert isinstance(bucket, S3Store)
    file = json.loads(bucket.read_record(LAST))["state"]["file"]
    with bucket.state(LAST, file) as path:
        assert path.read_bytes() == state_of(whole)
    for name, files in bucket._listing().items():
        assert len(files) == 2, (name, files)


@pytest.mark.parametrize(
    "what, where",
    [
        ("broken", records),
        ("cut", states),
        ("dropped", records),
        pytest.param("broken", states, marks=pytest.mark.slow),
        pytest.param("cut", records, marks=pytest.mark.slow),
        pytest.param("dropped", states, marks=pytest.mark.slow),
        pytest.param("slow", states, marks=pytest.mark.slow),
        pytest.param("slow", records, marks=pytest.mark.slow),
    ],
)
def test_s3_fails_once(folder: Path, whole: Path, s3: S3Server, what: str, where: Callable[[Request], bool]) -> None:
    """It is asked again, or waited for, and the run takes no notice."""
    place = f"s3://lab/{what}-{where.__name__}"
    with s3.failing(once(what, where)):
        result = invoke(folder, "run", "tiny.sx", "--out", "run", "--checkpoints", place)
    assert result.exit_code == 0, result.output
    assert published(place)[-1] == LAST
    assert_recovers(folder, place, whole)


@pytest.mark.parametrize("where", [states, records])
@pytest.mark.parametrize(
    "what, said",
    [
        ("denied", "S3 denies the access"),
        pytest.param("broken", "S3 refused", marks=pytest.mark.slow),
        pytest.param("cut", "cannot be reached", marks=pytest.mark.slow),
    ],
)
def test_s3_goes_on_failing(
    folder: Path, whole: Path, s3: S3Server, what: str, said: str, where: Callable[[Request], bool]
) -> None:
    place = f"s3://lab/{what}-{where.__name__}-always"
    with s3.failing(always(what, where)):
        result = invoke(folder, "run", "tiny.sx", "--out", "run", "--checkpoints", place)
    assert result.exit_code == 1 and "E-IO-001" in result.output and said in result.output, result.output
    assert f"{place}/step-00000003" in result.output
    assert published(place) == ["step-00000001"]
    status = json.loads((folder / "run" / "status.json").read_text())
    assert (status["phase"], status["error_code"], status["last_checkpoint"]) == (
        "failed",
        "E-IO-001",
        "step-00000001",
    )
    assert_recovers(folder, place, whole)


def test_s3_refuses_before_the_first_step(folder: Path, s3: S3Server) -> None:
    with s3.failing(lambda request: "denied"):
        result = invoke(folder, "run", "tiny.sx", "--out", "run", "--checkpoints", "s3://lab/closed")
    assert result.exit_code == 1 and "E-IO-001" in result.output and "denies" in result.output
    assert not (folder / "run" / "metrics.jsonl").exists()


def test_s3_is_not_there(folder: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("sexpgpu.s3._ATTEMPTS", 1)
    result = invoke(folder, "run", "tiny.sx", "--out", "run", "--checkpoints", "s3://lab/nowhere")
    assert result.exit_code == 1 and "E-IO-001" in result.output and "cannot be reached" in result.output


def test_two_runs_that_save_in_one_place(folder: Path, whole: Path, s3: S3Server) -> None:
    """The second takes it over; the first stops at its next checkpoint, which it does not publish."""
    place = "s3://lab/two"
    taken = []

    def fault(request: Request) -> str | None:
        if "step-00000006/state-" in request.path and not taken:
            taken.append(request)
            open_store(place).clean()
        return None

    with s3.failing(fault):
        first = invoke(folder, "run", "tiny.sx", "--out", "first", "--checkpoints", place)
    assert first.exit_code == 1 and "E-IO-003" in first.output and "taken over" in first.output
    assert published(place) == ["step-00000001", "step-00000003"]
    assert invoke(folder, "run", "tiny.sx", "--out", "new", "--checkpoints", place).exit_code == 1
    assert_recovers(folder, place, whole)


def test_large_states_go_up_in_parts(
    folder: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_experiment(folder, WIDE.replace("x 2000", "x 100000"), "tiny.sx", x=X)
    monkeypatch.setattr(store, "PART_BYTES", 5 << 20)
    monkeypatch.setattr(store, "CHUNK_BYTES", 1 << 20)
    place = "s3://lab/parts"
    with s3.failing(once("cut", lambda request: "partNumber=2" in request.path)):
        result = invoke(folder, "run", "tiny.sx", "--out", "run", "--steps", "2", "--checkpoints", place)
    assert result.exit_code == 0, result.output
    assert sum("partNumber=" in r.path for r in s3.requests) > 4
    assert invoke(folder, "checkpoints", place, "--verify").exit_code == 0
    with s3.failing(always("denied", lambda request: "partNumber=2" in request.path, 1)):
        result = invoke(folder, "run", "tiny.sx", "--resume", place, "--steps", "3")
    assert result.exit_code == 1 and "denies" in result.output
    assert published(place) == ["step-00000001", "step-00000002"]
    assert not open_store(place)._fs.call_s3("list_multipart_uploads", Bucket="lab").get("Uploads")  # type: ignore[attr-defined]


# --- signals ------------------------------------------------------------------------------------------------


def begin_before_s3(folder: Path, s3: S3Server, place: str) -> subprocess.Popen[str]:
    """A run that goes on for long, once its second checkpoint is on its way to an S3 that takes its time."""
    write_experiment(folder, SHORT.replace(f"steps {NUM_STEPS}", "steps 100000"), "long.sx", x=X)
    process = start(folder, "run", "long.sx", "--out", "run", "--checkpoints", place)
    deadline = time.monotonic() + 60
    while not any(states(r) and "step-00000003" in r.path for r in s3.requests):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    return process


def test_a_signal_waits_for_the_write_under_way(
    folder: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = "s3://lab/sigterm"
    monkeypatch.setattr(s3, "slow_s", 60.0)
    with s3.failing(lambda request: "slow" if "step-00000003/state-" in request.path else None):
        process = begin_before_s3(folder, s3, place)
        assert published(place) == ["step-00000001"]
        process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        assert process.poll() is None and published(place) == ["step-00000001"]
        s3.goes_on.set()
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and not errors, errors
    last = published(place)[-1]
    assert "step-00000003" in published(place) and last > "step-00000003"
    assert f"interrupted after step {int(last[5:])}, saved; continue with --resume latest" in output
    status = json.loads((folder / "run" / "status.json").read_text())
    assert (status["phase"], status["last_checkpoint"]) == ("interrupted", last)


def test_a_second_signal_waits_for_nothing(folder: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    place = "s3://lab/twice"
    monkeypatch.setattr(s3, "slow_s", 60.0)
    with s3.failing(lambda request: "slow" if "step-00000003/state-" in request.path else None):
        process = begin_before_s3(folder, s3, place)
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=50)
    assert process.returncode == 130 and "interrupted" in errors and "Traceback" not in errors
    assert published(place) == ["step-00000001"]


# --- damage on S3 -------------------------------------------------------------------------------------------


def test_a_damaged_checkpoint_on_s3_is_passed_over(folder: Path, whole: Path, s3: S3Server) -> None:
    place = "s3://lab/damage"
    assert invoke(folder, "run", "tiny.sx", "--out", "run", "--steps", "8", "--checkpoints", place).exit_code == 0
    bucket = open_store(place)
    assert isinstance(bucket, S3Store)
    rng = np.random.default_rng(5)
    fs = bucket._fs
    for file in bucket._listing()["step-00000008"]:
        key = bucket._key("step-00000008", file)
        content = fs.cat_file(key)
        for at in rng.integers(0, len(content), 5):
            flipped = bytearray(content)
            flipped[at] ^= 1 << int(rng.integers(8))
            fs.pipe_file(key, bytes(flipped))
            found, skipped = latest(bucket)
            assert found is not None and found.step == 6 and [name for name, _ in skipped] == ["step-00000008"]
    result = invoke(folder, "checkpoints", place, "--verify")
    assert result.exit_code == 1 and "step-00000008" in result.output
    result = invoke(folder, "run", "tiny.sx", "--resume", f"{place}/step-00000008")
    assert result.exit_code == 1 and "E-CKPT-002" in result.output
    result = invoke(folder, "run", "tiny.sx", "--checkpoints", place, "--resume", "latest")
    assert result.exit_code == 0 and "step-00000008 is damaged and was skipped" in result.output
    assert "resuming after step 6" in result.output
    assert_recovers(folder, place, whole)
