"""The commands that look at runs, as a user calls them."""

from __future__ import annotations

import json
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from sexpgpu.cli import watch
from sexpgpu.cli.main import main
from sexpgpu.cli.runs import table
from sexpgpu.look.follow import Follower
from sexpgpu.train.folder import RunFolder, held

TEXT = """
(def rate 0.1)
(defmetric loss () (measure half 0.5) (mean (square (param w (f32 3) 1.0))))
(defeval look :batches 1 loss)
(defgenerator noise () (random-normal (f32 2)))
(defrun go :loss loss :optimizer (sgd :rate rate) :steps 6 :seed 3
  :evaluate (every 2 look) :generate (every 6 noise) :checkpoint (every 2 :keep 2))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with three runs: `a`, its equal `a-2`, and `a-3` at another rate, cut at step 3."""
    (tmp_path / "a.sx").write_text(TEXT)
    monkeypatch.chdir(tmp_path)
    for more in ((), (), ("--set", "rate=0.2", "--steps", "3")):
        assert invoke("run", "a.sx", "--quiet", *more).exit_code == 0
    return tmp_path


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, catch_exceptions=False)


def lines(*arguments: str, status: int = 0) -> list[str]:
    result = invoke(*arguments)
    assert (result.exit_code, result.stderr) == (status, ""), result.output
    return result.output.splitlines()


# --- runs ---------------------------------------------------------------------------------------------------


def test_runs_are_listed_newest_first(folder: Path) -> None:
    found = lines("runs")
    assert found[0].split() == ["run", "state", "step", "loss", "best", "evaluation", "age"]
    stood = [" ".join(line.split()[:3]) for line in found[1:]]
    assert stood == ["a-3 done 3/3", "a-2 done 6/6", "a done 6/6"]
    assert "look/loss" in found[1] and found == lines("runs", "runs")
    status = folder / "runs/a/status.json"
    status.write_text(json.dumps(json.loads(status.read_text()) | {"phase": "failed", "error_code": "E-RUN-001"}))
    with held(RunFolder(folder / "runs/a-2")):
        stands = {line.split()[0]: line.split()[1:3] for line in lines("runs")[1:]}
    assert stands["a-2"][0] == "running" and stands["a"] == ["failed", "E-RUN-001"]


def test_no_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = invoke("runs")
    assert result.exit_code == 1 and "E-RUN-006: there is no run in `runs`" in result.stderr


def test_a_table_fits_80_columns() -> None:
    rows = [("name", "state", "what"), ("n" * 60, "done", "w" * 60), ("short", "failed", "x")]
    shown = table(rows, yielding=(0, 2))
    assert all(len(line) <= 80 for line in shown)
    assert shown[1].count("…") == 2 and "done" in shown[1]
    assert table([("1", "a"), ("20", "b")], right=(0,)) == [" 1  a", "20  b"]


# --- checkpoints --------------------------------------------------------------------------------------------


def test_checkpoints_and_why_they_are_kept(folder: Path) -> None:
    found = lines("checkpoints", "a")
    assert found[0].split() == ["step", "size", "age", "state", "kept", "as"]
    assert [line.split()[0] for line in found[1:]] == ["4", "6"]
    assert found[1].endswith("whole  every 2; 2nd newest of 2 kept")
    assert found[2].endswith("whole  the last step; newest of 2 kept")
    assert all("verified" in line for line in lines("checkpoints", "a", "--verify")[1:])


def test_a_flipped_bit_is_found_by_reading_it_all(folder: Path) -> None:
    state = folder / "runs/a/checkpoints/step-00000004/state.safetensors"
    data = bytearray(state.read_bytes())
    data[-1] ^= 1
    state.write_bytes(data)
    assert "whole" in lines("checkpoints", "a")[1]
    found = lines("checkpoints", "a", "--verify", status=1)
    assert "damaged" in found[1] and "verified" in found[2] and "sha256 differs" in found[3]
    state.write_bytes(data[:-1])
    assert "damaged" in lines("checkpoints", "a", status=1)[1]


def test_superseded_checkpoints_are_called_so(folder: Path) -> None:
    resume = ("run", "a.sx", "--quiet", "--resume", "runs/a/checkpoints/step-00000004", "--steps", "5")
    assert invoke(*resume).exit_code == 0
    found = lines("checkpoints", "a")
    assert "the last step; newest" in found[2] and found[3].endswith("a resume began before it; never chosen")
    assert "resumed after step 4" in (report_of(folder, "a"))


# --- report -------------------------------------------------------------------------------------------------


def report_of(folder: Path, name: str) -> str:
    assert lines("report", name) == [f"runs/{name}/report.html: written"]
    return (folder / "runs" / name / "report.html").read_text("utf-8")


def test_a_report_of_a_real_run(folder: Path) -> None:
    page = report_of(folder, "a-3")
    for part in ("The run finished: 3 of 3 steps", "look/loss", "half", "rate=0.2", "noise", "step-00000003"):
        assert part in page, part
    assert lines("report", "runs/a", "--out", "page.html") == ["page.html: written"]
    assert (folder / "page.html").read_text("utf-8").startswith("<!doctype html>")


def test_a_failed_run_says_why(folder: Path) -> None:
    (folder / "b.sx").write_text(TEXT.replace("(param w (f32 3) 1.0)", "(* (exp (* step 20.0)) (param w (f32 3) 1.0))"))
    assert invoke("run", "b.sx", "--quiet").exit_code == 1
    assert "failed E-RUN-001" in lines("runs")[1]
    page = report_of(folder, "b")
    assert "The run failed with E-RUN-001 after 1 of 6 steps" in page and "sexpgpu explain E-RUN-001" in page


# --- diff ---------------------------------------------------------------------------------------------------


def test_equal_runs(folder: Path) -> None:
    found = lines("diff", "a", "a-2")
    assert found[0] == "configuration: equal" and "bit for bit" in found[1]
    assert found[2:] == ["checkpoint of step 6: the same bytes", "the runs are equal"]


def test_where_runs_part(folder: Path) -> None:
    found = lines("diff", "a", "a-3", status=1)
    assert found[:4] == ["configuration: runs/a | runs/a-3", "  --set rate: none | 0.2", "  steps: 6 | 3",
                         "they end at different steps: 6 | 3"]  # fmt: skip
    assert " equal before step 1, then eval/look/loss differs:" in found[4]
    assert found[5].split()[2] == "runs/a" and float.fromhex(found[6].split()[1]) == float(found[6].split()[0])
    assert found[-1] == "the runs differ"


def test_files_are_compared_line_by_line(folder: Path) -> None:
    (folder / "a.sx").write_text(TEXT.replace(":seed 3", ":seed 4"))
    assert invoke("run", "a.sx", "--quiet").exit_code == 0
    found = lines("diff", "a", "a-4")
    assert "  seed: 3 | 4" in found
    assert "  -(defrun go :loss loss :optimizer (sgd :rate rate) :steps 6 :seed 3" in found
    assert found[-1] == "the runs are equal", "nothing of this experiment is drawn but a sample"


def test_included_files_are_kept_and_compared(folder: Path) -> None:
    (folder / "a.sx").write_text('(include "part.sx")' + TEXT.replace("(f32 3) 1.0", "(f32 3) first"))
    for first in ("2.0", "3.0"):
        (folder / "part.sx").write_text(f"(def first {first})\n")
        assert invoke("run", "a.sx", "--quiet").exit_code == 0
    found = lines("diff", "a-4", "a-5", status=1)
    assert "  -(def first 2.0)" in found and "  +(def first 3.0)" in found
    assert "(def first 2.0)" in report_of(folder, "a-4")


# --- watch --------------------------------------------------------------------------------------------------


def test_a_run_that_is_over_is_told_at_once(folder: Path) -> None:
    found = lines("watch", "a")
    assert found[-2].startswith("step 6/6  loss ") and found[-1].startswith("The run finished: 6 of 6 steps")
    shutil.copytree("runs/a", "runs/killed")
    status = folder / "runs/killed/status.json"
    status.write_text(json.dumps(json.loads(status.read_text()) | {"phase": "training", "step": 4}))
    assert "ended without a word" in lines("watch", "killed", status=1)[-1]


def test_a_watch_ends_with_its_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = ExitStack()
    process.enter_context(held(RunFolder(folder / "runs/a")))
    looks = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            process.close()

    monkeypatch.setattr(watch.time, "sleep", sleep)
    assert lines("watch", "a")[-1].startswith("The run finished") and len(looks) == 3


def test_an_interrupt_leaves_the_run_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def sleep(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(watch.time, "sleep", sleep)
    before = {p: p.stat().st_mtime_ns for p in (folder / "runs/a").rglob("*")}
    with held(RunFolder(folder / "runs/a")):
        result = invoke("watch", "a")
    assert result.exit_code == 130 and "interrupted" in result.stderr
    assert before == {p: p.stat().st_mtime_ns for p in (folder / "runs/a").rglob("*")}


def test_what_a_terminal_shows(folder: Path) -> None:
    view = Follower(RunFolder(folder / "runs/a")).look()
    view.sample = (6, "one\x1b\ntwo")
    console = Console(width=60)
    with console.capture() as captured:
        console.print(watch.picture(view, "runs/a", 60))
    shown = captured.get().splitlines()
    assert shown[0] == "runs/a: done" and shown[1].startswith("step 6/6  loss ")
    assert shown[2].startswith("loss  █") and "look/loss" in shown[3]
    assert shown[-2:] == ["  one␛", "  two"]
    assert all(len(line) < 60 for line in shown)
