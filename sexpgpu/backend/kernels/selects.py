"""Select: sorting and the largest k, by ranks.

A row is cut into runs. In a run every element counts those that come before it: that is its rank. Then neighbouring
runs are merged, pair by pair: an element's new rank is its old one, and how many of the other run come before it,
which a binary search tells. Between launches a workspace holds the indices in order. What is behind rank k of its
run is behind it in the end, so later launches leave it out. No element waits for another, and all ranks differ, so
the order of threads decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from sexpgpu.backend.kernels.launch import BLOCK, Launch, Pointer, blocks, kernel
from sexpgpu.backend.kernels.nest import collapse, is_wide, linear, offset, split, unsigned
from sexpgpu.backend.kernels.operands import Argument, workspace_pointer
from sexpgpu.ir.graph import Node
from sexpgpu.ir.ops.rules import attr_int
from sexpgpu.ir.ops.select import is_descending

RUN = 1024
"""Elements of a run that are ranked by counting."""


def _counts(node: Node) -> tuple[int, int, int]:
    """Rows, elements of each, and how many of them are kept."""
    x, axis = node.inputs[0].type, attr_int(node.attrs, "axis")
    length = x.shape[axis]
    return x.size // max(1, length), length, node.types[0].shape[axis]


def _num_merges(length: int) -> int:
    return (max(1, -(-length // RUN)) - 1).bit_length()


def select_workspace(node: Node) -> tuple[int, ...]:
    """Bytes of the workspaces of a selection: the indices in order, of this launch and of the one before."""
    rows, length, _ = _counts(node)
    return (4 * rows * length,) * min(2, _num_merges(length))


def print_select(node: Node, inputs: tuple[Argument, ...], outputs: tuple[Argument, ...]) -> tuple[Launch, ...]:
    """The kernels of a selection: one that ranks, and one for each time that runs are merged."""
    (x,), (values, places) = inputs, outputs
    if values.size == 0:
        return ()
    rows, length, kept = _counts(node)
    s = _Select(x, values, places, attr_int(node.attrs, "axis"), is_descending(node), rows, length, kept)
    merges = _num_merges(length)
    return tuple([s.print(number, last=number == merges) for number in range(merges + 1)])


@dataclass(frozen=True, slots=True)
class _Select:
    x: Argument
    values: Argument
    places: Argument
    axis: int
    descending: bool
    rows: int
    length: int
    kept: int

    def print(self, number: int, last: bool) -> Launch:
        """Launch `number`: 0 ranks in runs, the others merge. The last writes results, the others a workspace."""
        axis, d = self.axis, self.x.dialect
        others = [a for a in range(len(self.x.shape)) if a != axis]
        three = (self.x, self.values, self.places)
        strides = [tuple(each.strides[a] for a in others) for each in three]
        shape, (x_row, v_row, i_row) = collapse([self.x.shape[a] for a in others], strides)
        assert prod(shape) == self.rows
        wide = is_wide(self.rows * self.length + BLOCK, *((each.shape, each.strides) for each in three))
        index = unsigned(wide)
        lines, names = split("row", shape, "c", wide)
        element = self.x.register

        def at(place: str) -> str:
            return self.x.load(f"line[{offset([place], (self.x.strides[axis],), wide)}]")

        before = (
            "above(p, q) || (!above(q, p) && i < j)" if self.descending else "above(q, p) || (!above(p, q) && i < j)"
        )
        pointers = [self.x.pointer("x")]
        if number == 0:
            find = f"""const u32 i = place, begin = place / {RUN}u * {RUN}u;
const u32 end = begin + {RUN}u < {self.length}u ? begin + {RUN}u : {self.length}u;
const {element} p = {at("i")};
u32 rank = 0;
for (u32 j = begin; j < end; ++j) {{
const {element} q = {at("j")};
rank += !({before}) && i != j;
}}"""
        else:
            run = RUN << (number - 1)
            pointers.append(workspace_pointer((number - 1) % 2, "sorted", "u32", const=True))
            find = f"""{d.pointer("u32")} const order = sorted + row * {self.length}u;
const u32 own = place / {run}u * {run}u, begin = place / {2 * run}u * {2 * run}u;
if (place - own >= {self.kept}u) return;
const u32 i = order[place], other = own == begin ? own + {run}u : begin;
const u32 reach = {min(run, self.kept)}u, left = other < {self.length}u ? {self.length}u - other : 0u;
const {element} p = {at("i")};
u32 low = 0, high = left < reach ? left : reach;
while (low < high) {{
const u32 middle = (low + high) / 2u, j = order[other + middle];
const {element} q = {at("j")};
if ({before}) high = middle; else low = middle + 1u;
}}
const u32 rank = place - own + low;"""
        if last:
            v_at = offset([*names, "rank"], (*v_row, self.values.strides[axis]), wide)
            i_at = offset([*names, "rank"], (*i_row, self.places.strides[axis]), wide)
            pointers += [self.values.pointer("values"), self.places.pointer("places")]
            write = f"values[{v_at}] = {self.values.store('p')};\nplaces[{i_at}] = {self.places.store('(int)i')};"
        else:
            pointers.append(Pointer(("workspace", number % 2), "next", "u32"))
            write = f"next[row * {self.length}u + begin + rank] = i;"
        text = f"""const {index} task = {linear(d, wide)};
if (task >= {self.rows * self.length}u) return;
const {index} row = task / {self.length}u;
const u32 place = (u32)(task % {self.length}u);
{lines}
{d.pointer(self.x.stored)} const line = x + ({offset(names, x_row, wide)});
{find}
if (rank < {self.kept}u) {{
{write}
}}"""
        return kernel(d, "select", pointers, text, blocks(self.rows * self.length))
