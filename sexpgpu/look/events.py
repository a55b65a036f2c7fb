"""A run's series as a file that TensorBoard reads: records with checksums around `Event` messages.

A record is its length (u64), that length's checksum (u32), the data, and the data's checksum, little-endian; the
checksum is CRC-32C, rotated and shifted. The messages have five fields, so they are encoded here, without a library.

Source: `tensorflow/core/lib/io/record_writer.h`, `tensorflow/core/util/event.proto` and
`tensorflow/core/framework/summary.proto` of TensorFlow.
"""

from __future__ import annotations

import datetime
import struct
from collections.abc import Iterator, Mapping
from typing import Any

from sexpgpu.look.record import RunRecord

FILE_NAME = "events.out.tfevents.sexpgpu"
"""TensorBoard takes every file for one of its own whose name holds `tfevents`."""

_POLYNOMIAL = 0x82F63B78  # CRC-32C, lowest bit first


def _table() -> list[int]:
    found = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ _POLYNOMIAL * (byte & 1)
        found.append(byte)
    return found


_TABLE = _table()


def event_file(run: RunRecord) -> bytes:
    """The whole file. A step's events carry the time at which it ended, as far as the run has recorded times."""
    by_step: dict[int, list[tuple[str, float]]] = {}
    for name, series in run.stream.series.items():
        for step, value in zip(series.steps.tolist(), series.values.tolist(), strict=True):
            by_step.setdefault(step, []).append((name, value))
    times = dict(_times(run, sorted(by_step)))
    records = [_record(_event(_began(run.facts), 0) + _text(3, "brain.Event:2"))]
    for step in sorted(by_step):
        summary = b"".join(_message(1, _text(1, name) + _float(2, value)) for name, value in by_step[step])
        records.append(_record(_event(times[step], step) + _message(5, summary)))
    return b"".join(records)


# --- times --------------------------------------------------------------------------------------------------


def _sessions(facts: Mapping[str, Any]) -> list[tuple[int, float]]:
    """The step after which each process began, and when."""
    found = []
    for session in facts.get("sessions", []):
        began = datetime.datetime.fromisoformat(session["began"])
        found.append((int(session["after"]), began.timestamp()))
    return found


def _began(facts: Mapping[str, Any]) -> float:
    return next((began_s for _, began_s in _sessions(facts)), 0.0)


def _times(run: RunRecord, steps: list[int]) -> Iterator[tuple[int, float]]:
    """When each step ended: the beginning of its process, and the time of all steps since."""
    spent = run.stream.series.get("runtime/step_ms")
    lasted = {} if spent is None else dict(zip(spent.steps.tolist(), spent.values.tolist(), strict=True))
    sessions = _sessions(run.facts)
    now_s, last = _began(run.facts), 0
    for step in steps:
        now_s = max([now_s, *(began_s for after, began_s in sessions if last <= after < step)])
        now_s += lasted.get(step, 0.0) / 1e3
        last = step
        yield step, now_s


# --- the format ---------------------------------------------------------------------------------------------


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return b"".join((length, _checksum(length), data, _checksum(data)))


def _checksum(data: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _event(time_s: float, step: int) -> bytes:
    return b"\x09" + struct.pack("<d", time_s) + b"\x10" + _varint(step)


def _float(number: int, value: float) -> bytes:
    try:
        return bytes((number << 3 | 5,)) + struct.pack("<f", value)
    except OverflowError:  # beyond f32
        return bytes((number << 3 | 5,)) + struct.pack("<f", float("inf") if value > 0 else float("-inf"))


def _text(number: int, text: str) -> bytes:
    return _message(number, text.encode("utf-8", "backslashreplace"))


def _message(number: int, data: bytes) -> bytes:
    return bytes((number << 3 | 2,)) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
