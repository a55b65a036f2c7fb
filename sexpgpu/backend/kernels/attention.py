"""Attention and its gradient as kernels that never hold the scores of more than a few keys.

For dialects whose warps multiply matrices of 8 x 8. Forward: a block has 32 queries, 8 a warp, and walks along the
keys; a query's weights are relative to the greatest score so far, and what was summed is turned to a new one by a
product with a diagonal matrix. Backward: Σ out·d_out of each query first, in a workspace; then dq, a block to some
queries, and dk with dv, a block to some keys; each makes its scores again, and nothing is added by two blocks.

Rounding is that of the composite: an f32 query takes the scale, scores of bf16 operands do; weights, cotangents and
their products are rounded to bf16 where the composite casts. Forward, weights are rounded before they are turned.

Flow: a device asks for the reason against a composite when it plans; its lowering prints it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from sexpgpu.backend.kernels.dialects import Dialect
from sexpgpu.backend.kernels.launch import BLOCK, Launch, kernel
from sexpgpu.backend.kernels.nest import Nest
from sexpgpu.backend.kernels.operands import Argument, workspace_pointer
from sexpgpu.ir.graph import Node

FORWARD, BACKWARD = "attention", "attention-gradient"
MAX_DEPTH = 128
"""Of a head: what its tiles leave of the memory that a block shares."""
SIDE = 8
WARP = 32
PAD = 4
QUERIES = 32


def is_attention(node: Node) -> bool:
    """Whether a node is one of the two composites."""
    return node.op == "composite" and node.attrs["name"] in (FORWARD, BACKWARD)


def reason_against(node: Node) -> str | None:
    """Why a composite of attention runs as the steps of its body; None: it has a kernel."""
    q, k, v = (value.type for value in node.inputs[:3])
    if not {q.dtype, k.dtype, v.dtype} <= {"f32", "bf16"}:
        return f"{q.dtype} operands"
    if max(q.shape[-1], v.shape[-1]) > MAX_DEPTH:
        return f"head size {max(q.shape[-1], v.shape[-1])}, the kernel takes up to {MAX_DEPTH}"
    if 0 in (*q.shape, *k.shape, *v.shape):
        return "it is empty"
    return None


def workspace_bytes(node: Node) -> tuple[int, ...]:
    """Bytes of the workspaces: of the gradient, Σ out·d_out of each query."""
    return (4 * prod(node.inputs[0].shape[:-1]),) if node.attrs["name"] == BACKWARD else ()


def print_attention(node: Node, inputs: Sequence[Argument], outputs: Sequence[Argument]) -> tuple[Launch, ...]:
    """The kernels of a composite that `reason_against` has nothing against."""
    q, k, v, *rest = inputs
    backward = node.attrs["name"] == BACKWARD
    mask = rest[0] if len(rest) == (4 if backward else 1) else None
    scale = node.attrs["scale"]
    assert isinstance(scale, (int, float)), scale
    operands = {"q": q, "k": k, "v": v} | ({"mask": mask} if mask is not None else {})
    if not backward:
        operands |= dict(zip(("out", "lse"), outputs, strict=True))
        return (_Attention(operands, bool(node.attrs["causal"]), float(scale)).forward(),)
    operands |= dict(zip(("out", "lse", "g"), rest[-3:], strict=True))
    operands |= dict(zip(("dq", "dk", "dv"), outputs, strict=True))
    attention = _Attention(operands, bool(node.attrs["causal"]), float(scale))
    return attention.delta(), attention.by_queries(), attention.by_keys()


@dataclass(frozen=True, slots=True)
class _Attention:
    """operands: by the names that they have in texts."""

    operands: dict[str, Argument]
    causal: bool
    scale: float

    @property
    def d(self) -> Dialect:
        return self.operands["q"].dialect

    @property
    def leading(self) -> tuple[int, ...]:
        return self.operands["q"].shape[:-2]

    @property
    def num_queries(self) -> int:
        return self.operands["q"].shape[-2]

    @property
    def num_keys(self) -> int:
        return self.operands["k"].shape[-2]

    @property
    def depth(self) -> int:
        """Matrices side by side that hold a query or a key."""
        return -(-self.operands["q"].shape[-1] // SIDE)

    @property
    def width(self) -> int:
        """Matrices side by side that hold a value."""
        return -(-self.operands["v"].shape[-1] // SIDE)

    @property
    def is_small(self) -> bool:
        return max(self.depth, self.width) * SIDE <= MAX_DEPTH // 2

    @property
    def scales_queries(self) -> bool:
        return self.operands["q"].dtype != "bf16"

    # Pieces of the texts.

    def launch(self, kind: str, names: Sequence[str], text: str, num_groups: int, num_warps: int) -> Launch:
        used = [*names, "mask"] if "mask" in self.operands else list(names)
        pointers = [self.operands[name].pointer(name) for name in used]
        if kind != "attention":
            pointers.append(workspace_pointer(0, "delta", "float", const=True))
        grid = (num_groups * prod(self.leading), 1, 1)
        return kernel(self.d, kind, pointers, text, grid, (num_warps * WARP, 1, 1))

    def opening(self, names: Sequence[str], first: str, num_groups: int, rows: int) -> str:
        """Where this block is: `h` counts the leading axes, `first` is the first of its rows; where operands begin."""
        used = [*names, "mask"] if "mask" in self.operands else list(names)
        strides = {name: self.operands[name].strides[: len(self.leading)] for name in used}
        nest = Nest(self.leading, strides)
        start, coordinates = nest.start("h")
        begins = "\n".join([f"const i64 o_{name} = {nest.at(name, coordinates)};" for name in used])
        d = self.d
        return f"""const u32 lane = {d.thread}.x % {WARP}u, warp = {d.thread}.x / {WARP}u;
const u32 h = {d.block}.x / {num_groups}u, {first} = {d.block}.x % {num_groups}u * {rows}u;
{start}
{begins}"""

    def at(self, name: str, row: str, column: str | None) -> str:
        x = self.operands[name]
        strides = x.strides[len(self.leading) :]
        places = [f"(i64)({row}) * {strides[0]}"] + ([f"(i64)({column}) * {strides[1]}"] if column else [])
        return f"{name}[o_{name} + {' + '.join(places)}]"

    def rounded(self, value: str, like: str) -> str:
        """A value with the precision of an operand."""
        x = self.operands[like]
        return x.load(x.store(value)) if x.dtype == "bf16" else value

    def tile(self, name: str, rows: int, first: str, num_warps: int) -> str:
        """Statements that load rows of an operand into its tile, with zeros around it."""
        x, d = self.operands[name], self.d
        count, size = x.shape[-2], x.shape[-1]
        columns = -(-size // SIDE) * SIDE
        value = x.load(self.at(name, "row", "c"))
        if name == "q" and self.scales_queries:
            value = f"{value} * {self.number()}"
        if name == "g":
            value = self.rounded(value, "v")
        return f"""for (u32 n = {d.thread}.x; n < {rows * columns}u; n += {num_warps * WARP}u) {{
const u32 r = n / {columns}u, c = n % {columns}u, row = {first} + r;
tile_{name}[r][c] = row < {count}u && c < {size}u ? {value} : 0.0f;
}}"""

    def number(self) -> str:
        """The scale, exact to the bit."""
        return self.d.scalar(self.scale, "f32")

    def hidden(self, query: str, key: str) -> str:
        """Whether a query does not see a key."""
        tests = [f"{query} >= {self.num_queries}u", f"{key} >= {self.num_keys}u"]
        if self.causal:
            tests.append(f"(int){key} > (int){query} + {self.num_keys - self.num_queries}")
        if "mask" in self.operands:
            tests.append(f"!{self.operands['mask'].load(self.at('mask', query, key))}")
        return " || ".join(tests)

    def score(self, place: str) -> str:
        return place if self.scales_queries else f"{place} * {self.number()}"

    def scores(self, made: str, own: str, other: str, side: int, columns: int) -> str:
        """A product of 8 rows of a tile with all rows of another, left in the shared array `made` of this warp."""
        count = columns // SIDE
        return f"""{{
simdgroup_float8x8 sum[{count}];
#pragma unroll
for (int b = 0; b < {count}; ++b) sum[b] = make_filled_simdgroup_matrix<float, {SIDE}, {SIDE}>(0.0f);
for (int n = 0; n < {side}; ++n) {{
simdgroup_float8x8 x, y;
simdgroup_load(x, &tile_{own}[warp * {SIDE}u][n * {SIDE}], {side * SIDE + PAD});
#pragma unroll
for (int b = 0; b < {count}; ++b) {{
simdgroup_load(y, &tile_{other}[b * {SIDE}][n * {SIDE}], {side * SIDE + PAD}, ulong2(0, 0), true);
simdgroup_multiply_accumulate(sum[b], x, y, sum[b]);
}}
}}
#pragma unroll
for (int b = 0; b < {count}; ++b) simdgroup_store(sum[b], &{made}[warp][b * {SIDE}], {columns + PAD});
}}"""

    def added(self, sums: str, weights: str, tile: str, side: int, columns: int) -> str:
        """Weights of 8 rows times all rows of a tile, added to sums."""
        return f"""for (int b = 0; b < {columns // SIDE}; ++b) {{
simdgroup_float8x8 x, y;
simdgroup_load(x, &{weights}[warp][b * {SIDE}], {columns + PAD});
#pragma unroll
for (int n = 0; n < {side}; ++n) {{
simdgroup_load(y, &tile_{tile}[b * {SIDE}][n * {SIDE}], {side * SIDE + PAD});
simdgroup_multiply_accumulate({sums}[n], x, y, {sums}[n]);
}}
}}"""

    def stop(self, rows: int) -> str:
        """Where the keys end that a block of queries sees."""
        keys = self.num_keys
        if not self.causal:
            return f"const u32 stop = {keys}u;"
        return f"""const int reach = (int)first + {rows + keys - self.num_queries};
const u32 stop = reach < 0 ? 0u : reach < {keys} ? (u32)reach : {keys}u;"""

    def zeros(self, sums: str, side: int) -> str:
        return f"""simdgroup_float8x8 {sums}[{side}];
#pragma unroll
for (int n = 0; n < {side}; ++n) {sums}[n] = make_filled_simdgroup_matrix<float, {SIDE}, {SIDE}>(0.0f);"""

    def written(self, name: str, sums: str, side: int, first: str, through: str, value: str, before: str = "") -> str:
        """Sums of 8 rows as results, through a shared array of this warp; `{}` in `value` is the sum."""
        x, d = self.operands[name], self.d
        result = x.store(value.format(f"{through}[warp][place]"))
        own = f"const u32 place = lane + e * {WARP}u, row = {first} + warp * {SIDE}u + place / {SIDE}u;"
        return f"""#pragma unroll
for (int n = 0; n < {side}; ++n) {{
{d.warp_barrier()}
simdgroup_store({sums}[n], &{through}[warp][0], {SIDE});
{d.warp_barrier()}
#pragma unroll
for (int e = 0; e < {SIDE * SIDE // WARP}; ++e) {{
{own}
const u32 c = n * {SIDE} + place % {SIDE}u;
{before}
if (row < {x.shape[-2]}u && c < {x.shape[-1]}u) {self.at(name, "row", "c")} = {result};
}}
}}"""

    # The kernels.

    def forward(self) -> Launch:
        d, names, rows = self.d, ("q", "k", "v", "out", "lse"), QUERIES
        columns = 16 if self.is_small else 8
        warps, groups = rows // SIDE, -(-self.num_queries // rows)
        each, nothing = columns // 4, d.lowest["f32"]
        text = f"""{self.tiles("q", "kv", rows, columns)}
{self.opening(names, "first", groups, rows)}
const u32 query = first + warp * {SIDE}u + lane / 4u, place = lane / 4u * {columns + PAD}u + lane % 4u;
{self.stop(rows)}
{self.tile("q", rows, "first", warps)}
for (u32 n = lane; n < {SIDE * SIDE}u; n += {WARP}u) slope[warp][n] = 0.0f;
{self.zeros("sums", self.width)}
float top = {nothing}, total = 0.0f;
for (u32 start = 0; start < stop; start += {columns}u) {{
{self.tile("k", columns, "start", warps)}
{self.tile("v", columns, "start", warps)}
{d.barrier()}
{self.scores("score", "q", "k", self.depth, columns)}
{d.warp_barrier()}
float here[{each}], best = top;
#pragma unroll
for (int j = 0; j < {each}; ++j) {{
const u32 key = start + lane % 4u + j * 4u;
here[j] = {self.hidden("query", "key")} ? {nothing} : {self.score("score[warp][place + j * 4u]")};
best = here[j] > best ? here[j] : best;
}}
for (int mask = 1; mask < 4; mask *= 2) {{
const float other = shuffle_xor(best, mask);
best = other > best ? other : best;
}}
const float turned = best == {nothing} ? 1.0f : exp_(top - best);
float part = 0.0f;
#pragma unroll
for (int j = 0; j < {each}; ++j) {{
const float weight = here[j] == {nothing} ? 0.0f : exp_(here[j] - best);
part += weight;
score[warp][place + j * 4u] = {self.rounded("weight", "v")};
}}
for (int mask = 1; mask < 4; mask *= 2) part += shuffle_xor(part, mask);
total = total * turned + part;
top = best;
if (lane % 4u == 0u) slope[warp][lane / 4u * {SIDE + 1}u] = turned;
{d.warp_barrier()}
simdgroup_float8x8 diagonal, product;
simdgroup_load(diagonal, &slope[warp][0], {SIDE});
#pragma unroll
for (int n = 0; n < {self.width}; ++n) {{
simdgroup_multiply(product, diagonal, sums[n]);
sums[n] = product;
}}
{self.added("sums", "score", "v", self.width, columns)}
{d.barrier()}
}}
const float divisor = total >= 1e-30f || total != total ? total : 1e-30f;
{self.written("out", "sums", self.width, "first", "slope", "{} / by",
              f"const float by = simd_shuffle(divisor, (u16)(place / {SIDE}u * 4u));")}
if (lane % 4u == 0u && query < {self.num_queries}u) {self.at("lse", "query", None)} = top + log_(total);"""
        return self.launch("attention", names, text, groups, warps)

    def delta(self) -> Launch:
        """Σ out·d_out, a warp to each query."""
        d, rows = self.d, BLOCK // WARP
        count = prod(self.leading) * self.num_queries
        out, g = self.operands["out"], self.operands["g"]
        nest = Nest((*self.leading, self.num_queries), {"out": out.strides[:-1], "g": g.strides[:-1]})
        start, coordinates = nest.start("row")
        sides = [
            x.load(f"{name}[{nest.at(name, coordinates)} + (i64)c * {x.strides[-1]}]")
            for name, x in (("out", out), ("g", g))
        ]
        text = f"""const u32 lane = {d.thread}.x % {WARP}u, row = {d.block}.x * {rows}u + {d.thread}.x / {WARP}u;
if (row >= {count}u) return;
{start}
float sum = 0.0f;
for (u32 c = lane; c < {out.shape[-1]}u; c += {WARP}u) sum += {sides[0]} * {sides[1]};
for (int mask = 16; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
if (lane == 0u) delta[row] = sum;"""
        pointers = [out.pointer("out"), g.pointer("g"), workspace_pointer(0, "delta", "float")]
        return kernel(d, "delta", pointers, text, (-(-count // rows), 1, 1))

    def gradient(self, others: str, columns: int, keep_weights: bool) -> str:
        """From the scores in `score` and the products in `slope`, their gradient in `score`; weights in `slope`."""
        weights = f"slope[warp][place + j * 4u] = {self.rounded('weight', 'v')};" if keep_weights else ""
        return f"""#pragma unroll
for (int j = 0; j < {columns // 4}; ++j) {{
{others}
float weight = 0.0f;
if (!({self.hidden("query", "key")})) {{
const float sum = {self.operands["lse"].load(self.at("lse", "query", None))};
if (sum != {self.d.lowest["f32"]}) weight = exp_({self.score("score[warp][place + j * 4u]")} - sum);
}}
const float less = query < {self.num_queries}u ? delta[h * {self.num_queries}u + query] : 0.0f;
const float made = weight * (slope[warp][place + j * 4u] - less);
score[warp][place + j * 4u] = {self.rounded("made", "q")};
{weights}
}}"""

    def tiles(self, many: str, few: str, rows: int, columns: int) -> str:
        """Declares tiles, `rows` of many operands and `columns` of others, and two arrays of each warp."""
        sizes = {"q": self.depth, "k": self.depth, "v": self.width, "g": self.width}
        tall = [f"tile_{name}[{rows}][{sizes[name] * SIDE + PAD}]" for name in many]
        flat = [f"tile_{name}[{columns}][{sizes[name] * SIDE + PAD}]" for name in few]
        size = max(SIDE * SIDE, SIDE * (columns + PAD))
        parts = [f"{name}[{rows // SIDE}][{size}]" for name in ("score", "slope")]
        return self.d.shared("float", *tall, *flat, *parts)

    def by_queries(self) -> Launch:
        """dq: a block to some queries, which walks along the keys that they see."""
        d, names = self.d, ("q", "k", "v", "lse", "g", "dq")
        rows, columns = (32, 16) if self.is_small else (16, 8)
        warps, groups = rows // SIDE, -(-self.num_queries // rows)
        text = f"""{self.tiles("qg", "kv", rows, columns)}
{self.opening(names, "first", groups, rows)}
const u32 query = first + warp * {SIDE}u + lane / 4u, place = lane / 4u * {columns + PAD}u + lane % 4u;
{self.stop(rows)}
{self.tile("q", rows, "first", warps)}
{self.tile("g", rows, "first", warps)}
{self.zeros("sums", self.depth)}
for (u32 start = 0; start < stop; start += {columns}u) {{
{self.tile("k", columns, "start", warps)}
{self.tile("v", columns, "start", warps)}
{d.barrier()}
{self.scores("score", "q", "k", self.depth, columns)}
{self.scores("slope", "g", "v", self.width, columns)}
{d.warp_barrier()}
{self.gradient("const u32 key = start + lane % 4u + j * 4u;", columns, keep_weights=False)}
{d.warp_barrier()}
{self.added("sums", "score", "k", self.depth, columns)}
{d.barrier()}
}}
{self.written("dq", "sums", self.depth, "first", "score", "{} * " + self.number())}"""
        return self.launch("attention_queries", names, text, groups, warps)

    def by_keys(self) -> Launch:
        """dk and dv: a block to some keys, which walks along the queries that see them."""
        d, names = self.d, ("q", "k", "v", "lse", "g", "dk", "dv")
        rows, columns = (32, 16) if self.is_small else (16, 8)
        warps, groups = rows // SIDE, -(-self.num_keys // rows)
        begin = "const u32 begin = 0u;"
        if self.causal:
            sees = f"(int)first - {self.num_keys - self.num_queries}"
            begin = f"const u32 begin = {sees} > 0 ? (u32)({sees}) / {columns}u * {columns}u : 0u;"
        times = "{}" if self.scales_queries else "{} * " + self.number()
        text = f"""{self.tiles("kv", "qg", rows, columns)}
{self.opening(names, "first", groups, rows)}
const u32 key = first + warp * {SIDE}u + lane / 4u, place = lane / 4u * {columns + PAD}u + lane % 4u;
{begin}
{self.tile("k", rows, "first", warps)}
{self.tile("v", rows, "first", warps)}
{self.zeros("sums_k", self.depth)}
{self.zeros("sums_v", self.width)}
for (u32 start = begin; start < {self.num_queries}u; start += {columns}u) {{
{self.tile("q", columns, "start", warps)}
{self.tile("g", columns, "start", warps)}
{d.barrier()}
{self.scores("score", "k", "q", self.depth, columns)}
{self.scores("slope", "v", "g", self.width, columns)}
{d.warp_barrier()}
{self.gradient("const u32 query = start + lane % 4u + j * 4u;", columns, keep_weights=True)}
{d.warp_barrier()}
{self.added("sums_k", "score", "q", self.depth, columns)}
{self.added("sums_v", "slope", "g", self.width, columns)}
{d.barrier()}
}}
{self.written("dk", "sums_k", self.depth, "first", "score", times)}
{self.written("dv", "sums_v", self.width, "first", "score", "{}")}"""
        return self.launch("attention_keys", names, text, groups, warps)
