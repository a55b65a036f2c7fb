"""What a device computes beside the interpreter: right kernels pass, a planted wrong one is found and placed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sexpgpu.backend.cpu.device import CpuDevice
from sexpgpu.backend.cuda.device import CudaDevice
from sexpgpu.backend.protocol import Budget, Device
from sexpgpu.ir.graph import Node
from sexpgpu.ir.opdef import OPS, Array, Context
from sexpgpu.lang.load import load_experiment
from sexpgpu.train import verification
from sexpgpu.train.differences import BOUNDS, of_elements, of_norms
from sexpgpu.train.phases import assemble
from sexpgpu.train.samples import cases, verify_samples
from sexpgpu.train.verification import Verification, verify_experiment
from sexpgpu.transform.recompute import without_recompute
from tests.cuda.fake import FakeDriver, toolbox

EXAMPLES = Path(__file__).parents[2] / "examples"
TEXT = """
(defdata letters (text "python:topics" :by bytes))
(defmodel lm ((tokens (i32 _ _)))
  (let [x (embed (param table (f32 256 8) (normal 0.5)) tokens)]
    (recompute (linear (tanh
                         (linear x 8 :name up)) 256 :name out))))
(defloader train (windows letters :length 8) :batch 4 :shuffle true)
(defmetric nll (tokens targets) (mean (cross-entropy (lm tokens) targets)))
(defeval look :loader train :batches 3 nll)
(defdiagnostic size (p g new) :over "*.w" :every 1000 (norm new))
(defgenerator story () :trips [t 5] :carry [last 65]
  (let [token (gather (gather (categorical (lm (reshape last [1 1]))) 0) 0)] (next :last token :emit token)))
(defrun go :loader train :loss nll :clip 1.0 :steps 6 :seed 1 :microbatches 2 :optimizer (adamw :rate 1e-2)
  :diagnose [size])
"""
PHASES = {
    "initialise",
    "update.go.first",
    "update.go.next",
    "update.go.commit",
    "update.go.commit.diagnosed",
    "eval.look.0",
    "generate.story.start",
    "generate.story.trip",
}


def fake_card() -> Device:
    return CudaDevice(toolbox(FakeDriver()))


def verified(file: Path, device: Device | None = None, variant: str | None = None) -> Verification:
    experiment = load_experiment(file, variant=variant)
    return verify_experiment(experiment, assemble(experiment), device or CpuDevice(threads=1), Budget())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "lm.sx"
    path.write_text(TEXT, "utf-8")
    return path


def plant(monkeypatch: pytest.MonkeyPatch, op: str, error: Callable[[Array], Array]) -> None:
    """Make the cpu device, and not the meaning, compute `op` wrongly."""

    def into(ctx: Context, node: Node, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        right = OPS[op].meaning(ctx, node, inputs)
        assert not isinstance(right, tuple)
        np.copyto(outputs[0], error(right))

    monkeypatch.setitem(OPS, op, replace(OPS[op], ufunc=None, prepare=None, into=into))


@pytest.mark.parametrize("device", [lambda: CpuDevice(threads=1), fake_card], ids=["cpu", "cuda"])
def test_every_phase_and_every_node_is_compared(device: Callable[[], Device], file: Path) -> None:
    found = verified(file, device())
    assert not found.broken and found.stopped is None and not found.missed
    assert {each.phase for each in found.outputs} == {each.phase for each in found.nodes} == PHASES
    program = assemble(load_experiment(file)).program
    for phase in program.phases:
        graph = without_recompute(phase.graph)
        values = [v for node in graph.nodes if node.op != "input" for v in node.outputs]
        assert len(values) == sum(each.phase == phase.name for each in found.nodes)
        assert len(phase.graph.outputs) == sum(each.phase == phase.name for each in found.outputs)


@pytest.mark.parametrize("name", ["gpt2", "names-lstm", "moe", "reinforce", "memory-table"])
@pytest.mark.parametrize("device", [lambda: CpuDevice(threads=1), fake_card], ids=["cpu", "cuda"])
def test_examples_hold_their_bounds(name: str, device: Callable[[], Device]) -> None:
    found = verified(EXAMPLES / f"{name}.sx", device(), "smoke")
    assert found.nodes and not found.broken and not found.missed


def test_stretches_give_the_same_values(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = verified(file)
    monkeypatch.setattr(verification, "SLICE_BYTES", 40_000)
    cut = verified(file)
    assert len(cut.nodes) == len(whole.nodes) and not cut.broken
    assert [each.operation for each in cut.nodes] == [each.operation for each in whole.nodes]


def test_a_wrong_kernel_is_found_and_placed(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, "tanh", lambda x: x * np.float32(1.001))
    found = verified(file)
    broken = [each for each in found.nodes if each.difference.broken]
    assert {each.operation for each in broken} == {"tanh"}, "what reads it is right, given what it gave"
    assert {each.place.line for each in broken if each.place is not None} == {5}
    assert {each.phase for each in broken} == PHASES - {
        "initialise",
        "update.go.commit",
        "update.go.commit.diagnosed",
    } - {"generate.story.start"}
    in_a_loop = verified(EXAMPLES / "names-lstm.sx", variant="smoke")
    assert {each.operation for each in in_a_loop.nodes if each.difference.broken} == {"scan"}


def test_what_stops_the_run_is_told_beside_what_was_found(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, "tanh", lambda x: np.full_like(x, np.nan))
    found = verified(file)
    assert found.stopped is not None and found.stopped.diagnostics[0].code == "E-RUN-001"
    assert {"update.go.first", "eval.look.0"} <= {each.phase for each in found.broken if each.operation == "tanh"}


@pytest.mark.parametrize("device", [lambda: CpuDevice(threads=1), fake_card], ids=["cpu", "cuda"])
def test_the_samples_of_all_operations(device: Callable[[], Device]) -> None:
    found = list(verify_samples(device(), Budget()))
    assert {each.phase for each in found} == {case.name for case in cases()}
    assert not [each for each in found if each.difference.broken]


def test_samples_find_a_wrong_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, "atan", lambda x: x + np.float32(1e-3))
    found = [each.phase for each in verify_samples(CpuDevice(threads=1), Budget()) if each.difference.broken]
    assert found and all(name.startswith("atan-") for name in found)


def array(*values: float) -> Array:
    return np.array(values, np.float32)


def unasked() -> Array:
    raise AssertionError("the bound holds; nothing needs double precision")


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_a_bound_is_relative_to_an_element_or_to_the_whole(dtype: str) -> None:
    bound = BOUNDS[dtype]
    wanted = array(100.0, 100.0, 0.0)
    rms = float(np.sqrt(np.mean(np.square(wanted))))
    inside = array(100 * (1 + bound * 0.9), 100, rms * bound * 0.9)
    assert not of_elements(inside, wanted, dtype, unasked).broken
    outside = array(100, 100, rms * bound * 1.1)
    found = of_elements(outside, wanted, dtype, lambda: wanted)
    assert found.broken and found.relative == pytest.approx(bound * 1.1, rel=1e-3)
    assert not of_elements(outside, wanted, dtype, lambda: outside).broken, "f32 itself loses as much"


def test_what_is_not_finite_must_be_so_on_both_sides() -> None:
    wanted = array(1, np.nan, np.inf, -np.inf)
    assert not of_elements(wanted, wanted, "f32", unasked).broken
    for index, value in ((1, 0.0), (2, np.nan), (2, -np.inf), (3, 0.0), (0, np.nan)):
        other = wanted.copy()
        other[index] = value
        assert of_elements(other, wanted, "f32", unasked).broken
        assert of_norms(other, wanted, "f32", unasked, "f32").broken


def test_integers_are_equal_or_broken_unless_a_phase_rounds_to_bf16() -> None:
    x, y = np.array([1, 2, 3], np.int32), np.array([1, 2, 4], np.int32)
    assert of_elements(x, y, "i32", unasked).broken and not of_elements(x, x, "i32", unasked).broken
    assert of_norms(x, y, "i32", unasked, "f32").broken
    shown = of_norms(x, y, "i32", unasked, "bf16")
    assert not shown.broken and shown.relative == pytest.approx(1 / 3)


def test_a_phase_is_judged_in_norm() -> None:
    wanted = array(3, 4)
    assert not of_norms(array(3, 4.004), wanted, "f32", unasked, "f32").broken
    assert of_norms(array(3, 4.01), wanted, "f32", lambda: wanted, "f32").broken
    assert not of_norms(array(3, 4.01), wanted, "f32", unasked, "bf16").broken
    assert of_norms(array(1e-9, 0), array(0, 0), "f32", lambda: array(0, 0), "f32").broken
