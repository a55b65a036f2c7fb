"""The cuda session on a card made of host memory: memory, order, capture, guards, faults, failures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sexpgpu.ir.ops  # noqa: F401
from sexpgpu.backend.cuda.device import CudaDevice
from sexpgpu.backend.cuda.session import RING
from sexpgpu.backend.kernels.printer import supported
from sexpgpu.backend.protocol import Budget, Call
from sexpgpu.diagnostics import DiagnosticError
from sexpgpu.ir.builder import Builder
from sexpgpu.ir.evaluate import evaluate
from sexpgpu.ir.graph import Origin
from sexpgpu.ir.program import Phase, Program, Slot
from sexpgpu.ir.types import NUMPY_DTYPES, TensorType
from sexpgpu.source import Source, Span
from sexpgpu.train.samples import Case, cases
from tests.backend.random_programs import assert_follows, random_program
from tests.cuda.fake import GIB, FakeDriver, toolbox

F = TensorType("f32", (4,))
NO_SCHEDULE = Builder().graph("schedule", [])


def device(driver: FakeDriver | None = None, capture: bool = True, **options: Any) -> CudaDevice:
    return CudaDevice(toolbox(driver or FakeDriver(), **options), capture=capture)


@pytest.mark.parametrize(
    ("seed", "options"),
    [(seed, {}) for seed in range(60)]
    + [(seed, options) for options in ({"capture": False}, {"refuses": True}) for seed in range(16)],
    ids=str,
)
def test_random_programs(seed: int, options: dict[str, Any]) -> None:
    program, contents, feeds = random_program(seed)
    card = device(**options)
    session = card.open(card.plan(program, Budget()))
    assert_follows(session, program, contents, feeds, 3)
    session.close()
    assert not card.tools.driver.memory_of, "close gives all memory back"  # type: ignore[attr-defined]


@pytest.mark.parametrize("planned", [False, True])
def test_a_snapshot_is_a_copy_in_memory_that_is_used_again(planned: bool) -> None:
    types = {"w": TensorType("f32", (5, 7)), "h": TensorType("bf16", (3,)), "n": TensorType("i64", ())}
    slots = (*(Slot(name, type, "optimizer") for name, type in types.items()), Slot("g", types["w"], "gradient"))
    card = device()
    plain, saving = (card.plan(Program(slots, (), NO_SCHEDULE), Budget(snapshot=each)) for each in (False, True))
    assert saving.peak_bytes == plain.peak_bytes, "the copy is in the host's memory"
    session = card.open(saving if planned else plain)
    values = {name: np.full(type.shape, 3, NUMPY_DTYPES[type.dtype]) for name, type in types.items()}
    for name, value in values.items():
        session.write(name, value)
    found = dict(session.snapshot())
    for name, value in values.items():
        session.write(name, value * 0)
    assert found.keys() == values.keys()
    for name, value in values.items():
        np.testing.assert_array_equal(found[name], value)
    assert all(copy is found[name] and not copy.any() for name, copy in session.snapshot().items())
    session.close()
    assert card.tools.driver.memory_of, "what still reads the copies keeps them"  # type: ignore[attr-defined]
    del found
    assert not card.tools.driver.memory_of  # type: ignore[attr-defined]


def test_long_loops_are_refused_when_they_are_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(case for case in cases() if case.op == "scan")
    b = Builder()
    b.origin = Origin(note="gradient of", parent=Origin(Span(Source("f.sx", "(scan [h 0.0] [x x] h)"), 0, 5)))
    inputs = [b.input(f"feed:x{i}", type) for i, type in enumerate(case.sample.types)]
    node = b.node(case.op, inputs, case.sample.attrs, case.sample.bodies)
    graph = b.graph("p", [("result:y", node.outputs[0])], inputs)
    program = Program((), (Phase("p", graph),), NO_SCHEDULE)
    card = device()
    assert all(step.node.op != "scan" for step in card.plan(program, Budget()).phases["p"].steps)
    monkeypatch.setattr("sexpgpu.backend.trips.MAX_UNROLLED", 20)
    with pytest.raises(DiagnosticError) as error:
        card.plan(program, Budget())
    (found,) = error.value.diagnostics
    assert found.code == "E-DEV-004" and found.span is not None and found.span.text == "(scan"
    assert "4 trips" in found.message and not supported(node)


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in cases()])
def test_samples(case: Case) -> None:
    graph, feeds = case.graph(), case.feeds()
    card = device()
    session = card.open(card.plan(Program((), (Phase("p", graph),), NO_SCHEDULE), Budget()))
    flagged: list[str] = []
    given = {f"feed:{key}": array for key, array in feeds.items()}
    expected = evaluate(graph, given, flag=lambda node, message: flagged.append(message))
    for _ in range(2):
        (outputs,) = session.run([Call("p", feeds)]).result()
        assert len(outputs.results) == len(graph.outputs)
        for name, found in outputs.results.items():
            wanted = expected[f"result:{name}"]
            assert found.dtype == wanted.dtype and found.shape == wanted.shape
            np.testing.assert_allclose(found.astype(np.float64), wanted.astype(np.float64), 1e-5, 1e-5)
        assert [fault.message for fault in outputs.faults] == list(dict.fromkeys(flagged))
    session.close()


def counter(guarded: bool = False) -> Program:
    """Phase `look` reads a table at an index and adds what it reads to `sum`; `keep` is guarded, if asked."""
    b = Builder()
    table, index = b.input("feed:table", F), b.input("feed:index", TensorType("i32", ()))
    total = b.input("slot:sum", TensorType("f32", ()))
    read = b.op("gather", table, index, axis=0, batch=0)
    look = Phase("look", b.graph("look", [("slot:sum", b.add(total, read)), ("result:read", read)]))
    b = Builder()
    total = b.input("slot:sum", TensorType("f32", ()))
    held = b.op("lt", total, b.constant(100.0, total.type))
    outputs = [("slot:kept", b.add(total, b.constant(1.0, total.type))), ("result:ok", held)]
    keep = Phase("keep", b.graph("keep", outputs), "ok" if guarded else None)
    slots = (Slot("sum", TensorType("f32", ()), "state"), Slot("kept", TensorType("f32", ()), "state"))
    return Program(slots, (look, keep), NO_SCHEDULE)


def look(index: int) -> Call:
    return Call("look", {"table": np.arange(4, dtype=np.float32), "index": np.asarray(index, np.int32)})


@pytest.mark.parametrize("guarded", [False, True])
def test_a_fault_stops_the_chunk(guarded: bool) -> None:
    card = device()
    session = card.open(card.plan(counter(guarded), Budget()))
    for name in ("sum", "kept"):
        session.write(name, np.asarray(0, np.float32))
    for _ in range(3):
        outputs = session.run([look(1), look(9), look(2), Call("keep")]).result()
        assert [o.results["read"].item() for o in outputs] == [1, 3]
        assert [fault.message for fault in outputs[1].faults] == ["index 9 is outside 0 to 3"]
        assert session.read("kept").result() == 0
        assert session.read("sum").result() == 4, "an unguarded call before the stop has written its slot"
        session.write("sum", np.asarray(0, np.float32))
    outputs = session.run([look(1), Call("keep")]).result()
    assert not outputs[1].faults and session.read("kept").result() == 2, "a new chunk begins without the halt"


def test_a_guard_that_does_not_hold_keeps_the_slot() -> None:
    card = device()
    session = card.open(card.plan(counter(True), Budget()))
    for total, kept in ((5.0, 6.0), (200.0, 6.0), (7.0, 8.0), (300.0, 8.0)):
        session.write("sum", np.asarray(total, np.float32))
        (outputs,) = session.run([Call("keep")]).result()
        assert outputs.committed == (total < 100)
        if total != 5.0 or outputs.committed:
            assert session.read("kept").result() == kept


def test_outputs_may_be_asked_for_late() -> None:
    card = device()
    session = card.open(card.plan(counter(), Budget()))
    session.write("sum", np.asarray(0, np.float32))
    pending = [session.run([look(i % 4)]) for i in range(2 * RING + 3)]
    found = [future.result()[0].results["read"].item() for future in pending]
    assert found == [i % 4 for i in range(len(pending))]
    driver = card.tools.driver
    assert isinstance(driver, FakeDriver)
    assert driver.calls.count("replay") == len(pending) - 1, "the first call runs action by action"


def test_a_call_that_is_not_watched_waits_for_nothing() -> None:
    driver = FakeDriver()
    card = device(driver)
    session = card.open(card.plan(counter(True), Budget()))
    session.write("sum", np.asarray(0, np.float32))
    driver.calls.clear()
    future = session.run([look(1), Call("keep")])
    assert "wait" not in driver.calls, "the guarded call sees faults on the card"
    future.result()
    assert driver.calls.count("wait") == 2


def test_wrong_feeds_and_values() -> None:
    card = device()
    session = card.open(card.plan(counter(), Budget()))
    with pytest.raises(ValueError, match="takes"):
        session.run([Call("look", {"table": np.zeros(4, np.float32)})])
    with pytest.raises(ValueError, match="feed `index`"):
        session.run([Call("look", {"table": np.zeros(4, np.float32), "index": np.asarray(0, np.int64)})])
    with pytest.raises(ValueError, match="slot `sum`"):
        session.write("sum", np.zeros(2, np.float32))
    with pytest.raises(KeyError):
        session.run([Call("nothing")])


def test_memory_that_is_refused() -> None:
    card = device(FakeDriver(refuse_above=100))
    with pytest.raises(DiagnosticError) as caught:
        card.open(card.plan(counter(), Budget()))
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "E-MEM-003"
    assert "opening the plan" in diagnostic.message and "planned, in bytes: model states" in diagnostic.message


def test_a_plan_that_is_too_large_for_what_is_free() -> None:
    card = device(FakeDriver(free_bytes=GIB + 100))
    with pytest.raises(DiagnosticError) as caught:
        card.plan(counter(), Budget())
    assert caught.value.diagnostics[0].code == "E-MEM-001"
    assert device(FakeDriver(free_bytes=2 * GIB)).free_bytes() == GIB, "1 GiB is the libraries'"
    roomy = device(FakeDriver(free_bytes=70 * GIB))
    roomy.plan(counter(), Budget(12 * GIB))
    with pytest.raises(DiagnosticError):
        roomy.plan(counter(), Budget(10 * GIB))  # others hold 10 GiB of the real card


def test_one_allocation_holds_it_all() -> None:
    driver = FakeDriver()
    card = device(driver)
    plan = card.plan(counter(), Budget())
    session = card.open(plan)
    assert driver.calls.count("allocate") == 2, "one of the card's memory, one of pinned memory"
    assert plan.peak_bytes <= session.peak_bytes() <= plan.peak_bytes + 16 * 256
