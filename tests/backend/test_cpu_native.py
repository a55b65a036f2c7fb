"""C kernels of the cpu device against the plain executor."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable, Iterator

import numpy as np
import pytest

import sexpgpu.ir.ops  # noqa: F401
from sexpgpu.backend.cpu.device import CpuDevice
from sexpgpu.backend.cpu.native import lowering
from sexpgpu.backend.cpu.native.lowering import Stretch
from sexpgpu.backend.cpu.native.prelude import PRELUDE
from sexpgpu.backend.protocol import Budget, Call
from sexpgpu.ir.builder import Builder
from sexpgpu.ir.evaluate import evaluate
from sexpgpu.ir.opdef import Array
from sexpgpu.ir.program import Phase, Program
from sexpgpu.ir.types import TensorType
from sexpgpu.train.samples import Case, cases
from tests.backend.native import compile_together, compiler
from tests.backend.random_programs import random_program, reference_call

SEEDS = range(100)


def plain() -> CpuDevice:
    return CpuDevice(threads=1, compiler=compiler())


def poisoned() -> CpuDevice:
    return CpuDevice(threads=2, poison=True, compiler=compiler())


def watched() -> CpuDevice:
    """The same with kernels as in a run."""
    return CpuDevice(threads=2, poison=True, fused=True, compiler=compiler())


Made = tuple[Program, dict[str, Array], dict[str, dict[str, Array]]]


def made_together(seeds: Iterable[int]) -> list[Made]:
    """Programs whose kernels are compiled; half of them with axes that are longer than a vector."""
    made = [random_program(seed, large=large, smooth=True) for large in (False, True) for seed in seeds]
    devices = [
        lambda c: CpuDevice(threads=1, compiler=c),
        lambda c: CpuDevice(threads=1, poison=True, compiler=c),
    ]
    compile_together([program for program, _, _ in made], devices)
    return made


@pytest.fixture(scope="module")
def programs() -> list[Made]:
    return made_together(SEEDS)


def results_of(device: CpuDevice, made: Made) -> Iterator[tuple[str, Array]]:
    """What two rounds of calls give, and leave in slots."""
    program, contents, feeds = made
    session = device.open(device.plan(program, Budget()))
    for name, array in contents.items():
        session.write(name, array)
    for turn in range(2):
        for phase in program.phases:
            (outputs,) = session.run([Call(phase.name, feeds[phase.name])]).result()
            assert not outputs.faults
            for name, array in outputs.results.items():
                yield f"{turn} {phase.name} {name}", array
            for name in contents:
                yield f"{turn} {phase.name} slot {name}", session.read(name).result().copy()
    session.close()


def expected_of(made: Made, double: bool = False) -> dict[str, Array]:
    program, contents, feeds = made[0], {k: v.copy() for k, v in made[1].items()}, made[2]
    found: dict[str, Array] = {}
    for turn in range(2):
        for phase in program.phases:
            results = reference_call(phase, contents, feeds[phase.name], double)
            found |= {f"{turn} {phase.name} {name}": array for name, array in results.items()}
            found |= {f"{turn} {phase.name} slot {name}": array.copy() for name, array in contents.items()}
    return found


def compare(made: Made) -> None:
    """A value counts unless rounding alone decides it: then single and double precision differ already."""
    expected, exact = expected_of(made), expected_of(made, double=True)
    scale = {name: np.abs(array).max(initial=1) for name, array in expected.items()}
    sound = {n for n, array in expected.items() if np.abs(array * 1.0 - exact[n]).max(initial=0) <= 1e-2 * scale[n]}
    assert 4 * len(sound) >= 3 * len(expected)
    for device in (plain(), poisoned(), watched()):
        for name, array in results_of(device, made):
            if name in sound:
                np.testing.assert_allclose(array, expected[name], 3e-5, 3e-5 * scale[name], err_msg=name)


@pytest.mark.parametrize("number", range(2 * len(SEEDS)))
def test_random_programs(number: int, programs: list[Made]) -> None:
    compare(programs[number])


@pytest.mark.slow
@pytest.mark.parametrize("start", range(100, 1600, 50))
def test_many_random_programs(start: int) -> None:
    for made in made_together(range(start, start + 50)):
        compare(made)


@pytest.mark.parametrize("number", range(0, 2 * len(SEEDS), 5))
def test_threads_change_no_bit(
    number: int,
    programs: list[Made],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pieces are made small, so that there is something to share."""
    monkeypatch.setattr(lowering, "PIECE_ELEMENTS", 64)
    monkeypatch.setattr(lowering, "SHARED_OPERATIONS", 1)
    one, two, four = (
        list(results_of(CpuDevice(threads=threads, compiler=compiler()), programs[number])) for threads in (1, 2, 4)
    )
    for (name, array), *others in zip(one, two, four, strict=True):
        for other, found in others:
            assert other == name and found.tobytes() == array.tobytes(), name


def one_node(case: Case) -> tuple[Program, Phase, dict[str, Array]]:
    phase = Phase("p", case.graph())
    return Program((), (phase,), Builder().graph("schedule", [])), phase, case.feeds()


@pytest.fixture(scope="module")
def samples() -> None:
    compile_together(
        [one_node(case)[0] for case in cases()], [lambda c: CpuDevice(threads=1, poison=True, compiler=c)]
    )


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in cases()])
def test_every_sample(case: Case, samples: None) -> None:
    program, phase, feeds = one_node(case)
    device = poisoned()
    session = device.open(device.plan(program, Budget()))
    (outputs,) = session.run([Call("p", feeds)]).result()
    session.close()
    flagged: list[str] = []
    inputs = {f"feed:{key}": array for key, array in feeds.items()}
    expected = evaluate(phase.graph, inputs, flag=lambda node, message: flagged.append(message))
    for key, wanted in expected.items():
        found = outputs.results[key.removeprefix("result:")]
        assert found.dtype == wanted.dtype and found.shape == wanted.shape
        if wanted.dtype.kind == "f" and wanted.dtype.itemsize == 4:
            np.testing.assert_allclose(found, wanted, 2e-6, 1e-6)
        else:
            np.testing.assert_array_equal(found, wanted)
    assert [fault.message for fault in outputs.faults] == list(dict.fromkeys(flagged))


# Functions.

FUNCTIONS = {
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
    "sqrt": np.sqrt,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
}
HELPERS = "".join(
    f"void t_{name}(const float* x, float* y, i64 n) {{ for (i64 i = 0; i < n; i += V) "
    f"put_f32(y + i, {name}_f(raw_f32(x + i))); }}\n"
    for name in (*FUNCTIONS, "sigmoid")
)


@pytest.fixture(scope="module")
def functions() -> dict[str, int]:
    names = [f"t_{name}" for name in (*FUNCTIONS, "sigmoid")]
    return compiler().functions(PRELUDE, {name: HELPERS if i == 0 else "" for i, name in enumerate(sorted(names))})


def every_exponent() -> Array:
    """Numbers of every exponent and sign, subnormal, infinite and NaN among them."""
    bits = np.arange(0, 1 << 32, 4099, np.uint64).astype(np.uint32)
    edges = np.array([0, 1 << 31, 0x7F800000, 0xFF800000, 0x7FC00000, 1, 0x3F000000], np.uint32)
    near = np.random.default_rng(0).normal(size=1 << 16).astype(np.float32)
    found = np.concatenate([bits.view(np.float32), edges.view(np.float32), near * 4])
    return found[: found.size // 16 * 16]


def applied(address: int, x: Array) -> Array:
    y = np.empty_like(x)
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_longlong)(address)
    call(x.ctypes.data, y.ctypes.data, x.size)
    return y


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_within_their_bounds(name: str, functions: dict[str, int]) -> None:
    x = every_exponent()
    y = applied(functions[f"t_{name}"], x)
    with np.errstate(all="ignore"):
        exact = FUNCTIONS[name](x.astype(np.float64))
        rounded = exact.astype(np.float32)
    np.testing.assert_array_equal(np.isnan(y), np.isnan(rounded))
    finite = np.isfinite(rounded)
    np.testing.assert_array_equal(y[np.isinf(rounded)], rounded[np.isinf(rounded)])
    units = np.abs(y[finite] - exact[finite]) / np.spacing(np.abs(rounded[finite])).astype(np.float64)
    assert units.max() <= (6 if name == "tanh" else 1.5), x[finite][units.argmax()]
    np.testing.assert_array_equal(np.signbit(y[finite]), np.signbit(rounded[finite]))


def test_sigmoid_within_its_bound(functions: dict[str, int]) -> None:
    x = every_exponent()
    y = applied(functions["t_sigmoid"], x)
    with np.errstate(all="ignore"):
        exact = 1 / (1 + np.exp(-x.astype(np.float64)))
    known = ~np.isnan(x)
    assert np.abs(y[known] - exact[known]).max() <= 2.0**-22
    assert np.isnan(y[~known]).all()


# What becomes of a plan.


def test_a_program_is_few_calls() -> None:
    b = Builder()
    x = b.input("feed:x", TensorType("f32", (64, 48)))
    total = b.broadcast(b.sum(b.op("exp", x), (1,)), (64, 48), (0,))
    y = b.op("tanh", b.product("ab,bc->ac", b.div(x, total), b.transpose(x, (1, 0))))
    phase = Phase("p", b.graph("p", [("result:y", y)], [x]))
    device = plain()
    session = device.open(device.plan(Program((), (phase,), Builder().graph("s", [])), Budget()))
    (call,) = session._phases["p"].calls
    assert isinstance(call, Stretch) and len(call) == 3
    session.close()
