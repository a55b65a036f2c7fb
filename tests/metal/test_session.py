"""The metal session over the fake Metal: real kernels on the lane engine, memory, order, guards, faults, failures."""

from __future__ import annotations

import gc
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import sexpgpu.ir.ops  # noqa: F401
from sexpgpu.backend.metal.device import MetalDevice
from sexpgpu.backend.metal.pool import PAGE_BYTES
from sexpgpu.backend.protocol import Budget, Call
from sexpgpu.diagnostics import Diagnostic, DiagnosticError
from sexpgpu.ir.builder import Builder
from sexpgpu.ir.program import Phase, Program, Slot
from sexpgpu.ir.types import NUMPY_DTYPES, TensorType
from tests.backend.random_programs import assert_follows, random_program
from tests.lanes.unit import ORDERS, compiler
from tests.metal.fake_metal import ERROR_OUT_OF_MEMORY, NON_VOLATILE, NSError
from tests.metal.mac import mac

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs g++")

F = TensorType("f32", (4,))
NO_SCHEDULE = Builder().graph("schedule", [])


NUM_PROGRAMS = 5


@pytest.mark.parametrize("seed", range(NUM_PROGRAMS))
def test_random_programs(seed: int) -> None:
    program, contents, feeds = random_program(seed, casts=("bf16", "i32"))
    card, gpu = mac(order=ORDERS[seed % 3], checked=seed == NUM_PROGRAMS - 1)
    session = card.open(card.plan(program, Budget()))
    assert_follows(session, program, contents, feeds, 2)
    session.close()
    assert card.tools.pool.live_bytes == 0
    card.tools.pool.clear()
    gc.collect()
    assert gpu.currentAllocatedSize() == 0, "close gives all memory back"


# --- one small program, whose kernels are compiled once ------------------------------------------------------


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


@pytest.fixture(scope="module")
def opened() -> tuple[MetalDevice, Any]:
    return mac()


def started(card: MetalDevice, guarded: bool = False) -> Any:
    session = card.open(card.plan(counter(guarded), Budget()))
    for name in ("sum", "kept"):
        session.write(name, np.asarray(0, np.float32))
    return session


def refused(action: Any) -> Diagnostic:
    with pytest.raises(DiagnosticError) as caught:
        action()
    (diagnostic,) = caught.value.diagnostics
    return diagnostic


@pytest.mark.parametrize("guarded", [False, True])
def test_a_fault_stops_the_chunk(opened: Any, guarded: bool) -> None:
    session = started(opened[0], guarded)
    for _ in range(2):
        outputs = session.run([look(1), look(9), look(2), Call("keep")]).result()
        assert [o.results["read"].item() for o in outputs] == [1, 3]
        assert [fault.message for fault in outputs[1].faults] == ["index 9 is outside 0 to 3"]
        assert session.read("kept").result() == 0
        assert session.read("sum").result() == 4, "an unguarded call before the stop has written its slot"
        session.write("sum", np.asarray(0, np.float32))
    outputs = session.run([look(1), Call("keep")]).result()
    assert not outputs[1].faults and session.read("kept").result() == 2
    session.close()


def test_a_guard_that_does_not_hold_keeps_the_slot(opened: Any) -> None:
    session = started(opened[0], guarded=True)
    for total, kept in ((5.0, 6.0), (200.0, 6.0), (7.0, 8.0), (300.0, 8.0)):
        session.write("sum", np.asarray(total, np.float32))
        (outputs,) = session.run([Call("keep")]).result()
        assert outputs.committed == (total < 100)
        assert session.read("kept").result() == kept
    session.close()


def test_each_call_is_one_command_buffer_and_kernels_are_compiled_once(opened: Any) -> None:
    card, gpu = opened
    started(card).close()
    libraries, buffers, allocations = gpu.num_libraries, gpu.num_command_buffers, gpu.num_allocations
    session = started(card)
    session.run([look(1), look(2), Call("keep")]).result()
    session.run([look(3)]).result()
    session.close()
    assert gpu.num_libraries == libraries, "a process compiles a kernel once"
    assert gpu.num_command_buffers == buffers + 4
    assert gpu.num_allocations == allocations, "the buffers of the session before are used again"


def test_what_lasts_stays_where_it_is_and_scratch_goes_back(opened: Any) -> None:
    card, _ = opened
    session = started(card)
    pool = card.tools.pool
    held, peak = pool.live_bytes, session.peak_bytes()
    plan = session.plan
    session.run([look(1), Call("keep")]).result()
    assert pool.live_bytes == held and session.peak_bytes() == peak > held
    assert peak == -(-peak // PAGE_BYTES) * PAGE_BYTES <= plan.peak_bytes + 5 * PAGE_BYTES
    session.close()
    assert pool.live_bytes == 0


def test_wrong_feeds_and_values(opened: Any) -> None:
    session = started(opened[0])
    with pytest.raises(ValueError, match="takes"):
        session.run([Call("look", {"table": np.zeros(4, np.float32)})])
    with pytest.raises(ValueError, match="feed `index`"):
        session.run([Call("look", {"table": np.zeros(4, np.float32), "index": np.asarray(0, np.int64)})])
    with pytest.raises(ValueError, match="slot `sum`"):
        session.write("sum", np.zeros(2, np.float32))
    with pytest.raises(KeyError):
        session.run([Call("nothing")])
    session.close()
    assert opened[0].tools.pool.live_bytes == 0


def test_an_interrupt_in_a_call_leaves_the_session_usable(opened: Any) -> None:
    card, gpu = opened
    session = started(card, guarded=True)
    held = card.tools.pool.live_bytes

    def interrupt() -> None:
        gpu.before_work = lambda: None
        raise KeyboardInterrupt

    gpu.before_work = interrupt
    with pytest.raises(KeyboardInterrupt):
        session.run([look(2), look(3)])
    assert session.read("sum").result() == 2, "what was committed has ended, and nothing came after it"
    assert card.tools.pool.live_bytes == held
    assert session.run([look(3)]).result()[0].results["read"] == 3
    session.close()


def test_a_gpu_that_fails_is_told(opened: Any) -> None:
    card, gpu = opened
    session = started(card)
    gpu.error = NSError("Caused GPU Timeout Error")
    diagnostic = refused(lambda: session.run([look(1)]))
    assert diagnostic.code == "E-DEV-006" and "metal failed: the GPU failed: Caused GPU Timeout" in diagnostic.message
    gpu.error = NSError("Insufficient Memory", ERROR_OUT_OF_MEMORY)
    diagnostic = refused(lambda: session.run([look(1)]))
    assert diagnostic.code == "E-MEM-002" and diagnostic.message.endswith("while it ran a call: Insufficient Memory")
    session.close()


def test_a_text_that_is_refused_is_told() -> None:
    card, gpu = mac()
    gpu._build = lambda text: (_ for _ in ()).throw(ValueError("program_source:7: error: no such function"))
    diagnostic = refused(lambda: started(card))
    assert diagnostic.code == "E-DEV-006" and "program_source:7" in diagnostic.message
    assert card.tools.pool.live_bytes == 0
    card, gpu = mac(max_threads=64)
    assert "needs 256 threads, and this GPU allows it 64" in refused(lambda: started(card)).message


def test_memory_that_is_refused(opened: Any) -> None:
    card, gpu = mac(refuse_above=PAGE_BYTES)
    diagnostic = refused(lambda: started(card))
    assert diagnostic.code == "E-MEM-002" and card.tools.pool.live_bytes == 0
    assert diagnostic.message == (
        "the Metal device could not allocate 16384 bytes for the plan, whose largest tensor is [4] f32; "
        "the run does not fit this GPU"
    )
    assert diagnostic.notes[0].startswith("planned, in bytes: model states 128, ")
    card, gpu = opened
    session = started(card)
    card.tools.pool.clear()
    gpu.facts["refuse_above"] = gpu.currentAllocatedSize()
    assert refused(lambda: session.run([look(1)])).code == "E-MEM-002"
    gpu.facts["refuse_above"] = 1 << 40
    assert session.run([look(1)]).result()[0].results["read"] == 1, "what was refused has changed nothing"
    session.close()


# --- contents -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("planned", [False, True])
def test_values_keep_their_bits_and_snapshots_are_copies(planned: bool) -> None:
    rng = np.random.default_rng(0)
    values = {
        "w": rng.normal(size=(5, 7)).astype(np.float32),
        "h": rng.normal(size=(3, 5)).astype(ml_dtypes.bfloat16),
        "n": np.array([-(2**31), 2**31 - 1], np.int32),
        "m": np.array(2**62 + 1, np.int64),
        "b": np.array([True, False, True]),
    }
    kinds = {"f": "f32", "V": "bf16", "b": "bool"}
    slots = []
    for name, value in values.items():
        dtype = kinds.get(value.dtype.kind) or f"i{8 * value.itemsize}"
        slots.append(Slot(name, TensorType(dtype, value.shape), "optimizer"))
    card, gpu = mac()
    program = Program(tuple(slots), (), NO_SCHEDULE)
    session = card.open(card.plan(program, Budget(snapshot=planned)))
    for name, value in values.items():
        session.write(name, value)
    found = dict(session.snapshot())
    for name, value in values.items():
        read = session.read(name).result()
        assert read.dtype == found[name].dtype == NUMPY_DTYPES[session._slots[name].type.dtype]
        assert read.tobytes() == found[name].tobytes() == value.tobytes(), name
        session.write(name, np.zeros_like(value))
        assert found[name].tobytes() == value.tobytes(), "a copy"
    assert all(copy is found[name] and not copy.any() for name, copy in session.snapshot().items())
    session.close()
    assert all(buffer.state == NON_VOLATILE for buffer in gpu._buffers), "idle, and not promoted"


def test_an_i32_overflows_as_an_i32_and_bf16_is_rounded_at_casts_alone() -> None:
    b, count = Builder(), 5
    integers, floats = TensorType("i32", (count,)), TensorType("f32", (count,))
    x, y = b.input("feed:x", integers), b.input("feed:y", floats)
    narrow = b.cast(y, "bf16")
    outputs = [("result:sum", b.add(x, x)), ("result:narrow", narrow), ("result:wide", b.cast(narrow, "f32"))]
    card, _ = mac()
    session = card.open(card.plan(Program((), (Phase("p", b.graph("p", outputs)),), NO_SCHEDULE), Budget()))
    given = {
        "x": np.array([2**31 - 1, -(2**31), 3, -3, 2**30], np.int32),
        "y": np.array([1.0, 1 + 2**-8, 1 + 3 * 2**-8, -1e38, 3e-39], np.float32),
    }
    (found,) = session.run([Call("p", given)]).result()
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(found.results["sum"], given["x"] + given["x"])
    rounded = given["y"].astype(ml_dtypes.bfloat16)
    assert found.results["narrow"].tobytes() == rounded.tobytes()
    np.testing.assert_array_equal(found.results["wide"], rounded.astype(np.float32))


def test_slots_of_more_than_one_buffer() -> None:
    """What lasts does not fit the longest buffer, so that commits are told of several."""
    type = TensorType("f32", (3000,))
    slots = tuple([Slot(f"w{i}", type, "parameter") for i in range(14)])
    written = (0, 6, 13)
    b = Builder()
    rate = b.input("feed:rate", TensorType("f32", ()))
    wide = b.broadcast(rate, type.shape, [])
    outputs = [(f"slot:w{i}", b.op("mul", b.input(f"slot:w{i}", type), wide)) for i in written]
    fine = b.op("lt", rate, b.constant(3.0, rate.type))
    phase = Phase("p", b.graph("p", [*outputs, ("result:ok", fine)]), "ok")
    card, _ = mac(max_buffer=4 * PAGE_BYTES)
    session = card.open(card.plan(Program(slots, (phase,), NO_SCHEDULE), Budget()))
    assert len({session._regions.starts[f"slot:w{i}"][0] for i in written}) == 3
    rng = np.random.default_rng(1)
    values = {slot.name: rng.normal(size=3000).astype(np.float32) for slot in slots}
    for name, value in values.items():
        session.write(name, value)
    for value in (2.0, 5.0):
        (found,) = session.run([Call("p", {"rate": np.asarray(value, np.float32)})]).result()
        assert found.committed == (value < 3)
        for i, (name, before) in enumerate(values.items()):
            np.testing.assert_array_equal(session.read(name).result(), before * (2 if i in written else 1))
