"""Generated pages are up to date; names in the tour exist; the manual keeps to itself."""

import ast
import pkgutil
import re
from pathlib import Path

import pytest

import sexpgpu.tour
from sexpgpu.cli.main import COMMANDS
from sexpgpu.diagnostics.codes import CODES
from sexpgpu.settings import Settings
from tests.docs.snippets import CHECKOUT, PAGES

DOTTED = sorted(set(re.findall(r"`(sexpgpu(?:\.\w+)+)`", sexpgpu.tour.__doc__ or "")))


@pytest.mark.parametrize("name", DOTTED)
def test_names_of_the_tour_exist(name: str) -> None:
    assert pkgutil.resolve_name(name) is not None


def test_the_tour_is_a_docstring_only() -> None:
    tree = ast.parse((CHECKOUT / "sexpgpu" / "tour.py").read_text("utf-8"))
    assert len(tree.body) == 1
    assert len(DOTTED) > 50


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_codes_that_are_named_exist(page: Path) -> None:
    named = set(re.findall(r"\b[EW]-[A-Z]+-\d{3}\b", page.read_text("utf-8")))
    assert named <= CODES.keys()


def test_the_index_lists_every_page() -> None:
    index = (CHECKOUT / "docs" / "index.md").read_text("utf-8")
    for page in PAGES:
        if page.parent.name == "docs" and page.name != "index.md":
            assert f"({page.name})" in index, page.name


def test_every_variable_that_is_read_is_documented() -> None:
    read = set(re.findall(r"SEXPGPU_[A-Z_]+", (CHECKOUT / "sexpgpu" / "settings.py").read_text("utf-8")))
    page = (CHECKOUT / "docs" / "environment.md").read_text("utf-8")
    assert read == set(re.findall(r"SEXPGPU_[A-Z_]+", page))
    assert Settings().device == "cpu"


def test_commands_that_are_missing_are_missing() -> None:
    text = (CHECKOUT / "docs" / "design.md").read_text("utf-8")
    line = re.search(r"^- Commands (.*)\.$", text, re.MULTILINE)
    assert line is not None
    assert not set(re.findall(r"`(\w+)`", line[1])) & COMMANDS.keys()
