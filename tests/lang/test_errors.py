"""What the elaborator says to a mistaken file: every text of `golden/*.txt`, word for word.

A golden file holds cases: a headline `=== what is wrong`, a program, a line `---`, and what `sexpgpu check` prints.
`pytest tests/lang --rewrite` writes the printed parts anew. A program without a run gets the tail below, which has
the data `points` (fields `x`, f32 of 3, and `y`, i32) and the loader `train`.
"""

import re
from pathlib import Path

import pytest

from sexpgpu.diagnostics import DiagnosticError, render
from sexpgpu.lang.load import load_experiment
from tests.lang.files import write_data

GOLDEN = Path(__file__).with_name("golden")
WORDS = '(defdata words (text "words.txt"))'
TAIL = """
(defdata points (arrays "rows.npz"))
(defloader train (rows points) :batch 4)
(defrun go :loader train :loss loss :optimizer (sgd :rate 0.1) :steps 10)
"""
METRIC = "(defmetric loss ((x (f32 _ 3))) (mean (square (param w (f32) 1.0))))"


def cases(path: Path) -> list[tuple[str, str, str]]:
    """Headline, program and printed text of every case of a file."""
    found = []
    for block in path.read_text("utf-8").split("=== ")[1:]:
        title, rest = block.split("\n", 1)
        program, _, printed = rest.partition("\n---\n")
        found.append((title, program.strip("\n"), printed.strip("\n")))
    return found


def printed(program: str, folder: Path) -> str:
    """What a check of the program prints."""
    text = program + "\n"
    if "(defmetric loss" not in program and "(defrun" not in program:
        text += METRIC
    if "(defrun" not in program:
        text += TAIL if " words" not in program else f"{WORDS}{TAIL}"
    (folder / "file.sx").write_text(text, encoding="utf-8", newline="\n")
    try:
        experiment = load_experiment("file.sx")
        text = render(experiment.warnings) or "(accepted)"
    except DiagnosticError as error:
        text = render(error.diagnostics).replace(str(folder), "FOLDER")
    return re.sub(r"(std/[\w-]+\.sx):\d+:\d+", r"\1:LINE", text)  # an edit of the library moves its lines


FILES = sorted(GOLDEN.glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_messages(path, rewrite, tmp_path, monkeypatch):
    write_data(tmp_path)
    monkeypatch.chdir(tmp_path)
    found = [(title, program, printed(program, tmp_path)) for title, program, _ in cases(path)]
    if rewrite:
        blocks = [f"=== {title}\n{program}\n---\n{text}\n" for title, program, text in found]
        path.write_text("\n".join(blocks), encoding="utf-8", newline="\n")
    for (title, _, text), (_, _, wanted) in zip(found, cases(path), strict=True):
        assert text == wanted, title
        assert "(accepted)" not in text, title


def test_there_are_enough_of_them():
    assert sum(len(cases(path)) for path in FILES) >= 60


def test_places_are_in_the_users_file():
    for path in FILES:
        for title, _, text in cases(path):
            for line in text.splitlines():
                assert not line.lstrip().startswith("-->") or "file.sx" in line or "--set" in line, title


def test_forms_nested_beyond_what_can_be_elaborated(tmp_path):
    nested = "(+ 1 " * 150 + "(deep (- n 1))" + ")" * 150
    text = f"(defn deep (n) (if (= n 0) 0 {nested})) (def a (deep {{}}))"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        write_data(tmp_path)
        assert "E-CALL-004" in printed(text.format(250), tmp_path)
        assert "E-CALL-004" not in printed(text.format(20), tmp_path)
