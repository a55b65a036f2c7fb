"""Writes the generated pages of the manual: docs/errors.md, from the table of codes.

python tools/docs.py            writes them
python tools/docs.py --check    exits with 1 if one is not what would be written
"""

import sys
from pathlib import Path

from sexpgpu.diagnostics.codes import CODES, Code

PAGE = Path(__file__).resolve().parents[1] / "docs" / "errors.md"
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


def main() -> int:
    page = errors_page()
    if "--check" in sys.argv[1:]:
        return 0 if PAGE.is_file() and PAGE.read_text("utf-8") == page else 1
    PAGE.write_text(page, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
