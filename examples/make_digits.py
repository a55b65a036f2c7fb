"""Writes digits.npz for the examples that read digits: `image` (n 64), f32 from 0 to 1, and `label` (n), i32.

The digits are scikit-learn's where it is installed (1,797 scans of 8 x 8, part of that package), otherwise noisy
copies of ten drawn ones. Nothing is downloaded.

    python examples/make_digits.py [PATH]
"""

import sys
from pathlib import Path

import numpy as np

GLYPHS = (
    " ####    ##    ####   ####     ##  #####   ####  ######  ####   #### ",
    "##  ##  ###   ##  ## ##  ##   ###  ##     ##         ## ##  ## ##  ##",
    "##  ##   ##      ##     ##   # ##  #####  #####     ##   ####  ##  ##",
    "##  ##   ##     ##       ## ######     ## ##  ##   ##   ##  ##  #####",
    "##  ##   ##    ##    ##  ##    ##  ##  ## ##  ##  ##    ##  ##     ##",
    " ####   ####  ######  ####     ##   ####   ####   ##     ####   #### ",
)
"""Ten digits side by side, six wide with a gap of one: what stands in for scans."""


def scanned() -> tuple[np.ndarray, np.ndarray] | None:
    """The digits of scikit-learn, in its order; None where it is not installed."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        return None
    digits = load_digits()
    return digits.data / 16.0, digits.target


def drawn(num_rows: int = 1800, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Drawn digits, shifted by up to a pixel and covered with noise."""
    drawing = np.array([[sign != " " for sign in line] for line in GLYPHS])
    glyphs = np.zeros((10, 8, 8))
    for digit in range(10):
        glyphs[digit, 1:7, 1:7] = drawing[:, 7 * digit : 7 * digit + 6]
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, 10, num_rows)
    shifts = draw.integers(-1, 2, (num_rows, 2))
    images = np.stack([np.roll(glyphs[k], shift, (0, 1)) for k, shift in zip(labels, shifts, strict=True)])
    noisy = np.clip(0.8 * images + 0.25 * draw.standard_normal(images.shape), 0, 1)
    return noisy.reshape(num_rows, 64), labels


def main() -> None:
    """Write the file that the command line names."""
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("digits.npz")
    found = scanned()
    images, labels = found or drawn()
    np.savez(path, image=images.astype(np.float32), label=labels.astype(np.int32))
    origin = "scanned, from scikit-learn" if found else "drawn, since scikit-learn is not installed"
    print(f"{path}: {len(labels)} digits, {origin}")


if __name__ == "__main__":
    main()
