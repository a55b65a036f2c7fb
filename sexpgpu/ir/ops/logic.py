"""Comparisons, logic, choice and casts, element by element."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence

import numpy as np

from sexpgpu.ir.builder import Builder
from sexpgpu.ir.graph import Attrs, Graph, Node, Value
from sexpgpu.ir.opdef import Array, Context, Manual, OpDef, Sample, Work, register
from sexpgpu.ir.ops.maps import ARITHMETIC, BOOLS_34, COMPARED, FLAT, FLOAT, FLOATS_34, INTS_34, NEVER, define_map
from sexpgpu.ir.ops.rules import float_gradient, map_stacking
from sexpgpu.ir.types import DTYPES, TensorType, TypeFault

_MANUALS = {
    "=": Manual(
        "Whether x equals y.",
        gradient=FLAT,
        types=COMPARED,
        edges=NEVER,
        example="(= ids 3)  ; is (bool 8)\n(= \"a\" \"a\")  ; => true",
    ),
    "!=": Manual(
        "Whether x differs from y.",
        gradient=FLAT,
        types=COMPARED,
        edges="NaN differs from everything, itself included.",
        example="(!= ids 3)  ; is (bool 8)\n(!= 1 2)  ; => true",
    ),
    "<": Manual(
        "Whether x is below y.",
        gradient=FLAT,
        types=COMPARED,
        edges=NEVER,
        example="(< x 0)  ; is (bool 8 16)\n(< 1 2)  ; => true",
    ),
    "<=": Manual(
        "Whether x is at most y.",
        gradient=FLAT,
        types=COMPARED,
        edges=NEVER,
        example="(<= x row)  ; is (bool 8 16)\n(<= 2 2)  ; => true",
    ),
    ">": Manual(
        "Whether x is above y.",
        gradient=FLAT,
        types=COMPARED,
        edges=NEVER,
        example="(> x y)  ; is (bool 8 16)\n(> 3 2)  ; => true",
    ),
    ">=": Manual(
        "Whether x is at least y.",
        gradient=FLAT,
        types=COMPARED,
        edges=NEVER,
        example="(>= x 0)  ; is (bool 8 16)\n(>= 2 3)  ; => false",
    ),
}
for _name, _ufunc, _sign, _word, _number, _doc in (
    ("eq", np.equal, "==", "=", operator.eq, "x = y."),
    ("ne", np.not_equal, "!=", "!=", operator.ne, "x ≠ y."),
    ("lt", np.less, "<", "<", operator.lt, "x < y."),
    ("le", np.less_equal, "<=", "<=", operator.le, "x ≤ y."),
    ("gt", np.greater, ">", ">", operator.gt, "x > y."),
    ("ge", np.greater_equal, ">=", ">=", operator.ge, "x ≥ y."),
):
    define_map(_name, f"Whether {_doc}", _ufunc, 2, (*ARITHMETIC, "bool"), None, result="bool",
            scalar=f"{{a}} {_sign} {{b}}", word=_word, number=_number, manual=_MANUALS[_word])  # fmt: skip
define_map("and", "Both.", np.logical_and, 2, ("bool",), None, scalar="{a} && {b}", word="and")
define_map("or", "Either.", np.logical_or, 2, ("bool",), None, scalar="{a} || {b}", word="or")
define_map("not", "The opposite.", np.logical_not, 1, ("bool",), None, scalar="!{a}", word="not", manual=Manual(
        "The opposite of a boolean.",
        gradient=FLAT,
        types="bool alone.",
        example="(not mask)  ; is (bool 8 16)\n(not true)  ; => false",
    ))
define_map("is-finite", "Whether x is neither infinite nor NaN.", np.isfinite, 1, FLOAT, None, result="bool",
        scalar="fabs{F}({a}) < {highest}", word="is-finite", number=math.isfinite, manual=Manual(
        "Whether x is neither infinite nor NaN.",
        gradient=FLAT,
        types="f32 and bf16; the result is bool.",
        example="(is-finite x)  ; is (bool 8 16)\n(is-finite inf)  ; => false",
    ))  # fmt: skip


def _where_type(types: Sequence[TensorType], attrs: Attrs, bodies: Sequence[Graph]) -> tuple[TensorType, ...]:
    if len(types) != 3:
        raise TypeFault(f"`where` takes a test and two values, not {len(types)} operands", "E-CALL-002")
    test, x, y = types
    if test.dtype != "bool":
        raise TypeFault(f"the test of `where` is {test}, not bool", "E-TYPE-001")
    if x.dtype != y.dtype:
        raise TypeFault(f"`where` chooses between {x} and {y}: dtypes differ", "E-TYPE-001")
    if not test.shape == x.shape == y.shape:
        raise TypeFault(f"`where` of {test}, {x} and {y}: shapes differ")
    return (x,)


def _where_gradient(b: Builder, n: Node, g: Value) -> Sequence[Value | None]:
    test, zero = n.inputs[0], b.like(0.0, g)
    return None, b.where(test, g, zero), b.where(test, zero, g)


BITS = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}
"""Signed integers by their bytes."""


def _where_into(ctx: Context, node: Node, inputs: Sequence[Array], outs: Sequence[Array]) -> None:
    """Bit by bit: y ^ ((x ^ y) & mask), exact for every value; NumPy's own choice takes each element by itself."""
    test, x, y = inputs
    (out,) = outs
    bits = BITS[out.itemsize]
    if np.may_share_memory(out, test) or x.dtype != y.dtype or out.dtype != x.dtype:
        out[...] = np.where(test, x, y)
        return
    # −1 has all bits set.
    mask = np.negative(test.view(np.int8), dtype=bits)
    if np.may_share_memory(out, y):
        mask = np.invert(mask)
        x, y = y, x
        if np.may_share_memory(out, y):
            out[...] = np.where(test, y, x)
            return
    a, b, result = x.view(bits), y.view(bits), out.view(bits)
    np.bitwise_xor(a, b, out=result)
    np.bitwise_and(result, mask, out=result)
    np.bitwise_xor(result, b, out=result)


register(
    OpDef(
        name="where",
        doc="x where the test holds, else y, elementwise.",
        work=Work.MAP,
        type_rule=_where_type,
        meaning=lambda ctx, node, inputs: np.where(*inputs),
        into=_where_into,
        stacking=map_stacking,
        gradient=float_gradient(_where_gradient),
        samples=(Sample((BOOLS_34, FLOATS_34, FLOATS_34)), Sample((BOOLS_34, INTS_34, INTS_34))),
        scalar="{a} ? {b} : {c}",
    )
)


def _cast_type(types: Sequence[TensorType], attrs: Attrs, bodies: Sequence[Graph]) -> tuple[TensorType, ...]:
    dtype = str(attrs["dtype"])
    if dtype not in DTYPES:
        raise TypeFault(f"there is no dtype {dtype}", "E-TYPE-001")
    return (types[0].with_dtype(dtype),)


def _cast(ctx: Context, node: Node, inputs: Sequence[Array]) -> Array:
    (out,) = node.types
    with np.errstate(all="ignore"):
        return inputs[0].astype(ctx.dtype(out))


def _cast_into(ctx: Context, node: Node, inputs: Sequence[Array], outs: Sequence[Array]) -> None:
    with np.errstate(all="ignore"):
        np.copyto(outs[0], inputs[0], casting="unsafe")


register(
    OpDef(
        name="cast",
        doc="x in another dtype: floats round to nearest even, floats to integers truncate towards zero.",
        work=Work.MAP,
        params={"dtype": "the dtype of the result"},
        type_rule=_cast_type,
        meaning=_cast,
        into=_cast_into,
        stacking=map_stacking,
        gradient=float_gradient(lambda b, n, g: (b.cast(g, n.inputs[0].dtype) if n.inputs[0].type.is_float else None,)),
        samples=(
            Sample((FLOATS_34,), {"dtype": "i32"}),
            Sample((FLOATS_34,), {"dtype": "bf16"}, differentiable=False),
            Sample((INTS_34,), {"dtype": "f32"}),
            Sample((BOOLS_34,), {"dtype": "f32"}),
            Sample((TensorType("bf16", (5,)),), {"dtype": "f32"}, differentiable=False),
        ),
        scalar="{as}",
    )
)
