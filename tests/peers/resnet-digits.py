"""resnet-digits.py: a residual network with batch norm reads 8 x 8 digits; the experiment of examples/resnet-digits.sx.

python examples/make_digits.py digits.npz
python tests/peers/resnet-digits.py --digits digits.npz
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
    parser.add_argument("--widths", type=int, nargs="+", default=[16, 32, 64])
    parser.add_argument("--units", type=int, default=1, help="of each width")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/resnet-digits"))
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    return parser.parse_args()


class ConvNorm(nn.Module):
    """A convolution without a bias, and batch norm."""

    def __init__(self, num_in: int, num_out: int, stride: int = 1, kernel: int = 3) -> None:
        super().__init__()
        self.conv = nn.Conv2d(num_in, num_out, kernel, stride, padding=kernel // 2, bias=False)
        self.norm = nn.BatchNorm2d(num_out)
        nn.init.kaiming_normal_(self.conv.weight, nonlinearity="relu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.conv(x))


class Unit(nn.Module):
    def __init__(self, num_in: int, num_out: int, stride: int) -> None:
        super().__init__()
        self.a = ConvNorm(num_in, num_out, stride)
        self.b = ConvNorm(num_out, num_out)
        self.skip = nn.Identity() if num_in == num_out else ConvNorm(num_in, num_out, stride, kernel=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.skip(x) + self.b(F.relu(self.a(x))))


class ResNet(nn.Module):
    def __init__(self, widths: list[int], units: int) -> None:
        super().__init__()
        self.stem = ConvNorm(1, widths[0])
        layers, num_in = [], widths[0]
        for i, width in enumerate(widths):
            for j in range(units):
                layers.append(Unit(num_in, width, 2 if i > 0 and j == 0 else 1))
                num_in = width
        self.units = nn.Sequential(*layers)
        self.head = nn.Linear(num_in, 10)
        nn.init.normal_(self.head.weight, std=num_in**-0.5)
        nn.init.zeros_(self.head.bias)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.units(F.relu(self.stem(image.view(-1, 1, 8, 8))))
        return self.head(x.mean((2, 3)))


def load_digits(path: str) -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """Images and labels to train on, and those of the last fifth."""
    arrays = np.load(path)
    images = torch.from_numpy(arrays["image"]).float()
    labels = torch.from_numpy(arrays["label"]).long()
    cut = int(0.8 * len(images))
    return (images[:cut], labels[:cut]), (images[cut:], labels[cut:])


def rows_of_step(step: int, num_rows: int, batch: int, seed: int) -> torch.Tensor:
    """Which rows a step reads: an order for each epoch, so that a resumed run reads what it would have read."""
    epoch, place = divmod(step - 1, num_rows // batch)
    order = torch.randperm(num_rows, generator=torch.Generator().manual_seed(1_000_003 * seed + epoch))
    return order[place * batch : (place + 1) * batch]


def learning_rate(step: int, steps: int, peak: float = 0.1, warmup: int = 20) -> float:
    if step < warmup:
        return peak * step / warmup
    done = min(1.0, (step - warmup) / max(1, steps - warmup))
    return 0.5 * peak * (1 + math.cos(math.pi * done))


@torch.no_grad()
def evaluate(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, batch: int) -> dict[str, float]:
    model.eval()
    loss, hits = 0.0, 0
    for image, label in zip(images.split(batch), labels.split(batch), strict=True):
        logits = model(image)
        loss += F.cross_entropy(logits, label, reduction="sum").item()
        hits += (logits.argmax(1) == label).sum().item()
    model.train()
    return {"test/nll": loss / len(images), "test/accuracy": hits / len(images)}


def save_checkpoint(path: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    state = {
        "step": step,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "random": torch.get_rng_state(),
    }
    torch.save(state, path.with_suffix(".new"))
    os.replace(path.with_suffix(".new"), path)


def main() -> None:
    args = parse_arguments()
    torch.manual_seed(args.seed)
    (images, labels), test = load_digits(args.digits)
    model = ResNet(args.widths, args.units)
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": 5e-4}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True)
    args.out.mkdir(parents=True, exist_ok=True)
    checkpoint, first = args.out / "checkpoint.pt", 1
    if args.resume:
        state = torch.load(checkpoint)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"])
        first = state["step"] + 1

    with open(args.out / "metrics.jsonl", "a" if args.resume else "w") as metrics:
        for step in range(first, args.steps + 1):
            rows = rows_of_step(step, len(images), args.batch, args.seed)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, args.steps)
            logits = model(images[rows])
            loss = F.cross_entropy(logits, labels[rows])
            if not torch.isfinite(loss):
                raise RuntimeError(f"the loss of step {step} is not finite")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

            accuracy = (logits.argmax(1) == labels[rows]).float().mean().item()
            record = {"step": step, "train/loss": loss.item(), "train/accuracy": accuracy}
            if step == 1 or step % 100 == 0 or step == args.steps:
                record |= evaluate(model, *test, args.batch)
                print(" ".join(f"{key} {value:.4g}" for key, value in record.items()), flush=True)
                save_checkpoint(checkpoint, step, model, optimizer)
            metrics.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
