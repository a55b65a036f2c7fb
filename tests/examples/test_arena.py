"""Every example in a watched arena: no byte outside of a live value is written, dead memory changes no result, and the
highest byte that is written is the last of the plan."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sexpgpu.backend.cpu.device import CpuDevice
from sexpgpu.backend.protocol import Budget
from sexpgpu.plan.arena import ALIGNMENT_BYTES
from sexpgpu.train.evaluation import run_evaluation
from sexpgpu.train.loop import Stepper
from sexpgpu.train.phases import assemble
from tests.backend.native import compiler
from tests.examples.test_examples import FILES, TINY, load, settings

__all__ = ["settings"]
SMALLER = {"gpt2": {"layers": "1", "width": "64", "vocab": "128"}}
NUM_STEPS = 2


def run(name: str, given: Callable[[str], dict[str, str]], device: CpuDevice) -> tuple[list[float], int, int]:
    """Losses and measures; the highest byte of the arena that was written, and the arena's length by the plan."""
    variant = None if name in TINY | {"tiny-adam"} else "smoke"
    experiment = load(name, given, variant, **SMALLER.get(name, {}))
    assembly = assemble(experiment)
    plan = device.plan(assembly.program, Budget())
    session = device.open(plan)
    stepper = Stepper(experiment, assembly, session, experiment.run.steps)
    stepper.initialise()
    found = [result.loss for step in range(1, NUM_STEPS + 1) for result in stepper.step(step).values()]
    for evaluation in experiment.evaluations.values():
        measured = run_evaluation(experiment, assembly.program, session, stepper.schedule, evaluation, NUM_STEPS)
        found += [float(value) for value in measured.values()]
    touched = session.sentinel.touched_bytes if session.sentinel is not None else 0
    stepper.close()
    session.close()
    return found, touched, plan.arena_bytes


@pytest.mark.parametrize("name", FILES)
def test_nothing_else_is_touched(name: str, settings: Callable[[str], dict[str, str]]) -> None:
    plain, _, _ = run(name, settings, CpuDevice(threads=2, compiler=compiler()))
    fused, touched, planned = run(name, settings, CpuDevice(threads=2, poison=True, fused=True, compiler=compiler()))
    assert fused == plain and touched <= planned
    alone, touched, planned = run(name, settings, CpuDevice(threads=2, poison=True, compiler=compiler()))
    assert planned - ALIGNMENT_BYTES < touched <= planned
    assert alone == pytest.approx(plain, rel=1e-3, abs=1e-5)
