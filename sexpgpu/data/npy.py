"""NumPy's file formats as memory maps; nothing here unpickles."""

from __future__ import annotations

import math
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, Never

import numpy as np
from numpy.typing import NDArray

from sexpgpu.data.faults import DAMAGED, fail
from sexpgpu.data.files import DataFile, fail_unreadable, open_file

NPY_MAGIC = b"\x93NUMPY"
# Members up to here are read once at opening so that the archive's checksum finds a flipped bit.
MAX_CHECKED_BYTES = 64 << 20
LOCAL_HEADER_BYTES = 30


@dataclass(frozen=True)
class Layout:
    """How an array lies in a file: from byte `offset` on."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int
    order: Literal["C", "F"]


def npy_layout(file: DataFile) -> Layout:
    """How the array of an `.npy` file lies in it.

    Raises: E-DATA-002 (damaged, unreadable, or holds objects).
    """
    with open_file(file.path) as stream:
        return _layout(file, file.path.name, stream, 0, file.num_bytes)


def map_npy(file: DataFile) -> NDArray[Any]:
    """The array of an `.npy` file, memory-mapped.

    Raises: E-DATA-002 (damaged, unreadable, or holds objects).
    """
    return _mapped(file, npy_layout(file))


def _mapped(file: DataFile, layout: Layout) -> NDArray[Any]:
    return file.array(layout.dtype, layout.offset, layout.shape, layout.order)


def map_npz(file: DataFile) -> dict[str, NDArray[Any]]:
    """The arrays of an `.npz` file by name: uncompressed members memory-mapped, compressed ones in memory.

    Raises: E-DATA-002 (damaged, unreadable, or holds something else than arrays).
    """
    path = file.path
    try:
        with open_file(path) as stream, zipfile.ZipFile(stream) as archive:
            return {_field_name(path, member): _member(file, archive, member, stream) for member in archive.infolist()}
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


def _member(file: DataFile, archive: zipfile.ZipFile, member: zipfile.ZipInfo, stream: BinaryIO) -> NDArray[Any]:
    shown = f"{file.path.name}: {member.filename}"
    if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
        with archive.open(member) as content:
            try:
                return np.asarray(np.lib.format.read_array(content, allow_pickle=False))
            except ValueError as error:
                _fail_damaged(file.path, shown, error)
    if member.file_size <= MAX_CHECKED_BYTES:
        archive.read(member)
    # The central directory's copy of these two lengths may differ from the local one, which counts.
    stream.seek(member.header_offset)
    header = stream.read(LOCAL_HEADER_BYTES)
    name_bytes, extra_bytes = (int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
    begin = member.header_offset + LOCAL_HEADER_BYTES + name_bytes + extra_bytes
    return _mapped(file, _layout(file, shown, stream, begin, begin + member.file_size))


def _layout(file: DataFile, shown: str, stream: BinaryIO, begin: int, end: int) -> Layout:
    stream.seek(begin)
    try:
        version = np.lib.format.read_magic(stream)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"its format version is {version[0]}.{version[1]}")
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran_order, dtype = read_header(stream)
        if dtype.hasobject:
            raise ValueError("it holds pickled objects")
        num_bytes = math.prod(shape) * dtype.itemsize
        if stream.tell() + num_bytes > end:
            raise ValueError(f"its header promises {num_bytes:,} bytes and {end - stream.tell():,} follow")
        return Layout(dtype, shape, stream.tell(), "F" if fortran_order else "C")
    except ValueError as error:
        _fail_damaged(file.path, shown, error)


def _fail_damaged(path: Path, shown: str, error: ValueError) -> Never:
    fail(
        DAMAGED,
        f"`{shown}` is not a whole NumPy array: {str(error).splitlines()[0]}",
        help=("write it again with `numpy.save` or `numpy.savez`; arrays of objects are not read",),
        notes=(f"the file is {path}",),
    )
