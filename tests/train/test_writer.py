"""Saving on a thread: what a step waits for, what is written, and what becomes of a write that fails."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from sexpgpu.backend.cpu.device import CpuDevice
from sexpgpu.backend.protocol import Budget
from sexpgpu.diagnostics import DiagnosticError
from sexpgpu.ir.builder import Builder
from sexpgpu.ir.program import Program, Slot
from sexpgpu.ir.types import TensorType
from sexpgpu.train.checkpoint import load
from sexpgpu.train.store import FolderStore, Seal
from sexpgpu.train.writer import NICENESS, CheckpointWriter
from tests.train.test_checkpoint import meta_of, names, tensors_of


class Gated(FolderStore):
    """A folder into which nothing is written before `gate` is open. entered: who came to it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        object.__setattr__(self, "gate", threading.Event())
        object.__setattr__(self, "entered", [])

    def publish(self, name: str, pieces: Iterable[memoryview], seal: Seal) -> None:
        self.entered.append((name, threading.current_thread()))  # type: ignore[attr-defined]
        assert self.gate.wait(30)  # type: ignore[attr-defined]
        super().publish(name, pieces, seal)


def begin(writer: CheckpointWriter, step: int, seed: int = 0) -> None:
    tensors = tensors_of(seed)
    writer.begin(step, lambda: tensors, meta_of(tensors))


def test_a_step_does_not_wait_for_the_write(tmp_path: Path) -> None:
    store = Gated(tmp_path)
    writer = CheckpointWriter(store, 3)
    begin(writer, 1)
    assert writer.saved() is None and names(tmp_path) == []
    store.gate.set()
    writer.wait()
    ((name, thread),) = store.entered
    assert name == "step-00000001" and thread is not threading.current_thread()
    assert (writer.saved(), writer.saved()) == ("step-00000001", None)


def test_one_write_at_a_time(tmp_path: Path) -> None:
    store = Gated(tmp_path)
    writer = CheckpointWriter(store, 3)
    begin(writer, 1)
    second = threading.Thread(target=begin, args=(writer, 2))
    second.start()
    second.join(0.1)
    assert second.is_alive() and [name for name, _ in store.entered] == ["step-00000001"]
    store.gate.set()
    second.join(30)
    writer.wait()
    assert names(tmp_path) == ["step-00000001", "step-00000002"]


def test_a_write_that_fails_is_told_once_and_leaves_what_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = CheckpointWriter(FolderStore(tmp_path), 3)
    begin(writer, 1)
    writer.wait()
    write = os.write

    def full(descriptor: int, data: bytes) -> int:
        if len(data) > 100:
            raise OSError(28, "No space left on device")
        return write(descriptor, data)

    for tell in (writer.wait, lambda: begin(writer, 3), writer.saved):
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            begin(writer, 2)
            assert writer._thread is not None
            writer._thread.join()
        with pytest.raises(DiagnosticError, match="no space is left"):
            tell()
        writer.wait()
    assert names(tmp_path) == ["step-00000001"]
    begin(writer, 4)
    writer.wait()
    assert names(tmp_path) == ["step-00000001", "step-00000004"]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a priority is of a whole process")
def test_the_write_gives_way_to_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []

    class Watching(FolderStore):
        def publish(self, name: str, pieces: Iterable[memoryview], seal: Seal) -> None:
            found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    writer = CheckpointWriter(Watching(tmp_path), 3)
    begin(writer, 1)
    writer.wait()
    writer.save(2, {}, meta_of({}))
    assert found == [NICENESS, before] and before < NICENESS


def program() -> Program:
    types = {"w": TensorType("f32", (1500, 1000)), "h": TensorType("bf16", (3, 5)), "n": TensorType("i64", ())}
    slots = [Slot(name, type, "parameter") for name, type in types.items()]
    return Program((*slots, Slot("g", types["w"], "gradient")), (), Builder().graph("schedule", []))


def test_what_is_written_is_the_state_of_the_moment(tmp_path: Path) -> None:
    device = CpuDevice(threads=2)
    session = device.open(device.plan(program(), Budget(snapshot=True)))
    try:
        values = {
            "w": np.arange(1_500_000, dtype=np.float32).reshape(1500, 1000),
            "h": np.ones((3, 5), session.read("h").result().dtype),
            "n": np.array(7, np.int64),
        }
        for name, value in values.items():
            session.write(name, value)
        store = Gated(tmp_path)
        writer = CheckpointWriter(store, 3)
        writer.begin(1, session.snapshot, meta_of(values))
        for name, value in values.items():
            session.write(name, value * 0)
        store.gate.set()
        writer.wait()
        found = load(store, "step-00000001").tensors
        assert found.keys() == values.keys()
        for name, value in values.items():
            np.testing.assert_array_equal(found[name], value)
        copies = session.snapshot()
        assert all(session.snapshot()[name] is copy for name, copy in copies.items()), "the memory is used again"
    finally:
        session.close()


def test_the_plan_counts_the_copy() -> None:
    device = CpuDevice(threads=1)
    plain, saving = (device.plan(program(), Budget(snapshot=snapshot)) for snapshot in (False, True))
    copied = saving.peak_bytes - plain.peak_bytes
    assert copied == saving.parts()["checkpoint copy"] == saving.slot_bytes["parameter"]
    assert "checkpoint copy" not in plain.parts()
