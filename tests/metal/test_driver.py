"""Calls of Metal: spelt as PyObjC has them, nothing leaked, nothing running after an interrupt; the pool's limits."""

from __future__ import annotations

import gc
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sexpgpu.backend.metal import driver as drivers
from sexpgpu.backend.metal.driver import NEW, Dispatch, Driver, MetalError, OutOfMemory
from sexpgpu.backend.metal.pool import MIB, PAGE_BYTES, SLACK, Pool
from tests.metal import fake_metal
from tests.metal.fake_metal import Argument, FakeMetal, NSError
from tools.metal_names import names_used

KNOWN = json.loads((Path(__file__).parent / "pyobjc_names.json").read_text())
OTHERS = {
    "alloc", "init", "code", "localizedDescription", # of Foundation
    "setLanguageVersion_", # a plain property, which needs no metadata
    "as_buffer", "autorelease_pool", "registerMetaDataForSelector", # of the bridge
}  # fmt: skip
"""Names of PyObjC and of Foundation that are not in the table of the wheel."""


class Doubling:
    """A library with one kernel of two arguments: bytes of the first, twice, into the second."""

    def __init__(self, text: str) -> None:
        if "error" in text:
            raise ValueError(f"program_source:1: {text}")

    def num_arguments(self, name: str) -> int | None:
        return 2 if name == "double" else None

    def run(
        self, name: str, groups: Sequence[int], threads: Sequence[int], arguments: Sequence[Argument]
    ) -> None:
        import ctypes

        source, target = (
            np.ctypeslib.as_array((ctypes.c_uint8 * groups[0]).from_address(x.address)) for x in arguments
        )
        target[:] = 2 * source


def opened(**facts: Any) -> tuple[Driver, fake_metal.Device]:
    metal = FakeMetal(Doubling, **facts)
    return Driver(metal, metal.bridge), metal.devices[0]


# --- spellings ----------------------------------------------------------------------------------------------


def test_every_name_is_one_that_pyobjc_has() -> None:
    methods, capitals = names_used(Path(drivers.__file__).read_text())
    known = {name.replace(":", "_") for name in KNOWN["selectors"]}
    assert not methods - known - OTHERS, "not in the metadata of the wheel: see tools/metal_names.py"
    assert methods >= {"setBuffer_offset_atIndex_", "waitUntilCompleted", "setPurgeableState_"}
    assert capitals == {*KNOWN["constants"], *KNOWN["functions"], "MTLCompileOptions"}


def test_constants_of_the_fake_are_those_of_the_wheel() -> None:
    assert {name: getattr(FakeMetal, name) for name in KNOWN["constants"]} == KNOWN["constants"]


def test_methods_whose_result_is_ours_are_described_as_the_wheel_does() -> None:
    new = {name for name in KNOWN["selectors"] if name.startswith("new")}
    assert new == {selector.decode() for selector in NEW}
    for selector, arguments in NEW.items():
        known = KNOWN["selectors"][selector.decode()]
        plain = json.loads(json.dumps(arguments, default=bytes.decode))
        assert known.get("arguments", {}) == plain, selector


# --- the driver ---------------------------------------------------------------------------------------------


def test_facts() -> None:
    driver, device = opened(name="Apple M1 Pro", max_buffer=1 << 30, working_set=3 << 30)
    assert (driver.name(), driver.max_buffer_bytes(), driver.working_set_bytes()) == ("Apple M1 Pro", 1 << 30, 3 << 30)
    assert driver.is_apple_gpu() and not opened(families={1006})[0].is_apple_gpu()
    assert not opened(unified=False)[0].is_apple_gpu()
    assert opened(has_default=False)[0].name() == "Lane engine", "a process without windows"
    with pytest.raises(MetalError, match="finds no GPU"):
        opened(num_devices=0)
    assert device.num_allocations == 0


def test_buffers_are_freed_when_nothing_refers_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, _ = opened()
    assert driver.frees() and driver.allocated_bytes() == 0
    monkeypatch.delitem(NEW, b"newBufferWithLength:options:")
    leaking, _ = opened()
    assert not leaking.frees(), "the fake leaks as the bridge does where nobody told it"


def test_a_launch_in_one_command_buffer() -> None:
    driver, device = opened()
    pipeline = driver.pipeline(driver.compile("kernels"), "double")
    first, second = driver.allocate(64), driver.allocate(64)
    assert set(driver.view(first, 64)) == {0xA5}, "fresh memory is rubbish"
    driver.view(first, 64)[:] = np.arange(64)
    there = [(first, 8), (second, 0)]
    back = [(second, 0), (first, 0)]
    seconds = driver.run([Dispatch(pipeline, each, (40, 1, 1), (1, 1, 1)) for each in (there, back)])
    assert seconds == 0.5 and device.num_command_buffers == 1 and device.num_dispatches == 2
    np.testing.assert_array_equal(driver.view(first, 64)[:40], 4 * np.arange(8, 48))
    assert device.bridge.depth == 0


def test_what_fails_says_why() -> None:
    driver, device = opened()
    with pytest.raises(MetalError, match="cannot be compiled: program_source:1: an error"):
        driver.compile("an error")
    library = driver.compile("kernels")
    with pytest.raises(MetalError, match="no kernel `triple`"):
        driver.pipeline(library, "triple")
    with pytest.raises(OutOfMemory):
        driver.allocate(1 << 40)
    buffer = driver.allocate(64)
    work = [Dispatch(driver.pipeline(library, "double"), [(buffer, 0), (buffer, 32)], (32, 1, 1), (1, 1, 1))]
    device.error = NSError("Caused GPU Timeout Error")
    with pytest.raises(MetalError, match="the GPU failed: Caused GPU Timeout Error"):
        driver.run(work)
    device.error = NSError("Insufficient Memory", fake_metal.ERROR_OUT_OF_MEMORY)
    with pytest.raises(OutOfMemory, match="Insufficient"):
        driver.run(work)
    driver.run(work)


def test_an_interrupt_leaves_nothing_running() -> None:
    driver, device = opened()
    buffer = driver.allocate(PAGE_BYTES * 4)
    pipeline = driver.pipeline(driver.compile("kernels"), "double")

    times = iter(range(3))

    def interrupt() -> None:
        if next(times, None) is not None:
            raise KeyboardInterrupt

    device.before_work = interrupt
    with pytest.raises(KeyboardInterrupt):
        driver.run([Dispatch(pipeline, [(buffer, 0), (buffer, 32)], (32, 1, 1), (1, 1, 1))])
    assert device.num_dispatches == 1, "what was committed ends before the interrupt goes on"
    assert driver.offer(buffer), "and nothing uses its buffers"


# --- the pool -----------------------------------------------------------------------------------------------


def pool(**facts: Any) -> tuple[Pool, fake_metal.Device]:
    driver, device = opened(**{"max_buffer": 1 << 34, "working_set": 10 << 30, **facts})
    return Pool(driver), device


class Hollow(fake_metal.Buffer):
    """A buffer without memory, for lengths that a test should not have."""

    def __init__(self, length: int) -> None:
        super().__init__(min(length, 1 << 16))
        self._length = length

    def length(self) -> int:
        return self._length


@pytest.fixture
def hollow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_metal, "Buffer", Hollow)


def test_a_buffer_is_used_again_for_about_its_length() -> None:
    reserve, device = pool()
    first = reserve.take(100 * PAGE_BYTES - 5)
    assert first.num_bytes == 100 * PAGE_BYTES == reserve.live_bytes
    reserve.give(first)
    assert (reserve.live_bytes, reserve.idle_bytes) == (0, 100 * PAGE_BYTES)
    assert reserve.take(100 * PAGE_BYTES - PAGE_BYTES * (100 // SLACK - 1)) is first
    reserve.give(first)
    assert reserve.take(50 * PAGE_BYTES) is not first, "too much of it would lie idle"
    assert reserve.take(101 * PAGE_BYTES) is not first
    assert device.num_allocations == 3 and reserve.peak_bytes == 151 * PAGE_BYTES
    reserve.reset_peak()
    assert reserve.peak_bytes == reserve.live_bytes == 151 * PAGE_BYTES


def test_idle_buffers_stay_below_the_small_limit(hollow: None) -> None:
    reserve, _ = pool()
    taken = [reserve.take(100 * MIB) for _ in range(4)]
    for buffer in taken:
        reserve.give(buffer)
    assert reserve.idle_bytes == reserve.kept_bytes == 200 * MIB
    assert reserve.take(100 * MIB) in taken[2:], "the oldest went"
    assert reserve.limit_bytes == 256 * MIB


def test_a_long_request_promotes_the_pool_for_good(hollow: None) -> None:
    reserve, device = pool()
    early = [reserve.take(100 * MIB), reserve.take(100 * MIB)]
    for buffer in early:
        reserve.give(buffer)
    long = reserve.take(256 * MIB)
    assert reserve.limit_bytes == 256 * MIB, "this is no more than the limit"
    reserve.give(long)
    longer = reserve.take(256 * MIB + 1)
    assert reserve.limit_bytes == 5 << 30, "half of what Metal recommends"
    device.facts["working_set"] = 1 << 30
    reserve.take(300 * MIB)
    assert reserve.limit_bytes == 5 << 30, "fixed"
    reserve.give(longer)
    assert longer.metal.state == fake_metal.VOLATILE and reserve.kept_bytes <= 256 * MIB
    assert reserve.take(256 * MIB + 1) is longer and longer.metal.state == fake_metal.NON_VOLATILE
    assert pool(working_set=100 << 30)[0].limit_bytes == 256 * MIB
    large, _ = pool(working_set=100 << 30)
    large.take(1 << 30)
    assert large.limit_bytes == 8 << 30


def test_a_request_that_is_too_long_promotes_nothing() -> None:
    reserve, device = pool(max_buffer=300 * MIB)
    with pytest.raises(OutOfMemory):
        reserve.take(301 * MIB)
    assert reserve.limit_bytes == 256 * MIB and device.num_allocations == 0


def test_what_the_system_cannot_take_stays_below_the_small_limit(
    hollow: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake_metal, "SMALLEST_PURGEABLE", 1 << 40)
    reserve, _ = pool()
    taken = [reserve.take(300 * MIB), *[reserve.take(100 * MIB) for _ in range(4)]]
    for buffer in taken:
        reserve.give(buffer)
    assert reserve.idle_bytes == reserve.kept_bytes == 200 * MIB and reserve.limit_bytes == 5 << 30


def test_a_refusal_frees_what_waits_and_is_tried_once_more(hollow: None) -> None:
    reserve, device = pool(refuse_above=300 * MIB)
    kept = reserve.take(100 * MIB)
    reserve.give(reserve.take(150 * MIB))
    assert reserve.idle_bytes == 150 * MIB
    found = reserve.take(200 * MIB)
    assert reserve.idle_bytes == 0 and reserve.live_bytes == 300 * MIB
    with pytest.raises(OutOfMemory):
        reserve.take(MIB)
    assert reserve.live_bytes == 300 * MIB
    del kept, found
    gc.collect()
    assert device.currentAllocatedSize() == 0
