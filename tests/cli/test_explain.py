"""`sexpgpu explain`, and the hint below what other commands print."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sexpgpu.cli.main import main
from sexpgpu.diagnostics import CODES
from sexpgpu.diagnostics.pages import page

HINT = "for more: sexpgpu explain"
TWO_KINDS = """(def a (/ 7 2))
(def b unknown)
(def c (/ 9 2))
(defmetric loss () (square (param w (f32) 1.0)))
(defrun go :loss loss :optimizer (sgd :rate 0.1) :steps 3)
"""
ODD = """(def spare 1)
(defmetric loss () (square (param w (f32) 1.0)))
(defrun go :loss loss :optimizer (sgd :rate 0.1) :steps 3)
"""


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two.sx").write_text(TWO_KINDS, "utf-8")
    (tmp_path / "odd.sx").write_text(ODD, "utf-8")
    return tmp_path


def test_a_page_in_a_terminal_without_its_fences() -> None:
    result = invoke("explain", "e-type-008")
    assert result.exit_code == 0 and result.stderr == ""
    lines = result.output.splitlines()
    assert lines[0] == "E-TYPE-008: division is not exact"
    assert "Why" in lines and "Mended" in lines and "    $ sexpgpu check file.sx" in lines
    assert "    (def head-width (/ width 4))" in lines and "```" not in result.output
    assert "\x1b" not in result.output, "plain where it is no terminal"
    styled = CliRunner().invoke(main, ["explain", "E-TYPE-008"], color=True).output
    assert styled.startswith("\x1b[1mE-TYPE-008") and styled.count("\x1b[1m") == 4


def test_every_page_is_there_and_several_can_be_asked_for() -> None:
    everything = invoke("explain", *CODES).output
    for code, row in CODES.items():
        assert f"{code}: {row.title}" in everything and page(code)


def test_the_list_of_codes_by_area() -> None:
    lines = invoke("explain").output.splitlines()
    assert lines[0] == "Reading" and lines[1].split() == ["E-READ-001", "file", "cannot", "be", "opened"]
    assert {line.split()[0] for line in lines if line.startswith("  ")} == set(CODES)
    assert [line for line in lines if line and not line.startswith(" ")].count("Names") == 1
    assert all(len(line) <= 80 for line in lines)


def test_an_unknown_code_gives_near_ones() -> None:
    result = invoke("explain", "E-TYP-001", "E-TYPE-001")
    assert result.exit_code == 1 and result.output == result.stderr
    assert result.stderr.startswith("sexpgpu explain: E-NAME-005: there is no code `E-TYP-001`; near ones: ")
    assert "`E-TYPE-001` (dtypes differ)" in result.stderr
    assert "lists them all" in invoke("explain", "weather").stderr


def test_the_hint_stands_once_below_all_that_is_wrong(folder: Path) -> None:
    errors = invoke("check", "two.sx").stderr
    assert errors.endswith(f"\n\n{HINT} E-TYPE-008 E-NAME-001\n") and errors.count(HINT) == 1
    warned = invoke("check", "odd.sx")
    assert warned.exit_code == 0 and warned.stderr.endswith(f"\n\n{HINT} W-NAME-001\n")


def test_a_command_that_warns_and_fails_hints_once(folder: Path) -> None:
    assert invoke("run", "odd.sx", "--quiet", "--out", "here").stderr.count(HINT) <= 1
    failed = invoke("run", "odd.sx", "--quiet", "--out", "here")
    assert failed.exit_code == 1 and "E-IO-002" in failed.stderr and failed.stderr.count(HINT) == 1


@pytest.mark.parametrize("style", ["concise", "json"])
def test_lines_for_programs_go_to_the_output_without_a_hint(folder: Path, style: str) -> None:
    result = invoke("check", "two.sx", "--format", style)
    assert result.exit_code == 1 and result.stderr == "" and HINT not in result.output
    assert len(result.output.splitlines()) == 3
    warned = invoke("check", "odd.sx", "--format", style)
    assert warned.exit_code == 0 and warned.stderr == "" and "W-NAME-001" in warned.output.splitlines()[0]


def test_concise_lines_are_what_editors_parse(folder: Path) -> None:
    assert invoke("check", "two.sx", "--format", "concise").output.splitlines() == [
        "two.sx:1:8: E-TYPE-008: 7 / 2 is not a whole number",
        "two.sx:2:8: E-NAME-001: nothing is called `unknown`",
        "two.sx:3:8: E-TYPE-008: 9 / 2 is not a whole number",
    ]


def test_json_lines_have_the_keys_that_are_documented(folder: Path) -> None:
    manual = (Path(__file__).resolve().parents[2] / "docs" / "errors.md").read_text("utf-8")
    for file in ("two.sx", "odd.sx", "gone.sx"):
        for line in invoke("check", file, "--format", "json").output.splitlines():
            record = json.loads(line)
            assert list(record) == ["command", "severity", "code", "message", "span", "labels", "help", "notes"]
            places = [record["span"], *(label["span"] for label in record["labels"])]
            for place in filter(None, places):
                assert list(place) == ["file", "line", "column", "end_line", "end_column", "start", "end"]
            assert all(f"`{key}`" in manual for key in (*record, *(place or {})))
    only = invoke("check", "gone.sx", "--format", "json")
    assert json.loads(only.output)["span"] is None and json.loads(only.output)["code"] == "E-READ-001"


VARIANTS = """(def width 12)
(def heads 4)
(defvariant small (width 6))
(defvariant odd (width 6) (heads 4))
(defvariant bad (heads 0))
(defvariant fine (width 8))
(defmetric loss () (mean (square (param w (f32 (/ width heads)) 1.0))))
(defrun go :loss loss :optimizer (sgd :rate 0.1) :steps 3)
"""


def test_a_mistake_that_several_variants_have_is_told_once(folder: Path) -> None:
    (folder / "variants.sx").write_text(VARIANTS, "utf-8")
    errors = invoke("check", "variants.sx").stderr
    assert errors.count("E-TYPE-008: 6 / 4") == 1 and "variants `small`, `odd`" in errors
    assert errors.count("E-TYPE-008: division by zero") == 1 and "the variant `bad`" in errors
    assert "`fine`" not in errors
