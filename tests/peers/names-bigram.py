"""names-bigram.py: which character follows which, learned as a table of logits; that of examples/names-bigram.sx.

python tests/peers/names-bigram.py --names names.txt
"""

import argparse
import json
import os
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", default="python:topics", help="a UTF-8 text, one name a line")
    parser.add_argument("--batch", type=int, default=16384)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/names-bigram"))
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    return parser.parse_args()


def read_corpus(name: str) -> str:
    if name == "python:topics":
        from pydoc_data.topics import topics

        return "\n\n".join(topics[topic] for topic in sorted(topics))
    return Path(name).read_text("utf-8")


class Bigram(nn.Module):
    """A row: this character; its columns: the next."""

    def __init__(self, vocab: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(vocab, vocab))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.table[tokens]


def pairs_of_step(step: int, num_pairs: int, batch: int, seed: int) -> torch.Tensor:
    """Where the pairs of a step begin: an order for each epoch, so that a resumed run reads what it would have read."""
    epoch, place = divmod(step - 1, max(1, num_pairs // batch))
    order = torch.randperm(num_pairs, generator=torch.Generator().manual_seed(1_000_003 * seed + epoch))
    return order[place * batch : (place + 1) * batch]


@torch.no_grad()
def evaluate(model: nn.Module, ids: torch.Tensor, batch: int) -> float:
    """Nats a character over all pairs."""
    total = 0.0
    for tokens, targets in zip(ids[:-1].split(batch), ids[1:].split(batch), strict=True):
        total += F.cross_entropy(model(tokens), targets, reduction="sum").item()
    return total / (len(ids) - 1)


def learning_rate(step: int, total: int, first: float = 0.2) -> float:
    return first * (1 - min(1.0, step / total))


def save(path: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, path.with_suffix(".new"))
    os.replace(path.with_suffix(".new"), path)


def main() -> None:
    args = parse_arguments()
    torch.manual_seed(args.seed)
    text = read_corpus(args.names)
    characters = sorted(set(text))
    number = {character: i for i, character in enumerate(characters)}
    ids = torch.tensor([number[character] for character in text])

    model = Bigram(len(characters))
    optimizer = torch.optim.Adam(model.parameters())
    args.out.mkdir(parents=True, exist_ok=True)
    checkpoint, first = args.out / "checkpoint.pt", 1
    if args.resume:
        state = torch.load(checkpoint)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"] + 1

    with open(args.out / "metrics.jsonl", "a" if args.resume else "w") as metrics:
        for step in range(first, args.steps + 1):
            at = pairs_of_step(step, len(ids) - 1, args.batch, args.seed)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, args.steps)
            loss = F.cross_entropy(model(ids[at]), ids[at + 1])
            if not torch.isfinite(loss):
                raise RuntimeError(f"the loss of step {step} is not finite")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

            record = {"step": step, "train/loss": loss.item()}
            if step == 1 or step % 100 == 0 or step == args.steps:
                record["eval/everything/nll"] = evaluate(model, ids, args.batch)
                print(" ".join(f"{key} {value:.4g}" for key, value in record.items()), flush=True)
            metrics.write(json.dumps(record) + "\n")
    save(checkpoint, args.steps, model, optimizer)


if __name__ == "__main__":
    main()
