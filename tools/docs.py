"""Writes the generated pages of the manual: docs/errors.md, from the table of codes, and docs/gallery.md.

python tools/docs.py            writes them
python tools/docs.py --check    exits with 1 if one is not what would be written
"""

import sys
from pathlib import Path

from sexpgpu.diagnostics.codes import CODES, Code

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tools import gallery

PAGE = Path(__file__).resolve().parents[1] / "docs" / "errors.md"
HEAD = """# Errors

Generated from `sexpgpu/diagnostics/codes.py` by `tools/docs.py`.

A code that begins with `E-` ends the command with exit status 1; `W-` is a warning. The first line of a
message is `sexpgpu COMMAND: CODE: what happened`; an excerpt of the file, help and notes follow. A code is never
given another meaning. Codes of devices and of several GPUs are fixed already, though this version has none of these.
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
        parts += [f"| `{c.code}` | {_cell(c.title)} | {_cell(c.when)} | {_cell(c.fix)} |\n" for c in codes]
    return "".join(parts)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> int:
    pages = {PAGE: errors_page(), gallery.PAGE: gallery.gallery_page()}
    if "--check" in sys.argv[1:]:
        return 0 if all(path.is_file() and path.read_text("utf-8") == text for path, text in pages.items()) else 1
    for path, text in pages.items():
        path.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
