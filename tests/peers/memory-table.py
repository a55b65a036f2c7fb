"""memory-table.py: a memory of one row for each key, on associative recall; that of examples/memory-table.sx.

python tests/peers/memory-table.py
python tests/peers/memory-table.py --rows 1
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
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--kinds", type=int, default=16)
    parser.add_argument("--rows", type=int, default=16, help="of the table; with a single row it is a gated recurrence")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--width", type=int, default=48)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/memory-table"))
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    return parser.parse_args()


def draw_sequences(args: argparse.Namespace, draw: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Pairs of a key and a value, then the keys in another order, and the answers.

    Ids below `kinds` are keys, those from `kinds` on values; ids (b 3·pairs), answers (b pairs) below `kinds`.
    """
    key = torch.rand(args.batch, args.kinds, generator=draw).argsort(1)[:, : args.pairs]
    value = torch.randint(args.kinds, (args.batch, args.pairs), generator=draw)
    told = torch.stack([key, value + args.kinds], dim=2).flatten(1)
    asked, place = key.sort(1)
    return torch.cat([told, asked], dim=1), value.gather(1, place)


def before(x: torch.Tensor) -> torch.Tensor:
    """What stood one place earlier; x (b t …)."""
    return torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], dim=1)


class Memory(nn.Module):
    """Each place reads and writes one row of a table."""

    def __init__(self, inputs: int, width: int, rows: int) -> None:
        super().__init__()
        self.rows, self.width = rows, width
        self.write = nn.Linear(inputs, width)
        self.gate = nn.Linear(inputs, width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        write, gate = self.write(x), torch.sigmoid(self.gate(x))
        table = x.new_zeros(len(x), self.rows, self.width)
        each, read = torch.arange(len(x)), []
        for i, w, g in zip(key.unbind(1), write.unbind(1), gate.unbind(1), strict=True):
            at = i % self.rows
            row = torch.lerp(table[each, at], w, g)
            table = table.index_put((each, at), row)
            read.append(row)
        return self.out(torch.stack(read, dim=1))


class Recall(nn.Module):
    def __init__(self, pairs: int, kinds: int, width: int, rows: int) -> None:
        super().__init__()
        self.pairs, self.kinds = pairs, kinds
        self.table = nn.Embedding(2 * kinds, width)
        self.skip = nn.Linear(2 * width, width)
        self.memory = Memory(2 * width, width, rows)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, kinds)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=module.in_features**-0.5)
                nn.init.zeros_(module.bias)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        x = torch.cat([x, before(x)], dim=-1)
        key = torch.where(ids < self.kinds, ids, before(ids))  # a value belongs to the key before it
        y = self.skip(x) + self.memory(x, key)
        return self.head(self.norm(y[:, 2 * self.pairs :]))


def score(model: nn.Module, args: argparse.Namespace, draw: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss and the accuracy of freshly drawn sequences."""
    ids, answer = draw_sequences(args, draw)
    logits = model(ids)
    hit = (logits.argmax(-1) == answer).float().mean()
    return F.cross_entropy(logits.flatten(0, 1), answer.flatten()), hit


@torch.no_grad()
def evaluate(model: nn.Module, args: argparse.Namespace, batches: int = 20) -> dict[str, float]:
    draw = torch.Generator().manual_seed(0)  # the same sequences each time
    found = torch.tensor([score(model, args, draw) for _ in range(batches)]).mean(0)
    return {"eval/fresh/nll": found[0].item(), "eval/fresh/accuracy": found[1].item()}


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
    model = Recall(args.pairs, args.kinds, args.width, args.rows)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.01)
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
            loss, accuracy = score(model, args, draw)
            optimizer.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
            optimizer.step()

            record = {"step": step, "train/loss": loss.item(), "train/accuracy": accuracy.item()}
            record["train/gradient-norm"] = norm.item()
            if step == 1 or step % 100 == 0 or step == args.steps:
                record |= evaluate(model, args)
                print(" ".join(f"{key} {value:.4g}" for key, value in record.items()), flush=True)
            metrics.write(json.dumps(record) + "\n")
    save(checkpoint, args.steps, model, optimizer, draw)


if __name__ == "__main__":
    main()
