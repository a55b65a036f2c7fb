"""Whole experiments through the real host code of the metal device, beside the cpu's interpreter."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sexpgpu.backend.cpu.device import CpuDevice
from sexpgpu.backend.protocol import Budget, Device
from sexpgpu.lang.load import load_experiment
from sexpgpu.train.loop import Stepper
from sexpgpu.train.phases import assemble
from tests.kernels.test_compiled import settings
from tests.lanes.unit import compiler
from tests.metal.mac import mac

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs g++")

EXAMPLES = Path(__file__).parents[2] / "examples"


def losses(device: Device, file: str, num_steps: int, **options: object) -> list[float]:
    experiment = load_experiment(EXAMPLES / file, **options)  # type: ignore[arg-type]
    assembly = assemble(experiment)
    plan = device.plan(assembly.program, Budget())
    session = device.open(plan)
    stepper = Stepper(experiment, assembly, session, experiment.run.steps)
    try:
        stepper.initialise()
        found = [next(iter(stepper.step(i + 1).values())).loss for i in range(num_steps)]
    finally:
        stepper.close()
        session.close()
    return found


ALL = sorted(EXAMPLES.glob("*.sx"))
SMALL = {
    "tiny-sgd.sx": (20, {}, 1e-5),
    "tiny-adam.sx": (3, {"variant": "smoke"}, 1e-5),
    "char-gpt.sx": (2, {"variant": "smoke"}, 1e-5),
}


@pytest.mark.parametrize("file", SMALL)
def test_losses(file: str) -> None:
    num_steps, options, tolerance = SMALL[file]
    found = losses(mac()[0], file, num_steps, **options)
    np.testing.assert_allclose(found, losses(CpuDevice(threads=1), file, num_steps, **options), tolerance)


def test_the_report_names_attention_and_the_texts_are_there() -> None:
    device = mac()[0]
    plan = device.plan(assemble(load_experiment(EXAMPLES / "char-gpt.sx", variant="smoke")).program, Budget())
    lines = [" ".join(line.split()) for line in device.lowering(plan)]
    assert "taken attention-gradient × 2: generated kernel" in lines
    assert not any("missed attention" in line for line in lines)
    assert any(line.startswith("attention × 6 attention, in kernels of its own") for line in lines), lines
    texts = device.kernels(plan)
    assert texts and all(f"kernel void {name}(" in text for name, text in texts.items())


@pytest.mark.slow
@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_a_step_of_every_example(path: Path, tmp_path: Path) -> None:
    options = {"variant": "smoke"} if "defvariant smoke" in path.read_text("utf-8") else {}
    device = mac(max_buffer=1 << 32, working_set=1 << 34, order="shuffled")[0]
    found, wanted = (
        losses(each, path.name, 1, settings=settings(path, tmp_path), **options) for each in (device, CpuDevice())
    )
    np.testing.assert_allclose(found, wanted, 1e-4, 1e-6)
