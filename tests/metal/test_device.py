"""What the metal device asks of a machine, how it refuses, and what the planner learns of it."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping

import pytest
from click.testing import CliRunner

import sexpgpu.ir.ops  # noqa: F401
from sexpgpu.backend import registry
from sexpgpu.backend.metal import device as devices
from sexpgpu.backend.metal.device import MetalDevice, open_metal
from sexpgpu.backend.protocol import Budget
from sexpgpu.cli.main import main
from sexpgpu.diagnostics import Diagnostic, DiagnosticError
from sexpgpu.ir.builder import Builder
from sexpgpu.ir.program import Phase, Program, Slot
from sexpgpu.ir.types import TensorType
from tests.metal.fake_metal import FakeMetal
from tests.metal.mac import mac

GIB = 1 << 30
NO_SCHEDULE = Builder().graph("schedule", [])


def refused(opened: object) -> Diagnostic:
    with pytest.raises(DiagnosticError) as caught:
        opened()  # type: ignore[operator]
    (diagnostic,) = caught.value.diagnostics
    return diagnostic


def pretend(patch: pytest.MonkeyPatch, system: str, machine: str, version: str, installed: bool = False) -> None:
    patch.setattr(platform, "system", lambda: system)
    patch.setattr(platform, "machine", lambda: machine)
    patch.setattr(platform, "mac_ver", lambda: (version, ("", "", ""), machine))
    patch.setattr(devices, "find_spec", lambda name: object() if installed else None)


@pytest.mark.parametrize(
    "machine, wanted",
    [
        (("Linux", "x86_64", ""), "it needs a Mac, and this is Linux"),
        (("Darwin", "x86_64", "14.1"), "it needs Apple silicon and a Python for it, and this is x86_64"),
        (("Darwin", "arm64", "11.7.10"), "it needs macOS 12 or newer, and this is 11.7.10"),
        (("Darwin", "arm64", "26.1"), "the package `pyobjc-framework-Metal` is not installed"),
    ],
)
def test_what_is_missing(machine: tuple[str, str, str], wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, *machine)
    assert registry.missing("metal") == wanted
    diagnostic = refused(lambda: registry.open_device("metal"))
    assert diagnostic.code == "E-DEV-002" and diagnostic.message == f"`metal` cannot be opened: {wanted}"
    assert "`cpu` can be opened here" in diagnostic.notes[0] and "metal" not in diagnostic.notes[0]
    assert ("sexpgpu[metal]" in diagnostic.help[0]) == ("PyObjC" in wanted or "pyobjc" in wanted)
    assert wanted.split("`")[0].split()[0] in CliRunner().invoke(main, ["doctor"]).output


def test_a_bridge_that_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "Darwin", "arm64", "12.0", installed=True)
    monkeypatch.setitem(sys.modules, "Metal", None)
    assert registry.missing("metal") == "", "a look finds no reason"
    assert "is not installed" in refused(lambda: registry.open_device("metal")).message


@pytest.mark.parametrize(
    "facts, wanted",
    [
        ({"num_devices": 0}, "Metal finds no GPU"),
        ({"families": {1006}, "name": "Apple Paravirtual device"}, "the GPU is Apple Paravirtual device, and that of"),
    ],
)
def test_a_gpu_that_is_not_enough(facts: Mapping[str, object], wanted: str) -> None:
    metal = FakeMetal(lambda text: None, **facts)  # type: ignore[arg-type, return-value]
    diagnostic = refused(lambda: open_metal("", "", metal, metal.bridge))
    assert diagnostic.code == "E-DEV-002" and wanted in diagnostic.message


def test_a_mac_has_one_gpu() -> None:
    for given in ("", "0"):
        assert mac(given)[0].name == "metal"
    for given in ("1", "0,1", "all"):
        diagnostic = refused(lambda given=given: mac(given))
        assert diagnostic.code == "E-DP-001" and repr(given) in diagnostic.message


def test_doctor_says_what_it_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = mac(name="Apple M1 Pro", working_set=21 * GIB, max_buffer=16 * GIB)
    monkeypatch.setattr(registry, "_KINDS", {**registry._KINDS, "metal": registry._Kind(lambda _: found)})
    output = " ".join(CliRunner().invoke(main, ["doctor"]).output.split())
    assert "metal yes Apple M1 Pro, bf16 as f32 and integers as i64 in memory" in output
    assert "21.0 of 21.0 GiB may be used, 16.0 GiB in one buffer" in output and "frees" not in output
    leaking = MetalDevice(found.tools, frees=False)
    assert any("frees no buffer" in line for line in leaking.details())


def one(type: TensorType) -> Program:
    """A program with one tensor that nothing computes."""
    b = Builder()
    given = b.input("slot:x", type)
    return Program(
        (Slot("x", type, "parameter"),), (Phase("p", b.graph("p", [("result:y", given)], [given])),), NO_SCHEDULE
    )


def test_a_tensor_above_the_longest_buffer() -> None:
    """Golden: 65,535 squared integers of 8 bytes."""
    card, gpu = mac(max_buffer=16 * GIB, working_set=100 * GIB)
    diagnostic = refused(lambda: card.plan(one(TensorType("i64", (65535, 65535))), Budget()))
    assert diagnostic.code == "E-MEM-002"
    assert diagnostic.message == (
        "the Metal device could not allocate 34358689800 bytes for a tensor of [65535, 65535] i64; "
        "the run does not fit this GPU"
    )
    assert "34358689800" in refused(lambda: card.plan(one(TensorType("i32", (65535, 65535))), Budget())).message
    assert gpu.num_allocations == 1, "found before anything is requested: the one is the attempt at opening"


def test_storage_is_what_the_plan_counts() -> None:
    card, _ = mac()
    for dtype, item_bytes in (("f32", 4), ("bf16", 4), ("i32", 8), ("i64", 8), ("bool", 1)):
        plan = card.plan(one(TensorType(dtype, (64, 64))), Budget())
        assert plan.slot_bytes == {"parameter": item_bytes * 64 * 64}
    with pytest.raises(ValueError, match="dtype that metal does not"):
        card.plan(one(TensorType("f64", (64,))), Budget())


def test_memory_is_admitted_from_the_plan() -> None:
    card, _ = mac(working_set=1 << 20)
    assert card.free_bytes() == 1 << 20
    assert refused(lambda: card.plan(one(TensorType("f32", (1 << 19,))), Budget())).code == "E-MEM-001"
    card.plan(one(TensorType("f32", (1 << 16,))), Budget())
    assert refused(lambda: card.plan(one(TensorType("f32", (1 << 16,))), Budget(1 << 16))).code == "E-MEM-001"


def test_an_arena_above_the_longest_buffer() -> None:
    card, _ = mac(max_buffer=1 << 14)
    b, type = Builder(), TensorType("f32", (2048,))
    x = b.input("feed:x", type)
    sums = [b.op("cumsum", b.op(op, x), axis=0) for op in ("tanh", "sin", "exp")]
    graph = b.graph("p", [(f"result:y{i}", value) for i, value in enumerate(sums)], [x])
    diagnostic = refused(lambda: card.plan(Program((), (Phase("p", graph),), NO_SCHEDULE), Budget()))
    assert diagnostic.code == "E-MEM-002" and "for what phase `p` has in memory at once" in diagnostic.message
