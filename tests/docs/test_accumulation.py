"""The numbers on the page of gradient accumulation are those that its snippets give."""

import re
from pathlib import Path

import pytest

from sexpgpu.lang.load import load_experiment
from tests.docs.snippets import CHECKOUT, snippets, write_files
from tests.train.trial import Trial

PAGE = (CHECKOUT / "docs" / "accumulation.md").read_text("utf-8")
TEXTS = [s.text for s in snippets("lisp") if s.place.startswith("docs/accumulation.md")]


@pytest.mark.parametrize("micro", [1, 2])
@pytest.mark.parametrize("which", range(2))
def test_the_table_holds(which: int, micro: int, tmp_path: Path) -> None:
    rows = [r.replace("−", "-") for r in re.findall(rf"^\| `micro` {micro} \|.*$", PAGE, re.MULTILINE)]
    cells = [cell.strip() for cell in rows[which].strip("|").split("|")]
    loss, weight, gradient, after = (float(cell.rpartition("=")[2]) for cell in cells[-4:])
    write_files(tmp_path)
    (tmp_path / "file.sx").write_text(TEXTS[which])
    with Trial(load_experiment(tmp_path / "file.sx", settings={"micro": str(micro)})) as trial:
        result = trial.step()["go"]
        assert (result.loss, result.weight) == (pytest.approx(loss, abs=0.005), weight)
        assert float(trial.read("p")) == after == -gradient
