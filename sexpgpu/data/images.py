"""Pictures: PNG, PPM and JPEG files, read by Pillow, a row each.

Opening looks at names and headers; a picture is decoded when a batch first needs it, and kept as bytes while all of
them fit in `KEPT_BYTES`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Never

import numpy as np
from numpy.typing import NDArray

from sexpgpu.data.faults import DAMAGED, TOO_SHORT, fail
from sexpgpu.data.files import find_files, identify_files, open_file, sampled_offsets
from sexpgpu.data.spec import ImagesSpec

SUFFIXES = (".png", ".ppm", ".pgm", ".pnm", ".jpg", ".jpeg")
KEPT_BYTES = 1 << 30
NUM_CHECKED = 1000
"""Of so many pictures the header is looked at when they are opened, the first and the last among them."""
CUT_MODES = ("I", "F")
"""How Pillow calls pictures of more than 8 bits a channel begins with one of these."""


class Images:
    """Pictures with the class that their folder names.

    Shapes: fields `image` f32 `[height, width, channels]`, from 0 to 1: stored bytes over 255; `label` i32 `[]`.
    classes: the names of the folders, sorted; the place of a name is its label.
    """

    def __init__(self, spec: ImagesSpec, paths: Sequence[Path]) -> None:
        self.spec = spec
        self.paths = tuple(paths)
        self.classes = tuple(sorted({path.parent.name for path in paths}))
        id_of = {name: i for i, name in enumerate(self.classes)}
        self.labels = np.array([id_of[path.parent.name] for path in paths], np.int32)
        self._size = spec.size or _size(self.paths[0])
        for place in sampled_offsets(len(paths), 1, NUM_CHECKED - 2):
            self._check(self.paths[place], _size(self.paths[place]))
        shape = (*self._size, spec.channels)
        self.schema: dict[str, tuple[str, tuple[int, ...]]] = {"image": ("f32", shape), "label": ("i32", ())}
        kept = len(paths) * int(np.prod(shape)) <= KEPT_BYTES
        self._pixels = np.empty((len(paths), *shape), np.uint8) if kept else None
        self._known = np.zeros(len(paths), np.bool_)

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def name(self) -> str:
        """The path as it was written."""
        return self.spec.path

    @property
    def vocabulary(self) -> int:
        """How many classes there are."""
        return len(self.classes)

    def take(self, name: str, rows_B: NDArray[np.int64]) -> NDArray[Any]:
        """Rows of one field.

        Shapes: rows_B `[B]` → a new `[B, height, width, channels]` f32, or `[B]` i32.
        Raises: E-DATA-002 (a damaged picture, or one of another size).
        """
        if name == "label":
            return self.labels[rows_B]
        pixels_BHWC = np.stack([self._picture(int(row)) for row in rows_B])
        return pixels_BHWC.astype(np.float32) / np.float32(255)

    def identity(self) -> dict[str, Any]:
        """What the experiment's digest knows of this data; the folder of a picture belongs to its name."""
        files = identify_files(self.paths)
        for path, file in zip(self.paths, files, strict=True):
            file["name"] = f"{path.parent.name}/{path.name}"
        return {"kind": "images", "size": self.spec.size, "channels": self.spec.channels, "files": files}

    def _picture(self, row: int) -> NDArray[np.uint8]:
        """Shapes: `[height, width, channels]`, bytes."""
        if self._pixels is not None and self._known[row]:
            return np.asarray(self._pixels[row])
        pixels_HWC = self._decoded(self.paths[row])
        if self._pixels is not None:
            self._pixels[row] = pixels_HWC
            self._known[row] = True
        return pixels_HWC

    def _decoded(self, path: Path) -> NDArray[np.uint8]:
        with _opened(path) as picture:
            self._check(path, (picture.height, picture.width))
            if picture.mode.startswith(CUT_MODES):
                fail(DAMAGED, f"`{path.name}` has more than 8 bits a channel, and pictures of 8 are read",
                     help=("convert it",), notes=(f"the file is {path}",))  # fmt: skip
            height, width = self._size
            try:
                plain = picture.convert("RGB" if self.spec.channels == 3 else "L")
                if plain.size != (width, height):
                    plain = plain.resize((width, height))
                return np.asarray(plain, np.uint8).reshape(height, width, self.spec.channels)
            except (OSError, SyntaxError, ValueError) as error:
                _fail_damaged(path, str(error))

    def _check(self, path: Path, size: tuple[int, int]) -> None:
        if self.spec.size is None and size != self._size:
            first = self.paths[0]
            fail(DAMAGED,
                 f"`{path.parent.name}/{path.name}` is {size[0]}×{size[1]}, and `{first.parent.name}/{first.name}` "
                 f"{self._size[0]}×{self._size[1]}, height by width",
                 help=("`:size [h w]` resizes every picture",), notes=(f"the file is {path}",))  # fmt: skip


def open_images(spec: ImagesSpec, base: Path) -> Images:
    """The pictures of a folder or a pattern, in the order of their paths.

    Raises: E-DATA-001 (nothing there), E-DATA-002 (no picture, a damaged one, sizes that differ), E-DATA-003 (a folder
    without pictures).
    """
    for folder in dict.fromkeys((base.absolute(), Path.cwd())):
        root = folder / Path(spec.path).expanduser()
        if root.is_dir():
            paths = sorted(p for p in root.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
            if not paths:
                fail(TOO_SHORT, f"the folder `{spec.path}` holds no picture",
                     help=(f"pictures end in {' '.join(SUFFIXES)}",), notes=(f"looked in {root}",))  # fmt: skip
            return Images(spec, paths)
    found = find_files(spec.path, base)
    for path in found:
        if path.suffix.lower() not in SUFFIXES:
            fail(DAMAGED, f"`{path.name}` is no picture: those end in {' '.join(SUFFIXES)}",
                 help=("narrow the pattern, such as `photos/*/*.png`",), notes=(f"the file is {path}",))  # fmt: skip
    return Images(spec, found)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    from PIL import Image, UnidentifiedImageError

    with open_file(path) as file:
        try:
            picture = Image.open(file)
        except UnidentifiedImageError:
            _fail_damaged(path, "it is of no kind that Pillow knows")
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            _fail_damaged(path, str(error))
        with picture:
            yield picture


def _size(path: Path) -> tuple[int, int]:
    """Height and width, from the header."""
    with _opened(path) as picture:
        return picture.height, picture.width


def _fail_damaged(path: Path, said: str) -> Never:
    reason = (said.splitlines() or ["it is damaged"])[0]
    fail(DAMAGED, f"`{path.name}` cannot be read as a picture: {reason}", notes=(f"the file is {path}",))
