"""How types, folds and draws are spelt in a dialect, and the only place with casts.

Flow: printers ask for types, for the expression of a Map, for the pieces of a fold, for a draw. Templates are those of
`sexpgpu.ir.opdef.Template`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from sexpgpu.ir.graph import Node
from sexpgpu.ir.opdef import OPS, Template
from sexpgpu.ir.ops.arithmetic import LARGER, SMALLER
from sexpgpu.ir.types import ITEM_BYTES, NUMPY_DTYPES

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


@dataclass(frozen=True, slots=True)
class Dialect:
    """One dialect: its types, its folds and its draws; the scalar language of Maps fits them all."""

    registers: Mapping[str, str]
    storage: Mapping[str, str]
    unsigned: Mapping[str, str]
    loads: Mapping[str, str]
    stores: Mapping[str, str]
    lowest: Mapping[str, str]
    highest: Mapping[str, str]
    folds: Mapping[str, Fold]
    scans: Mapping[str, str]
    scatters: Mapping[str, str]
    draws: Mapping[str, str]
    literals: Mapping[str, str]
    suffix: Mapping[str, str] = field(default_factory=lambda: {"f32": "f", "bf16": "f"})

    def _fill(self, template: Template, dtype: str, **names: str) -> str:
        text = template if isinstance(template, str) else template[KINDS[dtype]]
        return text.format(
            T=self.registers[dtype], U=self.unsigned[dtype], F=self.suffix.get(dtype, ""),
            lowest=self.lowest.get(dtype, ""), highest=self.highest.get(dtype, ""), **names,
        )  # fmt: skip

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
        dtype = node.types[0].dtype
        number = np.asarray(node.attrs["value"], NUMPY_DTYPES[dtype])
        bits = int.from_bytes(number.tobytes(), "little")
        return self.literals[dtype].format(number=int(number) if KINDS.get(dtype) == "int" else bits)

    def fault(self, node: Node, names: tuple[str, ...]) -> str | None:
        """When a Map meets an element that the run reports; None: never."""
        template = OPS[node.op].fault
        return None if not template else template.format(**dict(zip("abc", names, strict=False)))

    def scattered(self, fold: str, dtype: str, old: str, new: str) -> str:
        """What a scatter leaves of an old and a new value."""
        return self._fill(OPS[self.scatters[fold]].scalar, dtype, a=old, b=new) if fold in self.scatters else new

    def fold(self, op: str, dtype: str) -> BoundFold:
        """The fold of a Reduce or a Scan over elements of a dtype."""
        return BoundFold(self, self.folds[self.scans.get(op, op)], dtype)


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
            return 8 if ITEM_BYTES[self.dtype] == 4 else 16
        return 4 if self.dtype == "bool" else ITEM_BYTES[self.dtype]

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


CUDA = Dialect(
    registers={"f32": "float", "bf16": "float", "f64": "double", "i32": "int", "i64": "i64", "bool": "bool"},
    storage={"f32": "float", "bf16": "u16", "f64": "double", "i32": "int", "i64": "i64", "bool": "u8"},
    unsigned={"f32": "float", "bf16": "float", "f64": "double", "i32": "u32", "i64": "u64", "bool": "int"},
    loads={"bf16": "from_bf16({})", "bool": "({} != 0)"},
    stores={"bf16": "to_bf16({})", "bool": "(u8)({})"},
    lowest={"f32": "__uint_as_float(0xff800000u)", "f64": "__longlong_as_double(0xfff0000000000000ll)",
            "i32": "(-2147483647 - 1)", "i64": "(-9223372036854775807ll - 1)"},
    highest={"f32": "__uint_as_float(0x7f800000u)", "f64": "__longlong_as_double(0x7ff0000000000000ll)",
             "i32": "2147483647", "i64": "9223372036854775807ll"},
    folds={
        "sum": _modular("+", "0"), "prod": _modular("*", "1"),
        "max": _extremum(LARGER, "{lowest}"), "min": _extremum(SMALLER, "{highest}"),
        "any": Fold("int", "0", "{p} | {q}", result="({p} != 0)"),
        "all": Fold("int", "1", "{p} & {q}", result="({p} != 0)"),
        "argmax": Fold("Best<{T}>", "Best<{T}>{{0, -1}}", "largest({p}, {q})",
                       "Best<{T}>{{{v}, (int){r}}}", "{p}.place"),
        "argmin": Fold("Best<{T}>", "Best<{T}>{{0, -1}}", "smallest({p}, {q})",
                       "Best<{T}>{{{v}, (int){r}}}", "{p}.place"),
    },
    scans={"cumsum": "sum", "cumprod": "prod", "cummax": "max"},
    scatters={"add": "add", "max": "maximum", "min": "minimum"},
    draws={"random-uniform": "uniform", "random-normal": "normal"},
    literals={"f32": "__uint_as_float({number:#x}u)", "bf16": "from_bf16({number:#x})", "bool": "({number} != 0)",
              "f64": "__longlong_as_double({number:#x}ull)", "i32": "(int)({number}ll)", "i64": "(i64)({number}ull)"},
)  # fmt: skip
"""CUDA C++ as NVRTC reads it, without headers and without fast math."""
