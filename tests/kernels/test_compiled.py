"""Kernels of the examples and of the samples as machine code of three cards: they compile, and nothing spills."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import sexpgpu.ir.ops  # noqa: F401
from sexpgpu.backend.kernels.cuda import (
    module_source,
    print_copy,
    print_step,
    workspace_bound,
    workspace_bytes,
)
from sexpgpu.backend.kernels.launch import Launch
from sexpgpu.backend.kernels.printer import supported
from sexpgpu.ir.opdef import OPS, Sample
from sexpgpu.lang.load import load_experiment
from sexpgpu.plan.memory import MemoryProfile, plan_memory
from sexpgpu.plan.phase import PhasePlan
from sexpgpu.plan.unroll import unroll_program
from sexpgpu.train.phases import assemble
from tests.kernels.larger import LARGER
from tests.kernels.nvrtc import compile_unit, spills
from tests.kernels.test_samples import OPERATIONS, case

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.sx"))
ARCHS = ("sm_80", "sm_90a", "sm_100")
LOOPS = ("memory-table", "names-lstm", "reinforce", "ssm")
"""Examples whose loops are written out trip by trip: compiled in small, where there are fewer trips."""
KERNELS_AT_A_TIME = 100

try:
    from cuda.bindings import nvrtc  # noqa: F401
except ImportError:
    HAS_NVRTC = False
else:
    HAS_NVRTC = True

needs_nvrtc = pytest.mark.skipif(not HAS_NVRTC, reason="needs nvidia-cuda-nvrtc and cuda-bindings")


def settings(path: Path, folder: Path) -> dict[str, str]:
    """What an example needs beside itself: digits-mlp reads a file of images and labels."""
    if "digits.npz" not in path.read_text(encoding="utf-8"):
        return {}
    digits = folder / "digits.npz"
    np.savez(digits, image=np.zeros((600, 64), np.float32), label=np.arange(600, dtype=np.int32) % 10)
    return {"digits": str(digits)}


def phases(plan: PhasePlan) -> Iterator[PhasePlan]:
    yield plan
    if plan.apply is not None:
        yield from phases(plan.apply)


def kernels(path: Path, variant: str | None, tmp_path: Path) -> list[Launch]:
    """The distinct kernels of an example."""
    experiment = load_experiment(path, variant=variant, settings=settings(path, tmp_path))
    plan = plan_memory(unroll_program(assemble(experiment).program), MemoryProfile("card"))
    found: dict[str, Launch] = {}
    for outer in plan.phases.values():
        for phase in phases(outer):
            for step in phase.steps:
                assert supported(step.node), step.node
                found |= {launch.name: launch for launch in print_step(step)}
                assert sum(-(-n // 16) * 16 for n in workspace_bytes(step)) <= workspace_bound(step.node), step
            for copy in (*phase.saves, *phase.commits):
                found |= {launch.name: launch for launch in print_copy(copy)}
    return list(found.values())


def check(launches: list[Launch], arch: str) -> None:
    # The exact sine of a large number keeps digits of 2/π in a local array.
    framed = {launch.name for launch in launches if "sinf(" in launch.source or "cosf(" in launch.source}
    for start in range(0, len(launches), KERNELS_AT_A_TIME):
        log = compile_unit(module_source(launches[start : start + KERNELS_AT_A_TIME]), arch)
        found = spills(log, framed)
        assert not found, "\n".join(found)


@needs_nvrtc
def test_a_sample_of_kernels_compiles() -> None:
    """One layout of one sample of each operation."""
    launches = [
        launch
        for number, name in enumerate(OPERATIONS)
        for launch in print_step(case(name, _pick(name, number), "contiguous", 0).step)
    ]
    check(list({launch.name: launch for launch in launches}.values()), "sm_90a")


def _pick(name: str, number: int) -> Sample:
    samples = [s for s in OPS[name].samples if all(t.size for t in s.types)]
    return samples[number % len(samples)]


@needs_nvrtc
@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("variant", [None, "smoke"])
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_kernels_of_examples_compile_and_do_not_spill(
    path: Path, variant: str | None, arch: str, tmp_path: Path
) -> None:
    if variant is not None and f"(defvariant {variant}" not in path.read_text(encoding="utf-8"):
        pytest.skip("it has no such variant")
    if variant is None and path.stem in LOOPS:
        pytest.skip("its loops are written out, which in full takes long")
    launches = kernels(path, variant, tmp_path)
    assert launches
    check(launches, arch)


@needs_nvrtc
@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_kernels_of_samples_compile_and_do_not_spill(name: str, arch: str) -> None:
    cases = [
        case(name, sample, layout, 0)
        for sample in (*OPS[name].samples, *LARGER.get(name, ()))
        for layout in (("contiguous", "transposed") if sample.types else ("contiguous",))
    ]
    check(list({launch.name: launch for c in cases for launch in print_step(c.step)}.values()), arch)
