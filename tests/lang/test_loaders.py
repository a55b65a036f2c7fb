"""`streams`, `mix` and `zip` as forms: what they make, and the mistakes they find."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sexpgpu.data import Mixture, StreamLoader, Zipped
from tests.lang.files import codes, faults, load_text
from tests.train.trial import Trial

WORDS = '(defdata words (text "words.txt" :by bytes))\n'
CURRICULUM = (
    WORDS
    + """
(defloader mixed (mix [(windows (part words 0.0 0.5) :length 8) (linear-schedule 1.0 {low} :total 20)
                       (windows (part words 0.5 1.0) :length 8) (linear-schedule 0.0 0.9 :total 20)])
  :batch 4 :shuffle true)
(defloader plain (windows words :length 8) :batch 2 :last pad)
(defloader both (zip [m mixed h plain]))
(defmodel lm ((tokens (i32 _ _))) (embed (param wte (f32 256 256) 0.0) tokens))
(defmetric nll (m.tokens m.targets h.tokens h.targets h.valid)
  (measure hard (mean (cross-entropy (lm h.tokens) h.targets)))
  (+ (mean (cross-entropy (lm m.tokens) m.targets))
     (mean-over (mean (cross-entropy (lm h.tokens) h.targets) :axis 1) h.valid)))
(defupdate u :loss nll :loader both :optimizer (adam :rate 0.1) :times 2)
(defrun go :updates [u] :microbatches 3 :steps 20)
"""
)
RUN = "(defrun go :loader l :loss nll :optimizer (sgd :rate 0.1) :steps 1)\n"
NLL = """
(defmetric nll (tokens targets) (mean (cross-entropy (embed (param w (f32 256 256) 0.0) tokens) targets)))
"""


def test_a_curriculum() -> None:
    experiment = load_text(CURRICULUM.format(low=0.1))
    both, mixed = experiment.loaders["both"], experiment.loaders["mixed"]
    assert isinstance(both, Zipped) and isinstance(mixed, Mixture)
    assert both.fields["m.tokens"] == ("i32", (4, 8)) and both.fields["h.valid"] == ("bool", (2,))
    assert mixed.per_step == 6
    early = np.concatenate([mixed.choices(m)[1] for m in range(12)])
    late = np.concatenate([mixed.choices(m)[1] for m in range(19 * 6, 19 * 6 + 12)])
    assert early.mean() < 0.3 and late.mean() > 0.7


def test_it_learns(tmp_path: Path) -> None:
    with Trial(load_text(CURRICULUM.format(low=0.1))) as trial:
        losses = trial.losses(5)
        assert losses[-1] < losses[0] - 0.5


def test_the_digest_knows_the_weights() -> None:
    def identity(low: float) -> list:
        return load_text(CURRICULUM.format(low=low)).loaders["both"].identity()

    assert identity(0.1) == identity(0.1) != identity(0.2)


def test_streams_have_a_stretch_for_each_row_of_a_step() -> None:
    stream = "(defloader l (streams words :length 8) :batch 4)\n"
    loader = load_text(WORDS + NLL + stream + RUN.replace(":steps", ":microbatches 3 :steps")).loaders["l"]
    assert isinstance(loader, StreamLoader)
    assert loader.groups == 3 and loader.fields["first"] == ("bool", (4,))


@pytest.mark.parametrize(
    ("loader", "code"),
    [
        ("(streams words) :batch 2", "E-FORM-004"),
        ("(streams words :length 8) :batch 2 :shuffle true", "E-FORM-003"),
        ("(streams words :length 8) :batch 900", "E-DATA-003"),
        ("(streams words :length 8)", "E-FORM-004"),
        ("(mix [(windows words :length 8)]) :batch 2", "E-FORM-001"),
        ("(mix [(windows words :length 8) -1.0]) :batch 2", "E-TYPE-006"),
        ("(mix [(windows words :length 8) 0]) :batch 2", "E-TYPE-005"),
        ("(mix [(streams words :length 8) 1.0]) :batch 2", "E-TYPE-006"),
        ("(mix [(windows words :length 8) 1.0 (windows words :length 9) 1.0]) :batch 2", "E-DATA-005"),
        ("(mix [(windows words :length 8) 1.0]) :batch 2 :last pad", "E-FORM-003"),
        ("(zip [a l])", "E-NAME-001"),
        ("(zip [a (windows words :length 8)])", "E-TYPE-006"),
        ("(zip [])", "E-FORM-001"),
        ("(zip [a other a other])", "E-NAME-002"),
        ("(zip [a other]) :batch 3", "E-FORM-003"),
    ],
)
def test_mistakes(loader: str, code: str) -> None:
    other = "(defloader other (windows words :length 8) :batch 2)\n"
    assert codes(f"{WORDS}{NLL}{other}(defloader l {loader})\n{RUN}") == [code]


def test_a_padded_part_must_be_read_with_its_valid() -> None:
    (fault,) = faults(CURRICULUM.format(low=0.1).replace(" h.valid)\n", ")\n", 1).replace("h.valid", "(> h.targets 0)"))
    assert fault.code == "E-DATA-005" and "`h.valid`" in fault.message
