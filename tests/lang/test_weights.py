"""`defweights`: parameters that begin as arrays of a file, and everything that does not fit."""

from __future__ import annotations

import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import save_file

from sexpgpu.cli.main import main
from sexpgpu.diagnostics import DiagnosticError
from sexpgpu.lang.load import load_experiment
from sexpgpu.train.identity import experiment_digest
from sexpgpu.train.phases import assemble
from tests.train.trial import Trial, write_experiment

TEXT = """
(defmodel net ((x (f32 _ 3)))
  (linear (repeat [i 2] [x x] (linear x 3 :bias false :name (block i))) 2 :name head))
(defaverage slow :decay 0.9)
{weights}
(defmetric loss () (mean (square (net (ones (f32 2 3))))))
(defrun go :loss loss :optimizer (sgd :rate 0.1) :steps 2 :seed 1)
"""
RULES = '(defweights net "base.{kind}" ("block.{{i}}.w" "h.{{i}}.weight" "o i -> i o") ("head.b" "bias"))'
rng = np.random.default_rng(0)
ARRAYS = {
    "h.0.weight": rng.standard_normal((3, 3)).astype(np.float32),
    "h.1.weight": rng.standard_normal((3, 3)).astype(np.float16),
    "bias": rng.standard_normal(2),
}


def write(folder: Path, weights: str, arrays: dict[str, np.ndarray] | None = None) -> Path:
    arrays = ARRAYS if arrays is None else arrays
    np.savez(folder / "base.npz", **arrays)
    save_file({name: np.ascontiguousarray(a) for name, a in arrays.items()}, folder / "base.safetensors")
    return write_experiment(folder, TEXT.format(weights=weights))


def lines(folder: Path, weights: str, arrays: dict[str, np.ndarray] | None = None) -> list[str]:
    with pytest.raises(DiagnosticError) as caught:
        load_experiment(write(folder, weights, arrays))
    (fault,) = caught.value.diagnostics
    assert fault.code == "E-PARAM-003" and fault.span is not None
    return [fault.message.partition("do not fit: ")[2], *fault.notes]


@pytest.mark.parametrize("kind", ["npz", "safetensors"])
def test_parameters_begin_as_the_arrays(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path, RULES.format(kind=kind))
    with Trial(load_experiment(path)) as trial:
        for i in range(2):
            expected = ARRAYS[f"h.{i}.weight"].T.astype(np.float32)
            np.testing.assert_array_equal(trial.read(f"net.block.{i}.w"), expected)
            np.testing.assert_array_equal(trial.read(f"average.slow/net.block.{i}.w"), expected)
        np.testing.assert_array_equal(trial.read("net.head.b"), ARRAYS["bias"].astype(np.float32))
        with Trial(load_experiment(write_experiment(tmp_path, TEXT.format(weights=""), "plain.sx"))) as plain:
            np.testing.assert_array_equal(trial.read("net.head.w"), plain.read("net.head.w"))
        assert trial.losses(2)[1] > 0


def test_bf16(tmp_path: Path) -> None:
    save_file({"head.b": np.array([1.5, -2.0], ml_dtypes.bfloat16)}, tmp_path / "b.safetensors")
    path = write_experiment(tmp_path, TEXT.format(weights='(defweights net "b.safetensors" ("head.{n}" "head.{n}"))'))
    with pytest.raises(DiagnosticError, match=r"missing: `head\.w`"):
        load_experiment(path)
    path = write_experiment(tmp_path, TEXT.format(weights='(defweights net.head "b.safetensors" ("b" "head.b"))'))
    with Trial(load_experiment(path)) as trial:
        np.testing.assert_array_equal(trial.read("net.head.b"), [1.5, -2.0])


def test_without_rules_names_are_the_same(tmp_path: Path) -> None:
    own = {"w": np.ones((3, 2), np.float32), "b": np.ones(2, np.float32)}
    with Trial(load_experiment(write(tmp_path, '(defweights net.head "base.npz")', own))) as trial:
        np.testing.assert_array_equal(trial.read("net.head.w"), own["w"])


def test_everything_that_does_not_fit_is_listed(tmp_path: Path) -> None:
    arrays = {
        "h.0.weight": np.ones((3, 4), np.float32),
        "bias": np.ones(2, np.int32),
        "other": np.ones(5, np.float32),
        "h.0.mask": np.ones(1, np.float32),
    }
    rules = RULES.format(kind="npz").removesuffix(")") + ' ("tail.w" "tail") (none "h.{i}.mask"))'
    assert lines(tmp_path, rules, arrays) == [
        "mis-shaped: `h.0.weight` (3 4) for `net.block.0.w` (f32 3 3), rearranged (4 3)",
        "missing: `h.1.weight` for `net.block.1.w` (f32 3 3); there is a `h.0.weight`",
        "mis-shaped: `bias` (2) for `net.head.b` (f32 2), one of floats and the other not",
        'the rule ("tail.w" "tail") matches no parameter',
        "surplus: nothing takes `other` (5)",
    ]


def test_a_star_stands_for_any_steps(tmp_path: Path) -> None:
    arrays = {
        **{f"their.net.block.{i}.w": np.full((3, 3), i + 2.0, np.float32) for i in range(2)},
        "their.net.head.w": np.full((3, 2), 4.0, np.float32),
        "their.net.head.w/m": np.zeros((3, 2), np.float32),
        "their.step": np.zeros((), np.float32),
    }
    rules = '(defweights net "base.npz" ("{*}.w" "their.net.{*}.w") (none "{*}/m") (none "their.step"))'
    with Trial(load_experiment(write(tmp_path, rules, arrays))) as trial:
        found = [float(trial.read(f"net.{name}.w")[0, 0]) for name in ("block.0", "block.1", "head")]
    assert found == [2.0, 3.0, 4.0]
    assert lines(tmp_path, rules.replace('(none "{*}/m") ', ""), arrays) == [
        "surplus: nothing takes `their.net.head.w/m` (3 2)"
    ]


FUSED = """
(defn half (w n) (rearrange "o i -> i o" (nth (split w 2) n)))
(defmodel net ((x (f32 _ 3)))
  (batch-norm (+ (linear x 2 :name a) (linear x 2 :bias false :name b)) :name norm))
(defweights net "base-*.safetensors"
  ("a.w" "ab.weight" (fn (w) (half w 0)))
  ("b.w" "ab.weight" (fn (w) (half w 1)))
  ("a.b" ["bias_ih" "bias_hh"] (fn (given state) (+ given state)))
  ("norm.{kind}" "bn.{kind}"))
(defmetric loss () (mean (square (net (ones (f32 2 3))))))
(defrun go :loss loss :optimizer (sgd :rate 0.1) :steps 2)
"""


def fused(folder: Path, **changed: np.ndarray) -> Path:
    """A folder of two shards and their index: a matrix of two of ours, a bias in two halves, running statistics."""
    first = {"ab.weight": np.arange(12, dtype=np.float16).reshape(4, 3), "bias_ih": np.ones(2, np.float32)}
    norm = {f"bn.{kind}": np.full(2, n, np.float32) for n, kind in enumerate(("scale", "bias", "mean", "variance"))}
    save_file(first | changed, folder / "base-1.safetensors")
    save_file({"bias_hh": np.full(2, 0.5, np.float32), **norm}, folder / "base-2.safetensors")
    (folder / "base.safetensors.index.json").write_text('{"weight_map": {}}')  # as folders of published models have it
    return write_experiment(folder, FUSED)


def test_functions_take_parts_and_meet_arrays(tmp_path: Path) -> None:
    with Trial(load_experiment(fused(tmp_path))) as trial:
        whole = np.arange(12, dtype=np.float32).reshape(4, 3)
        np.testing.assert_array_equal(trial.read("net.a.w"), whole[:2].T)
        np.testing.assert_array_equal(trial.read("net.b.w"), whole[2:].T)
        np.testing.assert_array_equal(trial.read("net.a.b"), [1.5, 1.5])
        np.testing.assert_array_equal(trial.read("net.norm.mean"), [2, 2])
        np.testing.assert_array_equal(trial.read("net.norm.variance"), [3, 3])


def test_what_a_function_makes_is_checked(tmp_path: Path) -> None:
    path = fused(tmp_path, **{"ab.weight": np.zeros((5, 3), np.float32), "bias_ih": np.zeros(1, np.float32)})
    with pytest.raises(DiagnosticError) as caught:
        load_experiment(path)
    (fault,) = caught.value.diagnostics
    assert "mis-shaped: `ab.weight` (5 3) for `net.a.w` (f32 3 2): " in fault.message
    text = FUSED.replace("(half w 0)", "(nth (split w 4) 0)")
    with pytest.raises(DiagnosticError) as caught:
        load_experiment(write_experiment(tmp_path, text.replace("(half w 1)", "(linear w 2)")))
    assert "split" in caught.value.diagnostics[0].message and len(caught.value.diagnostics[0].notes) == 1


def test_the_digest_knows_what_a_function_does(tmp_path: Path) -> None:
    def digest(text: str) -> str:
        experiment = load_experiment(write_experiment(tmp_path, text))
        return experiment_digest(experiment, assemble(experiment).program)

    fused(tmp_path)
    same = FUSED.replace("(fn (given state) (+ given state))", "(fn (a b) (+ a b))")
    assert digest(FUSED) == digest(same) != digest(FUSED.replace("(+ given state)", "(- given state)"))


def test_weights_to_look_at_need_no_run(tmp_path: Path) -> None:
    show = "(defgenerator show () (net (ones (f32 2 3)))) (defeval look :batches 1 loss)"
    text = re.sub(r"\(defrun.*", show, FUSED)
    fused(tmp_path)
    experiment = load_experiment(write_experiment(tmp_path, text))
    assert (experiment.run.name, experiment.run.updates, list(experiment.generators)) == ("", (), ["show"])
    with Trial(experiment) as trial:
        np.testing.assert_array_equal(trial.read("net.a.b"), [1.5, 1.5])
    with pytest.raises(DiagnosticError, match="E-RUN-004"):
        load_experiment(write_experiment(tmp_path, re.sub(r"(?m)^\(defgen.*", "", text)))
    result = CliRunner().invoke(main, ["evaluate", str(write_experiment(tmp_path, text))])
    assert result.exit_code == 0 and result.output.splitlines()[0] == "step 0"
    result = CliRunner().invoke(main, ["run", str(write_experiment(tmp_path, text))])
    assert result.exit_code == 1 and "E-RUN-004: this file has no `defrun`" in result.output


def test_a_path_of_none_leaves_the_form_out(tmp_path: Path) -> None:
    paths = [write(tmp_path, '(defweights net none ("block.{i}.w" "h.{i}.weight"))')]
    paths.append(write_experiment(tmp_path, TEXT.format(weights=""), "plain.sx"))
    with Trial(load_experiment(paths[0])) as trial, Trial(load_experiment(paths[1])) as plain:
        np.testing.assert_array_equal(trial.read("net.block.0.w"), plain.read("net.block.0.w"))


def test_a_prefix_that_is_no_root(tmp_path: Path) -> None:
    assert lines(tmp_path, '(defweights nett "base.npz")')[0].startswith("no parameter is under `nett`")


def test_two_forms_may_share_a_file(tmp_path: Path) -> None:
    weights = """
(defweights net.block "base.npz" ("{i}.w" "h.{i}.weight" "o i -> i o"))
(defweights net.head "base.npz" ("b" "bias"))"""
    experiment = load_experiment(write(tmp_path, weights))
    assert set(experiment.weights) == {"net.block.0.w", "net.block.1.w", "net.head.b"}


def test_the_digest_knows_the_file(tmp_path: Path) -> None:
    def digest(arrays: dict[str, np.ndarray]) -> str:
        experiment = load_experiment(write(tmp_path, RULES.format(kind="npz"), arrays))
        return experiment_digest(experiment, assemble(experiment).program)

    assert digest(ARRAYS) == digest(ARRAYS) != digest(ARRAYS | {"bias": np.zeros(2)})


@pytest.mark.parametrize(
    ("weights", "code"),
    [
        ('(defweights net "none.npz")', "E-DATA-001"),
        ('(defweights net "file.sx")', "E-DATA-002"),
        ('(defweights net "base.safetensors.index.json")', "E-DATA-002"),
        ("(defweights net 3)", "E-TYPE-006"),
        ("(defweights net)", "E-FORM-001"),
        ('(defweights net "base.npz" ("a"))', "E-FORM-001"),
        ('(defweights net "base.npz" ("a" ["b" "c"]))', "E-FORM-001"),
        ('(defweights net "base.npz" ("a" ["b" 3] (fn (b c) (+ b c))))', "E-FORM-001"),
        ('(defweights net "base.npz" ("a" ["b" "c"] "o i -> i o"))', "E-TYPE-006"),
        ('(defweights net "base.npz" ("a" "b" 3))', "E-TYPE-006"),
    ],
)
def test_mistakes(tmp_path: Path, weights: str, code: str) -> None:
    (tmp_path / "base.safetensors.index.json").write_text('{"weight_map": {}}')
    with pytest.raises(DiagnosticError) as caught:
        load_experiment(write(tmp_path, weights))
    assert [d.code for d in caught.value.diagnostics] == [code]


def test_damage(tmp_path: Path) -> None:
    path = write(tmp_path, RULES.format(kind="safetensors"))
    whole = (tmp_path / "base.safetensors").read_bytes()
    (tmp_path / "base.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DiagnosticError, match=r"E-DATA-002.*not a whole safetensors file"):
        load_experiment(path)
