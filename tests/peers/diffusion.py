"""diffusion.py: denoising diffusion draws 8 x 8 digits; the experiment of examples/diffusion.sx.

python examples/make_digits.py digits.npz
python tests/peers/diffusion.py --digits digits.npz
"""

import argparse
import copy
import json
import math
import os
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--digits", default="digits.npz", help="an .npz with image (n 64) from 0 to 1")
    parser.add_argument("--trips", type=int, default=200)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/diffusion"))
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    return parser.parse_args()


def signal(t: torch.Tensor, trips: int) -> torch.Tensor:
    """How much of a picture is left after stage t, as a part of its variance."""
    return torch.cos(math.pi / 2 * (t / trips + 0.008) / 1.008).square()


def linear(num_in: int, num_out: int, zero: bool = False) -> nn.Linear:
    layer = nn.Linear(num_in, num_out)
    nn.init.normal_(layer.weight, std=0.0 if zero else num_in**-0.5)
    nn.init.zeros_(layer.bias)
    return layer


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.time = linear(width, width)
        self.up = linear(width, width)
        self.down = linear(width, width, zero=True)

    def forward(self, h: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        y = F.silu(self.norm(h) + self.time(time))
        return h + self.down(F.silu(self.up(y)))


class Denoiser(nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.register_buffer("pace", 0.5 ** (0.5 * torch.arange(16)))
        self.time = linear(32, width)
        self.input = linear(64, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.output = linear(width, 64, zero=True)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        """Noise (b 64) in pictures (b 64) of stages t (b)."""
        turn = t.unsqueeze(1) * self.pace
        time = F.silu(self.time(torch.cat([turn.sin(), turn.cos()], dim=1)))
        h = self.input(x)
        for block in self.blocks:
            h = block(h, time)
        return self.output(self.norm(h))


def denoise_errors(model: Denoiser, image: torch.Tensor, trips: int) -> torch.Tensor:
    """The squared error of each picture at a random stage."""
    x = 2 * image - 1
    t = torch.ceil(trips * torch.rand(len(x)))
    keep = signal(t, trips).unsqueeze(1)
    noise = torch.randn_like(x)
    found = model(keep.sqrt() * x + (1 - keep).sqrt() * noise, t)
    return (found - noise).square().mean(1)


def load_digits(path: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Images to train on, and those of the last fifth."""
    images = torch.from_numpy(np.load(path)["image"]).float()
    cut = int(0.8 * len(images))
    return images[:cut], images[cut:]


def rows_of_step(step: int, num_rows: int, batch: int, seed: int) -> torch.Tensor:
    """Which rows a step reads: an order for each epoch, so that a resumed run reads what it would have read."""
    epoch, place = divmod(step - 1, num_rows // batch)
    order = torch.randperm(num_rows, generator=torch.Generator().manual_seed(1_000_003 * seed + epoch))
    return order[place * batch : (place + 1) * batch]


def learning_rate(step: int, steps: int, peak: float = 2e-3, warmup: int = 100) -> float:
    if step < warmup:
        return peak * step / warmup
    done = min(1.0, (step - warmup) / max(1, steps - warmup))
    return 0.5 * peak * (1 + math.cos(math.pi * done))


@torch.no_grad()
def update_average(average: nn.Module, model: nn.Module, step: int) -> None:
    decay = min(0.999, (step + 1) / (step + 10))
    for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
        slow.lerp_(fast, 1 - decay)


@torch.no_grad()
def evaluate(model: Denoiser, images: torch.Tensor, batch: int, trips: int, seed: int) -> float:
    """The mean over all images; the draws are the same each time, and leave those of training alone."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return torch.cat([denoise_errors(model, image, trips) for image in images.split(batch)]).mean().item()


@torch.no_grad()
def draw(model: Denoiser, trips: int, num: int = 128) -> torch.Tensor:
    """Pictures (num 64) from 0 to 1, out of noise, stage by stage."""
    x = torch.randn(num, 64)
    for trip in range(trips):
        t = torch.tensor(float(trips - trip))
        keep, more = signal(t, trips), signal(t - 1, trips)
        noise = model(x, t.expand(num))
        clean = ((x - (1 - keep).sqrt() * noise) / keep.sqrt()).clamp(-1, 1)
        noise = (x - keep.sqrt() * clean) / (1 - keep).sqrt()
        anew = (1 - more) / (1 - keep) * (1 - keep / more)
        x = more.sqrt() * clean + (1 - more - anew).sqrt() * noise + anew.sqrt() * torch.randn_like(x)
    return (clean + 1) / 2


def save_pictures(path: Path, pictures: torch.Tensor, columns: int = 16, scale: int = 7) -> None:
    """Pictures (n 64) from 0 to 1 as a sheet, 16 in a row with lines between them."""
    framed = F.pad(pictures.clamp(0, 1).view(-1, columns, 8, 8), (0, 1, 0, 1), value=0.25)
    page = framed.permute(0, 2, 1, 3).reshape(-1, 9 * columns)[:-1, :-1]
    pixels = (255 * page).round().to(torch.uint8).numpy()
    path.parent.mkdir(exist_ok=True)
    Image.fromarray(pixels.repeat(scale, 0).repeat(scale, 1)).save(path)


def save_checkpoint(
    path: Path, step: int, model: nn.Module, average: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    state = {
        "step": step,
        "model": model.state_dict(),
        "average": average.state_dict(),
        "optimizer": optimizer.state_dict(),
        "random": torch.get_rng_state(),
    }
    torch.save(state, path.with_suffix(".new"))
    os.replace(path.with_suffix(".new"), path)


def main() -> None:
    args = parse_arguments()
    torch.manual_seed(args.seed)
    images, test = load_digits(args.digits)
    model = Denoiser(args.width, args.layers)
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.01)
    args.out.mkdir(parents=True, exist_ok=True)
    checkpoint, first = args.out / "checkpoint.pt", 1
    if args.resume:
        state = torch.load(checkpoint)
        model.load_state_dict(state["model"])
        average.load_state_dict(state["average"])
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"])
        first = state["step"] + 1

    with open(args.out / "metrics.jsonl", "a" if args.resume else "w") as metrics:
        for step in range(first, args.steps + 1):
            rows = rows_of_step(step, len(images), args.batch, args.seed)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, args.steps)
            loss = denoise_errors(model, images[rows], args.trips).mean()
            optimizer.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
            optimizer.step()
            update_average(average, model, step)

            record = {"step": step, "train/loss": loss.item(), "train/gradient-norm": norm.item()}
            if step == 1 or step % 500 == 0 or step == args.steps:
                record["test/denoise"] = evaluate(average, test, args.batch, args.trips, args.seed)
                print(" ".join(f"{key} {value:.4g}" for key, value in record.items()), flush=True)
                save_checkpoint(checkpoint, step, model, average, optimizer)
            metrics.write(json.dumps(record) + "\n")
            if step == 1 or step % 1500 == 0 or step == args.steps:
                save_pictures(args.out / "samples" / f"drawn-{step:08d}.png", draw(average, args.trips))


if __name__ == "__main__":
    main()
