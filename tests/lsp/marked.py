"""Texts with a cursor: `|` marks it, and is not part of the text."""

from pathlib import Path

from sexpgpu.lsp.analysis import Project
from sexpgpu.lsp.checking import EditedFiles, Report, check_plain, check_variants

RUN = """
(defmodel net ((x (f32 _ ?n))) (let [h (linear x width :name up)] (linear (relu h) 4 :name out)))
(defmetric loss () (mean (square (net (ones (f32 8 16))))))
(defrun go :loss loss :optimizer (sgd :rate 0.1) :steps 3)
"""


def cut(marked: str) -> tuple[str, int]:
    """The text, and the offset of the cursor."""
    at = marked.index("|")
    return marked[:at] + marked[at + 1 :], at


def opened(tmp_path: Path, text: str, name: str = "a.sx") -> tuple[Project, Path]:
    """A project with one open text that is on no disk."""
    project, path = Project(), (tmp_path / name).resolve()
    project.set_text(path, text)
    return project, path


def checked(project: Project, path: Path) -> Report:
    """Check an open file, variants too, and keep what was seen."""
    report, good = check_plain(path, EditedFiles(dict(project.texts), project.opened))
    project.keep(path, report, good)
    return check_variants(path, report) if good else report
