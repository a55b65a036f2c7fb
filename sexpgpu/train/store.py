"""Where checkpoints lie: a folder of a disk, or a prefix of a bucket. A store knows names and bytes, no meanings.

A checkpoint is there whole or not at all, at every moment and after every crash, because one last act publishes it:

    disk    step-00000100/state.safetensors           both are written under a hidden name, flushed to the disk and
            step-00000100/checkpoint.json             renamed together
    S3      step-00000100/state-0123456789abcdef.…    named by its own digest, so no state is ever written over
            step-00000100/checkpoint.json             put last: without it there is no checkpoint

On a disk, hidden folders beside the checkpoints belong to a writer and never count, with one exception:

    .saving-…      being written; its writer holds a lock on it, so one without a lock is a dead writer's
    .old-step-…    a checkpoint set aside while its successor of the same step is renamed into place; where a crash fell
                   between the two renames this is the checkpoint of that step, and `clean` renames it back
    .removing-…    on its way out
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from sexpgpu.diagnostics import Diagnostic, DiagnosticError
from sexpgpu.s3 import SCHEME, S3Error, is_s3, open_s3, telling_s3
from sexpgpu.train.files import make_folder, sync_file

STATE_FILE = "state.safetensors"
RECORD_FILE = "checkpoint.json"
IS_STATE = re.compile(r"state(-[0-9a-f]{16})?\.safetensors")
CHUNK_BYTES = 1 << 20
"""What is hashed and then written at a time: small enough that the second reads it from the processor's cache."""
PART_BYTES = 32 << 20
_SAVING, _OLD, _REMOVING, _OWNER = ".saving-", ".old-", ".removing-", ".owner"


@dataclass(frozen=True, slots=True)
class Stored:
    """A state as it was written: the name of its file, its sha256 and its size."""

    file: str
    sha256: str
    num_bytes: int


Seal = Callable[[Stored], bytes]
"""The record of a checkpoint, once its state is written."""


class Store(Protocol):
    """What the format needs of a place. All raise OSError, which `files.explaining` turns into E-IO-001."""

    @property
    def place(self) -> str:
        """The folder or address, as a user would write it."""
        ...

    def path(self, name: str) -> str:
        """A checkpoint, as a user would write it."""
        ...

    def names(self) -> list[str]:
        """Names of all that is published here."""
        ...

    def size(self, name: str, file: str) -> int | None:
        """Bytes of a file; None where there is none."""
        ...

    def saved_s(self, name: str) -> float:
        """When a checkpoint was published, in seconds since the epoch."""
        ...

    def read_record(self, name: str) -> bytes:
        """The bytes of a record."""
        ...

    def state(self, name: str, file: str) -> AbstractContextManager[Path]:
        """A state as a file of this machine, for as long as the block lasts."""
        ...

    def publish(self, name: str, pieces: Iterable[memoryview], seal: Seal) -> None:
        """Write a state, then its record, in place of an earlier checkpoint of the name.

        Raises: E-IO-003 where another run has taken the place over.
        """
        ...

    def rename(self, name: str, new: str) -> None:
        """Give a checkpoint another name, which is free."""
        ...

    def remove(self, name: str) -> None:
        """Take a checkpoint away: first from view, then from the disk."""
        ...

    def clean(self) -> list[str]:
        """Finish what dead writers left half done; what was dealt with. Called once, by the one run that saves here."""
        ...


def open_store(place: str | os.PathLike[str]) -> Store:
    """The store of a folder or of an `s3://` address.

    Raises: E-IO-004 for an address without a bucket, E-IO-005 without the extra `s3`.
    """
    written = os.fspath(place)
    return S3Store(written) if is_s3(written) else FolderStore(Path(written))


# --- a folder -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FolderStore:
    """Checkpoints in a folder, which need not be there yet."""

    folder: Path

    @property
    def place(self) -> str:
        """The folder."""
        return str(self.folder)

    def path(self, name: str) -> str:
        """Its folder, or where that is set aside."""
        return str(self._at(name))

    def names(self) -> list[str]:
        """Folders that are not hidden, and those set aside whose successor is missing."""
        if not self.folder.is_dir():
            return []
        found = [path.name for path in self.folder.iterdir() if path.is_dir()]
        aside = {name.removeprefix(_OLD) for name in found if name.startswith(_OLD)}
        return sorted({name for name in found if not name.startswith(".")} | aside)

    def size(self, name: str, file: str) -> int | None:
        """Bytes of a file; None where there is none."""
        path = self._at(name) / file
        return path.stat().st_size if path.is_file() else None

    def saved_s(self, name: str) -> float:
        """The folder's time."""
        return self._at(name).stat().st_mtime

    def read_record(self, name: str) -> bytes:
        """The bytes of a record."""
        return (self._at(name) / RECORD_FILE).read_bytes()

    @contextlib.contextmanager
    def state(self, name: str, file: str) -> Iterator[Path]:
        """Where it lies."""
        yield self._at(name) / file

    def publish(self, name: str, pieces: Iterable[memoryview], seal: Seal) -> None:
        """Write under a hidden name, flush, rename."""
        make_folder(self.folder)
        with _saving_folder(self.folder) as temporary:
            stored = _write_state(temporary / STATE_FILE, pieces)
            _write_file(temporary / RECORD_FILE, seal(stored))
            _rename_in(temporary, self.folder / name)

    def rename(self, name: str, new: str) -> None:
        """One rename."""
        os.rename(self._at(name), self.folder / new)

    def remove(self, name: str) -> None:
        """Rename, then remove."""
        _remove(self._at(name))

    def clean(self) -> list[str]:
        """Remove what dead writers left, put a checkpoint back that was set aside; a living writer's is left alone."""
        if not self.folder.is_dir():
            return []
        done = []
        for path in sorted(self.folder.iterdir()):
            if path.name.startswith(_OLD):
                target = self.folder / path.name.removeprefix(_OLD)
                if target.exists():
                    _remove(path)
                else:
                    os.rename(path, target)
            elif path.name.startswith(_REMOVING) or (path.name.startswith(_SAVING) and _writer_is_dead(path)):
                shutil.rmtree(path, ignore_errors=True)  # a writer that is alive may be removing the same
            else:
                continue
            done.append(path.name)
        return done

    def _at(self, name: str) -> Path:
        path, aside = self.folder / name, self.folder / f"{_OLD}{name}"
        return aside if not path.exists() and aside.exists() else path


def _write_state(path: Path, pieces: Iterable[memoryview]) -> Stored:
    """Write and digest in one pass."""
    digest, num_bytes = hashlib.sha256(), 0

    def chunks() -> Iterator[memoryview]:
        nonlocal num_bytes
        for piece in pieces:
            for start in range(0, len(piece), CHUNK_BYTES):
                chunk = piece[start : start + CHUNK_BYTES]
                digest.update(chunk)
                num_bytes += len(chunk)
                yield chunk

    _write_chunks(path, chunks())
    return Stored(path.name, digest.hexdigest(), num_bytes)


def _write_file(path: Path, data: bytes) -> None:
    _write_chunks(path, [memoryview(data)])


def _write_chunks(path: Path, chunks: Iterable[memoryview]) -> None:
    """A new file that is on the disk when this returns."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        for chunk in chunks:
            while chunk:
                chunk = chunk[os.write(descriptor, chunk) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _saving_folder(folder: Path) -> Iterator[Path]:
    """A new hidden folder, locked for as long as its writer lives; gone at the end unless it was renamed."""
    path = folder / f"{_SAVING}{secrets.token_hex(4)}"
    path.mkdir()
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # without locks here, `clean` leaves the folder alone
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)


def _writer_is_dead(path: Path) -> bool:
    """Whether nobody holds the lock of a hidden folder; the system drops it with the process."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:  # published meanwhile
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # held, or no locks on this file system: then nobody can tell
        return False
    finally:
        os.close(descriptor)
    return True


def _rename_in(temporary: Path, target: Path) -> None:
    """Give a finished folder its name; at every moment it or its set-aside predecessor is there, whole."""
    sync_file(temporary)
    aside = target.with_name(_OLD + target.name)
    if target.exists():
        if aside.exists():  # an earlier crash, after the renames
            _remove(aside)
        os.rename(target, aside)
        try:
            os.rename(temporary, target)
        except OSError:
            os.rename(aside, target)
            raise
    else:
        os.rename(temporary, target)
    sync_file(target.parent)
    if aside.exists():
        _remove(aside)


def _remove(path: Path) -> None:
    # Renamed first: a crash must not leave half a checkpoint under a name that counts.
    doomed = path.with_name(f"{_REMOVING}{secrets.token_hex(4)}")
    os.rename(path, doomed)
    shutil.rmtree(doomed)


# --- S3 -------------------------------------------------------------------------------------------------------


class S3Store:
    """Checkpoints under a prefix of a bucket."""

    def __init__(self, address: str) -> None:
        """Raises: E-IO-004, E-IO-005"""
        self._root = address.removeprefix(SCHEME).rstrip("/")
        self._address = f"{SCHEME}{self._root}"
        self._bucket, _, self._prefix = self._root.partition("/")
        if not self._bucket:
            message = f"`{address}` names no bucket"
            raise DiagnosticError(Diagnostic("E-IO-004", message, help=("write s3://BUCKET/PREFIX",)))
        self._fs = open_s3()
        self._mark: bytes | None = None

    @property
    def place(self) -> str:
        """The address."""
        return self._address

    def path(self, name: str) -> str:
        """Its address."""
        return f"{self._address}/{name}"

    def names(self) -> list[str]:
        """Everything that has a record."""
        return sorted(name for name, files in self._listing().items() if RECORD_FILE in files)

    def size(self, name: str, file: str) -> int | None:
        """Bytes of an object; None where there is none."""
        with telling_s3():
            try:
                return int(self._fs.info(self._key(name, file))["size"])
            except FileNotFoundError:
                return None

    def saved_s(self, name: str) -> float:
        """When the record was put."""
        with telling_s3():
            return float(self._fs.info(self._key(name, RECORD_FILE))["LastModified"].timestamp())

    def read_record(self, name: str) -> bytes:
        """The bytes of a record."""
        with telling_s3():
            return bytes(self._fs.cat_file(self._key(name, RECORD_FILE)))

    @contextlib.contextmanager
    def state(self, name: str, file: str) -> Iterator[Path]:
        """A copy in a temporary folder."""
        with tempfile.TemporaryDirectory(prefix="sexpgpu-") as folder:
            path = Path(folder) / file
            with telling_s3():
                self._fs.get_file(self._key(name, file), str(path))
            yield path

    def publish(self, name: str, pieces: Iterable[memoryview], seal: Seal) -> None:
        """Put the state under its own digest, then the record; then what it replaces is removed."""
        kept = list(pieces)
        digest, num_bytes = hashlib.sha256(), 0
        for piece in kept:
            digest.update(piece)
            num_bytes += len(piece)
        stored = Stored(f"state-{digest.hexdigest()[:16]}.safetensors", digest.hexdigest(), num_bytes)
        with self._writing():
            self._upload(f"{name}/{stored.file}", kept, num_bytes)
            self._ask_owner()
            self._put(f"{name}/{RECORD_FILE}", seal(stored))
            for file in self._listing().get(name, {}):
                if IS_STATE.fullmatch(file) and file != stored.file:
                    self._fs.rm_file(self._key(name, file))

    def rename(self, name: str, new: str) -> None:
        """Copies on the server: the state, the record; then the old record goes, and its state."""
        with self._writing():
            files = sorted(self._listing().get(name, {}), key=lambda file: file == RECORD_FILE)
            for file in files:
                self._fs.cp_file(self._key(name, file), self._key(new, file))
        self.remove(name)

    def remove(self, name: str) -> None:
        """The record, then the state."""
        with self._writing():
            for file in sorted(self._listing().get(name, {}), key=lambda file: file != RECORD_FILE):
                self._fs.rm_file(self._key(name, file))

    def clean(self) -> list[str]:
        """Take the place over from whoever saved here before, and remove what was never published."""
        self._mark = secrets.token_hex(16).encode()
        done = []
        with self._writing():
            self._put(_OWNER, self._mark)
            under = f"{self._prefix}/" if self._prefix else ""
            uploads = self._fs.call_s3("list_multipart_uploads", Bucket=self._bucket, Prefix=under).get("Uploads", [])
            for upload in uploads:
                self._abort(upload["Key"], upload["UploadId"])
                done.append(upload["Key"])
            for name, files in self._listing().items():
                if RECORD_FILE not in files:
                    for file in filter(IS_STATE.fullmatch, files):
                        self._fs.rm_file(self._key(name, file))
                        done.append(f"{name}/{file}")
        return done

    def _key(self, name: str, file: str) -> str:
        return f"{self._root}/{name}/{file}"

    def _listing(self) -> dict[str, dict[str, Any]]:
        """Objects of every checkpoint, by name and file."""
        with telling_s3():
            try:
                found = self._fs.find(self._root, detail=True)
            except FileNotFoundError:
                return {}
        listing: dict[str, dict[str, Any]] = {}
        for key, info in found.items():
            name, slash, file = key.removeprefix(f"{self._root}/").partition("/")
            if slash and "/" not in file:
                listing.setdefault(name, {})[file] = info
        return listing

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            with telling_s3():
                yield
        except FileNotFoundError as error:
            raise S3Error(f"there is no bucket `{self._bucket}`", "make it, or name another") from error

    def _whole_key(self, key: str) -> str:
        return f"{self._prefix}/{key}" if self._prefix else key

    def _put(self, key: str, data: bytes) -> None:
        self._fs.call_s3("put_object", Bucket=self._bucket, Key=self._whole_key(key), Body=data)

    def _upload(self, key: str, pieces: Iterable[memoryview], num_bytes: int) -> None:
        """One object, in parts where it is large; no object where that fails."""
        parts = _parts(pieces)
        if num_bytes <= PART_BYTES:
            self._put(key, b"".join(parts))
            return
        where = {"Bucket": self._bucket, "Key": self._whole_key(key)}
        upload = self._fs.call_s3("create_multipart_upload", **where)["UploadId"]
        try:
            etags = []
            for number, data in enumerate(parts, 1):
                put = self._fs.call_s3("upload_part", **where, UploadId=upload, PartNumber=number, Body=data)
                etags.append({"PartNumber": number, "ETag": put["ETag"]})
            whole = {"Parts": etags}
            self._fs.call_s3("complete_multipart_upload", **where, UploadId=upload, MultipartUpload=whole)
        except BaseException:
            with contextlib.suppress(Exception):  # what failed first is the one to tell; `clean` tries again
                self._abort(where["Key"], upload)
            raise

    def _abort(self, key: str, upload: str) -> None:
        with contextlib.suppress(FileNotFoundError):  # it was completed meanwhile
            self._fs.call_s3("abort_multipart_upload", Bucket=self._bucket, Key=key, UploadId=upload)

    def _ask_owner(self) -> None:
        """Raises E-IO-003 where another run has cleaned here since this one did."""
        if self._mark is not None and self._fs.cat_file(f"{self._root}/{_OWNER}") != self._mark:
            message = f"another run has taken over {self._address}"
            help = ("one run saves in one place: end the other, or name another place with --checkpoints",)
            raise DiagnosticError(Diagnostic("E-IO-003", message, help=help))


def _parts(pieces: Iterable[memoryview]) -> Iterator[bytes]:
    """The same bytes, cut into parts of the size of an upload."""
    part = bytearray()
    for piece in pieces:
        for start in range(0, len(piece), CHUNK_BYTES):
            part += piece[start : start + CHUNK_BYTES]
            if len(part) >= PART_BYTES:
                yield bytes(part)
                part.clear()
    if part:
        yield bytes(part)
