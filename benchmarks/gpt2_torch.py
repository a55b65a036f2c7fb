#!/usr/bin/env python3
"""The peer of `gpt2.py`: the same GPT-2 124M training step in PyTorch, eager or compiled.

f32 master parameters, bf16 products and residual stream, fused attention, tanh GELU, tied embeddings, gradient norm
clipped to 1, fused AdamW with decay on matrices. One JSON line per mode.
Example: python benchmarks/gpt2_torch.py --batch 16 --modes eager compile
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY, LENGTH, LAYERS, HEADS, WIDTH = 50304, 1024, 12, 12, 768
FLOPS_PER_TOKEN = 855.4e6


class Block(nn.Module):
    """Attention, then two products with a GELU between, each behind a norm and beside the residual stream."""

    def __init__(self) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x_BTC: Tensor) -> Tensor:
        batch, length, width = x_BTC.shape
        qkv = self.qkv(self.ln1(x_BTC)).view(batch, length, 3, HEADS, width // HEADS)
        q, k, v = (qkv[:, :, i].transpose(1, 2) for i in range(3))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x_BTC = x_BTC + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x_BTC + self.down(functional.gelu(self.up(self.ln2(x_BTC)), approximate="tanh"))


class Gpt2(nn.Module):
    """Tokens and targets to the mean loss."""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.ln_f = nn.LayerNorm(WIDTH)
        for parameter in self.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        places = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        x_BTC = (self.wte(tokens_BT) + self.wpe(places)).to(torch.bfloat16)
        for block in self.blocks:
            x_BTC = block(x_BTC)
        logits_BTV = functional.linear(self.ln_f(x_BTC), self.wte.weight)
        return functional.cross_entropy(logits_BTV.view(-1, VOCABULARY).float(), targets_BT.view(-1))


def make_step(mode: str, batch: int) -> Callable[[], Tensor]:
    torch.manual_seed(1337)
    model = Gpt2().cuda()
    decayed = [p for p in model.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if p.ndim != 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95), fused=True)
    forward = torch.compile(model) if mode == "compile" else model
    tokens, targets = (torch.randint(0, VOCABULARY, (batch, LENGTH), device="cuda") for _ in range(2))

    def step() -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            loss = forward(tokens, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--modes", nargs="+", default=["eager", "compile"])
    args = parser.parse_args()
    for mode in args.modes:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        step = make_step(mode, args.batch)
        first_loss = step().item()
        first_s = time.perf_counter() - start
        for _ in range(4):
            step()
        times = []
        for _ in range(args.steps):
            torch.cuda.synchronize()
            start = time.perf_counter()
            loss = step()
            torch.cuda.synchronize()
            times.append((time.perf_counter() - start) * 1e3)
        step_ms = statistics.median(times)
        tokens = args.batch * LENGTH
        record = {
            "bench": "gpt2_torch", "mode": mode, "batch": args.batch, "step_ms": step_ms, "min_ms": min(times),
            "max_ms": max(times), "first_s": first_s, "tokens_per_s": tokens / step_ms * 1e3,
            "tflops": tokens * FLOPS_PER_TOKEN / step_ms / 1e9, "peak_bytes": torch.cuda.max_memory_allocated(),
            "first_loss": first_loss, "last_loss": loss.item(), "torch": torch.__version__,
        }  # fmt: skip
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
