"""The page of a run: what it says, and that it holds all it needs."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sexpgpu.look.chart import Line, Mark, chart
from sexpgpu.look.page import headline, report
from sexpgpu.look.record import age, find_run, list_runs, read_run, saved_by, state_of
from sexpgpu.look.series import Series
from sexpgpu.train.facts import write_facts
from sexpgpu.train.folder import RunFolder, held
from sexpgpu.train.metrics import MetricsWriter

VOID = {"meta", "img", "br"}


class Balanced(HTMLParser):
    """Tags that are open, and all text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes another tag"

    def handle_data(self, data: str) -> None:
        if self.open[-1:] not in (["style"], ["script"]):
            self.text.append(data)


def parsed(page: str) -> tuple[str, list[str]]:
    """The text of a page, in one line, and what it links to."""
    reader = Balanced()
    reader.feed(page)
    assert not reader.open
    return " ".join(" ".join(reader.text).split()), reader.links


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A run of 200 steps with everything that a page shows."""
    folder = RunFolder(tmp_path / "runs" / "lm")
    folder.path.mkdir(parents=True)
    folder.text.write_text("(def a 1) ; <b>&\n")
    facts = {
        "file": "lm.sx", "overrides": {"variant": "smoke", "width": "8"}, "losses": {"go": "nll"}, "steps": 200,
        "seed": 7, "microbatches": 2, "diagnostics": ["ratio"], "checkpoint": {"every": 100, "keep": 3},
        "parameters": 1234, "tensors": 5, "device": "cpu", "machine": "a processor", "version": "0.1.0",
        "planned_bytes": 3 << 20, "parts": {"parameters": 1 << 20, "feeds": 2 << 20},
    }  # fmt: skip
    write_facts(folder.facts, facts, 0.0, 0)
    write_facts(folder.facts, facts, 3600.0, 100)
    draw = np.random.default_rng(0)
    with MetricsWriter(folder.metrics, None) as writer:
        for step in range(1, 201):
            points = {"train/loss": 5 / step + step % 2, "train/gradient-norm": float(draw.random())}
            points |= {"runtime/step_ms": 10.0}
            points |= {"runtime/peak_bytes": 2 << 20, "runtime/held_bytes": 2 << 20, "train/entropy": 0.5}
            if step % 50 == 0:
                points |= {f"train/ratio/layer.{i}": i + 1 / step for i in range(12)}
                points |= {"eval/look/nll": 3 - step / 100, "eval/look/accuracy": step / 400}
            writer.points(step, points)
        writer.annotate(40, "skipped", "step 40: the update `go` was skipped", update="go", count=1)
        writer.annotate(100, "sample", "<script>alert(1)</script>\x1b[2J", generator="story")
        writer.annotate(200, "sample", "saved as picture-00000200.png", generator="picture")
        writer.annotate(200, "memory", "memory: peak 2.0 MiB of 3.0 MiB planned")
    folder.samples.mkdir()
    Image.new("L", (4, 4)).save(folder.samples / "picture-00000200.png")
    stand(folder, "done")
    return folder


def stand(folder: RunFolder, phase: str, **fields: object) -> None:
    status = {"phase": phase, "step": 200, "steps": 200, "heartbeat": "2026-01-02T03:04:05+00:00", **fields}
    folder.status.write_text(json.dumps(status))


def test_a_page_tells_a_stranger_how_the_run_went(run: RunFolder) -> None:
    text, links = parsed(report(read_run(run), saved_by(run)))
    assert "The run finished: 200 of 200 steps, which took 2.0 s." in text
    assert "The training loss went from 6 to 0.5256." in text
    assert "The lowest look/nll was 1, at step 200." in text
    for part in ("Updates were skipped at 1 step", "Gradient norm", "entropy", "layer.11", "Samples: story", "seed 7",
                 "variant smoke", "width=8", "1,234 in 5 tensors", "resumed after step 100, 1970-01-01 01:00 UTC",
                 "Memory as planned: 3.0 MiB", "feeds 2.0 MiB", "(def a 1) ; <b>&"):  # fmt: skip
        assert part in text, part
    assert all(link.startswith("data:image/png;base64,") for link in links) and len(links) == 1


def test_a_page_needs_no_network_and_runs_nothing_of_a_sample(run: RunFolder) -> None:
    page = report(read_run(run), [])
    assert not re.search(r"https?://|@import|url\(", page)
    assert "<script>alert" not in page and "&lt;script&gt;alert(1)&lt;/script&gt;␛[2J" in page


def test_the_loss_and_its_evaluation_share_a_chart(run: RunFolder) -> None:
    page = report(read_run(run), [])
    first = page[page.index("<figure") : page.index("</figure>")]
    assert "Loss" in first and "look/nll" in first and 'data-label="train (mean)"' in first
    assert "accuracy" not in first
    assert page.count('<path class="mark"') % page.count('<figure class="chart"') == 0, "marks are on every chart"


def test_a_failure_is_told_with_its_remedy(run: RunFolder) -> None:
    with MetricsWriter(run.metrics, 120) as writer:
        writer.annotate(121, "failed", "step 121: `go` is not finite", code="E-RUN-001", help=["lower the rate"])
    stand(run, "failed", error_code="E-RUN-001", step=120)
    text, _ = parsed(report(read_run(run), []))
    assert "The run failed with E-RUN-001 after 120 of 200 steps" in text
    assert "step 121: go is not finite lower the rate More: sexpgpu explain E-RUN-001" in text


def test_the_states_of_a_run(run: RunFolder) -> None:
    assert str(read_run(run).state) == "done"
    stand(run, "interrupted", step=50, last_checkpoint="step-00000050")
    told = headline(read_run(run))
    assert told.startswith("The run was interrupted after 50 of 200 steps, ")
    assert "`--resume` goes on from its newest checkpoint." in told
    stand(run, "training")
    assert read_run(run).state.kind == "killed"
    with held(run):
        assert headline(read_run(run)).startswith("The run is running: 200 of 200 steps so far, ")
    stand(run, "failed", error_code="E-RUN-003")
    assert str(read_run(run).state) == "failed E-RUN-003"
    run.status.write_text("{")
    assert read_run(run).state.kind == "empty"
    assert state_of(RunFolder(run.path / "none"), {}).kind == "empty"


def test_a_run_that_left_nothing_has_a_page(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    write_facts(folder.facts, {"file": "a.sx"}, 0.0, 0)
    text, _ = parsed(report(read_run(folder), []))
    assert "The run has made no step." in text and "No step was recorded." in text


def test_values_that_are_not_finite_are_told(run: RunFolder) -> None:
    with MetricsWriter(run.metrics, 200) as writer:
        writer.points(201, {"train/loss": float("inf")})
    text, _ = parsed(report(read_run(run), []))
    assert "Values that were not finite are not drawn: train/loss (1)." in text


def test_runs_are_found_by_path_and_name(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    root = run.path.parent
    (root / "empty").mkdir()
    assert [f.path.name for f in list_runs(root)] == ["lm"]
    monkeypatch.chdir(root.parent)
    assert find_run("lm").path == find_run("runs/lm").path == Path("runs/lm")


# --- charts -------------------------------------------------------------------------------------------------


def line(values: list[float]) -> Line:
    return Line("a", Series("a", np.arange(1, len(values) + 1), np.asarray(values, np.float64)))


def test_a_scale_is_logarithmic_where_that_helps() -> None:
    falling = [1000 / 2**i for i in range(12)]
    assert 'data-log="1"' in chart("t", [line(falling)], 12)
    assert 'data-log="0"' in chart("t", [line(falling)], 12, scale="plain")
    assert 'data-log="0"' in chart("t", [line([0.0, *falling])], 13), "zero has no logarithm"
    assert 'data-log="0"' in chart("t", [line([2.0, 1.5, 1.0])], 3)


def test_only_noise_is_smoothed() -> None:
    falling = [1 / (1 + i) for i in range(500)]
    draw = np.random.default_rng(0).random(500).tolist()
    for values, drawn in ((falling, 1), (draw, 2), (draw[:50], 1)):
        series = Series("a", np.arange(len(values)), np.array(values))
        assert chart("t", [Line("a", series, smooth=True)], 500).count('class="line') == drawn


def test_places_on_a_chart() -> None:
    drawn = chart("t", [line([0.0, 10.0])], 2, [Mark(2, "<here>")], scale="amount")
    assert 'd="M0 1000 1000 56.6"' in drawn, "from the lower left to a little below the top"
    assert '<path class="mark" d="M1000.0 0V1000"><title>&lt;here&gt;</title></path>' in drawn
    assert chart("t", [line([float("nan")])], 1) == ""


@pytest.mark.parametrize("values", [[1.0], [0.0, 0.0], [-5.0, -5.0], [1e-30, 1e30], [-1e300, 1e300], [5e-324]])
def test_odd_values_have_a_chart(values: list[float]) -> None:
    drawn = chart("t", [line(values)], len(values))
    assert "nan" not in drawn and "inf" not in drawn
    parsed(drawn)


def test_a_long_series_makes_a_small_chart() -> None:
    drawn = chart("t", [line(np.random.default_rng(0).random(200_000).tolist())], 200_000)
    assert len(drawn) < 30_000


def test_ages() -> None:
    assert [age(0, s) for s in (5, 300, 7200, 200_000)] == ["5 s", "5 min", "2 h", "2 d"]
