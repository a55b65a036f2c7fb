"""`recompute` on cuda: bodies take their place when a phase is planned, and nothing merges them back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sexpgpu.backend.cpu.device import CpuDevice
from sexpgpu.backend.cuda.device import CudaDevice
from sexpgpu.backend.cuda.lowering import Product, lower
from sexpgpu.backend.kernels.cuda import module_source
from sexpgpu.backend.kernels.lowering import Kernel
from sexpgpu.backend.protocol import Budget, Device
from sexpgpu.lang.load import load_experiment
from sexpgpu.train.loop import Stepper
from sexpgpu.train.phases import Assembly, assemble
from tests.cuda.fake import PRINTED, FakeDriver, toolbox
from tests.kernels.nvrtc import compile_unit, spills
from tests.train.trial import write_experiment

DATA = {"x": np.random.default_rng(0).standard_normal((64, 16)).astype(np.float32)}
FILE = """
(defn block (x) (+ x (dropout (linear (gelu (linear (layer-norm x :name n) 64 :name up)) 16 :name down) 0.2)))
(defmodel net ((x (f32 _ _))) (repeat [i 4] [x x] (AGAIN (block x :name (block i)))))
(defdata rows-of (arrays "data.npz"))
(defloader train (rows rows-of) :batch 32)
(defmetric loss (x) (mean (square (- (net x) 1.0))))
(defrun go :loss loss :loader train :optimizer (sgd :rate 0.1) :steps 5)
"""


def assembly_of(folder: Path, again: bool) -> Assembly:
    text = FILE.replace("(AGAIN (block x :name (block i)))", "(block x :name (block i))")
    path = write_experiment(folder, FILE.replace("AGAIN", "recompute") if again else text, **DATA)
    return assemble(load_experiment(path))


def losses(device: Device, folder: Path, again: bool) -> list[float]:
    assembly = assembly_of(folder, again)
    experiment = load_experiment(folder / "file.sx")
    session = device.open(device.plan(assembly.program, Budget()))
    stepper = Stepper(experiment, assembly, session, experiment.run.steps)
    try:
        stepper.initialise()
        return [next(iter(stepper.step(i + 1).values())).loss for i in range(3)]
    finally:
        stepper.close()
        session.close()


def test_losses_are_those_of_the_cpu(tmp_path: Path) -> None:
    found = losses(CudaDevice(toolbox(FakeDriver())), tmp_path, True)
    np.testing.assert_allclose(found, losses(CpuDevice(threads=1), tmp_path, False), 1e-5)


def test_products_are_made_again_in_less_memory(tmp_path: Path) -> None:
    tools = toolbox(FakeDriver())
    products, arenas = [], []
    for again in (True, False):
        plan = CudaDevice(tools).plan(assembly_of(tmp_path / str(again), again).program, Budget())
        phase = plan.phases["update.go.first"]
        products.append(sum(isinstance(action, Product) for action in lower(phase, tools).actions))
        arenas.append(phase.arena_bytes)
    # Of two products of a block, the backward pass needs the first again.
    assert products[0] == products[1] + 4
    assert arenas[0] < 0.7 * arenas[1]


def test_kernels_compile(tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs nvidia-cuda-nvrtc and cuda-bindings")
    tools = replace(toolbox(FakeDriver()), **PRINTED)  # type: ignore[arg-type]
    plan = CudaDevice(tools).plan(assembly_of(tmp_path, True).program, Budget())
    actions = lower(plan.phases["update.go.first"], tools).actions
    launches = {action.launch.name: action.launch for action in actions if isinstance(action, Kernel)}
    assert launches and not spills(compile_unit(module_source(launches.values()), "sm_90a"), set())
