"""Every sample of every operation: the session against the plain executor, poisoned and in blocks."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

import sexpgpu.ir.ops  # noqa: F401
from sexpgpu.backend.cpu import blocks, steps
from sexpgpu.backend.cpu.device import CpuDevice
from sexpgpu.backend.protocol import Budget, Call
from sexpgpu.ir.builder import Builder
from sexpgpu.ir.evaluate import evaluate
from sexpgpu.ir.opdef import OPS, Array, Sample
from sexpgpu.ir.program import Phase, Program
from sexpgpu.ir.types import NUMPY_DTYPES

CASES = [
    pytest.param(name, sample, id=f"{name}-{number}")
    for name, op in sorted(OPS.items())
    for number, sample in enumerate(op.samples)
]


def values(sample: Sample, position: int, rng: np.random.Generator) -> Array:
    type = sample.types[position]
    limits = sample.ranges[position] if position < len(sample.ranges) else None
    low, high = limits or ((0, 3) if type.is_integer else (-2, 2))
    made = rng.integers(int(low), max(int(low) + 1, int(high)), type.shape) if type.is_integer else None
    if made is None:
        made = rng.uniform(low, high, type.shape)
    return np.asarray(made > 0 if type.dtype == "bool" else made).astype(NUMPY_DTYPES[type.dtype])


@pytest.mark.parametrize("blocked", [False, True])
@pytest.mark.parametrize("name, sample", CASES)
def test_session_equals_the_plain_executor(
    name: str, sample: Sample, blocked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if blocked:
        monkeypatch.setattr(steps, "MIN_ELEMENTS", 1)
        monkeypatch.setattr(blocks, "BLOCK_ELEMENTS", 5)
        monkeypatch.setattr(blocks, "SHARED_ELEMENTS", 1)
    b = Builder()
    inputs = [b.input(f"feed:x{i}", type) for i, type in enumerate(sample.types)]
    node = b.node(name, inputs, sample.attrs, sample.bodies)
    graph = b.graph("p", [(f"result:y{i}", v) for i, v in enumerate(node.outputs)], inputs)
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    feeds = {f"x{i}": values(sample, i, rng) for i in range(len(inputs))}
    device = CpuDevice(threads=1, poison=not blocked)
    program = Program((), (Phase("p", graph),), Builder().graph("schedule", []))
    session = device.open(device.plan(program, Budget()))
    (outputs,) = session.run([Call("p", feeds)]).result()
    flagged: list[str] = []
    expected = evaluate(
        graph,
        {f"feed:{key}": array for key, array in feeds.items()},
        flag=lambda node, message: flagged.append(message),
    )
    for i in range(len(node.outputs)):
        found, wanted = outputs.results[f"y{i}"], expected[f"result:y{i}"]
        assert found.dtype == wanted.dtype and found.shape == wanted.shape
        np.testing.assert_allclose(found.astype(np.float64), wanted.astype(np.float64), 1e-6, 1e-6)
    assert [fault.message for fault in outputs.faults] == list(dict.fromkeys(flagged))
