"""all-MiniLM-L6-v2 beside transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from sexpgpu.cli.main import main
from sexpgpu.train.metrics import read_metrics
from tests.published.looking import FILES, beside, evaluate, script

pytestmark = [
    pytest.mark.published,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
VECTORS = """
(defmetric looked-at (tokens mask)
  (let [v (sentence-vectors tokens mask)] (measure vectors (reshape v [_])) (mean v)))
(defeval look :loader all :batches 1 looked-at)
"""


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    pytest.importorskip("tokenizers")
    prepare, folder = script("prepare_minilm"), tmp_path_factory.mktemp("minilm")
    np.savez(folder / "sentences.npz", **prepare.tokenized(prepare.SENTENCES))
    return {"weights": str(prepare.prepare(folder)), "sentences": str(folder / "sentences.npz")}


def test_sentence_vectors(settings: dict[str, str], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    prepare = script("prepare_minilm")
    model = transformers.AutoModel.from_pretrained(prepare.package(), local_files_only=True).eval()
    texts = np.load(settings["sentences"])
    mask = torch.from_numpy(texts["mask"]).long()
    with torch.no_grad():
        x = model(input_ids=torch.from_numpy(texts["tokens"]).long(), attention_mask=mask).last_hidden_state
    pooled = (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    theirs = torch.nn.functional.normalize(pooled, dim=-1).numpy()
    ours = evaluate(beside(tmp_path, "minilm", VECTORS), "look", settings)["vectors"].reshape(theirs.shape)
    worst = float(np.abs(ours - theirs).max())
    print(f"largest difference {worst:.1e}")
    assert worst < 1e-5


def test_likeness(settings: dict[str, str]) -> None:
    found = evaluate(FILES["minilm"], "compare", settings)["to-the-first"]
    assert found[0] == pytest.approx(1, abs=1e-5) and found[1] > 0.5 > 0.2 > max(found[2:])


def test_a_new_head_learns(settings: dict[str, str], tmp_path: Path) -> None:
    texts, labels = script("prepare_minilm_classify", needs="prepare_minilm").examples(40)
    tokens = script("prepare_minilm").tokenized(texts, longest=24)
    np.savez(tmp_path / "docstrings.npz", label=labels, **tokens)
    arguments = [f"--set=weights={settings['weights']}", f"--set=sentences={tmp_path / 'docstrings.npz'}", "--steps=6"]
    folder = tmp_path / "run"
    result = CliRunner().invoke(main, ["run", str(FILES["minilm-classify"]), "--out", str(folder), *arguments])
    assert result.exit_code == 0, result.output
    found = [value for _, value in read_metrics(folder / "metrics.jsonl")["train/loss"]]
    print([round(value, 2) for value in found])
    assert np.mean(found[-2:]) < found[0] - 0.2
