"""Flag records: how a kernel tells of a bad index or a division by zero, and how to read one.

A record is 16 bytes, zeroed by the host before the kernels that share it run. Kernels count with an atomic add
and keep the greatest key with an atomic maximum, so what is left does not depend on the order of threads.

Where there is no atomic maximum of 64 bits, the greatest inverse place is kept with one of 32, and every thread that
meets a fault notes its value at its own place of a workspace; a last launch of one thread takes the value of the first
place from there. A fault without a value (a division) needs no more than its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sexpgpu.backend.kernels.dialects import Dialect
from sexpgpu.backend.kernels.launch import Launch, Pointer, kernel
from sexpgpu.backend.kernels.operands import flag_pointer, workspace_pointer
from sexpgpu.ir.graph import Node
from sexpgpu.ir.opdef import OPS, Work
from sexpgpu.ir.ops.rules import attr_int

FLAG_BYTES = 16
FLAG_WORDS = ("count", "unused", "value", "inverse_place")
"""The 32-bit words of a record: how many elements were bad, and of the first one, in row-major order of the
indices (of the result, for a division), its value and 2^32 − 1 less its place. The value is a signed number, kept
in the range of an i32; the last two words are one 64-bit key. All zero: nothing was bad."""

INDEXED = (Work.GATHER, Work.SCATTER)
WORD = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Flag:
    """What a record says: how many were bad, the place of the first, and its value."""

    count: int
    place: int
    value: int


def flagged(node: Node) -> bool:
    """Whether the kernels of a node take a flag record."""
    return OPS[node.op].reports


def notes(dialect: Dialect, node: Node) -> tuple[int, ...]:
    """Bytes of the workspace where the kernels of a node note values, if they do."""
    if dialect.has_wide_atomics or OPS[node.op].work not in INDEXED or not node.types[0].size:
        return ()
    return (4 * node.inputs[1].type.size,)


def flag_pointers(dialect: Dialect, number: int) -> list[Pointer]:
    """The parameters of a kernel that reports values. number: of the workspace where they are noted."""
    return [flag_pointer()] if dialect.has_wide_atomics else [flag_pointer(), workspace_pointer(number, "noted", "int")]


def print_tell(dialect: Dialect, number: int) -> Launch:
    """The kernel that completes a record from what was noted."""
    text = "if (flag[0] != 0u) flag[2] = (u32)noted[0xffffffffu - flag[3]];"
    return kernel(dialect, "tell", flag_pointers(dialect, number), text, (1, 1, 1), (1, 1, 1))


def read_flag(words: Sequence[int] | np.ndarray) -> Flag | None:
    """A record's meaning, from its four words; None: nothing was bad."""
    count, _, value, inverse = (int(w) & WORD for w in words)
    if not count:
        return None
    return Flag(count, WORD - inverse, value - (1 << 32) if value >= 1 << 31 else value)


def flag_message(node: Node, flag: Flag) -> str:
    """The fault as the interpreter words it."""
    indexed = OPS[node.op].work in INDEXED
    shape = node.inputs[1].shape if indexed else node.types[0].shape
    place = [int(p) for p in np.unravel_index(flag.place, shape)] if shape else []
    at = f" at {place}" if place else ""
    if not indexed:
        return f"division of an integer by zero{at}"
    return f"index {flag.value}{at} is outside 0 to {node.inputs[0].shape[attr_int(node.attrs, 'axis')] - 1}"
