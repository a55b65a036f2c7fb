"""Metal Shading Language 2.4, which macOS 12 has, without fast math: its words, and what prints it.

Flow: the metal device asks for the launches of each step of a plan, compiles `module_source` of them all at run time,
and encodes them in order. The module stands for `printer.Printer` of this dialect.

A launch: operand n is buffer n of the kernel `launch.name`, bound with the offset of its layout; `launch.grid` counts
threadgroups, `launch.block` the threads of one. Nothing else is bound: sizes and constants stand in the text.

A bf16 is held as a rounded f32, an integer as a `long`, a bool as a byte; arithmetic of an i32 is that of 32 bits.
There is no f64.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sexpgpu.backend.kernels.dialects import Dialect
from sexpgpu.backend.kernels.msl_prelude import PRELUDE
from sexpgpu.backend.kernels.printer import Printer
from sexpgpu.ir.opdef import Template

BUILT_IN = {
    "thread_at": "thread_position_in_threadgroup",
    "group_at": "threadgroup_position_in_grid",
    "group_size": "threads_per_threadgroup",
    "num_groups": "threadgroups_per_grid",
}
DECIMAL = re.compile(r"(?<![\w.])\d+\.\d*(?![\w.])")
SHARED = "threadgroup "


@dataclass(frozen=True, eq=False)
class Msl(Dialect):
    """The words of Metal."""

    def _fill(self, template: Template, dtype: str, **names: str) -> str:
        # A number without a suffix would be a double.
        return DECIMAL.sub(r"\g<0>f", super()._fill(template, dtype, **names))

    def kernel(self, parameters: Sequence[tuple[str, str, bool, bool]], table: str, body: str, num_threads: int) -> str:
        taken = [
            f"{self.pointer(spelt, const)} {name} [[buffer({n})]]"
            for n, (name, spelt, const, _) in enumerate(parameters)
        ]
        words = set(re.findall(r"\w+", body))
        taken += [f"uint3 {name} [[{attribute}]]" for name, attribute in BUILT_IN.items() if name in words]
        # Arrays of a threadgroup are declared in the outermost block of a kernel.
        lines = body.splitlines()
        lines = [line for line in lines if line.startswith(SHARED)] + [
            line for line in lines if not line.startswith(SHARED)
        ]
        if table:
            spelt = table.split("@")[0]
            lines = [f"{spelt}* const table = @_table;", *lines]
        body = "\n".join(lines)
        limit = f"[[max_total_threads_per_threadgroup({num_threads})]]"
        return f"{table}{limit}\nkernel void @({', '.join(taken)}) {{\n{body}\n}}\n"

    def table(self, spelt: str, elements: Sequence[str]) -> str:
        return f"constant {spelt} @_table[{len(elements)}] = {{{', '.join(elements)}}};\n"

    def pointer(self, spelt: str, const: bool = True) -> str:
        return f"{'const ' if const else ''}device {spelt}*"

    def shared(self, spelt: str, *arrays: str) -> str:
        return "\n".join([f"{SHARED}{spelt} {array};" for array in arrays])

    def get(self, place: str, shared: bool = False) -> str:
        return f"{'get_shared' if shared else 'get'}(&{place})"

    def put(self, place: str, record: str, shared: bool = False) -> str:
        return f"{'put_shared' if shared else 'put'}(&{place}, {record});"

    def barrier(self, device: bool = False) -> str:
        also = "mem_flags::mem_device | " if device else ""
        return f"threadgroup_barrier({also}mem_flags::mem_threadgroup);"

    def warp_barrier(self) -> str:
        return "simdgroup_barrier(mem_flags::mem_threadgroup);"

    def shuffle_up(self, value: str, away: str) -> str:
        return f"simd_shuffle_up({value}, (u16){away})"

    def ballot(self, test: str) -> str:
        return f"ballot({test})"

    def match(self, value: str) -> str:
        return f"match({value})"

    def count_bits(self, bits: str) -> str:
        return f"(int)popcount({bits})"

    def add_shared(self, place: str, number: str) -> str:
        counter = f"(threadgroup atomic_int*)&{place}"
        return f"atomic_fetch_add_explicit({counter}, {number}, memory_order_relaxed);"

    def any_in_block(self, number: str) -> str:
        return f"any_of({number})"

    def raise_flag(self, place: str, value: str | None) -> str:
        return f"raise_flag(flag, {place});" if value is None else f"raise_noted(flag, noted, {place}, {value});"


MSL = Msl(
    name="metal",
    prelude=PRELUDE,
    memory={"f32": np.dtype(np.float32), "bf16": np.dtype(np.float32), "i32": np.dtype(np.int64),
            "i64": np.dtype(np.int64), "bool": np.dtype(np.bool_)},
    registers={"f32": "float", "bf16": "float", "i32": "int", "i64": "i64", "bool": "bool"},
    storage={"f32": "float", "bf16": "float", "i32": "i64", "i64": "i64", "bool": "u8"},
    unsigned={"f32": "float", "bf16": "float", "i32": "u32", "i64": "u64", "bool": "int"},
    loads={"i32": "(int)({})", "bool": "({} != 0)"},
    stores={"bf16": "round_bf16({})", "i32": "(i64)({})", "bool": "(u8)({})"},
    lowest={"f32": "as_type<float>(0xff800000u)", "i32": "(-2147483647 - 1)", "i64": "(-9223372036854775807l - 1)"},
    highest={"f32": "as_type<float>(0x7f800000u)", "i32": "2147483647", "i64": "9223372036854775807l"},
    literals={"f32": "as_type<float>({number:#x}u)", "bf16": "as_type<float>({number:#x}u << 16)",
              "bool": "({number} != 0)", "i32": "(int)({number}l)", "i64": "(i64)({number}ul)"},
    draws={"random-uniform": "uniform_of", "random-normal": "normal_of"},
    suffix={"f32": "_", "bf16": "_"},
    thread="thread_at", block="group_at", block_size="group_size", grid="num_groups",
    long_suffix="l", deciding_threads=32,
    has_null=False, has_addresses=False, has_wide_atomics=False, has_matrices=True,
)  # fmt: skip
"""The dialect of the metal device."""

PRINTER = Printer(MSL)
print_step = PRINTER.print_step
print_copy = PRINTER.print_copy
print_group = PRINTER.print_group
print_leaves = PRINTER.print_leaves
print_attention = PRINTER.print_attention
workspace_bytes = PRINTER.workspace_bytes
workspace_bound = PRINTER.workspace_bound
module_source = PRINTER.module_source
