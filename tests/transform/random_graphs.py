"""Random well-typed graphs over all differentiable operations together, loops among them.

Each seed grows a graph of small float and integer values. Operands are squashed into ranges where functions
are smooth and of moderate size, so that central differences in f64 mean something.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

import sexpgpu.ir.ops  # noqa: F401
from sexpgpu.ir.builder import Builder
from sexpgpu.ir.composites import make
from sexpgpu.ir.graph import Graph, Value
from sexpgpu.ir.opdef import OPS, Array, Work, no_gradient
from sexpgpu.ir.ops.scan import scan
from sexpgpu.ir.types import NUMPY_DTYPES, TensorType
from sexpgpu.transform.autodiff import differentiate

MAX_SIZE = 64
MAX_RANK = 5
BOUNDS = {"div": (0.5, 2.0), "pow": (0.5, 2.0), "log": (0.3, 3.0), "log1p": (-0.5, 2.0), "sqrt": (0.3, 3.0),
          "rsqrt": (0.3, 3.0)}  # fmt: skip
"""Where an operand has to lie for its function to be smooth."""


def _functions() -> dict[str, int]:
    """Differentiable elementwise operations on f32 alone, with the number of their operands."""
    found = {}
    for op in OPS.values():
        types = op.samples[0].types if op.samples else ()
        smooth = op.gradient not in (None, no_gradient)
        if op.work is Work.MAP and smooth and not op.params and {t.dtype for t in types} == {"f32"}:
            found[op.name] = len(types)
    return found


FUNCTIONS = _functions()


@dataclass
class Grower:
    """One graph in the making."""

    rng: np.random.Generator
    b: Builder = field(default_factory=Builder)
    floats: list[Value] = field(default_factory=list)
    indices: list[Value] = field(default_factory=list)
    bounds: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Half-open range of each index input."""

    def shape(self, rank: int | None = None) -> tuple[int, ...]:
        rank = int(self.rng.integers(0, 4)) if rank is None else rank
        return tuple(int(n) for n in self.rng.integers(1, 4, rank))

    def any(self, min_rank: int = 0) -> Value:
        fitting = [v for v in self.floats if v.rank >= min_rank]
        if not fitting:
            return self.b.broadcast(self.floats[-1], (2,) * min_rank + self.floats[-1].shape,
                                    range(min_rank, min_rank + self.floats[-1].rank))  # fmt: skip
        # Later values more often, so that graphs grow deep.
        return fitting[max(self.rng.integers(len(fitting)), self.rng.integers(len(fitting)))]

    def like(self, x: Value) -> Value:
        """Another value of x's type, one that is there or one made by reduction and broadcast."""
        same = [v for v in self.floats if v.type == x.type]
        if len(same) > 1 and self.rng.random() < 0.7:
            return same[self.rng.integers(len(same))]
        return self.shaped(x.shape)

    def shaped(self, shape: tuple[int, ...]) -> Value:
        """A value of that shape: another one's mean, spread out and given a slope, so that elements vary."""
        source = self.any()
        mean = self.b.scale(self.b.sum(source, range(source.rank)), 1 / source.type.size)
        spread = self.b.broadcast(mean, shape, ())
        slope = [float(x) for x in self.rng.uniform(-1, 1, int(np.prod(shape)))]
        return self.b.add(spread, self.b.literal(slope, spread.type))

    def squashed(self, x: Value, low: float, high: float) -> Value:
        return self.b.add(self.b.scale(self.b.op("sigmoid", x), high - low), self.b.like(low, x))

    def index(self, shape: tuple[int, ...], low: int, stop: int) -> Value:
        name = f"feed:i{len(self.indices)}"
        self.bounds[name] = low, stop
        self.indices.append(self.b.input(name, TensorType("i32", shape)))
        return self.indices[-1]

    def axis(self, x: Value) -> int:
        return int(self.rng.integers(x.rank))

    def grow(self, actions: Sequence[Callable[[Grower], Value]]) -> None:
        """One more value, by one of `actions`, unless it is large."""
        action = actions[self.rng.integers(len(actions))]
        made = action(self)
        assert made.type.is_float
        if made.type.size <= MAX_SIZE and made.rank <= MAX_RANK:
            self.floats.append(made)


def function(g: Grower) -> Value:
    name = list(FUNCTIONS)[g.rng.integers(len(FUNCTIONS))]
    x = g.any()
    operands = [x, *(g.like(x) for _ in range(FUNCTIONS[name] - 1))]
    low, high = BOUNDS.get(name, (-1.5, 1.5))
    bounded = [name in BOUNDS or g.rng.random() < 0.5 for _ in operands]
    tamed = [
        g.squashed(v, low, high) if bound else g.b.op("tanh", v) for v, bound in zip(operands, bounded, strict=True)
    ]
    return g.b.op(name, *tamed)


def with_constant(g: Grower) -> Value:
    x = g.any()
    constant = g.b.like([0.0, 1.0, -1.0, 2.0, -0.5][g.rng.integers(5)], x)
    name = ["add", "sub", "mul", "mul-or-zero", "maximum", "minimum"][g.rng.integers(6)]
    return g.b.op(name, *((x, constant) if g.rng.random() < 0.5 else (constant, x)))


def choice(g: Grower) -> Value:
    x = g.any()
    y = g.like(x)
    test = g.b.op(["lt", "ge"][g.rng.integers(2)], x, y)
    if g.rng.random() < 0.3:
        test = g.b.op("not", test)
    return g.b.where(test, g.b.neg(x) if g.rng.random() < 0.5 else x, y)


def casts(g: Grower) -> Value:
    x = g.any()
    return g.b.cast(g.b.cast(x, "f64"), "f32")


def reshape(g: Grower) -> Value:
    x = g.any()
    sizes = [n for n in x.shape if n > 1]
    if g.rng.random() < 0.5:
        return g.b.reshape(x, (x.type.size,))
    sizes.insert(g.rng.integers(len(sizes) + 1), 1)
    return g.b.reshape(x, sizes)


def transpose(g: Grower) -> Value:
    x = g.any()
    return g.b.transpose(x, [int(p) for p in g.rng.permutation(x.rank)])


def broadcast(g: Grower) -> Value:
    x = g.any()
    places = sorted(int(p) for p in g.rng.permutation(x.rank + 1)[: x.rank])
    shape = [int(g.rng.integers(1, 4))] * (x.rank + 1)
    for axis, place in enumerate(places):
        shape[place] = x.shape[axis]
    return g.b.broadcast(x, shape, places)


def cut(g: Grower) -> Value:
    x = g.any(1)
    starts = [int(g.rng.integers(n)) if g.rng.random() < 0.5 else 0 for n in x.shape]
    stops = [int(g.rng.integers(s + 1, n + 1)) for s, n in zip(starts, x.shape, strict=True)]
    steps = tuple(int(n) for n in g.rng.integers(1, 3, x.rank))
    return g.b.op("slice", x, starts=tuple(starts), stops=tuple(stops), steps=steps)


def pad(g: Grower) -> Value:
    x = g.any(1)
    low, high, interior = (tuple(int(n) for n in g.rng.integers(0, 2, x.rank)) for _ in range(3))
    return g.b.op("pad", x, low=low, high=high, interior=interior)


def concat(g: Grower) -> Value:
    x = g.any(1)
    parts = [x, *(g.like(x) for _ in range(g.rng.integers(0, 3)))]
    return g.b.op("concat", *parts, axis=g.axis(x))


def parts_of_one(g: Grower) -> Value:
    """Slices of one value, each used: their gradients meet again."""
    x = g.any(1)
    axis = g.axis(x)
    size = x.shape[axis]
    at = int(g.rng.integers(size + 1))
    parts = [g.b.slice(x, axis, start, stop) for start, stop in ((0, at), (at, size)) if start < stop]
    return g.b.op("concat", *[g.b.op("tanh", part) for part in reversed(parts)], axis=axis)


def reverse(g: Grower) -> Value:
    x = g.any(1)
    return g.b.op("reverse", x, axes=(g.axis(x),))


def fold(g: Grower) -> Value:
    x = g.any()
    axes = tuple(i for i in range(x.rank) if g.rng.random() < 0.5)
    return g.b.op(["sum", "max", "min", "prod"][g.rng.integers(4)], g.b.op("tanh", x), axes=axes)


def running(g: Grower) -> Value:
    x = g.any(1)
    return g.b.op(["cumsum", "cumprod", "cummax"][g.rng.integers(3)], g.b.op("tanh", x), axis=g.axis(x))


def product(g: Grower) -> Value:
    x = g.any()
    left = "abcdefgh"[: x.rank]
    right = "".join(c for c in left if g.rng.random() < 0.6) + "xy"[: g.rng.integers(0, 3)]
    right = "".join(right[i] for i in g.rng.permutation(len(right)))
    sizes = dict(zip(left, x.shape, strict=True))
    y = g.shaped(tuple(sizes.get(c, 2) for c in right))
    out = "".join(c for c in dict.fromkeys(left + right) if g.rng.random() < 0.6)
    out = "".join(out[i] for i in g.rng.permutation(len(out)))
    return g.b.product(f"{left},{right}->{out}", g.b.op("tanh", x), y)


def convolution(g: Grower) -> Value:
    x = g.shaped((1, 4, 2))
    kernel = g.shaped((2, 2, 2)) if g.rng.random() < 0.5 else g.shaped((2, 1, 2))
    attrs = {name: (int(g.rng.integers(1, 3)),) for name in ("stride", "dilation", "input_dilation")}
    attrs |= {name: (int(g.rng.integers(0, 2)),) for name in ("low", "high")}
    return g.b.op("conv", x, kernel, groups=2 // kernel.shape[1], **attrs)


def gather(g: Grower) -> Value:
    x = g.any(1)
    axis = g.axis(x)
    batch = int(g.rng.integers(axis + 1))
    # In range: a clamped index is a fault, and its gradient goes nowhere.
    i = g.index(x.shape[:batch] + g.shape(int(g.rng.integers(2))), 0, x.shape[axis])
    return g.b.op("gather", x, i, axis=axis, batch=batch)


def pick(g: Grower) -> Value:
    x = g.any(1)
    axis = g.axis(x)
    return g.b.op("pick", x, g.index(x.shape[:axis] + x.shape[axis + 1 :], 0, x.shape[axis]), axis=axis)


def scatter(g: Grower) -> Value:
    x = g.any(1)
    axis = g.axis(x)
    batch = int(g.rng.integers(axis + 1))
    i = g.index(x.shape[:batch] + g.shape(int(g.rng.integers(2))), -1, x.shape[axis] + 1)
    v = g.shaped(x.shape[:axis] + i.shape[batch:] + x.shape[axis + 1 :])
    how = ["set", "add", "max", "min"][g.rng.integers(4)]
    return g.b.op("scatter", x, i, v, axis=axis, batch=batch, fold=how)


def rounded(g: Grower) -> Value:
    """Through bf16, moved there: in f64 mode nothing is rounded, so slopes stay what they are."""
    x = g.b.cast(g.any(1), "bf16")
    return g.b.cast(g.b.op("reverse", x, axes=(g.axis(x),)), "f32")


def largest(g: Grower) -> Value:
    """The largest of each row by its position, and a count of integers beside it."""
    x = g.any(1)
    axis = g.axis(x)
    at = g.b.op("argmax", x, axis=axis)
    same = g.b.op("eq", at, g.b.op("quotient", g.b.mul(at, g.b.like(2, at)), g.b.like(2, at)))
    return g.b.mul(g.b.op("pick", x, at, axis=axis), g.b.cast(same, "f32"))


def noisy(g: Grower) -> Value:
    x = g.any()
    stream, trip = (
        g.b.input("feed:stream", TensorType("i64", ())),
        g.b.input("feed:trip", TensorType("i32", ())),
    )
    g.bounds |= {"feed:stream": (0, 2**40), "feed:trip": (0, 5)}
    drawn = g.b.op("random-uniform", stream, trip, shape=x.shape, site=int(g.rng.integers(2)))
    return g.b.mul(x, drawn)


def composite(g: Grower) -> Value:
    x = g.b.op("tanh", g.any(1))
    name = ["softmax", "logsumexp", "gelu", "silu", "layer-norm", "rms-norm"][g.rng.integers(6)]
    row = x.shape[-1:]
    inputs = {"layer-norm": [x, g.shaped(row), g.shaped(row)], "rms-norm": [x, g.shaped(row)]}.get(name, [x])
    # A wide epsilon: a row of one element has no variance.
    return make(g.b, name, inputs, eps=0.1).outputs[0]


def cross_entropy(g: Grower) -> Value:
    x = g.any(1)
    return make(g.b, "cross-entropy", [x, g.index(x.shape[:-1], 0, x.shape[-1])]).outputs[0]


def attention(g: Grower) -> Value:
    q, k, v = g.shaped((2, 3, 2)), g.shaped((2, 3, 2)), g.shaped((2, 3, 2))
    return make(g.b, "attention", [q, k, v], causal=bool(g.rng.integers(2)), scale=0.7).outputs[0]


LENGTH = 3


def loop(g: Grower) -> Value:
    """A scan over a value: its body grows like a graph of its own, over a carry, a place and a captured value."""
    x = g.any(1)
    axis = g.axis(x)
    walked = g.b.transpose(x, (axis, *(i for i in range(x.rank) if i != axis)))
    start, held = g.any(), g.any()
    inner = Grower(g.rng)
    given = [inner.b.input(n, t) for n, t in (("c0", start.type), ("x0", walked.type.with_shape(walked.shape[1:])),
                                              ("k0", held.type))]  # fmt: skip
    inner.floats = list(given)
    for _ in range(int(g.rng.integers(1, 4))):
        inner.grow(SIMPLE)
    after = inner.b.op("tanh", inner.b.add(inner.like(given[0]), given[0]))
    node = scan(g.b, [start], [walked], [held], inner.b, given, [after], [inner.any()], length=walked.shape[0],
                reverse=bool(g.rng.integers(2)))  # fmt: skip
    return node.outputs[int(g.rng.integers(2))]


def table_loop(g: Grower) -> Value:
    """Rows of a table read, changed and written back, one after the other and some of them twice."""
    table, new = g.shaped((2, 2)), g.shaped((LENGTH, 2))
    places = g.index((LENGTH,), 0, 2)
    b = Builder()
    given = [b.input(n, t) for n, t in (("c0", table.type), ("x0", places.type.with_shape(())),
                                        ("x1", new.type.with_shape((2,))))]  # fmt: skip
    held, i, x = given
    row = b.op("gather", held, i, axis=0, batch=0)
    changed = b.op("tanh", b.add(b.mul(row, x), x))
    after = b.op("scatter", held, i, changed, axis=0, batch=0, fold="set")
    backwards = bool(g.rng.integers(2))
    node = scan(g.b, [table], [places, new], [], b, given, [after], [row], length=LENGTH, reverse=backwards)
    return node.outputs[int(g.rng.integers(2))]


SIMPLE = (function, with_constant, choice, casts, transpose, broadcast, fold, running, product, rounded, composite)
"""Ways to grow that need no input of the graph, so that the body of a loop grows by them too."""

NEEDS = {
    function: "add",
    with_constant: "add",
    choice: "where",
    casts: "cast",
    reshape: "reshape",
    transpose: "transpose",
    broadcast: "broadcast",
    cut: "slice",
    pad: "pad",
    concat: "concat",
    parts_of_one: "slice",
    reverse: "reverse",
    fold: "prod",
    running: "cumprod",
    product: "product",
    convolution: "conv",
    gather: "gather",
    pick: "pick",
    scatter: "scatter",
    rounded: "cast",
    largest: "argmax",
    noisy: "random-uniform",
    composite: "composite",
    cross_entropy: "composite",
    attention: "composite",
    loop: "scan",
    table_loop: "scan",
}
"""Each way to grow, and the operation that it is there for."""
ACTIONS: list[Callable[[Grower], Value]] = [*NEEDS, *[function] * 6]


@dataclass(frozen=True)
class Case:
    forward: Graph
    values: dict[str, Array]

    @property
    def floats(self) -> list[str]:
        return [name for name in self.forward.input_names if name.startswith("slot:")]


def grown(seed: int) -> Case:
    g = Grower(np.random.default_rng(seed))
    for n in range(3):
        g.floats.append(g.b.input(f"slot:x{n}", TensorType("f32", g.shape())))
    for _ in range(int(g.rng.integers(4, 14))):
        g.grow(ACTIONS)
    terms = [g.b.sum(g.b.op("tanh", v), range(v.rank)) for v in g.floats[-3:]]
    loss = terms[0]
    for term in terms[1:]:
        loss = g.b.add(loss, term)
    graph = g.b.graph("loss", [("result:loss", loss), ("result:last", g.floats[-1])])
    values: dict[str, Array] = {}
    for name, v in zip(graph.input_names, graph.inputs, strict=True):
        bounds = g.bounds.get(name)
        drawn = g.rng.uniform(-1.2, 1.2, v.shape) if bounds is None else g.rng.integers(*bounds, v.shape)
        values[name] = np.asarray(drawn, NUMPY_DTYPES[v.dtype])
    return Case(graph, values)


def with_gradients(case: Case) -> Graph:
    b = Builder()
    inputs = {name: b.input(name, v.type) for name, v in zip(case.floats, _float_inputs(case), strict=True)}
    loss, _ = b.copy(case.forward)
    gradients = differentiate(b, {loss: b.like(1.0, loss)}, list(inputs.values()))
    found = [(f"result:d.{name}", g) for name, g in zip(inputs, gradients, strict=True) if g is not None]
    return b.graph("gradients", [("result:loss", loss), *found])


def _float_inputs(case: Case) -> list[Value]:
    return [v for v in case.forward.inputs if v.type.is_float]
