"""Small tokenizers of others, written out by hand."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

PATTERN = r" ?\w+|\s+(?!\S)|\s|[^\w\s]+"
RANKS = {bytes([byte]): byte for byte in range(256)} | {b"th": 256, b"the": 257, b" the": 258}
END, END_ID = "<|end|>", 300


def byte_letters() -> list[str]:
    """The letters that stand for the 256 bytes in byte-level tokenizers."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


def tokenizer_json(**changes: Any) -> dict[str, Any]:
    """A byte-level tokenizer with the ids of `RANKS`, and one special token."""
    letters = byte_letters()
    word = {token: "".join(letters[byte] for byte in token) for token in (*RANKS, b"t", b"h")}
    merges = [[letters[ord("t")], letters[ord("h")]], [word[b"th"], letters[ord("e")]],
              [letters[ord(" ")], word[b"the"]]]  # fmt: skip
    special = {"id": END_ID, "content": END, "single_word": False, "lstrip": False, "rstrip": False,
               "normalized": False, "special": True}  # fmt: skip
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [special], "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
            ],
        },
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
            "vocab": {word[token]: rank for token, rank in RANKS.items()} | {END: END_ID}, "merges": merges,
        },
    } | changes  # fmt: skip


def write_tokenizers(folder: Path) -> None:
    """`tokenizer.json`, and `ranks.tiktoken` with the same ids."""
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json()), "utf-8")
    lines = (base64.b64encode(token) + b" %d\n" % rank for token, rank in RANKS.items())
    (folder / "ranks.tiktoken").write_bytes(b"".join(lines))
