"""Published weights: named arrays of `.npz` or safetensors files, read one at a time when they are wanted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from sexpgpu.data.faults import DAMAGED, fail
from sexpgpu.data.files import DataFile, fail_unreadable, find_files, identify_files
from sexpgpu.data.npy import map_npz

FLOATS = ("F64", "F32", "F16", "BF16")


@dataclass(frozen=True)
class StoredArray:
    """One array of a file: its shape, whether it holds floats, and how to read it."""

    shape: tuple[int, ...]
    is_float: bool
    read: Callable[[], NDArray[Any]]


@dataclass(frozen=True, eq=False)
class WeightFiles:
    """The arrays of one file, or of all that a pattern names, by name."""

    written: str
    paths: tuple[Path, ...]
    arrays: dict[str, StoredArray]

    def identity(self) -> list[dict[str, Any]]:
        """What the experiment's digest knows of these files. Raises: E-DATA-002 (a file became unreadable)."""
        return identify_files(self.paths)


def open_weights(written: str, base: Path) -> WeightFiles:
    """Open what a path or pattern names; a relative one is looked up beside the file, then in the current directory.

    Raises: E-DATA-001 (missing), E-DATA-002 (damaged, of another kind, or a name in two files).
    """
    paths = find_files(written, base)
    arrays: dict[str, StoredArray] = {}
    for path in paths:
        for name, array in _arrays_of(path).items():
            if name in arrays:
                fail(DAMAGED, f"`{name}` is in `{path.name}` and in another file of `{written}`",
                     help=("name one of the files",))  # fmt: skip
            arrays[name] = array
    return WeightFiles(written, paths, arrays)


def _arrays_of(path: Path) -> dict[str, StoredArray]:
    match path.suffix:
        case ".npz":
            found = map_npz(DataFile(path))
            return {name: StoredArray(a.shape, _is_float(a.dtype), partial(np.asarray, a)) for name, a in found.items()}
        case ".safetensors":
            return _safetensors(path)
    if path.name.endswith(".safetensors.index.json"):
        shards = path.name.removesuffix(".safetensors.index.json") + "-*.safetensors"
        fail(DAMAGED, f"`{path.name}` only lists the files of arrays", help=(f'name the files themselves: "{shards}"',))
    fail(DAMAGED, f"`{path.name}` is neither `.npz` nor `.safetensors`",
         help=("write weights with `numpy.savez`, or as safetensors; pickled ones are never read",))  # fmt: skip


def _is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" or dtype == ml_dtypes.bfloat16


def _safetensors(path: Path) -> dict[str, StoredArray]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            found = {}
            for name in file.keys():  # noqa: SIM118
                part = file.get_slice(name)
                shape = tuple(int(n) for n in part.get_shape())
                found[name] = StoredArray(shape, part.get_dtype() in FLOATS, partial(_read_tensor, path, name))
            return found
    except SafetensorError as error:
        fail(
            DAMAGED,
            f"`{path.name}` is not a whole safetensors file: {str(error).lower()}",
            help=("fetch or write it again",),
            notes=(f"the file is {path}",),
        )
    except OSError as error:
        fail_unreadable(path, error)


def _read_tensor(path: Path, name: str) -> NDArray[Any]:
    from safetensors import safe_open

    try:
        with safe_open(path, framework="np") as file:
            return np.asarray(file.get_tensor(name))
    except OSError as error:
        fail_unreadable(path, error)
