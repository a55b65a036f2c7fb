"""Scatter: writes at indices that are data, folded in the order of the indices.

Few indices: every place looks through all of them. Many: the places are cut into chunks, and one block for each
lists its indices sorted by place, in order; then each place folds its own list, in two launches where lists may be
long, since what suits a list of three does not suit one of thousands. Nothing depends on the order in which blocks
or threads run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from sexpgpu.backend.kernels.flags import flag_pointers
from sexpgpu.backend.kernels.launch import BLOCK, MULTIPROCESSORS, Launch, Pointer, kernel
from sexpgpu.backend.kernels.nest import Nest, is_wide, offset, split, unsigned
from sexpgpu.backend.kernels.operands import Argument, workspace_pointer
from sexpgpu.ir.graph import Node
from sexpgpu.ir.ops.rules import attr_int
from sexpgpu.plan.layout import Strides, contiguous

WARP = 32
SORTERS = 1024
"""Threads of a block that sorts, and the most places of its chunk."""
MIN_PLACES = 32
FEW_INDICES = 64
"""Up to here every place looks through all indices."""
LONG = 64
"""Length from which a list is folded by the kernel for long ones."""
MANY_INDICES = 1024
"""From here on some lists may be long enough for a kernel of their own."""
DEPTH = 32
"""Values of one place that a thread has in flight where its list is long."""
LONG_BLOCK = 128
GROUP = 64
"""Places that one block of the kernel for long lists looks at; they lie far apart, as frequent ones are neighbours."""


@dataclass(frozen=True, slots=True)
class _Scatter:
    """A scatter: `tables` of `places` each, `indices` of each; the axes of the indices in v's shape are `own`."""

    x: Argument
    i: Argument
    v: Argument
    out: Argument
    fold: str
    axis: int
    num_batch: int
    tables: int
    places: int
    indices: int

    @property
    def own(self) -> slice:
        return slice(self.axis, self.axis + len(self.i.shape) - self.num_batch)

    @property
    def has_long(self) -> bool:
        return self.indices >= MANY_INDICES and self.tables == 1

    def nest(self) -> Nest:
        """A walk over the result. `table`, `place` and `lead` count: the last is 0 once in each table."""
        out, axis, num_batch = self.out, self.axis, self.num_batch
        rank = len(out.shape)

        def along(strides: Sequence[int], first: int) -> Strides:
            return (*(0,) * first, *strides, *(0,) * (rank - first - len(strides)))

        return Nest(
            out.shape,
            {
                "x": self.x.strides,
                "y": out.strides,
                "v": (*self.v.strides[:axis], 0, *self.v.strides[self.own.stop :]),
                "table": along(contiguous(out.shape[:num_batch]), 0),
                "i": along(self.i.strides[:num_batch], 0),
                "place": along((1,), axis),
                "lead": along(contiguous(out.shape[num_batch:]), num_batch),
            },
        )

    def wide(self, nest: Nest) -> bool:
        """Whether any index or offset needs 64 bits."""
        return nest.wide or is_wide(
            self.v.size + self.i.size, (self.v.shape, self.v.strides), (self.i.shape, self.i.strides)
        )

    def folded(self, old: str, new: str) -> str:
        """The fold of one element: statements."""
        register = self.x.register
        value = self.x.dialect.scattered(self.fold, self.x.dtype, "old", "new_")
        return f"{{ const {register} old = {old}, new_ = {self.x.load(new)}; {old} = {value}; }}"


def _scatter(node: Node, inputs: Sequence[Argument], out: Argument) -> _Scatter:
    x, i, v = inputs
    axis, num_batch = attr_int(node.attrs, "axis"), attr_int(node.attrs, "batch")
    tables, places, indices = _counts(node)
    return _Scatter(x, i, v, out, str(node.attrs["fold"]), axis, num_batch, tables, places, indices)


def _counts(node: Node) -> tuple[int, int, int]:
    """Tables, places of each, indices of each."""
    x, i, _ = node.inputs
    num_batch = attr_int(node.attrs, "batch")
    tables = prod(x.shape[:num_batch])
    return tables, x.shape[attr_int(node.attrs, "axis")], prod(i.shape[num_batch:])


def scatter_workspace(node: Node) -> tuple[int, ...]:
    """Bytes of the workspaces of a scatter: where each place's list begins, entries in order, entries sorted."""
    tables, places, indices = _counts(node)
    if indices <= FEW_INDICES or node.types[0].size == 0:
        return ()
    return (4 * tables * (places + 1), 8 * tables * indices, 4 * tables * indices)


def print_scatter(node: Node, inputs: Sequence[Argument], out: Argument) -> tuple[Launch, ...]:
    """The kernels that fold values into a table."""
    if out.size == 0:
        return ()
    s = _scatter(node, inputs, out)
    if s.indices <= FEW_INDICES:
        return (_print_places(s, _search(s), (s.i.pointer("i"), *flag_pointers(out.dialect, 0))),)
    lists = (workspace_pointer(0, "starts", "int", const=True), workspace_pointer(2, "sorted", "int", const=True))
    launches = (_print_sort(s), _print_places(s, None, lists))
    return (*launches, _print_long(s, lists)) if s.has_long else launches


def _search(s: _Scatter) -> str:
    """The head of a loop over all indices, which goes on with those that name the place; `@` marks offsets."""
    index, steps = split("k", s.i.shape[s.num_batch :], "q", s.wide(s.nest()))
    at = offset(steps, s.i.strides[s.num_batch :], s.wide(s.nest()))
    report = s.out.dialect.raise_flag(f"(@table) * {s.indices}u + k", "place")
    return f"""for ({unsigned(s.wide(s.nest()))} k = 0; k < {s.indices}u; ++k) {{
{index}
const {s.i.register} place = {s.i.load(f"i[@i + {at}]")};
if (@lead == 0 && (place < -1 || place >= {s.places})) {report}
if (place != @place) continue;
"""


def _print_places(s: _Scatter, search: str | None, pointers: Sequence[Pointer]) -> Launch:
    """One thread for neighbours of a place; it finds its indices by `search`, or folds its sorted list."""
    d, whole = s.out.dialect, s.nest()
    held = {"x": s.x.item_bytes, "y": s.out.item_bytes, "v": s.v.item_bytes}
    own_shape, own_steps = s.v.shape[s.own], s.v.strides[s.own]
    fits = not any(step * s.v.item_bytes % 16 for step in own_steps)
    fits = fits and not any(whole.inner(name) for name in ("place", "i", "table"))
    aligned = {"x": s.x.aligned, "y": s.out.aligned, "v": s.v.aligned}
    pack = whole.packs(held, aligned, ["y", "v"]) if fits else 1
    if whole.shape and whole.shape[-1] % pack:
        pack = 1
    once = pack > 1 and whole.inner("x") == 0
    nest = whole.widen(pack)
    nest.wide = wide = s.wide(whole)
    number, spelt = unsigned(wide), s.x.stored
    start, names = nest.start("t")
    lines, steps = split("k", own_shape, "o", wide)
    kind = f"Pack<{spelt}, {pack}>" if pack > 1 else spelt

    def read(at: str) -> str:
        return f"read_pack<{spelt}, {pack}>({at})" if pack > 1 else f"*({at})"

    at_x, at_y = nest.at("x", names), nest.at("y", names)
    some = f"v + ({nest.at('v', names)} + {offset(steps, own_steps, wide)})"
    initial = f"const {spelt} held = x[{at_x}];" if once else f"const {kind} held = {read(f'x + ({at_x})')};"
    if search is None:
        skip = f"if (end - begins[0] > {LONG}) return;" if s.has_long else ""
        loop = f"""for (int j = begins[0]; j < end; ++j) {{
const {number} k = list[j];
"""
        lists = f"""{d.pointer("int")} list = sorted + (u64)({nest.at("table", names)}) * {s.indices}u;
{d.pointer("int")} begins = starts + (u64)({nest.at("table", names)}) * {s.places + 1}u + ({nest.at("place", names)});
const int end = begins[1];
{skip}"""
        unroll = "#pragma unroll 4\n"
    else:
        lists, unroll, loop = "", "", search
        for name in ("lead", "table", "place", "i"):
            loop = loop.replace(f"@{name}", f"({nest.at(name, names)})")
    write = f"y[{at_y}] = {s.out.store('acc[0]')};"
    if pack > 1:
        write = f"""{kind} made;
#pragma unroll
for (int e = 0; e < {pack}; ++e) made.at[e] = {s.out.store("acc[e]")};
write_pack(y + ({at_y}), made);"""
    text = f"""const {number} t = ({number}){d.block}.x * {BLOCK}u + {d.thread}.x;
if (t >= {nest.count}u) return;
{start}
{lists}
{initial}
{s.x.register} acc[{pack}];
#pragma unroll
for (int e = 0; e < {pack}; ++e) acc[e] = {s.x.load("held.at[e]" if pack > 1 and not once else "held")};
{unroll}{loop}{lines}
const {kind} some = {read(some)};
#pragma unroll
for (int e = 0; e < {pack}; ++e) {s.folded("acc[e]", "some.at[e]" if pack > 1 else "some")}
}}
{write}"""
    given = [s.x.pointer("x"), s.v.pointer("v"), s.out.pointer("y"), *pointers]
    return kernel(d, "scatter", given, text, (-(-nest.count // BLOCK), 1, 1))


def _print_long(s: _Scatter, pointers: Sequence[Pointer]) -> Launch:
    """The long lists of one table: a thread has one column and many of its values in flight, added in order."""

    def columns(strides: Strides) -> Strides:
        return (*strides[: s.axis], *strides[s.axis + 1 :])

    d = s.out.dialect
    v_strides = (*s.v.strides[: s.axis], *s.v.strides[s.own.stop :])
    nest = Nest(columns(s.out.shape), {"x": columns(s.x.strides), "y": columns(s.out.strides), "v": v_strides})
    nest.wide = wide = s.wide(s.nest())
    number, signed, spelt = unsigned(wide), "i64" if wide else "int", s.x.stored
    start, names = nest.start("c")
    lines, steps = split("k", s.v.shape[s.own], "o", wide)
    some = f"v[{nest.at('v', names)} + {offset(steps, s.v.strides[s.own], wide)}]"
    groups = -(-s.places // GROUP)
    tiles = -(-nest.count // LONG_BLOCK)
    along = f"({signed})place * "
    text = f"""{d.shared("int", f"begins[{GROUP}]", f"lengths[{GROUP}]")}
const u32 group = {d.block}.x % {groups}u;
if ({d.thread}.x < {GROUP}) {{
const u32 place = group + {d.thread}.x * {groups}u;
begins[{d.thread}.x] = place < {s.places}u ? starts[place] : 0;
lengths[{d.thread}.x] = place < {s.places}u ? starts[place + 1] - starts[place] : 0;
}}
{d.barrier()}
const {number} c = ({number})({d.block}.x / {groups}u) * {LONG_BLOCK}u + {d.thread}.x;
if (c >= {nest.count}u) return;
{start}
for (int n = 0; n < {GROUP}; ++n) {{
const int length = lengths[n];
if (length <= {LONG}) continue;
const int place = group + n * {groups}u;
{d.pointer("int")} list = sorted + begins[n];
{s.x.register} acc = {s.x.load(f"x[{nest.at('x', names)} + {along}{s.x.strides[s.axis]}]")};
int ahead[{DEPTH}], j = 0;
#pragma unroll
for (int u = 0; u < {DEPTH}; ++u) ahead[u] = list[u];
for (; j + {DEPTH} <= length; j += {DEPTH}) {{
{spelt} some[{DEPTH}];
#pragma unroll
for (int u = 0; u < {DEPTH}; ++u) {{ const {number} k = ahead[u]; {lines} some[u] = {some}; }}
#pragma unroll
for (int u = 0; u < {DEPTH}; ++u) ahead[u] = list[j + {DEPTH} + u < length ? j + {DEPTH} + u : length - 1];
#pragma unroll
for (int u = 0; u < {DEPTH}; ++u) {s.folded("acc", "some[u]")}
}}
for (; j < length; ++j) {{
const {number} k = list[j];
{lines}
const {spelt} one = {some};
{s.folded("acc", "one")}
}}
y[{nest.at("y", names)} + {along}{s.out.strides[s.axis]}] = {s.out.store("acc")};
}}"""
    given = [s.x.pointer("x"), s.v.pointer("v"), s.out.pointer("y"), *pointers]
    return kernel(d, "scatter", given, text, (groups * tiles, 1, 1), (LONG_BLOCK, 1, 1))


def _print_sort(s: _Scatter) -> Launch:
    """The kernel that sorts positions by the place that their index names, equal ones in order.

    A block has the places of its chunk. It reads all indices of its table twice: to count what lies before its
    chunk and at each of its places, and to list its own in order; then one warp moves them to their places, 32 at a
    time.
    """
    d, i, num_batch, tables, places, indices = s.out.dialect, s.i, s.num_batch, s.tables, s.places, s.indices
    chunk = min(SORTERS, max(MIN_PLACES, -(-places // MULTIPROCESSORS)))
    chunks = -(-places // chunk)
    warps = SORTERS // WARP
    span = -(-indices // (warps * WARP)) * WARP
    wide = is_wide(tables * indices, (i.shape, i.strides))
    number = unsigned(wide)
    before, tables_at = split("table", i.shape[:num_batch], "b", wide)
    lines, names = split("j", i.shape[num_batch:], "o", wide)
    base = offset(tables_at, i.strides[:num_batch], wide)
    at = offset(names, i.strides[num_batch:], wide)
    register = i.register
    text = f"""{d.shared("int", f"counts[{SORTERS}]", f"warp_own[{warps}]", f"warp_low[{warps}]")}
const int tid = {d.thread}.x, lane = tid % {WARP}, warp = tid / {WARP};
const u32 table = {d.block}.x / {chunks}u, mine = {d.block}.x % {chunks}u;
const int first = mine * {chunk}, stop = first + {chunk} < {places} ? first + {chunk} : {places};
{before}
i += {base};
starts += (u64)table * {places + 1}u;
entries += (u64)table * {indices}u;
sorted += (u64)table * {indices}u;
counts[tid] = 0;
{d.barrier()}
const int from = warp * {span}, to = from + {span} < {indices} ? from + {span} : {indices};
int low = 0, own = 0;
for ({number} j = from + lane; (int)j < to; j += {WARP}) {{
{lines}
const {register} place = {i.load(f"i[{at}]")};
if (mine == 0 && (place < -1 || place >= {places})) {d.raise_flag(f"(u64)table * {indices}u + j", "place")}
if (place >= 0 && place < first) ++low;
if (place >= first && place < stop) {{ ++own; {d.add_shared("counts[(int)place - first]", "1")} }}
}}
for (int mask = 16; mask > 0; mask /= 2) {{ low += shuffle_xor(low, mask); own += shuffle_xor(own, mask); }}
if (lane == 0) {{ warp_low[warp] = low; warp_own[warp] = own; }}
{d.barrier()}
int below = 0, ahead = 0, total = 0;
for (int w = 0; w < {warps}; ++w) {{
below += warp_low[w];
if (w < warp) ahead += warp_own[w];
total += warp_own[w];
}}
int at = below + ahead;
for (int base = from; base < to; base += {WARP}) {{
const {number} j = base + lane;
int row = -1;
if ((int)j < to) {{
{lines}
const {register} place = {i.load(f"i[{at}]")};
if (place >= first && place < stop) row = (int)place - first;
}}
const u32 votes = {d.ballot("row >= 0")};
if (row >= 0) {d.put(f"entries[at + {d.count_bits('votes & ((1u << lane) - 1u)')}]", "Entry{(int)j, row}")}
at += {d.count_bits("votes")};
}}
// Running sums of the counts: where each place's list begins.
const int count = counts[tid];
int sum = count;
for (int away = 1; away < {WARP}; away *= 2) {{
const int other = {d.shuffle_up("sum", "away")};
if (lane >= away) sum += other;
}}
{d.barrier()}
if (lane == {WARP - 1}) warp_low[warp] = sum;
{d.barrier()}
int begin = below + sum - count;
for (int w = 0; w < warp; ++w) begin += warp_low[w];
counts[tid] = begin;
if (first + tid < stop) starts[first + tid] = begin;
if (tid == 0 && stop == {places}) starts[{places}] = below + total;
{d.barrier(device=True)}
if (warp != 0) return;
Entry next = lane < total ? {d.get("entries[below + lane]")} : Entry{{0, -1}};
for (int base = 0; base < total; base += {WARP}) {{
const Entry entry = next;
next = base + {WARP} + lane < total ? {d.get(f"entries[below + base + {WARP} + lane]")} : Entry{{0, -1}};
const u32 equal = {d.match("entry.row")}, before = equal & ((1u << lane) - 1u);
const int begins = entry.row < 0 ? 0 : counts[entry.row];
{d.warp_barrier()}
if (entry.row >= 0) {{
sorted[begins + {d.count_bits("before")}] = entry.position;
if (before == 0) counts[entry.row] = begins + {d.count_bits("equal")};
}}
{d.warp_barrier()}
}}"""
    pointers = [
        i.pointer("i"),
        workspace_pointer(0, "starts", "int"),
        workspace_pointer(1, "entries", "Entry"),
        workspace_pointer(2, "sorted", "int"),
        *flag_pointers(d, 3),
    ]
    return kernel(d, "sort", pointers, text, (chunks * tables, 1, 1), (SORTERS, 1, 1))
