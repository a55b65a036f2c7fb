"""SmolLM2-135M-Instruct beside transformers: logits, and what it writes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.published.looking import FILES, beside, generate, script

pytestmark = [
    pytest.mark.published,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
PROMPT = "The capital of France is"
NUM_TOKENS = 20


def test_logits_and_greedy_tokens(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    pytest.importorskip("gguf")
    prepare = script("prepare_smollm2")
    ids = prepare.tokenizer()(PROMPT).input_ids
    model = transformers.AutoModelForCausalLM.from_pretrained(
        prepare.package(), gguf_file=prepare.GGUF, dtype=torch.float32
    ).eval()
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits.numpy()
        written = model.generate(torch.tensor([ids]), max_new_tokens=NUM_TOKENS, do_sample=False, pad_token_id=0)
    del model
    settings = {"weights": str(prepare.prepare(tmp_path)), "prompt": f"[{' '.join(map(str, ids))}]"}
    file = beside(tmp_path, "smollm2", "(defgenerator look () (nth (llama (reshape prompt [1 _])) 0))")
    (ours,) = generate(file, "look", settings).carries
    worst = float(np.abs(ours - logits).max())
    print(f"largest difference {worst:.1e} on a range of {np.ptp(logits):.0f}")
    assert worst < 2e-3
    tokens = generate(FILES["smollm2"], "continuation", settings).emitted[0].ravel()
    expected = written[0, len(ids) :].numpy()
    np.testing.assert_array_equal(tokens[: len(expected)], expected)
    assert len(tokens) == NUM_TOKENS
