"""Tables: how a kernel is told of many tensors at once, by numbers that say where each begins.

Where an address is a number, that is what a table holds. Elsewhere it is which of a few buffers, and how far into it:
`located` gives both as one number, and the buffers' starts are parameters of the kernel, its `base` operands.
"""

from __future__ import annotations

from sexpgpu.backend.kernels.dialects import Dialect
from sexpgpu.backend.kernels.launch import Pointer

OFFSET_BITS = 48


def located(buffer: int, offset_bytes: int) -> int:
    """The entry of a table for a place in a buffer: the number of its `base` operand, and bytes from its start."""
    return buffer << OFFSET_BITS | offset_bytes


def base_pointers(dialect: Dialect, num_buffers: int) -> list[Pointer]:
    """The parameters that tell where the buffers of a table begin."""
    return [] if dialect.has_addresses else [Pointer(("base", i), f"base{i}", "u8") for i in range(num_buffers)]


def opened(dialect: Dialect, num_buffers: int) -> str:
    """The statement, if any, before the first `address`."""
    if dialect.has_addresses:
        return ""
    bases = ", ".join([f"base{i}" for i in range(num_buffers)])
    return f"{dialect.pointer('u8', const=False)} const bases[{num_buffers}] = {{{bases}}};"


def address(dialect: Dialect, spelt: str, entry: str, const: bool = True) -> str:
    """The pointer that an entry of a table stands for."""
    if not dialect.has_addresses:
        mask = f"{(1 << OFFSET_BITS) - 1:#x}u{dialect.long_suffix}"
        entry = f"(bases[{entry} >> {OFFSET_BITS}] + ({entry} & {mask}))"
    return f"({dialect.pointer(spelt, const)}){entry}"
