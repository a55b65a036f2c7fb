"""Draws: each element a function of a key and its place, so the same on every device and in any order.

Philox4x32-10 with key (low, high word of `stream`) and counter (block, `trip`, low, high word of `site`);
element n takes word n mod 4 of block n div 4.
Source: Salmon, Moraes, Dror and Shaw, Parallel random numbers: as easy as 1, 2, 3, SC 2011.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from sexpgpu.ir.builder import Builder
from sexpgpu.ir.graph import Attrs, Graph, Node, Value
from sexpgpu.ir.opdef import (
    Array,
    Context,
    Cost,
    OpDef,
    Prepare,
    Sample,
    Stages,
    TypeRule,
    Work,
    bytes_moved,
    no_gradient,
    register,
)
from sexpgpu.ir.ops.rules import attr_int, attr_shape, batch, check_dtype, check_operands
from sexpgpu.ir.types import TensorType, TypeFault

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
BLOCKS_AT_A_TIME = 1 << 14
"""Enough to hide the calls, few enough that every array of a round stays in the cache."""
PARTS_AT_A_TIME = 16
"""How many times that many blocks one call of a prepared draw fills."""

WORD = 0xFFFFFFFF
LOW = np.uint64(WORD)
HIGH = np.uint64(32)

Draw = Callable[[Array, Array], None]


def philox(counter: Sequence[Array], key: tuple[int, int]) -> tuple[Array, ...]:
    """Philox4x32-10: four words of each counter. Words are held in uint64, which the call overwrites."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    p0, p1 = np.empty_like(c0), np.empty_like(c0)
    m0, m1 = map(np.uint64, MULTIPLIERS)
    for _ in range(ROUNDS):
        np.multiply(c0, m0, out=p0)
        np.multiply(c2, m1, out=p1)
        np.right_shift(p1, HIGH, out=c0)
        np.bitwise_xor(c0, c1, out=c0)
        np.bitwise_xor(c0, np.uint64(k0), out=c0)
        np.right_shift(p0, HIGH, out=c2)
        np.bitwise_xor(c2, c3, out=c2)
        np.bitwise_xor(c2, np.uint64(k1), out=c2)
        np.bitwise_and(p1, LOW, out=c1)
        np.bitwise_and(p0, LOW, out=c3)
        k0, k1 = (k0 + WEYL[0]) & WORD, (k1 + WEYL[1]) & WORD
    return c0, c1, c2, c3


def words(stream: int, trip: int, site: int, first: int, count: int) -> Array:
    """The words of blocks `first` to `first + count` of one stream: uint64 [4, count]."""
    state = np.empty((4, count), np.uint64)
    state[0] = np.arange(first, first + count, dtype=np.uint64)
    state[1] = trip & WORD
    state[2] = site & WORD
    state[3] = (site >> 32) & WORD
    philox(tuple(state), (stream & WORD, (stream >> 32) & WORD))
    return state


def _uniform(block_words: Array, out: Array) -> None:
    """24 bits of each word, in [0, 1): the same numbers in single and in double precision."""
    np.multiply((block_words >> np.uint64(8)).astype(out.dtype), out.dtype.type(2.0**-24), out=out)


def _normal(block_words: Array, out: Array) -> None:
    """Box and Muller's transform of word pairs; the first is in (0, 1], so that its logarithm is finite."""
    one = out.dtype.type
    bits = (block_words >> np.uint64(8)).astype(out.dtype)
    for pair in (0, 2):
        radius = np.log((bits[pair] + one(1)) * one(2.0**-24))
        np.sqrt(radius * one(-2), out=radius)
        angle = bits[pair + 1] * one(2.0**-24) * one(2 * np.pi)
        np.multiply(radius, np.cos(angle), out=out[pair])
        np.multiply(radius, np.sin(angle), out=out[pair + 1])


def _fill(out: Array, draw: Draw, stream: int, trip: int, site: int, first: int = 0) -> None:
    """Fill `out`, contiguous and of one axis, from block `first` on."""
    for start in range(0, out.size, 4 * BLOCKS_AT_A_TIME):
        part = out[start : start + 4 * BLOCKS_AT_A_TIME]
        count = -(-part.size // 4)
        drawn = np.empty((4, count), out.dtype)
        draw(words(stream, trip, site, first + start // 4, count), drawn)
        whole = part.size // 4
        part[: 4 * whole].reshape(whole, 4)[...] = drawn[:, :whole].T
        if whole < count:
            part[4 * whole :] = drawn[: part.size - 4 * whole, -1]


def _type(name: str) -> TypeRule:
    def rule(types: Sequence[TensorType], attrs: Attrs, bodies: Sequence[Graph]) -> tuple[TensorType, ...]:
        check_operands(name, types, 2)
        stream, trip = types
        check_dtype(name, stream, ("i64",))
        check_dtype(name, trip, ("i32",))
        if trip.shape not in ((), stream.shape):
            raise TypeFault(f"`{name}` of streams {stream} and trips {trip}: shapes differ")
        if min((0, *attr_shape(attrs))) < 0:
            raise TypeFault(f"`{name}` of shape {list(attr_shape(attrs))}: a size is negative")
        return (TensorType("f32", stream.shape + attr_shape(attrs)),)

    return rule


def _meaning(draw: Draw) -> Callable[[Context, Node, Sequence[Array]], Array]:
    def meaning(ctx: Context, node: Node, inputs: Sequence[Array]) -> Array:
        out = np.empty(node.types[0].shape, ctx.dtype(node.types[0]))
        stream, trip = inputs
        rows = out.reshape(stream.size, math.prod(attr_shape(node.attrs)))
        trips = np.broadcast_to(trip, stream.shape).reshape(-1)
        for row, key, count in zip(rows, stream.reshape(-1), trips, strict=True):
            _fill(row, draw, int(key), int(count), attr_int(node.attrs, "site"))
        return out

    return meaning


def _prepare(draw: Draw) -> Prepare:
    """Calls that fill parts of whole blocks, independent of each other."""

    def prepare(ctx: Context, node: Node, inputs: Sequence[Array], outs: Sequence[Array]) -> Stages:
        (stream, trip), (out,) = inputs, outs
        size = math.prod(attr_shape(node.attrs))
        if not out.flags.c_contiguous or not out.size:
            return ((partial(_draw_all, draw, ctx, node, inputs, outs),),)
        rows = out.reshape(stream.size, size)
        keys, trips = stream.reshape(-1, copy=False), np.broadcast_to(trip, stream.shape)
        part = PARTS_AT_A_TIME * 4 * BLOCKS_AT_A_TIME
        return (
            tuple(
                [
                    partial(_draw_part, draw, node, keys, trips, row, start, rows[row, start : start + part])
                    for row in range(stream.size)
                    for start in range(0, size, part)
                ]
            ),
        )

    return prepare


def _draw_all(draw: Draw, ctx: Context, node: Node, inputs: Sequence[Array], outs: Sequence[Array]) -> None:
    np.copyto(outs[0], _meaning(draw)(ctx, node, inputs))


def _draw_part(draw: Draw, node: Node, keys: Array, trips: Array, row: int, start: int, out: Array) -> None:
    place = np.unravel_index(row, trips.shape) if trips.ndim else ()
    _fill(out, draw, int(keys[row]), int(trips[place]), attr_int(node.attrs, "site"), start // 4)


def _stacking(b: Builder, node: Node, inputs: Sequence[Value], batched: Sequence[bool], k: int) -> tuple[Value, ...]:
    stream, trip = inputs
    streams = node.inputs[0].shape
    if batched[1] and trip.rank == 1:
        trip = b.broadcast(trip, (k, *streams), (0,))
    elif not batched[1] and trip.rank > 0:
        trip = batch(b, trip, False, k)
    return b.node(node.op, (batch(b, stream, batched[0], k), trip), node.attrs).outputs


def _cost(node: Node) -> Cost:
    return Cost(10 * node.types[0].size, bytes_moved(node))


for _name, _draw, _doc in (
    ("random-uniform", _uniform, "Draws in [0, 1), multiples of 2^-24, of `shape` for each stream."),
    ("random-normal", _normal, "Draws of mean 0 and variance 1 of `shape` for each stream."),
):
    register(
        OpDef(
            name=_name,
            doc=_doc,
            work=Work.RANDOM,
            params={
                "shape": "shape of the draws of one stream",
                "site": "64 bits that tell this call from others",
            },
            type_rule=_type(_name),
            meaning=_meaning(_draw),
            prepare=_prepare(_draw),
            stacking=_stacking,
            gradient=no_gradient,
            samples=(
                Sample((TensorType("i64", ()), TensorType("i32", ())), {"shape": (3, 5), "site": 7}),
                Sample((TensorType("i64", ()), TensorType("i32", ())), {"shape": (), "site": -(2**62)}),
                Sample((TensorType("i64", (2,)), TensorType("i32", ())), {"shape": (6,), "site": 2**63 + 1}),
                Sample((TensorType("i64", (2,)), TensorType("i32", (2,))), {"shape": (2, 2), "site": 0}),
                Sample((TensorType("i64", ()), TensorType("i32", ())), {"shape": (0, 3), "site": 1}),
            ),
            cost=_cost,
        )
    )
