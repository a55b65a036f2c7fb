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
        drawn = rng.integers(0, VOCABULARY, slot.type.shape) if slot.type.is_integer else rng.normal(size=slot.type.shape)
        session.write(slot.name, drawn.astype("i4" if slot.type.is_integer else "f4"))
    return lambda: session.run([Call(phase.name)]).result() and None
