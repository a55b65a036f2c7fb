"""Kernels compiled for this processor by g++, from the very text that a GPU gets, and run on NumPy arrays."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sexpgpu.backend.kernels.cuda import module_source, print_step, workspace_bytes
from sexpgpu.backend.kernels.flags import FLAG_BYTES
from sexpgpu.backend.kernels.launch import Launch
from sexpgpu.ir.opdef import Array
from sexpgpu.ir.types import NUMPY_DTYPES, TensorType
from sexpgpu.plan.layout import Layout, extent
from sexpgpu.plan.phase import Step

HEADER = Path(__file__).with_name("lanes.h")
FENCE = 1024
"""Bytes around a value that a kernel must leave alone; a multiple of every alignment."""
POISON = 0xA5


def compiler() -> str | None:
    return shutil.which("g++")


class Unit:
    """Distinct kernels of some launches as one library."""

    def __init__(self, launches: Sequence[Launch], folder: Path) -> None:
        source = [f'#include "{HEADER}"', module_source(launches)]
        for launch in {launch.name: launch for launch in launches}.values():
            # Pointers of any type: one call through a generic parameter list.
            names = ", ".join(f"class T{i}" for i in range(len(launch.operands)))
            types = ", ".join(f"T{i}" for i in range(len(launch.operands)))
            given = ", ".join(f"(T{i})p[{i}]" for i in range(len(launch.operands)))
            source.append(
                f"template <{names}> static void call_{launch.name}(void (*f)({types}), void** p) {{ f({given}); }}\n"
                f'extern "C" void run_{launch.name}(void** p) {{ call_{launch.name}({launch.name}, p); }}'
            )
        text, library = folder / "unit.cpp", folder / "unit.so"
        text.write_text("\n".join(source), encoding="utf-8")
        command = ["g++", "-O1", "-std=c++17", "-ffp-contract=off", "-fwrapv", "-fno-strict-aliasing", "-w"]
        subprocess.run([*command, "-shared", "-fPIC", "-o", str(library), str(text)], check=True)
        self._library = ctypes.CDLL(str(library))
        self._library.lanes_run.restype = ctypes.c_char_p

    def run(self, launch: Launch, pointers: Sequence[int], backwards: bool) -> None:
        function = ctypes.cast(self._library[f"run_{launch.name}"], ctypes.c_void_p)
        given = (ctypes.c_void_p * len(pointers))(*pointers)
        grid, block = ((ctypes.c_uint * 3)(*three) for three in (launch.grid, launch.block))
        fault = self._library.lanes_run(function, given, grid, block, int(backwards))
        assert fault is None, (launch.source, fault)


class Placed:
    """A buffer that holds a value in a layout, and knows which of its bytes belong to nobody."""

    def __init__(self, type: TensorType, strides: Sequence[int], first_bytes: int = 0) -> None:
        dtype = NUMPY_DTYPES[type.dtype]
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

    def others(self) -> bytes:
        """The bytes outside the value."""
        kept = self.array.copy()
        self.array[...] = np.zeros((), self.array.dtype)
        found = self.raw.tobytes()
        self.array[...] = kept
        return found


def execute(unit: Unit, step: Step, inputs: Sequence[Placed], outputs: Sequence[Placed], backwards: bool) -> np.ndarray:
    """Run the launches of a step; the words of its flag record."""
    workspaces = [np.full(size + 16, POISON, np.uint8) for size in workspace_bytes(step)]
    flag = np.zeros(FLAG_BYTES // 4 + 4, np.uint32)
    first = -flag.ctypes.data % 16 // 4
    for launch in print_step(step):
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
