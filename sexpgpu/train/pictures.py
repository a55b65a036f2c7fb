"""Pictures of a generator as one sheet, which `sexpgpu.train.generation` saves."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sexpgpu.ir.opdef import Array

COLUMNS = 16
GAP = 0.25
"""How bright the lines between pictures are."""


def sheet(pictures: Array) -> np.ndarray:
    """Pictures in rows of 16, a line between them, enlarged to 128 pixels each or a sheet 1,024 wide.

    Shapes: (n h w), (n h w 1), (n h w 3), or (n h·h) for square ones; values from 0 to 1, others are clipped and NaN
    is black. The result is u8, (H W) or (H W 3).
    """
    shown = np.clip(np.nan_to_num(np.asarray(pictures, np.float32)), 0, 1)
    if shown.ndim == 2:
        side = round(shown.shape[1] ** 0.5)
        shown = shown.reshape(-1, side, side)
    if shown.ndim == 4 and shown.shape[-1] == 1:
        shown = shown[..., 0]
    num, height, width = shown.shape[:3]
    columns = min(num, COLUMNS)
    rows = -(-num // columns)
    page = np.full((rows * (height + 1) - 1, columns * (width + 1) - 1, *shown.shape[3:]), GAP, np.float32)
    for index, picture in enumerate(shown):
        top, left = index // columns * (height + 1), index % columns * (width + 1)
        page[top : top + height, left : left + width] = picture
    scale = max(1, min(128 // height, 1024 // page.shape[1]))
    return (page * 255).round().astype(np.uint8).repeat(scale, 0).repeat(scale, 1)


def save_pictures(path: Path, pictures: Array) -> None:
    """Write the `sheet` of pictures as a PNG."""
    from PIL import Image

    Image.fromarray(sheet(pictures)).save(path)
