"""moe.py: a character transformer whose feed-forward layers are mixtures of experts; that of examples/moe.sx.

python tests/peers/moe.py
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
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("--chosen", type=int, default=2)
    parser.add_argument("--capacity", type=float, default=1.25)
    parser.add_argument("--seq", type=int, default=64)
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--warmup", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/moe"))
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


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, w = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(x).chunk(3, dim=-1))
        at = torch.arange(t)
        y = F.scaled_dot_product_attention(rope(q, at), rope(k, at), v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, w))


class Mixture(nn.Module):
    """Experts with room for `capacity` times their even share; who comes too late is left out."""

    def __init__(self, width: int, hidden: int, experts: int, chosen: int, capacity: float) -> None:
        super().__init__()
        self.experts, self.chosen, self.capacity = experts, chosen, capacity
        self.router = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(0.02 * torch.randn(experts, width, hidden))
        self.down = nn.Parameter(0.02 * torch.randn(experts, hidden, width))
        self.measures: dict[str, float] = {}

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """x (n w) -> what the experts add to each place, and a balance that is 1 where all are asked alike."""
        n, w = x.shape
        wishes = self.router(x).softmax(-1)
        gate, who = wishes.topk(self.chosen)
        gate = (gate / gate.sum(-1, keepdim=True)).flatten()
        who = who.flatten()
        asked = F.one_hot(who, self.experts)
        turn = asked.cumsum(0).gather(1, who[:, None])[:, 0] - 1  # how many asked this expert before
        room = math.ceil(self.capacity * n * self.chosen / self.experts)
        kept = turn < room
        slot = (who * room + turn)[kept]
        source = torch.arange(n * self.chosen)[kept] // self.chosen  # the place that asks
        taken = x.new_zeros(self.experts * room, w).index_copy(0, slot, x[source])
        up = torch.bmm(taken.view(self.experts, room, w), self.up)
        made = torch.bmm(F.gelu(up, approximate="tanh"), self.down).flatten(0, 1)
        y = torch.zeros_like(x).index_add(0, source, made[slot] * gate[kept, None])
        share = asked.float().mean(0)
        self.measures = {
            "busiest": self.experts * share.max().item(),
            "dropped": 1 - kept.float().mean().item(),
        }
        return y, self.experts * (share * wishes.mean(0)).sum()


class Block(nn.Module):
    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.norm1 = RMSNorm(args.width)
        self.attn = Attention(args.width, args.heads)
        self.norm2 = RMSNorm(args.width)
        self.moe = Mixture(args.width, args.hidden, args.experts, args.chosen, args.capacity)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = x + self.attn(self.norm1(x))
        y, balance = self.moe(self.norm2(x).flatten(0, 1))
        return x + y.view_as(x), balance


class LM(nn.Module):
    def __init__(self, vocab: int, args: argparse.Namespace) -> None:
        super().__init__()
        self.table = nn.Embedding(vocab, args.width)
        self.blocks = nn.ModuleList(Block(args) for _ in range(args.layers))
        self.norm = RMSNorm(args.width)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=module.in_features**-0.5)
        nn.init.normal_(self.table.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.table(tokens)
        balances = []
        for block in self.blocks:
            x, balance = block(x)
            balances.append(balance)
        return self.norm(x) @ self.table.weight.T, torch.stack(balances).mean()


def nll(model: nn.Module, tokens: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss per character, and the balance of the experts."""
    logits, balance = model(tokens)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten()), balance


@torch.no_grad()
def evaluate(model: nn.Module, ids: torch.Tensor, seq: int, batch: int, batches: int = 20) -> float:
    model.eval()
    draw = torch.Generator().manual_seed(0)  # the same windows each time
    losses = [nll(model, *windows(ids, seq, batch, draw))[0].item() for _ in range(batches)]
    model.train()
    return sum(losses) / batches


def learning_rate(step: int, warmup: int, total: int, peak: float = 2e-3, floor: float = 2e-4) -> float:
    if step < warmup:
        return peak * step / warmup
    done = min(1.0, (step - warmup) / max(1, total - warmup))
    return floor + 0.5 * (peak - floor) * (1 + math.cos(math.pi * done))


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

    model = LM(len(characters), args)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.99), weight_decay=0.01)
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
            loss, balance = nll(model, *windows(train, args.seq, args.batch, draw))
            loss = loss + 0.01 * balance
            optimizer.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
            optimizer.step()

            record = {"step": step, "train/loss": loss.item(), "train/gradient-norm": norm.item()}
            for i, block in enumerate(model.blocks):
                record |= {f"train/block.{i}.{name}": value for name, value in block.moe.measures.items()}
            if step == 1 or step % 250 == 0 or step == args.steps:
                record["eval/validation/nll"] = evaluate(model, val, args.seq, args.batch)
                print(" ".join(f"{key} {value:.4g}" for key, value in record.items()), flush=True)
            metrics.write(json.dumps(record) + "\n")
            if step % 1000 == 0 or step == args.steps:
                metrics.flush()
                save(checkpoint, step, model, optimizer, draw)


if __name__ == "__main__":
    main()
