"""Files of a run: replaced whole or left alone, and every refusal of the system explained.

Sits below `checkpoint`, `metrics` and `status`, which are the only writers of a run folder. A reader of
these files, at any moment and after any crash, sees either the old content or the new one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from sexpgpu.diagnostics import Diagnostic, DiagnosticError
from sexpgpu.s3 import S3Error

_NO_PERMISSION = ("this user is not permitted to", "change the permissions, or choose another folder")

# errno -> what happened, what to do about it
_REASONS: dict[int, tuple[str, str]] = {
    errno.ENOSPC: ("no space is left on the disk", "free some space there, or write to another disk"),
    errno.EDQUOT: ("the disk quota of this user is used up", "free some space there, or raise the quota"),
    errno.EFBIG: ("the file is larger than the system allows", "raise the file size limit (`ulimit -f`)"),
    errno.EACCES: _NO_PERMISSION,
    errno.EPERM: _NO_PERMISSION,
    errno.EROFS: ("the file system is read-only", "choose a folder on a file system that can be written"),
    errno.ENOENT: ("no such file or folder", "check the path"),
    errno.ENOTDIR: ("a part of the path is a file, not a folder", "move that file, or choose another path"),
    errno.EISDIR: ("the path is a folder, not a file", "move that folder, or choose another path"),
    errno.ENAMETOOLONG: ("the name is longer than the file system allows", "choose a shorter name"),
    errno.EMFILE: ("this process has too many open files", "raise the limit of open files (`ulimit -n`)"),
    errno.EIO: ("the disk reported an input/output error", "check the disk, or choose another one"),
}


def io_error(action: str, path: str | os.PathLike[str], error: OSError) -> DiagnosticError:
    """The diagnostic `E-IO-001` for an error of the system while doing `action` (as in `write`) to `path`."""
    default = ((error.strerror or str(error) or type(error).__name__).lower(), "check the path and its disk")
    happened, remedy = _REASONS.get(error.errno or 0, default)
    if isinstance(error, S3Error):
        happened, remedy = error.happened, error.remedy
    return DiagnosticError(
        Diagnostic("E-IO-001", f"cannot {action} `{os.fspath(path)}`: {happened}", help=(remedy,))
    )


@contextlib.contextmanager
def explaining(action: str, path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn every OSError of the body into `E-IO-001`.

    Raises: E-IO-001
    """
    try:
        yield
    except OSError as error:
        raise io_error(action, path, error) from error


def sync_file(path: Path) -> None:
    """Wait until the content of a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems refuse to sync a folder; they order renames themselves.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP) or not path.is_dir():
            raise
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> None:
    """Make a folder and those above it, and wait until their names are on the disk."""
    if path.is_dir():
        return
    if not path.parent.exists():
        make_folder(path.parent)
    path.mkdir(exist_ok=True)
    sync_file(path.parent)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A stream whose content takes the place of `path` when the body ends without an exception.

    The content is not forced to the disk: a crash of the process loses nothing, a power cut may lose the
    new content.
    """
    # Not tempfile: its files are readable by the owner only, whatever the umask says.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb") as stream:
            yield stream
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def replace_atomic(path: str | os.PathLike[str], data: bytes) -> None:
    """Replace the content of `path` in one step, without waiting for the disk.

    Raises: E-IO-001
    """
    with explaining("write", path), replacing(Path(path)) as stream:
        stream.write(data)


def write_atomic(path: str | os.PathLike[str], data: bytes) -> None:
    """Replace the content of `path` in one step that also survives a power cut.

    Raises: E-IO-001
    """
    path = Path(path)
    with explaining("write", path):
        with replacing(path) as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        sync_file(path.parent)


def remove_leftovers(path: str | os.PathLike[str]) -> None:
    """Remove what killed writers of `path` left beside it; only for the one process that writes `path`.

    Raises: E-IO-001
    """
    path = Path(path)
    prefix, suffix = f".{path.name}.", ".tmp"
    with explaining("clean up beside", path):
        for entry in path.parent.iterdir():
            if entry.name.startswith(prefix) and entry.name.endswith(suffix):
                entry.unlink(missing_ok=True)
