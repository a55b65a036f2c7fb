"""Loading: from a path to a source text, the first thing every command does with the user's file.

The reader takes the text from here; an `include` comes here again.
"""

from __future__ import annotations

from pathlib import Path

from sexpgpu.diagnostics import Diagnostic, DiagnosticError, nearest
from sexpgpu.source import Source, Span

MAX_BYTES = 64 << 20
"""Of a file of forms: an endless one, such as a device, must not fill the memory."""


def load_source(path: str | Path) -> Source:
    """The text of a file, under the name by which the user called it.

    Raises: E-READ-001 when the file cannot be opened, E-READ-002 when it is not UTF-8.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise DiagnosticError(_unopened(Path(path), error)) from error
    if len(data) > MAX_BYTES:
        raise DiagnosticError(
            Diagnostic(
                "E-READ-001",
                f"`{path}` has more than {MAX_BYTES >> 20} MiB, which no experiment has",
                help=("name a file of forms; data belongs into files of its own, which `defdata` opens",),
            )
        )
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DiagnosticError(_not_utf8(str(path), data, error.start)) from error
    return Source(str(path), text.removeprefix("\ufeff"))


def _unopened(path: Path, error: Exception) -> Diagnostic:
    match error:
        case FileNotFoundError():
            reason, found = "there is no such file", _neighbour(path)
        case IsADirectoryError():
            reason, found = "it is a folder", None
        case PermissionError():
            reason, found = "permission is denied", None
        case OSError(strerror=str(text)):
            reason, found = text.lower(), None
        case _:
            reason, found = str(error), None
    remedy = f"the same folder holds `{found}`" if found is not None else "check the path and its permissions"
    return Diagnostic("E-READ-001", f"cannot open `{path}`: {reason}", help=(remedy,))


def _neighbour(path: Path) -> str | None:
    try:
        return nearest(path.name, [entry.name for entry in path.parent.iterdir()])
    except OSError:
        return None


def _not_utf8(name: str, data: bytes, offset: int) -> Diagnostic:
    source = Source(name, data.decode("utf-8", errors="replace"))
    at = len(data[:offset].decode("utf-8"))
    span = Span(source, at, at + 1)
    message = f"byte {offset} of `{name}`, on line {span.line}, is not UTF-8: 0x{data[offset]:02x}"
    return Diagnostic("E-READ-002", message, span, help=("save the file as UTF-8",))
