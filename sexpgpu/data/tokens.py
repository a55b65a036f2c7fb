"""Token shards on disk: raw uint16 or uint32, the two headed formats of `llm.c`, and one-dimensional `.npy`.

Source: `llm.c`, `llmc/dataloader.h` and `dev/data/data_common.py`; nanoGPT, `data/openwebtext/prepare.py`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sexpgpu.data.faults import DAMAGED, TOO_SHORT, fail
from sexpgpu.data.files import DataFile
from sexpgpu.data.ids import FileShard
from sexpgpu.data.npy import NPY_MAGIC, npy_layout

HEADER_WORDS = 256
HEADER_BYTES = 4 * HEADER_WORDS
# magic -> (version, dtype of the ids)
HEADED_FORMATS: dict[int, tuple[int, str]] = {20240520: (1, "<u2"), 20240801: (7, "<u4")}
REWRITE = (
    "write the shard again: raw little-endian uint16, or uint32 with `:bits 32`, or 256 int32 of header (magic, "
    "version, number of ids) and then the ids"
)
SAMPLED_FOR_WIDTH = 4096


def open_shard(path: Path, bits: int) -> FileShard:
    """Map one file of token ids; the format is told by its first bytes, and raw ids have `bits` each.

    Raises: E-DATA-002 (unreadable, sizes that disagree with the header or with the width of an id), E-DATA-003 (no
    byte).
    """
    file = DataFile(path)
    if not file.num_bytes:
        fail(TOO_SHORT, f"`{path.name}` has no bytes", help=("write or copy the shard again, or take it away",),
             notes=(f"the file is {path}",))  # fmt: skip
    first = np.empty(min(file.num_bytes, HEADER_BYTES), np.uint8)
    file.read_into(first, 0)
    head = first.tobytes()
    if head.startswith(NPY_MAGIC):
        return _npy_shard(file)
    if len(head) == HEADER_BYTES:
        magic, version, num_ids = np.frombuffer(head[:12], dtype="<i4").tolist()
        if magic in HEADED_FORMATS:
            return _headed_shard(file, magic, version, num_ids)
    if file.num_bytes % (bits // 8):
        fail(
            DAMAGED,
            f"`{path.name}` has {file.num_bytes:,} bytes, which is no whole number of uint{bits} ids",
            help=(REWRITE,),
            notes=(f"the file is {path}",),
        )
    shard = FileShard(path.name, file, np.dtype(f"<u{bits // 8}"), 0, file.num_bytes // (bits // 8))
    _check_width(path, shard.read(0, min(len(shard), SAMPLED_FOR_WIDTH)), bits)
    return shard


def _check_width(path: Path, ids_L: NDArray[np.integer], bits: int) -> None:
    """Of uint32 read as uint16 every second id is 0; of uint16 read as uint32 every id is large."""
    if bits == 16 and len(ids_L) >= 16 and not ids_L[1::2].any() and np.count_nonzero(ids_L[::2]) > len(ids_L) // 4:
        fail(DAMAGED, f"every second id of `{path.name}` is 0, as in a file of uint32 that is read as uint16",
             help=("say `:bits 32`",), notes=(f"the file is {path}",))  # fmt: skip
    if bits == 32 and len(ids_L) >= 16 and (ids_L >= 1 << 16).all():
        fail(DAMAGED, f"every id of `{path.name}` is above 65,535, as in a file of uint16 that is read as uint32",
             help=("leave `:bits 32` out",), notes=(f"the file is {path}",))  # fmt: skip


def _headed_shard(file: DataFile, magic: int, version: int, num_ids: int) -> FileShard:
    path, num_bytes = file.path, file.num_bytes
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
    return FileShard(path.name, file, np.dtype(dtype), HEADER_BYTES, num_ids)


def _npy_shard(file: DataFile) -> FileShard:
    path, layout = file.path, npy_layout(file)
    if len(layout.shape) != 1 or layout.dtype.kind not in "iu":
        fail(
            DAMAGED,
            f"`{path.name}` holds {layout.dtype.name} of shape {layout.shape}, not one row of integer ids",
            help=(REWRITE,),
            notes=(f"the file is {path}",),
        )
    return FileShard(path.name, file, layout.dtype, layout.offset, layout.shape[0])
