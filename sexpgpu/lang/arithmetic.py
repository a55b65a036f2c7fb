"""Elementwise meaning of the operators: folding of numbers, host scalars, promotion of literals, broadcasting.

One entry, `arithmetic`, decides by its operands: all numbers fold; a host scalar among numbers stays on the host;
a tensor among them records nodes. bf16 operands are cast up, computed in f32, and the result is cast down: every
rounding is a node.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce as fold
from types import NoneType
from typing import TYPE_CHECKING, Any

from sexpgpu.ir.graph import Value
from sexpgpu.ir.opdef import OPS, OpDef
from sexpgpu.ir.ops.arithmetic import INTEGER_BITS
from sexpgpu.ir.types import TensorType, TypeFault
from sexpgpu.lang.trace import SCALAR_F64
from sexpgpu.lang.values import DType, HostScalar, Weighted, kind_of

if TYPE_CHECKING:
    from sexpgpu.lang.elaborator import Elaborator

_CALLED = [op for op in OPS.values() if op.word]
BINARY = {op.word: op for op in _CALLED if op.num_operands == 2}
"""Operators of two operands, by what a file calls them."""
UNARY = {op.word: op for op in _CALLED if op.num_operands == 1}
"""Functions of one operand, by what a file calls them."""

COMPARED = (bool, int, float, str, NoneType, DType, TensorType)
"""Values that are equal where they say the same."""


def is_number(value: Any) -> bool:
    """An elaboration integer or float."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def operation(word: str, operands: Sequence[Any]) -> OpDef:
    """What a word means for one or two operands."""
    return (BINARY if len(operands) == 2 else UNARY)[word]


def arithmetic(el: Elaborator, op: str, args: Sequence[Any]) -> Any:
    """`op` of one or two operands, by what they are. Raises TypeFault or DiagnosticError."""
    kinds = {type(a) for a in args}
    if Weighted in kinds:
        return _weighted(el, op, args)
    if Value in kinds:
        return _tensor(el, op, args)
    if HostScalar in kinds:
        return _host(el, op, args)
    if tuple in kinds and op not in ("=", "!="):
        el.fail("E-TYPE-006", f"`{op}` of {' and '.join(kind_of(a) for a in args)}",
                help="a vector is taken apart by a pattern [a b], or walked by (for [x v] …)")  # fmt: skip
    return _fold(el, op, args)


def _fold(el: Elaborator, op: str, args: Sequence[Any]) -> Any:
    if op in ("=", "!="):
        if el.trace is not None and not all(isinstance(a, COMPARED) for a in args):
            el.trace.unrepeatable += 1  # values that are compared by identity
        same = args[0] == args[1] and isinstance(args[0], bool) == isinstance(args[1], bool)
        return same == (op == "=")
    if op == "not":
        if not isinstance(args[0], bool):
            el.fail("E-TYPE-006", f"`not` of {kind_of(args[0])}")
        return not args[0]
    if op in ("and", "or") or not all(is_number(arg) for arg in args):
        el.fail("E-TYPE-006", f"`{op}` of {' and '.join(kind_of(a) for a in args)}",
                help="`and` and `or` take booleans" if op in ("and", "or") else "")  # fmt: skip
    number = operation(op, args).number
    assert number is not None, op
    try:
        result = number(*args)
    except (ValueError, OverflowError, ZeroDivisionError):
        el.fail("E-TYPE-008", f"`{op}` of {' and '.join(f'{a:g}' for a in args)} is no finite number")
    if isinstance(result, int) and not -(2 ** (INTEGER_BITS - 1)) <= result < 2 ** (INTEGER_BITS - 1):
        el.fail("E-TYPE-005", f"`{op}` of {args[0]:g} and {args[-1]:g} is no integer of {INTEGER_BITS} bits",
                help="write one of them as a float")  # fmt: skip
    return result


def _host(el: Elaborator, op: str, args: Sequence[Any]) -> HostScalar:
    if op in ("quotient", "rem"):
        el.fail("E-TYPE-001", f"`{op}` takes integers; {kind_of(args[0])} is a float", help="(floor (/ step n))")
    b = el.schedule.builder
    values = []
    for arg in args:
        if isinstance(arg, HostScalar):
            values.append(arg.value)
        elif is_number(arg):
            values.append(b.constant(float(arg), SCALAR_F64))
        elif isinstance(arg, bool):
            values.append(b.constant(arg, SCALAR_F64.with_dtype("bool")))
        else:
            el.fail("E-TYPE-006", f"`{op}` of {' and '.join(kind_of(a) for a in args)}")
    return HostScalar(b.op(operation(op, args).name, *values))


def _weighted(el: Elaborator, op: str, args: Sequence[Any]) -> Weighted:
    weights = {a.weight for a in args if isinstance(a, Weighted)}
    el.require_trace().unrepeatable += 1  # which weights are one is nothing that types say
    if op not in ("+", "-", "*", "/"):
        el.fail("E-TYPE-006", f"`{op}` of a weighted value", help="`weighted` values are added and scaled only")
    if (op == "*" and len(args) == sum(isinstance(a, Weighted) for a in args)) or (
        op == "/" and isinstance(args[1], Weighted)
    ):
        el.fail("E-TYPE-006", f"`{op}` of {' and '.join(kind_of(a) for a in args)}",
                help="`weighted` values are added, and scaled by numbers and scalars")  # fmt: skip
    if len(weights) > 1:
        el.fail("E-TYPE-006", f"`{op}` of two values whose weights differ",
                help="make each a scalar first and weigh the result once: (weighted V W)")  # fmt: skip
    value = arithmetic(el, op, [a.value if isinstance(a, Weighted) else a for a in args])
    if value.shape != ():
        el.fail("E-TYPE-006", f"a weighted value is a scalar, not {value.type}")
    return Weighted(value, weights.pop())


def common_dtype(el: Elaborator, op: str, args: Sequence[Any]) -> str:
    """The one dtype of the tensors among `args`."""
    tensors = [a for a in args if isinstance(a, Value)]
    first = tensors[0]
    for other in tensors[1:]:
        if other.dtype != first.dtype:
            raise TypeFault(f"`{op}` of {first.type} and {other.type}: dtypes differ", "E-TYPE-001",
                            f"(cast x {first.dtype}) makes them agree")  # fmt: skip
    return first.dtype


def _tensor(el: Elaborator, op: str, args: Sequence[Any]) -> Value:
    b = el.require_trace().builder
    dtype = common_dtype(el, op, args)
    definition = operation(op, args)
    if op == "/" and dtype not in ("f32", "bf16"):
        raise TypeFault(f"`/` divides floats, not {dtype}", "E-TYPE-001", "(quotient x y), or (cast x f32) first")
    if len(args) == 1 and dtype not in ("f32", "bf16") and all(s.types[0].is_float for s in definition.samples):
        raise TypeFault(f"`{op}` takes floats, not {dtype}", "E-TYPE-001", "(cast x f32) first")
    if dtype not in ("f32", "bf16") and any(isinstance(a, HostScalar) and not is_test(a) for a in args):
        raise TypeFault(f"`{op}` of a tensor of {dtype} and a number that depends on `step`, which is a float",
                        "E-TYPE-001", "(cast x f32) first")  # fmt: skip
    values = broadcast_together(el, op, [el.tensor(a, dtype) for a in args])
    if dtype != "bf16":
        return b.op(definition.name, *values)
    result = b.op(definition.name, *[b.cast(v, "f32") for v in values])
    return b.cast(result, "bf16") if result.dtype == "f32" else result


def broadcast_together(el: Elaborator, op: str, values: Sequence[Value]) -> list[Value]:
    """The values stretched to one shape by the language's rule."""
    shape = fold(lambda s, v: _joint(op, s, v.shape, values), values[1:], values[0].shape)
    return [broadcast_to(el, v, shape) for v in values]


def _joint(op: str, a: tuple[int, ...], c: tuple[int, ...], values: Sequence[Value]) -> tuple[int, ...]:
    if a == c or not c:
        return a
    if not a:
        return c
    if len(a) == len(c):
        if all(m == n or 1 in (m, n) for m, n in zip(a, c, strict=True)):
            return tuple(n if m == 1 else m for m, n in zip(a, c, strict=True))
    else:
        short, long = sorted((a, c), key=len)
        if long[len(long) - len(short) :] == short:
            return long
    types = " and ".join(str(v.type) for v in values)
    raise TypeFault(f"`{op}` of {types}: {_misfit(a, c)}", "E-TYPE-002", _remedy(a, c))


def _misfit(a: tuple[int, ...], c: tuple[int, ...]) -> str:
    """What keeps two shapes apart."""
    if len(a) == len(c):
        apart = [i for i, (m, n) in enumerate(zip(a, c, strict=True)) if m != n and 1 not in (m, n)]
        return "; ".join(f"axis {i} is {a[i]} in one and {c[i]} in the other" for i in apart[:2])
    short, long = (f"({' '.join(map(str, shape))})" for shape in sorted((a, c), key=len))
    return f"{short} is not the tail of {long}"


def _remedy(a: tuple[int, ...], c: tuple[int, ...]) -> str:
    short, long = sorted((a, c), key=len)
    if len(a) == len(c):
        return "only a size of 1 stretches; `reshape`, `rearrange` and `slice` give a tensor another shape"
    if short == long[: len(short)]:
        kept = " ".join("abcdefgh"[: len(short)])
        added = " 1" * (len(long) - len(short))
        return f'reduce with `:keep true`, or add an axis at the end: (rearrange "{kept} -> {kept}{added}" x)'
    return "a shorter shape must equal the end of the longer: (rearrange …) moves axes or adds one"


def broadcast_to(el: Elaborator, value: Value, shape: tuple[int, ...]) -> Value:
    """`value` stretched to `shape`; its sizes of 1 repeat, its missing leading axes too."""
    if value.shape == shape:
        return value
    b = el.require_trace().builder
    offset = len(shape) - value.rank
    kept = [i for i, n in enumerate(value.shape) if n == shape[i + offset]]
    if len(kept) != value.rank:
        value = b.reshape(value, [value.shape[i] for i in kept])
    return b.broadcast(value, shape, [i + offset for i in kept])


def is_test(value: HostScalar) -> bool:
    """Whether a host scalar is a comparison, true or false."""
    return value.value.dtype == "bool"


def host_test(el: Elaborator, test: HostScalar) -> Value:
    """The node of a host scalar that is a comparison."""
    if not is_test(test):
        el.fail("E-TYPE-001", f"the test of `where` is {kind_of(test)}, not a comparison", help="(< step 100)")
    return test.value


def where(el: Elaborator, test: Any, x: Any, y: Any) -> Any:
    """`(where TEST X Y)`, elementwise; between numbers that depend on `step` it stays on the host."""
    if isinstance(test, HostScalar) and all(is_number(v) or isinstance(v, HostScalar) for v in (x, y)):
        b = el.schedule.builder
        sides = [v.value if isinstance(v, HostScalar) else b.constant(float(v), SCALAR_F64) for v in (x, y)]
        return HostScalar(b.op("where", host_test(el, test), *sides))
    if isinstance(test, bool):
        el.fail("E-TYPE-006", "the test of `where` is known while the file is read", help="use (if TEST A B)")
    return host_where(el, test, x, y)


def host_where(el: Elaborator, test: Any, x: Any, y: Any) -> Any:
    """A choice by a tensor test or by a host boolean."""
    if isinstance(x, tuple) and isinstance(y, tuple) and len(x) == len(y):
        return tuple(where(el, test, a, c) for a, c in zip(x, y, strict=True))
    b = el.require_trace().builder
    if isinstance(test, HostScalar):
        host_test(el, test)
    test = el.tensor(test)
    sides = [v for v in (x, y) if isinstance(v, Value)]
    floats = any(isinstance(v, float | HostScalar) for v in (x, y))
    dtype = common_dtype(el, "where", sides) if sides else "f32" if floats else None
    if test.dtype != "bool":
        el.fail("E-TYPE-001", f"the test of `where` is {kind_of(test)}, not a bool tensor", help="(> x 0)")
    values = broadcast_together(el, "where", [test, el.tensor(x, dtype), el.tensor(y, dtype)])
    return b.op("where", *values)
