"""silero-vad beside the TorchScript model of the package, over ten seconds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.published.looking import FILES, evaluate, script

pytestmark = pytest.mark.published


def signal(rate: int) -> np.ndarray:
    """Ten seconds: noise, tones that swell like syllables over a moving pitch, silence."""
    t = np.arange(10 * rate) / rate
    pitch = 120 + 30 * np.sin(2 * np.pi * 0.7 * t)
    phase = 2 * np.pi * np.cumsum(pitch) / rate
    voice = sum(np.sin(k * phase) / k for k in range(1, 20)) * np.clip(np.sin(2 * np.pi * 3 * t), 0, 1)
    noise = np.random.default_rng(0).standard_normal(t.size)
    return np.where(t < 8, 0.15 * voice * (t > 1.5) + 0.02 * noise, 0).astype(np.float32)


def test_probabilities(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    prepare = script("prepare_silero_vad")
    weights = prepare.prepare(tmp_path)
    samples = signal(prepare.RATE)
    sound = prepare.write_sound(tmp_path / "sound.npz", samples)
    model = torch.jit.load(prepare.package() / "data" / "silero_vad.jit")
    theirs = model.audio_forward(torch.from_numpy(samples)[None], prepare.RATE).numpy()[0]
    ours = evaluate(FILES["silero-vad"], "detect", {"weights": str(weights), "sound": str(sound)})["frames"]
    assert ours.shape == theirs.shape == (313,)
    worst = float(np.abs(ours - theirs).max())
    print(f"largest difference {worst:.1e}, probabilities {theirs.min():.3f} to {theirs.max():.3f}")
    assert worst < 1e-5 and np.ptp(theirs) > 0.5
