"""Reading and writing by index, and order."""

from __future__ import annotations

from typing import Any

from sexpgpu.ir.graph import Value
from sexpgpu.lang.builtins.registry import builtin
from sexpgpu.lang.elaborator import Elaborator
from sexpgpu.lang.values import HostScalar, kind_of


def _ids(el: Elaborator, i: Any) -> Value:
    ids = el.tensor(i)
    if not ids.type.is_integer:
        el.fail("E-TYPE-001", f"indices are integers, not {kind_of(ids)}", help="(cast i i32)")
    return ids


def _static(el: Elaborator, i: Any, size: int, axis: int) -> int:
    if not -size <= i < size:
        el.fail("E-TYPE-005", f"index {i} is outside axis {axis}, whose size is {size}")
    return int(i) % size


@builtin("gather")
def gather(el: Elaborator, x: Any, i: Any, *, axis: Any = 0) -> Any:
    """`(gather x i :axis a)`: the axes of i replace axis a of x."""
    if isinstance(x, tuple) and isinstance(i, int):
        return x[_static(el, i, len(x), 0)]
    x = el.tensor(x)
    a = el.axis(axis, x.rank)
    b = el.require_trace().builder
    if isinstance(i, int) and not isinstance(i, bool):
        at = _static(el, i, x.shape[a], a)
        return b.reshape(b.slice(x, a, at, at + 1), x.shape[:a] + x.shape[a + 1 :])
    if isinstance(i, float | HostScalar):
        el.fail("E-TYPE-001", f"indices are integers, not {kind_of(i)}")
    return b.op("gather", x, _ids(el, i), axis=a, batch=0)


@builtin("pick")
def pick(el: Elaborator, x: Any, i: Any, *, axis: Any = -1) -> Value:
    """`(pick x i :axis -1)`: one element a row; i has the shape of x without the axis."""
    x = el.tensor(x)
    return el.require_trace().builder.op("pick", x, _ids(el, i), axis=el.axis(axis, x.rank))


@builtin("scatter", words=("fold",))
def scatter(el: Elaborator, x: Any, i: Any, v: Any, *, axis: Any = 0, fold: Any = "set") -> Value:
    """`(scatter x i v :axis a :fold set)`: x with v written at i along an axis; -1 is nowhere."""
    x = el.tensor(x)
    a = el.axis(axis, x.rank)
    b = el.require_trace().builder
    if fold not in ("set", "add", "max", "min"):
        el.fail("E-FORM-003", f"`:fold` is set, add, max or min, not `{fold}`")
    if isinstance(i, int) and not isinstance(i, bool) and i != -1:
        i = _static(el, i, x.shape[a], a)
    ids = _ids(el, i)
    value = el.tensor(v, x.dtype)
    wanted = x.shape[:a] + ids.shape + x.shape[a + 1 :]
    if value.shape == () and wanted:
        value = b.broadcast(value, wanted, ())
    return b.op("scatter", x, ids, value, axis=a, batch=0, fold=fold)


@builtin("one-hot")
def one_hot(el: Elaborator, i: Any, size: Any) -> Value:
    """`(one-hot i n)`: a last axis of n, 1.0 at i and 0.0 elsewhere."""
    ids = _ids(el, i)
    n = el.size(size)
    b = el.require_trace().builder
    shape = (*ids.shape, n)
    hit = b.op("eq", b.broadcast(ids, shape, range(ids.rank)), b.iota(ids.dtype, shape, ids.rank))
    return b.cast(hit, "f32")


def _selected(el: Elaborator, op: str, x: Any, axis: Any, **attrs: Any) -> tuple[Value, Value]:
    x = el.tensor(x)
    if x.dtype == "bool":
        el.fail("E-TYPE-001", f"`{op}` of {x.type}", help="(cast x i32) first")
    b = el.require_trace().builder
    wide = b.cast(x, "f32") if x.dtype == "bf16" else x
    values, places = b.node(op, (wide,), {"axis": el.axis(axis, x.rank), **attrs}).outputs
    return b.cast(values, x.dtype), places


@builtin("sort")
def sort(el: Elaborator, x: Any, *, axis: Any = -1, descending: Any = False) -> tuple[Value, Value]:
    """`(sort x :axis -1 :descending false)`: x in order along an axis, and the places that it came from."""
    if not isinstance(descending, bool):
        el.fail("E-TYPE-006", f"`:descending` is true or false, not {kind_of(descending)}")
    return _selected(el, "sort", x, axis, descending=descending)


@builtin("top-k")
def top_k(el: Elaborator, x: Any, k: Any, *, axis: Any = -1) -> tuple[Value, Value]:
    """`(top-k x k :axis -1)`: the k largest along an axis, largest first, and their places."""
    return _selected(el, "top-k", x, axis, k=el.size(k))
