"""What is odd and what is natural: fields, bindings and parameters that nobody reads."""

from __future__ import annotations

import numpy as np
import pytest

from tests.lang.files import load_text

ARRAYS = {
    "x": np.ones((8, 3), np.float32),
    "label": np.zeros(8, np.int32),
    "real": np.arange(8) < 6,
}
HEAD = """
(defdata points (arrays "rows.npz"))
(defdata words (text "words.txt"))
(defloader train (rows points) :batch 4)
(defloader held (rows (part points 0.5 1.0)) :batch 4)
(defloader text (windows words :length 8) :batch 4)
(defloader walk (streams words :length 8) :batch 2)
(defloader both (zip [p train t text]))
(defeval unused :loader held other)
(defmetric other ((x (f32 _ 3))) (mean x))
"""


def warned(metric: str, *, loader: str = "train", more: str = "", arrays: dict | None = None) -> list[str]:
    """Messages of the warnings of a run, those of definitions that nobody uses left out."""
    run = f"(defrun go :loader {loader} :loss loss :optimizer (sgd :rate 0.1) :steps 1)"
    text = f"{HEAD}{more}\n(defmetric loss {metric})\n{run}"
    experiment = load_text(text, data=ARRAYS if arrays is None else arrays)
    return [w.message for w in experiment.warnings if not w.message.endswith("is defined, but nothing uses it")]


def loss(taken: str, value: str) -> str:
    return f"({taken}) (* (param w (f32) 1.0) {value})"


WITHOUT_MASK = {name: array for name, array in ARRAYS.items() if name != "real"}


def test_a_model_of_pictures_needs_no_labels() -> None:
    assert warned(loss("x", "(mean x)"), arrays=WITHOUT_MASK) == []


def test_a_mask_that_no_metric_takes_is_told_once() -> None:
    (message,) = warned(loss("x", "(mean x)"))
    assert message == "no metric reads the field `real` of the loader `train`, a mask"


@pytest.mark.parametrize(
    "more",
    [
        "(defmetric masked (x real) (mean (where real (mean x :axis 1) 0.0)))",
        "(defmetric masked (p.real) (mean (cast p.real f32)))",
    ],
)
def test_a_mask_that_another_metric_of_the_file_takes_is_read(more: str) -> None:
    assert warned(loss("x", "(mean x)"), more=more) == []


def test_what_a_view_adds_by_itself_may_stay_unread() -> None:
    for loader in ("text", "walk"):
        assert warned(loss("tokens", "(mean (cast tokens f32))"), loader=loader, arrays=WITHOUT_MASK) == []


def test_one_part_of_a_zip_that_nobody_reads() -> None:
    found = warned(loss("p.x", "(mean p.x)"), loader="both", arrays=WITHOUT_MASK)
    assert found == ["no metric reads a field of `t` of the loader `both`"]


def test_a_field_that_is_taken_and_not_read() -> None:
    found = warned(loss("x label", "(mean x)"), arrays=WITHOUT_MASK)
    assert found == ["the metric takes the field `label` and never reads it"]


@pytest.mark.parametrize(
    ("body", "unread"),
    [
        ("(let [a (mean x) a (* 2 a)] a)", []),
        ("(let [a (mean x) a 2.0] (* a (mean x)))", ["a"]),
        ("(let [[a b] [(mean x) 1]] a)", []),
        ("(let [_ (mean x)] (mean x))", []),
        ("(let [a (mean x) b 1] ((fn (c) a) 2))", ["b"]),
        ("(let [a 1] (let [a (mean x)] a))", ["a"]),
        ("(repeat [i 2] [h (mean x)] (* 2 h))", []),
    ],
)
def test_bindings(body: str, unread: list[str]) -> None:
    found = warned(loss("x", body), arrays=WITHOUT_MASK)
    assert found == [f"`{name}` is bound, but nothing below reads it" for name in unread]
