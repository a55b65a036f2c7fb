"""Writes the grammar by which editors colour `.sx` files, from the tables of the language.

python tools/editors.py            writes it
python tools/editors.py --check    exits with 1 if it is not what would be written
"""

import json
import re
import sys
from pathlib import Path

from sexpgpu.lsp.catalogue import CLASSES, ambient_names, special_forms, top_level_forms
from sexpgpu.lsp.names import library

GRAMMAR = Path(__file__).resolve().parents[1] / "editors" / "vscode" / "syntaxes" / "sexpgpu.tmLanguage.json"
WORD = r"[^\s()\[\]\";]"


def words() -> dict[str, list[str]]:
    """The words of the language by what they are coloured as."""
    names = library()[0].visible()
    return {
        "top-level": sorted(top_level_forms()),
        "special": sorted(special_forms()),
        "type": sorted([*CLASSES, *(n for n, b in names.items() if b.kind == "dtype")]),
        "ambient": sorted(ambient_names()),
        "operation": sorted(n for n, b in names.items() if b.kind == "operation"),
        "library": sorted(n for n, b in names.items() if b.span is not None),
    }


def _any(found: list[str]) -> str:
    return "|".join(map(re.escape, found))


def _head(found: list[str]) -> str:
    """One of some words after an opening bracket."""
    return rf"(?<=\()({_any(found)})(?!{WORD})"


def grammar() -> dict[str, object]:
    """The grammar, as TextMate has them."""
    known = words()
    inner = [{"include": "#block-comment"}]
    block = {"name": "comment.block.sexpgpu", "begin": r"#\|", "end": r"\|#", "patterns": inner}
    comments = {
        "patterns": [
            {"name": "comment.line.semicolon.sexpgpu", "match": ";.*$"},
            *inner,
            {"name": "punctuation.definition.comment.datum.sexpgpu", "match": "#;"},
        ]
    }
    string = {
        "name": "string.quoted.double.sexpgpu",
        "begin": '"',
        "end": '"',
        "patterns": [
            {"name": "constant.character.escape.sexpgpu", "match": r"\\[nt\\\"]"},
            {"name": "invalid.illegal.escape.sexpgpu", "match": r"\\."},
        ],
    }
    number = rf"(?<!{WORD})[+-]?(\d[\d_]*(\.[\d_]*)?|\.\d[\d_]*)([eE][+-]?\d+)?(?!{WORD})"
    first, second = "keyword.control.definition.sexpgpu", "entity.name.function.sexpgpu"
    definition = {
        "match": rf"(?<=\()({_any(known['top-level'])})\s+({WORD}+)",
        "captures": {"1": {"name": first}, "2": {"name": second}},
    }
    code = [
        definition,
        {"name": first, "match": _head(known["top-level"])},
        {"name": "keyword.control.sexpgpu", "match": _head(known["special"])},
        {"name": "support.function.sexpgpu", "match": _head(known["operation"])},
        {"name": "support.function.library.sexpgpu", "match": _head(known["library"])},
        {"name": "storage.type.sexpgpu", "match": rf"(?<!{WORD})({_any(known['type'])})(?!{WORD})"},
        {"name": "constant.language.sexpgpu", "match": rf"(?<!{WORD})(true|false|{_any(known['ambient'])})(?!{WORD})"},
        {"name": "constant.numeric.sexpgpu", "match": number},
        {"name": "variable.parameter.size.sexpgpu", "match": rf"(?<!{WORD})\?{WORD}+"},
        {"name": "entity.other.attribute-name.sexpgpu", "match": rf"(?<!{WORD}):{WORD}+"},
    ]
    return {
        "name": "sexpgpu",
        "scopeName": "source.sexpgpu",
        "patterns": [{"include": "#comments"}, {"include": "#string"}, *code],
        "repository": {"comments": comments, "block-comment": block, "string": string},
    }


def main() -> int:
    text = json.dumps(grammar(), indent=2, ensure_ascii=False) + "\n"
    if "--check" in sys.argv[1:]:
        return 0 if GRAMMAR.is_file() and GRAMMAR.read_text("utf-8") == text else 1
    GRAMMAR.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
