"""The kernels of leaves: elementwise work on dense tensors of any sizes, with folds of all their elements, at once.

The bodies of the region are alike but for sizes. A table in the card's memory has a row for each: its first block, its
number of elements, where its operands are (see `tables`). Blocks take stretches of a length that the body alone
decides, so folds give the same bits wherever a leaf stands in the table.

Flow: the lowering of a device asks for the rows and the kernels of a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate

from sexpgpu.backend.kernels.dialects import BoundFold, Dialect
from sexpgpu.backend.kernels.launch import BLOCK, Launch, Pointer, kernel
from sexpgpu.backend.kernels.operands import workspace_pointer
from sexpgpu.backend.kernels.tables import address, base_pointers, opened
from sexpgpu.ir.graph import Graph, Node, Value
from sexpgpu.ir.opdef import OPS, Work
from sexpgpu.plan.arena import aligned

PACK = 4
MAX_RUNS = 4
MAX_HELD_BYTES = 96
"""What a thread reads before it computes."""

TABLE = Pointer(("input", 0), "table", "u64", const=True, alone=True)


def is_fold(node: Node) -> bool:
    """Whether a node of a body folds all elements."""
    return OPS[node.op].work is Work.REDUCE


def folds_of(body: Graph) -> list[Node]:
    """The folds of a body, in order."""
    return [node for node in body.nodes if is_fold(node)]


def _full(body: Graph) -> list[Value]:
    """Inputs that are read element by element; the others are numbers."""
    return [value for value in body.inputs if value.rank]


def _runs(d: Dialect, body: Graph) -> int:
    held = PACK * sum([d.item_bytes(value.dtype) for value in _full(body)])
    if any(type.dtype == "bool" and type.rank for node in body.nodes for type in node.types):
        return 1  # a thread has seven places for truth values
    return max(1, min(MAX_RUNS, MAX_HELD_BYTES // max(1, held)))


def num_elements(body: Graph) -> int:
    """Of each tensor that is walked over."""
    return _full(body)[0].type.size


def first_blocks(d: Dialect, node: Node) -> list[int]:
    """The first block of each leaf, and the number of all."""
    stretch = [PACK * _runs(d, body) * BLOCK for body in node.bodies]
    counts = [-(-num_elements(body) // each) for body, each in zip(node.bodies, stretch, strict=True)]
    return [0, *accumulate(counts)]


def partial_bytes(d: Dialect, node: Node) -> list[int]:
    """The workspaces that hold what blocks leave of each fold."""
    states = [_bound(d, fold).state_bytes for fold in folds_of(node.bodies[0])]
    return [aligned(num_bytes * first_blocks(d, node)[-1]) for num_bytes in states]


def _bound(d: Dialect, fold: Node) -> BoundFold:
    return d.fold(fold.op, fold.inputs[0].dtype)


def print_leaves(d: Dialect, node: Node, packs: bool, num_buffers: int = 1) -> tuple[Launch, ...]:
    """The kernel that walks, and the one that folds what its blocks left, if there are folds.

    packs: whether every tensor begins at a multiple of 16 bytes. num_buffers: how many the table tells of. Operands are
    the table, a workspace for each fold, and the starts of those buffers where addresses are no numbers.
    A row of the table has the first block, the number of elements, the inputs and the outputs of a leaf.
    """
    body, starts = node.bodies[0], first_blocks(d, node)
    width, num_blocks = 2 + len(body.inputs) + len(body.outputs), starts[-1]
    partials = [workspace_pointer(r, f"partial{r}", _bound(d, fold).state) for r, fold in enumerate(folds_of(body))]
    pointers = [TABLE, *partials, *base_pointers(d, num_buffers)]
    search = f"""u32 low = 0u, high = {len(node.bodies)}u;
while (high - low > 1u) {{
const u32 middle = (low + high) / 2u;
if (table[(u64)middle * {width}u] <= {d.block}.x) low = middle; else high = middle;
}}
{d.pointer("u64")} const row = table + (u64)low * {width}u;
{opened(d, num_buffers)}"""
    walk = kernel(d, "leaves", pointers, f"{search}\n{_walk(d, body, PACK if packs else 1)}", (num_blocks, 1, 1))
    if not partials:
        return (walk,)
    folds = f"{opened(d, num_buffers)}\n{_folds(d, body, width, len(node.bodies), num_blocks)}"
    return walk, kernel(d, "folds", pointers, folds, (len(node.bodies), len(partials), 1))


def _walk(d: Dialect, body: Graph, pack: int) -> str:
    runs, folds = _runs(d, body), folds_of(body)
    stretch = PACK * runs * BLOCK
    runs = stretch // (pack * BLOCK)
    full = {value: f"x{i}" for i, value in enumerate(body.inputs) if value.rank}
    outputs = [(i, value) for i, value in enumerate(body.output_values) if not is_fold(value.node)]
    lines = [f"const u64 count = row[1], start = ({d.block}.x - row[0]) * {stretch}u{d.long_suffix};"]
    for i, value in enumerate(body.inputs):
        stored = d.storage[value.dtype]
        if value.rank:
            lines.append(f"{d.pointer(stored)} const x{i} = {address(d, stored, f'row[{2 + i}]')};")
        else:
            read = d.load(value.dtype, f"*{address(d, stored, f'row[{2 + i}]')}")
            lines.append(f"const {d.registers[value.dtype]} s{i} = {read};")
    for i, value in outputs:
        stored = d.storage[value.dtype]
        where = address(d, stored, f"row[{2 + len(body.inputs) + i}]", const=False)
        lines.append(f"{d.pointer(stored, const=False)} const y{i} = {where};")
    lines += [f"{_bound(d, fold).state} acc{r} = {_bound(d, fold).identity};" for r, fold in enumerate(folds)]
    element = _Element(d, body)
    if pack > 1:
        types = {name: f"Pack<{d.storage[value.dtype]}, {pack}>" for value, name in full.items()}
        lines += [f"{types[name]} p_{name}[{runs}];" for name in full.values()]
        reads = [
            f"p_{name}[k] = read_pack<{d.storage[value.dtype]}, {pack}>({name} + i);" for value, name in full.items()
        ]
        made = [f"Pack<{d.storage[value.dtype]}, {pack}> made_y{i};" for i, value in outputs]
        index = f"const u64 i = start + ((u64)k * {BLOCK}u + {d.thread}.x) * {pack}u;"
        inner = element.text({name: f"p_{name}[k].at[e]" for name in full.values()}, "made_y{}.at[e]")
        tail = element.text({name: f"{name}[j]" for name in full.values()}, "y{}[j]")
        newline = "\n"
        lines.append(f"""#pragma unroll
for (int k = 0; k < {runs}; ++k) {{
{index}
if (i + {pack}u <= count) {{
{newline.join(reads)}
}}
}}
#pragma unroll
for (int k = 0; k < {runs}; ++k) {{
{index}
if (i + {pack}u <= count) {{
{newline.join(made)}
#pragma unroll
for (int e = 0; e < {pack}; ++e) {{
{inner}
}}
{newline.join([f"write_pack(y{i} + i, made_y{i});" for i, _ in outputs])}
}} else {{
#pragma unroll 1
for (u64 j = i; j < count; ++j) {{
{tail}
}}
}}
}}""")
    else:
        each = element.text({name: f"{name}[j]" for name in full.values()}, "y{}[j]")
        lines.append(f"""for (int k = 0; k < {runs}; ++k) {{
const u64 j = start + (u64)k * {BLOCK}u + {d.thread}.x;
if (j < count) {{
{each}
}}
}}""")
    for r, fold in enumerate(folds):
        lines.append(_over_threads(_bound(d, fold), r, d.put(f"partial{r}[{d.block}.x]", f"acc{r}")))
    return "\n".join(lines)


def _over_threads(fold: BoundFold, number: int, then: str) -> str:
    """`acc` of all threads of a block as that of the first, which does `then`."""
    d = fold.dialect
    acc, other, read = f"acc{number}", f"const {fold.state} other", d.get(f"warps{number}[w]", shared=True)
    return f"""{{
{d.shared(fold.state, f"warps{number}[{BLOCK // 32}]")}
#pragma unroll
for (int mask = 16; mask > 0; mask /= 2) {{ {other} = shuffle_xor({acc}, mask); {acc} = {fold.combine(acc, "other")}; }}
if (({d.thread}.x & 31u) == 0u) {d.put(f"warps{number}[{d.thread}.x >> 5]", acc, shared=True)}
{d.barrier()}
if ({d.thread}.x == 0u) {{
for (int w = 1; w < {BLOCK // 32}; ++w) {{ {other} = {read}; {acc} = {fold.combine(acc, "other")}; }}
{then}
}}
}}"""


def _folds(d: Dialect, body: Graph, width: int, num_leaves: int, num_blocks: int) -> str:
    lines = [
        f"{d.pointer('u64')} const row = table + (u64){d.block}.x * {width}u;",
        f"const u32 first = (u32)row[0], last = {d.block}.x + 1u < {num_leaves}u ? (u32)row[{width}] : {num_blocks}u;",
    ]
    for r, node in enumerate(folds_of(body)):
        fold, (made,) = _bound(d, node), node.outputs
        targets = [i for i, value in enumerate(body.output_values) if value is made]
        stored = d.store(made.dtype, fold.result(f"acc{r}"))
        rows = [address(d, d.storage[made.dtype], f"row[{2 + len(body.inputs) + i}]", const=False) for i in targets]
        places = [f"*{place} = {stored};" for place in rows]
        lines.append(f"""if ({d.block}.y == {r}u) {{
{fold.state} acc{r} = {fold.identity};
for (u32 b = first + {d.thread}.x; b < last; b += {BLOCK}u) {{
const {fold.state} other = {d.get(f"partial{r}[b]")};
acc{r} = {fold.combine(f"acc{r}", "other")};
}}
{_over_threads(fold, r, " ".join(places))}
}}""")
    return "\n".join(lines)


class _Element:
    """The statements for one element of a body."""

    def __init__(self, d: Dialect, body: Graph) -> None:
        self.d, self.body = d, body

    def text(self, memory: Mapping[str, str], target: str) -> str:
        """memory: where each tensor's element is. target: where that of output {} goes."""
        d, body = self.d, self.body
        names: dict[Value, str] = {}
        lines = []
        for i, value in enumerate(body.inputs):
            names[value] = f"r{i}" if value.rank else f"s{i}"
            if value.rank:
                read = d.load(value.dtype, memory[f"x{i}"])
                lines.append(f"const {d.registers[value.dtype]} r{i} = {read};")
        folds = folds_of(body)
        for node in body.nodes:
            operands = tuple([names[value] for value in node.inputs])
            if node.op == "input":
                continue
            if is_fold(node):
                fold, r = _bound(d, node), folds.index(node)
                lines.append(f"{{ const {fold.state} next = {fold.lift(operands[0], '0')};")
                lines.append(f"acc{r} = {fold.combine(f'acc{r}', 'next')}; }}")
                continue
            if node.op == "broadcast":
                names[node.outputs[0]] = operands[0]
                continue
            dtype, made = node.types[0].dtype, f"v{node.id}"
            found = d.literal(node) if node.op == "constant" else d.expression(node, operands)
            if dtype == "bf16":
                found = d.load(dtype, d.store(dtype, found))
            names[node.outputs[0]] = made
            lines.append(f"const {d.registers[dtype]} {made} = {found};")
        for i, value in enumerate(body.output_values):
            if not is_fold(value.node):
                lines.append(f"{target.format(i)} = {d.store(value.dtype, names[value])};")
        return "\n".join(lines)
