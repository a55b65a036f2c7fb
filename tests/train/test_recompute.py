"""`recompute`: the same bits as without it, from less memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sexpgpu.ir.graph import Graph
from sexpgpu.ir.opdef import Array
from sexpgpu.ir.verify import verify_program
from tests.lang.files import codes
from tests.train.trial import Trial, open_trial

R = np.random.default_rng(0)
DATA = {
    "x": R.standard_normal((64, 8)).astype(np.float32),
    "y": R.standard_normal((64, 8)).astype(np.float32),
    "t": R.standard_normal((64, 5, 8)).astype(np.float32),
}
FILE = """
(defn blank (x) (zeros (f32 (dim x 0) 8)))
(defn block (x) (+ x (linear (gelu (linear (layer-norm x :name n) 32 :name up)) 8 :name down)))
(defmodel net ((x (f32 _ _)) (t (f32 _ _ _))) BODY)
(defdata rows-of (arrays "data.npz"))
(defloader train (rows rows-of) :batch 8)
(defmetric loss (x y t) (mean (square (- (net x t) y))))
(defeval check :loader train :batches 1 loss)
(defrun go :loss loss :loader train :optimizer (adam :rate 0.01) :microbatches 2 :steps 50 :seed 3
  :evaluate (every 2 check))
"""
BODIES = {
    "blocks": "(repeat [i 3] [x x] (recompute (block x :name (block i))))",
    "dropout": "(repeat [i 3] [x x] (recompute (dropout (block x :name (block i)) 0.3)))",
    "nested": "(recompute (let [h (recompute (block x :name a))] (recompute (+ h (block h :name b)))))",
    "several outputs": "(let [[a [b n]] (recompute [(block x :name a) [(tanh x) 3]])] (+ a (* n b)))",
    "outer parameter": '(let [w (param w (f32 8 8) lecun)] (recompute (tanh (product "i j, j k -> i k" x w))))',
    "one parameter twice": '(let [w (param w (f32 8 8) lecun) f (fn (x) (tanh (product "i j, j k -> i k" x w)))]'
    " (recompute (f x)))",
    "batch norm": "(recompute (batch-norm (linear x 8 :name l) :name n))",
    "measures": "(let [y (recompute (let [h (block x :name a)] (measure size (mean (abs h))) h))]"
    " (measure size (mean y)) y)",
    "in a scan": "(scan [h (blank x)] [t t] :axis 1 (recompute (tanh (+ h (dropout (block t :name b) 0.5)))))",
    "a scan inside": "(recompute (let [[h e] (scan [h (blank x)] [t t] :axis 1"
    " (let [h (tanh (+ h (block t :name b)))] (next :h h :emit (sum h :axis 1))))] (* h (mean e))))",
    "next": "(scan [h (blank x)] [t t] :axis 1 (recompute (next :h (tanh (+ h (block t :name b))))))",
    "attention": '(let [q (rearrange "b t (h d) -> b h t d" (linear t 8 :name q) :h 2)]'
    ' (rearrange "b h d -> b (h d)" (recompute (gather (attention q q q :causal true) 4 :axis 2))))',
    "bf16": "(with :compute bf16 (cast (recompute (block (cast x bf16) :name a)) f32))",
    "gradient twice": "(+ (grad (fn (z) (sum (pow (recompute (block z :name a)) 2.0))) x)"
    " (grad (fn (z) (sum (grad (fn (u) (sum (recompute (pow (tanh u) 3.0)))) z))) x))",
}


def text_of(name: str, again: bool = True) -> str:
    body = BODIES[name] if again else BODIES[name].replace("(recompute ", "((fn (it) it) ")
    return FILE.replace("BODY", body)


def parameters(trial: Trial) -> dict[str, Array]:
    return trial.read_all("parameter", "state")


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("stacking", [1, 2])
def test_the_same_bits(tmp_path: Path, name: str, stacking: int) -> None:
    with (
        open_trial(tmp_path, text_of(name), DATA, stacking=stacking, poison=True) as trial,
        open_trial(tmp_path, text_of(name, again=False), DATA, stacking=stacking) as plain,
    ):
        verify_program(trial.assembly.program)
        for _ in range(4):
            (found,), (wanted,) = trial.step().values(), plain.step().values()
            # A gradient inside the loss is not raised alike, so its sums go in another order.
            rtol = 1e-5 if name == "gradient twice" else 0
            np.testing.assert_allclose(found.loss, wanted.loss, rtol=rtol)
            assert found.measures == wanted.measures
        after = parameters(plain)
        for slot, value in parameters(trial).items():
            np.testing.assert_allclose(value, after[slot], rtol=20 * rtol, atol=rtol, err_msg=slot)


def ops_of(graph: Graph) -> list[str]:
    return [node.op for node in graph.walk()]


def test_training_has_bodies_and_evaluation_has_none(tmp_path: Path) -> None:
    with open_trial(tmp_path, text_of("nested"), DATA) as trial:
        phases = {phase.name: ops_of(phase.graph) for phase in trial.assembly.program.phases}
    assert phases["update.go.next"].count("recompute") >= 4
    assert "recompute" not in phases["eval.check.0"]
    with open_trial(tmp_path, text_of("nested", again=False), DATA) as plain:
        assert phases["eval.check.0"] == ops_of(plain.assembly.program.phase("eval.check.0").graph)


def test_a_deep_network_takes_a_fraction_of_the_arena(tmp_path: Path) -> None:
    layer = "(repeat [j 6] [x x] (gelu (linear x 64 :name (l j))))"
    deep = FILE.replace("BODY", f"(linear (repeat [i 8] [x x] (AGAIN {layer} :name (block i))) 8 :name out)")
    deep = deep.replace(":batch 8", ":batch 64").replace(":microbatches 2", "")
    call = deep.replace(f"(AGAIN {layer} :name (block i))", "RECOMPUTED")
    block = f"(defn part (x) {layer})\n"
    with (
        open_trial(tmp_path, block + call.replace("RECOMPUTED", "(recompute (part x :name (block i)))"), DATA) as trial,
        open_trial(tmp_path, block + call.replace("RECOMPUTED", "(part x :name (block i))"), DATA) as plain,
    ):
        found, wanted = (t.session.plan.phases["update.go.first"] for t in (trial, plain))
        assert trial.losses(3) == plain.losses(3)
    assert found.arena_bytes < 0.4 * wanted.arena_bytes
    assert len(found.steps) < 1.6 * len(wanted.steps)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("(defmetric m () (recompute))", "E-FORM-001"),
        ("(defgenerator g () (recompute (let [a 1] (measure m (ones (f32))) a)))", "E-STATE-001"),
        ("(defmetric m () (grad (fn (x) (recompute (let [] (measure m x) x))) (ones (f32))))", "E-STATE-001"),
        (
            "(defmetric m () (let [s (state s (f32) 0.0 :lane true)] (set-state s 2.0)"
            " (recompute (let [] (set-state s 1.0) s))))",
            "E-STATE-001",
        ),
    ],
)  # fmt: skip
def test_what_is_refused(text: str, code: str) -> None:
    tail = "(defmetric l () (param w (f32) 1.0))\n(defrun go :loss {} :optimizer (sgd :rate 0.1) :steps 1)"
    loss = "l" if "defgenerator" in text else "m"
    assert codes(text + tail.format(loss)) == [code]
