"""Examples with C kernels: the same losses as the interpreter's, and the same bits for any number of threads."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from sexpgpu.backend.cpu.device import CpuDevice
from sexpgpu.backend.protocol import Budget
from sexpgpu.train.loop import Stepper
from sexpgpu.train.phases import assemble
from tests.backend.native import compiler
from tests.examples.test_examples import FILES, TINY, load, settings

__all__ = ["settings"]
ORDINARY = ("char-gpt", "moe", "names-lstm", "tiny-adam")
"""Files that the test command runs: transformers, experts, loops, something small."""
NUM_STEPS = 3


def losses(name: str, given: Callable[[str], dict[str, str]], device: CpuDevice) -> list[float]:
    experiment = load(name, given, None if name in TINY | {"tiny-adam"} else "smoke")
    assembly = assemble(experiment)
    session = device.open(device.plan(assembly.program, Budget()))
    stepper = Stepper(experiment, assembly, session, experiment.run.steps)
    stepper.initialise()
    found = [result.loss for step in range(1, NUM_STEPS + 1) for result in stepper.step(step).values()]
    stepper.close()
    session.close()
    return found


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in ORDINARY else pytest.mark.slow) for name in FILES]
)
def test_losses_are_those_of_the_interpreter(name: str, settings: Callable[[str], dict[str, str]]) -> None:
    wanted = losses(name, settings, CpuDevice(threads=1))
    one, three = (losses(name, settings, CpuDevice(threads=n, compiler=compiler())) for n in (1, 3))
    assert one == three
    np.testing.assert_allclose(one, wanted, 5e-3 if name == "gpt2" else 1e-4, 1e-6)
