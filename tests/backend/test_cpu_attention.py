"""The attention kernel of the cpu device against the composite's body, forward and backward."""

from __future__ import annotations

import platform

import numpy as np
import pytest

from sexpgpu.backend.cpu.device import CpuDevice
from sexpgpu.backend.cpu.native import attention, lowering
from sexpgpu.backend.cpu.native import compiler as native
from sexpgpu.backend.protocol import Budget, Call
from sexpgpu.ir.builder import Builder
from sexpgpu.ir.composites import apply
from sexpgpu.ir.evaluate import evaluate
from sexpgpu.ir.graph import Value
from sexpgpu.ir.opdef import Array
from sexpgpu.ir.program import Phase, Program
from sexpgpu.ir.types import TensorType
from tests.backend.native import compile_together, compiler

Case = tuple[tuple[int, ...], int, int, int, int, bool]
CASES: list[Case] = [
    # leading axes, queries, keys, width, width of values, causal
    ((2, 3), 5, 5, 4, 4, True),
    ((2, 3), 64, 64, 32, 32, True),
    ((1,), 200, 200, 16, 8, True),
    ((), 33, 17, 5, 7, False),
    ((3,), 7, 40, 8, 8, True),
    ((2,), 9, 4, 3, 3, True),  # queries that see no key
    ((1, 2), 1, 30, 6, 6, True),
]


def program(case: Case, packed: bool = False) -> tuple[Program, Phase]:
    """Attention and its gradient. packed: queries, keys and values are windows of one array, as a layer has them."""
    lead, queries, keys, width, value_width, causal = case
    b = Builder()
    attrs = {"causal": causal, "scale": 0.3}
    if packed:
        qkv = b.input("feed:x", TensorType("f32", (*lead[:1], queries, 3, *lead[1:], width)))
        parts = []
        for i in range(3):
            part = b.reshape(b.slice(qkv, 2, i, i + 1), (*lead[:1], queries, *lead[1:], width))
            parts.append(b.transpose(part, (0, 2, 1, 3)))
        q, k, v = parts
    else:
        q = b.input("feed:q", TensorType("f32", (*lead, queries, width)))
        k = b.input("feed:k", TensorType("f32", (*lead, keys, width)))
        v = b.input("feed:v", TensorType("f32", (*lead, keys, value_width)))
    g = b.input("feed:g", TensorType("f32", (*lead, queries, value_width)))
    out, lse = apply(b, "attention", [q, k, v], attrs).outputs
    dq, dk, dv = apply(b, "attention-gradient", [q, k, v, out, lse, g], attrs).outputs
    results: list[tuple[str, Value]] = [("out", out), ("lse", lse), ("dq", dq), ("dk", dk), ("dv", dv)]
    phase = Phase("p", b.graph("p", [(f"result:{name}", value) for name, value in results]))
    return Program((), (phase,), Builder().graph("schedule", [])), phase


def fed(phase: Phase) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=type.shape).astype(np.float32) for name, type in phase.feeds.items()}


def run(device: CpuDevice, made: Program, feeds: dict[str, Array]) -> dict[str, Array]:
    session = device.open(device.plan(made, Budget()))
    assert len(session._phases["p"].plan.steps) <= 6
    (outputs,) = session.run([Call("p", feeds)]).result()
    session.close()
    return dict(outputs.results)


@pytest.fixture(scope="module", autouse=True)
def kernels() -> None:
    made = [program(case)[0] for case in CASES] + [program(CASES[1], packed=True)[0]]
    compile_together(made, [lambda c: CpuDevice(threads=1, poison=True, compiler=c)])


@pytest.mark.parametrize("case, packed", [*[(case, False) for case in CASES], (CASES[1], True)])
def test_attention_equals_its_body(case: Case, packed: bool) -> None:
    made, phase = program(case, packed)
    feeds = fed(phase)
    inputs = {f"feed:{name}": array for name, array in feeds.items()}
    expected = evaluate(phase.graph, inputs, double=True)
    found = run(CpuDevice(threads=2, poison=True, compiler=compiler()), made, feeds)
    for name, array in found.items():
        wanted = expected[f"result:{name}"]
        np.testing.assert_array_equal(np.isfinite(array), np.isfinite(wanted), name)
        seen = np.isfinite(wanted)
        np.testing.assert_allclose(array[seen], wanted[seen], 1e-5, 1e-5, err_msg=name)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="processors of one family")
@pytest.mark.parametrize("processor", ["x86-64", "x86-64-v3"])
def test_narrow_vectors_give_the_same(processor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors of four and of eight numbers, without and with fused multiply-adds."""
    options = tuple([f"-march={processor}" if "-march" in option else option for option in native.OPTIONS])
    monkeypatch.setattr(native, "OPTIONS", options)
    for case in (CASES[1], CASES[2], CASES[4]):
        made, phase = program(case)
        feeds = fed(phase)
        expected = evaluate(phase.graph, {f"feed:{name}": array for name, array in feeds.items()}, double=True)
        for name, array in run(CpuDevice(threads=1, poison=True, compiler=compiler()), made, feeds).items():
            np.testing.assert_allclose(array, expected[f"result:{name}"], 1e-5, 1e-5, err_msg=name)


def test_threads_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowering, "PIECE_OPERATIONS", 1)
    monkeypatch.setattr(lowering, "SHARED_OPERATIONS", 1)
    made, phase = program(CASES[2])
    feeds = fed(phase)
    one, two, four = (run(CpuDevice(threads=n, compiler=compiler()), made, feeds) for n in (1, 2, 4))
    for name, array in one.items():
        assert array.tobytes() == two[name].tobytes() == four[name].tobytes(), name


def test_what_has_no_kernel_runs_by_its_body() -> None:
    b = Builder()
    q, k, v = (b.input(f"feed:{n}", TensorType("f32", (4, 3))) for n in "qkv")
    mask = b.input("feed:mask", TensorType("bool", (4, 4)))
    attrs = {"causal": False, "scale": 1.0}
    plain = apply(b, "attention", [q, k, v], attrs).outputs[0].node
    with_mask = apply(b, "attention", [q, k, v, mask], attrs).outputs[0].node
    narrow = apply(b, "attention", [b.cast(x, "bf16") for x in (q, k, v)], attrs).outputs[0].node
    assert [attention.is_attention(node) for node in (plain, with_mask, narrow)] == [True, False, False]
