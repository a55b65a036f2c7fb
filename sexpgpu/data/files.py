"""From a written path to files on disk, what is in them, and the identity that an experiment's digest holds.

Every file of data is opened here: `read_bytes`, `read_blocks` and `read_text` give what is in one, `DataFile` reads
parts of one, and `open_file` hands one to a library.
"""

from __future__ import annotations

import codecs
import errno
import glob
import hashlib
import io
import mmap
import os
import resource
import weakref
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, Literal, Never

import numpy as np
from numpy.typing import NDArray

from sexpgpu.data.faults import CHANGED, DAMAGED, MISSING, fail
from sexpgpu.diagnostics import nearest
from sexpgpu.s3 import S3Error, find_objects, is_s3

BLOCK_BYTES = 64 * 1024
MAX_MIDDLE_BLOCKS = 16
# Bounds what an identity reads from a data set of thousands of shards (64 MiB beside each file's two ends).
MAX_MIDDLE_BLOCKS_OF_A_SET = 1024
MAX_NAMES_COMPARED = 10_000
READ_BYTES = 1 << 20
BYTE_ORDER_MARK = "\ufeff"
RESIDENT_BYTES = 64 << 20
"""So much of a data set may lie in memory: smaller ones whole, of larger ones what was read last."""
FILLED_AROUND_BYTES = 2 << 20
"""What the system may map around a place that is read."""
UTF_16_MARKS = (b"\xff\xfe", b"\xfe\xff")


def find_files(written: str, base: Path) -> tuple[Path, ...]:
    """The files that a written path means, in sorted order.

    A relative path is resolved against `base`; where nothing matches there, against the current directory.
    A file whose very name holds glob characters wins over the pattern. An address `s3://…` means local copies of its
    objects.

    Raises: E-DATA-001 (nothing matches), E-DATA-002 (a folder, or objects that cannot be read), E-IO-005.
    """
    if is_s3(written):
        return _find_objects(written)
    folders = tuple(dict.fromkeys((base.absolute(), Path.cwd())))
    for folder in folders:
        exact = folder / Path(written).expanduser()
        if exact.is_file():
            return (exact,)
        if exact.is_dir():
            fail(
                DAMAGED,
                f"`{written}` is a folder, not a file",
                help=(f"name its files with a pattern such as `{written.rstrip('/')}/*`",),
            )
        pattern = Path(glob.escape(str(folder))) / Path(written).expanduser()
        matches = sorted(path for path in glob.glob(str(pattern), recursive=True) if os.path.isfile(path))
        if matches:
            return tuple(Path(path) for path in matches)
    _fail_missing(written, folders)


def _find_objects(written: str) -> tuple[Path, ...]:
    try:
        found = find_objects(written)
    except S3Error as error:
        fail(DAMAGED, f"`{written}` cannot be read: {error.happened}", help=(error.remedy,))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        fail(DAMAGED, f"`{written}` cannot be copied to this machine: {reason}",
             help=("its copy goes to `~/.cache/sexpgpu/s3`: free some space there",))  # fmt: skip
    if not found:
        fail(MISSING, f"no object matches `{written}`", help=("check the bucket and the key",))
    return found


def _fail_missing(written: str, folders: Sequence[Path]) -> Never:
    path = Path(written).expanduser()
    looked = tuple(dict.fromkeys((folder / path).parent for folder in folders))
    there = [folder for folder in looked if folder.is_dir()]
    help = ["a relative path starts at the folder of the `.sx` file, then at the current directory"]
    if not there:
        help.insert(0, f"there is no folder `{path.parent}`")
    for folder in there:
        names = (entry.name for entry in os.scandir(folder))
        near = nearest(path.name, list(islice(names, MAX_NAMES_COMPARED)))
        if near is not None:
            help.insert(0, f"there is a `{Path(written).parent / near}`")
            break
    headline = f"no file matches `{written}`" if glob.has_magic(written) else f"there is no file `{written}`"
    fail(MISSING, headline, help=tuple(help), notes=tuple(f"looked in {folder}" for folder in looked))


def open_file(path: Path) -> BinaryIO:
    """The file, open for reading.

    Raises: E-DATA-002 (unreadable).
    """
    try:
        return path.open("rb")
    except OSError as error:
        fail_unreadable(path, error)


def read_bytes(path: Path) -> bytes:
    """The whole file.

    Raises: E-DATA-002 (unreadable).
    """
    return b"".join(read_blocks(path))


def read_blocks(path: Path) -> Iterator[bytes]:
    """The file, `READ_BYTES` at a time.

    Raises: E-DATA-002 (unreadable).
    """
    try:
        with open_file(path) as file:
            while block := file.read(READ_BYTES):
                yield block
    except OSError as error:
        fail_unreadable(path, error)


def read_text(path: Path) -> Iterator[str]:
    """The file as text, a block at a time: UTF-8, a byte order mark dropped, CRLF read as LF.

    Raises: E-DATA-002 (unreadable, or not UTF-8; names line and offset).
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    offset, lines, head = 0, 1, b""
    begun = False
    held = ""  # a carriage return whose line feed may come
    for block in chain(read_blocks(path), (b"",)):
        head = head or block[:2]
        pending = len(decoder.getstate()[0])
        try:
            text = held + decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            at = offset - pending + error.start
            line = lines + error.object.count(b"\n", 0, error.start)
            _fail_not_utf8(path, error.object[error.start], at, line, head.startswith(UTF_16_MARKS))
        if text and not begun:
            text, begun = text.removeprefix(BYTE_ORDER_MARK), True
        offset += len(block)
        lines += block.count(b"\n")
        held = "\r" if block and text.endswith("\r") else ""
        text = text.removesuffix(held).replace("\r\n", "\n")
        if text:
            yield text


def _fail_not_utf8(path: Path, byte: int, offset: int, line: int, utf16: bool) -> Never:
    fail(
        DAMAGED,
        f"`{path.name}` is not UTF-8: byte 0x{byte:02x} at offset {offset} (line {line})",
        help=(
            "it looks like UTF-16: save it as UTF-8, or read it `:by bytes`"
            if utf16
            else "save it as UTF-8, or read it `:by bytes`",
        ),
        notes=(f"the file is {path}",),
    )


class DataFile:
    """An open file, of which a batch reads what it needs: by place, or as an array that lies in it.

    A file that is cut while it is mapped would kill the process at the next read, and one that is written to would give
    other data than the run began with; `check` tells both before a batch is read, unless the file is not `watched`.

    Raises: E-DATA-002 (unreadable).
    """

    def __init__(self, path: Path, watched: bool = True) -> None:
        self.path = path
        self.watched = watched
        try:
            self._descriptor = _opened(path)
            status = os.fstat(self._descriptor)
        except OSError as error:
            fail_unreadable(path, error)
        weakref.finalize(self, os.close, self._descriptor)
        self.num_bytes = status.st_size
        self._stamp = _stamp(status)

    @cached_property
    def _map(self) -> mmap.mmap:
        return mmap.mmap(self._descriptor, 0, access=mmap.ACCESS_READ)

    def array(self, dtype: Any, offset: int, shape: tuple[int, ...], order: Literal["C", "F"] = "C") -> NDArray[Any]:
        """An array that lies in the file from byte `offset` on, mapped; it is for reading only."""
        if 0 in shape:
            return np.empty(shape, dtype)
        return np.ndarray(shape, dtype, self._map, offset, order=order)

    def read_rows(self, bytes_BN: NDArray[np.uint8], offsets: Sequence[int]) -> None:
        """Fill each row with what stands from its offset on. Raises: as `read_into`."""
        wanted, descriptor, read = bytes_BN.shape[1], self._descriptor, os.preadv
        try:
            for row_N, offset in zip(bytes_BN, offsets, strict=True):
                if read(descriptor, [row_N], offset) != wanted:
                    self.read_into(row_N, offset)
        except OSError as error:
            fail_unreadable(self.path, error)

    def read_into(self, bytes_N: NDArray[np.uint8], offset: int) -> None:
        """Fill an array with what stands from byte `offset` on.

        Raises: E-DATA-002 (the file ends before, or cannot be read), E-DATA-007 (it was cut).
        """
        at = 0
        while at < len(bytes_N):
            rest: Any = bytes_N[at:]
            try:
                found = os.preadv(self._descriptor, [rest], offset + at)
            except OSError as error:
                fail_unreadable(self.path, error)
            if not found:
                self.check()
                fail(DAMAGED, f"`{self.path.name}` ends at byte {offset + at:,}, before {len(bytes_N) - at:,} more",
                     help=("copy or write it again",), notes=(f"the file is {self.path}",))  # fmt: skip
            at += found

    def check(self) -> None:
        """See that the file is still what was opened. Raises: E-DATA-007 (it changed or is gone)."""
        if not self.watched:
            return
        try:
            now = _stamp(os.stat(self.path))
        except OSError as error:
            fail(CHANGED, f"`{self.path.name}` is gone: {(error.strerror or str(error)).lower()}",
                 help=("put it back as it was and go on with `--resume latest`",),
                 notes=(f"the file is {self.path}",))  # fmt: skip
        if now != self._stamp:
            was, size = self.num_bytes, now[0]
            how = f"it had {was:,} bytes and has {size:,}" if was != size else f"its {was:,} bytes were written again"
            fail(CHANGED, f"`{self.path.name}` changed while it was read: {how}",
                 help=("put it back as it was and go on with `--resume latest`, or begin a run with the new data",),
                 notes=(f"the file is {self.path}",))  # fmt: skip

    def release(self) -> None:
        """Let go of the memory that reading of arrays has filled; the next read fills it again."""
        if "_map" in self.__dict__:
            self._map.madvise(mmap.MADV_DONTNEED)


class MappedFiles:
    """The mapped files of a data set: checked before each batch, and let go of when `RESIDENT_BYTES` may be filled."""

    def __init__(self, files: Iterable[DataFile]) -> None:
        self._files = tuple(files)
        self._is_large = sum(file.num_bytes for file in self._files) > RESIDENT_BYTES
        self._filled_bytes = 0

    def before(self, num_places: int, num_bytes: int) -> None:
        """Call it before `num_bytes` are read, in `num_places`. Raises: E-DATA-007 (a file changed or is gone)."""
        for file in self._files:
            file.check()
        self._filled_bytes += num_bytes + num_places * FILLED_AROUND_BYTES
        if self._is_large and self._filled_bytes > RESIDENT_BYTES:
            for file in self._files:
                file.release()
            self._filled_bytes = 0


def _opened(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY)
    except OSError as error:
        # A set of a thousand shards needs more open files than the system gives at first.
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if error.errno != errno.EMFILE or soft == hard:
            raise
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        return os.open(path, os.O_RDONLY)


def _stamp(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ino, status.st_dev


def fail_unreadable(path: Path, error: OSError) -> Never:
    """Report what the system said about a file that is there but cannot be read.

    Raises: E-DATA-002.
    """
    fail(
        DAMAGED,
        f"`{path.name}` cannot be read: {(error.strerror or str(error)).lower()}",
        help=("check the file's permissions, and that it is a plain file",),
        notes=(f"the file is {path}",),
    )


def identify_files(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Name, size in bytes and sampled hash of each file; folders stay out, so a data set may move.

    Raises: E-DATA-002 (unreadable).
    """
    num_middle = min(MAX_MIDDLE_BLOCKS, MAX_MIDDLE_BLOCKS_OF_A_SET // max(1, len(paths)))
    identities: list[dict[str, Any]] = []
    for path in paths:
        try:
            with path.open("rb") as file:
                num_bytes = file.seek(0, os.SEEK_END)
                identities.append(_identity(path.name, file, num_bytes, num_middle))
        except OSError as error:
            fail_unreadable(path, error)
    return identities


def identify_bytes(name: str, content: bytes) -> dict[str, Any]:
    """The same identity for content that is in no file."""
    return _identity(name, io.BytesIO(content), len(content), MAX_MIDDLE_BLOCKS)


def _identity(name: str, file: BinaryIO, num_bytes: int, num_middle: int) -> dict[str, Any]:
    digest = hashlib.sha256()
    for offset in sampled_offsets(num_bytes, BLOCK_BYTES, num_middle):
        file.seek(offset)
        digest.update(file.read(BLOCK_BYTES))
    return {"name": name, "bytes": num_bytes, "sha256": digest.hexdigest()}


def sampled_offsets(size: int, block: int, num_middle: int) -> tuple[int, ...]:
    """Where the sampled blocks of a sequence begin: first, last, and `num_middle` between, none twice."""
    last = max(0, size - block)
    middle = (last * (i + 1) // (num_middle + 1) for i in range(num_middle))
    return tuple(sorted({0, last, *middle}))
