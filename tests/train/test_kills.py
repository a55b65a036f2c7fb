"""Runs that are killed: at every call that writes, and at random moments. What is left ends in the same bytes."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from sexpgpu.train.metrics import read_metrics
from sexpgpu.train.store import RECORD_FILE, Store, open_store
from tests.s3_server import Request, S3Server
from tests.train.forked import Ended, Forks
from tests.train.test_resume import TEXT, X
from tests.train.trial import write_experiment

NUM_STEPS = 12
SHORT = (
    TEXT.replace("80", str(NUM_STEPS))
    .replace("(every 16 look)", "(every 3 look)")
    .replace("(every 4 :keep 3)", '(every 3 :keep 2 :keep-best "eval/look/see")')
)
"""Every checkpoint replaces one, and the first and the third are the best for a while."""


class Scene:
    """An experiment, a run of it that nothing disturbed, and runs to be killed."""

    def __init__(self, folder: Path, forks: Forks, server: S3Server | None) -> None:
        self.folder = folder
        self.forks = forks
        self.server = server
        self.num_runs = 0
        write_experiment(folder, SHORT, "tiny.sx", x=X)
        self.whole = self.run("whole")
        assert self.whole.status == 0, self.whole.output

    def store(self, name: str) -> Store:
        return open_store(self.folder / name / "checkpoints" if self.server is None else f"s3://lab/{name}")

    def run(self, name: str, *more: str, **rest: object) -> Ended:
        place = [] if self.server is None else ["--checkpoints", f"s3://lab/{name}"]
        environment = {} if self.server is None else self.server.environment
        arguments = ("run", "tiny.sx", "--out", name, *place, *more)
        return self.forks.run(self.folder, *arguments, environment=environment, **rest)

    def resume(self, name: str) -> str:
        """Go on with a run that was killed, or begin another where it had saved nothing; the name of what ended."""
        ended = self.run(name, "--resume", "latest")
        if ended.status == 1 and "E-CKPT-001" in ended.output:
            assert not [each for each in self.store(name).names() if each.startswith("step-")]
            name = f"{name}-anew"
            ended = self.run(name)
        assert ended.status == 0, ended.output
        assert "damaged" not in ended.output
        return name

    def check(self, name: str) -> None:
        """That a run left what the whole one left: checkpoints byte for byte, series value for value."""
        ours, wanted = self.store(name), self.store("whole")
        kept = [each for each in ours.names() if each.startswith("step-")]
        assert kept == wanted.names()
        for each in kept:
            record = wanted.read_record(each)
            assert ours.read_record(each) == record
            file = json.loads(record)["state"]["file"]
            with ours.state(each, file) as ours_at, wanted.state(each, file) as wanted_at:
                assert ours_at.read_bytes() == wanted_at.read_bytes()
            assert ours.size(each, RECORD_FILE) == len(record)
        found, expected = (read_metrics(self.folder / run / "metrics.jsonl") for run in (name, "whole"))
        first = min(step for step, _ in found["train/loss"])  # 1 unless the folder is a new one
        for series, points in expected.items():
            if not series.startswith("runtime/"):
                assert found[series] == [point for point in points if point[0] >= first], series
        assert json.loads((self.folder / name / "status.json").read_text())["phase"] == "done"
        if self.server is None:
            assert not [p.name for p in (self.folder / name / "checkpoints").iterdir() if p.name.startswith(".")]
        else:
            self.check_objects(name)

    def check_objects(self, name: str) -> None:
        """That no state lies on S3 without a record that names it."""
        store = self.store(name)
        listing = store._listing()  # type: ignore[attr-defined]
        for each, files in listing.items():
            named = json.loads(store.read_record(each))["state"]["file"]
            assert set(files) == {RECORD_FILE, named}, each

    def kill_at(self, at: int, when: str) -> bool:
        """Kill a run at a write point and resume it; False where it ends before it comes there."""
        name = f"{when}-{at}"
        ended = self.run(name, at=at, when=when)
        if ended.status == 0:
            return False
        assert ended.status == -9, ended
        self.check(self.resume(name))
        return True

    def kill_at_random_moments(self, num_kills: int, rng: random.Random, longest_s: float) -> int:
        """Kill runs, and those that resume them, `num_kills` times; how many runs came to their end."""
        num_killed = num_ended = 0
        name, begun = "random-0", False
        while num_killed < num_kills:
            more = ("--resume", "latest") if begun else ()
            ended = self.run(name, *more, after_s=rng.uniform(0.03, longest_s))
            if ended.status == 1:
                assert "E-CKPT-001" in ended.output, ended.output
                shutil.rmtree(self.folder / name, ignore_errors=True)
                begun = False
            elif ended.status == 0:
                self.check(name)
                num_ended += 1
                name, begun = f"random-{num_ended}", False
            else:
                assert ended.status == -9, ended
                num_killed += 1
                begun = True
        self.check(self.resume(name))
        return num_ended


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with Forks() as found:
        yield found


@pytest.fixture
def disk(forks: Forks, tmp_path: Path) -> Scene:
    return Scene(tmp_path, forks, None)


@pytest.fixture
def bucket(forks: Forks, tmp_path: Path, s3: S3Server) -> Iterator[Scene]:
    s3.strike = lambda: forks.kill(tmp_path)
    yield Scene(tmp_path, forks, s3)
    fs = open_store("s3://lab/x")._fs  # type: ignore[attr-defined]
    fs.rm("lab", recursive=True)
    fs.mkdir("lab")


def kill_at_points(disk: Scene, step: int) -> int:
    """Before every `step`th write point, and in the middle of those that write bytes; how many there are."""
    for at in range(1, disk.whole.points + 1, step):
        disk.kill_at(at, "before")
        disk.kill_at(at + step // 2, "half")
    return disk.whole.points


def test_killed_at_points_of_writing(disk: Scene) -> None:
    assert kill_at_points(disk, 47) > 100


@pytest.mark.slow
def test_killed_at_every_point_of_writing(disk: Scene) -> None:
    assert kill_at_points(disk, 1) > 100
    assert not disk.kill_at(disk.whole.points + 40, "before"), "there are no more"


def test_killed_at_some_moments(disk: Scene) -> None:
    disk.kill_at_random_moments(5, random.Random(), 0.4)


@pytest.mark.slow
def test_killed_at_two_hundred_moments(disk: Scene) -> None:
    disk.kill_at_random_moments(200, random.Random(), 0.4)


def kill_at_requests(bucket: Scene, server: S3Server, step: int) -> int:
    """At every `step`th request that changes the bucket; how many there are."""
    with server.failing(lambda request: None):
        assert bucket.run("counted").status == 0
        num_writes = server.num_writes
    for at in range(1, num_writes + 1, step):
        for when in ("before", "half", "after") if step == 1 else (random.choice(("before", "half", "after")),):

            def strike(request: Request, at: int = at, when: str = when) -> str | None:
                return when if request.number == at else None

            name = f"{when}-{at}"
            with server.failing(strike):
                ended = bucket.run(name)
            assert ended.status == -9, ended
            bucket.check(bucket.resume(name))
    return num_writes


def test_killed_at_requests(bucket: Scene, s3: S3Server) -> None:
    assert kill_at_requests(bucket, s3, 8) > 12


@pytest.mark.slow
def test_killed_at_every_request(bucket: Scene, s3: S3Server) -> None:
    assert kill_at_requests(bucket, s3, 1) > 12


def test_killed_at_a_moment_before_s3(bucket: Scene) -> None:
    bucket.kill_at_random_moments(2, random.Random(), 1.0)


@pytest.mark.slow
def test_killed_at_two_hundred_moments_before_s3(bucket: Scene) -> None:
    bucket.kill_at_random_moments(200, random.Random(), 1.0)
