"""The pages behind `explain`: for each code what happened, why it is an error, an example and the mended program.

A page is Markdown in `pages/CODE.md`, wrapped to `COLUMNS`. The tests run its example and compare what is printed with
what the page shows; here a page is only read and made fit for a terminal.
"""

from __future__ import annotations

from importlib import resources

COLUMNS = 80
"""No line of a page's prose is longer."""


def page(code: str) -> str:
    """The Markdown of the page of `code`, which stands in `CODES`."""
    file = resources.files("sexpgpu") / "diagnostics" / "pages" / f"{code}.md"
    return file.read_text("utf-8")


def for_terminal(markdown: str) -> list[tuple[str, bool]]:
    """The lines of a page as a terminal shows them, and whether each is a heading.

    Fences go: programs and printed text stand indented, commands after a `$`.
    """
    lines: list[tuple[str, bool]] = []
    block: str | None = None
    for line in markdown.splitlines():
        if line.startswith("```"):
            block = line.removeprefix("```") if block is None else None
        elif block is not None:
            prompt = "" if block != "sh" else "  " if line.startswith(" ") else "$ "
            lines.append((f"    {prompt}{line}".rstrip(), False))
        else:
            heading = line.startswith("#")
            lines.append((line.lstrip("# ") if heading else line, heading))
    return lines
