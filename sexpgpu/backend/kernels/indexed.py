"""Gather: reads at indices that are data, in packs where what an index reads lies together."""

from __future__ import annotations

from collections.abc import Sequence

from sexpgpu.backend.kernels.dialects import BITS
from sexpgpu.backend.kernels.flags import flag_pointers
from sexpgpu.backend.kernels.launch import BLOCK, Launch, kernel
from sexpgpu.backend.kernels.nest import Nest, is_wide, unsigned
from sexpgpu.backend.kernels.operands import Argument
from sexpgpu.ir.graph import Node
from sexpgpu.ir.ops.rules import attr_int
from sexpgpu.plan.layout import Strides, contiguous


def print_gather(node: Node, inputs: Sequence[Argument], out: Argument) -> tuple[Launch, ...]:
    """The kernel that reads at indices: of several axes (`batch` says how many lead), or one element a row."""
    if out.size == 0:
        return ()
    x, i = inputs
    d = out.dialect
    axis = attr_int(node.attrs, "axis")
    num_batch = node.attrs.get("batch")
    without = (*x.strides[:axis], *x.strides[axis + 1 :])
    if num_batch is None:
        x_steps, i_steps, counted, leads = without, i.strides, contiguous(i.shape), (0,) * len(i.shape)
    else:
        assert isinstance(num_batch, int)
        own, middle = len(i.shape) - num_batch, axis - num_batch
        rest = x.strides[axis + 1 :]
        x_steps = (*x.strides[:axis], *(0,) * own, *rest)
        i_steps = _spread(i.strides, num_batch, middle, len(rest))
        counted = _spread(contiguous(i.shape), num_batch, middle, len(rest))
        # Only one of the elements that an index reads reports it: offset 0 along the axes that it lacks.
        beside = contiguous((*x.shape[num_batch:axis], *x.shape[axis + 1 :]))
        leads = ((0,) * num_batch) + beside[:middle] + (0,) * own + beside[middle:]
    nest = Nest(out.shape, {"x": x_steps, "i": i_steps, "y": out.strides, "at": counted, "lead": leads})
    spelt = BITS[x.item_bytes]
    held = {"x": x.item_bytes, "y": out.item_bytes}
    fits = x.strides[axis] * x.item_bytes % 16 == 0 and nest.inner("i") == 0
    pack = nest.packs(held, {"x": x.aligned, "y": out.aligned}, ["x", "y"]) if fits else 1
    wide = nest.wide or is_wide(x.size, (x.shape, x.strides))
    ragged = len(nest.shape) == 1 and nest.shape[0] % pack
    nest = nest if ragged else nest.widen(pack)
    pack = 1 if ragged else pack
    nest.wide = wide
    start, names = nest.start("t")
    size, number = x.shape[axis], unsigned(wide)
    source = f"x + ({nest.at('x', names)} + ({'i64' if wide else 'int'})place * {x.strides[axis]})"
    text = f"""const {number} t = ({number}){d.block}.x * {BLOCK}u + {d.thread}.x;
if (t >= {nest.count}u) return;
{start}
{i.register} place = {i.load(f"i[{nest.at('i', names)}]")};
if (place < 0 || place >= {size}) {{
if (({nest.at("lead", names)}) == 0) {d.raise_flag(nest.at("at", names), "place")}
place = place < 0 ? 0 : {size - 1};
}}
{_move(spelt, pack, source, f"y + ({nest.at('y', names)})")}"""
    pointers = [x.pointer("x", bits=True), i.pointer("i"), out.pointer("y", bits=True), *flag_pointers(d, 0)]
    return (kernel(d, "gather", pointers, text, (-(-nest.count // BLOCK), 1, 1)),)


def _spread(strides: Strides, num_batch: int, middle: int, rest: int) -> Strides:
    """Strides of the indices over the shape of what is read."""
    return (*strides[:num_batch], *(0,) * middle, *strides[num_batch:], *(0,) * rest)


def _move(spelt: str, pack: int, source: str, target: str) -> str:
    if pack == 1:
        return f"*({target}) = *({source});"
    return f"write_pack({target}, read_pack<{spelt}, {pack}>({source}));"
