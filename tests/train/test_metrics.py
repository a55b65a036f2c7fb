"""The metrics stream: valid JSON lines, one value a step after a resume, no torn lines."""

import errno
import json
import math
import os
import time
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from sexpgpu.diagnostics import DiagnosticError
from sexpgpu.train import metrics
from sexpgpu.train.metrics import MetricsWriter, read_annotations, read_metrics


def reject_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def records(path: Path) -> list[dict[str, object]]:
    return [json.loads(line, parse_constant=reject_constant) for line in path.read_text("utf-8").splitlines()]


def test_points_and_annotations_are_lines_of_json(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsWriter(path, None) as writer:
        writer.points(3, {"train/loss": 1.5, "train/rates": [0.5, 2]})
        writer.annotate(3, "memory", "plan: 1 GiB\ngrößer", parameters_bytes=np.int64(5), parts=(1.0, math.nan))
    assert path.read_text("utf-8").splitlines()[0] == '{"step": 3, "series": "train/loss", "value": 1.5}'
    assert records(path)[1:] == [
        {"step": 3, "series": "train/rates", "value": [0.5, 2]},
        {
            "step": 3,
            "annotation": "memory",
            "text": "plan: 1 GiB\ngrößer",
            "parameters_bytes": 5,
            "parts": [1.0, "nan"],
        },
    ]
    assert [found["annotation"] for found in read_annotations(path)] == ["memory"]


def test_values_come_back_exactly(tmp_path: Path) -> None:
    path = tmp_path / "m"
    third = np.float32(1) / np.float32(3)
    values = {
        "int": np.int32(7),
        "f32": third,
        "bf16": ml_dtypes.bfloat16(1.5),
        "scalar": np.array(2.5, np.float32),
        "vector": np.array([1.0, np.inf, np.nan], np.float32),
        "bf16 vector": np.array([1, 2], ml_dtypes.bfloat16),
        "nan": math.nan,
        "low": -np.float32(np.inf),
    }
    with MetricsWriter(path, None) as writer:
        writer.points(1, values)
    records(path)  # no NaN tokens
    found = {name: points[0][1] for name, points in read_metrics(path).items()}
    assert found["int"] == 7 and isinstance(found["int"], int)
    assert found["f32"] == float(third)
    assert (found["bf16"], found["scalar"], found["low"]) == (1.5, 2.5, -math.inf)
    assert isinstance(found["nan"], float) and math.isnan(found["nan"])
    assert isinstance(found["vector"], list)
    assert found["vector"][:2] == [1.0, math.inf] and math.isnan(found["vector"][2])
    assert found["bf16 vector"] == [1.0, 2.0]


def test_half_a_surrogate_pair_in_a_sample_stays_valid_json(tmp_path: Path) -> None:
    path = tmp_path / "m"
    with MetricsWriter(path, None) as writer:
        writer.annotate(1, "sample", "a\udc80b\u2028\x00")
    assert read_annotations(path)[0]["text"] == "a\udc80b\u2028\x00"


def test_a_resume_supersedes_what_lies_past_its_step(tmp_path: Path) -> None:
    path = tmp_path / "m"
    with MetricsWriter(path, None) as writer:
        for step in range(1, 8):
            writer.points(step, {"loss": float(step), "rate": 1})
            writer.annotate(step, "sample", f"first {step}")
    with open(path, "ab") as stream:
        stream.write(b'{"step": 2, "series": "loss", "val')
    with MetricsWriter(path, 4) as writer:
        for step in range(5, 7):
            writer.points(step, {"loss": -float(step)})
            writer.annotate(step, "sample", f"second {step}")
    steps = [(record["step"], record["series"]) for record in records(path) if "series" in record]
    assert len(steps) == len(set(steps))
    assert read_metrics(path)["loss"] == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0), (5, -5.0), (6, -6.0)]
    assert read_metrics(path)["rate"] == [(1, 1), (2, 1), (3, 1), (4, 1)]
    assert [found["text"] for found in read_annotations(path)][3:] == ["first 4", "second 5", "second 6"]


def test_a_resume_of_a_lost_stream_starts_one(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path / "m", 4) as writer:
        writer.points(5, {"loss": 1.0})
    assert read_metrics(tmp_path / "m") == {"loss": [(5, 1.0)]}


def test_a_new_run_starts_an_empty_stream(tmp_path: Path) -> None:
    (tmp_path / "m").write_text('{"step": 1, "series": "old", "value": 1}\n')
    (tmp_path / ".m.00.tmp").write_text("left by a killed writer")
    MetricsWriter(tmp_path / "m", None).close()
    assert (tmp_path / "m").read_bytes() == b"" and [path.name for path in tmp_path.iterdir()] == ["m"]


def test_a_reader_beside_a_living_writer_ignores_the_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "m"
    path.write_bytes(b'{"step": 2, "series": "a", "value": 1}\n{"step": 1, "series": "a", "value": 3}\n{"ste')
    assert read_metrics(path) == {"a": [(1, 3), (2, 1)]}


def test_points_reach_the_file_by_flush_and_by_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_FLUSH_INTERVAL_S", 0.02)
    path = tmp_path / "m"
    with MetricsWriter(path, None) as writer:
        writer.points(1, {"a": 1})
        writer.flush()
        assert read_metrics(path) == {"a": [(1, 1)]}
        writer.points(2, {"a": 2})
        deadline_s = time.monotonic() + 10
        while len(read_metrics(path)["a"]) < 2:
            assert time.monotonic() < deadline_s
            time.sleep(0.005)
    writer.close()


def test_a_full_disk_is_explained_leaves_no_torn_line_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m"
    write = os.write
    room = 30

    def write_little(descriptor: int, data: bytes) -> int:
        nonlocal room
        if room == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        num_written, room = write(descriptor, data[:room]), 0
        return num_written

    writer = MetricsWriter(path, None)
    writer.points(1, {"a": 1})
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write_little)
        with pytest.raises(DiagnosticError) as caught:
            writer.flush()
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "E-IO-001" and "no space is left" in diagnostic.message
    assert path.read_bytes() == b""
    writer.close()
    assert read_metrics(path) == {"a": [(1, 1)]}


def test_a_write_that_fails_in_the_background_is_raised_by_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "_FLUSH_INTERVAL_S", 0.01)

    def refuse(_: int, __: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    writer = MetricsWriter(tmp_path / "m", None)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", refuse)
        writer.points(1, {"a": 1})
        deadline_s = time.monotonic() + 10
        with pytest.raises(DiagnosticError, match="E-IO-001"):
            while time.monotonic() < deadline_s:
                writer.points(2, {"a": 1})
                time.sleep(0.005)
    writer.close()


def test_a_missing_stream_or_folder_is_explained(tmp_path: Path) -> None:
    with pytest.raises(DiagnosticError, match=r"E-IO-001.*cannot read"):
        read_metrics(tmp_path / "none")
    with pytest.raises(DiagnosticError, match="E-IO-001"):
        MetricsWriter(tmp_path / "none" / "m", None)
