"""The watch over memory sees what it is for: planted writes where nothing lives, memory given back early."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import sexpgpu.ir.ops  # noqa: F401
from sexpgpu.backend.cpu.device import CpuDevice
from sexpgpu.backend.cpu.session import CpuSession
from sexpgpu.backend.protocol import Budget, Call
from sexpgpu.ir.builder import Builder
from sexpgpu.ir.opdef import Array
from sexpgpu.ir.program import Phase, Program, Slot
from sexpgpu.ir.types import TensorType
from sexpgpu.plan.layout import ARENA
from sexpgpu.plan.memory import ProgramPlan
from tests.backend.native import compiler

F = TensorType("f32", (48,))
X = np.arange(48, dtype=np.float32) / 48


def program() -> Program:
    b = Builder()
    x, w = b.input("feed:x", F), b.input("slot:w", F)
    made = b.op("exp", b.op("mul", x, b.literal(list(np.linspace(-1, 1, 48)), F)))
    down = b.op("sum", made, axes=(0,))
    kept = b.op("add", b.op("mul", made, b.broadcast(down, (48,), ())), w)
    graph = b.graph("p", [("result:y", b.op("sum", kept, axes=(0,))), ("slot:w", kept)])
    return Program((Slot("w", F, "parameter"),), (Phase("p", graph),), Builder().graph("schedule", []))


def opened(fused: bool, change: Callable[[ProgramPlan], ProgramPlan] = lambda plan: plan) -> CpuSession:
    device = CpuDevice(threads=2, poison=True, fused=fused, compiler=compiler() if fused else None)
    return device.open(change(device.plan(program(), Budget())))


def called(session: CpuSession) -> Array:
    (outputs,) = session.run([Call("p", {"x": X})]).result()
    return outputs.results["y"]


def planted(session: CpuSession, write: Callable[[CpuSession], None]) -> None:
    """Have the last call of the phase write something more."""
    phase = session._phases["p"]
    *others, last = phase.calls

    def both() -> None:
        last()
        write(session)

    if hasattr(last, "run_each"):
        plain = last.run_each

        def each(done: Callable[[], None]) -> None:
            def then() -> None:
                write(session)
                done()

            plain(then)

        last.run_each = each
    else:
        session._phases["p"] = replace(phase, calls=[*others, both])


def arena(session: CpuSession) -> None:
    session._memory.buffers[ARENA][-1] = 0


def fence(session: CpuSession) -> None:
    assert session.sentinel is not None
    session.sentinel._fences["slot:w"][1][0] = 0


def constant(session: CpuSession) -> None:
    session._memory.buffers["constant:0"][:4] += 1


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(
    "write, said", [(arena, "nothing lives there"), (fence, "outside of slot:w"), (constant, "constant:0 was written")]
)
def test_planted_writes_are_seen(fused: bool, write: Callable[[CpuSession], None], said: str) -> None:
    session = opened(fused, lambda plan: replace(plan, arena_bytes=plan.arena_bytes + 64))
    assert np.isfinite(called(session))
    planted(session, write)
    with pytest.raises(AssertionError, match=said):
        called(session)
    session.close()


def early(plan: ProgramPlan) -> ProgramPlan:
    """All that is to die later dies with the first step."""
    (phase,) = plan.phases.values()
    first, *others = phase.steps
    dies = ((0, plan.arena_bytes),)
    steps = (replace(first, dies=dies), *[replace(step, dies=()) for step in others])
    return replace(plan, phases={"p": replace(phase, steps=steps)})


def test_memory_that_is_given_back_early_changes_the_result() -> None:
    plain, session = opened(False), opened(False, early)
    assert np.isfinite(called(plain)) and np.isnan(called(session))
    plain.close()
    session.close()
