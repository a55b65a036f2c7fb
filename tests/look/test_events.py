"""Event files: read back by a reader of another kind, and by TensorBoard's own where it is installed."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from sexpgpu.look.events import FILE_NAME, _checksum, event_file
from sexpgpu.look.record import read_run
from sexpgpu.look.series import read_stream
from sexpgpu.train.folder import RunFolder
from tests.train.test_resume import invoke
from tests.train.trial import write_experiment

TEXT = """
(defmetric miss ()
  (measure pair (* step (ones (f32 2))))
  (square (param p (f32) 3.0)))
(defeval look :batches 1 miss)
(defrun go :loss miss :steps 9 :optimizer (sgd :rate 0.1) :evaluate (every 4 look) :checkpoint (every 3))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that was cut after step 5 and resumed."""
    path = tmp_path_factory.mktemp("events")
    write_experiment(path, TEXT, "tiny.sx")
    assert invoke(path, "run", "tiny.sx", "--quiet", "--steps", "5").exit_code == 0
    assert invoke(path, "run", "tiny.sx", "--quiet", "--resume", "latest").exit_code == 0
    return path


def expected(folder: Path) -> dict[str, list[tuple[int, float]]]:
    series = read_stream(folder / "runs" / "tiny" / "metrics.jsonl").series
    return {
        name: [(int(step), float(np.float32(value))) for step, value in zip(each.steps, each.values, strict=True)]
        for name, each in series.items()
    }


def fields(data: bytes) -> list[tuple[int, object]]:
    """The fields of a message: number and value, by their wire types."""
    found: list[tuple[int, object]] = []
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        key = varint()
        match key & 7:
            case 0:
                found.append((key >> 3, varint()))
            case 1:
                found.append((key >> 3, struct.unpack("<d", data[at : at + 8])[0]))
                at += 8
            case 2:
                size = varint()
                found.append((key >> 3, data[at : at + size]))
                at += size
            case 5:
                found.append((key >> 3, struct.unpack("<f", data[at : at + 4])[0]))
                at += 4
    return found


def test_the_checksum_is_that_of_the_standard() -> None:
    # RFC 3720, B.4: 32 bytes of zeros give 0x8a9136aa; masked as TensorFlow does.
    crc = 0x8A9136AA
    assert _checksum(bytes(32)) == struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def test_every_point_is_in_the_file(folder: Path) -> None:
    result = invoke(folder, "tensorboard", "tiny")
    assert result.exit_code == 0 and "tensorboard --logdir runs/tiny/tensorboard" in result.output
    data = (folder / "runs" / "tiny" / "tensorboard" / FILE_NAME).read_bytes()
    found: dict[str, list[tuple[int, float]]] = {}
    times = []
    first = True
    while data:
        (size,) = struct.unpack("<Q", data[:8])
        message, data = data[12 : 12 + size], data[16 + size :]
        event = dict(fields(message))
        if first:
            assert event[3] == b"brain.Event:2"
            first = False
            continue
        times.append(event[1])
        for number, value in fields(event[5]):
            assert number == 1
            tag, number_of = dict(fields(value))[1], dict(fields(value))[2]
            found.setdefault(tag.decode(), []).append((event[2], number_of))
    assert found == expected(folder)
    assert times == sorted(times)
    began = json.loads((folder / "runs" / "tiny" / "run.json").read_text())["sessions"]
    assert len(began) == 2 and times[0] > 1.6e9


def test_tensorboard_reads_it(folder: Path, tmp_path: Path) -> None:
    module = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    assert invoke(folder, "tensorboard", "tiny", "--out", str(tmp_path)).exit_code == 0
    read = module.EventAccumulator(str(tmp_path), size_guidance={module.SCALARS: 0}).Reload()
    found = {tag: [(e.step, e.value) for e in read.Scalars(tag)] for tag in read.Tags()["scalars"]}
    assert found == expected(folder)


def test_numbers_that_f32_does_not_hold_and_steps_of_many_digits(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.metrics.write_text(
        '{"step": 5000000000, "series": "a", "value": 1e300}\n{"step": 5000000000, "series": "b", "value": "nan"}\n'
    )
    data = event_file(read_run(run))
    event = dict(fields(data[len(data) - 4 - _last_size(data) : -4]))
    assert event[2] == 5_000_000_000
    values = [dict(fields(v))[2] for _, v in fields(event[5])]
    assert values[0] == float("inf") and values[1] != values[1]


def _last_size(data: bytes) -> int:
    size = 0
    while data:
        (size,) = struct.unpack("<Q", data[:8])
        data = data[16 + size :]
    return size
