"""Whole experiments on the card made of host memory, beside the cpu device."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from sexpgpu.backend.cpu.device import CpuDevice
from sexpgpu.backend.cuda.device import CudaDevice
from sexpgpu.backend.cuda.lowering import Attend, Product, lower
from sexpgpu.backend.protocol import Budget, Device
from sexpgpu.lang.load import load_experiment
from sexpgpu.train.loop import Stepper
from sexpgpu.train.phases import assemble
from tests.cuda.fake import FakeDriver, toolbox

EXAMPLES = Path(__file__).parents[2] / "examples"


def losses(device: Device, file: str | Path, num_steps: int, **options: str) -> list[float]:
    experiment = load_experiment(EXAMPLES / file, **options)  # type: ignore[arg-type]
    assembly = assemble(experiment)
    session = device.open(device.plan(assembly.program, Budget()))
    stepper = Stepper(experiment, assembly, session, experiment.run.steps)
    try:
        stepper.initialise()
        return [next(iter(stepper.step(i + 1).values())).loss for i in range(num_steps)]
    finally:
        stepper.close()
        session.close()


@pytest.mark.parametrize("options", [{}, {"cudnn": False}, {"refuses_windows": True}, {"refuses": True}], ids=str)
def test_bf16_attention(options: dict[str, bool]) -> None:
    cuda = CudaDevice(toolbox(FakeDriver(), **options))
    num_steps = 1 if options else 2
    found = losses(cuda, "gpt2.sx", num_steps, variant="smoke")
    wanted = losses(CpuDevice(threads=1), "gpt2.sx", num_steps, variant="smoke")
    np.testing.assert_allclose(found, wanted, 2e-3)


def test_two_sessions_use_their_own_streams() -> None:
    """cuDNN's handle has one stream; a session that was opened later, and closed, must not leave its own behind."""
    tools = toolbox(FakeDriver())
    cuda = CudaDevice(tools)
    experiment = load_experiment(EXAMPLES / "gpt2.sx", variant="smoke")
    assembly = assemble(experiment)
    sessions = [cuda.open(cuda.plan(assembly.program, Budget())) for _ in range(2)]
    steppers = [Stepper(experiment, assembly, session, experiment.run.steps) for session in sessions]
    for stepper in steppers:
        stepper.initialise()
    found = [next(iter(stepper.step(1).values())).loss for stepper in steppers]
    assert found[0] == found[1]
    assert len(set(tools.cudnn.used)) == 2  # type: ignore[union-attr]
    steppers[1].close()
    sessions[1].close()
    steppers[0].step(2)
    steppers[0].close()
    sessions[0].close()


def test_f32() -> None:
    cuda = CudaDevice(toolbox(FakeDriver()))
    found = losses(cuda, "names-bigram.sx", 3)
    np.testing.assert_allclose(found, losses(CpuDevice(threads=1), "names-bigram.sx", 3), 1e-5)


def test_steps_of_two_results() -> None:
    """`top-k` gives values and places; routing reads both, and the gradient goes back through the places."""
    cuda = CudaDevice(toolbox(FakeDriver()))
    found = losses(cuda, "moe.sx", 2, variant="smoke")
    np.testing.assert_allclose(found, losses(CpuDevice(threads=1), "moe.sx", 2, variant="smoke"), 1e-4)


def test_what_the_transformer_becomes() -> None:
    tools = toolbox(FakeDriver())
    device = CudaDevice(tools)
    plan = device.plan(assemble(load_experiment(EXAMPLES / "gpt2.sx", variant="smoke")).program, Budget())
    first = next(phase for name, phase in plan.phases.items() if name.endswith(".first"))
    lowered = lower(first, tools)
    kinds = Counter(type(action) for action in lowered.actions)
    assert kinds[Attend] == 4, "two layers, forward and backward"
    products = [action for action in lowered.actions if isinstance(action, Product)]
    assert all(len(p.gemm.offsets) == 1 for p in products) and lowered.kinds.count("pack") == 0
    narrow = [p for p in products if p.gemm.out_dtype == "bf16"]
    assert narrow, "a product whose only reader casts it writes bf16 itself"
