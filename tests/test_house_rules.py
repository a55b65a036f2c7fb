"""Rules of the house that no linter knows."""

import ast
from pathlib import Path

import pytest

import sexpgpu

PACKAGE = Path(sexpgpu.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
MAX_LINES = 700
READERS = {"environ", "environb", "getenv", "getenvb"}


def environment_reads(tree: ast.AST) -> list[int]:
    """Lines that touch the environment: through `os`, through `os` renamed, or by a name imported from it."""
    modules = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name in {"os", "posix"}
    }
    lines = []
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=module), attr=attr) if module in modules and attr in READERS:
                lines.append(node.lineno)
            case ast.ImportFrom(module="os" | "posix") if any(alias.name in READERS for alias in node.names):
                lines.append(node.lineno)
    return sorted(lines)


@pytest.mark.parametrize(
    "text, lines",
    [
        ("import os\nos.environ['A']", [2]),
        ("import os as system\nx = 1\nsystem.getenv('A')", [3]),
        ("from os import environ", [1]),
        ("import os\nos.path.join('a', 'b')", []),
        ("settings.environ", []),
    ],
)
def test_environment_reads_finds_each_spelling(text: str, lines: list[int]) -> None:
    assert environment_reads(ast.parse(text)) == lines


def test_only_settings_reads_the_environment() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{line}"
        for path in FILES
        if path != PACKAGE / "settings.py"
        for line in environment_reads(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not found, "take a Settings value as an argument instead of reading the environment"


def test_no_file_outgrows_its_idea() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    long = {str(path.relative_to(PACKAGE)): length for path, length in lengths.items() if length > MAX_LINES}
    assert not long, f"split these: no file of the package may pass {MAX_LINES} lines"
