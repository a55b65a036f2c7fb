"""`sexpgpu new` as a user calls it: every template becomes a file that checks."""

import re
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sexpgpu.cli.main import main
from sexpgpu.cli.new import TEMPLATES, template_names
from sexpgpu.syntax.format import format_text

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, catch_exceptions=False)


def refused(code: str, *arguments: str) -> str:
    result = invoke("new", *arguments)
    assert result.exit_code == 1 and result.stderr.startswith(f"sexpgpu new: {code}: "), result.output
    return result.stderr


def test_the_templates_are_the_examples_and_are_shipped() -> None:
    assert template_names() == sorted(path.stem for path in (CHECKOUT / "examples").glob("*.sx"))
    shipped = tomllib.loads((CHECKOUT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]["package-data"]
    needed = [f"templates/{name}.sx" for name in template_names()]
    needed += [f"templates/{s}" for n in template_names() for s in scripts(n)]
    assert all(any(fnmatch(file, pattern) for pattern in shipped["sexpgpu"]) for file in needed)
    assert all((TEMPLATES.parent / file).is_file() for file in needed)


def scripts(name: str) -> list[str]:
    return re.findall(r"\bmake_\w+\.py", (TEMPLATES / f"{name}.sx").read_text("utf-8"))


@pytest.mark.parametrize("name", template_names())
def test_every_template_becomes_a_file_that_checks(name: str, folder: Path) -> None:
    result = invoke("new", "my-own", "--like", name)
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[0] == f"my-own.sx: written, like {name}"
    text = (folder / "my-own.sx").read_text("utf-8")
    assert text.startswith(";; my-own.sx: ")
    assert "examples/" not in text
    assert format_text(text) == text
    assert sorted(path.name for path in folder.iterdir()) == sorted({"my-own.sx", *scripts(name)})
    checked = invoke("check", "my-own.sx")
    if checked.exit_code and "E-DATA-001" in checked.output:
        for script in scripts(name):
            subprocess.run([sys.executable, script], check=True, capture_output=True)
        checked = invoke("check", "my-own.sx")
    assert checked.exit_code == 0, checked.output
    assert "W-" not in checked.output


def test_the_list_has_an_entry_for_each() -> None:
    lines = invoke("new", "--list").output.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == template_names()
    assert next(line for line in lines if line.startswith("tiny-sgd")).endswith("  the smallest file that trains")


def test_a_path_is_taken_as_it_is(folder: Path) -> None:
    (folder / "lab").mkdir()
    result = invoke("new", "lab/digits.sx", "--like", "digits-mlp")
    assert "lab/make_digits.py: written; it makes the data: python lab/make_digits.py" in result.output
    text = (folder / "lab" / "digits.sx").read_text("utf-8")
    assert text.startswith(";; digits.sx: ") and "`python lab/make_digits.py`" in text


def test_scripts_that_are_there_stay(folder: Path) -> None:
    assert invoke("new", "a", "--like", "digits-mlp").exit_code == 0
    assert "make_digits.py: there already; it makes" in invoke("new", "b", "--like", "digits-mlp").output
    (folder / "make_digits.py").write_text("mine")
    assert "another one than the template's; left as it is" in invoke("new", "c", "--like", "digits-mlp").output
    assert (folder / "make_digits.py").read_text() == "mine"


def test_nothing_is_written_over(folder: Path) -> None:
    (folder / "a.sx").write_text("mine")
    assert "`a.sx` already" in refused("E-NEW-003", "a", "--like", "digits-mlp")
    assert [path.name for path in folder.iterdir()] == ["a.sx"]
    assert (folder / "a.sx").read_text() == "mine"


def test_unknown_templates_and_bad_names(folder: Path) -> None:
    assert "`topics-gpt` is a near name" in refused("E-NEW-001", "a", "--like", "topic-gpt")
    assert "the templates: char-gpt, " in refused("E-NEW-001", "a", "--like", "../gpt2")
    for name in ("", "a b", ".a", "a/", "sub/.sx", "a\nb", ".."):
        refused("E-NEW-002", name, "--like", "tiny-sgd")
    refused("E-IO-001", "nowhere/a", "--like", "tiny-sgd")
    assert invoke("new", "a").exit_code == invoke("new").exit_code == 2
    assert list(folder.iterdir()) == []
