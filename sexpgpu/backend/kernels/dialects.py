"""How types, folds, draws, threads and memory are spelt in a dialect, and the only place with casts.

Flow: printers ask for types, for the expression of a Map, for the pieces of a fold, for a draw, for barriers and shared
arrays. The dialects are `cuda.CUDA` and `msl.MSL`. Templates are those of `sexpgpu.ir.opdef.Template`.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sexpgpu.ir.graph import Node
from sexpgpu.ir.opdef import OPS, Template
from sexpgpu.ir.ops.arithmetic import LARGER, SMALLER
from sexpgpu.ir.types import NUMPY_DTYPES

KINDS = {"f32": "float", "f64": "float", "bf16": "float", "i32": "int", "i64": "int", "bool": "bool"}
BITS = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}
"""Types that carry an element untouched, by its bytes."""


@dataclass(frozen=True, slots=True)
class Fold:
    """A reduction: the type of its state, its neutral element, and how an element enters and a result leaves.

    `{v}` is an element, `{r}` its index along the reduced axes, `{p}` and `{q}` are states.
    """

    state: Template
    identity: Template
    combine: Template
    lift: Template = "{v}"
    result: Template = "{p}"


SCANS = {"cumsum": "sum", "cumprod": "prod", "cummax": "max"}
SCATTERS = {"add": "add", "max": "maximum", "min": "minimum"}


@dataclass(frozen=True, eq=False)
class Dialect(ABC):
    """One dialect: its types, its folds and draws, and its words for threads and memory.

    name: for messages. prelude: what every unit begins with.
    memory: how an element lies in the device's memory, by IR dtype. Types are by IR dtype too: registers, of a value
    that is computed with; storage, of one in memory; unsigned, of arithmetic that wraps. loads, stores: from memory
    into registers and back. suffix: of the functions of a type.
    thread, block, block_size, grid: where a thread is in its block, which block it is, how many of each there are: with
    `.x`, `.y` and `.z`.
    deciding_threads: see `any_in_block`.
    has_null: whether pointers may be null. has_addresses: whether a table may hold addresses. has_wide_atomics: whether
    there is an atomic maximum of 64 bits. has_matrices: whether a warp multiplies matrices of 8 x 8.
    """

    name: str
    prelude: str
    memory: Mapping[str, np.dtype[Any]]
    registers: Mapping[str, str]
    storage: Mapping[str, str]
    unsigned: Mapping[str, str]
    loads: Mapping[str, str]
    stores: Mapping[str, str]
    lowest: Mapping[str, str]
    highest: Mapping[str, str]
    literals: Mapping[str, str]
    draws: Mapping[str, str]
    suffix: Mapping[str, str]
    thread: str
    block: str
    block_size: str
    grid: str
    long_suffix: str
    deciding_threads: int
    has_null: bool
    has_addresses: bool
    has_wide_atomics: bool
    has_matrices: bool

    # Kernels and their memory.

    @abstractmethod
    def kernel(self, parameters: Sequence[tuple[str, str, bool, bool]], table: str, body: str, num_threads: int) -> str:
        """The text of a kernel whose name is `@`.

        parameters: name and type of what each pointer points at, whether it is only read, and whether nothing else of
        the launch overlaps it. table: a constant array that the body calls `table`, or nothing.
        """

    @abstractmethod
    def table(self, spelt: str, elements: Sequence[str]) -> str:
        """A constant array for `kernel`."""

    @abstractmethod
    def pointer(self, spelt: str, const: bool = True) -> str:
        """The type of a pointer into the device's memory that a variable holds."""

    @abstractmethod
    def shared(self, spelt: str, *arrays: str) -> str:
        """Declares arrays that the threads of a block share."""

    @abstractmethod
    def get(self, place: str, shared: bool = False) -> str:
        """The record at a place of memory, or of a shared array: the array with an index."""

    @abstractmethod
    def put(self, place: str, record: str, shared: bool = False) -> str:
        """The statement that writes a record."""

    @abstractmethod
    def barrier(self, device: bool = False) -> str:
        """All threads of a block wait, and see what each wrote into shared arrays; `device`: and into other memory."""

    @abstractmethod
    def warp_barrier(self) -> str:
        """All threads of a warp wait, and see what each wrote into shared arrays."""

    # What threads of a warp tell each other; `shuffle_xor` is a function of every prelude.

    @abstractmethod
    def shuffle_up(self, value: str, away: str) -> str:
        """A number of the thread so far before."""

    @abstractmethod
    def ballot(self, test: str) -> str:
        """A bit for each thread."""

    @abstractmethod
    def match(self, value: str) -> str:
        """A bit for each thread that has the same number."""

    @abstractmethod
    def count_bits(self, bits: str) -> str:
        """How many bits are set."""

    @abstractmethod
    def add_shared(self, place: str, number: str) -> str:
        """Adds to an `int` of a shared array, whatever other threads add."""

    @abstractmethod
    def any_in_block(self, number: str) -> str:
        """Whether a number is not 0 in any thread of a block of `deciding_threads`."""

    # Faults.

    @abstractmethod
    def raise_flag(self, place: str, value: str | None) -> str:
        """Reports a fault at a place; value: what it was, None if there is nothing to tell."""

    # Values.

    def _fill(self, template: Template, dtype: str, **names: str) -> str:
        text = template if isinstance(template, str) else template[KINDS[dtype]]
        return text.format(
            T=self.registers[dtype], U=self.unsigned[dtype], F=self.suffix.get(dtype, ""),
            lowest=self.lowest.get(dtype, ""), highest=self.highest.get(dtype, ""), **names,
        )  # fmt: skip

    def item_bytes(self, dtype: str) -> int:
        """Bytes of an element in memory."""
        return self.memory[dtype].itemsize

    def number(self, value: object, dtype: str) -> str:
        """An element of memory as the literal of an unsigned integer of its size."""
        raw = np.asarray(value, NUMPY_DTYPES[dtype]).astype(self.memory[dtype]).tobytes()
        suffix = "u" + self.long_suffix if len(raw) == 8 else "u"
        return hex(struct.unpack({1: "<B", 2: "<H", 4: "<I", 8: "<Q"}[len(raw)], raw)[0]) + suffix

    def load(self, dtype: str, memory: str) -> str:
        """An element of memory as a value in registers."""
        return self.loads.get(dtype, "{}").format(memory)

    def store(self, dtype: str, value: str) -> str:
        """A value in registers as an element of memory."""
        return self.stores.get(dtype, "{}").format(value)

    def convert(self, value: str, source: str, target: str) -> str:
        """A value in registers in another dtype; out of range it becomes the lowest integer."""
        if source == target or (source in ("f32", "bf16") and target in ("f32", "bf16")):
            return value
        if target == "bool":
            return f"({value} != 0)"
        if KINDS[source] == "float" and KINDS[target] == "int":
            return f"truncate_{target}({value})"
        if source == "f64" and target == "bf16":
            return f"(float){value}"
        return f"({self.registers[target]}){value}"

    def expression(self, node: Node, names: tuple[str, ...]) -> str:
        """The value of a Map at one element, given its operands there."""
        operands = dict(zip("abc", names, strict=False))
        dtype = node.inputs[-1].dtype
        operands["as"] = self.convert(names[0], node.inputs[0].dtype, node.types[0].dtype)
        return self._fill(OPS[node.op].scalar, dtype, **operands)

    def literal(self, node: Node) -> str:
        """A scalar constant as a value in registers, exact to the bit."""
        return self.scalar(node.attrs["value"], node.types[0].dtype)

    def scalar(self, value: object, dtype: str) -> str:
        """A number as a value in registers, exact to the bit."""
        number = np.asarray(value, NUMPY_DTYPES[dtype])
        bits = int.from_bytes(number.tobytes(), "little")
        return self.literals[dtype].format(number=int(number) if KINDS.get(dtype) == "int" else bits)

    def fault(self, node: Node, names: tuple[str, ...]) -> str | None:
        """When a Map meets an element that the run reports; None: never."""
        template = OPS[node.op].fault
        return None if not template else template.format(**dict(zip("abc", names, strict=False)))

    def scattered(self, fold: str, dtype: str, old: str, new: str) -> str:
        """What a scatter leaves of an old and a new value."""
        return self._fill(OPS[SCATTERS[fold]].scalar, dtype, a=old, b=new) if fold in SCATTERS else new

    def fold(self, op: str, dtype: str) -> BoundFold:
        """The fold of a Reduce or a Scan over elements of a dtype."""
        return BoundFold(self, FOLDS[SCANS.get(op, op)], dtype)


@dataclass(frozen=True, slots=True)
class BoundFold:
    """A fold over one dtype."""

    dialect: Dialect
    fold: Fold
    dtype: str

    @property
    def state(self) -> str:
        """Type of the state."""
        return self.dialect._fill(self.fold.state, self.dtype)

    @property
    def state_bytes(self) -> int:
        """Bytes of the state in a workspace."""
        if self.state.startswith("Best"):
            return 16 if self.dtype in ("f64", "i64") else 8
        return {"bool": 4, "f64": 8, "i64": 8}.get(self.dtype, 4)

    @property
    def identity(self) -> str:
        """The state of nothing."""
        return self.dialect._fill(self.fold.identity, self.dtype)

    def lift(self, value: str, index: str) -> str:
        """The state of one element."""
        return self.dialect._fill(self.fold.lift, self.dtype, v=value, r=index)

    def combine(self, p: str, q: str) -> str:
        """The state of both."""
        return self.dialect._fill(self.fold.combine, self.dtype, p=p, q=q)

    def result(self, p: str) -> str:
        """The value of a state."""
        return self.dialect._fill(self.fold.result, self.dtype, p=p)


def _modular(sign: str, neutral: str) -> Fold:
    """Sum or product; integers in unsigned arithmetic, which wraps."""
    return Fold({"float": "{T}", "int": "{U}"}, f"({{U}}){neutral}", f"{{p}} {sign} {{q}}",
                {"float": "{v}", "int": "({U}){v}"}, {"float": "{p}", "int": "({T}){p}"})  # fmt: skip


def _extremum(template: Template, identity: str) -> Fold:
    assert not isinstance(template, str)
    combine = {kind: text.replace("{a}", "{p}").replace("{b}", "{q}") for kind, text in template.items()}
    return Fold("{T}", identity, combine)


FOLDS = {
    "sum": _modular("+", "0"), "prod": _modular("*", "1"),
    "max": _extremum(LARGER, "{lowest}"), "min": _extremum(SMALLER, "{highest}"),
    "any": Fold("int", "0", "{p} | {q}", result="({p} != 0)"),
    "all": Fold("int", "1", "{p} & {q}", result="({p} != 0)"),
    "argmax": Fold("Best<{T}>", "Best<{T}>{{0, -1}}", "largest({p}, {q})",
                   "Best<{T}>{{{v}, (int){r}}}", "{p}.place"),
    "argmin": Fold("Best<{T}>", "Best<{T}>{{0, -1}}", "smallest({p}, {q})",
                   "Best<{T}>{{{v}, (int){r}}}", "{p}.place"),
}  # fmt: skip
"""The folds of every dialect."""
