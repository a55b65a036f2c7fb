"""The cpu device against the plain executor, on random programs and in every mode."""

import numpy as np
import pytest

from sexpgpu.backend.cpu import blocks, steps
from sexpgpu.backend.cpu.device import CpuDevice
from sexpgpu.backend.cpu.memory import Memory
from sexpgpu.backend.cpu.session import CpuSession
from sexpgpu.backend.protocol import Budget, Call
from sexpgpu.plan.phase import Step
from tests.backend.random_programs import random_program, reference_call

SEEDS = range(60)


def check(seed: int, device: CpuDevice, rtol: float = 2e-5) -> None:
    program, contents, feeds = random_program(seed)
    session = device.open(device.plan(program, Budget()))
    for name, array in contents.items():
        session.write(name, array)
    for _ in range(2):
        for phase in program.phases:
            expected = reference_call(phase, contents, feeds[phase.name], device.double)
            (outputs,) = session.run([Call(phase.name, feeds[phase.name])]).result()
            assert not outputs.faults
            for name, array in expected.items():
                np.testing.assert_allclose(outputs.results[name], array, rtol, 1e-6, err_msg=name)
            for name, array in contents.items():
                np.testing.assert_allclose(session.read(name).result(), array, rtol, 1e-6, err_msg=name)
    session.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_poisoned_arena_changes_nothing(seed: int) -> None:
    check(seed, CpuDevice(threads=1, poison=True))


@pytest.mark.parametrize("seed", SEEDS)
def test_runs_of_blocks(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every elementwise step goes through blocks of a few elements, shared by two threads."""
    monkeypatch.setattr(steps, "MIN_ELEMENTS", 1)
    monkeypatch.setattr(blocks, "BLOCK_ELEMENTS", 5)
    monkeypatch.setattr(blocks, "SHARED_ELEMENTS", 1)
    check(seed, CpuDevice(threads=2))


@pytest.mark.parametrize("seed", SEEDS[:20])
def test_double_precision(seed: int) -> None:
    check(seed, CpuDevice(threads=1, double=True), rtol=1e-11)


@pytest.mark.parametrize("seed", SEEDS[:20])
def test_a_step_touches_nothing_but_its_outputs(seed: int) -> None:
    program, contents, feeds = random_program(seed)
    device = CpuDevice(threads=1, poison=True)
    session = device.open(device.plan(program, Budget()))
    for name, array in contents.items():
        session.write(name, array)
    for prepared in session._phases.values():
        for name, (_, staging) in prepared.feeds.items():
            staging[...] = feeds[prepared.plan.phase.name][name]
        for call, step in zip(prepared.calls, prepared.plan.steps, strict=True):
            before = untouched(session, step)
            call()
            after = untouched(session, step)
            assert before == after, step


def untouched(session: CpuSession, step: Step) -> dict[str, bytes]:
    """All buffers, without the elements that the step writes."""
    kept = {name: buffer.copy() for name, buffer in session._memory.buffers.items()}
    memory = Memory(kept, session._memory.dtypes)
    for layout, type in zip(step.outputs, step.node.types, strict=True):
        if type.size:
            memory.view(layout, type)[...] = 0
    return {name: buffer.tobytes() for name, buffer in kept.items()}
