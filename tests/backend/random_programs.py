"""Random programs for the tests of plans and sessions: elementwise work, movement, reductions, products."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import numpy as np

import sexpgpu.ir.ops  # noqa: F401
from sexpgpu.backend.protocol import Call, Session
from sexpgpu.ir.builder import Builder
from sexpgpu.ir.evaluate import evaluate
from sexpgpu.ir.graph import Value
from sexpgpu.ir.opdef import Array
from sexpgpu.ir.program import FEED, RESULT, SLOT, Phase, Program, Slot
from sexpgpu.ir.types import NUMPY_DTYPES, TensorType

SHAPES = [(), (3,), (4, 3), (2, 4, 3), (2, 3, 4), (6, 4), (5, 1), (1, 3)]
LONGER = {3: 33, 4: 20, 6: 66}
"""What the sizes of axes become in large programs: more than a vector, and no multiple of one."""
UNARY = ["neg", "abs", "tanh", "exp", "sin", "floor", "sign", "sigmoid", "erf", "stop-gradient"]
JUMPS = ["floor", "sign"]
"""Of the above, those where the last bit of an operand decides."""
CASTS = ("bf16", "i32", "f64")
BINARY = ["add", "sub", "mul", "minimum", "maximum", "mul-or-zero"]


def random_values(rng: random.Random, type: TensorType) -> Array:
    made = np.random.default_rng(rng.randrange(1 << 30))
    values = made.integers(-3, 4, type.shape) if type.is_integer else made.normal(size=type.shape)
    return np.asarray(values > 0 if type.dtype == "bool" else values).astype(NUMPY_DTYPES[type.dtype])


class _Grower:
    def __init__(
        self, rng: random.Random, shapes: Sequence[tuple[int, ...]], most: int, smooth: bool, casts: Sequence[str]
    ) -> None:
        self.rng = rng
        self.casts = casts
        self.smooth = smooth
        self.num_given = 0
        self.shapes, self.most = shapes, most
        self.b = Builder()
        self.pool: list[Value] = []

    def pick(self, dtype: str = "f32") -> Value:
        fitting = [v for v in self.pool if v.dtype == dtype]
        return self.rng.choice(fitting[-12:] if self.rng.random() < 0.7 else fitting)

    def partner(self, x: Value) -> Value:
        same = [v for v in self.pool if v.type == x.type]
        return self.rng.choice(same) if self.rng.random() < 0.8 else self.b.like(0.5, x)

    def grow(self) -> None:
        rng, b = self.rng, self.b
        x = self.pick()
        kind = rng.choice(
            [
                "unary",
                "binary",
                "binary",
                "where",
                "cast",
                "move",
                "move",
                "move",
                "fold",
                "product",
                "concat",
            ]
        )
        if kind == "unary":
            names = [name for name in UNARY if name not in JUMPS] if self.smooth else UNARY
            y = b.op(rng.choice(names), b.op("tanh", x))
        elif kind == "binary":
            y = b.op(rng.choice(BINARY), x, self.partner(x))
        elif kind == "where":
            least = self.partner(x)
            y = b.where(b.op("gt", x, least), least if self.smooth else self.partner(x), x)
        elif kind == "cast":
            known = rng.choice(self.pool[: self.num_given]) if self.smooth else b.op("tanh", x)
            y = b.cast(b.cast(known, rng.choice(self.casts)), "f32")
        elif kind == "move":
            y = self.move(b.cast(x, "bf16") if rng.random() < 0.1 and not self.smooth else x)
            y = b.cast(y, "f32")
        elif kind == "fold":
            axes = tuple(axis for axis in range(x.rank) if rng.random() < 0.5)
            y = b.op(rng.choice(["sum", "max", "min"]), x, axes=axes) if axes else x
        elif kind == "concat" and x.rank and 2 * x.type.size <= self.most:
            y = b.op("concat", x, self.partner(x), axis=rng.randrange(x.rank))
        elif kind == "product" and x.rank == 2:
            z = b.transpose(self.partner(x), (1, 0))
            y = b.op("tanh", b.product("ab,bc->ac", x, z))
        else:
            return
        if y.type.size <= self.most:
            self.pool.append(y)

    def move(self, x: Value) -> Value:
        rng, b = self.rng, self.b
        kind = rng.choice(["transpose", "slice", "reverse", "reshape", "broadcast"])
        if kind == "transpose":
            return b.transpose(x, rng.sample(range(x.rank), x.rank))
        if kind == "reverse" and x.rank:
            return b.op("reverse", x, axes=tuple(sorted(rng.sample(range(x.rank), rng.randint(1, x.rank)))))
        if kind == "slice" and x.rank:
            starts = tuple(rng.randrange(size) for size in x.shape)
            steps = tuple(rng.randint(1, 2) for _ in x.shape)
            return b.op("slice", x, starts=starts, stops=x.shape, steps=steps)
        if kind == "reshape":
            fitting = [s for s in self.shapes if np.prod(s, dtype=int) == x.type.size]
            return b.reshape(x, rng.choice([*fitting, (x.type.size,)]))
        if kind == "broadcast" and x.rank < 3:
            at = rng.randint(0, x.rank)
            shape = (*x.shape[:at], rng.randint(1, 3), *x.shape[at:])
            return b.broadcast(x, shape, [i for i in range(len(shape)) if i != at])
        return x


def random_program(
    seed: int, num_phases: int = 2, large: bool = False, smooth: bool = False, casts: Sequence[str] = CASTS
) -> tuple[Program, dict[str, Array], dict[str, dict[str, Array]]]:
    """A program, contents of its slots, and feeds for each phase.

    large: with axes of tens of elements. smooth: values do not depend on the last bits of others, so that two devices
    agree to rounding. casts: the dtypes that values pass through.
    """
    rng = random.Random(seed)
    shapes = [tuple([LONGER.get(n, n) if large else n for n in shape]) for shape in SHAPES]
    slots = tuple(
        Slot(f"s{i}", TensorType("f32", rng.choice(shapes)), rng.choice(["parameter", "gradient"])) for i in range(5)
    )
    phases, feeds = [], {}
    for number in range(num_phases):
        grower = _Grower(rng, shapes, 20_000 if large else 400, smooth, casts)
        for slot in slots:
            grower.pool.append(grower.b.input(SLOT + slot.name, slot.type))
        for i, shape in enumerate(shapes):
            grower.pool.append(grower.b.input(f"{FEED}x{i}", TensorType("f32", shape)))
        grower.pool.append(grower.b.iota("f32", shapes[2], 1))
        row = [1.0, -2.0, 3.5] * (shapes[1][0] // 3)
        grower.pool.append(grower.b.literal(row, TensorType("f32", shapes[1])))
        grower.num_given = len(grower.pool)
        for _ in range(rng.randint(5, 60)):
            grower.grow()
        outputs = [(f"{RESULT}r{i}", grower.pick()) for i in range(3)]
        for slot in slots:
            fitting = [v for v in grower.pool if v.type == slot.type]
            if rng.random() < 0.8:
                outputs.append((SLOT + slot.name, rng.choice(fitting[-4:])))
        guard = None
        if number % 2:
            guard = "ok"
            ok = rng.random() < 0.5
            x = grower.pick()
            always = grower.b.op("eq", x, x) if ok else grower.b.op("ne", x, x)
            outputs.append((f"{RESULT}ok", grower.b.op("all", always, axes=tuple(range(x.rank))) if x.rank else always))
        graph = grower.b.graph(f"phase{number}", outputs)
        phases.append(Phase(f"phase{number}", graph, guard))
        feeds[f"phase{number}"] = {name: random_values(rng, type) for name, type in phases[-1].feeds.items()}
    contents = {slot.name: random_values(rng, slot.type) for slot in slots}
    return Program(slots, tuple(phases), Builder().graph("schedule", [])), contents, feeds


def reference_call(
    phase: Phase, contents: dict[str, Array], feeds: Mapping[str, Array], double: bool = False
) -> dict[str, Array]:
    """Results of a call by the plain executor; `contents` is updated."""
    inputs = {SLOT + name: array for name, array in contents.items()}
    inputs |= {FEED + name: array for name, array in feeds.items()}
    outputs = evaluate(phase.graph, inputs, double=double)
    results = {name.removeprefix(RESULT): v for name, v in outputs.items() if name.startswith(RESULT)}
    if phase.guard is None or bool(results[phase.guard]):
        contents.update({n.removeprefix(SLOT): v.copy() for n, v in outputs.items() if n.startswith(SLOT)})
    return results


def assert_follows(
    session: Session, program: Program, contents: dict[str, Array], feeds: Mapping[str, Mapping[str, Array]],
    rounds: int = 1,
) -> None:  # fmt: skip
    """Run every phase so many times, and compare results and slots with the plain executor's; `contents` is updated."""
    for name, array in contents.items():
        session.write(name, array)
    for _ in range(rounds):
        for phase in program.phases:
            expected = reference_call(phase, contents, feeds[phase.name])
            (outputs,) = session.run([Call(phase.name, feeds[phase.name])]).result()
            assert not outputs.faults
            for name, array in expected.items():
                np.testing.assert_allclose(outputs.results[name], array, 2e-5, 1e-6, err_msg=name)
            for name, array in contents.items():
                np.testing.assert_allclose(session.read(name).result(), array, 2e-5, 1e-6, err_msg=name)
