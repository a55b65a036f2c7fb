"""A run's folder: kept to one process, and what it says before the first step."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sexpgpu.diagnostics import DiagnosticError
from sexpgpu.train.facts import read_facts, write_facts
from sexpgpu.train.folder import RunFolder, held, is_held

KEEP = """
import sys, time
from pathlib import Path
from sexpgpu.train.folder import RunFolder, held
with held(RunFolder(Path(sys.argv[1]))):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_folder_belongs_to_one_process(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert not is_held(run)
    with held(run):
        assert is_held(run)
        with pytest.raises(DiagnosticError, match="another process is training") as caught, held(run):
            pass
        assert caught.value.diagnostics[0].code == "E-IO-003"
        assert is_held(run), "a refusal leaves the lock alone"
    assert not is_held(run)
    assert not is_held(RunFolder(tmp_path / "nowhere"))


def test_a_killed_process_lets_go(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    with subprocess.Popen([sys.executable, "-c", KEEP, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        assert is_held(run)
        process.kill()
    assert not is_held(run)
    with held(run):
        pass


def test_facts_keep_their_sessions(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    assert read_facts(path) == {}
    write_facts(path, {"file": "a.sx", "device": "cpu"}, 0.0, 0)
    write_facts(path, {"file": "a.sx", "device": "cuda"}, 60.0, 5)
    found = read_facts(path)
    assert (found["file"], found["device"]) == ("a.sx", "cuda")
    assert found["sessions"] == [
        {"began": "1970-01-01T00:00:00+00:00", "after": 0},
        {"began": "1970-01-01T00:01:00+00:00", "after": 5},
    ]
    path.write_text("[1")
    assert read_facts(path) == {}
