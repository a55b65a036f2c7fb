"""Writes the generated pages of the manual: docs/errors.md, from the table of codes, docs/reference/, from the
definitions of operations and forms, and docs/gallery.md, from the examples.

python tools/docs.py            writes them
python tools/docs.py --check    exits with 1 if one is not what would be written
"""

import sys
from pathlib import Path

from reference import reference

from sexpgpu.diagnostics.codes import CODES, Code

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tools import gallery

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE = DOCS / "errors.md"
PAGES = "../sexpgpu/diagnostics/pages"
HEAD = """# Errors

Generated from `sexpgpu/diagnostics/codes.py` by `tools/docs.py`. Behind every code is a page: what happened, why it is
an error, a program that gives it, and the mended one. `sexpgpu explain CODE` prints it.

A code that begins with `E-` ends the command with exit status 1; `W-` is a warning. The first line of a
message is `sexpgpu COMMAND: CODE: what happened`; an excerpt of the file, help and notes follow. A code is never
given another meaning. Codes of devices and of several GPUs are fixed already, though this version has none of these.

All mistakes that do not depend on each other are told at once, in the order of the file; what only follows from
another mistake is left out. A place is the innermost form of your own files: what the library made of it is one note,
and the calls that led there are others.

## For programs

`sexpgpu check FILE --format json` prints an object a line on standard output, and nothing else. Keys are not taken away
and keep their meaning:

| key | holds |
| --- | --- |
| `command` | the command that speaks, such as `check` |
| `severity` | `error` or `warning` |
| `code` | one of those below |
| `message` | the headline, without the code |
| `span` | the place to blame, or null |
| `labels` | objects with a `span` and a `message`: what stands there, the other side, where it comes from |
| `help` | texts: what to do |
| `notes` | texts: what else bears on it |

A `span` has `file`, `line` and `column` from 1, `end_line` and `end_column` just after it, and `start` and `end`, the
offsets in characters from 0. `--format concise` prints `FILE:LINE:COLUMN: CODE: message`. Both exit with 1 if there is
an error.
"""


TABLE = "| code | what | when | what to do |\n| --- | --- | --- | --- |\n"


def errors_page() -> str:
    """The page: a table for each area."""
    areas: dict[str, list[Code]] = {}
    for code in CODES.values():
        areas.setdefault(code.area, []).append(code)
    parts = [HEAD]
    for area, codes in areas.items():
        parts.append(f"\n## {area[0].upper()}{area[1:]}\n\n{TABLE}")
        parts += [f"| {' | '.join(_row(code))} |\n" for code in codes]
    return "".join(parts)


def _row(code: Code) -> list[str]:
    return [f"[`{code.code}`]({PAGES}/{code.code}.md)", _cell(code.title), _cell(code.when), _cell(code.fix)]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def generated() -> dict[Path, str]:
    """The text of every generated page, by its path."""
    found = {PAGE: errors_page(), gallery.PAGE: gallery.gallery_page()}
    return found | {DOCS / "reference" / name: text for name, text in reference().items()}


def stale(pages: dict[Path, str]) -> list[Path]:
    """The pages that are not as they would be written, and those of the reference that nothing writes."""
    left_over = [path for path in (DOCS / "reference").glob("*.md") if path not in pages]
    return [path for path, text in pages.items() if not path.is_file() or path.read_text("utf-8") != text] + left_over


def main() -> int:
    """Write the pages, or with `--check` name those that are out of date."""
    pages = generated()
    wrong = stale(pages)
    if "--check" in sys.argv[1:]:
        for path in wrong:
            print(f"{path.relative_to(DOCS.parent)} is out of date: run python tools/docs.py")
        return 1 if wrong else 0
    for path in wrong:
        if path in pages:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(pages[path], "utf-8")
        else:
            path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
