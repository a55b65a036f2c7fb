"""Reading and writing by index, and order.

Stacked: microbatches get a leading axis; a table that they share is kept once, and its gradient adds in their order.
"""

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
    """`(gather x i :axis a)`: elements of x along an axis, by their places.

    Takes: x, an integer or a tensor of integers, and the `:axis` of x that they index.
    Shape: x (A… n C…), i (I…) → (A… I… C…).
    Types: x of any dtype, i of i32 or i64.
    Gradient: dx = g added at the places that were read, in the order of i; 0 elsewhere.
    Edges: an index out of range clamps, and stops the step before anything is committed (`E-RUN-003`). A number may be
        negative, from the end, and is checked while the file is elaborated.
    Example:
        (gather x ids)  ; is (f32 8 16)
        (gather x -1 :axis 1)  ; is (f32 8)
        (gather (param table (f32 100 4) (normal 0.02)) tokens)  ; is (f32 4 32 4)
    """
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
    """`(pick x i :axis -1)`: one element of each row.

    Takes: x, a tensor of integers, and the `:axis` along which they pick.
    Shape: x (A… n C…), i (A… C…) → (A… C…).
    Types: x of any dtype, i of i32 or i64.
    Gradient: dx = g at the places that were picked, 0 elsewhere.
    Edges: an index out of range clamps, and stops the step before anything is committed (`E-RUN-003`).
    Example:
        (pick x ids)  ; is (f32 8)
        (pick x (argmax x))  ; is (f32 8)
    """
    x = el.tensor(x)
    return el.require_trace().builder.op("pick", x, _ids(el, i), axis=el.axis(axis, x.rank))


@builtin("scatter", words=("fold",))
def scatter(el: Elaborator, x: Any, i: Any, v: Any, *, axis: Any = 0, fold: Any = "set") -> Value:
    """`(scatter x i v :axis a :fold set)`: x with v written at the places i along an axis.

    Takes: x, indices, and what is written, shaped as `gather` reads, or a scalar; the `:axis`; `:fold set`, `add`,
        `max` or `min`: what becomes of the old element.
    Shape: that of x.
    Types: x and v agree in dtype, i is i32 or i64; bf16 is folded in f32 and rounded once. bool is only `set`.
    Gradient: `add`: dx = g, dv = g at the places written. `set`: dx = g but 0 where something was written; dv = g for
        what stands there in the end. `max` and `min`: g goes to what stands there in the end.
    Edges: in the order of v: of several `set` at one place the last stands. −1 is nowhere; another index out of range
        writes nothing, and stops the step before anything is committed (`E-RUN-003`).
    Example:
        (scatter x 2 row)  ; is (f32 8 16)
        (scatter (zeros (f32 10 16)) ids x :fold add)  ; is (f32 10 16)
    """
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
    if x.dtype == "bf16" and value.dtype == "bf16":
        wide = b.op("scatter", b.cast(x, "f32"), ids, b.cast(value, "f32"), axis=a, batch=0, fold=fold)
        return b.cast(wide, "bf16")
    return b.op("scatter", x, ids, value, axis=a, batch=0, fold=fold)


@builtin("one-hot")
def one_hot(el: Elaborator, i: Any, size: Any) -> Value:
    """`(one-hot i n)`: a last axis of n, 1.0 at i and 0.0 elsewhere.

    Shape: i (I…) → (I… n).
    Types: i of i32 or i64; the result is f32.
    Gradient: none: indices carry no gradient.
    Edges: an index outside 0 … n − 1 gives a row of zeros.
    Example:
        (one-hot ids 10)  ; is (f32 8 10)
        (one-hot tokens 5)  ; is (f32 4 32 5)
    """
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
    """`(sort x :axis -1 :descending false)`: x in order along an axis, and the places that it came from.

    Takes: x; the `:axis`; `:descending true` begins with the largest.
    Shape: `[values places]`, both of the shape of x.
    Types: any but bool; the places are i32.
    Gradient: of a value it goes to the place that it came from; places have none.
    Edges: of a tie the lowest place comes first. NaN counts as largest.
    Example:
        (nth (sort x :descending true) 0)  ; is (f32 8 16)
        (let [[values places] (sort row)] places)  ; is (i32 16)
    """
    if not isinstance(descending, bool):
        el.fail("E-TYPE-006", f"`:descending` is true or false, not {kind_of(descending)}")
    return _selected(el, "sort", x, axis, descending=descending)


@builtin("top-k")
def top_k(el: Elaborator, x: Any, k: Any, *, axis: Any = -1) -> tuple[Value, Value]:
    """`(top-k x k :axis -1)`: the k largest along an axis, largest first, and their places.

    Shape: `[values places]`, both of the shape of x, with k along `:axis`.
    Types: any but bool; the places are i32.
    Gradient: of a value it goes to the place that it came from; places have none.
    Edges: of a tie the lowest place comes first. NaN counts as largest.
    Example:
        (nth (top-k x 3) 0)  ; is (f32 8 3)
        (let [[best who] (top-k x 2 :axis 0)] who)  ; is (i32 2 16)
    """
    return _selected(el, "top-k", x, axis, k=el.size(k))
