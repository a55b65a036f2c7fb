#!/usr/bin/env python3
"""Row programs of the cpu device, against the clock and against one copy of what they read.

python benchmarks/rows.py [--threads 2] [--rounds 30]

GELU and layer norm of [1024, 768]; cross entropy, forward and backward, of logits [1024, 50304], beside a copy of the
logits by the same threads. All f32. Turn by turn; the least times.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from sexpgpu.backend.protocol import Budget, Call
from sexpgpu.backend.registry import open_device
from sexpgpu.ir.builder import Builder
from sexpgpu.ir.composites import apply
from sexpgpu.ir.graph import Value
from sexpgpu.ir.program import Phase, Program, Slot
from sexpgpu.ir.types import TensorType
from sexpgpu.transform.autodiff import differentiate
from sexpgpu.transform.passes import FINAL_PASSES, run_passes

ROWS, WIDTH, VOCABULARY = 1024, 768, 50304


def of_program(phase: Phase, slots: tuple[Slot, ...], threads: int) -> Callable[[], None]:
    """Opens a phase that reads and writes slots alone, and gives what runs it."""
    device = open_device("cpu", threads=threads)
    session = device.open(device.plan(Program(slots, (phase,), Builder().graph("schedule", [])), Budget()))
    rng = np.random.default_rng(0)
    for slot in slots:
        shape, is_integer = slot.type.shape, slot.type.is_integer
        drawn = rng.integers(0, VOCABULARY, shape) if is_integer else rng.normal(size=shape)
        session.write(slot.name, drawn.astype("i4" if is_integer else "f4"))
    return lambda: session.run([Call(phase.name)]).result() and None


def gelu_and_norm() -> tuple[Phase, tuple[Slot, ...]]:
    """layer-norm(gelu(x)) into a slot."""
    b = Builder()
    wide, row = TensorType("f32", (ROWS, WIDTH)), TensorType("f32", (WIDTH,))
    slots = [Slot(name, type, "parameter") for name, type in (("x", wide), ("scale", row), ("shift", row), ("y", wide))]
    x, scale, shift = (b.input(f"slot:{slot.name}", slot.type) for slot in slots[:3])
    y = apply(b, "layer-norm", [apply(b, "gelu", [x], {}).outputs[0], scale, shift], {"eps": 1e-5}).outputs[0]
    return Phase("rows", run_passes(b.graph("rows", [("slot:y", y)]), FINAL_PASSES)), tuple(slots)


def cross_entropy() -> tuple[Phase, tuple[Slot, ...]]:
    """The mean loss, and the gradient of the logits over the logits."""
    b = Builder()
    types = TensorType("f32", (ROWS, VOCABULARY)), TensorType("i32", (ROWS,))
    logits, targets = b.input("slot:logits", types[0]), b.input("slot:targets", types[1])
    losses = apply(b, "cross-entropy", [logits, targets], {}).outputs[0]
    mean = b.scale(b.sum(losses, (0,)), 1 / ROWS)
    one = b.constant(1.0, mean.type)
    (gradient,) = differentiate(b, {mean: one}, [logits])
    assert isinstance(gradient, Value)
    outputs = [("result:loss", mean), ("slot:logits", gradient)]
    phase = Phase("entropy", run_passes(b.graph("entropy", outputs), FINAL_PASSES))
    return phase, (Slot("logits", types[0], "parameter"), Slot("targets", types[1], "parameter"))


def copy() -> tuple[Phase, tuple[Slot, ...]]:
    """The logits, copied."""
    b = Builder()
    type = TensorType("f32", (ROWS, VOCABULARY))
    phase = Phase("copy", b.graph("copy", [("slot:copy", b.input("slot:logits", type))]))
    return phase, (Slot("logits", type, "parameter"), Slot("copy", type, "parameter"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=30)
    chosen = parser.parse_args()
    calls = {made.__name__: of_program(*made(), chosen.threads) for made in (gelu_and_norm, cross_entropy, copy)}
    least = dict.fromkeys(calls, float("inf"))
    for _ in range(chosen.rounds):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            least[name] = min(least[name], (time.perf_counter() - began) * 1e3)
    print(f"gelu and layer norm   {least['gelu_and_norm']:7.2f} ms")
    print(f"copy of the logits    {least['copy']:7.2f} ms")
    copies = least["cross_entropy"] / least["copy"]
    print(f"cross entropy         {least['cross_entropy']:7.2f} ms, {copies:.2f} copies")


if __name__ == "__main__":
    main()
