"""lora.py: a character transformer learns a new text by low-rank changes of its matrices; that of examples/lora.sx.

python tests/peers/lora.py --out runs/base
python tests/peers/lora.py --base runs/base/checkpoint.pt
"""

import argparse
import json
import math
import os
from pathlib import Path
from pydoc_data.topics import topics

import torch
from torch import nn
from torch.nn import functional as F


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, help="weights to adapt, as the first run saves them; none: train them")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--strength", type=float, default=2.0, help="of the change, as the paper's alpha / r")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--seq", type=int, default=64)
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--steps", type=int, help="800 for a base, 250 to adapt one")
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/lora"))
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    return parser.parse_args()


def read_topics() -> torch.Tensor:
    """Python's help texts, as bytes."""
    text = "\n\n".join(topics[topic] for topic in sorted(topics))
    return torch.tensor(list(text.encode()))


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


class Dense(nn.Module):
    """A matrix; where rank is not 0, down to `rank` numbers and up again beside it."""

    def __init__(self, inputs: int, outputs: int, rank: int, strength: float) -> None:
        super().__init__()
        self.strength = strength
        self.w = nn.Parameter(torch.randn(outputs, inputs) * inputs**-0.5)
        if rank > 0:
            self.lora_down = nn.Parameter(torch.randn(rank, inputs) * inputs**-0.5)
            self.lora_up = nn.Parameter(torch.zeros(outputs, rank))
        self.rank = rank

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.linear(x, self.w)
        return y if self.rank == 0 else y + self.strength * F.linear(F.linear(x, self.lora_down), self.lora_up)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, rank: int, strength: float) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = Dense(width, 3 * width, rank, strength)
        self.out = Dense(width, width, rank, strength)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, w = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(x).chunk(3, dim=-1))
        at = torch.arange(t)
        y = F.scaled_dot_product_attention(rope(q, at), rope(k, at), v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, w))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, rank: int, strength: float) -> None:
        super().__init__()
        self.norm1 = RMSNorm(width)
        self.attn = Attention(width, heads, rank, strength)
        self.norm2 = RMSNorm(width)
        self.up = Dense(width, 4 * width, rank, strength)
        self.down = Dense(4 * width, width, rank, strength)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, layers: int, heads: int, width: int, rank: int, strength: float) -> None:
        super().__init__()
        self.table = nn.Embedding(256, width)
        self.blocks = nn.ModuleList(Block(width, heads, rank, strength) for _ in range(layers))
        self.norm = RMSNorm(width)
        self.head = nn.Linear(width, 256, bias=False)
        nn.init.normal_(self.table.weight, std=0.02)
        nn.init.normal_(self.head.weight, std=width**-0.5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def load_base(model: nn.Module, path: Path) -> None:
    """Fill the matrices of the base; what is missing must be of the low-rank changes, which alone then move."""
    missing, surplus = model.load_state_dict(torch.load(path)["model"], strict=False)
    wrong = surplus + [name for name in missing if ".lora_" not in name]
    if wrong:
        raise ValueError(f"{path} and the model do not fit: {wrong}")
    for name, p in model.named_parameters():
        p.requires_grad = ".lora_" in name


def capitals(x: torch.Tensor) -> torch.Tensor:
    return torch.where((x >= 97) & (x <= 122), x - 32, x)


def nll(model: nn.Module, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())


@torch.no_grad()
def evaluate(model: nn.Module, ids: torch.Tensor, seq: int, batch: int, batches: int = 40) -> float:
    model.eval()
    draw = torch.Generator().manual_seed(0)  # the same windows each time
    losses = [nll(model, *windows(ids, seq, batch, draw)).item() for _ in range(batches)]
    model.train()
    return sum(losses) / batches


def learning_rate(step: int, warmup: int, total: int, peak: float = 3e-3) -> float:
    if step < warmup:
        return peak * step / warmup
    done = min(1.0, (step - warmup) / max(1, total - warmup))
    return 0.5 * peak * (1 + math.cos(math.pi * done))


def save(path: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer, draw: torch.Generator) -> None:
    state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict(), "draw": draw.get_state()}
    torch.save(state, path.with_suffix(".new"))
    os.replace(path.with_suffix(".new"), path)


def main() -> None:
    args = parse_arguments()
    torch.manual_seed(args.seed)
    ids = read_topics()
    if args.base is not None:
        ids = capitals(ids)
    steps = args.steps or (800 if args.base is None else 250)
    cut = int(0.9 * len(ids))
    train, val = ids[:cut], ids[cut:]

    model = GPT(args.layers, args.heads, args.width, 0 if args.base is None else args.rank, args.strength)
    if args.base is not None:
        load_base(model, args.base)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, betas=(0.9, 0.99), weight_decay=0.01)
    draw = torch.Generator().manual_seed(args.seed)
    args.out.mkdir(parents=True, exist_ok=True)
    checkpoint, first = args.out / "checkpoint.pt", 1
    if args.resume:
        state = torch.load(checkpoint)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        draw.set_state(state["draw"])
        first = state["step"] + 1
    print(f"{sum(p.numel() for p in trained):,} of {sum(p.numel() for p in model.parameters()):,} parameters")

    with open(args.out / "metrics.jsonl", "a" if args.resume else "w") as metrics:
        for step in range(first, steps + 1):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, args.warmup, steps)
            loss = nll(model, *windows(train, args.seq, args.batch, draw))
            optimizer.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(trained, 1.0, error_if_nonfinite=True)
            optimizer.step()

            record = {"step": step, "train/loss": loss.item(), "train/gradient-norm": norm.item()}
            if step == 1 or step % 100 == 0 or step == steps:
                record["eval/validation/nll"] = evaluate(model, val, args.seq, args.batch)
                print(" ".join(f"{key} {value:.4g}" for key, value in record.items()), flush=True)
            metrics.write(json.dumps(record) + "\n")
    save(checkpoint, steps, model, optimizer, draw)


if __name__ == "__main__":
    main()
