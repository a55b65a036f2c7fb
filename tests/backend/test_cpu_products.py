"""Products of the cpu device as C: any sizes, any strides that are even, any number of threads."""

from __future__ import annotations

import numpy as np
import pytest

from sexpgpu.backend.cpu.device import CpuDevice
from sexpgpu.backend.cpu.native.batches import Span, batches
from sexpgpu.backend.cpu.native.lowering import Stretch
from sexpgpu.backend.cpu.native.products import products_of
from sexpgpu.backend.protocol import Budget, Call
from sexpgpu.ir.builder import Builder
from sexpgpu.ir.graph import Node
from sexpgpu.ir.opdef import Array
from sexpgpu.ir.program import Phase, Program
from sexpgpu.ir.types import TensorType
from sexpgpu.plan.layout import Layout, contiguous
from tests.backend.native import compile_together, compiler

Case = tuple[str, tuple[int, ...], tuple[int, ...]]
CASES: list[Case] = [
    # notation, shapes of x and of y
    ("ab,bc->ac", (1, 1), (1, 1)),
    ("ab,bc->ac", (12, 384), (384, 32)),
    ("ab,bc->ac", (13, 385), (385, 33)),
    ("ab,bc->ac", (3, 7), (7, 600)),
    ("ab,bc->ac", (50, 800), (800, 17)),
    ("ba,bc->ac", (40, 29), (40, 53)),
    ("ab,cb->ac", (29, 40), (53, 40)),
    ("ba,cb->ac", (40, 29), (53, 40)),
    ("ab,bc->ca", (29, 40), (40, 53)),
    ("ab,b->a", (29, 40), (40,)),
    ("b,bc->c", (40,), (40, 29)),
    ("btw,wo->bto", (3, 5, 20), (20, 70)),
    ("btw,bto->wo", (3, 5, 20), (3, 5, 70)),
    ("bthd,bshd->bhts", (2, 9, 3, 8), (2, 11, 3, 8)),
    ("bhts,bshd->bthd", (2, 3, 9, 11), (2, 11, 3, 8)),
    ("zab,zbc->zac", (3, 130, 40), (3, 40, 300)),
]


def program(case: Case) -> Program:
    spec, x, y = case
    b = Builder()
    made = b.product(spec, b.input("feed:x", TensorType("f32", x)), b.input("feed:y", TensorType("f32", y)))
    return Program((), (Phase("p", b.graph("p", [("result:z", made)])),), Builder().graph("schedule", []))


def fed(case: Case) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in zip("xy", case[1:], strict=True)}


def run(case: Case, threads: int) -> Array:
    device = CpuDevice(threads=threads, poison=True, compiler=compiler())
    session = device.open(device.plan(program(case), Budget()))
    assert all(isinstance(call, Stretch) for call in session._phases["p"].calls)
    (outputs,) = session.run([Call("p", fed(case))]).result()
    session.close()
    return outputs.results["z"]


@pytest.fixture(scope="module", autouse=True)
def kernels() -> None:
    compile_together([program(case) for case in CASES], [lambda c: CpuDevice(threads=1, poison=True, compiler=c)])


@pytest.mark.parametrize("case", CASES)
def test_a_product_is_that_of_numpy_and_threads_change_no_bit(case: Case) -> None:
    feeds = {name: array.astype(np.float64) for name, array in fed(case).items()}
    one = run(case, 1)
    np.testing.assert_allclose(one, np.einsum(case[0], feeds["x"], feeds["y"]), 1e-5, 1e-4)
    assert one.tobytes() == run(case, 2).tobytes() == run(case, 16).tobytes()


def node(spec: str, x: tuple[int, ...], y: tuple[int, ...]) -> Node:
    b = Builder()
    return b.product(spec, b.input("x", TensorType("f32", x)), b.input("y", TensorType("f32", y))).node


def pieces(spec: str, x: tuple[int, ...], y: tuple[int, ...], threads: int) -> np.ndarray:
    made = node(spec, x, y)
    layouts = [Layout("arena", 0, contiguous(shape)) for shape in (x, y, made.types[0].shape)]
    found = products_of(made, layouts[0], layouts[1], layouts[2], (0, 0, 0), threads)
    assert found is not None
    return found


def test_pieces_cover_a_product_once_and_are_as_many_as_threads_need() -> None:
    for threads, least in ((1, 1), (2, 2), (8, 8)):
        found = pieces("ab,bc->ac", (768, 128), (128, 512), threads)
        assert least <= len(found) <= 4 * threads
        covered = np.zeros((768, 512), int)
        for row in found:
            at, column = divmod(int(row["z"]) // 4, 512)
            covered[at : at + int(row["rows"]), column : column + int(row["columns"])] += 1
        assert (covered == 1).all()
    assert len(pieces("ab,bc->ac", (30, 30), (30, 30), 8)) == 1


def test_operands_that_are_no_matrices_have_no_pieces() -> None:
    made = node("akl,klb->ab", (3, 4, 5), (4, 5, 6))
    whole = [Layout("arena", 0, contiguous(v.type.shape)) for v in made.inputs]
    out = Layout("arena", 0, (6, 1))
    assert products_of(made, whole[0], whole[1], out, (0, 0, 0), 1) is not None
    apart = Layout("arena", 0, (40, 10, 1))  # every second row of the summed axes
    assert products_of(made, apart, whole[1], out, (0, 0, 0), 1) is None
    assert products_of(made, whole[0], whole[1], Layout("arena", 0, (12, 2)), (0, 0, 0), 1) is None


def test_actions_wait_for_what_they_touch_and_for_nothing_else() -> None:
    def reads(low: int, high: int) -> Span:
        return Span("arena", low, high, False)

    def writes(low: int, high: int) -> Span:
        return Span("arena", low, high, True)

    found = batches(
        [
            [writes(0, 10)],
            [writes(10, 20)],
            [reads(0, 10), writes(20, 30)],
            [reads(0, 10), writes(30, 40)],
            [writes(5, 6)],  # over what two others read
            [reads(5, 6), reads(50, 60)],
            [Span("slot:p", 0, 100, True)],
            [],
        ]
    )
    assert found == [[0, 1, 6, 7], [2, 3], [4], [5]]
