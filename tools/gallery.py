"""The gallery: examples beside PyTorch scripts of the same experiments, and how many lines each takes.

A row is found from the files alone: an example `examples/NAME.sx` with a script `tests/peers/NAME.py`. The header of
the example says what it is (its first sentence) and, in a line `;; figure: …`, what a run of it reaches.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sexpgpu.source import Source
from sexpgpu.syntax import Form, List, Vector, read

CHECKOUT = Path(__file__).resolve().parents[1]
PAGE = CHECKOUT / "docs" / "gallery.md"
HEAD = """# Gallery

Generated from the headers of `examples/*.sx` and from the scripts beside them by `tools/docs.py`.

Each of these files is a whole experiment: data, model, loop, schedule, evaluation, checkpoints, metrics and samples.
`tests/peers` holds the same experiments as PyTorch scripts by the same hand, with the same data, sizes, schedules and
figures. Lines are those with code: blank lines, comments and docstrings do not count. A test keeps every example at
half the lines of its script or fewer.

"""
TABLE = "| file | what | stated figure | lines `.sx` | lines PyTorch | ratio |\n| --- | --- | --- | --: | --: | --: |\n"
TOTAL = "| all | | | {0} | {1} | {2:.2f} |\n"
EMPTY = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT),
    *(tokenize.DEDENT, tokenize.ENCODING, tokenize.ENDMARKER),
}
"""Tokens of Python that are not code."""


@dataclass(frozen=True)
class Row:
    """An example and its script; lines are those with code."""

    name: str
    what: str
    figure: str
    lines: int
    peer_lines: int

    @property
    def ratio(self) -> float:
        """Lines of the example to lines of the script."""
        return self.lines / self.peer_lines


def lines_of_example(text: str) -> int:
    """Lines of an `.sx` file that hold code; a string that runs over several counts for all of them."""
    return len({line for span in _spans(read(Source("example", text)).forms) for line in _lines(text, *span)})


def _spans(forms: tuple[Form, ...]) -> Iterator[tuple[int, int]]:
    """Where the atoms and the brackets stand, as offsets."""
    for form in forms:
        if isinstance(form, List | Vector):
            yield form.span.start, form.span.start + 1
            yield from _spans(form.items)
            yield form.span.end - 1, form.span.end
        else:
            yield form.span.start, form.span.end


def _lines(text: str, start: int, end: int) -> range:
    return range(text.count("\n", 0, start), text.count("\n", 0, end) + 1)


def lines_of_script(text: str) -> int:
    """Lines of a Python file that hold code; docstrings are comments."""
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in EMPTY:
            found |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            found -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(found)


def header(text: str) -> str:
    """The comment that a file begins with, without its semicolons."""
    return "\n".join(line.lstrip("; ") for line in re.match(r"(;.*\n)*", text)[0].splitlines())  # type: ignore[index]


def row(example: Path, script: Path) -> Row:
    """The row of an example; its figure is empty where the header states none."""
    text = example.read_text("utf-8")
    head = header(text)
    what = re.match(r"\S+: (.+?)\.(?:\s|$)", head, re.DOTALL)
    figure = re.search(r"^figure: (.+)$", head, re.MULTILINE)
    return Row(
        example.stem,
        " ".join(what[1].split()) if what else "",
        figure[1] if figure else "",
        lines_of_example(text),
        lines_of_script(script.read_text("utf-8")),
    )


def rows() -> list[Row]:
    """A row for each script, in the order of their names."""
    scripts = sorted((CHECKOUT / "tests" / "peers").glob("*.py"))
    return [row(CHECKOUT / "examples" / f"{script.stem}.sx", script) for script in scripts]


def gallery_page() -> str:
    """The page: a table with a row for each example and a sum."""
    found = rows()
    body = "".join(
        f"| [{r.name}.sx](../examples/{r.name}.sx) | {r.what} | {r.figure} | {r.lines} | "
        f"[{r.peer_lines}](../tests/peers/{r.name}.py) | {r.ratio:.2f} |\n"
        for r in found
    )
    ours, theirs = sum(r.lines for r in found), sum(r.peer_lines for r in found)
    return HEAD + TABLE + body + (TOTAL.format(ours, theirs, ours / theirs) if found else "")
