"""`sexpgpu run --profile`: times of pieces beside what they could be, a trace, and a refusal where nothing is timed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import sexpgpu.ir.ops  # noqa: F401
from sexpgpu.backend import pieces, registry
from sexpgpu.backend.cpu.device import CpuDevice
from sexpgpu.backend.cpu.rates import measured_rates
from sexpgpu.backend.cuda.device import CudaDevice
from sexpgpu.backend.pieces import SECOND_PASS, Piece, Profile, Profiling, Rates
from sexpgpu.backend.protocol import Budget, Call, Device
from sexpgpu.cli.main import main
from sexpgpu.cli.profile import profile_lines, trace_text
from sexpgpu.ir.builder import Builder
from sexpgpu.ir.program import Phase, Program, Slot
from sexpgpu.ir.types import TensorType
from tests.backend.native import compiler
from tests.cuda.fake import FakeDriver, toolbox

TEXT = """
(defdata drawn (arrays "data.npz"))
(defloader train (rows drawn) :batch 8)
(defmetric mse ((x (f32 _ 4)) (y (f32 _ 2))) (mean (square (- (linear (tanh (linear x 8 :name up)) 2 :name down) y))))
(defrun go :loader train :loss mse :clip 1.0 :steps 4 :optimizer (sgd :rate 0.01))
"""
F = TensorType("f32", (1000,))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rng = np.random.default_rng(0)
    (tmp_path / "net.sx").write_text(TEXT)
    np.savez(tmp_path / "data.npz", x=rng.normal(size=(64, 4)).astype("f"), y=rng.normal(size=(64, 2)).astype("f"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["run", "net.sx", "--profile", *arguments], catch_exceptions=False)


def use(patch: pytest.MonkeyPatch, device: Device) -> None:
    patch.setattr(registry, "_KINDS", {**registry._KINDS, device.name: registry._Kind(lambda *_: device)})


def events_of(path: Path) -> list[dict[str, Any]]:
    return [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"]


@pytest.mark.parametrize("name", ["interpreter", "kernels", "card"])
def test_a_profiled_run(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: Device = CpuDevice(threads=1, compiler=compiler() if name == "kernels" else None)
    use(monkeypatch, CudaDevice(toolbox(FakeDriver())) if name == "card" else threads)
    result = invoke("--device", "cuda" if name == "card" else "cpu")
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    (head,) = [line for line in lines if line.startswith("profile: ms of a call")]
    table = lines[lines.index(head) : next(i for i, line in enumerate(lines) if "ui.perfetto.dev" in line)]
    assert max(map(len, table)) <= 80
    assert any(line.startswith("  update.go.first, 3 calls") for line in table)
    assert any("ab,bc->ac" in line and "net.sx:4" in line for line in table)
    assert not any("initialise" in line for line in table), "what runs once is not timed"
    events = events_of(folder / "runs/net/trace.json")
    calls = [event for event in events if event["tid"] == 1]
    parts = [event for event in events if event["tid"] == 2]
    assert [event["name"] for event in calls].count("update.go.first") == 3
    assert parts and all(event["dur"] > 0 for event in parts)
    assert any(event["args"]["flops"] == 2 * 8 * 4 * 8 and event["args"]["at"] == "net.sx:4" for event in parts)
    if name != "card":
        for part in parts:
            inside = [c for c in calls if c["ts"] - 0.01 <= part["ts"] <= c["ts"] + c["dur"] + 0.01]
            assert inside and part["ts"] + part["dur"] <= inside[0]["ts"] + inside[0]["dur"] + 0.01


def test_a_quiet_run_writes_the_trace(folder: Path) -> None:
    result = invoke("--quiet")
    assert (result.exit_code, result.output) == (0, "") and events_of(folder / "runs/net/trace.json")


def test_one_step_is_too_few(folder: Path) -> None:
    result = invoke("--steps", "1")
    assert result.exit_code == 0 and "profile: nothing was timed" in result.output


class Untimed:
    """A session with nothing but the protocol."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self.run, self.write, self.read, self.close = session.run, session.write, session.read, session.close


def test_a_device_that_cannot_time_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = CpuDevice.open
    monkeypatch.setattr(CpuDevice, "open", lambda device, plan: Untimed(plain(device, plan)))
    result = invoke()
    assert result.exit_code == 1 and "E-DEV-005" in result.stderr and "--profile" in result.stderr


def test_results_are_those_of_an_untimed_session() -> None:
    b = Builder()
    x, w = b.input("feed:x", F), b.input("slot:w", F)
    total = b.op("sum", b.op("mul", b.op("tanh", x), w), axes=(0,))
    new = b.op("add", w, b.op("exp", x))
    ok = b.op("all", b.op("is-finite", new), axes=(0,))
    graph = b.graph("p", [("result:total", total), ("result:ok", ok), ("slot:w", new)])
    program = Program((Slot("w", F, "parameter"),), (Phase("p", graph, "ok"),), Builder().graph("schedule", []))
    feeds = {"x": np.linspace(-1, 1, 1000, dtype=np.float32)}
    for device in (
        CpuDevice(threads=1), CpuDevice(threads=2, compiler=compiler()), CudaDevice(toolbox(FakeDriver())),
    ):  # fmt: skip
        found = []
        for timed in (False, True):
            session = device.open(device.plan(program, Budget()))
            assert isinstance(session, Profiling)
            session.write("w", np.zeros(1000, np.float32))
            profile = Profile()
            if timed:
                session.profile(profile)
            outputs = [session.run([Call("p", feeds)]).result()[0].results["total"] for _ in range(3)]
            found.append([*[float(value) for value in outputs], session.read("w").result().tobytes()])
            assert sum(profile.calls.values()) == (2 * len(profile.calls) if timed else 0)
            parts = session.pieces()
            assert all(len(parts[name]) == len(sums) for name, sums in profile.seconds.items())
            session.close()
        assert found[0] == found[1]


def test_a_second_pass_is_a_phase_of_its_own() -> None:
    b = Builder()
    x = b.input("slot:w", F)
    new = b.op("mul", x, b.like(2.0, x))
    ok = b.op("all", b.op("is-finite", new), axes=(0,))
    phase = Phase("p", b.graph("p", [("result:ok", ok), ("slot:w", new)]), "ok")
    program = Program((Slot("w", F, "parameter"),), (phase,), Builder().graph("schedule", []))
    device = CpuDevice(threads=1)
    plan = device.plan(program, Budget())
    assert plan.phases["p"].apply is not None
    session = device.open(plan)
    session.write("w", np.ones(1000, np.float32))
    profile = Profile()
    session.profile(profile)
    for _ in range(3):
        session.run([Call("p")])
    assert profile.calls == {"p": 2, "p" + SECOND_PASS: 2}
    session.close()


# The table and the trace, of times that are known.

PIECES: Mapping[str, Sequence[Piece]] = {
    "p": (Piece("products", "ab,bc->ac", flops=2_000_000, num_bytes=1000), Piece("kernels", "exp", num_bytes=4_000_000))
}
RATES = Rates({"f32": 1e9}, 1e9, 0.0)


def test_the_table_adds_up() -> None:
    profile = Profile()
    for _ in range(2):
        profile.add("p", [(0.0, 0.010), (0.010, 0.030)])
    head, blank, title, first, second, last = profile_lines(profile, PIECES, RATES)
    assert head == "profile: ms of a call; predicted from 1 GFLOP/s of f32 and 1 GB/s" and not blank
    assert title.split() == ["p,", "2", "calls", "ms", "predicted", "%"]
    assert first.split() == ["kernels:", "exp", "30.000", "4.000", "75"]
    assert second.split() == ["products:", "ab,bc->ac", "10.000", "2.000", "25"]
    assert last.split() == ["all", "40.000", "6.000", "100"]


def test_a_trace_that_is_full_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "MAX_EVENTS", 3)
    profile = Profile()
    for start in (1.0, 2.0):
        profile.add("p", [(start, 0.25), (start + 0.25, 0.5)])
    assert len(profile.events) == 3 and profile.seconds["p"] == [0.5, 1.0]
    events = [e for e in json.loads(trace_text(profile, PIECES, "cpu"))["traceEvents"] if e["ph"] == "X"]
    spans = {(e["tid"], e["name"], e["ts"], e["dur"]) for e in events}
    assert (1, "p", 0.0, 750_000.0) in spans and (1, "p", 1e6, 250_000.0) in spans and len(events) == 5


def test_predicted_times_are_the_slower_of_two() -> None:
    piece = Piece("kernels", "exp", flops=10, num_bytes=1000)
    assert Rates({"f32": 1.0}, 1e9, 0.5).seconds(piece) == 10.5
    assert Rates({"f32": 1e9, "bf16": 1.0}, 1.0, 0.5).seconds(replace(piece, dtype="bf16")) == 1000.5


def test_rates_are_measured() -> None:
    rates = measured_rates(2)
    assert 1e8 < rates.flops["f32"] < 1e14 and 1e8 < rates.bytes_per_s < 1e13
