#!/usr/bin/env python3
"""What published models give elsewhere, and the same on a device of ours: for tools/pack-published and gpu-published.

python tools/published.py references TEXT FOLDER     # tokens, and outputs of the publishers' code, on the cpu
python tools/published.py weights FOLDER             # the weights, out of the packages that have them
python tools/published.py compare FOLDER --device cuda
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples" / "published"
sys.path.append(str(EXAMPLES))
NUM_TOKENS = 8
"""Of the held text, for the logits."""
LOOKS = {
    "minilm": "(defgenerator look () (let [t (reshape {ids} [{rows} _])] (sentence-vectors t (!= t 0))))",
    "smollm2": "(defgenerator look () (nth (llama (reshape {ids} [{rows} _])) 0))",
}
"""A generator of the outputs that are compared, beside the file that it includes."""


def references(text: Path, folder: Path) -> None:
    """Write docstrings.npz, learn.bin, held.bin, and references.npz: tokens and outputs by transformers."""
    import torch
    from prepare_minilm import SENTENCES, tokenized
    from prepare_minilm import package as minilm
    from prepare_minilm_classify import examples
    from prepare_smollm2 import GGUF
    from prepare_smollm2 import package as smollm2
    from prepare_smollm2_lora import shards
    from transformers import AutoModel, AutoModelForCausalLM

    texts, labels = examples(200)
    np.savez_compressed(folder / "docstrings.npz", label=labels, **tokenized(texts, longest=32))
    _, held = shards(text.read_text("utf-8"), folder)
    found = tokenized(SENTENCES)
    ids = np.fromfile(held, "<u2")[None, :NUM_TOKENS].astype(np.int32)
    with torch.no_grad():
        mask = torch.from_numpy(found["mask"]).long()
        bert = AutoModel.from_pretrained(minilm(), local_files_only=True).eval()
        x = bert(input_ids=torch.from_numpy(found["tokens"]).long(), attention_mask=mask).last_hidden_state
        vectors = torch.nn.functional.normalize((x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True), dim=-1)
        llama = AutoModelForCausalLM.from_pretrained(smollm2(), gguf_file=GGUF, dtype=torch.float32).eval()
        logits = llama(torch.from_numpy(ids).long()).logits
    arrays = {"minilm.tokens": found["tokens"], "minilm": vectors, "smollm2.tokens": ids, "smollm2": logits}
    np.savez_compressed(folder / "references.npz", **{name: np.asarray(array) for name, array in arrays.items()})


def weights(folder: Path) -> None:
    """Write minilm.safetensors and smollm2.safetensors."""
    import prepare_minilm
    import prepare_smollm2

    for prepare in (prepare_minilm.prepare, prepare_smollm2.prepare):
        print(prepare(folder))


def compare(folder: Path, device: str) -> None:
    """Print the largest difference of MiniLM's sentence vectors and of SmolLM2's logits from the references."""
    with np.load(folder / "references.npz") as found:
        expected = dict(found)
    for name, look in LOOKS.items():
        tokens = expected[f"{name}.tokens"]
        file = folder / f"{name}-look.sx"
        text = look.format(rows=len(tokens), ids=f"[{' '.join(map(str, tokens.ravel()))}]")
        file.write_text(f'(include "{EXAMPLES / name}.sx")\n{text}\n', "utf-8")
        settings = [f"weights={folder / name}.safetensors"]
        if name == "minilm":
            settings.append(f"sentences={folder / 'docstrings.npz'}")
        command = [sys.executable, "-m", "sexpgpu", "generate", str(file), "--device", device, "--only", "look"]
        command += ["--checkpoint", "initial", "--save", str(folder / name), *(f"--set={each}" for each in settings)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        (saved,) = (folder / name).glob("*.npz")
        with np.load(saved) as sample:
            ours = sample[sample.files[-1]].reshape(expected[name].shape)
        worst, span = float(np.abs(ours - expected[name]).max()), float(np.ptp(expected[name]))
        print(f"{name}: {len(ours)} x {ours[0].size} outputs, largest difference {worst:.1e} on a range of {span:.3g}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    first = commands.add_parser("references")
    first.add_argument("text", type=Path, help="UTF-8; its last 4,000 characters are held out")
    first.add_argument("folder", type=Path)
    commands.add_parser("weights").add_argument("folder", type=Path)
    second = commands.add_parser("compare")
    second.add_argument("folder", type=Path)
    second.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    if arguments.command == "references":
        references(arguments.text, arguments.folder)
    elif arguments.command == "weights":
        weights(arguments.folder)
    else:
        compare(arguments.folder.resolve(), arguments.device)
