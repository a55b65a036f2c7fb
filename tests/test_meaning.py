"""The fifteen answers of the language: what an experiment means, each asserted on a small one that runs.

Other tests look at each of these more closely; here a reader finds the meaning in one place.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sexpgpu.diagnostics import DiagnosticError
from sexpgpu.train.evaluation import run_evaluation
from tests.lang.files import codes, value_of
from tests.train.trial import Trial, open_trial

DATA = '(defdata points (arrays "data.npz"))\n'
SGD = ":optimizer (sgd :rate 0.1)"


def measures(trial: Trial, update: str = "go") -> dict[str, Any]:
    return {name: np.asarray(value).tolist() for name, value in trial.step()[update].measures.items()}


def f32(*values: float) -> np.ndarray:
    return np.asarray(values, np.float32)


def test_1_a_step_reads_what_was_there_when_its_update_began(tmp_path: Path) -> None:
    text = f"""
(defmodel net () (param w (f32) 1.0))
(defn look (by)
  (let [s (state s (f32) 0.0)]
    (set-state s (+ s by) :reduce sum)
    (measure w (net)) (measure s s) (measure slow (with :weights slow (net)))
    (square (net))))
(defaverage slow :decay 0.5)
{DATA}(defloader train (rows points) :batch 1)
(defmetric first ((x (f32 _))) (look (mean x)))
(defmetric second ((x (f32 _))) (look (mean x)))
(defupdate a :loss first :loader train {SGD})
(defupdate b :loss second :loader train {SGD})
(defrun go :updates [a b] :microbatches 2 :steps 3)
"""
    with open_trial(tmp_path, text, {"x": f32(1, 1)}) as trial:
        found = trial.step()
        # Both microbatches of `a` read the initial values, though each sets the state; `b` reads what `a` committed.
        assert {n: float(v) for n, v in found["a"].measures.items()} == {"w": 1.0, "s": 0.0, "slow": 1.0}
        after_a = {n: float(v) for n, v in found["b"].measures.items()}
        assert after_a == pytest.approx({"w": 0.8, "s": 2.0, "slow": 0.9})


def test_2_the_rows_of_a_microbatch_follow_from_its_number(tmp_path: Path) -> None:
    text = f"""{DATA}(defloader train (rows points) :batch 3 :shuffle true)
(defmetric loss ((x (f32 _))) (measure rows (sum x) :reduce sum) (* (mean x) (param w (f32) 0.0)))
(defrun go :loader train :loss loss :microbatches MICRO :steps 9 :seed 4 {SGD})
"""
    x = f32(*range(8))
    seen = {}
    for num_microbatches in (1, 3):
        with open_trial(tmp_path, text.replace("MICRO", str(num_microbatches)), {"x": x}) as trial:
            loader = trial.experiment.loaders["train"]
            assert loader.batches_per_epoch == 2, "a batch lies in one epoch; the two rows left over are dropped"
            rows = [loader.batch(m)["x"] for m in range(6)]
            seen[num_microbatches] = np.stack(rows)
            for step in range(1, 3):
                numbers = range((step - 1) * num_microbatches, step * num_microbatches)
                assert measures(trial)["rows"] == sum(float(rows[m].sum()) for m in numbers)
            for epoch in range(3):
                assert len({*rows[2 * epoch].tolist(), *rows[2 * epoch + 1].tolist()}) == 6
    np.testing.assert_array_equal(seen[1], seen[3], "microbatch number m, whatever a step is made of")
    assert not np.array_equal(seen[1][:2], seen[1][2:4]), "an epoch has an order of its own"


def test_3_everything_folds_by_weight_over_microbatches_in_order(tmp_path: Path) -> None:
    text = f"""{DATA}(defloader train (rows points) :batch 2)
(defmetric loss ((x (f32 _)) (real (bool _)))
  (let [w (param w (f32) 1.0)]
    (measure newest (max x) :reduce last)
    (mean-over (* w x) real)))
(defrun go :loader train :loss loss :microbatches 2 :steps 1 {SGD})
"""
    with open_trial(tmp_path, text, {"x": f32(1, 2, 3, 100), "real": np.asarray([1, 1, 1, 0], bool)}) as trial:
        result = trial.step()["go"]
        assert result.loss == 2.0 and result.weight == 3.0, "(1 + 2 + 3) / 3, and not the mean of 1.5 and 3"
        assert float(trial.read("w")) == pytest.approx(1 - 0.1 * 2.0), "the gradient folds as the loss does"
        assert float(result.measures["newest"]) == 100.0, "`last` is the highest microbatch"
    nothing = {"x": f32(1, 2, 3, 4), "real": np.zeros(4, bool)}
    with open_trial(tmp_path, text, nothing) as trial, pytest.raises(DiagnosticError, match="E-RUN-002"):
        trial.step()
    count = "(let [n (state n (i32) 0)] (set-state n 3) (square (param w (f32) 1.0)))"
    assert codes(f"(defmetric loss () {count})(defrun go :loss loss :steps 1 {SGD})") == ["E-STATE-001"]


def test_4_two_calls_of_a_function_draw_anew_clash_or_share(tmp_path: Path) -> None:
    text = f"""
(defn noise () (random-normal (f32)))
(defmodel net (x) (measure size x) (* x (param w (f32) 1.0)))
(defmetric loss ()
  (measure draws (stack [(noise) (noise)]))
  (+ (net 1.0) (net 3.0)))
(defrun go :loss loss :steps 1 {SGD})
"""
    with open_trial(tmp_path, text) as trial:
        assert list(trial.experiment.parameters) == ["net.w"], "a model called again shares"
        found = measures(trial)
        assert found["draws"][0] != found["draws"][1]
        assert found["net/size"] == 2.0, "measures of one path fold together"
        assert float(trial.read("net.w")) == pytest.approx(1 - 0.1 * 4)
    run = f"(defrun go :loss loss :steps 1 {SGD})"
    clash = "(defn f (x) (* x (param w (f32) 1.0))) (defmetric loss () (+ (f 1.0) (f 2.0)))"
    assert codes(clash + run) == ["E-PARAM-001"]
    lane = """(defn f (x) (let [s (state s (f32) 0.0 :lane true)] (set-state s x) (* x (+ s 1.0))))
(defmetric loss () (* (param w (f32) 1.0) (+ (f 1.0) (f 2.0))))"""
    assert codes(lane + run) == ["E-STATE-001"]


def test_5_draws_depend_on_their_keys_and_path_alone(tmp_path: Path) -> None:
    text = f"""
(defmetric loss ()
  (let [UNRELATED noise (random-normal (f32 3))]
    (measure noise noise)
    (* (mean noise) (param w (f32) (normal 1.0)))))
{DATA}(defloader train (rows points) :batch 1)
(defmetric held ((x (f32 _))) (+ (mean x) (random-normal (f32))))
(defeval look :loader train :batches 2 held)
(defrun go :loss loss :steps 5 :seed SEED :microbatches 2 {SGD} :evaluate (every 1 look))
"""
    x = {"x": f32(1, 2)}
    plain = text.replace("UNRELATED", "").replace("SEED", "1")
    edited = text.replace("UNRELATED", "_ (random-uniform (f32 7)) u (param u (f32 2) (normal 1.0)) _ (* 2 u)")
    with open_trial(tmp_path, plain, x) as a, open_trial(tmp_path, edited.replace("SEED", "1"), x) as b:
        first = measures(a)["noise"]
        assert measures(b)["noise"] == first, "an unrelated edit leaves draws alone"
        assert measures(a)["noise"] != first, "another step draws anew"
        look = [
            run_evaluation(
                a.experiment, a.assembly.program, a.session, a.stepper.schedule, a.experiment.evaluations["look"], step
            )["eval/look/held"]
            for step in (1, 2)
        ]
        assert look[0] == look[1], "an evaluation draws the same each time"
    begin = []
    for changed in (plain, edited.replace("SEED", "1"), text.replace("UNRELATED", "").replace("SEED", "2")):
        with open_trial(tmp_path, changed, x) as trial:
            begin.append(float(trial.read("w")))
    assert begin[0] == begin[1] != begin[2], "an initialiser is keyed by the seed and the path of its parameter"


def test_6_what_a_loss_computes_for_a_generator_has_the_same_bits(tmp_path: Path) -> None:
    text = f"""
(defgenerator walk (x) :trips [t 2] :carry [at x] (next :at (+ at 1.0)))
(defmetric loss ()
  (let [x (random-normal (f32 8))]
    (measure apart (max (abs (- (walk x) (+ (+ x 1.0) 1.0)))) :reduce max)
    (mean (* x (param w (f32) 1.0)))))
(defrun go :loss loss :microbatches 3 :steps 2 {SGD})
"""
    with open_trial(tmp_path, text) as trial:
        assert measures(trial)["apart"] == 0.0 and measures(trial)["apart"] == 0.0


def test_7_a_step_averages_clips_proposes_and_commits_all_or_nothing(tmp_path: Path) -> None:
    text = f"""
(defmetric loss () (+ (* 3.0 (param a (f32) 0.0)) (* 4.0 (param b (f32) 0.0))))
(defrun go :loss loss :clip 1.0 :microbatches 2 :steps 1 {SGD})
"""
    with open_trial(tmp_path, text) as trial:
        assert trial.step()["go"].gradient_norm == pytest.approx(5.0)
        moved = [float(trial.read(name)) for name in "ab"]
        assert moved == pytest.approx([-0.06, -0.08]), "one norm for all gradients together"
    broken = f"""
(defmetric loss () (+ (square (param a (f32) 1.0)) (sqrt (* 0.0 (param b (f32) 1.0)))))
(defrun go :loss loss :on-nonfinite skip :steps 1 {SGD})
"""
    with open_trial(tmp_path, broken) as trial:
        result = trial.step()["go"]
        assert np.isfinite(result.loss) and result.num_skipped == 1, "the proposals are guarded, not the loss"
        assert float(trial.read("a")) == 1.0, "a good leaf does not move without the others"


def test_7_an_infinite_norm_is_no_reason_for_a_step_of_nothing(tmp_path: Path) -> None:
    """The gradient is finite, its norm is not: `:clip` would multiply it by 0."""
    text = f"""
(defmetric loss () (* 1e30 (param a (f32) 1.0)))
(defrun go :loss loss :clip 1.0 :on-nonfinite GUARD :steps 1 {SGD})
"""
    with open_trial(tmp_path, text.replace("GUARD", "skip")) as trial:
        result = trial.step()["go"]
        assert result.num_skipped == 1 and result.bad == ("gradient-norm",) and np.isfinite(result.loss)
        assert float(trial.read("a")) == 1.0
    with open_trial(tmp_path, text.replace("GUARD", "stop")) as trial, pytest.raises(DiagnosticError) as caught:
        trial.step()
    (found,) = caught.value.diagnostics
    assert found.code == "E-RUN-001" and "`gradient-norm`" in found.message


def test_8_skip_leaves_out_that_update_alone(tmp_path: Path) -> None:
    text = f"""{DATA}(defloader train (rows points) :batch 1)
(defmetric bad ((x (f32 _)))
  (let [s (state seen (f32) 0.0)]
    (set-state s (+ s 1.0) :reduce last)
    (* (mean x) (param u (f32) 1.0))))
(defmetric good () (measure step (+ step 0.0)) (* -1.0 (param v (f32) 0.0)))
(defaverage slow :over "v" :decay 0.0)
(defupdate a :loss bad :loader train {SGD})
(defupdate b :loss good {SGD})
(defrun go :updates [a b] :on-nonfinite GUARD :steps 3)
"""
    x = {"x": f32(1, np.inf, 1)}
    with open_trial(tmp_path, text.replace("GUARD", "skip"), x) as trial:
        found = [trial.step() for _ in range(3)]
        assert [r["a"].num_skipped for r in found] == [0, 1, 0]
        assert [float(r["b"].measures["step"]) for r in found] == [1, 2, 3]
        assert float(trial.read("seen")) == 2.0, "what its microbatches saw is left out too"
        assert float(trial.read("u")) == pytest.approx(1 - 0.1 - 0.1)
        assert float(trial.read("v")) == pytest.approx(0.3) == float(trial.read("average.slow/v"))
    with open_trial(tmp_path, text.replace("GUARD", "stop"), x) as trial:
        trial.step()
        before = trial.read_all("parameter", "model state")
        with pytest.raises(DiagnosticError, match="E-RUN-001"):
            trial.step()
        for name, value in trial.read_all("parameter", "model state").items():
            np.testing.assert_array_equal(value, before[name])


def test_9_an_index_out_of_range_is_told_before_the_commit(tmp_path: Path) -> None:
    table, far = f32(1, 2, 3), np.asarray([9, -4], np.int32)
    assert value_of("(gather x i)", x=table, i=far).tolist() == [3, 1], "reads clamp"
    assert value_of("(scatter x i 7.0)", x=table, i=far).tolist() == [1, 2, 3], "writes drop"
    text = f"""{DATA}(defloader train (rows points) :batch 2)
(defmetric loss ((i (i32 _)))
  (mean (BODY)))
(defrun go :loader train :loss loss :steps 2 {SGD})
"""
    reads = text.replace("BODY", "gather (param w (f32 3) 1.0) i")
    with open_trial(tmp_path, reads, {"i": np.asarray([0, 2, 3, 0], np.int32)}) as trial:
        trial.step()
        before = trial.read("w")
        with pytest.raises(DiagnosticError, match="E-RUN-003") as caught:
            trial.step()
        assert caught.value.diagnostics[0].span is not None and caught.value.diagnostics[0].span.line == 4
        np.testing.assert_array_equal(trial.read("w"), before)
    writes = text.replace("BODY", "scatter (param w (f32 3) 1.0) i 5.0")
    with open_trial(tmp_path, writes, {"i": np.asarray([-1, 1, -1, -1], np.int32)}) as trial:
        trial.step()
        trial.step()  # −1 means nowhere


def test_10_ties_go_to_the_lowest_index_and_nan_is_largest() -> None:
    ties = f32(1, 3, 3, 0)
    assert value_of("(argmax x)", x=ties) == 1 and value_of("(argmin x)", x=f32(2, 0, 0)) == 1
    assert value_of("(nth (top-k x 2) 1)", x=ties).tolist() == [1, 2]
    assert value_of("(nth (sort x) 1)", x=f32(2, 1, 2, 1)).tolist() == [1, 3, 0, 2]
    odd = f32(1, np.nan, 3)
    assert value_of("(argmax x)", x=odd) == 1 and value_of("(nth (sort x) 1)", x=odd).tolist() == [0, 2, 1]
    assert value_of("(grad (fn (y) (max y)) x)", x=ties).tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize(
    ("function", "inside"),
    [
        ("(/ 1.0 y)", "(!= y 0.0)"), ("(pow y 0.5)", "(> y 0.0)"), ("(log y)", "(> y 0.0)"),
        ("(log1p (- y 1.0))", "(> y 0.0)"), ("(sqrt y)", "(> y 0.0)"), ("(rsqrt y)", "(> y 0.0)"),
        ("(exp (* y 1e5))", "(< y 0.5)"), ("(expm1 (* y 1e5))", "(< y 0.5)"),
    ],
)  # fmt: skip
def test_11_a_branch_that_is_not_taken_has_no_gradient(function: str, inside: str) -> None:
    found = value_of(f"(grad (fn (y) (sum (where {inside} {function} 0.0))) x)", x=f32(0, 1, 4, -1))
    assert np.isfinite(found).all(), found
    untaken = {"(/ 1.0 y)": 0}.get(function, 0 if ">" in inside else 1)
    assert found[untaken] == 0.0


def test_12_a_row_with_nothing_to_attend_to_gives_zero(tmp_path: Path) -> None:
    text = f"""
(defmetric loss ()
  (let [q (param q (f32 1 1 2 4) (normal 1.0))
        k (param k (f32 1 1 3 4) (normal 1.0))
        sees (stack [(zeros (bool 3)) (ones (bool 3))])
        y (attention q k k :mask sees)]
    (measure blind (reshape (slice y 0 1 :axis 2) [4]) :reduce last)
    (sum (square y))))
(defrun go :loss loss :steps 1 {SGD})
"""
    with open_trial(tmp_path, text) as trial:
        before = trial.read("q")
        nodes = [node for phase in trial.assembly.program.phases for node in phase.graph.nodes]
        assert any(node.op == "composite" and "attention" in node.attrs.values() for node in nodes), "it is fused here"
        assert measures(trial)["blind"] == [0.0] * 4
        moved = trial.read("q") - before
        assert not moved[0, 0, 0].any() and moved[0, 0, 1].any(), "no gradient through the blind row"
    plain = "(attention q q q :mask (stack [(zeros (bool 2)) (ones (bool 2))]))"
    found = value_of(plain, q=np.ones((1, 1, 2, 4), np.float32))
    assert not found[0, 0, 0].any() and found[0, 0, 1].all(), "and in plain operations"


def test_13_integers_wrap_and_division_rounds_down(tmp_path: Path) -> None:
    largest = np.asarray([2**31 - 1], np.int32)
    assert value_of("(+ x 1)", x=largest).tolist() == [-(2**31)]
    assert value_of("(* x 2)", x=np.asarray([2**62], np.int64)).tolist() == [-(2**63)]
    sevens = np.asarray([7, -7], np.int32)
    assert value_of("(quotient x 2)", x=sevens).tolist() == [3, -4]
    assert value_of("(rem x 2)", x=sevens).tolist() == [1, 1]
    text = f"""
(defmetric loss ()
  (let [none (- (iota (i32 2)) 1)]
    (* (mean (cast (quotient 7 none) f32)) (param w (f32) 1.0))))
(defrun go :loss loss :steps 1 {SGD})
"""
    with open_trial(tmp_path, text) as trial, pytest.raises(DiagnosticError, match="E-RUN-003"):
        trial.step()


def test_14_sums_go_in_the_order_that_is_written(tmp_path: Path) -> None:
    one, large = f32(1), f32(1e8)
    assert value_of("(+ x y (- x))", x=large, y=one).tolist() == [0], "left to right: the 1 is lost beside 1e8"
    assert value_of("(+ x (- x) y)", x=large, y=one).tolist() == [1]
    places = np.zeros(3, np.int32)
    assert value_of("(scatter (zeros (f32 1)) i x :fold add)", i=places, x=f32(1e8, 1, -1e8)).tolist() == [0]
    assert value_of("(scatter (zeros (f32 1)) i x :fold add)", i=places, x=f32(1e8, -1e8, 1)).tolist() == [1]
    text = f"""{DATA}(defloader train (rows points) :batch 1)
(defmetric loss ((x (f32 _))) (measure total (mean x) :reduce sum) (square (param w (f32) 1.0)))
(defrun go :loader train :loss loss :microbatches 3 :steps 1 {SGD})
"""
    for x, total in ((f32(1e8, 1, -1e8), 0.0), (f32(1e8, -1e8, 1), 1.0)):
        with open_trial(tmp_path, text, {"x": x}) as trial:
            assert measures(trial)["total"] == total, "microbatches fold in f32, in their order"


def test_15_numbers_become_scalars_and_literals_take_the_dtype_beside_them() -> None:
    count, total, pair = value_of(
        "(scan [n 0 t 0.0 p [x x]] [i 3] (let [[a b] p] (next :n (+ n i) :t (+ t 0.5) :p [(+ a 1) b])))", x=f32(1, 2)
    )[:3]
    assert (count.dtype, int(count)) == (np.int32, 3) and (total.dtype, float(total)) == (np.float32, 1.5)
    assert pair.tolist() == [4, 5], "a vector keeps its parts"
    wide = value_of("(+ (cast x bf16) 0.1)", x=f32(0))
    assert wide.dtype.name == "bfloat16" and float(wide[0]) == float(np.float32(0.1).astype(wide.dtype))
    assert value_of("(+ x 1)", x=np.asarray([1], np.int64)).dtype == np.int64
    assert codes("(defmetric loss () (mean (cast (+ (iota (i32 2)) 0.5) f32)))(defrun go :loss loss :steps 1)") == [
        "E-TYPE-001"
    ]
