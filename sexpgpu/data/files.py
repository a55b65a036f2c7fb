"""From a written path to files on disk, and from files to the identity that an experiment's digest holds."""

from __future__ import annotations

import glob
import hashlib
import io
import os
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Never

from sexpgpu.data.faults import DAMAGED, MISSING, fail
from sexpgpu.diagnostics import nearest
from sexpgpu.s3 import S3Error, find_objects, is_s3

BLOCK_BYTES = 64 * 1024
MAX_MIDDLE_BLOCKS = 16
# Bounds what an identity reads from a data set of thousands of shards (64 MiB beside each file's two ends).
MAX_MIDDLE_BLOCKS_OF_A_SET = 1024
MAX_NAMES_COMPARED = 10_000


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


def read_bytes(path: Path) -> bytes:
    """The whole file.

    Raises: E-DATA-002 (unreadable).
    """
    try:
        return path.read_bytes()
    except OSError as error:
        fail_unreadable(path, error)


def read_text(path: Path) -> str:
    """The whole file as text: UTF-8, a byte order mark dropped, CRLF read as LF.

    Raises: E-DATA-002 (unreadable, or not UTF-8; names line and offset).
    """
    content = read_bytes(path)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # Positions count from after a byte order mark, which the error's own object shows.
        at = error.start + len(content) - len(error.object)
        line = content.count(b"\n", 0, at) + 1
        utf16 = content.startswith((b"\xff\xfe", b"\xfe\xff"))
        fail(
            DAMAGED,
            f"`{path.name}` is not UTF-8: byte 0x{content[at]:02x} at offset {at} (line {line})",
            help=(
                "it looks like UTF-16: save it as UTF-8, or read it `:by bytes`"
                if utf16
                else "save it as UTF-8, or read it `:by bytes`",
            ),
            notes=(f"the file is {path}",),
        )
    return text.replace("\r\n", "\n")


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
