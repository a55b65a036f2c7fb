"""char-gpt.py: nanoGPT's documented CPU setting, a character transformer; the experiment of examples/char-gpt.sx.

python tests/peers/char-gpt.py --corpus tinyshakespeare.txt
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
    parser.add_argument("--seq", type=int, default=64)
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--warmup", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1337)
    parser.add_argument("--out", type=Path, default=Path("runs/char-gpt"))
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


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, w = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(x).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, w))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln1 = nn.LayerNorm(width, bias=False)
        self.attn = Attention(width, heads)
        self.ln2 = nn.LayerNorm(width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln1(x))
        return x + self.down(F.gelu(self.up(self.ln2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, vocab: int, seq: int, layers: int, heads: int, width: int) -> None:
        super().__init__()
        self.wte = nn.Embedding(vocab, width)
        self.wpe = nn.Embedding(seq, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width, bias=False)
        for name, p in self.named_parameters():
            if p.ndim == 2:  # what adds to the residual stream begins smaller
                residual = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * layers) if residual else 0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.ln_f(x) @ self.wte.weight.T


def nll(model: nn.Module, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())


@torch.no_grad()
def evaluate(model: nn.Module, ids: torch.Tensor, seq: int, batch: int, batches: int = 20) -> float:
    model.eval()
    draw = torch.Generator().manual_seed(0)  # the same windows each time
    losses = [nll(model, *windows(ids, seq, batch, draw)).item() for _ in range(batches)]
    model.train()
    return sum(losses) / batches


def learning_rate(step: int, warmup: int, total: int, peak: float = 1e-3, floor: float = 1e-4) -> float:
    if step < warmup:
        return peak * step / warmup
    done = min(1.0, (step - warmup) / max(1, total - warmup))
    return floor + 0.5 * (peak - floor) * (1 + math.cos(math.pi * done))


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    matrices = [p for p in model.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim != 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, betas=(0.9, 0.99))


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

    model = GPT(len(characters), args.seq, args.layers, args.heads, args.width)
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
            metrics.write(json.dumps(record) + "\n")
            if step % 1000 == 0 or step == args.steps:
                metrics.flush()
                save(checkpoint, step, model, optimizer, draw)


if __name__ == "__main__":
    main()
