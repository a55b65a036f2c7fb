"""The status file: whole at every moment, at most two writes a second."""

import errno
import json
import math
import os
from pathlib import Path

import numpy as np
import pytest

from sexpgpu.diagnostics import DiagnosticError
from sexpgpu.train.status import FIELDS, StatusFile, mark_ended


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_700_000_000.25

    def __call__(self) -> float:
        return self.now_s


def read(path: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(name))
    return found


def test_every_field_is_there_from_the_first_write(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    StatusFile(path, Clock()).update(phase="train", step=0, steps=100)
    expected = dict.fromkeys(FIELDS) | {"phase": "train", "step": 0, "steps": 100}
    assert read(path) == expected | {"heartbeat": "2023-11-14T22:13:20.250+00:00"}


def test_updates_within_half_a_second_wait_for_the_next_write(tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / "status.json"
    status = StatusFile(path, clock)
    status.update(phase="train", step=1)
    clock.now_s += 0.4
    status.update(step=2, loss=2.5)
    assert read(path)["step"] == 1
    clock.now_s += 0.1
    status.update(last_checkpoint="checkpoints/step-00000002")
    assert (read(path)["step"], read(path)["loss"], read(path)["phase"]) == (2, 2.5, "train")
    status.update(force=True, phase="failed", error_code="E-IO-001")
    assert (read(path)["phase"], read(path)["error_code"]) == ("failed", "E-IO-001")
    clock.now_s -= 3600
    status.update(step=3)
    assert read(path)["step"] == 3, "a clock that was set back"


def test_values_that_json_lacks_become_names(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    StatusFile(path, Clock()).update(loss=math.nan, step=np.int64(3), step_ms=np.float32(0.5), eta_s=math.inf)
    found = read(path)
    assert [found[name] for name in ("loss", "step", "step_ms", "eta_s")] == ["nan", 3, 0.5, "inf"]


def test_an_unknown_field_is_our_mistake(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="colour"):
        StatusFile(tmp_path / "s", Clock()).update(colour="red")


def test_a_full_disk_is_explained_and_keeps_the_last_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "status.json"
    status = StatusFile(path, Clock())
    status.update(step=1)

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", refuse)
        with pytest.raises(DiagnosticError, match="no space is left"):
            status.update(force=True, step=2)
    assert read(path)["step"] == 1 and list(tmp_path.iterdir()) == [path]


def test_an_end_leaves_the_other_fields(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    mark_ended(path, "failed", "E-RUN-001")
    assert not path.exists(), "a run that never began has no status"
    StatusFile(path, lambda: 0.0).update(phase="training", step=3)
    mark_ended(path, "failed", "E-RUN-001")
    found = json.loads(path.read_text())
    assert (found["phase"], found["error_code"], found["step"]) == ("failed", "E-RUN-001", 3)
