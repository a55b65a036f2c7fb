"""Checks of texts that an editor holds: the same findings as `sexpgpu check`, whatever the disk says."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from sexpgpu.cli.main import main
from sexpgpu.data import open_dataset
from sexpgpu.diagnostics import DiagnosticError
from sexpgpu.lang import replay
from sexpgpu.lang.load import load_experiment
from sexpgpu.lsp.analysis import Project, described
from sexpgpu.lsp.checking import EditedFiles, OpenedData, Outdated, Report, check_plain, check_variants
from tests.effort import calls
from tests.lang.files import write_data
from tests.lang.test_errors import FILES, TAIL, cases
from tests.lsp.marked import RUN, checked, opened

CHECKOUT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((CHECKOUT / "examples").glob("*.sx"))
GPT2 = CHECKOUT / "examples" / "gpt2.sx"


def found(report: Report) -> list[tuple[str, str]]:
    """Codes and places."""
    return [(d.code, f"{d.span.line}:{d.span.column}" if d.span else "") for d in report.diagnostics]


def by_command(path: Path) -> list[tuple[str, str]]:
    """What `sexpgpu check` says of a file."""
    printed = CliRunner().invoke(main, ["check", "--format", "json", str(path)]).stdout
    records = [json.loads(line) for line in printed.splitlines()]
    return [(r["code"], f"{r['span']['line']}:{r['span']['column']}") for r in records]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_has_no_error_but_missing_data(path: Path) -> None:
    project = Project()
    project.set_text(path, path.read_text("utf-8"))
    report = checked(project, path)
    assert {d.code for d in report.diagnostics} <= {"E-DATA-001"}


@pytest.mark.parametrize(
    "old, new",
    [
        ("(gelu (linear", "(gelu 1 (linear"),
        (":init small :name qkv", ":int small :name qkv"),
        ('"b h t d -> b t (h d)"', '"b h t d -> b t (h e)"'),
        ("(def heads 12)", "(def heads 13)"),
        ("(layer-norm x :name ln2)", "(layer-norm x :name ln1)"),
    ],
)
def test_the_findings_are_those_of_the_command(old: str, new: str, tmp_path: Path) -> None:
    text = GPT2.read_text("utf-8").replace("(def layers 12)", "(def layers 2)").replace(old, new)
    path = tmp_path / "a.sx"
    path.write_text(text, "utf-8")
    project = Project()
    project.set_text(path, text)
    errors = [f for f in found(checked(project, path)) if f[0].startswith("E")]
    assert errors == by_command(path)


def test_the_text_of_the_editor_counts_and_not_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "a.sx"
    path.write_text("(def broken", "utf-8")
    project, path = opened(tmp_path, "(def width 16)" + RUN)
    assert found(checked(project, path)) == []
    project.set_text(path, "(def width 16)" + RUN.replace("relu", "rely"))
    assert found(checked(project, path)) == [("E-NAME-001", "2:76")]


def test_a_mistake_in_a_variant_says_so(tmp_path: Path) -> None:
    project, path = opened(tmp_path, "(def width 16)\n(defvariant big (width 16.5))" + RUN)
    (only,) = checked(project, path).diagnostics
    assert only.code == "E-TYPE-006"
    assert only.notes[-1] == "the plain experiment is good; this is in the variant `big`"


def test_each_of_several_runs_is_checked(tmp_path: Path) -> None:
    second = "(defmetric other () (mean (square (net (ones (f32 8 17))))))\n"
    second += "(defrun more :loss other :optimizer (sgd :rate 0.1) :steps 0)\n"
    project, path = opened(tmp_path, "(def width 16)" + RUN + second)
    assert [d.code for d in checked(project, path).diagnostics] == ["E-TYPE-005"]


def test_included_files_come_from_the_editor_too(tmp_path: Path) -> None:
    (tmp_path / "parts.sx").write_text("(def width 16)\n", "utf-8")
    project, path = opened(tmp_path, '(include "parts.sx")' + RUN)
    assert found(checked(project, path)) == []
    project.set_text((tmp_path / "parts.sx").resolve(), "(def width unknown)\n")
    report = checked(project, path)
    (only,) = report.diagnostics
    assert only.code == "E-NAME-001" and only.span is not None
    assert report.files.path_of(only.span.source) == (tmp_path / "parts.sx").resolve()


MISSING = """(defdata corpus (tokens "none-*.bin" :vocabulary 50))
(defloader train (windows corpus :length 8) :batch 4)
(defmetric nll (tokens targets) (mean (cross-entropy (linear (one-hot tokens 50) WIDTH) targets)))
(defrun go :loader train :loss nll :optimizer (sgd :rate 0.1) :steps 3)
"""


def test_missing_data_is_said_once_and_hides_nothing(tmp_path: Path) -> None:
    project, path = opened(tmp_path, MISSING.replace("WIDTH", "50") + "(defvariant smoke)")
    assert found(checked(project, path)) == [("E-DATA-001", "1:17")]
    project.set_text(path, MISSING.replace("WIDTH", "wide"))
    assert found(checked(project, path)) == [("E-DATA-001", "1:17"), ("E-NAME-001", "3:82")]


ARRAYS = """(def size 64)
(defdata digits (arrays "none.npz"))
(defloader train (rows digits) :batch 4)
(defmetric nll ((x (float _ 8 size)) (label (i32 _))) (mean (cross-entropy (linear (BODY) 10) label)))
(defmetric other (unknown) (mean unknown))
(defrun go :loader train :loss nll :optimizer (sgd :rate 0.1) :steps 3)
(defeval test :loader train other)
"""


@pytest.mark.parametrize(
    "body, codes",
    [("reshape x [4 512]", []), ("reshape x [4 513]", ["E-TYPE-002"]), ("gather x unknown-name", ["E-NAME-001"])],
)
def test_missing_arrays_are_taken_to_be_as_metrics_declare(body: str, codes: list[str], tmp_path: Path) -> None:
    project, path = opened(tmp_path, ARRAYS.replace("BODY", body))
    assert [code for code, _ in found(checked(project, path))] == ["E-DATA-001", *codes]


def test_data_is_opened_again_only_when_its_files_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opens: list[str] = []
    monkeypatch.setattr("sexpgpu.lang.files.open_dataset", lambda s, b: opens.append(s.path) or open_dataset(s, b))
    project, path = opened(tmp_path, MISSING.replace("WIDTH", "50").replace("none-*.bin", "a.bin"))
    np.arange(400, dtype=np.uint16).clip(0, 49).tofile(tmp_path / "a.bin")
    for _ in range(3):
        assert found(checked(project, path)) == []
    assert opens == ["a.bin"]
    np.arange(300, dtype=np.uint16).clip(0, 49).tofile(tmp_path / "a.bin")
    assert found(checked(project, path)) == []
    assert opens == ["a.bin", "a.bin"]
    (tmp_path / "a.bin").unlink()
    assert found(checked(project, path)) == [("E-DATA-001", "1:17")]


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_mistakes_are_those_of_the_golden_files(path: Path, tmp_path: Path) -> None:
    write_data(tmp_path)
    for title, program, _ in cases(path):
        text = program if "(defrun" in program else program + TAIL
        (tmp_path / "file.sx").write_text(text, "utf-8")
        project, there = opened(tmp_path, text, "file.sx")
        report = checked(project, there)
        try:
            load_experiment(there)
        except DiagnosticError as error:
            wanted = {(d.code, d.message) for d in error.diagnostics}
            assert wanted <= {(d.code, d.message) for d in report.diagnostics}, title
            if not any(d.code.startswith("E-DATA") for d in error.diagnostics):
                assert len(wanted) == sum(d.severity == "error" for d in report.diagnostics), title


def test_a_check_of_an_old_text_is_given_up(tmp_path: Path) -> None:
    project, path = opened(tmp_path, "(def width 16)" + RUN)
    asked: list[bool] = []

    def outdated() -> bool:
        asked.append(True)
        return len(asked) > 5

    with pytest.raises(Outdated):
        check_plain(path, EditedFiles(project.texts, project.opened), outdated)
    assert len(asked) == 6


def test_how_much_work_a_keystroke_is() -> None:
    """GPT-2 of 12 layers, its evaluation and its variant: 0.04 and 0.02 s on a quiet core."""
    text, opened_data = GPT2.read_text("utf-8"), OpenedData()

    def check() -> Report:
        report, good = check_plain(GPT2, EditedFiles({GPT2: text}, opened_data))
        assert good
        return check_variants(GPT2, report)

    check()
    assert calls(check) < 340_000


@pytest.mark.parametrize("name", ["gpt2", "llama", "moe", "vae"])
def test_what_is_seen_of_replayed_calls(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = CHECKOUT / "examples" / f"{name}.sx"

    def seen() -> dict[str, list[str]]:
        report, _ = check_plain(path, EditedFiles({}, OpenedData()))
        own = [entry for entry in report.seen.values() if not entry[0].span.source.is_library]
        return {str(form.span): [described(value) for value in values] for form, *values in own}

    replayed = seen()
    monkeypatch.setattr(replay._Key, "holds", lambda *_: False)
    assert replayed == seen()
