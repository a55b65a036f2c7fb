"""reinforce.py: a policy learns to balance a pole on a cart from reward alone; that of examples/reinforce.sx.

python tests/peers/reinforce.py
"""

import argparse
import json
import os
from pathlib import Path

import torch
from torch import nn


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", type=int, default=32)
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--discount", type=float, default=0.99)
    parser.add_argument("--rate", type=float, default=1e-2)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/reinforce"))
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    return parser.parse_args()


def move(s: torch.Tensor, push: torch.Tensor) -> torch.Tensor:
    """The cart 0.02 s later; s (b 4): place, speed, angle and spin, push (b): 0 to the left, 1 to the right."""
    _, speed, angle, spin = s.unbind(1)
    force = (20.0 * push - 10.0 + 0.05 * spin.square() * angle.sin()) / 1.1
    turn = (9.8 * angle.sin() - angle.cos() * force) / (2 / 3 - 0.05 / 1.1 * angle.cos().square())
    pull = force - 0.05 / 1.1 * turn * angle.cos()
    return s + 0.02 * torch.stack([speed, pull, spin, turn], dim=1)


def stands(s: torch.Tensor) -> torch.Tensor:
    return (s[:, 0].abs() < 2.4) & (s[:, 2].abs() < 0.2095)


class Policy(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(4, width)
        self.head = nn.Linear(width, 2)
        nn.init.normal_(self.hidden.weight, std=0.5)
        nn.init.zeros_(self.hidden.bias)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, s: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.hidden(s)))


@torch.no_grad()
def play(
    policy: Policy, games: int, turns: int, draw: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Games side by side: what was seen (turns games 4), what was done and whether the pole stood (turns games)."""
    s = 0.05 * (2 * torch.rand(games, 4, generator=draw) - 1)
    up = torch.ones(games, dtype=torch.bool)
    seen, done, stood = [], [], []
    for _ in range(turns):
        push = torch.multinomial(policy(s).softmax(-1), 1, generator=draw)[:, 0]
        seen.append(s)
        done.append(push)
        stood.append(up)
        s = move(s, push)
        up = up & stands(s)
    return torch.stack(seen), torch.stack(done), torch.stack(stood)


def rewards_to_come(up: torch.Tensor, discount: float) -> torch.Tensor:
    total, found = torch.zeros(up.shape[1]), []
    for reward in up.float().flip(0):
        total = reward + discount * total
        found.append(total)
    return torch.stack(found).flip(0)


def objective(policy: Policy, args: argparse.Namespace, draw: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss, and how many turns a game went."""
    s, push, up = play(policy, args.games, args.turns, draw)
    better = rewards_to_come(up, args.discount)
    better = better - better[up].mean()
    better = better / (1e-6 + better[up].square().mean().sqrt())
    log_p = policy(s).log_softmax(-1).gather(-1, push[..., None])[..., 0]
    return -(better * log_p)[up].mean(), up.float().sum() / args.games


@torch.no_grad()
def evaluate(policy: Policy, args: argparse.Namespace, batches: int = 4) -> float:
    draw = torch.Generator().manual_seed(0)  # the same draws each time
    return sum(objective(policy, args, draw)[1].item() for _ in range(batches)) / batches


def save(path: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer, draw: torch.Generator) -> None:
    state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict(), "draw": draw.get_state()}
    torch.save(state, path.with_suffix(".new"))
    os.replace(path.with_suffix(".new"), path)


def main() -> None:
    args = parse_arguments()
    torch.manual_seed(args.seed)
    model = Policy(args.width)
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
                group["lr"] = args.rate * (1 - step / args.steps)
            loss, turns = objective(model, args, draw)
            optimizer.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
            optimizer.step()

            record = {"step": step, "train/loss": loss.item(), "train/turns": turns.item()}
            record["train/gradient-norm"] = norm.item()
            if step == 1 or step % 50 == 0 or step == args.steps:
                record["eval/fresh/turns"] = evaluate(model, args)
                print(" ".join(f"{key} {value:.4g}" for key, value in record.items()), flush=True)
            metrics.write(json.dumps(record) + "\n")
    save(checkpoint, args.steps, model, optimizer, draw)


if __name__ == "__main__":
    main()
