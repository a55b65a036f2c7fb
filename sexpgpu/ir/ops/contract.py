"""The one dense contraction, in einsum notation of two operands. Work shape Contract.

Letters fall into four groups: batch (both operands and the result), M (left and result), N (right and
result), K (both operands, summed). A letter of one operand alone that the result lacks is summed before.
"""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any

import numpy as np

from sexpgpu.ir.builder import Builder
from sexpgpu.ir.graph import Attrs, Graph, Node, Value
from sexpgpu.ir.opdef import Array, Context, Cost, OpDef, Sample, Stages, Work, bytes_moved, register
from sexpgpu.ir.ops.rules import check_dtype, check_operands, float_gradient
from sexpgpu.ir.types import TensorType, TypeFault

PRODUCT_RESULTS = {"f32": "f32", "bf16": "f32", "f64": "f64", "i32": "i32", "i64": "i64"}
"""The dtype that a contraction of two operands of a dtype produces."""


@dataclass(frozen=True, slots=True)
class Letters:
    """A parsed notation: the letters of each side, and the groups in the order of the result (K of x)."""

    x: str
    y: str
    out: str
    batch: str
    m: str
    n: str
    k: str
    lone_x: str
    lone_y: str


@lru_cache(maxsize=4096)
def letters(spec: str) -> Letters:
    """Parse `"ab,bc->ac"`. Raises TypeFault where it is malformed."""
    operands, arrow, out = spec.partition("->")
    sides = operands.split(",")
    if not arrow or len(sides) != 2:
        raise TypeFault(f"`{spec}` is no notation of a product of two operands", help='write it like "ab,bc->ac"')
    x, y = sides
    for side in (x, y, out):
        for letter in side:
            if letter not in string.ascii_letters:
                raise TypeFault(f"`{letter}` in the notation `{spec}` is no letter")
            if side.count(letter) > 1:
                raise TypeFault(f"`{letter}` occurs twice on one side of the notation `{spec}`")
    for letter in out:
        if letter not in x + y:
            raise TypeFault(f"`{letter}` of the result of `{spec}` is in neither operand")
    return Letters(
        x,
        y,
        out,
        batch="".join(c for c in out if c in x and c in y),
        m="".join(c for c in out if c not in y),
        n="".join(c for c in out if c not in x),
        k="".join(c for c in x if c in y and c not in out),
        lone_x="".join(c for c in x if c not in y + out),
        lone_y="".join(c for c in y if c not in x + out),
    )


def canonical(spec: str) -> str:
    """`spec` with its letters renamed a, b, c … in the order of first appearance."""
    names: dict[int, str] = {}
    for letter in spec:
        if letter in string.ascii_letters and ord(letter) not in names:
            names[ord(letter)] = string.ascii_letters[len(names)]
    return spec.translate(names)


def letter_sizes(spec: str, x: Sequence[int], y: Sequence[int]) -> dict[str, int]:
    """The size of each letter, given the operands' shapes."""
    groups = letters(spec)
    return dict(zip(groups.x + groups.y, (*x, *y), strict=True))


def flop_sizes(node: Node) -> dict[str, int]:
    """The size of each letter of a `product` node."""
    x, y = node.inputs
    return letter_sizes(str(node.attrs["spec"]), x.shape, y.shape)


def check_operand_dtypes(name: str, x: TensorType, y: TensorType) -> str:
    """The dtype of a contraction of x and y. Raises TypeFault E-TYPE-001."""
    for operand in (x, y):
        check_dtype(name, operand, tuple(PRODUCT_RESULTS))
    if x.dtype != y.dtype:
        raise TypeFault(f"`{name}` of {x} and {y}: dtypes differ", "E-TYPE-001", "cast one of them")
    return PRODUCT_RESULTS[x.dtype]


def _type(types: Sequence[TensorType], attrs: Attrs, bodies: Sequence[Graph]) -> tuple[TensorType, ...]:
    check_operands("product", types, 2)
    x, y = types
    dtype = check_operand_dtypes("product", x, y)
    groups = letters(str(attrs["spec"]))
    for operand, side in ((x, groups.x), (y, groups.y)):
        if operand.rank != len(side):
            raise TypeFault(f"`product` names {len(side)} axes, `{side}`, of {operand}, which has {operand.rank}")
    sizes = dict(zip(groups.x, x.shape, strict=True))
    for letter, size in zip(groups.y, y.shape, strict=True):
        if sizes.setdefault(letter, size) != size:
            raise TypeFault(
                f"`product` pairs axes by `{letter}`, which is {sizes[letter]} in {x} and {size} in {y}",
                "E-TYPE-004",
            )
    return (TensorType(dtype, tuple(sizes[c] for c in groups.out)),)


# The meaning: a matrix product, batched where it must be, over views where BLAS can take them.


def _places(side: str, wanted: str) -> list[int]:
    return [side.index(c) for c in wanted]


def _merges(x: Array, axes: Sequence[int]) -> bool:
    """Whether `axes` of x, in this order, are one axis of one stride."""
    real = [a for a in axes if x.shape[a] != 1]
    return all(x.strides[a] == x.strides[b] * x.shape[b] for a, b in pairwise(real))


def _blas_takes(x: Array) -> bool:
    """Whether BLAS can address the last two axes of x: one of them dense, the other a leading dimension."""
    (rows, columns), (row, column), item = x.shape[-2:], x.strides[-2:], x.itemsize
    by_rows = column == item and row % item == 0 and row >= columns * item
    by_columns = row == item and column % item == 0 and column >= rows * item
    return by_rows or by_columns


def _matrices(x: Array, side: str, batch: str, rows: str, columns: str) -> Array:
    """x as matrices `rows` by `columns` at each place of the batch axes; copied only where BLAS needs it."""
    moved = x.transpose(_places(side, batch + rows + columns))
    shape = moved.shape
    first, second = len(batch), len(batch) + len(rows)
    matrices = moved.reshape(*shape[:first], math.prod(shape[first:second]), math.prod(shape[second:]))
    return matrices if _blas_takes(matrices) else np.ascontiguousarray(matrices)


def _aligned(x: Array, side: str, out: str) -> Array:
    """x with its axes where they are in `out`, size 1 for those that it lacks."""
    moved = x.transpose(_places(side, "".join(c for c in out if c in side)))
    return moved[tuple(slice(None) if c in side else None for c in out)]


def contract(spec: str, x: Array, y: Array, out: Array) -> None:
    """Write the contraction of x and y, of one dtype, into `out`, of any strides."""
    groups = letters(spec)
    left, right = groups.x, groups.y
    if groups.lone_x:
        x = x.sum(tuple(_places(left, groups.lone_x)), x.dtype)
        left = "".join(c for c in left if c not in groups.lone_x)
    if groups.lone_y:
        y = y.sum(tuple(_places(right, groups.lone_y)), y.dtype)
        right = "".join(c for c in right if c not in groups.lone_y)
    if not groups.k:
        np.multiply(_aligned(x, left, groups.out), _aligned(y, right, groups.out), out=out)
        return
    if groups.batch and not groups.m + groups.n and x.strides[left.index(groups.k[-1])] != x.itemsize:
        # As dot products these would each stride through memory; so they run side by side.
        every = groups.out + groups.k
        summed = tuple(range(len(groups.out), len(every)))
        np.multiply(_aligned(x, left, every), _aligned(y, right, every)).sum(summed, x.dtype, out)
        return

    k = _summed_order(groups, x, left, y, right)
    x = _matrices(x, left, groups.batch, groups.m, k)
    y = _matrices(y, right, groups.batch, k, groups.n)
    moved = out.transpose(_places(groups.out, groups.batch + groups.m + groups.n))
    target = moved.reshape(*x.shape[:-1], y.shape[-1])
    if np.may_share_memory(target, out) and _blas_takes(target):
        np.matmul(x, y, out=target)
    else:
        np.copyto(moved, np.matmul(x, y).reshape(moved.shape))


# The same over arrays that stay where they are, cut into tiles.

TILE_WORK = 32_000_000
"""Floating-point operations that are worth a call of their own; smaller tiles pack their operands too often."""
HALF_WORK = 15_000_000
"""The same of each of two tiles."""
LEAST_WORK = 8_000_000
"""Floating-point operations of a tile where it costs nothing: in a batch of products."""
FEW_TILES, MAX_TILES = 8, 16
LARGE_TILE_WORK = 512_000_000
"""What a tile must be worth where there are more than a few: each packs operands that others pack too."""
LEAST_SIDE = 48
"""Rows or columns of a tile, at least: below this BLAS spends its time on packing."""
SLOW_SIDE = 32
"""A product with a side of this length takes about twice as long per operation as a large one."""


def tile_grid(num_batch: int, m: int, n: int, k: int) -> tuple[int, int, int]:
    """Into how many tiles the batch, the rows and the columns of a product are cut: by its shape alone."""
    work = 2 * num_batch * m * n * k * (1 + SLOW_SIDE / max(1, min(m, n, k)))
    batches = rows = columns = 1
    while batches < MAX_TILES and batches * 2 <= num_batch and batches * 2 * LEAST_WORK <= work:
        batches *= 2
    while (tiles := 2 * batches * rows * columns) <= MAX_TILES:
        if tiles * (HALF_WORK if tiles == 2 else TILE_WORK if tiles <= FEW_TILES else LARGE_TILE_WORK) > work:
            break
        row_length, column_length = m // rows, n // columns
        # Tall tiles are faster than square ones.
        if row_length > 2 * column_length and row_length >= 2 * LEAST_SIDE:
            rows *= 2
        elif column_length >= 2 * LEAST_SIDE:
            columns *= 2
        elif row_length >= 2 * LEAST_SIDE:
            rows *= 2
        else:
            break
    return batches, rows, columns


def cuts(size: int, num_parts: int) -> list[slice]:
    """`size` things in `num_parts` parts that differ by one at most."""
    bounds = [size * i // num_parts for i in range(num_parts + 1)]
    return [slice(*pair) for pair in pairwise(bounds)]


Index = tuple[Any, ...]


def _tile_indices(shape: Sequence[int], n: int) -> list[tuple[Index, Index, Index]]:
    """For x of `shape` times matrices of n columns: what each tile reads of x and of y, and what it writes."""
    *lead, m, k = shape
    axis = max(range(len(lead)), key=lambda a: lead[a], default=0)
    size = lead[axis] if lead else 1
    others = math.prod(lead) // max(1, size)
    batches, rows, columns = tile_grid(size, m, n, k * others)
    every = slice(None)
    found = []
    for part in cuts(size, batches):
        at: Index = (*[every] * axis, part, *[every] * (len(lead) - axis - 1)) if lead else ()
        for row in cuts(m, rows):
            for column in cuts(n, columns):
                found.append(((*at, row, every), (*at, every, column), (*at, row, column)))
    return found


def _prepare(ctx: Context, node: Node, inputs: Sequence[Array], outs: Sequence[Array]) -> Stages:
    x, y = inputs
    (out,) = outs
    dtype = ctx.dtype(node.types[0])
    groups = letters(str(node.attrs["spec"]))
    left, right = groups.x, groups.y
    whole = ((partial(_into, ctx, node, inputs, outs),),)
    if groups.lone_x or groups.lone_y or not out.size or not x.size:
        return whole
    if not groups.k:
        if x.dtype != dtype or y.dtype != dtype:
            return whole
        call = partial(np.multiply, _aligned(x, left, groups.out), _aligned(y, right, groups.out), out)
        return ((call,),)
    if dtype.kind != "f" or (groups.batch and not groups.m + groups.n):
        return whole
    k = _summed_order(groups, x, left, y, right)
    sides = ((x, left, groups.m, k), (y, right, k, groups.n))
    packed = _Packed(dtype)
    for array, side, rows, columns in sides:
        packed.operand(array.transpose(_places(side, groups.batch + rows + columns)), len(groups.batch), len(rows))
    moved = out.transpose(_places(groups.out, groups.batch + groups.m + groups.n))
    packed.result(moved, len(groups.batch), len(groups.m))
    return packed.stages()


def _summed_order(groups: Letters, x: Array, left: str, y: Array, right: str) -> str:
    """The order of the summed letters that has the least copied."""

    def copied_elements(k: str) -> int:
        return sum(a.size for a, side in ((x, left), (y, right)) if not _merges(a, _places(side, k)))

    return min((groups.k, "".join(c for c in right if c in groups.k)), key=copied_elements)


class _Packed:
    """A product of matrices; what BLAS cannot address where it lies is copied for the time of a call."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype
        self.shapes: list[tuple[int, ...]] = []
        self.arrays: list[Array | None] = []
        self.before: list[Callable[[], None]] = []
        self.after: list[Callable[[], None]] = []

    def operand(self, moved: Array, num_batch: int, num_rows: int) -> None:
        """x, then y, each with its axes in order: batch, rows, columns."""
        if not self._add(moved, num_batch, num_rows):
            self.before.append(partial(self._pack, len(self.arrays) - 1, moved))

    def result(self, moved: Array, num_batch: int, num_rows: int) -> None:
        """Where the product goes."""
        if not self._add(moved, num_batch, num_rows):
            self.before.append(partial(self._make, len(self.arrays) - 1))
            self.after.append(partial(self._unpack, len(self.arrays) - 1, moved))

    def stages(self) -> Stages:
        """Copies, the tiles of the product, and what follows them."""
        x, y, out = self.arrays
        tiles: list[Callable[[], Any]] = []
        for left, right, target in _tile_indices(self.shapes[0], self.shapes[1][-1]):
            if x is not None and y is not None and out is not None:
                tiles.append(partial(np.matmul, x[left], y[right], out[target]))
            else:
                tiles.append(partial(self._multiply, left, right, target))
        if not self.before:
            return (tuple(tiles),)
        self.after.append(partial(self._forget, [i for i, array in enumerate(self.arrays) if array is None]))
        return tuple(self.before), tuple(tiles), *[(call,) for call in self.after]

    def _add(self, moved: Array, num_batch: int, num_rows: int) -> bool:
        lead, rows = moved.shape[:num_batch], moved.shape[num_batch : num_batch + num_rows]
        shape = (*lead, math.prod(rows), math.prod(moved.shape[num_batch + num_rows :]))
        self.shapes.append(shape)
        if moved.dtype == self.dtype:
            try:
                view = moved.reshape(shape, copy=False)
            except ValueError:
                view = None
            if view is not None and _blas_takes(view):
                self.arrays.append(view)
                return True
        self.arrays.append(None)
        return False

    def _pack(self, which: int, moved: Array) -> None:
        packed = np.empty(moved.shape, self.dtype)
        np.copyto(packed, moved)
        self.arrays[which] = packed.reshape(self.shapes[which])

    def _make(self, which: int) -> None:
        self.arrays[which] = np.empty(self.shapes[which], self.dtype)

    def _multiply(self, left: Index, right: Index, target: Index) -> None:
        x, y, out = self.arrays
        assert x is not None and y is not None and out is not None
        np.matmul(x[left], y[right], out[target])

    def _unpack(self, which: int, moved: Array) -> None:
        made = self.arrays[which]
        assert made is not None
        np.copyto(moved, made.reshape(moved.shape))

    def _forget(self, which: Sequence[int]) -> None:
        for index in which:
            self.arrays[index] = None


def _into(ctx: Context, node: Node, inputs: Sequence[Array], outs: Sequence[Array]) -> None:
    dtype = ctx.dtype(node.types[0])
    x, y = (a.astype(dtype, copy=False) for a in inputs)
    with np.errstate(all="ignore"):
        contract(str(node.attrs["spec"]), x, y, outs[0])


def _meaning(ctx: Context, node: Node, inputs: Sequence[Array]) -> Array:
    out = np.empty(node.types[0].shape, ctx.dtype(node.types[0]))
    _into(ctx, node, inputs, (out,))
    return out


def _operand_gradient(
    b: Builder, g: Value, g_letters: str, other: Value, other_letters: str, x: Value, side: str
) -> Value:
    """The cotangent of operand x: a product of the result's cotangent and the other operand, in x's dtype."""
    reached = "".join(c for c in side if c in g_letters + other_letters)
    product = b.product(f"{g_letters},{other_letters}->{reached}", b.cast(g, other.dtype), other)
    return b.broadcast(b.cast(product, x.dtype), x.shape, _places(side, reached))


def _gradient(b: Builder, node: Node, g: Value) -> Sequence[Value | None]:
    x, y = node.inputs
    groups = letters(str(node.attrs["spec"]))
    return (
        _operand_gradient(b, g, groups.out, y, groups.y, x, groups.x),
        _operand_gradient(b, g, groups.out, x, groups.x, y, groups.y),
    )


def _stacking(b: Builder, node: Node, inputs: Sequence[Value], batched: Sequence[bool], k: int) -> tuple[Value, ...]:
    spec = str(node.attrs["spec"])
    groups = letters(spec)
    fresh = next(c for c in string.ascii_letters if c not in spec)
    x, y = ((fresh if flag else "") + side for flag, side in zip(batched, (groups.x, groups.y), strict=True))
    return (b.product(f"{x},{y}->{fresh}{groups.out}", *inputs),)


def _cost(node: Node) -> Cost:
    return Cost(2 * math.prod(flop_sizes(node).values()), bytes_moved(node))


def _sample(spec: str, dtype: str, **sizes: int) -> Sample:
    groups = letters(spec)
    sides = (TensorType(dtype, tuple(sizes[c] for c in side)) for side in (groups.x, groups.y))
    return Sample(tuple(sides), {"spec": spec})


register(
    OpDef(
        name="product",
        doc="The contraction of x and y: the sum over each letter that the result lacks. f32 out of bf16.",
        work=Work.CONTRACT,
        params={"spec": 'einsum notation of two operands, "ab,bc->ac"; a letter once a side'},
        type_rule=_type,
        meaning=_meaning,
        into=_into,
        prepare=_prepare,
        stacking=_stacking,
        gradient=float_gradient(_gradient),
        samples=(
            _sample("ab,bc->ac", "f32", a=3, b=4, c=5),
            _sample("ba,cb->ca", "f32", a=3, b=4, c=5),
            _sample("btw,wo->bto", "bf16", b=2, t=3, w=4, o=5),
            _sample("btw,bto->wo", "f32", b=2, t=3, w=4, o=5),
            _sample("bthd,bshd->bhts", "f32", b=2, t=3, h=2, d=4, s=5),
            _sample("bhts,bshd->bthd", "bf16", b=2, t=3, h=2, d=4, s=5),
            _sample("akb,bkc->cka", "f32", a=2, k=3, b=4, c=5),
            _sample("mkp,nkq->pnmq", "f32", m=2, k=3, p=2, n=3, q=2),
            _sample("akl,lkb->ab", "f32", a=2, k=3, l=4, b=2),
            _sample("axb,byc->ac", "f32", a=2, x=3, b=4, y=2, c=3),
            _sample("ab,ab->ba", "f32", a=3, b=4),
            _sample("a,b->ba", "f32", a=3, b=4),
            _sample("ab,ab->", "f32", a=3, b=4),
            _sample("ab,b->a", "f32", a=3, b=4),
            _sample(",a->a", "f32", a=3),
            _sample("ab,bc->ac", "f32", a=3, b=0, c=2),
            _sample("ab,bc->ac", "f64", a=3, b=4, c=5),
            _sample("zab,zbc->zac", "i32", z=2, a=3, b=4, c=5),
            _sample("ab,b->ab", "i64", a=3, b=4),
        ),
        cost=_cost,
    )
)
