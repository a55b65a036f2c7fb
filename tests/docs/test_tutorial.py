"""The tutorial, done as a reader would: every file written, every command run in order, what is shown compared.

A command that takes long says so in a comment; here it ends after a few steps, and what it prints is compared by the
slow test alone.
"""

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from sexpgpu.cli.main import main
from tests.docs.snippets import CHECKOUT

PAGE = CHECKOUT / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(\w+) ?(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"^[(\[]*(-?\d[\d,]*\.?\d*(?:e-?\d+)?)[)\],]*$")
TOLERANCE = 0.1
"""Of a shown number, relative; and a tenth of that absolutely. The text that is learnt differs between Pythons."""
NEEDS_SCANS = ("mlp.sx",)


def same_word(found: str, shown: str) -> bool:
    a, b = NUMBER.match(found), NUMBER.match(shown)
    if a is None or b is None:
        return found == shown
    x, y = (float(m[1].replace(",", "")) for m in (a, b))
    exact = "." not in b[1] and "," not in b[1]  # numbers of parameters depend on the characters of the text
    return x == y if exact else abs(x - y) <= TOLERANCE * max(abs(y), 0.1)


def same_line(found: str, shown: str) -> bool:
    """Whether a line is the one shown; `…` at its end stands for anything."""
    words, wanted = found.split(), shown.split()
    if wanted[-1:] == ["…"] and len(wanted) > 1:
        wanted.pop()
        words = words[: len(wanted)]
    return len(words) == len(wanted) and all(map(same_word, words, wanted))


def missing(output: str, shown: list[str]) -> str | None:
    """The first shown line that the output lacks, in order; lines between are left out where `…` stands alone."""
    lines = [line for line in output.splitlines() if line.strip()]
    at, skipping = 0, False
    for line in shown:
        if line.strip() == "…":
            skipping = True
            continue
        while skipping and at < len(lines) and not same_line(lines[at], line):
            at += 1
        if at == len(lines) or not same_line(lines[at], line):
            return line
        at, skipping = at + 1, False
    return None if skipping or at == len(lines) else f"nothing more than line {at}"


def test_the_comparison_can_fail() -> None:
    assert missing("a 1.00\nb 2.0", ["a 1.02", "b 2.0"]) is None
    assert missing("a 1.00\nb 2.0", ["a 1.3", "b 2.0"]) == "a 1.3"
    assert missing("a 1.0\nx\nb 2.0", ["a 1.0", "…", "b 2.0"]) is None
    assert missing("a 1.0\nx\nb 2.0", ["a 1.0", "b 2.0"]) == "b 2.0"
    assert missing("a 1.0\nx", ["a 1.0"]) is not None
    assert missing("step 10  loss 1.0 ETA", ["step 10  loss 1.0 …"]) is None
    assert missing("step 11  loss 1.0 ETA", ["step 10  loss 1.0 …"]) is not None


def commands(text: str) -> list[tuple[str, list[str]]]:
    """Commands of a console block with the lines shown under each."""
    found: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif line.strip():
            found[-1][1].append(line)
    return found


def run(words: list[str], folder: Path) -> str:
    if words[0] == "python":
        environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
        done = subprocess.run(
            [sys.executable, *words[1:]], cwd=folder, env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout
    assert words[0] == "sexpgpu"
    result = CliRunner().invoke(main, words[1:])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert (result.exit_code == 1) == ("wrong.sx" in words), result.output
    return result.output


def follow(folder: Path, whole: bool) -> None:
    (folder / "examples").symlink_to(CHECKOUT / "examples")
    scans = importlib.util.find_spec("sklearn") is not None
    num_commands, page = 0, PAGE.read_text("utf-8")
    for block in BLOCK.finditer(page):
        language, name, text = block.groups()
        if name:
            assert page[: block.start()].endswith(f"`{name}`\n\n"), f"the page does not show the name {name}"
            (folder / name).write_text(text, "utf-8")
        if language != "console":
            continue
        for line, shown in commands(text):
            command, _, comment = line.partition("  # ")
            shortened = bool(comment) and not whole
            output = run(shlex.split(command) + ["--steps", "3"] * shortened, folder)
            num_commands += 1
            if not shortened and (scans or not any(n in command for n in NEEDS_SCANS)):
                absent = missing(output, shown)
                assert absent is None, f"`{command}` does not print {absent!r}:\n{output}"
    assert num_commands > 10


def test_the_tutorial_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    follow(tmp_path, whole=False)


@pytest.mark.slow
def test_the_whole_tutorial_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    follow(tmp_path, whole=True)
