"""Runs of operations over row blocks: what joins, what stays in scratch memory, and the same bits for any threads."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import sexpgpu.ir.ops  # noqa: F401
from sexpgpu.backend.cpu.blocks import BlockCall
from sexpgpu.backend.cpu.device import CpuDevice
from sexpgpu.backend.cpu.session import CpuSession
from sexpgpu.backend.protocol import Budget, Call
from sexpgpu.ir.builder import Builder
from sexpgpu.ir.composites import make
from sexpgpu.ir.evaluate import evaluate
from sexpgpu.ir.graph import Graph, Value
from sexpgpu.ir.opdef import Array
from sexpgpu.ir.program import Phase, Program
from sexpgpu.ir.types import TensorType

ROWS, WIDTH = 1024, 96
X = TensorType("f32", (8, ROWS // 8, WIDTH))


def opened(graph: Graph, threads: int) -> CpuSession:
    device = CpuDevice(threads=threads)
    program = Program((), (Phase("p", graph),), Builder().graph("schedule", []))
    return device.open(device.plan(program, Budget()))


def runs(session: CpuSession) -> list[BlockCall]:
    return [call for call in session._phases["p"].calls if isinstance(call, BlockCall)]


def feed(type: TensorType, seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    if type.dtype == "bool":
        return rng.random(type.shape) > 0.3
    if type.is_integer:
        return rng.integers(0, 9, type.shape).astype(np.int32)
    return rng.normal(size=type.shape).astype(np.float32)


def check(graph: Graph, num_runs: int | None = None) -> CpuSession:
    """The session equals the plain executor, with the same bits for 1, 2 and 3 threads."""
    feeds = {n.removeprefix("feed:"): feed(v.type, i) for i, (n, v) in
             enumerate(zip(graph.input_names, graph.inputs, strict=True))}  # fmt: skip
    expected = evaluate(graph, {f"feed:{name}": array for name, array in feeds.items()})
    found: list[dict[str, bytes]] = []
    for threads in (1, 2, 3):
        session = opened(graph, threads)
        for _ in range(2):
            (outputs,) = session.run([Call("p", feeds)]).result()
        for name, array in outputs.results.items():
            np.testing.assert_allclose(array, expected[f"result:{name}"], 2e-4, 2e-5, err_msg=name)
        found.append({name: array.tobytes() for name, array in outputs.results.items()})
        session.close()
    assert found[0] == found[1] == found[2]
    session = opened(graph, 1)
    if num_runs is not None:
        assert len(runs(session)) == num_runs
    return session


def of(*types: TensorType, outputs: Callable[..., tuple[Value, ...]]) -> Graph:
    b = Builder()
    inputs = [b.input(f"feed:x{i}", type) for i, type in enumerate(types)]
    return b.graph("p", [(f"result:y{i}", v) for i, v in enumerate(outputs(b, *inputs))], inputs)


W = TensorType("f32", (WIDTH,))


@pytest.mark.parametrize("name", ["softmax", "gelu", "logsumexp", "silu"])
def test_a_composite_is_one_run(name: str) -> None:
    session = check(of(X, outputs=lambda b, x: make(b, name, [x]).outputs), num_runs=1)
    (run,) = runs(session)
    assert run.scratch_values > 1


def test_a_norm_is_one_run() -> None:
    check(of(X, W, W, outputs=lambda b, x, scale, bias: make(b, "layer-norm", [x, scale, bias], eps=1e-5).outputs), 1)


def test_a_norm_with_its_gradient() -> None:
    def outputs(b: Builder, x: Value, scale: Value, bias: Value) -> tuple[Value, ...]:
        y, mean, rstd = make(b, "layer-norm", [x, scale, bias], eps=1e-5).outputs
        return y, *make(b, "layer-norm-gradient", [x, scale, mean, rstd, y]).outputs

    check(of(X, W, W, outputs=outputs))


def test_sums_of_all_and_of_columns_are_folded_of_partial_results() -> None:
    def outputs(b: Builder, x: Value) -> tuple[Value, ...]:
        y = b.mul(x, x)
        finite = b.op("all", b.op("is-finite", y), axes=(0, 1, 2))
        return b.sum(y, (0, 1, 2)), b.sum(y, (0, 1)), b.sum(y, (2,)), b.cast(finite, "f32")

    session = check(of(X, outputs=outputs), num_runs=1)
    assert len(runs(session)[0].nodes) == 6


def test_what_leaves_the_run_is_written() -> None:
    def outputs(b: Builder, x: Value) -> tuple[Value, ...]:
        y = b.op("tanh", x)
        return y, b.mul(y, b.op("exp", y))

    check(of(X, outputs=outputs), num_runs=1)


def test_a_mask_repeated_over_heads_is_cut_into_uneven_rows() -> None:
    scores, mask = TensorType("f32", (3, 2, 160, 256)), TensorType("bool", (160, 256))

    def outputs(b: Builder, x: Value, m: Value) -> tuple[Value, ...]:
        seen = b.broadcast(m, x.shape, (2, 3))
        return make(b, "softmax", [b.where(seen, x, b.like(-1e9, x))]).outputs

    session = check(of(scores, mask, outputs=outputs))
    assert [node.op for node in runs(session)[-1].nodes][:2] == ["where", "max"]


def test_rows_of_another_order_do_not_join() -> None:
    square = TensorType("f32", (256, 256))

    def outputs(b: Builder, x: Value) -> tuple[Value, ...]:
        y = b.op("tanh", x)
        return (b.add(y, b.transpose(b.op("exp", y), (1, 0))),)

    check(of(square, outputs=outputs), num_runs=2)


@pytest.mark.parametrize("spec, shapes", [
    ("abc,cd->abd", ((4, 128, 256), (256, 300))),
    ("abd,abc->cd", ((4, 128, 300), (4, 128, 256))),
    ("abtd,absd->abts", ((6, 4, 128, 64), (6, 4, 128, 64))),
    ("tbc,cd->btd", ((128, 4, 256), (256, 300))),
    ("abc,dbc->adc", ((64, 40, 33), (65, 40, 33))),
])  # fmt: skip
def test_products_are_the_same_for_any_number_of_threads(spec: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    types = [TensorType("f32", shape) for shape in shapes]
    check(of(*types, outputs=lambda b, x, y: (b.product(spec, x, y),)))


def test_draws_are_the_same_for_any_number_of_threads() -> None:
    stream, trip = TensorType("i64", (2,)), TensorType("i32", ())
    b = Builder()
    keys, count = b.input("feed:stream", stream), b.input("feed:trip", trip)
    drawn = b.op("random-normal", keys, count, shape=(3, 400_001), site=5)
    graph = b.graph("p", [("result:y", drawn)], [keys, count])
    feeds = {"stream": np.array([3, 4]), "trip": np.array(2, np.int32)}
    expected = evaluate(graph, {f"feed:{k}": v for k, v in feeds.items()})["result:y"]
    for threads in (1, 2):
        (outputs,) = opened(graph, threads).run([Call("p", feeds)]).result()
        np.testing.assert_array_equal(outputs.results["y"], expected)
