"""Runs that are cut, interrupted, or find the disk full: what is left continues to the very same bytes."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from sexpgpu.cli.main import main
from sexpgpu.train import checkpoint, store
from sexpgpu.train.metrics import read_metrics
from tests.train.trial import write_experiment

CHECKOUT = Path(__file__).resolve().parents[2]
NUM_STEPS = 80
TEXT = """
(def steps 80)
(defmodel net ((x (f32 _ 6)))
  (linear (dropout (tanh (batch-norm (linear x 8 :name up) :name bn)) 0.2) 1 :name out))
(defdata rows-of (arrays "data.npz"))
(defloader train (rows rows-of) :batch 4 :shuffle true)
(defmetric see (x)
  (measure size (rms (net x)))
  (mean (square (- (net x) (sum x :axis 1 :keep true)))))
(defeval look :loader train :batches 2 see)
(defgenerator draw () :trips [t 2] :carry [s 0.0] (next :s (+ s (random-normal (f32))) :emit s))
(defrun go :loader train :loss see :microbatches 2 :steps steps :seed 3
  :optimizer (adamw :rate (warmup-cosine 0.05 :warmup 5 :total steps))
  :evaluate (every 16 look) :generate (every 32 draw) :checkpoint (every 4 :keep 3))
"""
X = np.random.default_rng(3).standard_normal((30, 6)).astype(np.float32)
LAST = f"step-{NUM_STEPS:08d}"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an experiment with the run `whole`, which nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    write_experiment(folder, TEXT, "tiny.sx", x=X)
    result = invoke(folder, "run", "tiny.sx", "--out", "whole")
    assert result.exit_code == 0, result.output
    return folder


def invoke(folder: Path, *arguments: str) -> Result:
    """A command inside this process."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        return CliRunner().invoke(main, arguments, catch_exceptions=False)
    finally:
        os.chdir(before)


def start(folder: Path, *arguments: str, limit_bytes: int | None = None) -> subprocess.Popen[str]:
    """A command as a process of its own. limit_bytes: the largest file that it may write."""

    def limit() -> None:
        assert limit_bytes is not None
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))

    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "sexpgpu", *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=limit if limit_bytes is not None else None,
    )


def wait_for_checkpoint(run: Path, process: subprocess.Popen[str], after: int = 0) -> None:
    """Until the run has published a checkpoint past step `after`, or has ended."""
    deadline = time.monotonic() + 60
    while process.poll() is None:
        assert time.monotonic() < deadline, "no checkpoint within a minute"
        if any(int(p.name[5:]) > after for p in run.glob("checkpoints/step-*")):
            return
        time.sleep(0.002)


def newest(run: Path) -> int:
    return max((int(p.name[5:]) for p in run.glob("checkpoints/step-*")), default=0)


def assert_same_end(run: Path, expected: Path) -> None:
    """The final checkpoint byte for byte, and every series but those of the clock value for value."""
    for name in ("state.safetensors", "checkpoint.json"):
        wanted = (expected / "checkpoints" / LAST / name).read_bytes()
        assert (run / "checkpoints" / LAST / name).read_bytes() == wanted, name
    seen: set[tuple[int, str]] = set()
    for line in (run / "metrics.jsonl").read_text("utf-8").splitlines():
        record = json.loads(line)
        if "series" in record:
            key = record["step"], record["series"]
            assert key not in seen, key
            seen.add(key)
    found, wanted_series = read_metrics(run / "metrics.jsonl"), read_metrics(expected / "metrics.jsonl")
    assert found.keys() == wanted_series.keys()
    for name, points in wanted_series.items():
        if name.startswith("runtime/"):
            assert [s for s, _ in found[name]] == [s for s, _ in points]
        else:
            assert found[name] == points, name
    samples = {p.name for p in (expected / "samples").iterdir()}
    assert {p.name for p in (run / "samples").iterdir()} >= samples  # a run that was cut has made one at its end
    assert not [p.name for p in (run / "checkpoints").iterdir() if p.name.startswith(".")]
    assert json.loads((run / "status.json").read_text())["phase"] == "done"


# --- interrupted --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_says_so_and_continues(whole: Path, tmp_path: Path, number: signal.Signals) -> None:
    write_experiment(tmp_path, TEXT, "tiny.sx", x=X)
    process = start(tmp_path, "run", "tiny.sx")
    wait_for_checkpoint(tmp_path / "runs" / "tiny", process)
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, (output, errors)
    assert not errors
    saved = newest(tmp_path / "runs" / "tiny")
    assert f"interrupted after step {saved}, saved; continue with --resume latest" in output
    status = json.loads((tmp_path / "runs" / "tiny" / "status.json").read_text())
    assert (status["phase"], status["step"]) == ("interrupted", saved)
    result = invoke(tmp_path, "run", "tiny.sx", "--resume", "latest")
    assert result.exit_code == 0 and f"resuming after step {saved}" in result.output
    assert_same_end(tmp_path / "runs" / "tiny", whole / "whole")


def test_a_second_interrupt_ends_at_once(tmp_path: Path) -> None:
    write_experiment(tmp_path, TEXT.replace(":batches 2", ":batches 200000"), "tiny.sx", x=X)
    process = start(tmp_path, "run", "tiny.sx")
    run = tmp_path / "runs" / "tiny"
    while process.poll() is None and not (run / "metrics.jsonl").exists():
        time.sleep(0.01)
    time.sleep(0.3)  # by now it is inside an evaluation that takes long
    process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 130 and "Traceback" not in errors and "interrupted" in errors
    assert json.loads((run / "status.json").read_text())["phase"] == "interrupted"


# --- cut and continued in this process ----------------------------------------------------------------------


def test_a_run_cut_by_steps_continues(whole: Path, tmp_path: Path) -> None:
    write_experiment(tmp_path, TEXT, "tiny.sx", x=X)
    assert invoke(tmp_path, "run", "tiny.sx", "--steps", "7").exit_code == 0
    run = tmp_path / "runs" / "tiny"
    assert newest(run) == 7
    result = invoke(tmp_path, "run", "tiny.sx", "--resume", str(run / "checkpoints"))
    assert result.exit_code == 0 and "resuming after step 7" in result.output
    name = "state.safetensors"
    assert (run / "checkpoints" / LAST / name).read_bytes() == (
        whole / "whole" / "checkpoints" / LAST / name
    ).read_bytes()
    again = invoke(tmp_path, "run", "tiny.sx", "--resume", "latest")
    assert again.exit_code == 0 and f"nothing to do: the checkpoint is of step {NUM_STEPS}" in again.output


def test_a_damaged_newest_checkpoint_is_skipped_and_told(whole: Path, tmp_path: Path) -> None:
    write_experiment(tmp_path, TEXT, "tiny.sx", x=X)
    assert invoke(tmp_path, "run", "tiny.sx", "--steps", "13").exit_code == 0
    run = tmp_path / "runs" / "tiny"
    assert newest(run) == 13
    state = run / "checkpoints" / "step-00000013" / "state.safetensors"
    damaged = bytearray(state.read_bytes())
    damaged[-1] ^= 1
    state.write_bytes(damaged)
    refused = invoke(tmp_path, "run", "tiny.sx", "--resume", str(state.parent))
    assert refused.exit_code == 1 and "E-CKPT-002" in refused.output
    result = invoke(tmp_path, "run", "tiny.sx", "--resume", "latest")
    assert result.exit_code == 0
    assert "step-00000013 is damaged and was skipped" in result.output
    assert "resuming after step 12" in result.output
    assert_same_end(run, whole / "whole")


def test_every_checkpoint_damaged(tmp_path: Path) -> None:
    write_experiment(tmp_path, TEXT, "tiny.sx", x=X)
    assert invoke(tmp_path, "run", "tiny.sx", "--steps", "5").exit_code == 0
    for state in (tmp_path / "runs").glob("**/state.safetensors"):
        state.write_bytes(b"")
    result = invoke(tmp_path, "run", "tiny.sx", "--resume", "latest")
    assert result.exit_code == 1 and "E-CKPT-002" in result.output


def test_an_earlier_checkpoint_by_its_path_supersedes_the_later_ones(whole: Path, tmp_path: Path) -> None:
    write_experiment(tmp_path, TEXT, "tiny.sx", x=X)
    assert invoke(tmp_path, "run", "tiny.sx", "--steps", "20").exit_code == 0
    run = tmp_path / "runs" / "tiny"
    result = invoke(tmp_path, "run", "tiny.sx", "--resume", str(run / "checkpoints" / "step-00000012"))
    assert result.exit_code == 0 and "resuming after step 12" in result.output
    assert_same_end(run, whole / "whole")
    assert {p.name for p in (run / "checkpoints").iterdir()} >= {"superseded-step-00000016", "superseded-step-00000020"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ((":batch 4", ":batch 5"), "line 6"),
        (("0.05", "0.06"), "line 13"),
        ((":seed 3", ":seed 4"), "line 12"),
        (("tanh", "relu"), "line 4"),
    ],
)
def test_the_checkpoint_of_another_experiment_is_refused(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    path = write_experiment(tmp_path, TEXT, "tiny.sx", x=X)
    assert invoke(tmp_path, "run", "tiny.sx", "--steps", "3").exit_code == 0
    path.write_text(TEXT.replace(*change))
    result = invoke(tmp_path, "run", "tiny.sx", "--resume", "latest")
    assert result.exit_code == 1 and "E-CKPT-003" in result.output and said in result.output


def test_other_overrides_and_other_data_are_another_experiment(tmp_path: Path) -> None:
    path = write_experiment(tmp_path, TEXT, "tiny.sx", x=X)
    assert invoke(tmp_path, "run", "tiny.sx", "--steps", "3").exit_code == 0
    result = invoke(tmp_path, "run", "tiny.sx", "--resume", "latest", "--set", "steps=90")
    assert result.exit_code == 1 and "E-CKPT-003" in result.output
    assert "`steps` was set to nothing then, to 90 now" in result.output
    np.savez(tmp_path / "data.npz", x=X + 1)
    result = invoke(tmp_path, "run", "tiny.sx", "--resume", "latest")
    assert result.exit_code == 1 and "E-CKPT-003" in result.output and "the data" in result.output
    np.savez(tmp_path / "data.npz", x=X)
    path.write_text(";; a remark changes nothing\n" + TEXT)
    assert invoke(tmp_path, "run", "tiny.sx", "--resume", "latest", "--steps", "5").exit_code == 0


def test_nothing_to_resume(tmp_path: Path) -> None:
    write_experiment(tmp_path, TEXT, "tiny.sx", x=X)
    for which in ("latest", "runs/other", "no/checkpoints/step-00000003", "tiny.sx"):
        result = invoke(tmp_path, "run", "tiny.sx", "--resume", which)
        assert result.exit_code == 1 and "E-CKPT-001" in result.output, which


# --- the disk -----------------------------------------------------------------------------------------------


def test_a_disk_that_fills_up_leaves_earlier_checkpoints(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_experiment(tmp_path, TEXT, "tiny.sx", x=X)
    write = store._write_chunks

    def full(path: Path, chunks: Iterable[memoryview]) -> None:
        if (path.parent.parent / "step-00000008").exists():
            path.write_bytes(b"half a che")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(path, chunks)

    with monkeypatch.context() as patch:
        patch.setattr(store, "_write_chunks", full)
        result = invoke(tmp_path, "run", "tiny.sx")
    assert result.exit_code == 1
    assert "E-IO-001" in result.output and "no space is left" in result.output
    run = tmp_path / "runs" / "tiny"
    assert sorted(p.name for p in (run / "checkpoints").iterdir()) == [
        "step-00000001",
        "step-00000004",
        "step-00000008",
    ]
    status = json.loads((run / "status.json").read_text())
    assert (status["phase"], status["error_code"]) == ("failed", "E-IO-001")
    result = invoke(tmp_path, "run", "tiny.sx", "--resume", "latest")
    assert result.exit_code == 0 and "resuming after step 8" in result.output
    assert_same_end(run, whole / "whole")


def test_a_stream_that_the_system_stops(tmp_path: Path) -> None:
    """A real refusal: the metrics grow past the largest file that this process may write."""
    text = TEXT.replace("(measure size", "(measure wide (reshape x [24]) :reduce sum)\n  (measure size")
    write_experiment(tmp_path, text.replace("(def steps 80)", "(def steps 3000)"), "tiny.sx", x=X)
    process = start(tmp_path, "run", "tiny.sx", limit_bytes=24 << 10)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1 and "Traceback" not in errors, errors
    assert "E-IO-001" in errors and "metrics.jsonl" in errors and "ulimit" in errors
    assert errors.count("E-IO-001:") == 1
    run = tmp_path / "runs" / "tiny"
    found, skipped = checkpoint.latest(store.FolderStore(run / "checkpoints"))
    assert found is not None and not skipped
    assert all(line.endswith("}") for line in (run / "metrics.jsonl").read_text().splitlines())
    assert json.loads((run / "status.json").read_text())["error_code"] == "E-IO-001"


def test_a_run_that_failed_says_where_and_keeps_what_was(tmp_path: Path) -> None:
    x = X.copy()
    x[:, 0] = 1e30
    write_experiment(
        tmp_path, TEXT.replace(":shuffle true", "").replace("30", "31"), "tiny.sx", x=np.concatenate([X, x])
    )
    result = invoke(tmp_path, "run", "tiny.sx")
    assert result.exit_code == 1
    assert result.stderr.startswith(
        "sexpgpu run: E-RUN-001: step 4: `go` proposes values that are not finite for `net."
    )
    run = tmp_path / "runs" / "tiny"
    status = json.loads((run / "status.json").read_text())
    assert (status["phase"], status["error_code"], status["last_checkpoint"]) == (
        "failed",
        "E-RUN-001",
        "step-00000001",
    )
    assert newest(run) == 1
    again = invoke(tmp_path, "run", "tiny.sx", "--resume", "latest")
    assert again.exit_code == 1 and "step 4: `go` proposes" in again.stderr
    assert newest(run) == 1


def test_a_forged_checkpoint_is_refused(tmp_path: Path) -> None:
    """Its digests are right, and it says that it is of this experiment; its tensors are not."""
    write_experiment(tmp_path, TEXT, "tiny.sx", x=X)
    assert invoke(tmp_path, "run", "tiny.sx", "--steps", "2").exit_code == 0
    folder = store.FolderStore(tmp_path / "runs" / "tiny" / "checkpoints")
    whole = checkpoint.load(folder, "step-00000002")
    name = min(whole.tensors)
    forgeries = {
        "is not in the checkpoint": {n: t for n, t in whole.tensors.items() if n != name},
        "in the file and (float32 7)": whole.tensors | {name: np.zeros(7, np.float32)},
        "in the file and (int64": whole.tensors | {name: whole.tensors[name].astype(np.int64)},
    }
    for said, tensors in forgeries.items():
        roles = {n: "parameter" for n in tensors}
        checkpoint.save(folder, 2, tensors, whole.meta | {"roles": roles})
        result = invoke(tmp_path, "run", "tiny.sx", "--resume", "latest")
        assert result.exit_code == 1 and "E-CKPT-003" in result.output and said in result.output, result.output
    more = whole.tensors | {"another": np.zeros(3, np.float32)}
    checkpoint.save(folder, 2, more, whole.meta | {"roles": {n: "parameter" for n in more}})
    assert invoke(tmp_path, "run", "tiny.sx", "--resume", "latest", "--steps", "3").exit_code == 0
    assert "another" not in checkpoint.load(folder, "step-00000003").tensors
