"""Loops on cuda: their trips are written out, as the launches of one capture."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sexpgpu.backend.cpu.device import CpuDevice
from sexpgpu.backend.cuda.device import CudaDevice
from sexpgpu.backend.cuda.lowering import lower
from sexpgpu.backend.kernels.cuda import module_source
from sexpgpu.backend.kernels.lowering import Kernel
from sexpgpu.backend.protocol import Budget
from sexpgpu.ir.evaluate import evaluate
from sexpgpu.ir.graph import Graph
from sexpgpu.ir.verify import verify, verify_program
from sexpgpu.lang.load import load_experiment
from sexpgpu.plan.unroll import num_unrolled, unroll, unroll_program
from sexpgpu.train.phases import assemble
from tests.cuda.fake import PRINTED, FakeDriver, toolbox
from tests.cuda.test_training import losses
from tests.kernels.nvrtc import compile_unit, spills
from tests.train.test_loops import BODIES, DATA, text_of
from tests.train.trial import write_experiment
from tests.transform.test_loops import arrays, model

LAYERS = {
    "lstm layer": "(let [[y h c] (lstm x 5 :name l :mask (> (gather x 0 :axis 2) -1.0))] (+ h (mean y :axis 1)))",
    "gru layer": "(nth (gru x 5 :name l :reverse true) 1)",
    "recomputed": "(recompute (nth (gru (dropout x 0.2) 5 :name l) 1))",
}


def with_body(body: str) -> str:
    """The file of the recurrent tests, without the cells that it calls as the library calls its layers."""
    return text_of("gru").replace(BODIES["gru"], body).replace("(defn gru", "(defn g").replace("(defn lstm", "(defn l")


def file_of(name: str, folder: Path) -> Path:
    return write_experiment(folder, with_body(LAYERS[name]) if name in LAYERS else text_of(name), **DATA)


@pytest.mark.parametrize("name", [*BODIES, *LAYERS])
def test_losses_are_those_of_the_cpu(name: str, tmp_path: Path) -> None:
    path = file_of(name, tmp_path)
    found = losses(CudaDevice(toolbox(FakeDriver())), path, 3)
    np.testing.assert_allclose(found, losses(CpuDevice(threads=1), path, 3), 2e-3 if name == "bf16" else 1e-5)


def same(graph: Graph) -> Graph:
    """`graph` unrolled, once its values were compared."""
    unrolled = unroll(graph)
    verify(unrolled)
    assert unrolled.input_names == graph.input_names and all(node.op != "scan" for node in unrolled.walk())
    given = arrays(graph)
    expected = evaluate(graph, given, double=True)
    for name, value in evaluate(unrolled, given, double=True).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-10, atol=1e-12)
    return unrolled


@pytest.mark.parametrize("depth, reverse", [(1, False), (1, True), (2, False)])
def test_unrolling_keeps_values(depth: int, reverse: bool) -> None:
    graph = model(depth, reverse)
    unrolled = same(graph)
    assert len(unrolled.nodes) <= num_unrolled(graph) + 20


def test_a_program_without_loops_stays_itself(tmp_path: Path) -> None:
    text = "(defmetric m () (square (param w (f32) 1.0)))(defrun go :loss m :optimizer (sgd :rate 0.1) :steps 1)"
    program = assemble(load_experiment(write_experiment(tmp_path, text))).program
    assert unroll_program(program) is program


def test_trips_share_kernels_which_compile(tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs nvidia-cuda-nvrtc and cuda-bindings")
    tools = replace(toolbox(FakeDriver()), **PRINTED)  # type: ignore[arg-type]
    counts = []
    for num_trips in (6, 24):
        data = {**DATA, "x": np.zeros((16, num_trips, 3), np.float32)}
        path = write_experiment(tmp_path / str(num_trips), with_body("(nth (lstm x 5 :name l) 1)"), **data)
        program = assemble(load_experiment(path)).program
        verify_program(unroll_program(program))
        plan = CudaDevice(tools).plan(program, Budget())
        actions = lower(plan.phases["update.go.first"], tools).actions
        launches = {action.launch.name: action.launch for action in actions if isinstance(action, Kernel)}
        counts.append((len(launches), len(actions)))
        if num_trips == 6:
            assert not spills(compile_unit(module_source(launches.values()), "sm_90a"), set())
    (few_texts, few), (texts, many) = counts
    # Not all are shared: what is fused depends on where the planner puts things.
    assert many > 3 * few and texts < 2.5 * few_texts, counts
