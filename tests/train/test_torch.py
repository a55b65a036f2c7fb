"""The whole of training against PyTorch: a character GPT of nanoGPT's CPU setting, the same weights and batches.

Shape suffixes: B batch, T time, H heads, D head width, W width, V vocabulary.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from sexpgpu.lang.load import load_experiment
from tests.train.trial import Trial

pytestmark = pytest.mark.torch
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "char-gpt.sx"
NUM_STEPS = 20
PEAK, FLOOR, WARMUP, TOTAL = 1e-3, 1e-4, 100, 2000


def rate(step: int, warmup: int, total: int) -> float:
    if step < warmup:
        return PEAK * step / warmup
    done = min((step - warmup) / (total - warmup), 1.0)
    return FLOOR + 0.5 * (PEAK - FLOOR) * (1 + math.cos(math.pi * done))


def loss_of(p: dict, tokens_BT, targets_BT, num_layers: int, num_heads: int):
    import torch
    from torch.nn import functional

    def norm(x, name: str):
        return functional.layer_norm(x, x.shape[-1:], p[f"{name}.scale"])

    size_B, size_T = tokens_BT.shape
    x_BTW = p["gpt.wte"][tokens_BT] + p["gpt.wpe"][:size_T]
    for i in range(num_layers):
        name = f"gpt.block.{i}"
        qkv = norm(x_BTW, f"{name}.ln1") @ p[f"{name}.attn.qkv.w"]
        q, k, v = (part.reshape(size_B, size_T, num_heads, -1).transpose(1, 2) for part in qkv.chunk(3, dim=-1))
        y_BHTD = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x_BTW = x_BTW + y_BHTD.transpose(1, 2).reshape(size_B, size_T, -1) @ p[f"{name}.attn.out.w"]
        up = functional.gelu(norm(x_BTW, f"{name}.ln2") @ p[f"{name}.mlp.up.w"], approximate="tanh")
        x_BTW = x_BTW + up @ p[f"{name}.mlp.down.w"]
    logits_BTV = norm(x_BTW, "gpt.ln-f") @ p["gpt.wte"].T
    return functional.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten().to(torch.int64))


def compare(variant: str | None, num_layers: int, num_heads: int, warmup: int, total: int) -> tuple[float, float]:
    """The largest relative differences: of 20 losses; of a gradient at step 1, over its tensor's largest entry."""
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    experiment = load_experiment(EXAMPLE, variant=variant)
    with Trial(experiment) as trial:
        first = trial.read_all("parameter")
        leaves = {n: torch.tensor(np.array(v), requires_grad=True) for n, v in first.items()}
        groups = [
            {"params": [v for v in leaves.values() if v.ndim == 2], "weight_decay": 0.1},
            {"params": [v for v in leaves.values() if v.ndim != 2], "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.99), eps=1e-8)
        worst_loss = worst_gradient = 0.0
        for step in range(1, NUM_STEPS + 1):
            batch = experiment.loaders["train"].batch(step - 1)
            tokens, targets = (torch.tensor(batch[name]) for name in ("tokens", "targets"))
            loss = loss_of(leaves, tokens, targets, num_layers, num_heads)
            optimizer.zero_grad()
            loss.backward()
            ours = trial.step()["pretrain"]
            worst_loss = max(worst_loss, abs(ours.loss - loss.item()) / loss.item())
            if step == 1:
                for name, leaf in leaves.items():
                    wanted = leaf.grad.numpy()
                    found = trial.read(f"gradient.pretrain/{name}")
                    worst = float(np.abs(found - wanted).max() / np.abs(wanted).max())
                    assert worst < 1e-4, f"{name}: {worst}"
                    worst_gradient = max(worst_gradient, worst)
            norm = torch.nn.utils.clip_grad_norm_(list(leaves.values()), 1.0)
            assert ours.gradient_norm == pytest.approx(float(norm), rel=1e-4)
            for group in optimizer.param_groups:
                group["lr"] = rate(step, warmup, total)
            optimizer.step()
        for name, leaf in leaves.items():
            found, wanted = trial.read(name), leaf.detach().numpy()
            assert np.abs(found - wanted).max() < 0.02 * PEAK * NUM_STEPS, name
    return worst_loss, worst_gradient


def test_a_small_gpt_trains_as_in_torch() -> None:
    """Past its warmup, so that the cosine is met too."""
    worst_loss, _ = compare("smoke", 2, 2, 5, 40)
    assert worst_loss < 1e-5


def test_the_documented_gpt_trains_as_in_torch() -> None:
    worst_loss, _ = compare(None, 4, 4, WARMUP, TOTAL)
    assert worst_loss < 1e-5
