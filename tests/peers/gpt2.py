"""gpt2.py: GPT-2 124M from scratch; the experiment of examples/gpt2.sx.

python tests/peers/gpt2.py --shards 'data/train-*.bin'
python tests/peers/gpt2.py --smoke
"""

import argparse
import json
import math
import os
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

HEADER_BYTES = 1024
MAGIC = 20240520


def read_shard(path: Path) -> np.ndarray:
    """Ids of a shard of uint16, with the header that llm.c writes or without one."""
    has_header = np.fromfile(path, dtype="<i4", count=1)[0] == MAGIC
    return np.memmap(path, dtype="<u2", mode="r", offset=HEADER_BYTES if has_header else 0)


def read_ids(shards: str, vocab: int) -> np.ndarray:
    if shards == "":
        text = "\n\n".join(topics[topic] for topic in sorted(topics))
        return np.frombuffer(text.encode(), dtype=np.uint8)
    paths = sorted(Path().glob(shards))
    if not paths:
        raise FileNotFoundError(f"no shard matches {shards}")
    ids = np.concatenate([read_shard(path) for path in paths])
    if ids.max() >= vocab:
        raise ValueError(f"{shards} holds the id {ids.max()}; the vocabulary is {vocab}")
    return ids


def windows(ids: np.ndarray, seq: int, batch: int, draw: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and targets, one ahead, each (batch seq)."""
    starts = torch.randint(len(ids) - seq, (batch, 1), generator=draw).numpy()
    found = torch.from_numpy(ids[starts + np.arange(seq + 1)].astype(np.int64))
    return found[:, :-1], found[:, 1:]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", default="", help="token shards; none: bytes of Python's help texts")
    parser.add_argument("--vocab", type=int, default=50304)
    parser.add_argument("--seq", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--microbatches", type=int, default=32)
    parser.add_argument("--steps", type=int, default=19073)
    parser.add_argument("--warmup", type=int, default=700)
    parser.add_argument("--seed", type=int, default=1337)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--smoke", action="store_true", help="a small model for a quick look")
    parser.add_argument("--out", type=Path, default=Path("runs/gpt2"))
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    args = parser.parse_args()
    if args.smoke:
        args.vocab, args.seq, args.layers, args.heads, args.width = 512, 64, 2, 4, 128
        args.batch, args.steps, args.warmup = 2, min(args.steps, 20), 4
    if args.batch < 16:  # a small batch is a trial
        args.microbatches = 1
    return args


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, w = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(x).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, w))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln1 = nn.LayerNorm(width)
        self.attn = Attention(width, heads)
        self.ln2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln1(x))
        return x + self.down(F.gelu(self.up(self.ln2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self, vocab: int, seq: int, layers: int, heads: int, width: int) -> None:
        super().__init__()
        self.wte = nn.Embedding(vocab, width)
        self.wpe = nn.Embedding(seq, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        for name, p in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(p)
            elif p.ndim == 2:  # what adds to the residual stream begins smaller
                residual = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * layers) if residual else 0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.ln_f(x) @ self.wte.weight.T


def nll(model: nn.Module, tokens: torch.Tensor, targets: torch.Tensor, device: str) -> torch.Tensor:
    tokens, targets = tokens.to(device), targets.to(device)
    with torch.autocast(torch.device(device).type, torch.bfloat16):
        logits = model(tokens)
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


@torch.no_grad()
def evaluate(model: nn.Module, ids: np.ndarray, args: argparse.Namespace) -> float:
    model.eval()
    draw = torch.Generator().manual_seed(0)  # the same windows each time
    batches = 1 if args.batch < 16 else 20
    losses = [nll(model, *windows(ids, args.seq, args.batch, draw), args.device).item() for _ in range(batches)]
    model.train()
    return sum(losses) / batches


def learning_rate(step: int, warmup: int, total: int, peak: float = 6e-4, floor: float = 6e-5) -> float:
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
    ids = read_ids(args.shards, args.vocab)
    cut = int(0.95 * len(ids))
    train, val = ids[:cut], ids[cut:]

    model = GPT2(args.vocab, args.seq, args.layers, args.heads, args.width).to(args.device)
    optimizer = make_optimizer(model)
    draw = torch.Generator().manual_seed(args.seed)
    args.out.mkdir(parents=True, exist_ok=True)
    checkpoint, first = args.out / "checkpoint.pt", 1
    if args.resume:
        state = torch.load(checkpoint, map_location=args.device)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        draw.set_state(state["draw"].cpu())
        first = state["step"] + 1
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters")

    with open(args.out / "metrics.jsonl", "a" if args.resume else "w") as metrics:
        for step in range(first, args.steps + 1):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, args.warmup, args.steps)
            optimizer.zero_grad()
            total = 0.0
            for _ in range(args.microbatches):
                loss = nll(model, *windows(train, args.seq, args.batch, draw), args.device) / args.microbatches
                loss.backward()
                total += loss.item()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
            due = step == 1 or step % 100 == 0 or step == args.steps
            before = {name: p.detach().clone() for name, p in model.named_parameters() if due and p.ndim == 2}
            optimizer.step()

            record = {"step": step, "train/loss": total, "train/gradient-norm": norm.item()}
            for name, old in before.items():
                new = model.get_parameter(name).detach()
                record[f"train/update-ratio/{name}"] = ((new - old).norm() / old.norm()).item()
            if step == 1 or step % 250 == 0 or step == args.steps:
                record["eval/validation/nll"] = evaluate(model, val, args)
                print(f"step {step} loss {total:.4f} validation {record['eval/validation/nll']:.4f}", flush=True)
            metrics.write(json.dumps(record) + "\n")
            if step % 1000 == 0 or step == args.steps:
                metrics.flush()
                save(checkpoint, step, model, optimizer, draw)


if __name__ == "__main__":
    main()
