"""What every pass must keep: gradients, text, simplification and stacking of random graphs."""

from functools import partial

import numpy as np
import pytest

from sexpgpu.ir.evaluate import evaluate
from sexpgpu.ir.opdef import Array
from sexpgpu.ir.text import graph_text, parse_graph
from sexpgpu.ir.verify import verify
from sexpgpu.transform.simplify import simplify
from sexpgpu.transform.stacking import stack
from tests.transform.random_graphs import FUNCTIONS, NEEDS, Case, grown, with_gradients

NUM_SEEDS, NUM_SLOW_SEEDS = 300, 2000
STEP = 1e-5
SEEDS_A_TEST = 25
"""So many seeds a test: a failure names its seed, and the list of tests stays short."""


def equal_bits(a: Array, b: Array) -> bool:
    """Equal but for the sign of a zero and the payload of a NaN."""
    return a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a, b, equal_nan=True)


def slope(case: Case, name: str, direction: Array, step: float) -> float:
    """The derivative of the loss along `direction`, by central differences."""
    losses = []
    for sign in (1, -1):
        moved = {**case.values, name: case.values[name] + sign * step * direction}
        losses.append(float(evaluate(case.forward, moved, double=True)["result:loss"]))
    return (losses[0] - losses[1]) / (2 * step)


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(first, marks=pytest.mark.slow if first >= NUM_SEEDS else ())
        for first in range(0, NUM_SLOW_SEEDS, SEEDS_A_TEST)
    ],
)
class TestRandomGraphs:
    def seeds(self, first: int) -> range:
        return range(first, first + SEEDS_A_TEST)

    def test_gradients(self, first: int) -> None:
        for seed in self.seeds(first):
            case = grown(seed)
            graph = with_gradients(case)
            verify(case.forward)
            verify(graph)
            found = evaluate(graph, case.values, double=True)
            rng = np.random.default_rng(seed)
            for name in case.floats:
                direction = rng.uniform(-1, 1, case.values[name].shape)
                gradient = found.get(f"result:d.{name}")
                expected = 0.0 if gradient is None else float(np.sum(gradient * direction))
                # A kink close by spoils one step width, hardly all three.
                slopes = [slope(case, name, direction, STEP * scale) for scale in (1, 0.1, 0.01)]
                errors = [abs(s - expected) / (1 + abs(expected)) for s in slopes]
                assert min(errors) < 1e-5, (seed, name, expected, slopes)

    @pytest.mark.torch
    def test_against_torch(self, first: int) -> None:
        torch = pytest.importorskip("torch")
        from tests.ir.torched import run_torch, tensor

        for seed in self.seeds(first):
            case = grown(seed)
            types = [v.dtype for v in case.forward.inputs]
            given = {n: tensor(case.values[n], t) for n, t in zip(case.forward.input_names, types, strict=True)}
            loss, last = run_torch(case.forward, list(given.values()))
            wanted = torch.autograd.grad(loss, [given[n] for n in case.floats], allow_unused=True)
            found = evaluate(with_gradients(case), case.values, double=True)
            assert_close = partial(np.testing.assert_allclose, rtol=1e-8, atol=1e-10, err_msg=f"seed {seed}")
            assert_close(found["result:loss"], loss.detach().numpy())
            assert_close(evaluate(case.forward, case.values, double=True)["result:last"], last.detach().numpy())
            for name, slope in zip(case.floats, wanted, strict=True):
                expected = np.zeros(case.values[name].shape) if slope is None else slope.numpy()
                assert_close(found.get(f"result:d.{name}", np.zeros(expected.shape)), expected)

    def test_text(self, first: int) -> None:
        for seed in self.seeds(first):
            case = grown(seed)
            for graph in (case.forward, with_gradients(case)):
                text = graph_text(graph)
                again = parse_graph(text)
                verify(again)
                assert graph_text(again) == text, seed
            before, after = evaluate(graph, case.values), evaluate(again, case.values)
            assert all(equal_bits(before[name], after[name]) for name in before), seed

    def test_simplified(self, first: int) -> None:
        for seed in self.seeds(first):
            case = grown(seed)
            for graph in (case.forward, with_gradients(case)):
                simple = simplify(graph)
                verify(simple)
                # A padded value that is cast, and read as it is too, is padded twice.
                twice = sum(n.op == "cast" and n.inputs[0].node.op == "pad" for n in graph.nodes)
                assert len(simple.nodes) <= len(graph.nodes) + twice, seed
                assert graph_text(simplify(simple)) == graph_text(simple), seed
                before, after = evaluate(graph, case.values), evaluate(simple, case.values)
                for name in before:
                    assert equal_bits(before[name], after[name]), (seed, name, before[name], after[name])

    def test_stacked(self, first: int) -> None:
        for seed in self.seeds(first):
            case = grown(seed)
            rng = np.random.default_rng(seed)
            names = [name for name in case.values if rng.random() < 0.6]
            for graph in (case.forward, with_gradients(case)):
                batched = set(names) & set(graph.input_names)
                stacked = stack(graph, 2, batched)
                verify(stacked)
                other = {n: rng.permutation(v.reshape(-1)).reshape(v.shape) for n, v in case.values.items()}
                pair = {n: np.stack([v, other[n]]) if n in batched else v for n, v in case.values.items()}
                together = evaluate(stacked, pair, double=True)
                for i, values in enumerate((case.values, other)):
                    each = {n: values[n] if n in batched else case.values[n] for n in case.values}
                    for name, value in evaluate(graph, each, double=True).items():
                        np.testing.assert_allclose(
                            together[name][i], value, rtol=1e-9, atol=1e-12, err_msg=f"seed {seed} {name}"
                        )


def test_the_seeds_reach_every_differentiable_operation() -> None:
    reached = {node.op for seed in range(NUM_SEEDS) for node in grown(seed).forward.nodes}
    wanted = set(FUNCTIONS) | set(NEEDS.values()) | {"sum", "max", "min", "cumsum", "cummax"}
    assert wanted <= reached, wanted - reached
