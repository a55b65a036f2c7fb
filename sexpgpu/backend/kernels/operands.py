"""The arguments of a step as a printer wants them: dialect, dtype, shape, strides, alignment, role.

Flow: `Printer.print_step` makes them from a step; printers turn them into pointers.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from sexpgpu.backend.kernels.dialects import BITS, Dialect
from sexpgpu.backend.kernels.launch import Operand, Pointer
from sexpgpu.ir.types import TensorType
from sexpgpu.plan.layout import Layout, Strides
from sexpgpu.plan.phase import Step

BASE_BYTES = 16
"""What the start of every buffer is aligned to, at least."""


@dataclass(frozen=True, slots=True)
class Argument:
    """An input or output of a step, or a window of one, as a dialect holds it.

    first: where the window starts, in elements from the pointer that the host gives; `layout` includes it.
    """

    dialect: Dialect
    operand: Operand
    type: TensorType
    layout: Layout
    first: int = 0

    @property
    def dtype(self) -> str:
        """IR dtype."""
        return self.type.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape."""
        return self.type.shape

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.type.shape)

    @property
    def item_bytes(self) -> int:
        """Bytes of an element."""
        return self.dialect.item_bytes(self.type.dtype)

    @property
    def register(self) -> str:
        """Type of an element that is computed with."""
        return self.dialect.registers[self.type.dtype]

    @property
    def stored(self) -> str:
        """Type of an element in memory."""
        return self.dialect.storage[self.type.dtype]

    def load(self, memory: str) -> str:
        """An element in memory as a value to compute with."""
        return self.dialect.load(self.type.dtype, memory)

    def store(self, value: str) -> str:
        """A value as an element in memory."""
        return self.dialect.store(self.type.dtype, value)

    @property
    def strides(self) -> Strides:
        """Strides in elements."""
        return self.layout.strides

    @property
    def aligned(self) -> bool:
        """Whether element 0 may be the start of a 16-byte access."""
        return self.layout.offset_bytes % BASE_BYTES == 0

    def pointer(self, name: str, *, bits: bool = False, alone: bool = True) -> Pointer:
        """The parameter. bits: carried untouched. alone: nothing else of the launch overlaps what is written."""
        spelt = BITS[self.item_bytes] if bits else self.stored
        return Pointer(self.operand, name, spelt, self.operand[0] == "input", alone)


def flag_pointer() -> Pointer:
    """The parameter of the flag record."""
    return Pointer(("flag", 0), "flag", "u32")


def workspace_pointer(index: int, name: str, spelt: str, const: bool = False) -> Pointer:
    """The parameter of a workspace."""
    return Pointer(("workspace", index), name, spelt, const)


def arguments(dialect: Dialect, step: Step) -> tuple[tuple[Argument, ...], tuple[Argument, ...]]:
    """Inputs and outputs of a step."""
    inputs = [
        Argument(dialect, ("input", i), v.type, layout)
        for i, (v, layout) in enumerate(zip(step.node.inputs, step.inputs, strict=True))
    ]
    outputs = [
        Argument(dialect, ("output", i), t, layout)
        for i, (t, layout) in enumerate(zip(step.node.types, step.outputs, strict=True))
    ]
    return tuple(inputs), tuple(outputs)
