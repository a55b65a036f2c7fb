"""A kernel ready to be compiled and launched: its text, its grid, and what each of its pointers is.

Flow: the printers of this package make launches; a device compiles the distinct ones and enqueues all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Role = Literal["input", "output", "workspace", "flag"]
Operand = tuple[Role, int]
"""Which argument a pointer is: an input or output of the step's node, a workspace, its flag record."""

BLOCK = 256
"""Threads of a block where nothing asks for another number."""
MULTIPROCESSORS = 132
"""How many a card is assumed to have when work is split; a wrong number costs time, never correctness."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of one kernel.

    name: its symbol; equal texts have equal names. source: its text, which needs the prelude before it.
    shared_bytes: dynamic shared memory (arrays of the text itself are not counted). operands: the pointer
    parameters in order; every pointer includes the offset of its layout, workspaces are aligned to 16 bytes
    and hold anything.
    """

    name: str
    source: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    operands: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Pointer:
    """A parameter of a kernel: what it is, and how the text spells its name and type."""

    operand: Operand
    name: str
    type: str


def kernel(
    kind: str,
    pointers: Sequence[Pointer],
    body: str,
    grid: tuple[int, int, int],
    block: tuple[int, int, int] = (BLOCK, 1, 1),
) -> Launch:
    """The launch of a kernel with this body; its name is `kind` and a digest of the text."""
    parameters = ", ".join(f"{p.type} {p.name}" for p in pointers)
    threads = block[0] * block[1] * block[2]
    body = "\n".join(line for line in body.splitlines() if line.strip())
    text = f'extern "C" __global__ void __launch_bounds__({threads}) @({parameters}) {{\n{body}\n}}\n'
    name = f"{kind}_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    return Launch(name, text.replace("@", name, 1), grid, block, 0, tuple(p.operand for p in pointers))


def blocks(count: int, each: int = BLOCK) -> tuple[int, int, int]:
    """A grid of enough blocks for `count` things, `each` to a block."""
    return (-(-count // each), 1, 1)
