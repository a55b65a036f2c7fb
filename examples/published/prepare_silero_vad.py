"""Writes the 16 kHz weights of silero-vad (MIT) as safetensors, and a recording as an array.

python prepare_silero_vad.py [--out FOLDER] [--wav RECORDING.wav]
"""

from __future__ import annotations

import argparse
import wave
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

RATE = 16_000
FRAME = 512
PREFIX = "_model."


def package() -> Path:
    """The folder of the package, which is not imported."""
    spec = find_spec("silero_vad")
    if spec is None or spec.origin is None:
        raise SystemExit("this needs the package silero-vad: pip install --no-deps silero-vad==6.2.3")
    return Path(spec.origin).parent


def prepare(folder: Path) -> Path:
    """Write silero-vad.safetensors under `folder`. The package's own safetensors file holds other weights than its
    TorchScript and ONNX models, so they are read from TorchScript."""
    import torch

    model = torch.jit.load(package() / "data" / "silero_vad.jit", map_location="cpu")
    arrays = {
        name.removeprefix(PREFIX): value.detach().numpy()
        for name, value in model.state_dict().items()
        if name.startswith(PREFIX)
    }
    path = folder / "silero-vad.safetensors"
    save_file(arrays, path)
    return path


def write_sound(path: Path, samples: np.ndarray) -> Path:
    """Write samples (n) from -1 to 1 as `samples` (1 length), with silence at the end up to whole frames."""
    samples = np.pad(np.asarray(samples, np.float32), (0, -len(samples) % FRAME))
    np.savez(path, samples=samples[None])
    return path


def recorded(path: Path) -> np.ndarray:
    """The samples of a WAV file of one channel, 16 bits and 16 kHz."""
    with wave.open(str(path)) as sound:
        if (sound.getnchannels(), sound.getsampwidth(), sound.getframerate()) != (1, 2, RATE):
            raise SystemExit(f"{path} is not of one channel, 16 bits and {RATE} Hz")
        return np.frombuffer(sound.readframes(sound.getnframes()), "<i2") / np.float32(32768)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    parser.add_argument("--wav", type=Path)
    arguments = parser.parse_args()
    print(prepare(arguments.out))
    if arguments.wav is not None:
        print(write_sound(arguments.out / "sound.npz", recorded(arguments.wav)))
