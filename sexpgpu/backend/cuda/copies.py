"""Texts of kernels that move bytes: single elements joined; the end of a call, whether its commits are made, and they.

Flow: `lowering` makes actions of them; `session` compiles them with the plan's kernels.
"""

from __future__ import annotations

from sexpgpu.backend.kernels.launch import BLOCK, Launch, Pointer, kernel
from sexpgpu.ir.types import TensorType
from sexpgpu.plan.layout import Strides

MAX_BLOCKS = 1 << 16
COMMIT_BLOCKS = 48
"""Blocks for each tensor of a commit: together with a few dozen tensors they fill a card."""

BITS = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}
"""Types that carry an element untouched, by its bytes."""

DECISION = Pointer(("input", 1), "decision", "const u32* __restrict__")

COMMIT = """
if (decision != nullptr && decision[0] == 0u) return;
const u8* from = (const u8*)table[3 * blockIdx.y];
u8* to = (u8*)table[3 * blockIdx.y + 1];
u64 bytes = table[3 * blockIdx.y + 2], wide = bytes / 16;
u64 first = blockIdx.x * (u64)blockDim.x + threadIdx.x, step = (u64)gridDim.x * blockDim.x;
for (u64 n = first; n < wide; n += step) ((uint4*)to)[n] = ((const uint4*)from)[n];
for (u64 n = 16 * wide + first; n < bytes; n += step) to[n] = from[n];
"""
"""Copies of dense tensors (source, target, bytes; all starts on 16 bytes), if `decision` says so or is not there."""

DECIDE = """
int faults = 0;
for (u32 i = threadIdx.x; i < COUNTu; i += blockDim.x) faults |= flags[4 * i] != 0u;
faults = __syncthreads_or(faults);
if (threadIdx.x != 0u) return;
if (faults) halt[0] = 1u;
decision[0] = halt[0] == 0u && (guard == nullptr || guard[0] != 0u);
"""
"""Whether the guard holds and no fault was met, in this call or an earlier one of its chunk."""


def commit(num_tensors: int) -> Launch:
    """All dense copies of a commit in one launch; its operands are the table and the decision."""
    table = Pointer(("input", 0), "table", "const u64* __restrict__")
    return kernel("commit", (table, DECISION), COMMIT, (COMMIT_BLOCKS, num_tensors, 1))


def join(num_values: int, item_bytes: int) -> Launch:
    """Single elements side by side; its operands are a table of where they are, and the output."""
    word = BITS[item_bytes]
    table = Pointer(("input", 0), "table", "const u64* __restrict__")
    output = Pointer(("output", 0), "to", f"{word}* __restrict__")
    text = f"""const u32 i = blockIdx.x * {BLOCK}u + threadIdx.x;
if (i < {num_values}u) to[i] = *(const {word}*)table[i];"""
    return kernel("join", (table, output), text, (-(-num_values // BLOCK), 1, 1))


def decide(num_flags: int) -> Launch:
    """The decision over so many flag records; its operands are guard, flags, decision and halt."""
    pointers = (
        Pointer(("input", 0), "guard", "const u8* __restrict__"),
        Pointer(("input", 1), "flags", "const u32* __restrict__"),
        Pointer(("output", 0), "decision", "u32* __restrict__"),
        Pointer(("output", 1), "halt", "u32*"),
    )
    return kernel("decide", pointers, DECIDE.replace("COUNT", str(num_flags)), (1, 1, 1))


def commit_window(type: TensorType, item_bytes: int, source: Strides, target: Strides) -> Launch:
    """The commit of a tensor that is no dense range; its operands are source, target and the decision."""
    word = BITS[item_bytes]
    lines = ["if (decision != nullptr && decision[0] == 0u) return;"]
    lines.append(f"for (u64 n = blockIdx.x * (u64)blockDim.x + threadIdx.x; n < {type.size}ull; ")
    lines.append("     n += (u64)gridDim.x * blockDim.x) {")
    lines.append("  u64 rest = n; long long s = 0, t = 0;")
    lines += [_index(*axis) for axis in zip(type.shape, source, target, strict=True)][::-1]
    lines += ["  to[t] = from[s];", "}"]
    pointers = (
        Pointer(("input", 0), "from", f"const {word}* __restrict__"),
        Pointer(("output", 0), "to", f"{word}* __restrict__"),
        DECISION,
    )
    blocks = max(1, min(MAX_BLOCKS, -(-type.size // BLOCK)))
    return kernel("commit_window", pointers, "\n".join(lines), (blocks, 1, 1))


def _index(size: int, source: int, target: int) -> str:
    return (
        f"  {{ long long i = (long long)(rest % {size}ull); rest /= {size}ull; "
        f"s += i * {source}ll; t += i * {target}ll; }}"
    )
