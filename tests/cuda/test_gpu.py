"""The cuda device on a real card, against the interpreter: `pytest -m cuda`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sexpgpu.ir.ops  # noqa: F401
from sexpgpu.backend.cpu.device import CpuDevice
from sexpgpu.backend.cuda import session as sessions
from sexpgpu.backend.cuda.device import CudaDevice, open_cuda
from sexpgpu.backend.cuda.session import CudaSession
from sexpgpu.backend.protocol import Budget, Call, Device, Outputs
from sexpgpu.diagnostics import DiagnosticError
from sexpgpu.ir.builder import Builder
from sexpgpu.ir.composites import make
from sexpgpu.ir.evaluate import evaluate
from sexpgpu.ir.graph import Graph
from sexpgpu.ir.opdef import OPS, Array
from sexpgpu.ir.program import Phase, Program, Slot
from sexpgpu.ir.types import NUMPY_DTYPES, TensorType
from sexpgpu.lang.load import load_experiment
from sexpgpu.plan.layout import ARENA
from sexpgpu.train.loop import Stepper
from sexpgpu.train.phases import assemble
from sexpgpu.train.samples import Case, cases
from sexpgpu.train.verification import verify_experiment
from tests.backend.random_programs import random_program, reference_call
from tests.cuda.test_rows import node_of
from tests.ir.ops import test_derived as derived
from tests.test_experiments import CASES as CASES_OF_EXPERIMENTS
from tests.test_experiments import OPPOSED, REWARDED, copy_with_data

pytestmark = pytest.mark.cuda

EXAMPLES = Path(__file__).parents[2] / "examples"
NO_SCHEDULE = Builder().graph("schedule", [])
TOLERANCE = {"bf16": 1e-2, "f32": 3e-5, "f64": 1e-10}


@pytest.fixture(scope="session")
def card() -> CudaDevice:
    return open_cuda("")


@pytest.fixture(scope="session")
def uncaptured(card: CudaDevice) -> CudaDevice:
    return CudaDevice(card.tools, card.without_cudnn, capture=False)


def poison(session: CudaSession) -> None:
    """Fill the arena with NaN."""
    driver, starts = session._driver, session._regions.starts
    if session.plan.arena_bytes:
        driver.fill(session._base + starts[ARENA], 0xFF, session.plan.arena_bytes, session._stream)


def close_to(found: Array, wanted: Array, dtype: str, message: str = "") -> None:
    tolerance = TOLERANCE.get(dtype, 0.0)
    found, wanted = (np.asarray(x).astype(np.float64) for x in (found, wanted))
    np.testing.assert_allclose(found, wanted, tolerance, tolerance, err_msg=message)


# Operations: every sample's values, its gradient, and three microbatches of it stacked, as phases of one program.


def sample_graph(name: str, sample: Any) -> tuple[Graph, dict[str, Array]]:
    case = Case("", name, sample)
    return case.graph(), case.feeds()


def gradient_graph(name: str, sample: Any) -> tuple[Graph, dict[str, Array]]:
    op = OPS[name]
    b = Builder()
    inputs = [b.input(f"feed:x{i}", type) for i, type in enumerate(sample.types)]
    node = b.node(name, inputs, sample.attrs, sample.bodies)
    cotangents = [b.input(f"feed:g{i}", t) if t.is_float else None for i, t in enumerate(node.types)]
    assert op.gradient is not None
    gradients = op.gradient(b, node, cotangents)
    given = [*inputs, *(g for g in cotangents if g is not None)]
    feeds = {f"x{i}": array for i, array in enumerate(derived.arrays_of(op, sample))}
    rng = np.random.default_rng(5)
    for g in cotangents:
        if g is not None:
            feeds[g.node.attrs["name"].removeprefix("feed:")] = derived.draw(rng, g.type, (-1, 1))
    results = [(f"result:d{i}", g) for i, g in enumerate(gradients) if g is not None]
    return b.graph("p", results, given), feeds


def stacked_graph(name: str, sample: Any) -> tuple[Graph, dict[str, Array]]:
    op, k = OPS[name], derived.STACKED
    _, node = derived.built(op, sample)
    b = Builder()
    inputs = [b.input(f"feed:x{i}", t.with_shape((k, *t.shape))) for i, t in enumerate(sample.types)]
    outputs = op.stacking(b, node, inputs, [True] * len(inputs), k)
    arrays = derived.arrays_of(op, sample, [k] * len(inputs))
    feeds = {f"x{i}": array for i, array in enumerate(arrays)}
    return b.graph("p", [(f"result:y{i}", v) for i, v in enumerate(outputs)], inputs), feeds


TRIALS = {case.name: (sample_graph, case.op, case.sample) for case in cases()}
for suffix, make_graph, chosen in (
    ("gradient", gradient_graph, derived.DIFFERENTIABLE),
    ("stacked", stacked_graph, derived.WITH_INPUTS),
):
    for each in chosen:
        TRIALS[f"{each.id}-{suffix}"] = (make_graph, each.values[0].name, each.values[1])


@pytest.fixture(scope="module")
def trials(card: CudaDevice) -> Iterator[CudaSession]:
    phases = tuple(Phase(id, make_graph(name, sample)[0]) for id, (make_graph, name, sample) in TRIALS.items())
    session = card.open(card.plan(Program((), phases, NO_SCHEDULE), Budget()))
    yield session
    session.close()


@pytest.mark.parametrize("id", TRIALS)
def test_operation(id: str, trials: CudaSession) -> None:
    make_graph, name, sample = TRIALS[id]
    graph, feeds = make_graph(name, sample)
    flagged: list[str] = []
    given = {f"feed:{key}": array for key, array in feeds.items()}
    expected = evaluate(graph, given, flag=lambda node, message: flagged.append(message))
    first: Outputs | None = None
    for _ in range(3):
        poison(trials)
        (outputs,) = trials.run([Call(id, feeds)]).result()
        assert [fault.message for fault in outputs.faults] == list(dict.fromkeys(flagged))
        for output, found in outputs.results.items():
            wanted = expected[f"result:{output}"]
            assert found.dtype == wanted.dtype and found.shape == wanted.shape
            close_to(found, wanted, next(t for t, d in NUMPY_DTYPES.items() if d == wanted.dtype), output)
            if first is not None:
                assert found.tobytes() == first.results[output].tobytes(), "a replay gives the same bits"
        first = first or outputs


def test_rounding(card: CudaDevice) -> None:
    """f32 to bf16, bit for bit: every upper half, beside the lower halves where rounding turns, NaN and infinity."""
    lower = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    bits = (np.arange(1 << 16, dtype=np.uint32)[:, None] << 16) | lower
    b = Builder()
    x = b.input("feed:x", TensorType("f32", bits.shape))
    phase = Phase("p", b.graph("p", [("result:y", b.cast(x, "bf16"))]))
    session = card.open(card.plan(Program((), (phase,), NO_SCHEDULE), Budget()))
    feeds = {"x": bits.view(np.float32)}
    (outputs,) = session.run([Call("p", feeds)]).result()
    with np.errstate(all="ignore"):
        wanted = evaluate(phase.graph, {"feed:x": feeds["x"]})["result:y"]
    np.testing.assert_array_equal(outputs.results["y"].view(np.uint16), wanted.view(np.uint16))
    session.close()


@pytest.mark.parametrize("seed", range(24))
def test_random_program(seed: int, card: CudaDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "KERNELS_A_MODULE", 4)
    program, contents, feeds = random_program(seed)
    session = card.open(card.plan(program, Budget()))
    for name, array in contents.items():
        session.write(name, array)
    for _ in range(3):
        for phase in program.phases:
            expected = reference_call(phase, contents, feeds[phase.name])
            poison(session)
            (outputs,) = session.run([Call(phase.name, feeds[phase.name])]).result()
            assert not outputs.faults
            for name, array in expected.items():
                np.testing.assert_allclose(outputs.results[name], array, 1e-4, 1e-5, err_msg=name)
            for name, array in contents.items():
                np.testing.assert_allclose(session.read(name).result(), array, 1e-4, 1e-5, err_msg=name)
                session.write(name, array)
    session.close()


@pytest.mark.parametrize(
    "depth, causal, packed", [(64, True, True), (64, False, False), (32, True, True), (128, True, False)]
)
def test_attention(depth: int, causal: bool, packed: bool, card: CudaDevice) -> None:
    """Forward and backward by cuDNN, on windows of one packed projection, against the composites' bodies in f32."""
    batch, heads, time = 2, 3, 128
    b = Builder()
    shape = (batch, heads, time, depth)
    if packed:
        qkv = b.input("feed:qkv", TensorType("bf16", (batch, time, 3, heads, depth)))
        parts = [
            b.op("slice", qkv, starts=(0, 0, i, 0, 0), stops=(batch, time, i + 1, heads, depth), steps=(1,) * 5)
            for i in range(3)
        ]
        q, k, v = (b.transpose(b.reshape(p, (batch, time, heads, depth)), (0, 2, 1, 3)) for p in parts)
    else:
        q, k, v = (b.input(f"feed:{name}", TensorType("bf16", shape)) for name in "qkv")
    g = b.input("feed:g", TensorType("f32", shape))
    out, sums = make(b, "attention", (q, k, v), causal=causal, scale=depth**-0.5).outputs
    gradients = make(b, "attention-gradient", (q, k, v, out, sums, g), causal=causal, scale=depth**-0.5).outputs
    names = ("out", "sums", "dq", "dk", "dv")
    graph = b.graph("p", [(f"result:{n}", x) for n, x in zip(names, (out, sums, *gradients), strict=True)])
    phase = Phase("p", graph)
    rng = np.random.default_rng(0)
    feeds = {n: rng.normal(size=t.shape).astype(NUMPY_DTYPES[t.dtype]) for n, t in phase.feeds.items()}
    session = card.open(card.plan(Program((), (phase,), NO_SCHEDULE), Budget()))
    assert session.lowered["p"].kinds.count("attention") == 2
    found = [session.run([Call("p", feeds)]).result()[0].results for _ in range(3)]
    wanted = evaluate(graph, {f"feed:{n}": x for n, x in feeds.items()}, double=True)
    for name in names:
        x, y = found[0][name].astype(np.float64), wanted[f"result:{name}"].astype(np.float64)
        assert np.linalg.norm(x - y) <= 1e-2 * np.linalg.norm(y), name
        assert all(again[name].tobytes() == found[0][name].tobytes() for again in found), "the same bits each time"
    session.close()


@pytest.mark.parametrize(
    "name, width, dtype",
    [
        ("softmax", 1000, "f32"),
        ("logsumexp", 50304, "f32"),
        ("cross-entropy", 50304, "bf16"),
        ("cross-entropy-gradient", 50304, "bf16"),
        ("layer-norm", 768, "f32"),
        ("layer-norm-gradient", 768, "f32"),
        ("rms-norm", 1023, "f32"),
        ("rms-norm-gradient", 1024, "f32"),
    ],
)
def test_row_program(name: str, width: int, dtype: str, card: CudaDevice) -> None:
    composite = node_of(name, (5, 200), width, dtype)
    b = Builder()
    inputs = [b.input(f"feed:x{i}", v.type) for i, v in enumerate(composite.inputs)]
    node = make(b, name, inputs, **{key: v for key, v in composite.attrs.items() if key != "name"})
    outputs = [(f"result:y{i}", v) for i, v in enumerate(node.outputs)]
    phase = Phase("p", b.graph("p", outputs, inputs))
    rng = np.random.default_rng(0)
    feeds = {}
    for i, v in enumerate(inputs):
        made = rng.integers(0, width, v.shape) if v.type.is_integer else np.abs(rng.normal(size=v.shape)) + 0.1
        feeds[f"x{i}"] = np.asarray(made).astype(NUMPY_DTYPES[v.dtype])
    session = card.open(card.plan(Program((), (phase,), NO_SCHEDULE), Budget()))
    assert "rows" in session.lowered["p"].kinds
    found = [session.run([Call("p", feeds)]).result()[0].results for _ in range(2)]
    wanted = evaluate(phase.graph, {f"feed:{key}": x for key, x in feeds.items()}, double=True)
    for output, x in found[0].items():
        y = wanted[f"result:{output}"].astype(np.float64)
        limit = 4e-3 if x.dtype == NUMPY_DTYPES["bf16"] else 1e-5
        assert np.linalg.norm(x.astype(np.float64) - y) <= limit * np.linalg.norm(y), output
        assert found[1][output].tobytes() == x.tobytes()
    session.close()


# Experiments.


class Trial:
    def __init__(self, device: Device, file: Path, **options: Any) -> None:
        experiment = load_experiment(file, **options)
        assembly = assemble(experiment)
        self.slots = [slot.name for slot in assembly.program.saved]
        self.session = device.open(device.plan(assembly.program, Budget()))
        self.stepper = Stepper(experiment, assembly, self.session, experiment.run.steps)
        self.at = 0

    def losses(self, num_steps: int) -> list[dict[str, float]]:
        """The loss of every update that is due, step by step."""
        if self.at == 0:
            self.stepper.initialise()
        found = []
        for _ in range(num_steps):
            self.at += 1
            found.append({name: result.loss for name, result in self.stepper.step(self.at).items()})
        return found

    def contents(self) -> dict[str, bytes]:
        return {name: self.session.read(name).result().tobytes() for name in self.slots}

    def close(self) -> None:
        self.stepper.close()
        self.session.close()


def compare_losses(card: CudaDevice, file: Path, tolerance: float, num_steps: int, **options: Any) -> None:
    """Losses of the card and of the interpreter: within `tolerance`, relative to the largest so far, at least 0.01."""
    found = []
    for device in (card, CpuDevice()):
        trial = Trial(device, file, **options)
        found.append(trial.losses(num_steps))
        trial.close()
    assert [step.keys() for step in found[0]] == [step.keys() for step in found[1]]
    names = sorted({name for step in found[1] for name in step})
    worst = {}
    for name in names:
        ours, theirs = (np.array([step[name] for step in each if name in step]) for each in found)
        assert np.isfinite(ours).all()
        scale = np.maximum.accumulate(np.maximum(np.abs(theirs), 0.01))
        apart = np.abs(ours - theirs) / scale
        worst[name] = float(np.max(apart))
        print(f"\n{file.stem} {name}: {worst[name]:.1e} in {len(ours)} steps; {' '.join(f'{x:.0e}' for x in apart)}")
    assert max(worst.values()) <= tolerance, worst


SMALL = {"tiny-sgd", "tiny-adam", "names-bigram", "topics-gpt", "char-gpt", "digits-mlp"}
"""Files that the interpreter runs whole."""


@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("*.sx")))
def test_twenty_losses(name: str, card: CudaDevice, tmp_path: Path) -> None:
    file = EXAMPLES / f"{name}.sx"
    settings = {}
    if "digits.npz" in file.read_text("utf-8"):
        settings["digits"] = str(tmp_path / "digits.npz")
        subprocess.run([sys.executable, EXAMPLES / "make_digits.py", settings["digits"]], check=True)
    if name == "gpt2":
        settings["precision"] = "f32"
    compare_losses(card, file, 1e-4, 20, variant=None if name in SMALL else "smoke", settings=settings)


def test_twenty_losses_in_bf16(card: CudaDevice) -> None:
    compare_losses(card, EXAMPLES / "gpt2.sx", 5e-3, 20, variant="smoke")


@pytest.fixture(scope="session")
def acceptance(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_with_data(shared, tmp_path_factory)


@pytest.mark.parametrize("name", CASES_OF_EXPERIMENTS)
def test_twenty_losses_of_an_experiment(
    name: str, acceptance: Path, card: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(acceptance)
    variant = "smoke" if "--variant" in CASES_OF_EXPERIMENTS[name] else None
    # Of two updates that work against one another, each answers the other's rounding; a ratio that is clipped may be at
    # its edge.
    tolerance = 5e-4 if name in OPPOSED | REWARDED else 1e-4
    compare_losses(card, Path(f"{name}.sx"), tolerance, 20, variant=variant)


@pytest.mark.parametrize("file", ["char-gpt.sx", "gpt2.sx"])
def test_bits(file: str, card: CudaDevice, uncaptured: CudaDevice) -> None:
    """A replay and a call action by action, a second run, and a resumed one, all end with the same bits."""
    whole = Trial(card, EXAMPLES / file, variant="smoke")
    first = whole.losses(3)
    middle = {name: whole.session.read(name).result() for name in whole.slots}
    rest = whole.losses(3)
    wanted = whole.contents()
    whole.close()
    for device in (card, uncaptured):
        again = Trial(device, EXAMPLES / file, variant="smoke")
        assert again.losses(6) == [*first, *rest]
        assert again.contents() == wanted
        again.close()
    resumed = Trial(card, EXAMPLES / file, variant="smoke")
    for name, array in middle.items():
        resumed.session.write(name, array)
    resumed.at = 3
    assert resumed.losses(3) == rest
    assert resumed.contents() == wanted
    resumed.close()


@pytest.mark.parametrize("file", ["char-gpt.sx", "gpt2.sx", "moe.sx", "names-lstm.sx"])
def test_every_operation_holds_its_bound(file: str, card: CudaDevice) -> None:
    experiment = load_experiment(EXAMPLES / file, variant="smoke")
    found = verify_experiment(experiment, assemble(experiment), card, Budget())
    assert found.stopped is None and len(found.nodes) > 100
    assert not found.broken, found.broken[:5]


# Memory.


def test_memory(card: CudaDevice) -> None:
    b = Builder()
    type = TensorType("f32", (1 << 28,))
    x = b.input("slot:x", type)
    phase = Phase("p", b.graph("p", [("slot:x", b.add(x, b.constant(1.0, type)))]))
    program = Program((Slot("x", type, "state"),), (phase,), NO_SCHEDULE)
    with pytest.raises(DiagnosticError, match="E-MEM-001"):
        card.plan(program, Budget(1 << 30))
    plan = card.plan(program, Budget())
    session = card.open(plan)
    assert plan.peak_bytes <= session.peak_bytes() <= plan.peak_bytes * 1.01 + (1 << 20)
    assert session.device_bytes() >= session.peak_bytes()
    session.close()
    driver = card.tools.driver
    hog = driver.allocate(driver.memory()[0] - (1 << 29))
    with pytest.raises(DiagnosticError, match="E-MEM-003"):
        card.open(plan)
    driver.free(hog)
    card.open(plan).close()
