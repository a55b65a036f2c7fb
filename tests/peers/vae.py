"""vae.py: a variational autoencoder of 8 x 8 digits; the experiment of examples/vae.sx.

python examples/make_digits.py digits.npz
python tests/peers/vae.py --digits digits.npz
"""

import argparse
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
    parser.add_argument("--latent", type=int, default=8)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/vae"))
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    return parser.parse_args()


def he_linear(num_in: int, num_out: int) -> nn.Linear:
    layer = nn.Linear(num_in, num_out)
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    nn.init.zeros_(layer.bias)
    return layer


def lecun_linear(num_in: int, num_out: int) -> nn.Linear:
    layer = nn.Linear(num_in, num_out)
    nn.init.normal_(layer.weight, std=num_in**-0.5)
    nn.init.zeros_(layer.bias)
    return layer


class VAE(nn.Module):
    def __init__(self, latent: int, width: int) -> None:
        super().__init__()
        self.latent = latent
        self.encoder = nn.Sequential(he_linear(64, width), nn.ReLU(), he_linear(width, width), nn.ReLU())
        self.mean = lecun_linear(width, latent)
        self.log_variance = lecun_linear(width, latent)
        self.decoder = nn.Sequential(
            he_linear(latent, width),
            nn.ReLU(),
            he_linear(width, width),
            nn.ReLU(),
            lecun_linear(width, 64),
        )

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What the decoder misses and the divergence from the prior, in nats, of each digit."""
        x = torch.bernoulli(image)
        h = self.encoder(x)
        mean, log_variance = self.mean(h), self.log_variance(h)
        z = mean + torch.exp(0.5 * log_variance) * torch.randn_like(mean)
        missed = F.binary_cross_entropy_with_logits(self.decoder(z), x, reduction="none").sum(1)
        kl = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1)
        return missed, kl

    @torch.no_grad()
    def dreams(self) -> torch.Tensor:
        """Digits that nobody wrote."""
        return torch.sigmoid(self.decoder(torch.randn(128, self.latent)))

    @torch.no_grad()
    def walk(self) -> torch.Tensor:
        """A row for each of eight pairs of draws, and the way from the one to the other."""
        start, end = torch.randn(2, 8, 1, self.latent)
        at = torch.linspace(0, 1, 16).view(1, 16, 1)
        return torch.sigmoid(self.decoder(torch.lerp(start, end, at).flatten(0, 1)))


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


def learning_rate(step: int, steps: int, peak: float = 2e-3, warmup: int = 50) -> float:
    if step < warmup:
        return peak * step / warmup
    done = min(1.0, (step - warmup) / max(1, steps - warmup))
    return 0.5 * peak * (1 + math.cos(math.pi * done))


@torch.no_grad()
def evaluate(model: VAE, images: torch.Tensor, batch: int, seed: int) -> dict[str, float]:
    """Means over all images; the draws are the same each time, and leave those of training alone."""
    model.eval()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        parts = [torch.stack(model(image)) for image in images.split(batch)]
    model.train()
    missed, kl = torch.cat(parts, dim=1).mean(1).tolist()
    return {"test/bound": missed + kl, "test/rebuild": missed, "test/kl": kl}


def save_pictures(path: Path, pictures: torch.Tensor, columns: int = 16, scale: int = 7) -> None:
    """Pictures (n 64) from 0 to 1 as a sheet, 16 in a row with lines between them."""
    framed = F.pad(pictures.clamp(0, 1).view(-1, columns, 8, 8), (0, 1, 0, 1), value=0.25)
    page = framed.permute(0, 2, 1, 3).reshape(-1, 9 * columns)[:-1, :-1]
    pixels = (255 * page).round().to(torch.uint8).numpy()
    path.parent.mkdir(exist_ok=True)
    Image.fromarray(pixels.repeat(scale, 0).repeat(scale, 1)).save(path)


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
    images, test = load_digits(args.digits)
    model = VAE(args.latent, args.width)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.01)
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
            missed, kl = (each.mean() for each in model(images[rows]))
            loss = missed + kl
            if not torch.isfinite(loss):
                raise RuntimeError(f"the loss of step {step} is not finite")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

            record = {"step": step, "train/loss": loss.item(), "train/rebuild": missed.item(), "train/kl": kl.item()}
            if step == 1 or step % 500 == 0 or step == args.steps:
                record |= evaluate(model, test, args.batch, args.seed)
                print(" ".join(f"{key} {value:.4g}" for key, value in record.items()), flush=True)
                save_checkpoint(checkpoint, step, model, optimizer)
            metrics.write(json.dumps(record) + "\n")
            if step == 1 or step % 2000 == 0 or step == args.steps:
                save_pictures(args.out / "samples" / f"dreams-{step:08d}.png", model.dreams())
                save_pictures(args.out / "samples" / f"walk-{step:08d}.png", model.walk())


if __name__ == "__main__":
    main()
