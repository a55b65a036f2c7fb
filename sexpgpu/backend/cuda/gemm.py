"""A product in einsum notation as one strided batched matrix product, as cuBLASLt addresses it. Pure.

Flow: `lowering` asks whether the layouts of a product allow it, and which operands must be packed first.
Column-major throughout: C = op(A)·op(B), where C is m × n. Strides count elements.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product as every

from sexpgpu.ir.ops.contract import letters
from sexpgpu.plan.layout import Strides, contiguous

MAX_LAUNCHES = 64
"""Calls for one product whose batch axes are no single axis; more than this, and operands are packed."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """How one operand is stored: `rows` × `columns` before `transposed` is applied, one every `batch_stride`."""

    rows: int
    columns: int
    leading: int
    transposed: bool
    batch_stride: int


@dataclass(frozen=True, slots=True)
class Gemm:
    """One product. swapped: A is the second operand of the notation. offsets: of x, y and out, one per launch."""

    m: int
    n: int
    k: int
    batch: int
    a: Matrix
    b: Matrix
    c: Matrix
    dtype: str
    out_dtype: str
    swapped: bool
    offsets: tuple[tuple[int, int, int], ...] = ((0, 0, 0),)

    @property
    def one(self) -> Gemm:
        """The product of a single launch."""
        return replace(self, offsets=((0, 0, 0),))


@dataclass(frozen=True, slots=True)
class _Axis:
    """Letters merged into one axis; a stride each in x, y and out, 0 where a side lacks them."""

    size: int
    strides: tuple[int, int, int]


def find(
    spec: str, sizes: dict[str, int], x: Strides, y: Strides, out: Strides, dtype: str, out_dtype: str
) -> Gemm | None:
    """The product `spec` over these strides; None where cuBLASLt cannot address an operand."""
    groups = letters(spec)
    if groups.lone_x or groups.lone_y or not groups.k or 0 in sizes.values():
        return None
    sides = ((groups.x, x), (groups.y, y), (groups.out, out))

    def axes(wanted: str) -> list[_Axis]:
        found = []
        for letter in wanted:
            strides = [s[side.index(letter)] if letter in side else 0 for side, s in sides]
            found.append(_Axis(sizes[letter], (strides[0], strides[1], strides[2])))
        return _merged(found)

    k = axes(groups.k)
    if len(k) > 1:
        return None
    for m, n, rest in _choices(axes(groups.m), axes(groups.n)):
        batch = sorted([*axes(groups.batch), *rest], key=lambda axis: -axis.size)
        # A matrix that is shared by the batch has stride 0 there, which is fine; what is written must not.
        loops = batch[1:]
        if math.prod([axis.size for axis in loops]) > MAX_LAUNCHES:
            continue
        whole = batch[0] if batch else _Axis(1, (0, 0, 0))
        found = _fit(m, n, k[0] if k else _Axis(1, (0, 0, 0)), whole, dtype, out_dtype)
        if found is not None:
            return replace(found, offsets=tuple(_offsets(loops)))
    return None


def packed(spec: str, sizes: dict[str, int]) -> tuple[Strides, Strides, Strides]:
    """Strides of x, y and out, in the order of their own axes, when each is packed so that `find` succeeds."""
    groups = letters(spec)
    batch, m, n, k = groups.batch, groups.m, groups.n, groups.k
    orders = (batch + m + k, batch + k + n, batch + m + n)
    found = []
    for side, order in zip((groups.x, groups.y, groups.out), orders, strict=True):
        dense = dict(zip(order, contiguous(tuple([sizes[letter] for letter in order])), strict=True))
        found.append(tuple([dense[letter] for letter in side]))
    return found[0], found[1], found[2]


def _merged(axes: Sequence[_Axis]) -> list[_Axis]:
    """`axes` with neighbours in memory joined, largest strides first; axes of one element are dropped."""
    result: list[_Axis] = []
    for axis in sorted([a for a in axes if a.size != 1], key=lambda a: tuple([-abs(s) for s in a.strides])):
        if result and all(o == i * axis.size for o, i in zip(result[-1].strides, axis.strides, strict=True)):
            result[-1] = _Axis(result[-1].size * axis.size, axis.strides)
        else:
            result.append(axis)
    return result


def _choices(m: list[_Axis], n: list[_Axis]) -> Iterator[tuple[_Axis, _Axis, list[_Axis]]]:
    """Which axis of m and of n is the matrix's own, the larger first; the others repeat the product."""
    none = _Axis(1, (0, 0, 0))
    pairs = list(every(range(max(1, len(m))), range(max(1, len(n)))))
    pairs.sort(key=lambda pair: -sum([axes[i].size for axes, i in zip((m, n), pair, strict=True) if axes]))
    for i, j in pairs:
        yield (m[i] if m else none, n[j] if n else none, [*m[:i], *m[i + 1 :], *n[:j], *n[j + 1 :]])


def _matrix(rows: _Axis, columns: _Axis, batch: _Axis, side: int) -> Matrix | None:
    """How the matrix `rows` × `columns` of one side is stored; None if neither axis is dense."""
    row, column, every_nth = rows.strides[side], columns.strides[side], batch.strides[side]
    if every_nth < 0:
        return None
    if (row == 1 or rows.size == 1) and (columns.size == 1 or column >= rows.size):
        leading = column if columns.size > 1 else rows.size
        return Matrix(rows.size, columns.size, leading, False, every_nth)
    if (column == 1 or columns.size == 1) and (rows.size == 1 or row >= columns.size):
        leading = row if rows.size > 1 else columns.size
        return Matrix(columns.size, rows.size, leading, True, every_nth)
    return None


def _fit(m: _Axis, n: _Axis, k: _Axis, batch: _Axis, dtype: str, out_dtype: str) -> Gemm | None:
    x, y = _matrix(m, k, batch, 0), _matrix(k, n, batch, 1)
    c = _matrix(m, n, batch, 2)
    if x is None or y is None or c is None:
        return None
    if not c.transposed:
        return Gemm(m.size, n.size, k.size, batch.size, x, y, c, dtype, out_dtype, False)
    # out is dense along n: its transpose is yᵀ·xᵀ, and that is dense along its rows.
    x, y, c = (replace(matrix, transposed=not matrix.transposed) for matrix in (x, y, c))
    return Gemm(n.size, m.size, k.size, batch.size, y, x, c, dtype, out_dtype, True)


def _offsets(loops: Sequence[_Axis]) -> Iterator[tuple[int, int, int]]:
    for place in every(*[range(axis.size) for axis in loops]):
        total = [sum([i * axis.strides[side] for i, axis in zip(place, loops, strict=True)]) for side in range(3)]
        yield total[0], total[1], total[2]
