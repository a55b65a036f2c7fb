"""llama.py: a character transformer of Llama's making, with a cache to write by; that of examples/llama.sx.

python tests/peers/llama.py
"""

import argparse
import json
import math
import os
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", default="python:topics", help="a UTF-8 text")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--groups", type=int, default=2)
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--seq", type=int, default=64)
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--warmup", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1337)
    parser.add_argument("--prompt", default="The ")
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--out", type=Path, default=Path("runs/llama"))
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    return parser.parse_args()


def read_corpus(name: str) -> str:
    if name == "python:topics":
        from pydoc_data.topics import topics

        return "\n\n".join(topics[topic] for topic in sorted(topics))
    return Path(name).read_text("utf-8")


def windows(ids: torch.Tensor, seq: int, batch: int, draw: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and targets, one ahead, each (batch seq)."""
    starts = torch.randint(len(ids) - seq, (batch, 1), generator=draw)
    found = ids[starts + torch.arange(seq + 1)]
    return found[:, :-1], found[:, 1:]


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * self.scale


def rope(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """Rotary positions: x (b h t d), at (t)."""
    half = x.shape[-1] // 2
    angle = at[:, None] * 10000.0 ** (torch.arange(half) / -half)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], dim=-1)


class Cache:
    """Keys and values of the places that were read: (b groups seq d) each."""

    def __init__(self, groups: int, seq: int, head: int) -> None:
        self.k = torch.zeros(1, groups, seq, head)
        self.v = torch.zeros(1, groups, seq, head)

    def enter(self, at: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.k[:, :, at], self.v[:, :, at] = k, v
        return self.k, self.v


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, groups: int) -> None:
        super().__init__()
        self.heads, self.groups = heads, groups
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, groups * (width // heads), bias=False)
        self.v = nn.Linear(width, groups * (width // heads), bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor, at: torch.Tensor, cache: Cache | None) -> torch.Tensor:
        b, t, w = x.shape
        q = rope(self.q(x).view(b, t, self.heads, -1).transpose(1, 2), at)
        k = rope(self.k(x).view(b, t, self.groups, -1).transpose(1, 2), at)
        v = self.v(x).view(b, t, self.groups, -1).transpose(1, 2)
        if cache is not None:
            k, v = cache.enter(at, k, v)
        k, v = (y.repeat_interleave(self.heads // self.groups, dim=1) for y in (k, v))
        seen = at[:, None] >= torch.arange(k.shape[2])
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return self.out(y.transpose(1, 2).reshape(b, t, w))


class SwiGLU(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, groups: int, hidden: int) -> None:
        super().__init__()
        self.norm1 = RMSNorm(width)
        self.attn = Attention(width, heads, groups)
        self.norm2 = RMSNorm(width)
        self.mlp = SwiGLU(width, hidden)

    def forward(self, x: torch.Tensor, at: torch.Tensor, cache: Cache | None) -> torch.Tensor:
        x = x + self.attn(self.norm1(x), at, cache)
        return x + self.mlp(self.norm2(x))


class Llama(nn.Module):
    def __init__(self, vocab: int, layers: int, heads: int, groups: int, width: int, hidden: int) -> None:
        super().__init__()
        self.table = nn.Embedding(vocab, width)
        self.blocks = nn.ModuleList(Block(width, heads, groups, hidden) for _ in range(layers))
        self.norm = RMSNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=module.in_features**-0.5)
        nn.init.normal_(self.table.weight, std=0.02)
        nn.init.normal_(self.head.weight, std=0.02)

    def forward(
        self, tokens: torch.Tensor, at: torch.Tensor | None = None, caches: list[Cache] | None = None
    ) -> torch.Tensor:
        at = torch.arange(tokens.shape[1]) if at is None else at
        x = self.table(tokens)
        for i, block in enumerate(self.blocks):
            x = block(x, at, None if caches is None else caches[i])
        return self.head(self.norm(x))


def nll(model: nn.Module, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())


@torch.no_grad()
def evaluate(model: nn.Module, ids: torch.Tensor, seq: int, batch: int, batches: int = 40) -> float:
    model.eval()
    draw = torch.Generator().manual_seed(0)  # the same windows each time
    losses = [nll(model, *windows(ids, seq, batch, draw)).item() for _ in range(batches)]
    model.train()
    return sum(losses) / batches


@torch.no_grad()
def story(model: nn.Module, args: argparse.Namespace, prompt: list[int]) -> list[int]:
    """The prompt and what follows it, up to `seq` characters; each is read once."""
    model.eval()
    caches = [Cache(args.groups, args.seq, args.width // args.heads) for _ in range(args.layers)]
    draw = torch.Generator().manual_seed(args.seed)
    ids, new = list(prompt), torch.tensor([prompt])
    while len(ids) < args.seq:
        at = torch.arange(len(ids) - new.shape[1], len(ids))
        logits = model(new, at, caches)[0, -1] / args.temperature
        new = torch.multinomial(logits.softmax(-1), 1, generator=draw)[None]
        ids.append(new.item())
    model.train()
    return ids


def learning_rate(step: int, warmup: int, total: int, peak: float = 3e-3, floor: float = 3e-4) -> float:
    if step < warmup:
        return peak * step / warmup
    done = min(1.0, (step - warmup) / max(1, total - warmup))
    return floor + 0.5 * (peak - floor) * (1 + math.cos(math.pi * done))


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    matrices = [p for p in model.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim != 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, betas=(0.9, 0.95))


def save(path: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer, draw: torch.Generator) -> None:
    state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict(), "draw": draw.get_state()}
    torch.save(state, path.with_suffix(".new"))
    os.replace(path.with_suffix(".new"), path)


def main() -> None:
    args = parse_arguments()
    torch.manual_seed(args.seed)
    text = read_corpus(args.corpus)
    characters = sorted(set(text))
    number = {character: i for i, character in enumerate(characters)}
    ids = torch.tensor([number[character] for character in text])
    cut = int(0.9 * len(ids))
    train, val = ids[:cut], ids[cut:]

    model = Llama(len(characters), args.layers, args.heads, args.groups, args.width, args.hidden)
    optimizer = make_optimizer(model)
    draw = torch.Generator().manual_seed(args.seed)
    args.out.mkdir(parents=True, exist_ok=True)
    checkpoint, first = args.out / "checkpoint.pt", 1
    if args.resume:
        state = torch.load(checkpoint)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        draw.set_state(state["draw"])
        first = state["step"] + 1
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters")

    with open(args.out / "metrics.jsonl", "a" if args.resume else "w") as metrics:
        for step in range(first, args.steps + 1):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, args.warmup, args.steps)
            loss = nll(model, *windows(train, args.seq, args.batch, draw))
            optimizer.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
            optimizer.step()

            record = {"step": step, "train/loss": loss.item(), "train/gradient-norm": norm.item()}
            if step == 1 or step % 250 == 0 or step == args.steps:
                record["eval/validation/nll"] = evaluate(model, val, args.seq, args.batch)
                print(" ".join(f"{key} {value:.4g}" for key, value in record.items()), flush=True)
            if step == 1 or step % 500 == 0 or step == args.steps:
                ids_of_story = story(model, args, [number[character] for character in args.prompt])
                sample = "".join(characters[i] for i in ids_of_story)
                (args.out / f"story-{step:08}.txt").write_text(sample, "utf-8")
            metrics.write(json.dumps(record) + "\n")
            if step % 500 == 0 or step == args.steps:
                metrics.flush()
                save(checkpoint, step, model, optimizer, draw)


if __name__ == "__main__":
    main()
