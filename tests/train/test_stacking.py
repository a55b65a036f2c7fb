"""k microbatches in one call: as many products as for one, each k times the size, and the same training."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from sexpgpu.ir.graph import Node
from sexpgpu.ir.opdef import OPS, Work
from sexpgpu.ir.ops.contract import flop_sizes, letters
from sexpgpu.ir.verify import verify_program
from sexpgpu.lang.experiment import Experiment
from sexpgpu.lang.load import load_experiment
from sexpgpu.train.phases import assemble
from tests.train.trial import Trial, open_trial, write_experiment

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def example(name: str, *changes: tuple[str, str]) -> str:
    """An example with four microbatches a step."""
    text = (EXAMPLES / name).read_text("utf-8")
    for before, after in changes:
        assert before in text, (name, before)
        text = text.replace(before, after)
    return text


CHAR_GPT = example("char-gpt.sx", (":clip 1.0", ":clip 1.0 :microbatches 4"))
GPT2 = example("gpt2.sx", ("(def microbatches (if trial 1 32))", "(def microbatches 4)"))
MLP = "(feed-forward (scale-norm x :name ln2) :name mlp)"
DROPPED = CHAR_GPT.replace(MLP, f"(dropout {MLP} 0.2)")
assert DROPPED != CHAR_GPT
TEXTS = {"char-gpt": CHAR_GPT, "gpt2": GPT2, "dropout": DROPPED}


def product_sizes(node: Node) -> tuple[int, int, int, int]:
    """Batch, rows, columns and contraction of a product; rows and columns the smaller first."""
    groups, sizes = letters(str(node.attrs["spec"])), flop_sizes(node)
    batch, m, n, k = (math.prod(sizes[c] for c in part) for part in (groups.batch, groups.m, groups.n, groups.k))
    return batch, min(m, n), max(m, n), k


def contractions(nodes: tuple[Node, ...]) -> list[tuple[str, int]]:
    """Operation and multiplications of everything that multiplies matrices, attention included."""
    found = []
    for node in nodes:
        if OPS[node.op].work in (Work.CONTRACT, Work.CONV):
            found.append((node.op, math.prod(product_sizes(node))))
        elif "attention" in node.op:
            found.append((node.op, node.inputs[0].type.size))
    return found


def composites(nodes: tuple[Node, ...]) -> Counter[str]:
    return Counter(node.op for node in nodes if OPS[node.op].work is Work.EXPAND)


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("k", [2, 4])
def test_the_products_are_those_of_one_microbatch_k_times_as_large(tmp_path: Path, name: str, k: int) -> None:
    path = write_experiment(tmp_path, TEXTS[name])
    experiment = load_experiment(path, variant="smoke")
    for phase in ["update.pretrain.first", "update.pretrain.next"][: 1 if k == 4 else 2]:
        one = assemble(experiment).program.phase(phase).graph.nodes
        program = assemble(experiment, stacking=k).program
        verify_program(program)
        stacked = program.phase(phase).graph.nodes
        assert sorted(contractions(stacked)) == sorted((op, k * size) for op, size in contractions(one))
        assert composites(stacked) == composites(one)
        unmatched = [product_sizes(node) for node in stacked if node.op == "product"]
        for node in one:
            if node.op == "product":
                batch, m, n, c = product_sizes(node)
                rows, columns = sorted((m * k, n)), sorted((m, n * k))
                fitting = [(batch * k, m, n, c), (batch, *rows, c), (batch, *columns, c), (batch, m, n, c * k)]
                chosen = next((sizes for sizes in fitting if sizes in unmatched), None)
                assert chosen is not None, (node, unmatched)
                unmatched.remove(chosen)
        assert not unmatched


@pytest.mark.parametrize("name", TEXTS)
def test_no_product_of_a_stacked_linear_layer_is_batched(tmp_path: Path, name: str) -> None:
    """k microbatches are more rows of one product, not more products: a weight has no axis of k."""
    path = write_experiment(tmp_path, TEXTS[name])
    graph = assemble(load_experiment(path, variant="smoke"), stacking=4).program.phase("update.pretrain.first").graph
    batched = [node for node in graph.nodes if node.op == "product" and product_sizes(node)[0] > 1]
    assert not batched


def first_steps(experiment: Experiment, stacking: int) -> tuple[list[float], dict[str, np.ndarray]]:
    """Three losses, and the gradients of the first step."""
    with Trial(experiment, stacking=stacking) as trial:
        losses = trial.losses(1)
        gradients = trial.read_all("gradient")
        return losses + trial.losses(2), gradients


# In bf16 a gradient of other rounding may fall on the other side of a step of 2⁻⁸.
@pytest.mark.parametrize(
    ("name", "loss_error", "gradient_error"), [("char-gpt", 1e-6, 1e-5), ("dropout", 1e-6, 1e-5), ("gpt2", 3e-5, 1e-2)]
)
def test_stacking_changes_no_more_than_rounding(
    tmp_path: Path, name: str, loss_error: float, gradient_error: float
) -> None:
    experiment = load_experiment(write_experiment(tmp_path, TEXTS[name]), variant="smoke")
    expected, gradients = first_steps(experiment, 1)
    assert len(set(expected)) == 3
    largest = max(float(np.abs(g).max()) for g in gradients.values())
    for k in (2, 4):
        losses, found = first_steps(experiment, k)
        np.testing.assert_allclose(losses, expected, rtol=loss_error)
        for path, gradient in gradients.items():
            assert np.abs(found[path] - gradient).max() < gradient_error * largest, path


@pytest.mark.parametrize("k", [2, 4])
def test_draws_do_not_know_of_stacking(tmp_path: Path, k: int) -> None:
    text = """
(defmetric drawn ()
  (measure normal (random-normal (f32 3)) :reduce sum)
  (measure kept (cast (bernoulli 0.5 (f32 8)) f32) :reduce max)
  (measure uniform (random-uniform (f32 2)) :reduce min)
  (measure last-seen (random-normal (f32 2)) :reduce last)
  (square (+ (param w (f32) 1.0) (sum (random-normal (f32 4))))))
(defrun go :loss drawn :microbatches 4 :steps 3 :optimizer (sgd :rate 0.1))
"""
    with open_trial(tmp_path / "one", text) as one, open_trial(tmp_path / "k", text, stacking=k) as stacked:
        for _ in range(3):
            a, b = one.step()["go"], stacked.step()["go"]
            assert a.loss == b.loss and a.measures.keys() == b.measures.keys()
            for path, value in a.measures.items():
                np.testing.assert_array_equal(b.measures[path], value, err_msg=path)
