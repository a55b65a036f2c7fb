"""Writes the weights of g2p-en (Apache-2.0) as safetensors: python prepare_g2p_en.py [--out FOLDER]"""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file


def package() -> Path:
    """The folder of the package, found without importing it: that would fetch dictionaries."""
    spec = find_spec("g2p_en")
    if spec is None or spec.origin is None:
        raise SystemExit("this needs the package g2p-en: pip install --no-deps g2p-en==2.1.0")
    return Path(spec.origin).parent


def prepare(folder: Path) -> Path:
    """Write g2p-en.safetensors under `folder`; the arrays keep their names."""
    with np.load(package() / "checkpoint20.npz") as arrays:
        path = folder / "g2p-en.safetensors"
        save_file({name: np.ascontiguousarray(arrays[name]) for name in arrays.files}, path)
    return path


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    print(prepare(parser.parse_args().out))
