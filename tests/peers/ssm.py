"""ssm.py: a selective state space model on selective copying; the experiment of examples/ssm.sx.

python tests/peers/ssm.py
python tests/peers/ssm.py --without
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
    parser.add_argument("--places", type=int, default=32)
    parser.add_argument("--kept", type=int, default=6)
    parser.add_argument("--kinds", type=int, default=8)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--inner", type=int, default=64)
    parser.add_argument("--states", type=int, default=8)
    parser.add_argument("--steps", type=int, default=1600)
    parser.add_argument("--warmup", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--without", action="store_true", help="take the recurrence away")
    parser.add_argument("--fixed", action="store_true", help="take the selection away")
    parser.add_argument("--out", type=Path, default=Path("runs/ssm"))
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    return parser.parse_args()


def draw_sequences(args: argparse.Namespace, draw: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Noise with tokens at random places, then places that ask for them, in order.

    Ids: 0 is noise, 1 to `kinds` are tokens, the last asks; ids (b places + kept), tokens (b kept) below `kinds`.
    """
    token = torch.randint(args.kinds, (args.batch, args.kept), generator=draw)
    at = torch.rand(args.batch, args.places, generator=draw).argsort(1)[:, : args.kept].sort(1).values
    seen = torch.zeros(args.batch, args.places, dtype=torch.long).scatter(1, at, token + 1)
    ask = torch.full((args.batch, args.kept), args.kinds + 1)
    return torch.cat([seen, ask], dim=1), token


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * self.scale


class FromToken(nn.Module):
    """A linear function of the token where the model selects, else one vector for all."""

    def __init__(self, inputs: int, outputs: int, selective: bool) -> None:
        super().__init__()
        self.selective = selective
        self.b = nn.Parameter(torch.zeros(outputs) if selective else torch.randn(outputs) * outputs**-0.5)
        if selective:
            self.w = nn.Parameter(torch.randn(outputs, inputs) * inputs**-0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.w, self.b) if self.selective else self.b.expand(*x.shape[:2], -1)


class StateSpace(nn.Module):
    def __init__(self, inner: int, states: int, selective: bool, recurrent: bool) -> None:
        super().__init__()
        self.recurrent = recurrent
        self.log_rate = nn.Parameter(torch.arange(1.0, states + 1).log().repeat(inner, 1))
        # The softplus of these is between 0.001 and 0.1.
        self.pace = nn.Parameter((0.001 * 100.0 ** torch.rand(inner)).expm1().log())
        self.dt = FromToken(inner, inner, selective)
        self.write = FromToken(inner, states, selective)
        self.read = FromToken(inner, states, selective)
        self.skip = nn.Parameter(torch.ones(inner))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x (b t inner) -> (b t inner), by a recurrence over t."""
        dt = F.softplus(self.pace + self.dt(x))
        keep = torch.exp(-dt[..., None] * self.log_rate.exp())
        states = (dt * x)[..., None] * self.write(x)[:, :, None]
        if self.recurrent:
            h, found = torch.zeros_like(keep[:, 0]), []
            for kept, written in zip(keep.unbind(1), states.unbind(1), strict=True):
                h = kept * h + written
                found.append(h)
            states = torch.stack(found, dim=1)
        return torch.einsum("btis,bts->bti", states, self.read(x)) + x * self.skip


class Block(nn.Module):
    def __init__(self, width: int, inner: int, states: int, selective: bool, recurrent: bool) -> None:
        super().__init__()
        self.norm = RMSNorm(width)
        self.into = nn.Linear(width, inner, bias=False)
        self.conv = nn.Conv1d(inner, inner, 4, padding=3, groups=inner, bias=False)
        self.ssm = StateSpace(inner, states, selective, recurrent)
        self.out = nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        u = self.into(self.norm(x)).transpose(1, 2)
        u = self.conv(u)[:, :, : x.shape[1]].transpose(1, 2)  # each channel mixes with its last four
        return x + self.out(self.ssm(F.silu(u)))


class Net(nn.Module):
    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.places = args.places
        self.table = nn.Embedding(args.kinds + 2, args.width)
        self.blocks = nn.ModuleList(
            Block(args.width, args.inner, args.states, not args.fixed, not args.without) for _ in range(args.layers)
        )
        self.norm = RMSNorm(args.width)
        self.head = nn.Linear(args.width, args.kinds)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=module.in_features**-0.5)
        nn.init.zeros_(self.head.bias)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x[:, self.places :]))


def score(model: nn.Module, args: argparse.Namespace, draw: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss and the accuracy of freshly drawn sequences."""
    ids, token = draw_sequences(args, draw)
    logits = model(ids)
    hit = (logits.argmax(-1) == token).float().mean()
    return F.cross_entropy(logits.flatten(0, 1), token.flatten()), hit


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
    model = Net(args)
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
            if step == 1 or step % 250 == 0 or step == args.steps:
                record |= evaluate(model, args)
                print(" ".join(f"{key} {value:.4g}" for key, value in record.items()), flush=True)
            metrics.write(json.dumps(record) + "\n")
    save(checkpoint, args.steps, model, optimizer, draw)


if __name__ == "__main__":
    main()
