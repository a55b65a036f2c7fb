"""Token shards on disk: raw uint16, the two headed formats of `llm.c`, and one-dimensional `.npy`.

Source: `llm.c`, `llmc/dataloader.h` and `dev/data/data_common.py`; nanoGPT, `data/openwebtext/prepare.py`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sexpgpu.data.faults import DAMAGED, fail
from sexpgpu.data.files import fail_unreadable
from sexpgpu.data.ids import Shard
from sexpgpu.data.npy import NPY_MAGIC, map_npy

HEADER_WORDS = 256
HEADER_BYTES = 4 * HEADER_WORDS
# magic -> (version, dtype of the ids)
HEADED_FORMATS: dict[int, tuple[int, str]] = {20240520: (1, "<u2"), 20240801: (7, "<u4")}
REWRITE = (
    "write the shard again: raw little-endian uint16, or 256 int32 of header (magic, version, number of ids) "
    "and then the ids"
)


def open_shard(path: Path) -> Shard:
    """Map one file of token ids; the format is told by its first bytes.

    Raises: E-DATA-002 (unreadable, or sizes that disagree with the header).
    """
    try:
        num_bytes = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(HEADER_BYTES)
        if head.startswith(NPY_MAGIC):
            return _npy_shard(path)
        if len(head) == HEADER_BYTES:
            magic, version, num_ids = np.frombuffer(head[:12], dtype="<i4").tolist()
            if magic in HEADED_FORMATS:
                return _headed_shard(path, magic, version, num_ids, num_bytes)
        if num_bytes % 2:
            fail(
                DAMAGED,
                f"`{path.name}` has {num_bytes:,} bytes, which is no whole number of uint16 ids",
                help=(REWRITE,),
                notes=(f"the file is {path}",),
            )
        return _mapped(path, "<u2", 0, num_bytes // 2)
    except OSError as error:
        fail_unreadable(path, error)


def _headed_shard(path: Path, magic: int, version: int, num_ids: int, num_bytes: int) -> Shard:
    expected, dtype = HEADED_FORMATS[magic]
    if version != expected:
        fail(
            DAMAGED,
            f"`{path.name}` has format {magic} in version {version}; version {expected} is read",
            help=(REWRITE,),
            notes=(f"the file is {path}",),
        )
    if num_bytes != HEADER_BYTES + num_ids * np.dtype(dtype).itemsize:
        held = (num_bytes - HEADER_BYTES) / np.dtype(dtype).itemsize
        fail(
            DAMAGED,
            f"the header of `{path.name}` promises {num_ids:,} ids, and {held:,.10g} follow",
            help=("the file was cut or is still being written; copy or write it again",),
            notes=(f"the file is {path}",),
        )
    return _mapped(path, dtype, HEADER_BYTES, num_ids)


def _npy_shard(path: Path) -> Shard:
    ids = map_npy(path)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        fail(
            DAMAGED,
            f"`{path.name}` holds {ids.dtype.name} of shape {ids.shape}, not one row of integer ids",
            help=(REWRITE,),
            notes=(f"the file is {path}",),
        )
    return Shard(path.name, ids, path.stat().st_size - ids.nbytes)


def _mapped(path: Path, dtype: str, header_bytes: int, num_ids: int) -> Shard:
    if num_ids == 0:
        return Shard(path.name, np.empty(0, dtype=dtype), header_bytes)
    ids = np.memmap(path, dtype=dtype, mode="r", offset=header_bytes, shape=(num_ids,))
    return Shard(path.name, ids.view(np.ndarray), header_bytes)
