"""A kernel ready to be compiled and launched: its text, its grid, and what each of its pointers is.

Flow: the printers of this package make launches; a device compiles the distinct ones and enqueues all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sexpgpu.backend.kernels.dialects import Dialect

Role = Literal["input", "output", "workspace", "flag", "base"]
Operand = tuple[Role, int]
"""Which argument a pointer is: an input or output of the step's node, a workspace, its flag record, or the start of a
buffer that a table tells of."""

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
    """A parameter of a kernel: what it is, its name in the text, and the type of what it points at.

    const: only read. alone: nothing else of the launch overlaps it.
    """

    operand: Operand
    name: str
    type: str
    const: bool = False
    alone: bool = False


def kernel(
    dialect: Dialect,
    kind: str,
    pointers: Sequence[Pointer],
    body: str,
    grid: tuple[int, int, int],
    block: tuple[int, int, int] = (BLOCK, 1, 1),
    table: str = "",
) -> Launch:
    """The launch of a kernel with this body; its name is `kind` and a digest of the text.

    Its parameters are the pointers in order. table: a constant array, by `dialect.table`.
    """
    body = "\n".join(line for line in body.splitlines() if line.strip())
    parameters = [(p.name, p.type, p.const, p.alone) for p in pointers]
    text = dialect.kernel(parameters, table, body, block[0] * block[1] * block[2])
    name = f"{kind}_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    return Launch(name, text.replace("@", name), grid, block, 0, tuple(p.operand for p in pointers))


def blocks(count: int, each: int = BLOCK) -> tuple[int, int, int]:
    """A grid of enough blocks for `count` things, `each` to a block."""
    return (-(-count // each), 1, 1)
