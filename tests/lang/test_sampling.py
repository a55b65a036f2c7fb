"""From logits to ids: what is kept, what is drawn, and keys of a generator that are off by default."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sexpgpu.lang.load import load_experiment
from sexpgpu.train.generation import run_generator
from tests.lang.files import codes, faults, value_of
from tests.train.trial import Trial, open_trial

R = np.random.default_rng(5)
X = R.standard_normal((40, 9)).astype(np.float32) * 2


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize("k", [1, 3, 8, 9, 100])
def test_the_k_likeliest(k: int) -> None:
    found = value_of(f"(likeliest x {k})", x=X)
    order = np.argsort(-X, axis=-1)
    for row, kept, places in zip(X, found, order, strict=True):
        assert set(np.flatnonzero(np.isfinite(kept))) == set(places[:k])
        np.testing.assert_array_equal(kept[places[:k]], row[places[:k]])


@pytest.mark.parametrize("p", [0.01, 0.5, 0.9, 1.0])
def test_a_nucleus_is_the_fewest_that_have_the_probability(p: float) -> None:
    found = np.isfinite(value_of(f"(nucleus x {p})", x=X))
    for share, kept in zip(softmax(X.astype(np.float64)), found, strict=True):
        order = np.argsort(-share)
        num = int(kept.sum())
        assert num >= 1 and set(np.flatnonzero(kept)) == set(order[:num])
        assert share[order[:num]].sum() >= p - 1e-6 and share[order[: num - 1]].sum() < p + 1e-6


def test_ties_are_kept_together() -> None:
    ties = np.asarray([[1, 3, 2, 3, 2]], np.float32)
    assert np.isfinite(value_of("(likeliest x 1)", x=ties)).tolist() == [[False, True, False, True, False]]
    assert np.isfinite(value_of("(nucleus x 0.8)", x=ties)).tolist() == [[False, True, True, True, True]]


def test_draws_follow_what_is_kept() -> None:
    rows = np.broadcast_to(np.asarray([0, 1, 2, 3], np.float32), (4000, 4)).copy()
    for options, kept in (
        ("", [0, 1, 2, 3]), (":top-k 2", [2, 3]), (":top-p 0.8", [2, 3]), (":top-k 3 :top-p 0.7", [2, 3]),
        (":temperature 2.0", [0, 1, 2, 3]), (":temperature 0.5 :top-k 1", [3]),
    ):  # fmt: skip
        found = value_of(f"(sample x {options})", x=rows)
        assert found.dtype == np.int32 and found.shape == (4000,)
        scale = 2.0 if "2.0" in options else 1.0
        expected = softmax(rows[0, kept].astype(np.float64) / scale)
        counts = np.bincount(found, minlength=4) / 4000
        assert counts.sum() == pytest.approx(counts[kept].sum()), options
        np.testing.assert_allclose(counts[kept], expected, atol=0.03, err_msg=options)


def test_temperature_0_is_the_likeliest_without_a_draw() -> None:
    np.testing.assert_array_equal(value_of("(sample x :temperature 0)", x=X), X.argmax(-1))
    np.testing.assert_array_equal(value_of("(sample (cast x bf16) :temperature 0.0 :top-k 3)", x=X).shape, (40,))


@pytest.mark.parametrize("options", [":temperature -1", ":top-k 0", ":top-p 0", ":top-p 1.5", ":top-k x"])
def test_what_is_refused(options: str) -> None:
    text = f"""(defmetric loss (x) (+ (mean x) (mean (cast (sample x {options}) f32)) (param w (f32) 0.0)))
(defdata d (arrays "rows.npz")) (defloader l (rows d) :batch 2)
(defrun go :loss loss :loader l :optimizer (sgd :rate 0.1) :steps 1)"""
    assert codes(text) == ["E-CALL-003"]
    (found,) = faults(text)
    assert found.span is not None and found.span.line == 1


SPELL = """
(defdata words (text "words.txt"))
(defmodel net ((tokens (i32 _))) (gather (param table (f32 (vocabulary words) (vocabulary words)) (normal 1.0)) tokens))
(defgenerator spell (:prompt (encode words "th") :top-k none :top-p none :temperature 0.7 :length 12)
  :trips [t length] :carry [last (reshape (gather (cast (stack prompt) i32) -1) [1])] :show words
  (let [next-one (sample (net last) :temperature temperature :top-k top-k :top-p top-p)]
    (next :last next-one :emit next-one)))
(defmetric loss () (mean (square (net (iota (i32 4))))))
(defrun go :loss loss :optimizer (sgd :rate 0.1) :steps 1 :seed 4)
"""


def spelt(folder: Path, **keys: str) -> str:
    given = {name.replace("_", "-"): value for name, value in keys.items()}
    with Trial(load_experiment(folder / "file.sx", keys={"spell": given})) as t:
        generator = t.experiment.generators["spell"]
        text = run_generator(t.experiment, t.assembly.program, t.session, t.stepper.schedule, generator, 1).text
    assert text is not None
    return text


def test_keys_that_are_off_by_default_take_numbers(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("the quick brown fox jumps over the lazy dog. " * 9)
    open_trial(tmp_path, SPELL).close()
    drawn = spelt(tmp_path)
    greedy = spelt(tmp_path, temperature="0")
    assert spelt(tmp_path, top_k="1") == greedy != drawn
    assert spelt(tmp_path, top_p="1e-6") == greedy
    assert spelt(tmp_path, top_k="28") == drawn
    assert spelt(tmp_path, prompt="fo").startswith("fo") and drawn.startswith("th")
