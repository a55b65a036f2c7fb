"""contrastive.py: a network learns 8 x 8 digits without labels; the experiment of examples/contrastive.sx.

python examples/make_digits.py digits.npz
python tests/peers/contrastive.py --digits digits.npz
"""

import argparse
import json
import math
import os
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--digits", default="digits.npz", help="an .npz with image (n 64) from 0 to 1, and label (n)")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--heat", type=float, default=0.2)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/contrastive"))
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    return parser.parse_args()


def shift_randomly(images: torch.Tensor) -> torch.Tensor:
    """Images (b h w), each moved by -1, 0 or 1 places along both axes, with zeros behind it."""
    num, height, width = images.shape
    padded = F.pad(images, (1, 1, 1, 1))
    down = torch.randint(3, (num, 1, 1)) + torch.arange(height).view(1, -1, 1)
    right = torch.randint(3, (num, 1, 1)) + torch.arange(width).view(1, 1, -1)
    return padded[torch.arange(num).view(-1, 1, 1), down, right]


def view(images: torch.Tensor) -> torch.Tensor:
    """Images (b h w), shifted, lighter or darker, and noisy."""
    light = 0.7 + 0.6 * torch.rand(len(images), 1, 1)
    return light * shift_randomly(images) + 0.1 * torch.randn_like(images)


def initialise(layer: nn.Linear | nn.Conv2d, gain: float = 2.0) -> None:
    fan_in = layer.weight[0].numel()
    nn.init.normal_(layer.weight, std=(gain / fan_in) ** 0.5)
    nn.init.zeros_(layer.bias)


class Encoder(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.out = nn.Linear(256, width)
        for layer in (self.conv1, self.conv2, self.out):
            initialise(layer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x.unsqueeze(1))), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return F.relu(self.out(x.flatten(1)))


class Head(nn.Module):
    """Features to a direction: only this is compared, and only the encoder is kept."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.input = nn.Linear(width, width)
        self.out = nn.Linear(width, 32)
        initialise(self.input)
        initialise(self.out, gain=1.0)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return F.normalize(self.out(F.relu(self.input(h))), dim=1)


def contrastive_loss(
    encoder: Encoder, head: Head, images: torch.Tensor, heat: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss, and how often the other view of a picture is the nearest of all."""
    num = len(images)
    z = torch.cat([head(encoder(view(images))), head(encoder(view(images)))])
    logits = (z @ z.T / heat).masked_fill(torch.eye(2 * num, dtype=torch.bool), -1e9)
    other = (torch.arange(2 * num) + num) % (2 * num)
    found = (logits.argmax(1) == other).float().mean()
    return F.cross_entropy(logits, other), found


def load_digits(path: str) -> tuple[torch.Tensor, torch.Tensor]:
    arrays = np.load(path)
    images = torch.from_numpy(arrays["image"]).float()
    return images.view(-1, 8, 8), torch.from_numpy(arrays["label"]).long()


def rows_of_step(step: int, num_rows: int, batch: int, seed: int) -> torch.Tensor:
    """Which rows a step reads: an order for each epoch, so that a resumed run reads what it would have read."""
    epoch, place = divmod(step - 1, num_rows // batch)
    order = torch.randperm(num_rows, generator=torch.Generator().manual_seed(1_000_003 * seed + epoch))
    return order[place * batch : (place + 1) * batch]


def learning_rate(step: int, steps: int, peak: float = 2e-3, warmup: int = 20) -> float:
    if step < warmup:
        return peak * step / warmup
    done = min(1.0, (step - warmup) / max(1, steps - warmup))
    return 0.5 * peak * (1 + math.cos(math.pi * done))


@torch.no_grad()
def evaluate(
    encoder: Encoder, probe: nn.Linear, images: torch.Tensor, labels: torch.Tensor, batch: int
) -> dict[str, float]:
    logits = torch.cat([probe(encoder(image)) for image in images.split(batch)])
    accuracy = (logits.argmax(1) == labels).float().mean().item()
    return {"test/loss": F.cross_entropy(logits, labels).item(), "test/accuracy": accuracy}


def main() -> None:
    args = parse_arguments()
    torch.manual_seed(args.seed)
    images, labels = load_digits(args.digits)
    num_train, num_labelled = int(0.8 * len(images)), int(0.08 * len(images))
    test = images[num_train:], labels[num_train:]
    encoder, head, probe = Encoder(args.width), Head(args.width), nn.Linear(args.width, 10)
    initialise(probe, gain=1.0)
    optimizer = torch.optim.AdamW([*encoder.parameters(), *head.parameters()], weight_decay=0.01)
    probe_optimizer = torch.optim.AdamW(probe.parameters(), weight_decay=0.01)
    parts = {
        "encoder": encoder,
        "head": head,
        "probe": probe,
        "optimizer": optimizer,
        "probe_optimizer": probe_optimizer,
    }
    args.out.mkdir(parents=True, exist_ok=True)
    checkpoint, first = args.out / "checkpoint.pt", 1
    if args.resume:
        state = torch.load(checkpoint)
        for name, part in parts.items():
            part.load_state_dict(state[name])
        torch.set_rng_state(state["random"])
        first = state["step"] + 1

    with open(args.out / "metrics.jsonl", "a" if args.resume else "w") as metrics:
        for step in range(first, args.steps + 1):
            rate = learning_rate(step, args.steps)
            optimizer.param_groups[0]["lr"] = rate
            probe_optimizer.param_groups[0]["lr"] = 5 * rate
            rows = rows_of_step(step, num_train, args.batch, args.seed)
            loss, found = contrastive_loss(encoder, head, images[rows], args.heat)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

            rows = rows_of_step(step, num_labelled, 32, args.seed)
            with torch.no_grad():
                features = encoder(images[rows])
            logits = probe(features)
            probe_loss = F.cross_entropy(logits, labels[rows])
            probe_optimizer.zero_grad()
            probe_loss.backward()
            probe_optimizer.step()
            if not torch.isfinite(loss + probe_loss):
                raise RuntimeError(f"a loss of step {step} is not finite")

            record = {
                "step": step,
                "train/loss": loss.item(),
                "train/found": found.item(),
                "train/probe-loss": probe_loss.item(),
                "train/probe-accuracy": (logits.argmax(1) == labels[rows]).float().mean().item(),
            }
            if step == 1 or step % 100 == 0 or step == args.steps:
                record |= evaluate(encoder, probe, *test, args.batch)
                print(" ".join(f"{key} {value:.4g}" for key, value in record.items()), flush=True)
                state = {name: part.state_dict() for name, part in parts.items()}
                state |= {"step": step, "random": torch.get_rng_state()}
                torch.save(state, checkpoint.with_suffix(".new"))
                os.replace(checkpoint.with_suffix(".new"), checkpoint)
            metrics.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
