"""names-lstm.py: a recurrent network with gates that writes names; the experiment of examples/names-lstm.sx.

python tests/peers/names-lstm.py --names names.txt
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
    parser.add_argument("--seq", type=int, default=32)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--narrow", type=int, default=32)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--out", type=Path, default=Path("runs/names-lstm"))
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


State = tuple[torch.Tensor, torch.Tensor]


class Writer(nn.Module):
    def __init__(self, vocab: int, narrow: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(vocab, narrow)
        self.cell = nn.LSTM(narrow, width, batch_first=True)
        self.head = nn.Linear(width, vocab)
        nn.init.normal_(self.head.weight, std=width**-0.5)
        nn.init.zeros_(self.head.bias)

    def forward(self, tokens: torch.Tensor, state: State | None = None) -> tuple[torch.Tensor, State]:
        """Tokens (b t), read on from a state -> logits (b t vocab), the state after them."""
        y, state = self.cell(self.table(tokens), state)
        return self.head(y), state


def nll(model: Writer, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    logits, _ = model(tokens)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


@torch.no_grad()
def evaluate(model: Writer, ids: torch.Tensor, seq: int, batch: int, batches: int = 100) -> float:
    starts = torch.arange(0, len(ids) - seq, seq)[: batches * batch, None]
    losses = []
    for at in starts.split(batch):
        found = ids[at + torch.arange(seq + 1)]
        losses.append(nll(model, found[:, :-1], found[:, 1:]).item())
    return sum(losses) / len(losses)


@torch.no_grad()
def babble(model: Writer, prompt: list[int], length: int, temperature: float, seed: int) -> list[int]:
    draw = torch.Generator().manual_seed(seed)
    logits, state = model(torch.tensor([prompt]))
    ids = list(prompt)
    for _ in range(length):
        token = torch.multinomial((logits[0, -1] / temperature).softmax(-1), 1, generator=draw)
        ids.append(token.item())
        logits, state = model(token[None], state)
    return ids


def learning_rate(step: int, total: int, first: float = 5e-3) -> float:
    return first * (1 - min(1.0, step / total))


def save(path: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer, draw: torch.Generator) -> None:
    state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict(), "draw": draw.get_state()}
    torch.save(state, path.with_suffix(".new"))
    os.replace(path.with_suffix(".new"), path)


def main() -> None:
    args = parse_arguments()
    torch.manual_seed(args.seed)
    text = read_corpus(args.names)
    characters = sorted(set(text))
    number = {character: i for i, character in enumerate(characters)}
    ids = torch.tensor([number[character] for character in text])
    cut = int(0.9 * len(ids))
    train, val = ids[:cut], ids[cut:]

    model = Writer(len(characters), args.narrow, args.width)
    optimizer = torch.optim.Adam(model.parameters())
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
                group["lr"] = learning_rate(step, args.steps)
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
                ids_of_sample = babble(model, [number["\n"]], 120, args.temperature, args.seed)
                sample = "".join(characters[i] for i in ids_of_sample)
                (args.out / f"babble-{step:08}.txt").write_text(sample, "utf-8")
            metrics.write(json.dumps(record) + "\n")
    save(checkpoint, args.steps, model, optimizer, draw)


if __name__ == "__main__":
    main()
