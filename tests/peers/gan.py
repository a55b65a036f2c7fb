"""gan.py: one network makes 8 x 8 digits and one tells them from scans; the experiment of examples/gan.sx.

python examples/make_digits.py digits.npz
python tests/peers/gan.py --digits digits.npz
"""

import argparse
import json
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
    parser.add_argument("--latent", type=int, default=32)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/gan"))
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


class Maker(nn.Module):
    def __init__(self, latent: int, width: int) -> None:
        super().__init__()
        self.latent = latent
        self.layers = nn.Sequential(
            he_linear(latent, width),
            nn.ReLU(),
            he_linear(width, width),
            nn.ReLU(),
            lecun_linear(width, 64),
            nn.Sigmoid(),
        )

    def forward(self, num: int) -> torch.Tensor:
        """As many pictures (num 64) from 0 to 1."""
        return self.layers(torch.randn(num, self.latent))


class Critic(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            he_linear(64, width),
            nn.LeakyReLU(0.2),
            he_linear(width, width),
            nn.LeakyReLU(0.2),
            lecun_linear(width, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).squeeze(1)


def critic_loss(critic: Critic, real: torch.Tensor, fake: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss, with a penalty on the slope at real pictures, and how often the critic is right."""
    real = real.clone().requires_grad_()
    on_real, on_fake = critic(real), critic(fake)
    (slope,) = torch.autograd.grad(on_real.sum(), real, create_graph=True)
    penalty = slope.square().sum(1).mean()
    loss = F.softplus(-on_real).mean() + F.softplus(on_fake).mean() + 0.5 * penalty
    told = (torch.cat([on_real, -on_fake]) > 0).float().mean()
    return loss, told


def energy_distance(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Of two sets of n pictures (n 64) each: 0 on average where both are drawn alike."""
    fair = len(x) / (len(x) - 1)
    return 2 * torch.cdist(x, y).mean() - fair * (torch.cdist(x, x).mean() + torch.cdist(y, y).mean())


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


@torch.no_grad()
def evaluate(maker: Maker, images: torch.Tensor, seed: int, batch: int = 60) -> float:
    """The mean over batches; the draws are the same each time, and leave those of training alone."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        whole = [image for image in images.split(batch) if len(image) == batch]
        return torch.stack([energy_distance(maker(batch), image) for image in whole]).mean().item()


def save_pictures(path: Path, pictures: torch.Tensor, columns: int = 16, scale: int = 7) -> None:
    """Pictures (n 64) from 0 to 1 as a sheet, 16 in a row with lines between them."""
    framed = F.pad(pictures.clamp(0, 1).view(-1, columns, 8, 8), (0, 1, 0, 1), value=0.25)
    page = framed.permute(0, 2, 1, 3).reshape(-1, 9 * columns)[:-1, :-1]
    pixels = (255 * page).round().to(torch.uint8).numpy()
    path.parent.mkdir(exist_ok=True)
    Image.fromarray(pixels.repeat(scale, 0).repeat(scale, 1)).save(path)


def main() -> None:
    args = parse_arguments()
    torch.manual_seed(args.seed)
    images, test = load_digits(args.digits)
    maker = Maker(args.latent, args.width)
    critic = Critic(args.width)
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=5e-4, betas=(0.5, 0.99))
    maker_optimizer = torch.optim.Adam(maker.parameters(), lr=5e-4, betas=(0.5, 0.99))
    parts = {
        "maker": maker,
        "critic": critic,
        "maker_optimizer": maker_optimizer,
        "critic_optimizer": critic_optimizer,
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
            rows = rows_of_step(step, len(images), args.batch, args.seed)
            loss, told = critic_loss(critic, images[rows], maker(args.batch).detach())
            critic_optimizer.zero_grad()
            loss.backward()
            critic_optimizer.step()

            critic.requires_grad_(False)
            maker_loss = F.softplus(-critic(maker(args.batch))).mean()
            maker_optimizer.zero_grad()
            maker_loss.backward()
            maker_optimizer.step()
            critic.requires_grad_(True)
            if not torch.isfinite(loss + maker_loss):
                raise RuntimeError(f"a loss of step {step} is not finite")

            record = {
                "step": step,
                "train/critic-loss": loss.item(),
                "train/told": told.item(),
                "train/maker-loss": maker_loss.item(),
            }
            if step == 1 or step % 500 == 0 or step == args.steps:
                record["test/distance"] = evaluate(maker, test, args.seed)
                print(" ".join(f"{key} {value:.4g}" for key, value in record.items()), flush=True)
                state = {name: part.state_dict() for name, part in parts.items()}
                state |= {"step": step, "random": torch.get_rng_state()}
                torch.save(state, checkpoint.with_suffix(".new"))
                os.replace(checkpoint.with_suffix(".new"), checkpoint)
            metrics.write(json.dumps(record) + "\n")
            if step == 1 or step % 1000 == 0 or step == args.steps:
                with torch.no_grad():
                    save_pictures(args.out / "samples" / f"drawn-{step:08d}.png", maker(128))


if __name__ == "__main__":
    main()
