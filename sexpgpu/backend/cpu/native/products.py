"""Products of f32 matrices: tiles of the result in registers, over panels of an operand that is packed first.

A tile is a few rows by two vectors. Every element of a result is the sum of its products in order, fused multiply-adds
in stretches of `DEPTH`, whatever pieces a product is cut into; so the number of threads changes no bit.
Source: Goto and van de Geijn, Anatomy of high-performance matrix multiplication, 2008; the loops are theirs.

Flow: `lowering` asks for the pieces of a product; `attention` and `convolution` call `multiply` and `tile` themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod

import numpy as np

from sexpgpu.ir.graph import Node
from sexpgpu.ir.ops.contract import letter_sizes, letters
from sexpgpu.plan.layout import Layout, Strides

TILE_ROWS, TILE_COLUMNS = 12, 32
"""Of the largest tile, that of the widest vectors."""
DEPTH, COLUMNS = 384, 512
"""How deep and how wide the packed part of the second operand is: half of the second level of a cache."""
SCRATCH_BYTES = 4 * (DEPTH * (COLUMNS + TILE_ROWS) + 4 * TILE_COLUMNS)
"""What a thread needs to multiply."""
LEAST_WORK = 1_000_000
"""Floating-point operations of a piece, at least."""
MULTIPLIES, PACKS_ROWS, PACKS_COLUMNS = 1 / 16, 0.4, 0.25
"""What a multiplication and an addition cost in cycles, about, and to pack an element of either operand."""
FEW = 1.02
"""How much longer a product takes, about, in fewer than two pieces a thread: none can make up for another."""
CUTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


def _mixed() -> str:
    """The stages of turning V vectors of V elements: `MIX` takes lanes of two vectors by number."""
    parts = []
    for width in (16, 8, 4):
        stages = []
        step = width // 2
        while step:
            evens = ", ".join([str(width + e - step if e & step else e) for e in range(width)])
            odds = ", ".join([str(width + e if e & step else e + step) for e in range(width)])
            stages.append(
                f"    EACH for (int i = 0; i < {width}; ++i) if (!(i & {step})) {{\n"
                f"        const vf a = r[i], b = r[i + {step}];\n"
                f"        r[i] = MIX(a, b, {evens});\n        r[i + {step}] = MIX(a, b, {odds});\n    }}"
            )
            step //= 2
        parts.append("\n".join([f"#if V == {width}", *stages, "#endif"]))
    return "\n".join(parts)


COMMON = (
    f"""
#ifndef TILE_ROWS
#define DEPTH {DEPTH}
#define COLUMNS {COLUMNS}
"""
    r"""
/* As many as registers hold; a multiple of V, or not more than it, since lines are packed V at a time. */
#if V == 16
#define TILE_ROWS 12
#elif V == 8
#define TILE_ROWS 6
#elif defined(__aarch64__)
#define TILE_ROWS 8
#else
#define TILE_ROWS 4
#endif
#define TILE_COLUMNS (2 * V)
#if defined(__clang__)
#define MIX(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define MIX(a, b, ...) __builtin_shuffle(a, b, (vi){__VA_ARGS__})
#endif
/* Lane e of vector i becomes lane i of vector e. */
F void turn(vf* r) {
"""
    + _mixed()
    + r"""
}
/* `count` lines, of which element p of line l is x[l * line + p * step], as out[p * width + l]; lines that are missing
   up to `width` are zeros. Up to V elements behind the end are overwritten. */
static __attribute__((noinline)) void panel(
    const float* x, i64 line, i64 step, int count, i64 depth, int width, float* out
) {
    i64 p = 0;
    if (count == width && line == 1 && step > 0) {
        const int over = width % V ? V - width % V : 0;
        for (; p < depth && (depth - 1 - p) * step >= over; ++p)
            for (int e = 0; e < width; e += V) put_f32(out + p * width + e, raw_f32(x + p * step + e));
    } else if (count == width && step == 1) {
        for (; p + V <= depth; p += V)
            for (int e = 0; e < width; e += V) {
                vf r[V];
                EACH for (int i = 0; i < V; ++i) {
                    r[i] = SPLAT(vf, 0.0f);
                    if (e + i < width) r[i] = raw_f32(x + (e + i) * line + p);
                }
                turn(r);
                EACH for (int i = 0; i < V; ++i) put_f32(out + (p + i) * width + e, r[i]);
            }
    }
    for (; p < depth; ++p) {
        for (int e = 0; e < count; ++e) out[p * width + e] = x[e * line + p * step];
        for (int e = count; e < width; ++e) out[p * width + e] = 0.0f;
    }
}
/* z = alpha a b, or z + alpha a b: `height` rows of a, of which element p of row i is a[i * row + p * step], by the
   first `columns` columns of b, whose rows of `width` vectors lie `step_b` apart. */
F void tile_of(
    const int height, const int width, const i64 row, const i64 step, i64 depth, const float* a, const float* b,
    i64 step_b, float alpha, int add, int columns, float* z, i64 step_z
) {
    /* Each loop over rows has one level, which compilers unroll into registers. */
    const int two = width == 2;
    vf s[TILE_ROWS][2];
    EACH for (int i = 0; i < height; ++i) {
        s[i][0] = SPLAT(vf, 0.0f);
        __builtin_prefetch(z + i * step_z, 1);
        if (two) { s[i][1] = SPLAT(vf, 0.0f); __builtin_prefetch(z + i * step_z + V, 1); }
    }
    /* Addresses are worked out again after the loop, and hold no register in it. */
    __asm__("" : "+r"(z));
    const float *a3 = a + 3 * row, *a6 = a + 6 * row, *a9 = a + 9 * row;
    for (i64 p = 0; p < depth; ++p, b += step_b, a += step, a3 += step, a6 += step, a9 += step) {
        const vf b0 = raw_f32(b), b1 = two ? raw_f32(b + V) : b0;
        EACH for (int i = 0; i < height; ++i) {
            /* From the nearest of four pointers: that far the processor adds for nothing. */
            const float* const from = i < 3 ? a + i * row : i < 6 ? a3 + (i - 3) * row
                                    : i < 9 ? a6 + (i - 6) * row : a9 + (i - 9) * row;
            const vf x = SPLAT(vf, *from);
            s[i][0] = fused(x, b0, s[i][0]);
            if (two) s[i][1] = fused(x, b1, s[i][1]);
        }
    }
    const vf by = SPLAT(vf, alpha);
    if (columns == width * V && add) {
        EACH for (int i = 0; i < height; ++i) {
            float* const to = z + i * step_z;
            put_f32(to, fused(s[i][0], by, raw_f32(to)));
            if (two) put_f32(to + V, fused(s[i][1], by, raw_f32(to + V)));
        }
        return;
    }
    if (columns == width * V) {
        EACH for (int i = 0; i < height; ++i) {
            put_f32(z + i * step_z, s[i][0] * by);
            if (two) put_f32(z + i * step_z + V, s[i][1] * by);
        }
        return;
    }
    float made[TILE_ROWS][TILE_COLUMNS];
    EACH for (int i = 0; i < height; ++i) {
        put_f32(made[i], s[i][0]);
        if (two) put_f32(made[i] + V, s[i][1]);
    }
    for (int i = 0; i < height; ++i)
        for (int e = 0; e < columns; ++e) {
            float* const to = z + i * step_z + e;
            *to = add ? fused(SPLAT(vf, made[i][e]), by, SPLAT(vf, *to))[0] : made[i][e] * alpha;
        }
}
#define TILE_OF(name, height, width, row, step) \
static __attribute__((noinline)) void name( \
    i64 depth, const float* a, const float* b, i64 step_b, float alpha, int add, int columns, float* z, i64 step_z \
) { tile_of(height, width, row, step, depth, a, b, step_b, alpha, add, columns, z, step_z); }
/* Tiles of every height and width as a function NAME: rows of a lie `row` apart, and the elements of one `full`, `four`
   or `one` apart in tiles of TILE_ROWS, 4 and 1. */
#define TILES(name, row, full, four, one) \
TILE_OF(name##_full, TILE_ROWS, 2, row, full) \
TILE_OF(name##_4, 4, 2, row, four) \
TILE_OF(name##_1, 1, 2, row, one) \
TILE_OF(name##_full_narrow, TILE_ROWS, 1, row, full) \
TILE_OF(name##_4_narrow, 4, 1, row, four) \
TILE_OF(name##_1_narrow, 1, 1, row, one) \
F void name( \
    int height, i64 depth, const float* a, const float* b, i64 step_b, float alpha, int add, int columns, float* z, \
    i64 step_z \
) { \
    (columns > V ? height == TILE_ROWS ? name##_full : height == 4 ? name##_4 : name##_1 \
                 : height == TILE_ROWS ? name##_full_narrow : height == 4 ? name##_4_narrow : name##_1_narrow)( \
        depth, a, b, step_b, alpha, add, columns, z, step_z); \
}

/* Rows that are packed side by side. */
TILES(tile, 1, TILE_ROWS, 4, 1)
/* Rows of a matrix as they lie, one element or one row side by side: what is not copied costs nothing. */
static __attribute__((noinline)) void tile_of_matrix(
    i64 row, i64 step, i64 depth, const float* a, const float* b, i64 step_b, float alpha, int add, float* z, i64 step_z
) {
    if (step == 1) tile_of(TILE_ROWS, 2, row, 1, depth, a, b, step_b, alpha, add, TILE_COLUMNS, z, step_z);
    else tile_of(TILE_ROWS, 2, 1, step, depth, a, b, step_b, alpha, add, TILE_COLUMNS, z, step_z);
}
/* Lines so far apart share a place in the cache. */
F int collides(i64 elements) { return elements % 1024 == 0; }
/* The rows of the next tile, where so many are left. */
F int next_height(i64 left) { return left >= TILE_ROWS ? TILE_ROWS : left >= 4 ? 4 : 1; }
/* z = alpha x y, or z + alpha x y: `rows` by `columns`, the columns of z side by side. */
static __attribute__((noinline)) void multiply(
    i64 rows, i64 columns, i64 depth, float alpha, const float* x, i64 x_row, i64 x_depth,
    const float* y, i64 y_depth, i64 y_column, int add, float* z, i64 step_z, float* scratch
) {
    float* const packed = scratch + TILE_ROWS * DEPTH + V;
    /* What is read once is read where it lies. */
    const int once = rows <= TILE_ROWS && y_column == 1;
    const int lies_well = (x_depth == 1 && !collides(x_row)) || (x_row == 1 && !collides(x_depth));
    if (!depth && !add)
        for (i64 i = 0; i < rows; ++i) for (i64 j = 0; j < columns; ++j) z[i * step_z + j] = 0.0f;
    for (i64 j = 0; j < columns; j += COLUMNS) {
        const i64 wide = columns - j < COLUMNS ? columns - j : COLUMNS;
        for (i64 p = 0; p < depth; p += DEPTH) {
            const i64 deep = depth - p < DEPTH ? depth - p : DEPTH;
            const float* const from = y + p * y_depth + j * y_column;
            const i64 whole = wide / TILE_COLUMNS * TILE_COLUMNS;
            const int last = wide - whole > V ? TILE_COLUMNS : V; /* the columns of a panel that is not whole */
            if (y_column == 1 && !once)
                /* Row by row, as memory is read fastest. */
                for (i64 d = 0; d < deep; ++d)
                    for (i64 q = 0; q < whole; q += TILE_COLUMNS) {
                        float* const to = packed + q * deep + d * TILE_COLUMNS;
                        put_f32(to, raw_f32(from + d * y_depth + q));
                        put_f32(to + V, raw_f32(from + d * y_depth + q + V));
                    }
            for (i64 q = y_column == 1 ? whole : 0; q < wide; q += TILE_COLUMNS)
                panel(from + q * y_column, y_column, y_depth, q < whole ? TILE_COLUMNS : wide - q, deep,
                      q < whole ? TILE_COLUMNS : last, packed + q * deep);
            for (i64 i = 0, height; i < rows; i += height) {
                height = next_height(rows - i);
                const float* a = x + i * x_row + p * x_depth;
                if (lies_well && height == TILE_ROWS && whole == wide) {
                    for (i64 q = 0; q < wide; q += TILE_COLUMNS)
                        tile_of_matrix(x_row, x_depth, deep, a, once ? from + q : packed + q * deep,
                                       once ? y_depth : TILE_COLUMNS, alpha, add || p, z + i * step_z + j + q, step_z);
                    continue;
                }
                if (height > 1 || x_depth != 1) {
                    panel(a, x_row, x_depth, height, deep, height, scratch);
                    a = scratch;
                }
                for (i64 q = 0; q < wide; q += TILE_COLUMNS) {
                    const int direct = once && q < whole;
                    const i64 step_b = direct ? y_depth : q < whole ? TILE_COLUMNS : last;
                    tile(height, deep, a, direct ? from + q : packed + q * deep, step_b, alpha, add || p,
                         q < whole ? TILE_COLUMNS : wide - q, z + i * step_z + j + q, step_z);
                }
            }
        }
    }
}
#endif
"""
)
TEXT = (
    COMMON
    + r"""
typedef struct { i64 rows, columns, depth, x_row, x_depth, y_depth, y_column, step_z; float *x, *y, *z; } matrices;
/* a[0] are the products. */
void products(char** a, i64 begin, i64 end, i64 piece, char* scratch) {
    for (i64 i = begin; i < end; ++i) {
        const matrices* m = (const matrices*)a[0] + i;
        multiply(m->rows, m->columns, m->depth, 1.0f, m->x, m->x_row, m->x_depth, m->y, m->y_depth, m->y_column, 0,
                 m->z, m->step_z, (float*)scratch);
    }
}
"""
)
SIZES = ("rows", "columns", "depth", "x_row", "x_depth", "y_depth", "y_column", "step_z")
MATRICES = np.dtype([(name, "i8") for name in SIZES] + [(name, "u8") for name in "xyz"])


@dataclass(frozen=True, slots=True)
class _Axes:
    """Letters of one kind, merged: sizes, and the strides of x, y and the result along each; 0 where it has none."""

    sizes: tuple[int, ...]
    x: Strides
    y: Strides
    z: Strides

    def inner(self) -> tuple[int, int, int, int]:
        """The last axis: size and strides."""
        return (self.sizes[-1], self.x[-1], self.y[-1], self.z[-1]) if self.sizes else (1, 0, 0, 0)

    def outer(self) -> _Axes:
        """All others."""
        return _Axes(self.sizes[:-1], self.x[:-1], self.y[:-1], self.z[:-1])


def products_of(
    node: Node, x: Layout, y: Layout, out: Layout, starts: tuple[int, int, int], num_threads: int
) -> np.ndarray | None:
    """The pieces of a product as rows of `MATRICES`; None where its operands are not matrices as they lie.

    starts: addresses of the first elements of x, y and the result.
    """
    spec = str(node.attrs["spec"])
    groups = letters(spec)
    types = (node.inputs[0].type, node.inputs[1].type, node.types[0])
    if groups.lone_x or groups.lone_y or any(t.dtype != "f32" or not t.size for t in types):
        return None
    sizes = letter_sizes(spec, types[0].shape, types[1].shape)

    def axes(names: str) -> _Axes:
        def strides(side: str, layout: Layout) -> Strides:
            return tuple([layout.strides[side.index(c)] if c in side else 0 for c in names])

        return _merged([sizes[c] for c in names], strides(groups.x, x), strides(groups.y, y), strides(groups.out, out))

    batch, rows, columns = axes(groups.batch), axes(groups.m), axes(groups.n)
    depths = [axes(groups.k), axes("".join(c for c in groups.y if c in groups.k))]
    depth = min(depths, key=lambda found: len(found.sizes))
    if len(depth.sizes) > 1:
        return None
    m, x_row, _, z_row = rows.inner()
    n, _, y_column, z_column = columns.inner()
    k, x_depth, y_depth, _ = depth.inner()
    x_start, y_start, z_start = starts
    others = [batch, rows.outer(), columns.outer()]
    if n > 1 and z_column != 1:
        # The result lies column by column: it is the product of the turned matrices.
        m, n, z_row, z_column = n, m, z_column, z_row
        x_row, y_column, x_depth, y_depth = y_column, x_row, y_depth, x_depth
        x_start, y_start = y_start, x_start
        others = [_Axes(o.sizes, o.y, o.x, o.z) for o in others]
    if n > 1 and z_column != 1:
        return None
    found = []
    count = prod([size for o in others for size in o.sizes])
    cuts = _cuts(m, n, k, -(-num_threads // count))
    for at_x, at_y, at_z in _places(others):
        for (row, height), (column, width) in cuts:
            found.append(
                (
                    height, width, k, x_row, x_depth, y_depth, y_column, z_row,
                    x_start + 4 * (at_x + row * x_row), y_start + 4 * (at_y + column * y_column),
                    z_start + 4 * (at_z + row * z_row + column),
                )
            )  # fmt: skip
    return np.array(found, MATRICES)


def _merged(sizes: Sequence[int], *strides: Strides) -> _Axes:
    """Axes of which one goes on where the other ends become one."""
    kept: list[tuple[int, ...]] = []
    for size, *steps in zip(sizes, *strides, strict=True):
        if size == 1:
            continue
        if kept and all(outer == inner * size for outer, inner in zip(kept[-1][1:], steps, strict=True)):
            kept[-1] = (kept[-1][0] * size, *steps)
        else:
            kept.append((size, *steps))
    columns = tuple(zip(*kept, strict=True)) or ((), (), (), ())
    return _Axes(*columns)


def _places(others: Sequence[_Axes]) -> Iterator[tuple[int, int, int]]:
    """Where x, y and the result of each product begin, in elements from the first."""
    sizes = [size for o in others for size in o.sizes]
    steps = [step for o in others for step in zip(o.x, o.y, o.z, strict=True)]
    for place in product(*map(range, sizes)):
        moved = [(i * x, i * y, i * z) for i, (x, y, z) in zip(place, steps, strict=True)]
        yield sum([m[0] for m in moved]), sum([m[1] for m in moved]), sum([m[2] for m in moved])


@lru_cache(maxsize=1024)
def _cuts(m: int, n: int, k: int, num_threads: int) -> tuple[tuple[tuple[int, int], tuple[int, int]], ...]:
    """Starts and lengths of the rows and of the columns of each piece, for as many threads.

    Each piece packs its part of both operands, and its rows again for every stretch of `COLUMNS`.
    """

    def cycles(cut: tuple[int, int]) -> float:
        pieces = prod(cut)
        height, width = -(-m // cut[0]), -(-n // cut[1])
        packing = PACKS_COLUMNS * width + PACKS_ROWS * height * -(-width // COLUMNS)
        turns = -(-pieces // num_threads) * (FEW if num_threads > 1 and pieces < 2 * num_threads else 1.0)
        return k * turns * (MULTIPLIES * height * width + packing)

    def is_worth_it(cut: tuple[int, int]) -> bool:
        long_enough = (cut[0] == 1 or m >= TILE_ROWS * cut[0]) and (cut[1] == 1 or n >= TILE_COLUMNS * cut[1])
        return prod(cut) == 1 or (long_enough and 2 * m * n * k >= prod(cut) * LEAST_WORK)

    best = min([cut for cut in product(CUTS, CUTS) if is_worth_it(cut)], key=lambda cut: (cycles(cut), prod(cut)))
    return tuple(product(_lengths(m, best[0], 4), _lengths(n, best[1], TILE_COLUMNS)))


def _lengths(size: int, parts: int, unit: int) -> list[tuple[int, int]]:
    """Starts and lengths of parts that are whole units, but for the last."""
    each = -(-size // (parts * unit)) * unit
    return [(start, min(each, size - start)) for start in range(0, size, each)]
