"""The kernels that the cuda device makes of every example, fused as it fuses them, as machine code: no card needed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sexpgpu.backend.cuda.device import CudaDevice
from sexpgpu.backend.cuda.lowering import lower
from sexpgpu.backend.kernels.cuda import module_source
from sexpgpu.backend.kernels.launch import Launch
from sexpgpu.backend.kernels.lowering import Kernel
from sexpgpu.lang.load import load_experiment
from sexpgpu.plan.memory import plan_memory
from sexpgpu.plan.unroll import unroll_program
from sexpgpu.train.phases import assemble
from tests.cuda.fake import PRINTED, FakeDriver, toolbox
from tests.kernels.nvrtc import compile_unit, spills
from tests.kernels.test_compiled import LOOPS, settings

nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="needs nvidia-cuda-nvrtc and cuda-bindings")

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.sx"))
VARIANTS = [(path, "smoke" if path.stem in LOOPS else None) for path in EXAMPLES]
PLAIN = [pytest.param(path, variant, "sm_90a", id=f"{path.stem}-sm_90a") for path, variant in VARIANTS]
OTHERS = [
    pytest.param(path, variant, arch, id=f"{path.stem}-{arch}", marks=pytest.mark.slow)
    for arch in ("sm_80", "sm_100")
    for path, variant in VARIANTS
]
KERNELS_AT_A_TIME = 100
SPILLING = {("gpt2", "sm_100"): 2}
"""Kernels that may spill 8 bytes: gradients of layer-norm with what is fused to them, whose 192 threads sum columns in
registers. For sm_100 ptxas is short of one pair of registers, for the others it is not; no such card has been timed."""


def launches(path: Path, variant: str | None, folder: Path) -> list[Launch]:
    """The distinct kernels of an example."""
    experiment = load_experiment(path, variant=variant, settings=settings(path, folder))
    tools = replace(toolbox(FakeDriver()), **PRINTED)  # type: ignore[arg-type]
    plan = plan_memory(unroll_program(assemble(experiment).program), CudaDevice(tools).profile)
    found: dict[str, Launch] = {}
    for phase in plan.phases.values():
        lowered = lower(phase, tools)
        for part in (lowered, lowered.apply):
            for action in part.actions if part is not None else ():
                if isinstance(action, Kernel):
                    found[action.launch.name] = action.launch
    return list(found.values())


@pytest.mark.parametrize("path, variant, arch", [*PLAIN, *OTHERS])
def test_kernels_of_an_example_compile_and_do_not_spill(
    path: Path, variant: str | None, arch: str, tmp_path: Path
) -> None:
    found = launches(path, variant, tmp_path)
    assert found
    # The exact sine of a large number keeps digits of 2/π in a local array: a frame, though nothing spills.
    framed = {launch.name for launch in found if "sinf(" in launch.source or "cosf(" in launch.source}
    wrong: list[str] = []
    for start in range(0, len(found), KERNELS_AT_A_TIME):
        wrong += spills(compile_unit(module_source(found[start : start + KERNELS_AT_A_TIME]), arch), framed)
    small = [line for line in wrong if line.startswith("rows_") and ", 8 bytes spill stores, 8 bytes spill" in line]
    assert len(small) == SPILLING.get((path.stem, arch), 0) and small == wrong, "\n".join(wrong)
