"""Index arithmetic: a loop nest over a shape, and where each operand stands at a linear index of it.

Flow: every printer describes its operands as strides over one shape; this merges the axes that it can and
spells the offsets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from sexpgpu.backend.kernels.dialects import Dialect
from sexpgpu.plan.layout import Strides, extent

LIMIT = 2**31 - 2**12
"""Counts and offsets below it are kept in 32 bits."""
PACK_BYTES = 16
Shape = tuple[int, ...]


def collapse(shape: Sequence[int], strides: Sequence[Strides]) -> tuple[Shape, list[Strides]]:
    """The same walk with as few axes as possible: those of one element gone, neighbours merged."""
    sizes: list[int] = []
    steps: list[list[int]] = []
    for axis, size in enumerate(shape):
        if size == 1:
            continue
        here = [s[axis] for s in strides]
        if sizes and all(outer == inner * size for outer, inner in zip(steps[-1], here, strict=True)):
            sizes[-1] *= size
            steps[-1] = here
        else:
            sizes.append(size)
            steps.append(here)
    return tuple(sizes), [tuple(step[i] for step in steps) for i in range(len(strides))]


def is_wide(count: int, *walks: tuple[Sequence[int], Strides]) -> bool:
    """Whether indices or offsets of these walks need 64 bits."""
    reach = [abs(bound) for shape, strides in walks for bound in extent(tuple(shape), strides)]
    return max([count, *reach]) >= LIMIT


def unsigned(wide: bool) -> str:
    """The type of linear indices."""
    return "u64" if wide else "u32"


def linear(dialect: Dialect, wide: bool) -> str:
    """The index of this thread in a one-dimensional grid."""
    return f"({unsigned(wide)}){dialect.block}.x * {dialect.block_size}.x + {dialect.thread}.x"


def split(index: str, shape: Sequence[int], prefix: str, wide: bool) -> tuple[str, list[str]]:
    """Statements that split a row-major index into coordinates, and the names of those."""
    if len(shape) <= 1:
        return "", [index] * len(shape)
    rest = f"{prefix}0"
    lines = [f"{unsigned(wide)} {rest} = {index};"]
    names = [rest]
    for axis in range(len(shape) - 1, 0, -1):
        lines.append(f"{unsigned(wide)} {prefix}{axis} = {rest} % {shape[axis]}u; {rest} /= {shape[axis]}u;")
        names.insert(1, f"{prefix}{axis}")
    return "\n".join(lines), names


def offset(coordinates: Sequence[str], strides: Strides, wide: bool, base: int = 0) -> str:
    """The offset in elements at these coordinates, a signed expression."""
    number = "i64" if wide else "int"
    terms = [
        f"({number}){name}" if stride == 1 else f"({number}){name} * {stride}"
        for name, stride in zip(coordinates, strides, strict=True)
        if stride
    ]
    if base or not terms:
        terms.append(str(base))
    return " + ".join(terms)


class Nest:
    """A walk over a shape in row-major order, with named operands that have strides over it."""

    def __init__(self, shape: Sequence[int], strides: Mapping[str, Strides]) -> None:
        self.shape, merged = collapse(shape, list(strides.values()))
        self.strides = dict(zip(strides, merged, strict=True))
        self.count = prod(self.shape)
        self.wide = is_wide(self.count, *((self.shape, s) for s in merged))
        self.pack = 1

    def inner(self, name: str) -> int:
        """The stride of an operand along the last axis."""
        return self.strides[name][-1] if self.shape else 0

    def packs(self, items: Mapping[str, int], aligned: Mapping[str, bool], outputs: Sequence[str]) -> int:
        """How many neighbours one thread may take, so that the narrowest operand moves 16 bytes at once.

        items: bytes of an element of the operands that memory holds; the others only count.
        """
        narrowest = min(items.values())
        if narrowest == 1 and len(items) > 1:
            narrowest = min([size for size in items.values() if size > 1], default=1)
        # A thread's stores stay within 16 bytes, so that those of a warp are one run.
        widest = max([items[name] for name in outputs if name in items], default=narrowest)
        width = PACK_BYTES // max(narrowest, widest)
        while width > 1 and not self._fits(width, items, aligned, outputs):
            width //= 2
        return width

    def _fits(self, width: int, items: Mapping[str, int], aligned: Mapping[str, bool], outputs: Sequence[str]) -> bool:
        if not self.shape or (len(self.shape) > 1 and self.shape[-1] % width) or self.shape[-1] < width:
            return False
        for name in items:
            inner = self.inner(name)
            if inner == 0 and name not in outputs:
                continue
            if inner != 1 or not aligned[name] or any(s % width for s in self.strides[name][:-1]):
                return False
        return True

    def widen(self, width: int) -> Nest:
        """The same walk in packs of `width` along the last axis; offsets still count elements."""
        if width == 1:
            return self
        made = Nest((), {})
        made.shape = (*self.shape[:-1], self.shape[-1] // width)
        made.strides = {name: (*s[:-1], s[-1] * width) for name, s in self.strides.items()}
        made.count, made.wide, made.pack = prod(made.shape), self.wide, width
        return made

    def start(self, index: str, prefix: str = "c") -> tuple[str, list[str]]:
        """Statements that split `index`, and the coordinates for `at`."""
        return split(index, self.shape, prefix, self.wide)

    def at(self, name: str, coordinates: Sequence[str], base: int = 0) -> str:
        """The offset of an operand."""
        return offset(coordinates, self.strides[name], self.wide, base)
