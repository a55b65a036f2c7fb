"""Movement: the same elements in another place or order. Work shape Move; every dtype, bf16 included.

Meanings are views wherever NumPy has one, so a reader must not write into what it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from sexpgpu.ir.builder import Builder
from sexpgpu.ir.graph import Attrs, Graph, Node, Value
from sexpgpu.ir.opdef import (
    Array,
    Context,
    Cost,
    Meaning,
    OpDef,
    Sample,
    Stages,
    Work,
    bytes_moved,
    register,
)
from sexpgpu.ir.ops.rules import (
    Local,
    attr_int,
    attr_ints,
    attr_shape,
    batch_all,
    check_axis,
    check_operands,
    check_per_axis,
    float_gradient,
    front,
    inverse,
    without,
)
from sexpgpu.ir.types import TensorType, TypeFault

View = Callable[[Array, Node], Array]

F = TensorType("f32", (3, 4))
F3 = TensorType("f32", (2, 3, 4))
H3 = TensorType("bf16", (2, 3, 4))
I3 = TensorType("i32", (2, 3, 4))
B = TensorType("bool", (3, 4))
SCALAR = TensorType("f32", ())


def _move_cost(node: Node) -> Cost:
    return Cost(0, bytes_moved(node))


def _meaning(view: View) -> Meaning:
    def meaning(ctx: Context, node: Node, inputs: Sequence[Array]) -> Array:
        return view(inputs[0], node)

    return meaning


COPY_ELEMENTS = 1 << 16
"""Elements that are worth copying by several threads."""
COPY_PARTS = 4


def _copies(source: Array, target: Array) -> Stages:
    """Calls that copy `source` to `target`, in parts where it is large."""
    axis = next((i for i, size in enumerate(target.shape) if size >= COPY_PARTS), None)
    if target.size < COPY_ELEMENTS or axis is None:
        return ((partial(np.copyto, target, source),),)
    size = target.shape[axis]
    bounds = [size * i // COPY_PARTS for i in range(COPY_PARTS + 1)]
    parts = [(slice(None),) * axis + (slice(*pair),) for pair in pairwise(bounds)]
    return (tuple([partial(np.copyto, target[part], source[part]) for part in parts]),)


def _define(
    name: str,
    doc: str,
    params: dict[str, str],
    type_rule: Callable[[TensorType, Attrs], TensorType],
    view: View,
    local: Local,
    stacked: Callable[[Node, int], dict[str, Any]],
    samples: Sequence[Sample],
) -> None:
    """A movement of one operand; `stacked` gives the attributes on k microbatches at once."""

    def rule(types: Sequence[TensorType], attrs: Attrs, bodies: Sequence[Graph]) -> tuple[TensorType, ...]:
        check_operands(name, types, 1)
        return (type_rule(types[0], attrs),)

    def into(ctx: Context, node: Node, inputs: Sequence[Array], outs: Sequence[Array]) -> None:
        np.copyto(outs[0], view(inputs[0], node))

    def prepare(ctx: Context, node: Node, inputs: Sequence[Array], outs: Sequence[Array]) -> Stages:
        (x,), (out,) = inputs, outs
        source = view(x, node)
        if np.may_share_memory(source, x):
            return _copies(source, out)
        # Elements in another shape are no view of x; then x may be a view of where they go.
        try:
            return _copies(x, out.reshape(x.shape, copy=False))
        except ValueError:
            return ((partial(into, ctx, node, inputs, outs),),)

    def stacking(b: Builder, node: Node, inputs: Sequence[Value], batched: Sequence[bool], k: int) -> tuple[Value, ...]:
        return b.node(name, batch_all(b, inputs, batched, k), stacked(node, k)).outputs

    register(
        OpDef(
            name=name,
            doc=doc,
            work=Work.MOVE,
            params=params,
            type_rule=rule,
            meaning=_meaning(view),
            into=into,
            prepare=prepare,
            stacking=stacking,
            gradient=float_gradient(local),
            samples=tuple(samples),
            cost=_move_cost,
        )
    )


def _reshape_type(x: TensorType, attrs: Attrs) -> TensorType:
    out = x.with_shape(attr_shape(attrs))
    if any(n < 0 for n in out.shape) or out.size != x.size:
        raise TypeFault(f"`reshape` of {x} to {out}: {x.size} elements are not {out.size}")
    return out


_define(
    "reshape",
    "x with another shape of as many elements, which keep their row-major order.",
    {"shape": "shape of the result"},
    _reshape_type,
    lambda x, n: x.reshape(n.types[0].shape),
    lambda b, n, g: (b.reshape(g, n.inputs[0].shape),),
    lambda n, k: {"shape": front(k, n.types[0].shape)},
    (
        Sample((F3,), {"shape": (6, 4)}),
        Sample((H3,), {"shape": (24,)}),
        Sample((SCALAR,), {"shape": (1, 1)}),
        Sample((B,), {"shape": (2, 6)}),
        Sample((TensorType("i64", (1,)),), {"shape": ()}),
    ),
)


def _transpose_type(x: TensorType, attrs: Attrs) -> TensorType:
    perm = attr_ints(attrs, "perm")
    if sorted(perm) != list(range(x.rank)):
        raise TypeFault(f"`transpose` of {x} by {list(perm)}, which is no order of its {x.rank} axes")
    return x.with_shape(tuple(x.shape[p] for p in perm))


_define(
    "transpose",
    "x with its axes in the order `perm`: axis i of the result is axis perm[i] of x.",
    {"perm": "an order of x's axes"},
    _transpose_type,
    lambda x, n: x.transpose(attr_ints(n.attrs, "perm")),
    lambda b, n, g: (b.transpose(g, inverse(attr_ints(n.attrs, "perm"))),),
    lambda n, k: {"perm": front(0, [p + 1 for p in attr_ints(n.attrs, "perm")])},
    (
        Sample((F3,), {"perm": (2, 0, 1)}),
        Sample((H3,), {"perm": (1, 0, 2)}),
        Sample((I3,), {"perm": (2, 1, 0)}),
        Sample((B,), {"perm": (1, 0)}),
        Sample((SCALAR,), {"perm": ()}),
    ),
)


def _broadcast_type(x: TensorType, attrs: Attrs) -> TensorType:
    shape, axes = attr_shape(attrs), attr_ints(attrs, "axes")
    out = x.with_shape(shape)
    if min((0, *shape)) < 0:
        raise TypeFault(f"`broadcast` of {x} to {out}: a size is negative")
    if len(axes) != x.rank or any(a >= b for a, b in pairwise(axes)):
        raise TypeFault(f"`broadcast` places the axes of {x} at {list(axes)}: one increasing place for each is needed")
    for axis, place in enumerate(axes):
        if not 0 <= place < len(shape) or shape[place] != x.shape[axis]:
            raise TypeFault(f"`broadcast` of {x} to {out}: axis {axis} does not fit at {place}")
    return out


def _broadcast_view(x: Array, node: Node) -> Array:
    (out,) = node.types
    places = set(attr_ints(node.attrs, "axes"))
    return np.broadcast_to(x.reshape([n if i in places else 1 for i, n in enumerate(out.shape)]), out.shape)


def _broadcast_gradient(b: Builder, n: Node, g: Value) -> Sequence[Value | None]:
    repeated = [i for i in range(g.rank) if i not in set(attr_ints(n.attrs, "axes"))]
    if not repeated:
        return (g,)
    wide = b.cast(g, "f32") if g.dtype == "bf16" else g
    return (b.cast(b.sum(wide, repeated), g.dtype),)


_define(
    "broadcast",
    "x repeated to fill `shape`: axis i of x is axis axes[i] of the result, along the others it repeats.",
    {"shape": "shape of the result", "axes": "increasing places of x's axes in it"},
    _broadcast_type,
    _broadcast_view,
    _broadcast_gradient,
    lambda n, k: {
        "shape": front(k, n.types[0].shape),
        "axes": front(0, [a + 1 for a in attr_ints(n.attrs, "axes")]),
    },
    (
        Sample((F,), {"shape": (3, 2, 4), "axes": (0, 2)}),
        Sample((SCALAR,), {"shape": (2, 3), "axes": ()}),
        Sample((TensorType("bf16", (4,)),), {"shape": (2, 4), "axes": (1,)}),
        Sample((B,), {"shape": (3, 4, 2), "axes": (0, 1)}),
        Sample((TensorType("i32", (1,)),), {"shape": (1, 5), "axes": (0,)}),
    ),
)


def _slice_type(x: TensorType, attrs: Attrs) -> TensorType:
    check_per_axis("slice", x, attrs, "starts", "stops", "steps")
    starts, stops, steps = (attr_ints(attrs, a) for a in ("starts", "stops", "steps"))
    for axis, size in enumerate(x.shape):
        if not 0 <= starts[axis] <= stops[axis] <= size:
            raise TypeFault(
                f"`slice` takes {starts[axis]} to {stops[axis]} of axis {axis} of {x}, whose size is {size}"
            )
        if steps[axis] < 1:
            raise TypeFault(f"`slice` steps by {steps[axis]} along axis {axis} of {x}; a step is at least 1")
    return x.with_shape(tuple(len(range(*bounds)) for bounds in zip(starts, stops, steps, strict=True)))


def _slices(node: Node) -> tuple[slice, ...]:
    bounds = [attr_ints(node.attrs, a) for a in ("starts", "stops", "steps")]
    return tuple(slice(*b) for b in zip(*bounds, strict=True))


def _slice_gradient(b: Builder, n: Node, g: Value) -> Sequence[Value | None]:
    shape = n.inputs[0].shape
    low, high, interior = [], [], []
    for size, kept, cut in zip(shape, g.shape, _slices(n), strict=True):
        span = (kept - 1) * cut.step + 1 if kept else 0
        low.append(cut.start if kept else 0)
        high.append(size - low[-1] - span)
        interior.append(cut.step - 1 if kept else 0)
    return (b.op("pad", g, low=tuple(low), high=tuple(high), interior=tuple(interior)),)


_define(
    "slice",
    "From each axis every steps[a]-th element of x from starts[a] up to, without, stops[a].",
    {"starts": "first element, per axis", "stops": "end, per axis", "steps": "stride, per axis, at least 1"},
    _slice_type,
    lambda x, n: x[_slices(n)],
    _slice_gradient,
    lambda n, k: {
        "starts": front(0, attr_ints(n.attrs, "starts")),
        "stops": front(k, attr_ints(n.attrs, "stops")),
        "steps": front(1, attr_ints(n.attrs, "steps")),
    },
    (
        Sample((F3,), {"starts": (0, 1, 0), "stops": (2, 3, 4), "steps": (1, 1, 2)}),
        Sample((TensorType("f32", (7,)),), {"starts": (1,), "stops": (7,), "steps": (3,)}),
        Sample((TensorType("f32", (3, 2)),), {"starts": (2, 0), "stops": (2, 2), "steps": (2, 1)}),
        Sample((H3,), {"starts": (1, 0, 0), "stops": (2, 2, 4), "steps": (1, 1, 1)}),
        Sample((B,), {"starts": (0, 0), "stops": (1, 4), "steps": (1, 3)}),
    ),
)


def _pad_type(x: TensorType, attrs: Attrs) -> TensorType:
    check_per_axis("pad", x, attrs, "low", "high", "interior")
    low, high, interior = (attr_ints(attrs, a) for a in ("low", "high", "interior"))
    if min((0, *low, *high, *interior)) < 0:
        raise TypeFault(f"`pad` of {x} by a negative amount", help="`slice` takes elements away")
    spread = [size + max(size - 1, 0) * gap for size, gap in zip(x.shape, interior, strict=True)]
    return x.with_shape(tuple(a + n + z for a, n, z in zip(low, spread, high, strict=True)))


def _inside(node: Node) -> tuple[slice, ...]:
    """Where the elements of a `pad` lie in its result."""
    cuts = []
    low, interior = attr_ints(node.attrs, "low"), attr_ints(node.attrs, "interior")
    for size, start, gap in zip(node.inputs[0].shape, low, interior, strict=True):
        cuts.append(slice(start, start + (size - 1) * (gap + 1) + 1 if size else start, gap + 1))
    return tuple(cuts)


def _pad(ctx: Context, node: Node, inputs: Sequence[Array]) -> Array:
    out = np.zeros(node.types[0].shape, inputs[0].dtype)
    out[_inside(node)] = inputs[0]
    return out


def _pad_into(ctx: Context, node: Node, inputs: Sequence[Array], outs: Sequence[Array]) -> None:
    outs[0].fill(0)
    outs[0][_inside(node)] = inputs[0]


def _pad_gradient(b: Builder, n: Node, g: Value) -> Sequence[Value | None]:
    cuts = _inside(n)
    starts, stops, steps = ([getattr(c, part) for c in cuts] for part in ("start", "stop", "step"))
    if (tuple(stops), set(starts), set(steps)) == (g.shape, {0}, {1}):
        return (g,)
    return (b.op("slice", g, starts=tuple(starts), stops=tuple(stops), steps=tuple(steps)),)


def _pad_rule(types: Sequence[TensorType], attrs: Attrs, bodies: Sequence[Graph]) -> tuple[TensorType, ...]:
    check_operands("pad", types, 1)
    return (_pad_type(types[0], attrs),)


def _pad_stacking(
    b: Builder, node: Node, inputs: Sequence[Value], batched: Sequence[bool], k: int
) -> tuple[Value, ...]:
    attrs = {name: front(0, attr_ints(node.attrs, name)) for name in ("low", "high", "interior")}
    return b.node("pad", batch_all(b, inputs, batched, k), attrs).outputs


register(
    OpDef(
        name="pad",
        doc="x with zeros (false) around it and between its elements: each axis grows by "
        "low + high + (size − 1)·interior.",
        work=Work.MOVE,
        params={
            "low": "before, per axis",
            "high": "after, per axis",
            "interior": "between neighbours, per axis",
        },
        type_rule=_pad_rule,
        meaning=_pad,
        into=_pad_into,
        stacking=_pad_stacking,
        gradient=float_gradient(_pad_gradient),
        samples=(
            Sample((F,), {"low": (1, 0), "high": (0, 2), "interior": (0, 0)}),
            Sample((F,), {"low": (0, 1), "high": (2, 0), "interior": (2, 1)}),
            Sample((H3,), {"low": (0, 1, 0), "high": (0, 1, 0), "interior": (0, 0, 0)}),
            Sample((B,), {"low": (1, 1), "high": (1, 1), "interior": (0, 1)}),
            Sample((TensorType("f32", (0, 2)),), {"low": (2, 0), "high": (1, 0), "interior": (3, 1)}),
        ),
        cost=_move_cost,
    )
)


def _concat_rule(types: Sequence[TensorType], attrs: Attrs, bodies: Sequence[Graph]) -> tuple[TensorType, ...]:
    if not types:
        raise TypeFault("`concat` of nothing", "E-CALL-002")
    first, axis = types[0], attr_int(attrs, "axis")
    check_axis("concat", first, axis)
    for other in types[1:]:
        if other.dtype != first.dtype:
            raise TypeFault(f"`concat` of {first} and {other}: dtypes differ", "E-TYPE-001")
        if other.rank != first.rank or without(other.shape, [axis]) != without(first.shape, [axis]):
            raise TypeFault(f"`concat` of {first} and {other} along axis {axis}: their other axes differ")
    total = sum(t.shape[axis] for t in types)
    return (first.with_shape((*first.shape[:axis], total, *first.shape[axis + 1 :])),)


def _concat(ctx: Context, node: Node, inputs: Sequence[Array]) -> Array:
    return np.concatenate(inputs, attr_int(node.attrs, "axis"))


def _concat_into(ctx: Context, node: Node, inputs: Sequence[Array], outs: Sequence[Array]) -> None:
    np.concatenate(inputs, attr_int(node.attrs, "axis"), out=outs[0])


def _concat_gradient(b: Builder, n: Node, g: Value) -> Sequence[Value | None]:
    axis, start, parts = attr_int(n.attrs, "axis"), 0, []
    for x in n.inputs:
        parts.append(b.slice(g, axis, start, start + x.shape[axis]))
        start += x.shape[axis]
    return parts


def _concat_stacking(
    b: Builder, node: Node, inputs: Sequence[Value], batched: Sequence[bool], k: int
) -> tuple[Value, ...]:
    return b.node("concat", batch_all(b, inputs, batched, k), {"axis": attr_int(node.attrs, "axis") + 1}).outputs


register(
    OpDef(
        name="concat",
        doc="The operands one after the other along `axis`; their other axes agree.",
        work=Work.MOVE,
        params={"axis": "the axis along which they follow one another"},
        type_rule=_concat_rule,
        meaning=_concat,
        into=_concat_into,
        stacking=_concat_stacking,
        gradient=float_gradient(_concat_gradient),
        samples=(
            Sample((F, TensorType("f32", (3, 1)), F), {"axis": 1}),
            Sample((TensorType("f32", (2,)), TensorType("f32", (3,))), {"axis": 0}),
            Sample((H3, H3), {"axis": 2}),
            Sample((B, B), {"axis": 0}),
            Sample((I3,), {"axis": 1}),
        ),
        cost=_move_cost,
    )
)


def _reverse_type(x: TensorType, attrs: Attrs) -> TensorType:
    axes = attr_ints(attrs, "axes")
    for axis in axes:
        check_axis("reverse", x, axis)
    if len(set(axes)) != len(axes):
        raise TypeFault(f"`reverse` along axes {list(axes)}: one occurs twice")
    return x


_define(
    "reverse",
    "x with the order of its elements reversed along `axes`.",
    {"axes": "the axes that run backwards"},
    _reverse_type,
    lambda x, n: np.flip(x, attr_ints(n.attrs, "axes")),
    lambda b, n, g: (b.op("reverse", g, axes=n.attrs["axes"]),),
    lambda n, k: {"axes": tuple(a + 1 for a in attr_ints(n.attrs, "axes"))},
    (
        Sample((F3,), {"axes": (1,)}),
        Sample((H3,), {"axes": (0, 2)}),
        Sample((I3,), {"axes": ()}),
        Sample((B,), {"axes": (0, 1)}),
    ),
)
