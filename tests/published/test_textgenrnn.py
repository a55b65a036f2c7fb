"""textgenrnn beside the same layers in PyTorch, its weights taken from cuDNN's layout as Keras does it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.published.looking import FILES, beside, generate, script

pytestmark = pytest.mark.published
TEXT = "Can someone please remove the state of"


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    pytest.importorskip("h5py")
    folder = tmp_path_factory.mktemp("textgenrnn")
    weights = script("prepare_textgenrnn").prepare(folder)
    return {"weights": str(weights), "alphabet": str(folder / "textgenrnn.txt")}


def gates(kernel: np.ndarray, order: str) -> np.ndarray:
    """(in 4·u) of cuDNN as (4·u in) of PyTorch, whose gates stand in the same order."""
    blocks = [block.T.reshape(block.shape, order=order) for block in np.split(kernel, 4, axis=1)]
    return np.concatenate(blocks, axis=1).T


def distribution(arrays: dict[str, np.ndarray], ids: list[int]) -> np.ndarray:
    """The next character's, in PyTorch."""
    import torch

    x = torch.from_numpy(arrays["embedding.embeddings"])[torch.tensor([ids])]
    seen = [x]
    for i in (1, 2):
        layer = torch.nn.LSTM(seen[-1].shape[-1], 128, batch_first=True)
        biases = np.split(arrays[f"rnn_{i}.bias"], 2)
        state = {
            "weight_ih_l0": gates(arrays[f"rnn_{i}.kernel"], "F"),
            "weight_hh_l0": gates(arrays[f"rnn_{i}.recurrent_kernel"], "C"),
            "bias_ih_l0": biases[0],
            "bias_hh_l0": biases[1],
        }
        layer.load_state_dict({name: torch.from_numpy(np.ascontiguousarray(a)) for name, a in state.items()})
        seen.append(layer(seen[-1])[0])
    joined = torch.cat(seen, -1)
    weights = torch.softmax((joined @ torch.from_numpy(arrays["attention.W"]))[..., 0], -1)
    mean = (joined * weights[..., None]).sum(1)
    logits = mean @ torch.from_numpy(arrays["output.kernel"]) + torch.from_numpy(arrays["output.bias"])
    return torch.softmax(logits, -1)[0].detach().numpy()


def test_the_next_character(settings: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    of_ids = script("prepare_textgenrnn").characters()
    arrays = load_file(settings["weights"])
    worst = 0.0
    for text in ("", TEXT[:1], TEXT):
        ids = ([0] * 40 + [464] + [of_ids.index(c) for c in text])[-40:]
        tokens = f"(reshape [{' '.join(map(str, ids))}] [1 _])"
        file = beside(tmp_path, "textgenrnn", f"(defgenerator next-one () (softmax (writer {tokens})))")
        (ours,) = generate(file, "next-one", settings).carries
        theirs = distribution(arrays, ids)
        worst = max(worst, float(np.abs(ours[0] - theirs).max()))
    print(f"largest difference {worst:.1e}; after the last text {of_ids[int(theirs.argmax())]!r} {theirs.max():.2f}")
    assert worst < 1e-4
    assert theirs.max() > 0.8 and of_ids[int(theirs.argmax())] == " ", "the layout is the right one: it can spell"


def test_it_writes_words(settings: dict[str, str]) -> None:
    text = generate(FILES["textgenrnn"], "headline", settings, heat="0.2", length="80").text
    print(text)
    assert text is not None and len(text) == 80
    assert {"the", "a", "of", "to", "and", "is", "in", "for", "I"} & set(text.split())
