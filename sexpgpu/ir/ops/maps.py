"""What the elementwise operations share: the work shape Map, whose inputs have one shape; broadcasting is a node.

bf16 never reaches arithmetic: the elaborator writes casts, so each rounding is a node that one can see.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sexpgpu.ir.builder import Builder
from sexpgpu.ir.graph import Attrs, Graph, Node, Value
from sexpgpu.ir.opdef import (
    Array,
    Context,
    Into,
    Manual,
    OpDef,
    Sample,
    Template,
    TypeRule,
    Work,
    no_gradient,
    register,
)
from sexpgpu.ir.ops.rules import Local, float_gradient, map_stacking
from sexpgpu.ir.types import TensorType, TypeFault

ARITHMETIC = ("f32", "f64", "i32", "i64")
FLOAT = ("f32", "f64")
INTEGER = ("i32", "i64")
FLAT = "zero everywhere: the operation is flat, and no gradient goes through it."
COMPARED = "the operands agree in dtype: any dtype; the result is bool."
FLOATS = "f32 and bf16; bf16 is computed in f32 and rounded once."
WHOLE = "i32 and i64. Floats are refused: `(floor (/ x y))`."
NEVER = "NaN compares false with everything, itself included."

FLOATS_34 = TensorType("f32", (3, 4))
INTS_34 = TensorType("i32", (3, 4))
BOOLS_34 = TensorType("bool", (3, 4))

Ufunc = Callable[..., Any]


def same_type(name: str, arity: int, dtypes: Sequence[str], result: str | None) -> TypeRule:
    """A rule: `arity` operands of one type among `dtypes` give one of it, or of the dtype `result`."""

    def rule(types: Sequence[TensorType], attrs: Attrs, bodies: Sequence[Graph]) -> tuple[TensorType, ...]:
        if len(types) != arity:
            raise TypeFault(f"`{name}` takes {arity} operands, not {len(types)}", "E-CALL-002")
        first = types[0]
        if first.dtype not in dtypes:
            raise TypeFault(f"`{name}` takes {' or '.join(dtypes)}, not {first.dtype}", "E-TYPE-001")
        for other in types[1:]:
            if other.dtype != first.dtype:
                raise TypeFault(f"`{name}` of {first} and {other}: dtypes differ", "E-TYPE-001")
            if other.shape != first.shape:
                raise TypeFault(f"`{name}` of {first} and {other}: shapes differ")
        return (first if result is None else first.with_dtype(result),)

    return rule


def _meaning(ufunc: Ufunc) -> Callable[[Context, Node, Sequence[Array]], Array]:
    def meaning(ctx: Context, node: Node, inputs: Sequence[Array]) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(ufunc(*inputs)).astype(ctx.dtype(node.types[0]), copy=False)

    return meaning


def _into(ufunc: Ufunc) -> Into:
    def into(ctx: Context, node: Node, inputs: Sequence[Array], outs: Sequence[Array]) -> None:
        with np.errstate(all="ignore"):
            ufunc(*inputs, out=outs[0])

    return into


def define_map(
    name: str,
    doc: str,
    ufunc: Ufunc,
    arity: int,
    dtypes: Sequence[str],
    local: Local | None,
    *,
    result: str | None = None,
    ranges: Sequence[tuple[float, float]] = (),
    samples: Sequence[Sample] = (),
    into: Into | None = None,
    scalar: Template = "",
    word: str = "",
    number: Callable[..., Any] | None = None,
    manual: Manual | None = None,
) -> None:
    """An operation of `arity` operands of one type; `scalar` and what follows it as in `OpDef`."""
    defaults = [Sample((t,) * arity, ranges=tuple(ranges)) for t in (FLOATS_34, INTS_34, BOOLS_34) if t.dtype in dtypes]
    register(
        OpDef(
            name=name,
            doc=doc,
            work=Work.MAP,
            type_rule=same_type(name, arity, dtypes, result),
            meaning=_meaning(ufunc),
            into=into or (_into(ufunc) if isinstance(ufunc, np.ufunc) else None),
            ufunc=ufunc if isinstance(ufunc, np.ufunc) else None,
            stacking=map_stacking,
            gradient=no_gradient if local is None else float_gradient(local),
            samples=tuple(samples) or tuple(defaults),
            scalar=scalar,
            word=word,
            number=number,
            manual=manual,
        )
    )


def c_function(name: str) -> Template:
    """A function of the C library, by its name there."""
    return {"float": name + "{F}({a})"}


_WRAPPED = "({{T}})(({{U}}){{a}} {} ({{U}}){{b}})"
NEGATED = "({T})(0 - ({U}){a})"


def c_operator(sign: str) -> Template:
    """An operator; integers in unsigned arithmetic, which wraps."""
    return {"float": f"{{a}} {sign} {{b}}", "int": _WRAPPED.format(sign)}


def guarded(b: Builder, g: Value, slope: Value) -> Value:
    """The cotangent times a slope, 0 where the cotangent is 0 even if the slope is infinite."""
    return b.op("mul-or-zero", g, slope)
