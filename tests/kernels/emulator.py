"""Kernels of both dialects on the lane engine, from the very text that a GPU gets, over NumPy arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sexpgpu.backend.kernels import cuda, msl
from sexpgpu.backend.kernels.flags import FLAG_BYTES
from sexpgpu.backend.kernels.launch import Launch
from sexpgpu.backend.kernels.printer import Printer
from sexpgpu.ir.opdef import Array
from sexpgpu.ir.types import NUMPY_DTYPES, TensorType
from sexpgpu.plan.layout import Layout, extent
from sexpgpu.plan.phase import Step
from tests.lanes import rules, strict, unit
from tests.lanes.unit import Dialect, Fault, compiler

__all__ = ["CUDA", "DIALECTS", "MSL", "Fault", "Placed", "Unit", "compiler", "execute"]

CUDA, MSL = cuda.PRINTER, msl.PRINTER
DIALECTS = [CUDA, MSL]
ENGINES: dict[Printer, Dialect] = {CUDA: "cuda", MSL: "msl"}
FENCE = 1024
"""Bytes around a value that a kernel must leave alone; a multiple of every alignment."""
POISON = 0xA5


class Unit:
    """Distinct kernels of some launches as one library; its text has passed the gates of its dialect."""

    def __init__(self, launches: Sequence[Launch], printer: Printer = CUDA) -> None:
        self.printer = printer
        text, dialect = printer.module_source(launches), ENGINES[printer]
        rules.check(text, dialect)
        if printer is MSL and strict.clang() is not None:
            strict.check(text)
        self._unit = unit.Unit(text, dialect)

    def run(self, launch: Launch, pointers: Sequence[int], backwards: bool) -> None:
        buffers = [unit.Buffer(pointer, 0, 1 << 62, writable=True) for pointer in pointers]
        self._unit.run(launch.name, buffers, launch.grid, launch.block, "reverse" if backwards else "forward")


class Placed:
    """A buffer that holds a value in a layout as a dialect stores it, and knows which of its bytes belong to nobody.

    array: what lies in memory.
    """

    def __init__(
        self, type: TensorType, strides: Sequence[int], first_bytes: int = 0, printer: Printer = CUDA
    ) -> None:
        self.type = type
        dtype = printer.dialect.memory[type.dtype]
        low, high = extent(type.shape, tuple(strides)) if type.size else (0, -1)
        raw = np.full((high - low + 1) * dtype.itemsize + 3 * FENCE + first_bytes, POISON, np.uint8)
        self.start = -raw.ctypes.data % FENCE + FENCE + first_bytes - low * dtype.itemsize
        self.raw = raw
        self.layout = Layout("buffer", (first_bytes - low * dtype.itemsize) % 16, tuple(strides))
        self.array: Array = np.ndarray(
            type.shape, dtype, raw.data, self.start if type.size else 0, [s * dtype.itemsize for s in strides]
        )

    @property
    def pointer(self) -> int:
        return self.raw.ctypes.data + self.start

    @property
    def value(self) -> Array:
        """The value in its own dtype, which loses nothing of what lies in memory."""
        value = self.array.astype(NUMPY_DTYPES[self.type.dtype])
        if value.dtype == self.array.dtype:
            return value
        np.testing.assert_array_equal(value.astype(self.array.dtype), self.array, "stored as no value of its dtype")
        return value

    def others(self) -> bytes:
        """The bytes outside the value."""
        kept = self.array.copy()
        self.array[...] = np.zeros((), self.array.dtype)
        found = self.raw.tobytes()
        self.array[...] = kept
        return found


def execute(unit: Unit, step: Step, inputs: Sequence[Placed], outputs: Sequence[Placed], backwards: bool) -> np.ndarray:
    """Run the launches of a step; the words of its flag record."""
    workspaces = [np.full(size + 16, POISON, np.uint8) for size in unit.printer.workspace_bytes(step)]
    flag = np.zeros(FLAG_BYTES // 4 + 4, np.uint32)
    first = -flag.ctypes.data % 16 // 4
    for launch in unit.printer.print_step(step):
        pointers = []
        for role, number in launch.operands:
            match role:
                case "input":
                    pointers.append(inputs[number].pointer)
                case "output":
                    pointers.append(outputs[number].pointer)
                case "workspace":
                    raw = workspaces[number]
                    pointers.append(raw.ctypes.data + -raw.ctypes.data % 16)
                case "flag":
                    pointers.append(flag.ctypes.data + 4 * first)
        unit.run(launch, pointers, backwards)
    return flag[first : first + 4]
