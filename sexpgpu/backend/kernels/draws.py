"""Random: one thread a block of four draws, each a function of its stream and place."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from sexpgpu.backend.kernels.launch import BLOCK, Launch, kernel
from sexpgpu.backend.kernels.nest import is_wide, offset, split, unsigned
from sexpgpu.backend.kernels.operands import Argument
from sexpgpu.ir.graph import Node
from sexpgpu.ir.ops.rules import attr_int, attr_shape
from sexpgpu.plan.layout import is_contiguous

WORDS = 4


def print_draws(node: Node, inputs: Sequence[Argument], out: Argument) -> tuple[Launch, ...]:
    """The kernel of a draw."""
    if out.size == 0:
        return ()
    stream, trip = inputs
    d = out.dialect
    shape = attr_shape(node.attrs)
    length = prod(shape)
    groups = -(-length // WORDS)
    count = prod(stream.shape) * groups
    wide = is_wide(count * WORDS, (out.shape, out.strides))
    number = unsigned(wide)
    lines, rows = split(f"(t / {groups}u)", stream.shape, "s", wide)
    trip_strides = trip.strides or (0,) * len(stream.shape)
    whole = is_contiguous(out.shape, out.strides) and out.aligned and length % WORDS == 0
    if whole:
        write = f"write_pack(y + t * {WORDS}u, drawn);"
    else:
        inner, places = split("n", shape, "n", wide)
        at = offset([*rows, *places], out.strides, wide)
        write = f"""#pragma unroll
for (int e = 0; e < {WORDS}; ++e) {{
const {number} n = t % {groups}u * {WORDS}u + e;
if (n < {length}u) {{
{inner}
y[{at}] = drawn.at[e];
}}
}}"""
    site = f"{attr_int(node.attrs, 'site') % 2**64:#x}u{d.long_suffix}"
    text = f"""const {number} t = ({number}){d.block}.x * {BLOCK}u + {d.thread}.x;
if (t >= {count}u) return;
{lines}
const i64 key = {stream.load(f"stream[{offset(rows, stream.strides, wide)}]")};
const int when = {trip.load(f"trip[{offset(rows, trip_strides, wide)}]")};
const Pack<float, 4> drawn = {d.draws[node.op]}(philox((u64)key, (u32)(t % {groups}u), (u32)when, {site}));
{write}"""
    pointers = [stream.pointer("stream"), trip.pointer("trip"), out.pointer("y")]
    return (kernel(d, "draw", pointers, text, (-(-count // BLOCK), 1, 1)),)
