"""Writes the weights of textgenrnn (MIT), and its characters: textgenrnn.safetensors and textgenrnn.txt.

python prepare_textgenrnn.py [--out FOLDER]
"""

from __future__ import annotations

import argparse
import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

ENDS = (0, 464)
"""The ids of no character: what fills up a text at its front, and the mark between two texts."""


def package() -> Path:
    """The folder of the package, which is not imported: that would need TensorFlow."""
    spec = find_spec("textgenrnn")
    if spec is None or spec.origin is None:
        raise SystemExit("this needs the package textgenrnn: pip install --no-deps textgenrnn==2.0.0")
    return Path(spec.origin).parent


def characters() -> list[str]:
    """The character of every id; a line break stands for those of none."""
    ids = json.loads((package() / "textgenrnn_vocab.json").read_text("utf-8"))
    found = ["\n"] * (len(ids) + 1)
    for character, index in ids.items():
        if index not in ENDS:
            found[index] = character
    return found


def prepare(folder: Path) -> Path:
    """Write textgenrnn.safetensors under `folder`, with the layout of the package, and beside it textgenrnn.txt, which
    holds every character once. `places` says where among them, sorted, the character of each id stands."""
    import h5py

    arrays: dict[str, np.ndarray] = {}

    def visit(name: str, found: object) -> None:
        if isinstance(found, h5py.Dataset):
            layer, kind = name.split("/")[0], name.split("/")[-1]
            arrays[f"{layer}.{kind.removesuffix(':0').removeprefix('attention_')}"] = np.asarray(found)

    with h5py.File(package() / "textgenrnn_weights.hdf5") as file:
        file.visititems(visit)
    of_ids = characters()
    in_order = sorted(set(of_ids))
    arrays["places"] = np.array([in_order.index(character) for character in of_ids], np.int32)
    (folder / "textgenrnn.txt").write_text("".join(in_order), "utf-8", newline="\n")
    path = folder / "textgenrnn.safetensors"
    save_file(arrays, path)
    return path


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    print(prepare(parser.parse_args().out))
