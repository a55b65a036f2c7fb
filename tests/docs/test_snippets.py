"""Every fenced snippet of the manual elaborates, every shown command exists."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner

from sexpgpu.cli.main import COMMANDS, main
from sexpgpu.lang.builtins import BUILTINS
from sexpgpu.lang.forms import EXPRESSIONS
from sexpgpu.lang.load import load_experiment
from sexpgpu.lang.toplevel import FORMS
from tests.docs.snippets import CHECKOUT, PAGES, Snippet, as_file, snippets, write_files
from tests.train.trial import Trial

OTHER_COMMANDS = {"python", "python3", "pip", "cd", "git", "export", "cat", "tail", "rm", "mkdir", "tensorboard"}


def named(found: list[Snippet]) -> list:
    return [pytest.param(snippet, id=snippet.place) for snippet in found]


@pytest.mark.parametrize("snippet", named(snippets("lisp")))
def test_lisp_runs_a_step(snippet: Snippet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It elaborates, what it claims of values and types holds, and what it makes of tensors is finite."""
    monkeypatch.setenv("HOME", str(tmp_path))
    write_files(tmp_path)
    path = tmp_path / "snippet.sx"
    path.write_text(as_file(snippet.text), "utf-8")
    with Trial(load_experiment(path)) as trial:
        for result in trial.step().values():
            assert result.num_skipped == 0
            for name, value in result.measures.items():
                assert np.isfinite(value).all(), name


def commands(text: str) -> Iterator[list[str]]:
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            words.pop(0)
        while words:
            end = words.index("&&") if "&&" in words else len(words)
            yield words[:end]
            words = words[end + 1 :]


def options_of(command: str) -> dict[str, click.Option]:
    found = main.get_command(click.Context(main), command)
    assert found is not None, command
    return {name: p for p in found.params if isinstance(p, click.Option) for name in p.opts}


@pytest.mark.parametrize("snippet", named(snippets("sh")))
def test_commands_exist(snippet: Snippet) -> None:
    for words in commands(snippet.text):
        if words[0] == "./run":
            words = ["sexpgpu", "run", "examples/topics-gpt.sx", *words[1:]]
        if words[0] == "./test":
            assert (CHECKOUT / "test").is_file()
            continue
        if Path(words[0]).name in OTHER_COMMANDS:
            for word in words[1:]:
                assert not word.startswith("examples/") or (CHECKOUT / word).is_file(), word
            continue
        assert words[0] == "sexpgpu", words
        if words[1].startswith("-"):
            assert words[1] in ("--help", "--version"), words
            continue
        assert words[1] in COMMANDS, words
        known = options_of(words[1])
        for word in words[2:]:
            if word.startswith("--") and words[1] != "generate":
                assert word.partition("=")[0] in {*known, "--help"}, (words, word)
            if word.startswith("examples/") and "*" not in word:
                assert (CHECKOUT / word).is_file(), word


def is_cheap(words: list[str]) -> bool:
    if words[:1] != ["sexpgpu"]:
        return False
    if words[1] in ("check", "doctor", "ir", "lower", "--help", "--version") or "--help" in words:
        return True
    return words[-2:] == ["--steps", "3"]


@pytest.mark.parametrize("snippet", named([s for s in snippets("sh") if any(map(is_cheap, commands(s.text)))]))
def test_cheap_commands_run(snippet: Snippet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(CHECKOUT / "examples")
    for words in filter(is_cheap, commands(snippet.text)):
        if "kernels" in words:
            monkeypatch.delenv("SEXPGPU_CPU", raising=False)
        result = CliRunner().invoke(main, words[1:])
        assert result.exit_code == 0, (words, result.output)


@pytest.fixture(scope="module")
def reference() -> str:
    return (CHECKOUT / "docs" / "language.md").read_text("utf-8")


def test_the_reference_names_everything(reference: str) -> None:
    there, _, missing = reference.partition("## Not there yet")
    words = set(re.findall(r"[^\s()\[\]`,;:]+", there))
    known = {*FORMS, *EXPRESSIONS, *BUILTINS}
    assert not known - words, "forms and operations that the reference does not mention"
    library = "".join(p.read_text("utf-8") for p in (CHECKOUT / "sexpgpu" / "std").glob("*.sx"))
    assert not set(re.findall(r"^\(def(?:n|optimizer) (\S+)", library, re.MULTILINE)) - words
    listed = set(re.findall(r"`([a-z][\w-]*)`", missing))
    assert not listed & {*known, *re.findall(r"^\(def(?:n|optimizer) (\S+)", library, re.MULTILINE)}, (
        "the reference says that these are not there yet"
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text("utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", file.read_text("utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}
            assert anchor in slugs, target
