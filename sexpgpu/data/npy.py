"""NumPy's file formats as memory maps; nothing here unpickles."""

from __future__ import annotations

import math
import zipfile
import zlib
from pathlib import Path
from typing import Any, BinaryIO, Never

import numpy as np
from numpy.typing import NDArray

from sexpgpu.data.faults import DAMAGED, fail
from sexpgpu.data.files import fail_unreadable

NPY_MAGIC = b"\x93NUMPY"
# Members up to here are read once at opening so that the archive's checksum finds a flipped bit.
MAX_CHECKED_BYTES = 64 << 20
LOCAL_HEADER_BYTES = 30


def map_npy(path: Path) -> NDArray[Any]:
    """The array of an `.npy` file, memory-mapped.

    Raises: E-DATA-002 (damaged, unreadable, or holds objects).
    """
    try:
        with path.open("rb") as file:
            return _map_at(path, path.name, file, 0, path.stat().st_size)
    except OSError as error:
        fail_unreadable(path, error)


def map_npz(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of an `.npz` file by name: uncompressed members memory-mapped, compressed ones in memory.

    Raises: E-DATA-002 (damaged, unreadable, or holds something else than arrays).
    """
    try:
        with zipfile.ZipFile(path) as archive, path.open("rb") as file:
            return {
                _field_name(path, member): _member(path, archive, member, file)
                for member in archive.infolist()
            }
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, zlib.error) as error:
        fail(
            DAMAGED,
            f"`{path.name}` is not a whole `.npz` archive: {str(error).lower() or 'it ends early'}",
            help=("write it again with `numpy.savez`",),
            notes=(f"the file is {path}",),
        )
    except OSError as error:
        fail_unreadable(path, error)


def _field_name(path: Path, member: zipfile.ZipInfo) -> str:
    if not member.filename.endswith(".npy"):
        fail(
            DAMAGED,
            f"`{path.name}` holds `{member.filename}`, which is not an array",
            help=("write the archive with `numpy.savez`",),
        )
    return member.filename.removesuffix(".npy")


def _member(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo, file: BinaryIO) -> NDArray[Any]:
    shown = f"{path.name}: {member.filename}"
    if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
        with archive.open(member) as stream:
            try:
                return np.asarray(np.lib.format.read_array(stream, allow_pickle=False))
            except ValueError as error:
                _fail_damaged(path, shown, error)
    if member.file_size <= MAX_CHECKED_BYTES:
        archive.read(member)
    # The central directory's copy of these two lengths may differ from the local one, which counts.
    file.seek(member.header_offset)
    header = file.read(LOCAL_HEADER_BYTES)
    name_bytes, extra_bytes = (int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
    begin = member.header_offset + LOCAL_HEADER_BYTES + name_bytes + extra_bytes
    return _map_at(path, shown, file, begin, begin + member.file_size)


def _map_at(path: Path, shown: str, file: BinaryIO, begin: int, end: int) -> NDArray[Any]:
    file.seek(begin)
    try:
        version = np.lib.format.read_magic(file)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"its format version is {version[0]}.{version[1]}")
        read_header = (
            np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        )
        shape, fortran_order, dtype = read_header(file)
        if dtype.hasobject:
            raise ValueError("it holds pickled objects")
        if 0 in shape:
            return np.empty(shape, dtype)
        num_bytes = math.prod(shape) * dtype.itemsize
        if file.tell() + num_bytes > end:
            raise ValueError(f"its header promises {num_bytes:,} bytes and {end - file.tell():,} follow")
        array = np.memmap(
            path, dtype=dtype, mode="r", offset=file.tell(), shape=shape, order="F" if fortran_order else "C"
        )
    except ValueError as error:
        _fail_damaged(path, shown, error)
    # A plain view of the map: indexing the subclass costs several times as much.
    return array.view(np.ndarray)


def _fail_damaged(path: Path, shown: str, error: ValueError) -> Never:
    fail(
        DAMAGED,
        f"`{shown}` is not a whole NumPy array: {str(error).splitlines()[0]}",
        help=("write it again with `numpy.save` or `numpy.savez`; arrays of objects are not read",),
        notes=(f"the file is {path}",),
    )
