"""Generators: trips in order, draws by (seed, step, sample), and what is shown and saved."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sexpgpu.train.generation import CHUNK, Sample, run_generator, save_sample, shows_as_it_comes
from sexpgpu.train.pictures import sheet
from tests.train.trial import Trial, open_trial

HEAD = """
(defdata letters (text "letters.txt" :by characters))
(defmetric pull () (square (param p (f32) 3.0)))
"""
TAIL = "(defrun go :loss pull :steps 4 :seed 5 :optimizer (sgd :rate 0.1))\n"


def open_generators(folder: Path, generators: str) -> Trial:
    folder.mkdir(exist_ok=True)
    (folder / "letters.txt").write_text("abcdefgh")
    return open_trial(folder, HEAD + generators + TAIL)


def generate(trial: Trial, name: str, step: int = 1, sample: int = 0, say=None) -> Sample:
    generator = trial.experiment.generators[name]
    program, schedule = trial.assembly.program, trial.stepper.schedule
    return run_generator(trial.experiment, program, trial.session, schedule, generator, step, sample, say)


def test_carries_go_from_trip_to_trip(tmp_path: Path) -> None:
    trips = 2 * CHUNK + 5
    text = f"""
(defgenerator count (:from 10)
  :trips [t {trips}] :carry [a 0 b (+ 1.0 from) c [1.0 2]]
  (let [[c0 c1] c]
    (next :a (+ a t) :c [(* c0 1.5) (+ c1 1)] :emit [(+ a t) (* b b)])))
"""
    with open_generators(tmp_path, text) as trial:
        made = generate(trial, "count")
        again = generate(trial, "count")
    total = np.cumsum(np.arange(trips))
    np.testing.assert_array_equal(made.emitted[0], total)
    np.testing.assert_array_equal(made.emitted[1], np.full(trips, 121.0))
    a, b, c0, c1 = made.carries
    assert (a, b, c1) == (total[-1], 11.0, 2 + trips)
    assert c0 == pytest.approx(1.5**trips, rel=1e-4)
    assert made.text is None
    for value, other in zip((*made.carries, *made.emitted), (*again.carries, *again.emitted), strict=True):
        np.testing.assert_array_equal(value, other)


def test_emissions_are_stacked_along_the_axis(tmp_path: Path) -> None:
    text = """
(defgenerator rows () :trips [t 4] :axis 1 :carry [x (zeros (f32 3))] (next :x (+ x 1.0) :emit x))
(defgenerator columns () :trips [t 4] :axis -1 :carry [x (zeros (f32 3))] (next :x (+ x 1.0) :emit x))
"""
    with open_generators(tmp_path, text) as trial:
        for name in ("rows", "columns"):
            np.testing.assert_array_equal(generate(trial, name).emitted[0], np.tile(np.arange(4.0), (3, 1)))


def test_draws_hang_on_the_step_and_the_sample(tmp_path: Path) -> None:
    text = """
(defgenerator walk () :trips [t 3] :carry [x (random-normal (f32))] (next :x (+ x (random-normal (f32))) :emit x))
(defgenerator other () (random-normal (f32 2)))
"""
    with open_generators(tmp_path / "a", text) as trial, open_generators(tmp_path / "b", text) as elsewhere:
        first = generate(trial, "walk")
        steps = np.diff([*first.emitted[0], first.carries[0]])
        assert len({float(v) for v in steps}) == 3, "each trip draws afresh"
        seen = {float(generate(trial, "walk", step, sample).carries[0]) for step in (1, 2) for sample in (0, 1)}
        assert len(seen) == 4
        trial.losses(2)
        assert generate(trial, "walk").carries[0] == first.carries[0] == generate(elsewhere, "walk").carries[0]
        assert not np.isin(generate(trial, "other").carries[0], first.emitted[0]).any()


def test_a_generator_reads_the_parameters_and_the_step(tmp_path: Path) -> None:
    text = """
(defn value () (param p (f32) 3.0))
(defgenerator look () (value))
(defgenerator clock () (* 2.0 step))
"""
    with open_generators(tmp_path, text) as trial:
        assert generate(trial, "look").carries[0] == 3.0
        trial.losses(1)
        assert generate(trial, "look").carries[0] == trial.read("p") == pytest.approx(2.4)
        assert generate(trial, "clock", step=7).carries[0] == 14.0


SPELL = """
(defgenerator spell (:prompt (encode letters "fed") :by 1)
  :show letters :trips [t 6] :carry [last (gather prompt (- (dim prompt 0) 1))]
  (let [token (rem (+ last by) 8)] (next :last token :emit token)))
(defgenerator whole ()
  :show letters :trips [t 3] :carry [text (zeros (i32 4))]
  (next :text (scatter text t (+ t 2))))
"""


def test_text_is_shown_whole_and_as_it_comes(tmp_path: Path) -> None:
    with open_generators(tmp_path, SPELL) as trial:
        parts: list[str] = []
        made = generate(trial, "spell", say=parts.append)
        assert made.text == "fedefghab" == "".join(parts)
        assert parts[0] == "fed" and len(parts) == 7
        assert generate(trial, "spell").text == made.text
        assert generate(trial, "whole").text == "cdea"
        path = save_sample(tmp_path / "samples", trial.experiment.generators["spell"], made, 12)
        assert path.name == "spell-00000012.txt" and path.read_text() == "fedefghab"


def test_a_character_of_several_tokens_is_shown_whole(tmp_path: Path) -> None:
    text = """
(defdata raw (text "letters.txt" :by bytes))
(defgenerator spell (:prompt (encode raw "aé€"))
  :show raw :trips [t 6] :carry [n 0]
  (next :n (+ n 1) :emit (gather BYTES t)))
"""
    for codes, end in (([0xE2, 0x82, 0xAC, 0xC3, 0xA4, 0x62], "€äb"), ([0xFF, 0x62, 0xE2, 0x82, 0x61, 0xE2], "�b�a�")):
        written = "[" + " ".join(map(str, codes)) + "]"
        with open_generators(tmp_path, text.replace("BYTES", written)) as trial:
            parts: list[str] = []
            made = generate(trial, "spell", say=parts.append)
            assert made.text == "aé€" + end == "".join(parts)
            assert shows_as_it_comes(trial.experiment.generators["spell"])


def test_several_texts_at_once(tmp_path: Path) -> None:
    text = """
(defgenerator both (:prompt (encode letters "a"))
  :show letters :trips [t 3] :carry [x (iota (i32 2))] (next :x (+ x 1) :emit x))
"""
    with open_generators(tmp_path, text) as trial:
        assert generate(trial, "both").text == "aabc\n---\nabcd"
        assert not shows_as_it_comes(trial.experiment.generators["both"])


def test_pictures_and_arrays_are_saved(tmp_path: Path) -> None:
    text = """
(defgenerator pictures () :show image (broadcast (iota (f32 8 8) :axis 0) [3 8 8]))
(defgenerator flat () :show image (zeros (f32 2 64)))
(defgenerator colours () :show image (ones (f32 2 8 8 3)))
(defgenerator numbers () [(zeros (f32 2)) 3])
"""
    with open_generators(tmp_path, text) as trial:
        for name, shape in (("pictures", (128, 416)), ("flat", (128, 272)), ("colours", (128, 272, 3))):
            path = save_sample(tmp_path / "s", trial.experiment.generators[name], generate(trial, name), 1)
            with Image.open(path) as image:
                assert np.asarray(image).shape == shape, name
        path = save_sample(tmp_path / "s", trial.experiment.generators["numbers"], generate(trial, "numbers"), 1)
        with np.load(path) as saved:
            assert sorted(saved.files) == ["value-0", "value-1"] and saved["value-1"] == 3


def test_a_sheet_has_rows_of_sixteen_pictures() -> None:
    shown = np.linspace(0, 1, 20, dtype=np.float32)[:, None, None] * np.ones((20, 8, 8), np.float32)
    page = sheet(shown)
    scale = 1024 // (16 * 9 - 1)
    assert page.shape == ((2 * 9 - 1) * scale, (16 * 9 - 1) * scale)
    small = page[::scale, ::scale]
    for index in (0, 15, 16, 19):
        top, left = index // 16 * 9, index % 16 * 9
        assert np.all(small[top : top + 8, left : left + 8] == round(255 * index / 19))
    assert np.all(small[8] == 64) and np.all(small[9:, 4 * 9 :] == 64)
    assert sheet(np.full((1, 4), np.nan)).max() == 0
