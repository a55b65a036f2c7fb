"""What every operation owes, derived from its samples: all its rules agree with its meaning."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import sexpgpu.ir.ops  # noqa: F401
from sexpgpu.ir.builder import Builder
from sexpgpu.ir.evaluate import evaluate
from sexpgpu.ir.graph import Node, Value, reachable
from sexpgpu.ir.opdef import OPS, Array, Context, OpDef, Sample, Work
from sexpgpu.ir.types import NUMPY_DTYPES, ORACLE_DTYPES, TensorType

STEP = 1e-6
STACKED = 3

CASES = [
    pytest.param(op, sample, id=f"{op.name}-{number}")
    for op in OPS.values()
    for number, sample in enumerate(op.samples)
]
WITH_INPUTS = [case for case in CASES if case.values[1].types]
DIFFERENTIABLE = [
    case
    for case in WITH_INPUTS
    if case.values[0].gradient is not None
    and case.values[1].differentiable
    and any(t.is_float for t in case.values[1].types)
]
SECOND_ORDER = [
    case
    for case in DIFFERENTIABLE
    if all(t.dtype not in ("bf16", "f64") for t in case.values[1].types) and case.values[0].work is not Work.MAP
]
"""Cases whose gradient is differentiated again; the elementwise ones are compositions of one another."""


def draw(rng: np.random.Generator, type: TensorType, bounds: tuple[float, float] | None) -> Array:
    """Values of `type` in the half-open range `bounds`, in storage of the dtype."""
    if type.dtype == "bool":
        return rng.random(type.shape) < 0.5
    low, high = bounds or (-2, 2)
    if type.is_integer:
        return rng.integers(int(low), int(high), type.shape).astype(NUMPY_DTYPES[type.dtype])
    return rng.uniform(low, high, type.shape).astype(NUMPY_DTYPES[type.dtype])


def bounds_of(sample: Sample) -> Sequence[tuple[float, float] | None]:
    return sample.ranges or (None,) * len(sample.types)


def arrays_of(op: OpDef, sample: Sample, copies: Sequence[int | None] = ()) -> list[Array]:
    """An array per input; where `copies` has a number, with a leading axis of that size."""
    rng = np.random.default_rng(zlib.crc32(f"{op.name} {sample}".encode()))
    sizes = copies or (None,) * len(sample.types)
    made = []
    for type, bounds, size in zip(sample.types, bounds_of(sample), sizes, strict=True):
        shape = type.shape if size is None else (size, *type.shape)
        made.append(draw(rng, type.with_shape(shape), bounds))
    return made


def built(op: OpDef, sample: Sample) -> tuple[Builder, Node]:
    b = Builder()
    inputs = [b.input(f"x{i}", t) for i, t in enumerate(sample.types)]
    return b, b.node(op.name, inputs, sample.attrs, sample.bodies)


def as_tuple(result: Array | tuple[Array, ...]) -> tuple[Array, ...]:
    return result if isinstance(result, tuple) else (result,)


def run(b: Builder, outputs: Sequence[Value], arrays: Sequence[Array], *, double: bool = False) -> list[Array]:
    """The values of `outputs`, given the arrays of inputs x0, x1, …"""
    graph = b.graph("test", [(str(i), v) for i, v in enumerate(outputs)])
    return list(evaluate(graph, {f"x{i}": a for i, a in enumerate(arrays)}, double=double).values())


def assert_same(actual: Array, expected: Array, type: TensorType, *, exact: bool = False) -> None:
    assert actual.shape == expected.shape
    if not type.is_float or exact:
        np.testing.assert_array_equal(actual, expected)
        return
    tolerance = 1e-2 if type.dtype == "bf16" else 2e-5
    wide = (a.astype(np.float64) for a in (actual, expected))
    np.testing.assert_allclose(*wide, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("op", "sample"), [c for c in CASES if c.values[0].name != "input"])
@pytest.mark.parametrize("dtypes", [NUMPY_DTYPES, ORACLE_DTYPES], ids=["single", "double"])
def test_meaning_has_the_type_of_the_rule(op: OpDef, sample: Sample, dtypes: dict[str, Any]) -> None:
    _, node = built(op, sample)
    ctx = Context(dtypes)
    arrays = [a.astype(ctx.dtype(t)) for a, t in zip(arrays_of(op, sample), sample.types, strict=True)]
    before = [a.copy() for a in arrays]
    results = as_tuple(op.meaning(ctx, node, arrays))
    assert [(r.shape, r.dtype) for r in results] == [(t.shape, ctx.dtype(t)) for t in node.types]
    for array, kept in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(array, kept)


def dotted(results: Sequence[Array], cotangents: Sequence[Array | None]) -> float:
    return sum(float(np.sum(r * g)) for r, g in zip(results, cotangents, strict=True) if g is not None)


@pytest.mark.parametrize(("op", "sample"), DIFFERENTIABLE)
def test_gradient_agrees_with_finite_differences(op: OpDef, sample: Sample) -> None:
    b, node = built(op, sample)
    arrays = [a.astype(ORACLE_DTYPES[t.dtype]) for a, t in zip(arrays_of(op, sample), sample.types, strict=True)]
    rng = np.random.default_rng(5)
    feeds: list[Array] = list(arrays)
    cotangents: list[Value | None] = []
    given: list[Array | None] = []
    for type in node.types:
        if not type.is_float:
            cotangents.append(None)
            given.append(None)
            continue
        cotangents.append(b.input(f"x{len(feeds)}", type))
        given.append(rng.uniform(-1, 1, type.shape))
        feeds.append(given[-1])
    assert op.gradient is not None
    gradients = op.gradient(b, node, cotangents)
    assert len(gradients) == len(node.inputs)
    wanted = [(i, g) for i, g in enumerate(gradients) if g is not None]
    for i, g in wanted:
        assert g.type == node.inputs[i].type
    computed = dict(zip([i for i, _ in wanted], run(b, [g for _, g in wanted], feeds, double=True), strict=True))
    for i, (array, type) in enumerate(zip(arrays, sample.types, strict=True)):
        if not type.is_float:
            assert i not in computed
            continue
        numeric = np.zeros(array.shape)
        for place in np.ndindex(array.shape):
            sides = []
            for step in (STEP, -STEP):
                moved = [a.copy() for a in arrays]
                moved[i][place] += step
                sides.append(dotted(run(b, node.outputs, moved, double=True), given))
            numeric[place] = (sides[0] - sides[1]) / (2 * STEP)
        np.testing.assert_allclose(computed.get(i, np.zeros(array.shape)), numeric, rtol=1e-6, atol=1e-7)


def pulled_back(b: Builder, output: Value, cotangent: Value) -> dict[Value, Value]:
    """Cotangents of every float value that `output` needs: a plain reverse sweep."""
    found = {output: cotangent}
    for node in reversed(reachable((output,))):
        rule, received = OPS[node.op].gradient, [found.get(v) for v in node.outputs]
        if all(g is None for g in received):
            continue
        assert rule is not None, node
        for value, g in zip(node.inputs, rule(b, node, received), strict=True):
            if g is not None:
                found[value] = b.add(found[value], g) if value in found else g
    return found


@pytest.mark.parametrize(("op", "sample"), SECOND_ORDER)
def test_gradient_of_the_gradient(op: OpDef, sample: Sample) -> None:
    """The slope of g·h along a random direction, where g is the gradient and h another random direction."""
    b, node = built(op, sample)
    floats = [i for i, t in enumerate(sample.types) if t.is_float]
    rng = np.random.default_rng(6)
    feeds: list[Array] = [
        a.astype(ORACLE_DTYPES[t.dtype]) for a, t in zip(arrays_of(op, sample), sample.types, strict=True)
    ]
    cotangents = [b.input(f"x{len(feeds) + i}", t) for i, t in enumerate(node.types)]
    feeds += [rng.uniform(-1, 1, t.shape) for t in node.types]
    assert op.gradient is not None
    gradients = op.gradient(b, node, cotangents)
    total = b.constant(0.0, TensorType("f32", ()))
    for i in floats:
        g = gradients[i]
        if g is not None:
            weights = b.input(f"x{len(feeds)}", g.type)
            feeds.append(rng.uniform(-1, 1, g.shape))
            total = b.add(total, b.sum(b.mul(g, weights), range(g.rank)))
    found = pulled_back(b, total, b.like(1.0, total))
    moving = [*floats, *range(len(sample.types), len(sample.types) + len(node.types))]
    directions = {i: rng.uniform(-1, 1, feeds[i].shape) for i in moving}
    expected = 0.0
    for i, direction in directions.items():
        value = (*node.inputs, *cotangents)[i]
        if value in found:
            expected += float(np.sum(run(b, [found[value]], feeds, double=True)[0] * direction))
    sides = []
    for step in (STEP, -STEP):
        moved = [a + step * directions[i] if i in directions else a for i, a in enumerate(feeds)]
        sides.append(float(run(b, [total], moved, double=True)[0]))
    np.testing.assert_allclose(expected, (sides[0] - sides[1]) / (2 * STEP), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("op", "sample"), DIFFERENTIABLE)
def test_no_cotangent_gives_no_gradient(op: OpDef, sample: Sample) -> None:
    b, node = built(op, sample)
    assert op.gradient is not None
    assert not any(op.gradient(b, node, [None] * len(node.types)))


@pytest.mark.parametrize(("op", "sample"), WITH_INPUTS)
def test_stacked_is_a_loop_over_microbatches(op: OpDef, sample: Sample) -> None:
    for batched in itertools.product((False, True), repeat=len(sample.types)):
        if not any(batched):
            continue
        b, node = built(op, sample)
        stacked = Builder()
        arrays = arrays_of(op, sample, [STACKED if flag else None for flag in batched])
        inputs = []
        for i, (type, flag) in enumerate(zip(sample.types, batched, strict=True)):
            shape = (STACKED, *type.shape) if flag else type.shape
            inputs.append(stacked.input(f"x{i}", type.with_shape(shape)))
        outputs = op.stacking(stacked, node, inputs, batched, STACKED)
        assert [o.type for o in outputs] == [t.with_shape((STACKED, *t.shape)) for t in node.types]
        together = run(stacked, outputs, arrays)
        for k in range(STACKED):
            alone = run(b, node.outputs, [a[k] if flag else a for a, flag in zip(arrays, batched, strict=True)])
            for whole, part, type in zip(together, alone, node.types, strict=True):
                assert_same(whole[k], part, type, exact=op.work not in (Work.CONTRACT, Work.CONV))


def strided(array: Array) -> Array:
    """The same elements with gaps between them and, where there are two axes, in another order."""
    room = np.zeros([2 * n + 1 for n in reversed(array.shape)], array.dtype).T
    view = room[(*(slice(1, None, 2) for _ in array.shape), ...)]
    view[...] = array
    return view


@pytest.mark.parametrize(("op", "sample"), [c for c in CASES if c.values[0].into is not None])
@pytest.mark.parametrize("layout", ["dense", "strided inputs", "strided output", "broadcast inputs"])
def test_into_agrees_with_meaning(op: OpDef, sample: Sample, layout: str) -> None:
    _, node = built(op, sample)
    arrays = arrays_of(op, sample)
    if layout == "broadcast inputs":
        arrays = [
            np.broadcast_to(a.reshape(-1)[0], a.shape) if a.size and t.is_float else a
            for a, t in zip(arrays, sample.types, strict=True)
        ]
    ctx = Context()
    expected = as_tuple(op.meaning(ctx, node, arrays))
    given = [strided(a) for a in arrays] if layout == "strided inputs" else arrays
    outs = [np.full(t.shape, 1, NUMPY_DTYPES[t.dtype]) for t in node.types]
    if layout == "strided output":
        outs = [strided(o) for o in outs]
    assert op.into is not None
    op.into(ctx, node, given, outs)
    for out, wanted, type in zip(outs, expected, node.types, strict=True):
        assert_same(out, wanted, type)
    for again, wanted, type in zip(as_tuple(op.meaning(ctx, node, given)), expected, node.types, strict=True):
        assert_same(again, wanted, type)


SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 1e38, -1e38, 1e-45, 2.5)


@pytest.mark.parametrize(
    ("op", "sample"), [c for c in WITH_INPUTS if any(t.dtype in ("f32", "bf16") for t in c.values[1].types)]
)
def test_special_values_warn_of_nothing(op: OpDef, sample: Sample) -> None:
    _, node = built(op, sample)
    arrays = arrays_of(op, sample)
    for i, type in enumerate(sample.types):
        if type.is_float:
            values = np.roll(np.resize(np.array(SPECIAL), type.size), 3 * i)
            arrays[i] = values.reshape(type.shape).astype(NUMPY_DTYPES[type.dtype])
    expected = as_tuple(op.meaning(Context(), node, arrays))
    if op.into is None:
        return
    outs = [np.zeros(t.shape, NUMPY_DTYPES[t.dtype]) for t in node.types]
    op.into(Context(), node, arrays, outs)
    for out, wanted, type in zip(outs, expected, node.types, strict=True):
        assert_same(out, wanted, type)


@pytest.mark.parametrize(("op", "sample"), CASES)
def test_cost_counts_something(op: OpDef, sample: Sample) -> None:
    _, node = built(op, sample)
    cost = op.cost(node)
    assert cost.flops >= 0
    assert cost.bytes >= 0


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_every_operation_is_described(op: OpDef) -> None:
    assert op.doc.endswith(".")
    for sample in op.samples:
        assert set(sample.attrs) == set(op.params)
        assert len(sample.ranges) in (0, len(sample.types))


@pytest.mark.parametrize(("op", "sample"), [c for c in CASES if c.values[0].prepare is not None])
@pytest.mark.parametrize("layout", ["contiguous", "reversed"])
def test_prepared_calls_agree_with_meaning(op: OpDef, sample: Sample, layout: str) -> None:
    """Twice, so that the first call leaves nothing behind; each stage's calls in either order."""
    _, node = built(op, sample)
    ctx = Context()
    arrays = arrays_of(op, sample)
    if layout == "reversed":
        arrays = [np.asarray(a, order="F") for a in arrays]
    expected = as_tuple(op.meaning(ctx, node, arrays))
    outs = [np.zeros(t.shape, ctx.dtype(t), "C" if layout == "contiguous" else "F") for t in node.types]
    assert op.prepare is not None
    stages = op.prepare(ctx, node, arrays, outs)
    for _ in range(2):
        for stage in stages:
            for call in reversed(stage):
                call()
        for out, wanted, type in zip(outs, expected, node.types, strict=True):
            assert_same(out, wanted, type)


@pytest.mark.parametrize(("op", "sample"), [c for c in CASES if c.values[0].ufunc is not None])
def test_a_ufunc_is_the_whole_meaning(op: OpDef, sample: Sample) -> None:
    _, node = built(op, sample)
    arrays = arrays_of(op, sample)
    (expected,) = as_tuple(op.meaning(Context(), node, arrays))
    assert op.ufunc is not None and op.work in (Work.MAP, Work.REDUCE)
    if op.work is Work.MAP:
        actual = op.ufunc(*arrays)
    else:
        actual = op.ufunc.reduce(arrays[0], node.attrs["axes"], Context().dtype(node.types[0]))
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "i64", "bool"])
@pytest.mark.parametrize("alias", ["none", "x", "y", "both", "test"])
def test_where_may_write_over_what_it_reads(dtype: str, alias: str) -> None:
    """Bits are kept whatever they mean: NaN of any kind, infinities, negative zeros."""
    rng = np.random.default_rng(5)
    stored = NUMPY_DTYPES[dtype]
    test = rng.random((7, 9)) > 0.5
    x, y = (rng.integers(0, 2 if dtype == "bool" else 256, (7, 9 * stored.itemsize), np.uint8).view(stored)
            for _ in range(2))  # fmt: skip
    if alias == "both":
        y = x
    if alias == "test" and dtype != "bool":
        pytest.skip("of another size")
    expected = np.where(test, x, y)
    b = Builder()
    types = [TensorType(d, (7, 9)) for d in ("bool", dtype, dtype)]
    node = b.node("where", [b.input(f"x{i}", t) for i, t in enumerate(types)], {})
    out = {"none": np.empty_like(x), "x": x, "y": y, "both": x, "test": test}[alias]
    into = OPS["where"].into
    assert into is not None
    into(Context(), node, (test, x, y), (out,))
    assert out.tobytes() == expected.tobytes()
