"""CUDA C++ as NVRTC reads it, without headers and without fast math: its words, and what prints it.

Flow: the cuda device asks for the launches of each step of a plan, compiles `module_source` of them all with
NVRTC (with `NVRTC_OPTIONS`), and enqueues them in order. The module stands for `printer.Printer` of this dialect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sexpgpu.backend.kernels.cuda_prelude import PRELUDE
from sexpgpu.backend.kernels.dialects import Dialect
from sexpgpu.backend.kernels.printer import Printer
from sexpgpu.ir.types import NUMPY_DTYPES

NVRTC_OPTIONS = ("--std=c++17", "--fmad=false", "--diag-suppress=177")
"""What the texts are written for, beside the architecture. 177 tells of names that a text does not use."""


@dataclass(frozen=True, eq=False)
class Cuda(Dialect):
    """The words of CUDA C++."""

    def kernel(self, parameters: Sequence[tuple[str, str, bool, bool]], table: str, body: str, num_threads: int) -> str:
        taken = [
            f"{self.pointer(spelt, const)}{' __restrict__' if alone else ''} {name}"
            for name, spelt, const, alone in parameters
        ]
        body = f"{table}\n{body}" if table else body
        bounds = f"__launch_bounds__({num_threads})"
        return f'extern "C" __global__ void {bounds} @({", ".join(taken)}) {{\n{body}\n}}\n'

    def table(self, spelt: str, elements: Sequence[str]) -> str:
        return f"static const {spelt} table[{len(elements)}] = {{{', '.join(elements)}}};"

    def pointer(self, spelt: str, const: bool = True) -> str:
        return f"{'const ' if const else ''}{spelt}*"

    def shared(self, spelt: str, *arrays: str) -> str:
        return f"__shared__ {spelt} {', '.join(arrays)};"

    def get(self, place: str, shared: bool = False) -> str:
        return place

    def put(self, place: str, record: str, shared: bool = False) -> str:
        return f"{place} = {record};"

    def barrier(self, device: bool = False) -> str:
        return "__syncthreads();"

    def warp_barrier(self) -> str:
        return "__syncwarp();"

    def shuffle_up(self, value: str, away: str) -> str:
        return f"__shfl_up_sync(0xffffffffu, {value}, {away})"

    def ballot(self, test: str) -> str:
        return f"__ballot_sync(0xffffffffu, {test})"

    def match(self, value: str) -> str:
        return f"__match_any_sync(0xffffffffu, {value})"

    def count_bits(self, bits: str) -> str:
        return f"__popc({bits})"

    def add_shared(self, place: str, number: str) -> str:
        return f"atomicAdd(&{place}, {number});"

    def any_in_block(self, number: str) -> str:
        return f"__syncthreads_or({number})"

    def raise_flag(self, place: str, value: str | None) -> str:
        return f"raise_flag(flag, {place}, {value or 0});"


CUDA = Cuda(
    name="cuda",
    prelude=PRELUDE,
    memory=NUMPY_DTYPES,
    registers={"f32": "float", "bf16": "float", "f64": "double", "i32": "int", "i64": "i64", "bool": "bool"},
    storage={"f32": "float", "bf16": "u16", "f64": "double", "i32": "int", "i64": "i64", "bool": "u8"},
    unsigned={"f32": "float", "bf16": "float", "f64": "double", "i32": "u32", "i64": "u64", "bool": "int"},
    loads={"bf16": "from_bf16({})", "bool": "({} != 0)"},
    stores={"bf16": "to_bf16({})", "bool": "(u8)({})"},
    lowest={"f32": "__uint_as_float(0xff800000u)", "f64": "__longlong_as_double(0xfff0000000000000ll)",
            "i32": "(-2147483647 - 1)", "i64": "(-9223372036854775807ll - 1)"},
    highest={"f32": "__uint_as_float(0x7f800000u)", "f64": "__longlong_as_double(0x7ff0000000000000ll)",
             "i32": "2147483647", "i64": "9223372036854775807ll"},
    literals={"f32": "__uint_as_float({number:#x}u)", "bf16": "from_bf16({number:#x})", "bool": "({number} != 0)",
              "f64": "__longlong_as_double({number:#x}ull)", "i32": "(int)({number}ll)", "i64": "(i64)({number}ull)"},
    draws={"random-uniform": "uniform", "random-normal": "normal"},
    suffix={"f32": "f", "bf16": "f"},
    thread="threadIdx", block="blockIdx", block_size="blockDim", grid="gridDim",
    long_suffix="ll", deciding_threads=256,
    has_null=True, has_addresses=True, has_wide_atomics=True, has_matrices=False,
)  # fmt: skip
"""The dialect of the cuda device."""

PRINTER = Printer(CUDA)
print_step = PRINTER.print_step
print_copy = PRINTER.print_copy
print_group = PRINTER.print_group
print_leaves = PRINTER.print_leaves
workspace_bytes = PRINTER.workspace_bytes
workspace_bound = PRINTER.workspace_bound
module_source = PRINTER.module_source
