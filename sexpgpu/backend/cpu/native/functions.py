"""How elementwise operations and folds are spelt on vectors: `prelude` has the functions."""

from __future__ import annotations

from dataclasses import dataclass

from sexpgpu.backend.cpu.native.prelude import FUNCTIONS
from sexpgpu.ir.graph import Node

HELD = {"f32": "vf", "bf16": "vf", "i32": "vi", "bool": "vi"}
"""The type of a value in registers."""
STORED = {"f32": "float", "bf16": "u16", "i32": "int", "bool": "u8"}
"""The type of an element in memory."""

_INFIX = {"add": "+", "sub": "-", "mul": "*"}
_COMPARED = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_OF_FLOATS = {
    "div": "{0} / {1}",
    "neg": "-{0}",
    "abs": "abs_f({0})",
    "sign": "sign_f({0})",
    "maximum": "maximum_f({0}, {1})",
    "minimum": "minimum_f({0}, {1})",
    "mul-or-zero": "mul_or_zero({0}, {1})",
    "is-finite": "is_finite({0})",
    "rsqrt": "1.0f / sqrt_f({0})",
    "pow": "pow_f({0}, {1})",
}
_OF_INTEGERS = {
    "neg": "(vi)(0 - (vu){0})",
    "abs": "abs_i({0})",
    "sign": "sign_i({0})",
    "maximum": "maximum_i({0}, {1})",
    "minimum": "minimum_i({0}, {1})",
}
_OF_ANY = {
    "and": "{0} & {1}",
    "or": "{0} | {1}",
    "not": "~{0}",
    "where": "PICK({0}, {1}, {2})",
    "stop-gradient": "{0}",
    "reshape": "{0}",
    "concat": "{0}",
}
_VECTOR = ("exp", "log", "sqrt", "tanh", "sigmoid", "erf", "floor", "ceil", "round", *FUNCTIONS)


def expression(node: Node, names: tuple[str, ...]) -> str | None:
    """The value of a map on vectors; None where it has no spelling here."""
    op, dtype = node.op, node.inputs[0].dtype
    is_float = HELD[dtype] == "vf"
    if op == "cast":
        return _cast(dtype, node.types[0].dtype, names[0])
    if op in _OF_ANY or not node.attrs.get("axes", True):
        return _OF_ANY.get(op, "{0}").format(*names)
    if op in _COMPARED:
        one, other = (f"({name} & 1)" if dtype == "bool" else name for name in names[:2])
        return f"{one} {_COMPARED[op]} {other}"
    if op in _INFIX:
        text = f"{names[0]} {_INFIX[op]} {names[1]}"
        return text if is_float else f"(vi)((vu){names[0]} {_INFIX[op]} (vu){names[1]})"
    if is_float and op in _VECTOR:
        return f"{op}_f({names[0]})"
    found = (_OF_FLOATS if is_float else _OF_INTEGERS).get(op)
    return None if found is None else found.format(*names)


def _cast(source: str, target: str, name: str) -> str:
    match source, target:
        case ("f32" | "bf16", "f32"):
            return name
        case ("f32" | "bf16", "bf16"):
            return f"round_bf16({name})"
        case ("f32" | "bf16", "i32"):
            return f"__builtin_convertvector({name}, vi)"
        case (_, "bool"):
            return f"{name} != 0"
        case ("bool", "i32"):
            return f"{name} & 1"
        case ("i32", "f32"):
            return f"__builtin_convertvector({name}, vf)"
        case ("bool", "f32" | "bf16"):
            return f"(vf)({name} & 0x3f800000)"
        case ("i32", "bf16"):
            return f"round_bf16(__builtin_convertvector({name}, vf))"
    return name


@dataclass(frozen=True, slots=True)
class Fold:
    """A reduction. name: that of its function in `prelude`. identity: of one element. combine: of `{0}` and `{1}`."""

    name: str
    held: str
    identity: str
    combine: str

    @property
    def dtype(self) -> str:
        """What partial results are stored as."""
        return "f32" if self.held == "vf" else "i32"


def fold(op: str, dtype: str) -> Fold:
    """The fold of a reduction over elements of `dtype`."""
    if HELD[dtype] == "vf":
        identity = {"sum": "0.0f", "prod": "1.0f", "max": "-bits_f(0x7f800000u)", "min": "bits_f(0x7f800000u)"}[op]
        combine = {"sum": "{0} + {1}", "prod": "{0} * {1}", "max": "maximum_f({0}, {1})", "min": "minimum_f({0}, {1})"}
        return Fold(f"{op}_f", "vf", identity, combine[op])
    identity = {"sum": "0", "prod": "1", "max": "(-2147483647 - 1)", "min": "2147483647", "any": "0", "all": "-1"}[op]
    combine = {
        "sum": "(vi)((vu){0} + (vu){1})", "prod": "(vi)((vu){0} * (vu){1})",
        "max": "maximum_i({0}, {1})", "min": "minimum_i({0}, {1})", "any": "{0} | {1}", "all": "{0} & {1}",
    }  # fmt: skip
    return Fold(f"{op}_i", "vi", identity, combine[op])
