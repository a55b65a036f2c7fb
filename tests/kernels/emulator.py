"""Launches of both dialects on the lane engine: values in layouts, with bytes around them that nobody may touch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from sexpgpu.backend.kernels import cuda, msl
from sexpgpu.backend.kernels.flags import FLAG_BYTES
from sexpgpu.backend.kernels.launch import Launch, Operand
from sexpgpu.backend.kernels.printer import Printer
from sexpgpu.ir.opdef import Array
from sexpgpu.ir.types import NUMPY_DTYPES, TensorType
from sexpgpu.plan.layout import Layout, extent
from sexpgpu.plan.phase import Step
from tests.lanes import unit as lanes
from tests.lanes.unit import ORDERS, Buffer, Dialect, compiler

__all__ = ["CUDA", "DIALECTS", "MSL", "ORDERS", "RUNS", "Placed", "Unit", "compiler", "execute", "space"]

CUDA, MSL = cuda.PRINTER, msl.PRINTER
DIALECTS = [pytest.param(CUDA, id="cuda"), pytest.param(MSL, id="msl")]
ENGINES: dict[Printer, Dialect] = {CUDA: "cuda", MSL: "msl"}
FENCE = 1024
"""Bytes around a value that a kernel must leave alone; a multiple of every alignment."""
POISON = 0xA5
BEHIND = 128
"""The number from which buffers are no parameters."""
RUNS = (*[(order, False) for order in ORDERS], ("forward", True))
"""Every order of lanes, and a run whose accesses are checked."""


class Placed:
    """A buffer that holds a value in a layout as a dialect stores it, and knows which of its bytes belong to nobody.

    array: what lies in memory.
    """

    def __init__(self, printer: Printer, type: TensorType, strides: Sequence[int], first_bytes: int = 0) -> None:
        self.type, dtype = type, printer.dialect.memory[type.dtype]
        low, high = extent(type.shape, tuple(strides)) if type.size else (0, -1)
        raw = np.full((high - low + 1) * dtype.itemsize + 3 * FENCE + first_bytes, POISON, np.uint8)
        self.start = -raw.ctypes.data % FENCE + FENCE + first_bytes - low * dtype.itemsize
        self.raw = raw
        self.layout = Layout("buffer", (first_bytes - low * dtype.itemsize) % 16, tuple(strides))
        self.array: Array = np.ndarray(
            type.shape, dtype, raw.data, self.start if type.size else 0, [s * dtype.itemsize for s in strides]
        )
        self._range = (low * dtype.itemsize, (high - low + 1) * dtype.itemsize)

    @property
    def pointer(self) -> int:
        return self.raw.ctypes.data + self.start

    @property
    def value(self) -> Array:
        """The value in its own dtype, which loses nothing of what lies in memory."""
        value = self.array.astype(NUMPY_DTYPES[self.type.dtype])
        if value.dtype != self.array.dtype:
            np.testing.assert_array_equal(value.astype(self.array.dtype), self.array, "no value of its dtype")
        return value

    def buffer(self, role: str) -> Buffer:
        """The value as an argument: an "input", or an "output" that holds nothing yet."""
        written, (low, num_bytes) = role == "output", self._range
        return Buffer(self.pointer, self.pointer + low, num_bytes, self.array.itemsize, not written, written)

    def others(self) -> bytes:
        """The bytes outside the value."""
        kept = self.array.copy()
        self.array[...] = np.zeros((), self.array.dtype)
        found = self.raw.tobytes()
        self.array[...] = kept
        return found


def space(num_bytes: int, byte: int | None = None) -> tuple[np.ndarray, Buffer]:
    """Memory that begins on 16 bytes, and it as an argument to write to. byte: what it holds; None: nothing yet."""
    raw = np.full(num_bytes + 16, POISON if byte is None else byte, np.uint8)
    first = -raw.ctypes.data % 16
    start = raw.ctypes.data + first
    return raw[first : first + num_bytes], Buffer(start, start, num_bytes, 4, byte is not None, True)


class Unit:
    """Distinct kernels of some launches, compiled together."""

    def __init__(self, printer: Printer, launches: Sequence[Launch]) -> None:
        self.printer = printer
        self.lanes = lanes.Unit(printer.module_source(launches), ENGINES[printer])

    def run(
        self,
        launch: Launch,
        known: Mapping[Operand, Buffer],
        order: str = "forward",
        checked: bool = False,
        behind: Sequence[Buffer] = (),
    ) -> None:
        """behind: memory that is reached through tables of pointers."""
        buffers = dict(enumerate(known[operand] for operand in launch.operands))
        buffers |= {BEHIND + i: buffer for i, buffer in enumerate(behind)}
        self.lanes.run(launch.name, buffers, launch.grid, launch.block, order, checked)


def execute(
    unit: Unit, step: Step, inputs: Sequence[Placed], outputs: Sequence[Placed], order: str, checked: bool = False
) -> np.ndarray:
    """Run the launches of a step; the words of its flag record."""
    spaces = [space(size) for size in unit.printer.workspace_bytes(step)]
    flag, flag_buffer = space(FLAG_BYTES, 0)
    known: dict[Operand, Buffer] = {("input", i): x.buffer("input") for i, x in enumerate(inputs)}
    known |= {("output", i): x.buffer("output") for i, x in enumerate(outputs)}
    known |= {("workspace", i): buffer for i, (_, buffer) in enumerate(spaces)} | {("flag", 0): flag_buffer}
    for launch in unit.printer.print_step(step):
        unit.run(launch, known, order, checked)
        known |= {operand: replace(known[operand], initialised=True) for operand in launch.operands}
    return flag.view(np.uint32)
