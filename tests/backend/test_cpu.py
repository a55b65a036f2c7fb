"""The cpu session: guards, faults, feeds, results, interrupts, measured memory, refusals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

import sexpgpu.ir.ops  # noqa: F401
from sexpgpu.backend.cpu import session as session_module
from sexpgpu.backend.cpu.device import CpuDevice
from sexpgpu.backend.cpu.machine import ResidentGrowth, free_bytes
from sexpgpu.backend.cpu.session import CpuSession, uninterrupted
from sexpgpu.backend.protocol import Budget, Call, Device, Session
from sexpgpu.diagnostics import DiagnosticError
from sexpgpu.ir.builder import Builder
from sexpgpu.ir.evaluate import evaluate
from sexpgpu.ir.graph import Origin
from sexpgpu.ir.program import Phase, Program, Slot
from sexpgpu.ir.types import TensorType

F = TensorType("f32", (4,))
INTEGERS = TensorType("i32", (4,))
SCALAR = TensorType("f32", ())


def opened(*phases: Phase, slots: tuple[Slot, ...] = (), device: CpuDevice | None = None) -> CpuSession:
    device = device or CpuDevice(poison=True)
    return device.open(device.plan(Program(slots, phases, Builder().graph("schedule", [])), Budget()))


def update() -> Phase:
    """s ← s / (x as integers), guarded by finiteness; faults where x is 0."""
    b = Builder()
    s, x = b.input("slot:s", F), b.input("feed:x", INTEGERS)
    y = b.input("feed:y", F)
    new = b.add(b.mul(s, b.cast(b.op("quotient", x, x), "f32")), y)
    ok = b.op("all", b.op("is-finite", new), axes=(0,))
    return Phase("update", b.graph("update", [("slot:s", new), ("result:ok", ok), ("result:new", new)]), "ok")


ONES, ZERO = np.ones(4, np.int32), np.zeros(4, np.float32)


def test_the_protocol_is_kept() -> None:
    device: Device = CpuDevice()
    session: Session = opened(update(), slots=(Slot("s", F, "parameter"),))
    assert device.name == "cpu" and "NumPy" in device.describe()
    assert session.read("s").result().tolist() == [0, 0, 0, 0]


def test_a_part_of_nothing_lies_anywhere() -> None:
    b = Builder()
    x = b.input("feed:x", TensorType("f32", (0, 6)))
    part = b.op("reverse", b.slice(x, 1, 2, 5), axes=(0, 1))
    session = opened(Phase("p", b.graph("p", [("result:y", part)])))
    (outputs,) = session.run([Call("p", {"x": np.zeros((0, 6), np.float32)})]).result()
    assert outputs.results["y"].shape == (0, 3)


def test_a_guard_decides_whether_slots_are_written() -> None:
    session = opened(update(), slots=(Slot("s", F, "parameter"),))
    session.write("s", np.arange(4, dtype=np.float32))
    (held,) = session.run([Call("update", {"x": ONES, "y": ZERO + 1})]).result()
    assert held.committed and session.read("s").result().tolist() == [1, 2, 3, 4]
    (failed,) = session.run([Call("update", {"x": ONES, "y": ZERO + np.inf})]).result()
    assert not failed.committed and not failed.faults and not failed.results["ok"]
    assert np.isinf(failed.results["new"]).all()
    assert session.read("s").result().tolist() == [1, 2, 3, 4]


def test_a_fault_keeps_slots_and_stops_the_chunk() -> None:
    session = opened(update(), slots=(Slot("s", F, "parameter"),))
    good, bad = Call("update", {"x": ONES, "y": ZERO + 1}), Call("update", {"x": ONES * 0, "y": ZERO})
    outputs = session.run([good, bad, good]).result()
    assert [o.committed for o in outputs] == [True, False]
    assert [f.message for f in outputs[1].faults] == ["division of an integer by zero at [0]"]
    assert session.read("s").result().tolist() == [1, 1, 1, 1]
    assert session.run([good]).result()[0].faults == ()


def test_faults_come_once_and_in_the_order_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    from sexpgpu.backend.cpu import blocks, steps

    monkeypatch.setattr(steps, "MIN_ELEMENTS", 1)
    monkeypatch.setattr(blocks, "BLOCK_ELEMENTS", 3)
    b = Builder()
    x = b.input("feed:x", TensorType("i32", (64,)))
    with b.at(Origin(note="first")):
        y = b.op("quotient", x, x)
    with b.at(Origin(note="second")):
        z = b.op("rem", y, x)
    session = opened(Phase("p", b.graph("p", [("result:z", z)])), device=CpuDevice(threads=2))
    (outputs,) = session.run([Call("p", {"x": np.zeros(64, np.int32)})]).result()
    assert [fault.origin.note for fault in outputs.faults] == ["first", "second"]


def test_an_unguarded_phase_writes_into_its_slot() -> None:
    b = Builder()
    acc = b.input("slot:acc", F)
    phase = Phase("p", b.graph("p", [("slot:acc", b.add(acc, b.input("feed:x", F))), ("result:old", acc)]))
    session = opened(phase, slots=(Slot("acc", F, "gradient"),))
    calls = [Call("p", {"x": ZERO + i}) for i in (1, 2, 3)]
    outputs = session.run(calls).result()
    assert [o.results["old"].tolist()[0] for o in outputs] == [0, 1, 3]
    assert session.read("acc").result().tolist() == [6, 6, 6, 6]


def test_results_and_slots_are_copies() -> None:
    session = opened(update(), slots=(Slot("s", F, "parameter"),))
    first = session.read("s").result().copy()
    (outputs,) = session.run([Call("update", {"x": ONES, "y": ZERO + 1})]).result()
    session.run([Call("update", {"x": ONES, "y": ZERO + 1})]).result()
    assert first.tolist() == [0] * 4 and outputs.results["new"].tolist() == [1] * 4


@pytest.mark.parametrize(
    "feeds, text",
    [
        ({"x": ONES}, "takes"),
        ({"x": ONES, "y": ZERO, "z": ZERO}, "takes"),
        ({"x": ONES, "y": ZERO[:3]}, "feed `y` is"),
        ({"x": ONES.astype(np.int64), "y": ZERO}, "feed `x` is"),
    ],
)
def test_wrong_feeds(feeds: dict[str, np.ndarray], text: str) -> None:
    session = opened(update(), slots=(Slot("s", F, "parameter"),))
    with pytest.raises(ValueError, match=text):
        session.run([Call("update", feeds)])
    with pytest.raises(ValueError, match="slot `s`"):
        session.write("s", np.zeros(5, np.float32))


def test_bf16_is_stored_as_bf16() -> None:
    import ml_dtypes

    type = TensorType("bf16", (3,))
    b = Builder()
    s = b.input("slot:s", type)
    phase = Phase("p", b.graph("p", [("slot:s", b.cast(b.scale(b.cast(s, "f32"), 3.0), "bf16"))]))
    session = opened(phase, slots=(Slot("s", type, "parameter"),))
    session.write("s", np.array([1, 2.01, -3], ml_dtypes.bfloat16))
    session.run([Call("p")]).result()
    assert session.read("s").result().dtype == ml_dtypes.bfloat16
    assert session.read("s").result().astype(float).tolist() == [3, 6.0625, -9]


def test_empty_tensors() -> None:
    empty = TensorType("f32", (0, 3))
    b = Builder()
    x = b.op("exp", b.transpose(b.input("slot:s", empty), (1, 0)))
    phase = Phase("p", b.graph("p", [("result:x", x), ("result:sum", b.sum(x, (0, 1)))]))
    session = opened(phase, slots=(Slot("s", empty, "parameter"),))
    (outputs,) = session.run([Call("p")]).result()
    assert outputs.results["x"].shape == (3, 0) and outputs.results["sum"] == 0


@pytest.mark.parametrize("poison", [False, True])
def test_a_composite_runs_as_its_body(poison: bool) -> None:
    inner = Builder()
    x = inner.input("x", F)
    body = inner.graph("body", [("y", inner.op("tanh", inner.op("exp", x))), ("x", x)])
    b = Builder()
    first = b.node("composite", (b.input("feed:x", F),), {"name": "twice"}, (body,))
    second = b.node("composite", (first.outputs[0],), {"name": "twice"}, (body,))
    graph = b.graph("p", [("result:y", b.add(second.outputs[0], first.outputs[1]))])
    session = opened(Phase("p", graph), device=CpuDevice(poison=poison))
    given = np.array([0, 1, -1, 2], np.float32)
    (outputs,) = session.run([Call("p", {"x": given})]).result()
    expected = evaluate(graph, {"feed:x": given})["result:y"]
    np.testing.assert_allclose(outputs.results["y"], expected, 1e-6)


def big_steps(num_elements: int) -> tuple[Phase, tuple[Slot, ...]]:
    t = TensorType("f32", (num_elements // 1024, 1024))
    b = Builder()
    p, m, g = (b.input(f"slot:{name}", t) for name in "pmg")
    bias = b.broadcast(b.input("slot:b", TensorType("f32", (1024,))), t.shape, (1,))
    new_m = b.add(b.scale(m, 0.9), b.scale(b.add(g, bias), 0.1))
    new_p = b.sub(p, b.op("tanh", b.div(new_m, b.add(b.op("sqrt", b.mul(g, g)), b.like(1e-3, g)))))
    phase = Phase("p", b.graph("p", [("slot:p", new_p), ("slot:m", new_m)]))
    slots = (
        *(Slot(name, t, "parameter") for name in "pmg"),
        Slot("b", TensorType("f32", (1024,)), "parameter"),
    )
    return phase, slots


def test_the_number_of_threads_changes_no_bit() -> None:
    phase, slots = big_steps(1 << 19)
    found = []
    for threads in (1, 2, 3):
        session = opened(phase, slots=slots, device=CpuDevice(threads=threads))
        made = np.random.default_rng(0)
        for slot in slots:
            session.write(slot.name, made.normal(size=slot.type.shape).astype(np.float32))
        session.run([Call("p"), Call("p")]).result()
        found.append([session.read(name).result().tobytes() for name in "pm"])
        session.close()
    assert found[0] == found[1] == found[2]


MEASURE = """
import numpy as np
from tests.backend.test_cpu import big_steps, opened
from sexpgpu.backend.cpu.device import CpuDevice
from sexpgpu.backend.protocol import Call
phase, slots = big_steps(1 << 24)
session = opened(phase, slots=slots, device=CpuDevice())
for slot in slots:
    session.write(slot.name, np.ones(slot.type.shape, np.float32))
session.run([Call("p"), Call("p")]).result()
print(session.peak_bytes(), session.plan.peak_bytes)
"""


def test_measured_peak_is_near_the_plan() -> None:
    """In a process of its own, since the mark is the process's; `write` holds one argument more."""
    done = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True)
    measured, planned = map(int, done.stdout.split())
    slot = 4 << 24
    # What only a run of blocks reads has a place in the plan and never touches it.
    assert 0.75 * planned < measured < 1.05 * planned + slot, (measured, planned)


def test_growth_is_exact_once_the_high_water_mark_rises() -> None:
    now, peak = [100], [500]
    growth = ResidentGrowth(lambda: now[0], lambda: peak[0])
    now[0] = 130
    growth.sample()
    now[0] = 110
    assert growth.most_bytes() == 30
    peak[0] = 620
    assert growth.most_bytes() == 520


def test_free_memory_is_known() -> None:
    assert free_bytes() > 1 << 20


def test_a_run_that_does_not_fit() -> None:
    phase, slots = big_steps(1 << 18)
    program = Program(slots, (phase,), Builder().graph("schedule", []))
    with pytest.raises(DiagnosticError) as caught:
        CpuDevice().plan(program, Budget(1 << 20))
    assert [d.code for d in caught.value.diagnostics] == ["E-MEM-001"]


def test_refused_allocations(monkeypatch: pytest.MonkeyPatch) -> None:
    session = opened(update(), slots=(Slot("s", F, "parameter"),))

    def refuse(*_: object, **__: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(session_module.np, "empty", refuse)
        with pytest.raises(DiagnosticError) as caught:
            opened(update(), slots=(Slot("s", F, "parameter"),))
    assert str(caught.value).startswith("E-MEM-004: the machine refused memory while opening the plan; the run holds")
    with monkeypatch.context() as patch:
        patch.setattr(session_module, "_put", refuse)
        with pytest.raises(DiagnosticError, match=r"E-MEM-004: .* phase `update`"):
            session.run([Call("update", {"x": ONES, "y": ZERO})])


@pytest.mark.parametrize("poison", [False, True])
def test_a_guarded_update_that_keeps_no_proposals(poison: bool) -> None:
    """Many leaves and no other phase: the update runs twice rather than hold all of its results."""
    t = TensorType("f32", (1 << 12,))
    b = Builder()
    ok = b.constant(True, TensorType("bool", ()))
    rate = b.broadcast(b.input("feed:rate", SCALAR), t.shape, ())
    outputs = []
    for i in range(8):
        p, m = b.input(f"slot:p{i}", t), b.input(f"slot:m{i}", t)
        new_m = b.add(b.scale(m, 0.5), p)
        new_p = b.sub(p, b.mul(rate, new_m))
        for name, new in ((f"slot:p{i}", new_p), (f"slot:m{i}", new_m)):
            ok = b.op("and", ok, b.op("all", b.op("is-finite", new), axes=(0,)))
            outputs.append((name, new))
    phase = Phase("update", b.graph("update", [*outputs, ("result:ok", ok)]), "ok")
    slots = tuple(Slot(f"{name}{i}", t, "parameter") for i in range(8) for name in "pm")
    session = opened(phase, slots=slots, device=CpuDevice(poison=poison))
    plan = session.plan.phases["update"]
    assert plan.apply is not None and len(plan.apply.placed) == 16
    assert plan.arena_bytes < 4 * t.num_bytes
    for slot in slots:
        session.write(slot.name, np.ones(t.shape, np.float32))
    (held,) = session.run([Call("update", {"rate": np.float32(0.5)})]).result()
    assert held.committed
    assert (session.read("p3").result() == 0.25).all() and (session.read("m3").result() == 1.5).all()
    (failed,) = session.run([Call("update", {"rate": np.float32(np.nan)})]).result()
    assert not failed.committed
    assert (session.read("p3").result() == 0.25).all() and (session.read("m7").result() == 1.5).all()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C interrupts, also where the tests were started in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_waits_for_the_commit() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), uninterrupted():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)
        done.append(True)
    assert done == [True]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("interruptible")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_interrupts_never_tear_a_guarded_update() -> None:
    """Two slots go up together; whatever call an interrupt hits, they stay equal."""
    t = TensorType("f32", (1 << 18,))
    b = Builder()
    one = b.constant(1.0, t)
    x, y = b.input("slot:x", t), b.input("slot:y", t)
    outputs = [("slot:x", b.add(x, one)), ("slot:y", b.add(y, one))]
    ok = b.op("all", b.op("is-finite", x), axes=(0,))
    phase = Phase("p", b.graph("p", [*outputs, ("result:ok", ok)]), "ok")
    session = opened(phase, slots=(Slot("x", t, "parameter"), Slot("y", t, "parameter")), device=CpuDevice())
    assert session.plan.phases["p"].apply is None
    interrupts = 0
    for attempt in range(30):
        timer = threading.Timer(0.003 + 0.0003 * attempt, os.kill, (os.getpid(), signal.SIGINT))
        try:
            timer.start()
            while timer.is_alive():
                session.run([Call("p")]).result()
            time.sleep(0.05)
        except KeyboardInterrupt:
            interrupts += 1
        left, right = session.read("x").result().copy(), session.read("y").result().copy()
        assert (left == left[0]).all() and (left == right).all()
    assert interrupts == 30
