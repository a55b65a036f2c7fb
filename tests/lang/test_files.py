"""The meaning of whole files: constants, parameters, state, effects, draws, optimizers, generators, runs."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from sexpgpu.lang.load import group_of
from tests.lang.files import (
    TAIL,
    TEXT,
    codes,
    elaborated,
    host_values,
    initial,
    load_text,
    objective,
    ops_of,
    run_graph,
    value_of,
)

F = np.float32
ROWS = '(defdata rows-of-numbers (arrays "rows.npz")) (defloader train (rows rows-of-numbers) :batch 4)\n'
X = np.arange(12, dtype=F).reshape(4, 3) / 8


def run_of(loss: str, more: str = ":optimizer (sgd :rate 0.1)") -> str:
    return f"{ROWS}(defmetric loss ((x (f32 _ 3))) {loss})\n(defrun go :loader train :loss loss :steps 3 {more})"


def shapes(experiment) -> dict[str, tuple[int, ...]]:
    return {name: p.type.shape for name, p in experiment.parameters.items()}


# Constants, variants, --set.


CONSTANTS = """
(def width 4) (def twice (* 2 width)) (def name "plain") (def rate 0.5 "what is learnt at once")
(def opened (vocabulary missing)) (defdata missing (text (if (= name "plain") "words.txt" "nowhere.txt")))
(defvariant wide (width 32)) (defvariant far (name "far") (opened 3))
(defgenerator g () (zeros (i32 twice)))
"""


@pytest.mark.parametrize(
    ("options", "size"),
    [
        ({}, 8),
        ({"variant": "wide"}, 64),
        ({"settings": {"width": "5"}}, 10),
        ({"variant": "wide", "settings": {"width": "(* 2 3)"}}, 12),
        ({"settings": {"twice": "3"}}, 3),
        ({"settings": {"width": "(quotient 9 2)", "rate": "1e-3"}}, 8),
    ],
)
def test_overrides_and_what_follows_from_them(options, size):
    experiment = load_text(CONSTANTS + TAIL, **options)
    assert experiment.generators["g"].carries[0][1].shape == (size,)
    assert experiment.variants == ("wide", "far")


def test_strings_are_set_verbatim():
    text = '(def path "words.txt") (defdata d (text path))' + TAIL
    load_text(text, settings={"path": '"words.txt"'})
    assert codes(text, settings={"path": "my other file.txt"}) == ["E-DATA-001"]


def test_an_overridden_expression_is_not_evaluated():
    text = "(def broken (/ 7 2)) (defgenerator g () (zeros (f32 broken)))" + TAIL
    assert codes(text) == ["E-TYPE-008"]
    assert load_text(text, settings={"broken": "3"}).generators["g"].carries[0][1].shape == (3,)


def test_definitions_may_stand_in_any_order():
    text = (
        "(def a (if (> b 1) (+ b 1) 0)) (def b (if true (* 2 c) 0)) (def c 3) (defgenerator g () (zeros (f32 a)))"
        + TAIL
    )
    assert load_text(text).generators["g"].carries[0][1].shape == (7,)


# Parameters.


def test_paths_come_from_the_names_of_calls():
    experiment = load_text(
        """
(defn block (x) (+ x (linear x 3 :name up)))
(defmodel net (x)
  (let [x (repeat [i 2] [x x] (block x :name (block i)))
        x (with :scope "head.out" (linear x 5 :bias false))
        w (param w (f32 5) lecun-free)]
    (* x w)))
(defn lecun-free (type) (ones type))
"""
        + run_of("(+ (mean (net x)) (mean (net x :name other)))")
    )
    one = {
        "block.0.up.w": (3, 3),
        "block.0.up.b": (3,),
        "block.1.up.w": (3, 3),
        "block.1.up.b": (3,),
        "head.out.w": (3, 5),
        "w": (5,),
    }
    assert shapes(experiment) == {f"{root}.{n}": s for root in ("net", "other") for n, s in one.items()}
    assert experiment.num_parameters == 2 * (2 * 12 + 15 + 5)


def test_a_model_shares_its_parameters_and_a_function_does_not():
    shared = load_text("(defmodel m (x) (linear x 2))" + run_of("(+ (mean (m x)) (mean (m (* 2 x))))"))
    assert list(shapes(shared)) == ["m.w", "m.b"]
    assert codes("(defn f (x) (linear x 2))" + run_of("(+ (mean (f x)) (mean (f x)))")) == ["E-PARAM-001"]
    assert codes("(defmodel m (x) (+ (linear x 2) (linear x 2)))" + run_of("(mean (m x))")) == ["E-PARAM-001"]
    nested = load_text(
        "(defmodel part (x) (linear x 3)) (defmodel m (x) (part (part x :name one) :name two))" + run_of("(mean (m x))")
    )
    assert list(shapes(nested)) == ["m.one.w", "m.one.b", "m.two.w", "m.two.b"]


@pytest.mark.parametrize(
    ("init", "check"),
    [
        ("0.5", lambda w: (w == 0.5).all()),
        ("zeros", lambda w: not w.any()),
        ("ones", lambda w: (w == 1).all()),
        ("(normal 0.02)", lambda w: abs(w.std() - 0.02) < 0.002),
        ("(uniform -1 3)", lambda w: w.min() > -1 and w.max() < 3 and abs(w.mean() - 1) < 0.2),
        ("lecun", lambda w: abs(w.std() - 1 / math.sqrt(40)) < 0.02),
        ("he", lambda w: abs(w.std() - math.sqrt(2 / 40)) < 0.02),
        ("glorot", lambda w: abs(w.std() - math.sqrt(2 / 70)) < 0.02),
        ("(fn (type) (* 3 (ones type)))", lambda w: (w == 3).all()),
        ("(iota (f32 40 30) :axis 1)", lambda w: (w[0] == np.arange(30)).all()),
        ("(* 2 (random-normal (f32 40 30)))", lambda w: abs(w.std() - 2) < 0.2),
    ],
)
def test_initialisers(init, check):
    experiment = load_text(run_of(f"(* (mean x) (mean (param w (f32 40 30) {init})))"))
    assert check(initial(experiment, "w"))


def test_initialisers_differ_by_path_alone():
    text = "(* (mean x) (+ (mean (param {0} (f32 9) (normal 1.0))) (mean (param {1} (f32 9) (normal 1.0)))))"
    first, second = load_text(run_of(text.format("a", "b"))), load_text(run_of(text.format("z", "a")))
    assert_array_equal(initial(first, "a"), initial(second, "a"))
    assert (initial(first, "a") != initial(first, "b")).any()


# State and measures.


def test_batch_norm_has_state_in_training_only():
    text = (
        "(defmodel net (x) (batch-norm x :name bn))"
        + run_of("(mean (square (net x)))")
        + "(defeval held :loader train loss)"
    )
    experiment, found = objective(text)
    assert list(experiment.states) == ["net.bn.mean", "net.bn.variance"]
    assert [(s.name, s.reduce) for s in found.states] == [("net.bn.mean", "mean"), ("net.bn.variance", "mean")]
    evaluated = experiment.evaluations["held"].objectives[0]
    assert not evaluated.states
    slots = {
        "net.bn.scale": np.ones(3, F),
        "net.bn.bias": np.zeros(3, F),
        "net.bn.mean": np.ones(3, F),
        "net.bn.variance": np.full(3, 4, F),
        "x": X,
    }
    seen = run_graph(experiment, found.graph, slots)
    assert_allclose(seen["state:net.bn.mean"], X.mean(0), rtol=1e-6)
    assert_allclose(seen["state:net.bn.variance"], X.var(0, ddof=1), rtol=1e-5)
    moved = run_graph(experiment, found.states[0].using, {"old": np.ones(3, F), "seen": np.zeros(3, F)})["new"]
    assert_allclose(moved, 0.9)
    assert_allclose(
        run_graph(experiment, evaluated.graph, slots)["value"], (((X - 1) / np.sqrt(4 + 1e-5)) ** 2).mean(), rtol=1e-5
    )


def test_a_state_is_read_as_it_was_and_settings_of_one_path_fold():
    experiment, found = objective(
        run_of("""
  (let [s (state s (f32) 2.0) n (state n (i32) 7)]
   (set-state s (mean x)) (set-state s (max x)) (set-state s (min x))
   (set-state n 3 :reduce max) (set-state n 5 :reduce max)
  (* s (square (param w (f32) 1.0))))""")
    )
    values = run_graph(experiment, found.graph, {"x": X, "s": F(2), "n": 7, "w": F(3)})
    assert values["value"] == 18
    assert_allclose(values["state:s"], (X.mean() + X.max() + X.min()) / 3, rtol=1e-6)
    assert values["state:n"] == 5


def test_measures_fold_by_path():
    experiment, found = objective(
        """
(defn look (x :scale 1) (measure size (* scale (mean x))) x)
(defmodel net (x) (let [x (look x :name a) x (look x :name b) _ (look x :scale 3 :name b)]
  (measure top (max x) :reduce max :every 5) (linear x 1)))
"""
        + run_of("""(let [v (mean (net x))]
  (measure perplexity v :after exp) (measure part (weighted (mean x) 3.0)) (measure part (mean (* 2 x)) :weight 1)
  (measure rows (sum x :axis 0) :reduce sum) v)""")
    )
    infos = {m.path: m for m in found.measures}
    assert list(infos) == ["net.a/size", "net.b/size", "net/top", "perplexity", "part", "rows"]
    assert (infos["net/top"].reduce, infos["net/top"].every) == ("max", 5)
    values = run_graph(experiment, found.graph, {"x": X, "net.w": np.ones((3, 1), F), "net.b": np.zeros(1, F)})
    assert_allclose(values["measure:net.b/size"], 2 * X.mean())
    assert (values["measure-weight:part"], infos["part"].weighted) == (4, True)
    assert_allclose(values["measure:part"], (3 * X.mean() + 2 * X.mean()) / 4)
    assert_allclose(values["measure:rows"], X.sum(0))
    after = run_graph(experiment, infos["perplexity"].after, {"x": 2.0}, double=True)["y"]
    assert_allclose(after, math.exp(2), rtol=1e-15)


def test_weighted_values_add_and_scale():
    experiment, found = objective(
        run_of("""
  (let [mask (> x 0.5) a (mean-over x mask) b (mean-over (* 2 x) mask)]
   (+ (* 3 a) (/ b 4) 1 (* (square (param w (f32) 1.0)) a)))""")
    )
    values = run_graph(experiment, found.graph, {"x": X, "w": F(2)})
    mean = X[X > 0.5].mean()
    assert_allclose(values["value"], 3 * mean + mean / 2 + 1 + 4 * mean, rtol=1e-6)
    assert values["weight"] == (X > 0.5).sum()
    assert codes(run_of("(+ (weighted (mean x) 1) (weighted (mean x) 2))")) == ["E-TYPE-006"]


def test_training_is_known_to_the_elaboration():
    text = (
        "(defmodel net (x) (if training (linear x 2) (* 0 (linear x 2))))"
        + run_of("(mean (net x))")
        + "(defeval held :loader train loss)"
    )
    experiment = load_text(text)
    slots = {"x": X, "net.w": np.ones((3, 2), F), "net.b": np.ones(2, F)}
    assert run_graph(experiment, experiment.run.updates[0].objective.graph, slots)["value"] > 1
    assert run_graph(experiment, experiment.evaluations["held"].objectives[0].graph, slots)["value"] == 0
    quiet = "(with :training false (stop-gradient (dropout x 0.5)))"
    assert "random-uniform" not in ops_of(
        objective(run_of(f"(* (mean {quiet}) (square (param w (f32) 1.0)))"))[1].graph
    )


# Draws.


def draws(expression: str, before: str = "") -> list[np.ndarray]:
    found = value_of(expression, before=before)
    return found if isinstance(found, list) else [found]


def test_an_unrelated_edit_leaves_draws_alone():
    before = "(defn noise (n) (random-normal (f32 n)))"
    (plain,) = draws("(let [a (noise 5)] a)", before)
    edited = draws(
        "(let [z (random-uniform (f32 9)) b (noise 5) a (noise 5) c (random-normal (f32 5))] [z b a c])", before
    )
    assert_array_equal(plain, edited[2])
    assert (edited[1] != edited[2]).all() and (edited[3] != edited[2]).all()


def test_two_calls_differ_and_names_matter():
    before = "(defn noise (n) (random-normal (f32 n)))"
    first, second = draws("[(noise 4) (noise 4)]", before)
    assert (first != second).all()
    one, other, again = draws("[(noise 4 :name one) (noise 4 :name other) (with :scope one (noise 4))]", before)
    assert (one != other).all() and (one != again).all()
    named, free = draws("[(random-normal (f32 4) :name one) (random-normal (f32 4))]")
    assert (named != free).all()
    rounds = draws("(for [i 3] (random-uniform (f32 4)))")
    assert len({r.tobytes() for r in rounds}) == 3


def test_draws_of_every_kind():
    uniform, normal = draws("[(random-uniform (f32 20000)) (random-normal (f32 20000))]")
    assert uniform.min() >= 0 and uniform.max() < 1 and abs(uniform.mean() - 0.5) < 0.01
    assert abs(normal.mean()) < 0.03 and abs(normal.std() - 1) < 0.03
    coin = value_of("(bernoulli 0.25 (f32 20000))")
    assert coin.dtype == bool and abs(coin.mean() - 0.25) < 0.02
    for rate in (-0.1, 1.5):
        text = f"(defmetric m () (mean (cast (bernoulli {rate} (f32 3)) f32))) (defrun r :loss m :steps 1)"
        assert codes(text) == ["E-TYPE-005"]
    by_row = value_of("(bernoulli p (f32 4 5000))", p=np.array([[0.0], [1.0], [0.5], [0.1]], F))
    assert_allclose(by_row.mean(1), [0, 1, 0.5, 0.1], atol=0.03)
    picked = value_of("(categorical (broadcast l [20000 3]))", l=np.log(np.array([0.2, 0.5, 0.3], F)))
    assert picked.dtype == np.int32
    assert_allclose(np.bincount(picked, minlength=3) / 20000, [0.2, 0.5, 0.3], atol=0.02)
    kept = value_of("(with :training true (dropout v 0.25))", v=np.ones(20000, F))
    assert set(np.unique(kept)) == {F(0), F(1 / 0.75)} and abs((kept == 0).mean() - 0.25) < 0.02
    assert value_of("(random-normal (bf16 3))").dtype.name == "bfloat16"


# Optimizers.


def proposed(rule: str, step: float, p, g, **state):
    experiment = load_text(run_of("(* (mean x) (sum (param w (f32 3) 1.0)))", f":optimizer {rule}"))
    leaf = experiment.run.updates[0].rules["w"]
    inputs = {"p": p, "g": g, **{f"state:{n}": v for n, v in state.items()}}
    return run_graph(experiment, leaf.graph, inputs, step), leaf, experiment


P, G, M, S = (np.array(v, F) for v in ([1, -2, 3], [0.5, 0.25, -1], [0.1, 0.2, -0.3], [0.4, 0.1, 0.2]))


def test_sgd_and_momentum():
    assert_allclose(proposed("(sgd :rate 0.1)", 1, P, G)[0]["p"], P - 0.1 * G)
    assert_allclose(proposed("(sgd :rate 0.1 :decay 0.5)", 1, P, G)[0]["p"], P - 0.1 * (G + 0.5 * P))
    found, leaf, _ = proposed("(momentum :rate 0.1 :decay 0.5 :nesterov true)", 1, P, G, m=M)
    decayed = G + 0.5 * P
    m = 0.9 * M + decayed
    assert_allclose(found["state:m"], m, rtol=1e-6)
    assert_allclose(found["p"], P - 0.1 * (decayed + 0.9 * m), rtol=1e-6)
    assert [(name, type.shape) for name, type, _ in leaf.initial] == [("m", (3,))]


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_adamw(step):
    found, _, experiment = proposed(
        "(adamw :rate (linear-schedule 1.0 0.0 :total 2000) :betas [0.8 0.95] :decay 0.01)", step, P, G, m=M, v=S
    )
    rate = 1 - step / 2000
    m, v = 0.8 * M + 0.2 * G, 0.95 * S + 0.05 * G * G
    change = rate / (1 - 0.8**step) * m / (np.sqrt(v) / math.sqrt(1 - 0.95**step) + 1e-8)
    assert_allclose(found["p"], P * (1 - rate * 0.01) - change, rtol=3e-6)
    assert_allclose(found["state:v"], v, rtol=1e-6)
    fed = sorted(float(v) for v in host_values(experiment, step).values())
    assert_allclose(fed, sorted([rate / (1 - 0.8**step), math.sqrt(1 - 0.95**step), 1 - rate * 0.01]), rtol=1e-12)


def test_decay_and_rates_by_schedule():
    found = proposed("(sgd :rate 0.1 :decay (/ 1.0 step))", 4, P, G)[0]
    assert_allclose(found["p"], P - 0.1 * (G + 0.25 * P), rtol=1e-6)
    assert_allclose(proposed("(sgd :rate (every 3 1.0 0.5))", 2, P, G)[0]["p"], P - 0.5 * G)


def test_a_rule_of_the_file_with_state():
    text = """
(defoptimizer slow (p g :rate _ :start 2) :state [s (full (type-of p) start) n 0]
  (let [s (+ s g)] (propose :p (- p (* rate s)) :s s :n (+ n 1))))
""" + run_of("(* (mean x) (sum (param w (f32 3) 1.0)))", ":optimizer (slow :rate 0.1)")
    experiment = load_text(text)
    leaf = experiment.run.updates[0].rules["w"]
    assert [str(type) for _, type, _ in leaf.initial] == ["(f32 3)", "(i32)"]
    assert_array_equal(run_graph(experiment, leaf.initial[0][2], {"p": P})["value"], [2, 2, 2])
    found = run_graph(experiment, leaf.graph, {"p": P, "g": G, "state:s": M, "state:n": 4})
    assert_allclose(found["p"], P - F(0.1) * (M + G), rtol=1e-6)
    assert found["state:n"] == 5


TWO = "(defmodel net (x) (linear (linear x 3 :name a) 1 :name b))"


@pytest.mark.parametrize(
    ("over", "moved"),
    [
        ('"*"', ["net.a.w", "net.a.b", "net.b.w", "net.b.b"]),
        ('"net.a.*"', ["net.a.w", "net.a.b"]),
        ('"*.w"', ["net.a.w", "net.b.w"]),
        ('["net.b.w" "*.a.b"]', ["net.a.b", "net.b.w"]),
    ],
)
def test_what_an_update_moves(over, moved):
    experiment = load_text(TWO + run_of("(mean (net x))", f":optimizer (sgd :rate 1) :over {over}"))
    assert list(experiment.run.updates[0].rules) == moved


def test_an_optimizer_by_path_and_shape():
    rule = '(fn (path p) (if (matches path "*.b") (sgd :rate 1) (= (dim p -1) 1) (adam :rate 1) (momentum :rate 1)))'
    rules = load_text(TWO + run_of("(mean (net x))", f":optimizer {rule}")).run.updates[0].rules
    assert {n: r.name for n, r in rules.items()} == {
        "net.a.w": "momentum",
        "net.a.b": "sgd",
        "net.b.w": "adam",
        "net.b.b": "sgd",
    }
    assert rules["net.a.b"] is not rules["net.b.b"], "their shapes differ"


# Runs.


def test_a_run_with_several_updates():
    experiment = load_text(
        TWO
        + ROWS
        + """
(defmetric loss ((x (f32 _ 3))) (mean (net x)))
(defmetric other (y) (* (cast (max y) f32) (square (param scale (f32) 1.0))))
(defupdate first :loss loss :optimizer (sgd :rate 1) :over "net.*" :clip 0.5 :times 2)
(defupdate second :loss other :loader train :optimizer (adam :rate 1) :every 3 :clip (/ 1 step))
(defeval held :loader train :batches all loss other) (defeval short :loader train :batches 1 loss)
(defgenerator words-of () (zeros (i32 2)))
(defdiagnostic size (p g new) :over "*.w" :every 5 (norm p))
(defrun go :updates [first second] :loader train :steps 10 :microbatches 2 :seed 4 :on-nonfinite skip
  :evaluate [(every 5 held) short] :generate (every 2 words-of) :diagnose size :checkpoint (every 4 :keep 2))
"""
    )
    run = experiment.run
    assert [(u.name, u.loader, u.times, u.every) for u in run.updates] == [
        ("first", "train", 2, 1),
        ("second", "train", 1, 3),
    ]
    assert list(run.updates[1].rules) == ["scale"]
    assert run.updates[0].clip == 0.5 and not isinstance(run.updates[1].clip, float)
    assert (run.microbatches, run.steps, run.seed, run.on_nonfinite) == (2, 10, 4, "skip")
    assert [(e.every, e.name) for e in run.evaluate] == [(5, "held"), (10, "short")]
    assert (run.checkpoint.every, run.checkpoint.keep) == (4, 2)
    assert experiment.evaluations["held"].batches is None and len(experiment.evaluations["held"].objectives) == 2
    assert list(run.diagnose[0].graphs) == ["net.a.w", "net.b.w"] and run.diagnose[0].every == 5


def test_choosing_among_runs():
    text = TAIL + "(defrun other :loss loss-of-the-tail :optimizer (sgd :rate 1) :steps 2)"
    assert codes(text) == ["E-RUN-004"]
    assert load_text(text, run="other").run.steps == 2
    assert codes(text, run="third") == ["E-RUN-005"]


def test_padded_batches_carry_valid():
    text = (
        ROWS.replace(":batch 4", ":batch 5 :last pad")
        + """
(defmetric loss (x (valid (bool _))) (* (mean-over (mean x :axis 1) valid) (square (param w (f32) 1.0))))
(defrun go :loader train :loss loss :optimizer (sgd :rate 1) :steps 1)"""
    )
    _, found = objective(text)
    assert found.fields == ("x", "valid")
    assert codes(text.replace("(valid (bool _))", "").replace("valid", "(> (mean x :axis 1) 0)")) == ["E-DATA-005"]


# Groups of diagnostics.


@pytest.mark.parametrize(
    ("name", "pattern", "group"),
    [
        ("net.block.3.up.w", "net.{i}.*", "net.block.3"),
        ("net.head.w", "net.{i}.*", "net.head"),
        ("net.block.3.up.w", "net.block.{i}.*", "net.block.3"),
        ("net.block.3.up.w", "net.{i}.{j}.*", "net.block.3.up"),
        ("net.block.12.b", "*.{i}.b", "net.block.12"),
        ("other.w", "net.{i}.*", None),
        ("net.head.w", "net.*", "net.*"),
        ("net.head.w", "*.w", "*.w"),
        ("net.head.w", "net.head.w", "net.head.w"),
        ("net.w", "net.{i}.*", None),
        ("net.w", "net.{i}", "net.w"),
    ],
)
def test_groups(name, pattern, group):
    assert group_of(name, pattern) == group


def test_a_diagnostic_by_group():
    experiment = load_text(
        TWO
        + run_of("(mean (net x))", ":optimizer (sgd :rate 1) :diagnose [size]")
        + """
(defdiagnostic size (p g new) :group "net.{i}.*" :reduce sum :after sqrt (+ (sum (square g)) (norm (- new p))))"""
    )
    (rule,) = experiment.run.diagnose
    assert rule.groups == {"net.a.w": "net.a", "net.a.b": "net.a", "net.b.w": "net.b", "net.b.b": "net.b"}
    assert rule.reduce == "sum"
    value = run_graph(experiment, rule.graphs["net.a.b"], {"p": P, "g": G, "new": P + 2})["value"]
    assert_allclose(value, (G * G).sum() + np.sqrt(12), rtol=1e-6)


# Generators.


def test_a_generator_with_structured_carries():
    experiment = load_text(
        """
(defgenerator g (:start 3 :length 4)
  :trips [t length] :carry [[a b] [(full (f32 2) start) [1 2.5]] n 0]
  (let [[x y] b] (next :a (+ a (cast t f32)) :b [(+ x 1) 7] :n (+ n 2) :emit n :emit [a y])))
"""
        + TAIL,
        keys={"g": {"length": "6"}},
    )
    graphs = experiment.generators["g"]
    assert graphs.num_trips == 6 and graphs.num_emitted == 3
    assert [str(type) for _, type in graphs.carries] == ["(f32 2)", "(i32)", "(f32)", "(i32)"]
    start = run_graph(experiment, graphs.start, {})
    assert_array_equal(start["carry:0"], [3, 3])
    slots = {name: value for (name, _), value in zip(graphs.carries, start.values(), strict=True)}
    trip = run_graph(experiment, graphs.trip, {**slots, "trip": 5})
    assert_array_equal(trip["carry:0"], [8, 8])
    assert (trip["carry:1"], trip["carry:2"], trip["carry:3"]) == (2, 7, 2)
    assert trip["carry:2"].dtype == F
    assert (trip["emit:0"], trip["emit:2"]) == (0, 2.5)


def test_a_generator_shows_text_and_takes_its_keys():
    text = (
        """
(defdata corpus (text "words.txt"))
(defgenerator story (:prompt (encode corpus "the") :heat 0.8 :greedy false) :show corpus
  :trips [t 5] :carry [last (gather prompt -1)]
  (next :last last :emit (if greedy last (+ last 0))))"""
        + TAIL
    )
    plain = load_text(text).generators["story"]
    assert plain.show == "text:corpus" and len(plain.prompt) == 3
    given = load_text(text, keys={"story": {"prompt": "quick fox", "greedy": "true"}})
    vocabulary = sorted(set(TEXT))
    assert list(given.generators["story"].prompt) == [vocabulary.index(c) for c in "quick fox"]
    assert codes(text, keys={"story": {"promt": "x"}}) == ["E-FORM-003"]
    assert codes(text, keys={"story": {"prompt": "QUICK"}}) == ["E-DATA-004"]


def test_draws_of_a_trip_depend_on_the_trip():
    experiment = load_text("(defgenerator g () :trips [t 3] :carry [x (zeros (f32 4))] (random-normal (f32 4)))" + TAIL)
    graph = experiment.generators["g"].trip
    first, second = (run_graph(experiment, graph, {"trip": t})["carry:0"] for t in (0, 1))
    assert (first != second).all()


# Warnings.


def test_warnings():
    experiment = load_text(
        """
(def never 3) (defn unused (x) x) (def used 2) (defn helper (x) (* used x))
(defmodel net (x) (let [_ (linear x 3 :name lost)] (helper (linear x 1 :name kept))))
"""
        + run_of("(mean (net x))")
    )
    assert [(w.code, w.span.line) for w in experiment.warnings] == [
        ("W-NAME-001", 2),
        ("W-NAME-001", 2),
        ("W-PARAM-001", 3),
    ]
    assert "`net.lost.w`, `net.lost.b`" in experiment.warnings[2].message
    assert not load_text(TWO + run_of("(mean (net x))")).warnings


def test_a_warning_form_and_a_schedule_that_never_falls():
    experiment = load_text(
        run_of(
            "(* (mean x) (square (param w (f32) 1.0)))", ":optimizer (sgd :rate (warmup-cosine 1.0 :warmup 9 :total 3))"
        )
    )
    assert [w.code for w in experiment.warnings] == ["W-CALL-001"]
    assert experiment.warnings[0].span.source.name.endswith("file.sx")


def test_the_graph_of_an_expression_is_the_same_twice():
    _, first = elaborated("(softmax a)", a=X)
    _, second = elaborated("(softmax a)", a=X)
    assert ops_of(first) == ops_of(second)


def test_a_parameter_that_only_an_inner_generator_reads_is_reached():
    text = """
(defmodel guide ((goal (i32 _))) (gather (param table (f32 4 4) (normal 1.0)) goal))
(defgenerator picks (goal)
  :trips [t 2] :carry [last (zeros (i32 (dim goal 0)))]
  (next :last (categorical (guide goal))))
(defmetric loss ()
  (square (+ (param w (f32) 1.0) (mean (cast (picks (zeros (i32 3))) f32)))))
(defrun go :loss loss :over "w" :optimizer (sgd :rate 0.1) :steps 1)
"""
    assert [warning.code for warning in load_text(text).warnings] == []
