"""Every sample of every operation: the session against the plain executor, poisoned and in blocks."""

from __future__ import annotations

import numpy as np
import pytest

from sexpgpu.backend.cpu import blocks, steps
from sexpgpu.backend.cpu.device import CpuDevice
from sexpgpu.backend.protocol import Budget, Call
from sexpgpu.ir.builder import Builder
from sexpgpu.ir.evaluate import evaluate
from sexpgpu.ir.program import Phase, Program
from sexpgpu.train.samples import Case, cases

CASES = [pytest.param(case, id=case.name) for case in cases()]


@pytest.mark.parametrize("blocked", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_session_equals_the_plain_executor(
    case: Case, blocked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if blocked:
        monkeypatch.setattr(steps, "MIN_ELEMENTS", 1)
        monkeypatch.setattr(blocks, "BLOCK_ELEMENTS", 5)
        monkeypatch.setattr(blocks, "SHARED_ELEMENTS", 1)
    graph, feeds = case.graph(), case.feeds()
    device = CpuDevice(threads=1, poison=not blocked)
    program = Program((), (Phase("p", graph),), Builder().graph("schedule", []))
    session = device.open(device.plan(program, Budget()))
    (outputs,) = session.run([Call("p", feeds)]).result()
    flagged: list[str] = []
    expected = evaluate(
        graph,
        {f"feed:{key}": array for key, array in feeds.items()},
        flag=lambda node, message: flagged.append(message),
    )
    assert len(outputs.results) == len(graph.outputs)
    for name, found in outputs.results.items():
        wanted = expected[f"result:{name}"]
        assert found.dtype == wanted.dtype and found.shape == wanted.shape
        np.testing.assert_allclose(found.astype(np.float64), wanted.astype(np.float64), 1e-6, 1e-6)
    assert [fault.message for fault in outputs.faults] == list(dict.fromkeys(flagged))
