"""A run followed while it grows."""

from __future__ import annotations

import json
from pathlib import Path

from sexpgpu.look.follow import Follower, Tail
from sexpgpu.train.folder import RunFolder, held
from sexpgpu.train.metrics import MetricsWriter


def stand(folder: RunFolder, **fields: object) -> None:
    folder.status.write_text(json.dumps({"phase": "training", "step": 1, "steps": 9, **fields}))


def test_a_tail_gives_whole_lines_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    tail = Tail(path)
    assert tail.read() == []
    path.write_text('{"step": 1, "series": "a", "value": 1}\n{"step": 2, "ser')
    assert [r["step"] for r in tail.read()] == [1]
    assert tail.read() == []
    with path.open("a") as stream:
        stream.write('ies": "a", "value": 2}\n')
    assert [r["step"] for r in tail.read()] == [2]
    other = tmp_path / "other"
    other.write_text('{"step": 1, "series": "a", "value": 1}\n')
    other.replace(path)
    assert [r["step"] for r in tail.read()] == [1] and tail.num_restarts == 1


def test_a_run_is_followed_to_its_end(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    follower = Follower(folder)
    with held(folder):
        assert follower.look().state.kind == "running"
        with MetricsWriter(folder.metrics, None) as writer:
            writer.points(1, {"train/loss": 3.0, "train/gradient-norm": 1.0})
            writer.flush()
            stand(folder)
            view = follower.look()
            assert (view.losses, view.news, view.status["step"]) == ([3.0], [], 1)
            writer.points(2, {"train/loss": 2.0})
            writer.points(2, {"eval/look/nll": 2.5})
            writer.annotate(2, "sample", "The cat", generator="story")
            writer.annotate(2, "sample", "saved as x.png", generator="picture")
            writer.annotate(2, "skipped", "step 2: the update `go` was skipped")
            writer.flush()
            view = follower.look()
        assert view.losses == [3.0, 2.0] and view.evaluations == {"look/nll": 2.5}
        assert view.sample == (2, "The cat"), "a text says more than the name of a picture"
        assert view.news == [
            "step      2  look/nll 2.5000",
            "step      2  story: The cat",
            "step      2  picture: saved as x.png",
            "step      2  the update `go` was skipped",
        ]
        assert follower.look().news == []
    assert follower.look().state.kind == "killed"
    stand(folder, phase="done", step=2)
    assert follower.look().state.kind == "done"


def test_only_the_newest_of_what_came_before_is_news(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with MetricsWriter(folder.metrics, None) as writer:
        for step in range(1, 30):
            writer.points(step, {"train/loss": 1.0, "eval/look/nll": 1.0})
    view = Follower(folder).look()
    assert len(view.losses) == 29
    assert [line.split()[1] for line in view.news] == ["25", "26", "27", "28", "29"]


def test_a_resume_begins_the_losses_anew(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with MetricsWriter(folder.metrics, None) as writer:
        for step in range(1, 5):
            writer.points(step, {"train/loss": float(step)})
    follower = Follower(folder)
    assert follower.look().losses == [1.0, 2.0, 3.0, 4.0]
    with MetricsWriter(folder.metrics, 2) as writer:
        writer.points(3, {"train/loss": 30.0})
    assert follower.look().losses == [1.0, 2.0, 30.0]
