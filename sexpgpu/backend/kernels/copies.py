"""Texts of kernels that move bytes: single elements joined; the end of a call, whether its commits are made, and they.

Flow: the lowering of a device makes actions of them; they are compiled with the plan's kernels.
"""

from __future__ import annotations

from sexpgpu.backend.kernels.dialects import BITS, Dialect
from sexpgpu.backend.kernels.launch import BLOCK, Launch, Pointer, kernel
from sexpgpu.backend.kernels.tables import address, base_pointers, opened
from sexpgpu.ir.types import TensorType
from sexpgpu.plan.layout import Strides

MAX_BLOCKS = 1 << 16
COMMIT_BLOCKS = 48
"""Blocks for each tensor of a commit: together with a few dozen tensors they fill a card."""

TABLE = Pointer(("input", 0), "table", "u64", const=True, alone=True)
DECISION = Pointer(("input", 1), "decision", "u32", const=True, alone=True)


def _undecided(d: Dialect, guarded: bool) -> tuple[list[Pointer], str]:
    """The parameter and the statement that leave a copy out if `decision` is 0; where there may be no decision, it is
    null, or it has no parameter."""
    if d.has_null:
        return [DECISION], "if (decision != nullptr && decision[0] == 0u) return;"
    return ([DECISION], "if (decision[0] == 0u) return;") if guarded else ([], "")


def commit(d: Dialect, num_tensors: int, guarded: bool, num_buffers: int = 1) -> Launch:
    """Copies of dense tensors in one launch, if there is no decision or it says so; all starts are on 16 bytes.

    Its operands are a table of source, target and bytes, the decision if it is guarded (or null), and the starts of the
    buffers that the table tells of where addresses are no numbers.
    """
    decision, check = _undecided(d, guarded)
    wide, const_wide = d.pointer("uint4", const=False), d.pointer("uint4")
    text = f"""
{check}
{opened(d, num_buffers)}
{d.pointer("u8")} from = {address(d, "u8", f"table[3 * {d.block}.y]")};
{d.pointer("u8", const=False)} to = {address(d, "u8", f"table[3 * {d.block}.y + 1]", const=False)};
u64 bytes = table[3 * {d.block}.y + 2], wide = bytes / 16;
u64 first = {d.block}.x * (u64){d.block_size}.x + {d.thread}.x, step = (u64){d.grid}.x * {d.block_size}.x;
for (u64 n = first; n < wide; n += step) (({wide})to)[n] = (({const_wide})from)[n];
for (u64 n = 16 * wide + first; n < bytes; n += step) to[n] = from[n];
"""
    pointers = [TABLE, *decision, *base_pointers(d, num_buffers)]
    return kernel(d, "commit", pointers, text, (COMMIT_BLOCKS, num_tensors, 1))


def join(d: Dialect, num_values: int, dtype: str, num_buffers: int = 1) -> Launch:
    """Single elements side by side; its operands are a table of where they are, the output, and the starts of the
    buffers that the table tells of where addresses are no numbers."""
    word = BITS[d.item_bytes(dtype)]
    output = Pointer(("output", 0), "to", word, alone=True)
    text = f"""{opened(d, num_buffers)}
const u32 i = {d.block}.x * {BLOCK}u + {d.thread}.x;
if (i < {num_values}u) to[i] = *{address(d, word, "table[i]")};"""
    pointers = [TABLE, output, *base_pointers(d, num_buffers)]
    return kernel(d, "join", pointers, text, (-(-num_values // BLOCK), 1, 1))


def decide(d: Dialect, num_flags: int, guarded: bool) -> Launch:
    """Whether the guard holds and no fault was met, in this call or an earlier one of its chunk.

    Over so many flag records; its operands are the guard if there is one (or null), flags, decision and halt.
    """
    pointers = [
        Pointer(("input", 0), "guard", "u8", const=True, alone=True),
        Pointer(("input", 1), "flags", "u32", const=True, alone=True),
        Pointer(("output", 0), "decision", "u32", alone=True),
        Pointer(("output", 1), "halt", "u32"),
    ]
    holds = "guard == nullptr || guard[0] != 0u" if d.has_null else "guard[0] != 0u"
    if not guarded and not d.has_null:
        pointers, holds = pointers[1:], "true"
    threads = d.deciding_threads
    text = f"""
int faults = 0;
for (u32 i = {d.thread}.x; i < {num_flags}u; i += {d.block_size}.x) faults |= flags[4 * i] != 0u;
faults = {d.any_in_block("faults")};
if ({d.thread}.x != 0u) return;
if (faults) halt[0] = 1u;
decision[0] = halt[0] == 0u && ({holds});
"""
    return kernel(d, "decide", pointers, text, (1, 1, 1), (threads, 1, 1))


def commit_window(d: Dialect, type: TensorType, source: Strides, target: Strides, guarded: bool) -> Launch:
    """The commit of a tensor that is no dense range; its operands are source, target and a decision as `commit` has."""
    word, signed = BITS[d.item_bytes(type.dtype)], "long long" if d.has_null else "i64"
    decision, check = _undecided(d, guarded)
    lines = [check] * bool(check)
    lines.append(f"for (u64 n = {d.block}.x * (u64){d.block_size}.x + {d.thread}.x; n < {type.size}u{d.long_suffix}; ")
    lines.append(f"     n += (u64){d.grid}.x * {d.block_size}.x) {{")
    lines.append(f"  u64 rest = n; {signed} s = 0, t = 0;")
    lines += [_index(d, signed, *axis) for axis in zip(type.shape, source, target, strict=True)][::-1]
    lines += ["  to[t] = from[s];", "}"]
    pointers = [
        Pointer(("input", 0), "from", word, const=True, alone=True),
        Pointer(("output", 0), "to", word, alone=True),
        *decision,
    ]
    blocks = max(1, min(MAX_BLOCKS, -(-type.size // BLOCK)))
    return kernel(d, "commit_window", pointers, "\n".join(lines), (blocks, 1, 1))


def _index(d: Dialect, signed: str, size: int, source: int, target: int) -> str:
    long = d.long_suffix
    return (
        f"  {{ {signed} i = ({signed})(rest % {size}u{long}); rest /= {size}u{long}; "
        f"s += i * {source}{long}; t += i * {target}{long}; }}"
    )
