"""Writes the weights of SmolLM2, and a text as its tokens: learn.bin, all but the last 4,000 characters, and held.bin,
the first 512 tokens of these. A shard is raw uint16.

python prepare_smollm2_lora.py TEXT [--out FOLDER]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from prepare_smollm2 import prepare, tokenizer

HELD_CHARACTERS, HELD_TOKENS = 4000, 512


def shards(text: str, folder: Path) -> tuple[Path, Path]:
    """Write learn.bin and held.bin of a text under `folder`."""
    encode = tokenizer()
    parts = text[:-HELD_CHARACTERS], text[-HELD_CHARACTERS:]
    learn, held = (np.array(encode(part, verbose=False).input_ids, "<u2") for part in parts)
    for name, ids in (("learn.bin", learn), ("held.bin", held[:HELD_TOKENS])):
        ids.tofile(folder / name)
    return folder / "learn.bin", folder / "held.bin"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, help="UTF-8")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    arguments = parser.parse_args()
    print(prepare(arguments.out))
    for path in shards(arguments.text.read_text("utf-8"), arguments.out):
        print(path, f"{path.stat().st_size // 2:,} tokens")
