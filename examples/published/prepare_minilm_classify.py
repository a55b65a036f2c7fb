"""Writes the weights of MiniLM, and first sentences of docstrings with the library that each is from: docstrings.npz.

python prepare_minilm_classify.py [--out FOLDER] [--each 200]
"""

from __future__ import annotations

import argparse
import ast
import random
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from prepare_minilm import prepare, tokenized

LIBRARIES = ("email", "numpy", "asyncio")
"""What there is with every Python and NumPy; the order of the labels."""


def sentences(library: str) -> Iterator[str]:
    """The first sentence of every docstring of a library, as its files have them; nothing is imported."""
    spec = find_spec(library)
    assert spec is not None and spec.origin is not None, library
    for path in sorted(Path(spec.origin).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
                if len(text) > 30:
                    yield text.partition(". ")[0][:200]


def examples(each: int) -> tuple[list[str], np.ndarray]:
    """`each` sentences of every library, shuffled, and their labels."""
    draw = random.Random(0)
    found = []
    for label, library in enumerate(LIBRARIES):
        texts = sorted(set(sentences(library)))
        found += [(text, label) for text in draw.sample(texts, min(each, len(texts)))]
    draw.shuffle(found)
    return [text for text, _ in found], np.array([label for _, label in found], np.int32)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    parser.add_argument("--each", type=int, default=200)
    arguments = parser.parse_args()
    print(prepare(arguments.out))
    texts, labels = examples(arguments.each)
    np.savez(arguments.out / "docstrings.npz", label=labels, **tokenized(texts, longest=32))
    print(arguments.out / "docstrings.npz", f"{len(labels)} sentences of {', '.join(LIBRARIES)}")
