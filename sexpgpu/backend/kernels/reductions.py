"""Reduce: folds over any axes, in an order that only shapes and layouts decide.

Two forms. By rows: the threads of a warp or a block share the elements of one result, which lie side by side.
By columns: each thread has a result of its own, neighbours in memory, and a few rows of threads share the
elements. Where there are few results, the elements are cut into parts, whose states go through a workspace to a
second launch that folds them in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from sexpgpu.backend.kernels.dialects import BoundFold, Dialect
from sexpgpu.backend.kernels.launch import BLOCK, MULTIPROCESSORS, Launch, Pointer, kernel
from sexpgpu.backend.kernels.nest import collapse, is_wide, offset, split, unsigned
from sexpgpu.backend.kernels.operands import Argument, workspace_pointer
from sexpgpu.ir.graph import Node
from sexpgpu.ir.ops.rules import attr_int, attr_ints
from sexpgpu.plan.layout import Strides

WARP = 32
BLOCKS_WANTED = 4 * MULTIPROCESSORS
MIN_PART_OF_ROW = 4096
MIN_PART_OF_COLUMN = 64
MAX_PARTS = 1024
WARP_ROW = 1024
"""The longest row that one warp takes."""
SHORT = 16
"""Elements of a result that one thread folds alone."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """How one fold runs: shapes of results and of what each folds, strides of both, and the parts.

    kept, folded: collapsed shapes; x_*: strides of the input over them, y: of the output.
    part: elements in each of `parts`.
    """

    kept: tuple[int, ...]
    folded: tuple[int, ...]
    x_kept: Strides
    x_folded: Strides
    y: Strides
    by_rows: bool
    parts: int
    part: int

    @property
    def results(self) -> int:
        return prod(self.kept)

    @property
    def length(self) -> int:
        return prod(self.folded)


def _plan(shape: tuple[int, ...], strides: Strides, axes: tuple[int, ...], y: Strides, may_part: bool = True) -> _Plan:
    others = [a for a in range(len(shape)) if a not in axes]
    kept, (x_kept, y_kept) = collapse([shape[a] for a in others], [tuple(strides[a] for a in others), y])
    folded, (x_folded,) = collapse([shape[a] for a in axes], [tuple(strides[a] for a in axes)])
    results, length = prod(kept), prod(folded)
    near_folded = min([abs(s) for s in x_folded if s], default=2**62)
    near_kept = min([abs(s) for s in x_kept if s], default=2**62)
    by_rows = length > SHORT and (near_folded < near_kept or results == 1)
    parts = 1
    if may_part and by_rows and results < BLOCKS_WANTED // 2:
        parts = min(-(-length // MIN_PART_OF_ROW), -(-BLOCKS_WANTED // max(1, results)))
    elif may_part and not by_rows and -(-results // WARP) < BLOCKS_WANTED // 2:
        parts = min(-(-length // MIN_PART_OF_COLUMN), -(-BLOCKS_WANTED // max(1, -(-results // WARP))))
    parts = max(1, min(parts, MAX_PARTS))
    # A multiple of 16, so that a part starts where a pack may.
    each = -(-length // parts)
    part = each if parts == 1 else -(-each // 16) * 16
    parts = max(1, -(-length // max(1, part)))
    return _Plan(kept, folded, x_kept, x_folded, y_kept, by_rows, parts, part)


def _axes(node: Node) -> tuple[int, ...]:
    return attr_ints(node.attrs, "axes") if "axes" in node.attrs else (attr_int(node.attrs, "axis"),)


def reduce_workspace(node: Node, x: Argument, out: Argument) -> tuple[int, ...]:
    """Bytes of the workspace of a reduction: the states of its parts, if it has several."""
    plan = _plan(x.shape, x.strides, _axes(node), out.strides)
    state_bytes = x.dialect.fold(node.op, x.dtype).state_bytes
    return (plan.parts * plan.results * state_bytes,) if plan.parts > 1 and out.size else ()


def reduce_bound(dialect: Dialect, node: Node) -> int:
    """The most that the workspace of a reduction takes, whatever the layouts."""
    results, state_bytes = node.types[0].size, dialect.fold(node.op, node.inputs[0].dtype).state_bytes
    length = node.inputs[0].type.size // max(1, results)
    tiles = -(-results // WARP)
    by_row = min(-(-length // MIN_PART_OF_ROW), -(-BLOCKS_WANTED // max(1, results)))
    by_column = min(-(-length // MIN_PART_OF_COLUMN), -(-BLOCKS_WANTED // max(1, tiles)))
    parts = max(by_row if results < BLOCKS_WANTED // 2 else 1, by_column if tiles < BLOCKS_WANTED // 2 else 1)
    parts = min(parts, MAX_PARTS)
    return -(-parts * results * state_bytes // 16) * 16 if parts > 1 else 0


def print_reduce(node: Node, x: Argument, out: Argument) -> tuple[Launch, ...]:
    """The kernels of a reduction."""
    if out.size == 0:
        return ()
    d = out.dialect
    fold = d.fold(node.op, x.dtype)
    plan = _plan(x.shape, x.strides, _axes(node), out.strides)
    result = out.store(fold.result("acc"))
    into_out = _Target(out.pointer("y"), "y", result)

    def lifted(memory: str, place: str) -> str:
        return fold.lift(x.load(memory), place)

    source = _Source(x.pointer("x"), x.stored, x.item_bytes, x.aligned, lifted)
    if plan.parts == 1:
        return (_print(fold, plan, source, into_out),)
    state = fold.state
    between = _Target(workspace_pointer(0, "partial", state), "partial", "acc")
    first = _print(fold, plan, source, between)
    read = Pointer(("workspace", 0), "x", state, const=True, alone=True)
    again = _Source(read, state, fold.state_bytes, False, lambda memory, place: d.get(memory))
    rows = (plan.parts, *plan.kept)
    step = [plan.results]
    inner = 1
    steps: list[int] = []
    for size in reversed(plan.kept):
        steps.append(inner)
        inner *= size
    second = _plan(rows, (*step, *reversed(steps)), (0,), plan.y, may_part=False)
    return (first, _print(fold, second, again, into_out))


@dataclass(frozen=True, slots=True)
class _Source:
    """Where elements come from: a pointer called `x`, and how one becomes a state."""

    pointer: Pointer
    type: str
    item_bytes: int
    aligned: bool
    lift: object

    def state(self, memory: str, place: str) -> str:
        assert callable(self.lift)
        return str(self.lift(memory, place))


@dataclass(frozen=True, slots=True)
class _Target:
    """Where results go: the output, or the states of parts in a workspace."""

    pointer: Pointer
    name: str
    value: str


def _write(d: Dialect, plan: _Plan, target: _Target, names: list[str], wide: bool) -> str:
    if target.name == "partial":
        return d.put(f"partial[({'u64' if wide else 'u32'})part * {plan.results}u + result]", target.value)
    return f"y[{offset(names, plan.y, wide)}] = {target.value};"


def _print(fold: BoundFold, plan: _Plan, source: _Source, target: _Target) -> Launch:
    return (_print_rows if plan.by_rows else _print_columns)(fold, plan, source, target)


def _wide(plan: _Plan) -> bool:
    reach = (*plan.kept, *plan.folded)
    strides = (*plan.x_kept, *plan.x_folded)
    return is_wide(max(plan.results * plan.parts * WARP, plan.length), (reach, strides), (plan.kept, plan.y))


def _bounds(plan: _Plan, number: str) -> str:
    if plan.parts == 1:
        return f"const {number} first = 0, last = {plan.length}u;"
    return (
        f"const {number} first = part * ({number}){plan.part}u;\n"
        f"const {number} last = first + {plan.part}u < {plan.length}u ? first + {plan.part}u : {plan.length}u;"
    )


def _pack(plan: _Plan, source: _Source) -> int:
    """Elements that a thread of a row reads at once."""
    pack = 16 // source.item_bytes
    along = plan.x_folded == (1,) and source.aligned
    fits = plan.length % pack == 0 and plan.part % pack == 0 and not any(s % pack for s in plan.x_kept)
    return pack if along and fits else 1


def _print_rows(fold: BoundFold, plan: _Plan, source: _Source, target: _Target) -> Launch:
    d = fold.dialect
    threads = WARP if min(plan.part, plan.length) <= WARP_ROW else BLOCK
    tasks, wide = plan.results * plan.parts, _wide(plan)
    number, state = unsigned(wide), fold.state
    lines, names = split("result", plan.kept, "k", wide)
    inner, places = split("r", plan.folded, "f", wide)
    at = offset(places, plan.x_folded, wide)
    pack = _pack(plan, source)
    if pack > 1:
        step = f"""#pragma unroll 4
for ({number} r = first + lane * {pack}u; r < last; r += {threads * pack}u) {{
const Pack<{source.type}, {pack}> some = read_pack<{source.type}, {pack}>(row + r);
#pragma unroll
for (int e = 0; e < {pack}; ++e) acc = {fold.combine("acc", f"({source.state('some.at[e]', '(r + e)')})")};
}}"""
    else:
        step = f"""#pragma unroll 4
for ({number} r = first + lane; r < last; r += {threads}u) {{
{inner}
const {state} next = {source.state(f"row[{at}]", "r")};
acc = {fold.combine("acc", "next")};
}}"""
    text = f"""const u32 lane = {d.thread}.x % {threads}u;
const {number} task = ({number}){d.block}.x * {BLOCK // threads}u + {d.thread}.x / {threads}u;
{f"if (task >= {tasks}u) return;" if threads == WARP else ""}
const {number} result = task % {plan.results}u;
{f"const {number} part = task / {plan.results}u;" if plan.parts > 1 else ""}
{lines}
{d.pointer(source.type)} row = x + ({offset(names, plan.x_kept, wide)});
{_bounds(plan, number)}
{state} acc = {fold.identity};
{step}
#pragma unroll
for (int mask = 16; mask > 0; mask /= 2) {{
const {state} other = shuffle_xor(acc, mask);
acc = {fold.combine("acc", "other")};
}}
"""
    if threads == BLOCK:
        read = d.get("warps[w]", shared=True)
        text += f"""{d.shared(state, f"warps[{BLOCK // WARP}]")}
if (lane % {WARP}u == 0) {d.put(f"warps[lane / {WARP}u]", "acc", shared=True)}
{d.barrier()}
if (lane != 0) return;
#pragma unroll
for (int w = 1; w < {BLOCK // WARP}; ++w) {{ const {state} other = {read}; acc = {fold.combine("acc", "other")}; }}
"""
    text += f"if (lane == 0) {_write(d, plan, target, names, wide)}"
    each = BLOCK // threads
    return kernel(d, "reduce", [source.pointer, target.pointer], text, (-(-tasks // each), 1, 1))


def _print_columns(fold: BoundFold, plan: _Plan, source: _Source, target: _Target) -> Launch:
    d, width = fold.dialect, WARP
    while width > 1 and width // 2 >= plan.results:
        width //= 2
    height = BLOCK // width
    while height > 1 and height * 2 > min(plan.part, plan.length):
        height //= 2
    if height == 1:
        width = BLOCK
    wide = _wide(plan)
    number, state = unsigned(wide), fold.state
    lines, names = split("result", plan.kept, "k", wide)
    inner, places = split("r", plan.folded, "f", wide)
    at = offset([*names, *places], (*plan.x_kept, *plan.x_folded), wide)
    text = f"""const {number} result = ({number}){d.block}.x * {width}u + {d.thread}.x;
{f"const {number} part = {d.block}.y;" if plan.parts > 1 else ""}
{_bounds(plan, number)}
{state} acc = {fold.identity};
{lines}
if (result < {plan.results}u) {{
#pragma unroll 8
for ({number} r = first + {d.thread}.y; r < last; r += {height}u) {{
{inner}
const {state} next = {source.state(f"x[{at}]", "r")};
acc = {fold.combine("acc", "next")};
}}
}}
"""
    if height > 1:
        text += f"""{d.shared(state, f"rows[{height}][{width}]")}
{d.put(f"rows[{d.thread}.y][{d.thread}.x]", "acc", shared=True)}
{d.barrier()}
if ({d.thread}.y != 0) return;
for (int h = 1; h < {height}; ++h) {{
const {state} other = {d.get(f"rows[h][{d.thread}.x]", shared=True)};
acc = {fold.combine("acc", "other")};
}}
"""
    text += f"if (result < {plan.results}u) {_write(d, plan, target, names, wide)}"
    grid = (-(-plan.results // width), plan.parts, 1)
    return kernel(d, "reduce", [source.pointer, target.pointer], text, grid, (width, height, 1))
