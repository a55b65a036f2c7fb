"""The metrics stream of a run: `metrics.jsonl`, one JSON object a line, appended as the run goes.

    {"step": 3, "series": "train/loss", "value": 1.5}          a point; a small vector's value is a list
    {"step": 1, "annotation": "memory", "text": "…", …}        an annotation, with fields of its kind

NaN and infinities are the strings `nan`, `inf`, `-inf`, since JSON has no numbers for them. The loop writes
the stream; `report` and notebooks read it, also while the run is alive. A series has one value a step.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from sexpgpu.diagnostics import DiagnosticError
from sexpgpu.train import files

Number: TypeAlias = int | float
Value: TypeAlias = Number | list[Number]

_FLUSH_INTERVAL_S = 1.0
_MAX_BUFFER_BYTES = 1 << 20
_BLOCK_BYTES = 1 << 22
_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class MetricsWriter:
    """Appends points and annotations; what is written waits at most a second before the file has it.

    Without `resume_step` the stream starts empty. With it everything past that step is dropped, and a line
    that a crash left torn: the resumed run writes those steps again. Flush before a checkpoint is
    published, so that a crash after it cannot lose points that the resumed run will not repeat.

    Raises: E-IO-001
    """

    def __init__(self, path: str | os.PathLike[str], resume_step: int | None) -> None:
        self._path = Path(path)
        files.remove_leftovers(self._path)
        if resume_step is None:
            files.replace_atomic(self._path, b"")
        else:
            _drop_after(self._path, resume_step)
        with files.explaining("write", self._path):
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        self._lock = threading.Lock()
        self._buffer: list[bytes] = []
        self._buffer_bytes = 0
        self._failure: OSError | None = None
        self._closing = threading.Event()
        # A long step must not keep what came before it from readers, hence a thread and not a look at the
        # clock per call.
        self._flusher = threading.Thread(target=self._flush_regularly, name="metrics", daemon=True)
        self._flusher.start()

    def points(self, step: int, values: Mapping[str, Any]) -> None:
        """Add one point to each of several series; a value is a number, a scalar array, or a small vector.

        Raises: E-IO-001 (also for a write that failed in the background)
        """
        records = ({"step": step, "series": name, "value": _to_json(value)} for name, value in values.items())
        self._append(b"".join(map(_line, records)))

    def annotate(self, step: int, kind: str, text: str, **fields: Any) -> None:
        """Add an annotation: a kind, a text for people, and fields for programs.

        Raises: E-IO-001 (also for a write that failed in the background)
        """
        record = {"step": step, "annotation": kind, "text": text}
        assert not fields.keys() & {*record, "series", "value"}, f"annotation fields {sorted(fields)}"
        self._append(_line(record | {name: _to_json(value) for name, value in fields.items()}))

    def flush(self) -> None:
        """Hand everything to the system: from here on a crash of this process loses none of it.

        Raises: E-IO-001
        """
        with files.explaining("write", self._path), self._lock:
            self._write_buffer()
        self._failure = None

    def close(self) -> None:
        """Write everything, wait for the disk and close the file; a second call does nothing.

        Raises: E-IO-001
        """
        if self._closing.is_set():
            return
        self._closing.set()
        self._flusher.join()
        try:
            self.flush()
            with files.explaining("write", self._path):
                os.fsync(self._descriptor)
        finally:
            os.close(self._descriptor)

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # An error on the way out is the one to tell; a full disk would say the same again here.
        with contextlib.suppress(DiagnosticError) if kind is not None else contextlib.nullcontext():
            self.close()

    def _append(self, data: bytes) -> None:
        assert not self._closing.is_set(), "the metrics stream is closed"
        if self._failure is not None:
            raise files.io_error("write", self._path, self._failure) from self._failure
        with self._lock:
            self._buffer.append(data)
            self._buffer_bytes += len(data)
            is_full = self._buffer_bytes > _MAX_BUFFER_BYTES
        if is_full:
            self.flush()

    def _flush_regularly(self) -> None:
        while not self._closing.wait(_FLUSH_INTERVAL_S):
            try:
                with self._lock:
                    self._write_buffer()
            except OSError as error:
                self._failure = error  # the next call of the loop raises it

    def _write_buffer(self) -> None:
        """Write the buffer, whole or not at all: a full disk must not leave a torn line before later ones."""
        data = b"".join(self._buffer)
        if not data:
            return
        start = os.fstat(self._descriptor).st_size
        written = 0
        try:
            while written < len(data):
                written += os.write(self._descriptor, data[written:])
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, start)
            raise
        self._buffer.clear()
        self._buffer_bytes = 0


def read_metrics(path: str | os.PathLike[str]) -> dict[str, list[tuple[int, Value]]]:
    """Every series of a stream as (step, value) in order of step; a step written twice has its last value.

    Raises: E-IO-001
    """
    series: dict[str, dict[int, Value]] = {}
    for record in read_records(Path(path)):
        if isinstance(record.get("series"), str) and "value" in record:
            series.setdefault(record["series"], {})[record["step"]] = _from_json(record["value"])
    return {name: sorted(points.items()) for name, points in series.items()}


def read_annotations(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Every annotation of a stream, in the order written.

    Raises: E-IO-001
    """
    return [record for record in read_records(Path(path)) if "annotation" in record]


def plain_number(value: Any) -> Any:
    """A number as JSON can hold it: Python's own, NaN and infinities as their names; the rest unchanged."""
    if isinstance(value, np.generic) and value.dtype.kind not in "SUMmO":
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _to_json(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [_to_json(item) for item in value] if value.ndim else plain_number(value[()])
    if isinstance(value, list | tuple):
        return [_to_json(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _to_json(item) for key, item in value.items()}
    return plain_number(value)


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_json(item) for item in value]
    return _NON_FINITE.get(value, value) if isinstance(value, str) else value


def _line(record: Mapping[str, Any]) -> bytes:
    text = json.dumps(record, allow_nan=False, ensure_ascii=False)
    return text.encode("utf-8", "backslashreplace") + b"\n"  # half a surrogate pair as JSON's own escape


def _drop_after(path: Path, step: int) -> None:
    """Rewrite a stream, if there is one, without what lies past `step` and without torn lines."""
    if not path.exists():
        return
    with files.explaining("write", path), open(path, "rb") as old, files.replacing(path) as new:
        for line in old:
            record = _record(line)
            if record is not None and record["step"] <= step:
                new.write(line)
        new.flush()
        os.fsync(new.fileno())


def records(data: bytes) -> list[dict[str, Any]]:
    """The objects of all complete lines of a part of a stream that begins with a line; torn lines are left out."""
    lines = data.splitlines(keepends=True)
    whole = lines if data.endswith(b"\n") else lines[:-1]
    try:
        # One text for the parser is several times faster than a text a line.
        found = json.loads(b"[" + b",".join(whole) + b"]")
        if len(found) == len(whole) and all(map(_is_record, found)):
            return list(found)
    except (ValueError, RecursionError):
        pass
    return [record for record in map(_record, whole) if record is not None]


def read_records(path: Path, only: bytes = b"") -> Iterator[dict[str, Any]]:
    """Every point and annotation of a stream as its object; only: of the lines that contain these bytes.

    Raises: E-IO-001
    """
    with files.explaining("read", path), open(path, "rb") as stream:
        rest = b""
        while block := stream.read(_BLOCK_BYTES):
            complete, newline, rest_of_block = block.rpartition(b"\n")
            if not newline:
                rest += block
                continue
            lines = rest + complete + newline
            if only:
                lines = b"".join([line for line in lines.splitlines(keepends=True) if only in line])
            yield from records(lines)
            rest = rest_of_block


def _record(line: bytes) -> dict[str, Any] | None:
    """The object of a complete line; None for a torn one."""
    if not line.endswith(b"\n"):
        return None
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if _is_record(record) else None


def _is_record(record: object) -> bool:
    return isinstance(record, dict) and type(record.get("step")) is int
