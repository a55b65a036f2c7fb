"""Examples beside the same experiments in PyTorch: half the lines or fewer, stated figures, scripts that run."""

from __future__ import annotations

import json
import math
import re
import runpy
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from sexpgpu.cli.main import main
from sexpgpu.train.metrics import read_metrics
from tests.examples.test_examples import script
from tools.gallery import CHECKOUT, PAGE, gallery_page, lines_of_example, lines_of_script, row, rows

SCRIPTS = {path.stem: path for path in sorted((CHECKOUT / "tests" / "peers").glob("*.py"))}
EXAMPLES = {name: CHECKOUT / "examples" / f"{name}.sx" for name in SCRIPTS}
CLAIM = re.compile(r"(eval/\S+) (-?[\d.]+) ± ([\d.]+)")
"""A figure that a run's metrics confirm: a series, its last value, its margin."""


def needs_digits(name: str) -> bool:
    return "digits.npz" in EXAMPLES[name].read_text("utf-8")


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("digits") / "digits.npz"
    images, labels = script("make_digits").drawn(600)
    np.savez(path, image=images.astype(np.float32), label=labels.astype(np.int32))
    return path


def test_lines_are_those_with_code() -> None:
    text = (
        ';; head\n\n(def a 1)  ; one\n#| (def b\n 2) |#\n(def c "two ; no comment\nlines")\n(f [\n  ;; within\n  ]\n)\n'
    )
    assert lines_of_example(text) == 6
    text = '"""Head.\n\nMore."""\nimport os  # a\n\n\ndef f(x):\n    """Is."""\n    # no\n    return f(\n        x)\n'
    assert lines_of_script(text) == 4
    assert lines_of_script('x = """a\n\nb"""\n') == 3


def test_a_row_is_read_from_the_header(tmp_path: Path) -> None:
    example, peer = tmp_path / "net.sx", tmp_path / "net.py"
    example.write_text(";; net.sx: a net of 0.8 million\n;; parameters. More.\n;; figure: loss 1.5\n(def a 1)\n")
    peer.write_text("a = 1\nb = 2\nc = 3\n")
    found = row(example, peer)
    assert (found.name, found.what, found.figure) == ("net", "a net of 0.8 million parameters", "loss 1.5")
    assert (found.lines, found.peer_lines, found.ratio) == (1, 3, 1 / 3)


def test_every_script_has_its_example() -> None:
    assert SCRIPTS
    assert not [name for name, path in EXAMPLES.items() if not path.is_file()]


@pytest.mark.parametrize("found", rows(), ids=lambda r: r.name)
def test_an_example_has_half_the_lines_of_its_script(found) -> None:
    assert found.lines <= found.peer_lines / 2, (found.lines, found.peer_lines)


@pytest.mark.parametrize("found", rows(), ids=lambda r: r.name)
def test_an_example_says_what_it_is_and_reaches(found) -> None:
    assert found.what, "the header begins with `NAME.sx: what it is.`"
    assert found.figure, "a line of the header says `;; figure: …`"


def test_the_page_is_generated() -> None:
    assert PAGE.read_text("utf-8") == gallery_page(), "run python tools/docs.py"


@pytest.mark.torch
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_trains_and_resumes(name: str, digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps, then two more from the checkpoint: `--out DIR --steps N [--resume]`, and metrics as JSON lines."""
    pytest.importorskip("torch")
    data = ["--digits", str(digits)] if needs_digits(name) else []
    if "--smoke" in SCRIPTS[name].read_text("utf-8"):  # one that is too large for a test
        data.append("--smoke")
    for more in (["--steps", "2"], ["--steps", "4", "--resume"]):
        monkeypatch.setattr("sys.argv", [str(SCRIPTS[name]), "--out", str(tmp_path / "run"), *data, *more])
        runpy.run_path(str(SCRIPTS[name]), run_name="__main__")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert {line["step"] for line in lines} >= {1, 2, 3, 4}
    numbers = [value for line in lines for value in line.values() if isinstance(value, float)]
    assert numbers and all(map(math.isfinite, numbers))


def claims(name: str) -> list[tuple[str, str, str]]:
    return CLAIM.findall(row(EXAMPLES[name], SCRIPTS[name]).figure)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SCRIPTS if claims(name)])
def test_a_run_reaches_the_stated_figure(name: str, tmp_path: Path) -> None:
    data = []
    if needs_digits(name):
        pytest.importorskip("sklearn")
        images, labels = script("make_digits").scanned()
        np.savez(tmp_path / "digits.npz", image=images.astype(np.float32), label=labels.astype(np.int32))
        data = [f"--set=digits={tmp_path / 'digits.npz'}"]
    result = CliRunner().invoke(main, ["run", str(EXAMPLES[name]), "--out", str(tmp_path / "run"), *data])
    assert result.exit_code == 0, result.output
    series = read_metrics(tmp_path / "run" / "metrics.jsonl")
    for found, value, margin in claims(name):
        assert series[found][-1][1] == pytest.approx(float(value), abs=float(margin)), found
