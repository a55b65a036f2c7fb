"""Hover: values, shapes with names of axes, signatures and docs."""

from pathlib import Path

import pytest

from sexpgpu.lsp.analysis import moved
from tests.lsp.marked import RUN, checked, cut, opened

MODEL = """(def width 32 "of the hidden layer")
(defn up (x :scale 1.0) "one layer"
  (* scale (product "b i, i o -> b o" x (param w (f32 16 width) 0.1))))
(defmodel net ((x (f32 _ ?n)))
  (let [h (up x :scale 2.0 :name up)]
    (product "b i, i o -> b o" (relu h) (param w (f32 width 4) 0.1))))
(defmetric loss () (mean (square (net (ones (f32 8 16))))))
(defrun go :loss loss :optimizer (sgd :rate (/ 1.0 step)) :steps 3)
"""


def hover(tmp_path: Path, marked: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What is shown where `|` stands."""
    text, offset = cut(marked)
    project, path = opened(tmp_path, text)
    checked(project, path)
    found = project.hover(path, offset)
    return (found.code, found.text) if found is not None else ((), ())


@pytest.mark.parametrize(
    "place, code",
    [
        ("(def |width", ("width = 32",)),
        ("(f32 16 |width)", ("width = 32",)),
        ("(relu |h)", ("h: (f32 b width) = (f32 8 32)",)),
        ("|(relu h)", ("(relu …): (f32 b width) = (f32 8 32)",)),
        ("[|h (up", ("h: (f32 b width) = (f32 8 32)",)),
        ("(up |x ", ("x: (f32 b n) = (f32 8 16)",)),
        ("((|x (f32", ("x: (f32 b n) = (f32 8 16)",)),
        ("?|n)))", ("?n",)),
        ("(|up x :scale", ("(up x :scale 1.0)", "(up …): (f32 b width) = (f32 8 32)")),
        (":|scale 2.0", (":scale 1.0",)),
        (":|rate (/", (":rate",)),
        ("(|param w (f32 width", ("(param NAME TYPE INIT)", "(param …): (f32 width o) = (f32 32 4)")),
        ("(|let [h", ("(let [NAME V [a b] V …] BODY)", "(let …): (f32 b o) = (f32 8 4)")),
        ("(|defmetric", ("(defmetric NAME (FIELD (FIELD TYPE) …) BODY)",)),
        ("1.0 |step", ("step: a number that depends on step",)),
        ("(|mean (square", ("(mean x :axis … :keep … :where …)", "(mean …): (f32)")),
        ('|"b i, i o', ()),
        ("(defrun |go", ("go",)),
    ],
)
def test_what_stands_here(place: str, code: tuple[str, ...], tmp_path: Path) -> None:
    assert MODEL.count(place.replace("|", "")) >= 1
    assert hover(tmp_path, MODEL.replace(place.replace("|", ""), place, 1))[0] == code


@pytest.mark.parametrize(
    "place, text",
    [
        ("(def |width", ("of the hidden layer", "constant of a.sx")),
        ("(|up x :scale", ("one layer", "function of a.sx")),
        (":|rate (/", ("must be given",)),
        ("(|relu h)", ("x where it is positive, else 0.", "function of std/functions.sx")),
        (":optimizer (|sgd", ("optimizer of std/optimizers.sx",)),
    ],
)
def test_what_is_said_of_it(place: str, text: tuple[str, ...], tmp_path: Path) -> None:
    found = hover(tmp_path, MODEL.replace(place.replace("|", ""), place, 1))[1]
    assert tuple(each.splitlines()[0] for each in found) == text


def test_values_of_several_calls_stand_below_each_other(tmp_path: Path) -> None:
    text = "(defn f (|x) (* x 2))\n(def a (f 1))\n(def b (f 2))\n(def c (f 3))\n(def d (f 4))\n"
    assert hover(tmp_path, text)[0] == ("x: 1", "x: 2", "x: 3", "…")


def test_a_function_that_no_run_reaches_has_its_signature(tmp_path: Path) -> None:
    text = '(defn alone (x) "never called" (* x 2))\n(defn b (x) (|alone x))\n' + RUN.replace("width", "8")
    code, said = hover(tmp_path, text)
    assert code == ("(alone x)",) and said[0] == "never called"


def test_values_stay_while_a_mistake_is_typed(tmp_path: Path) -> None:
    text = MODEL
    project, path = opened(tmp_path, text)
    checked(project, path)
    broken = text.replace("(def width 32", "(def width (+ 32 unknown)")
    project.set_text(path, broken)
    assert checked(project, path).diagnostics
    found = project.hover(path, broken.index("(relu h)") + len("(relu "))
    assert found is not None and found.code == ("h: (f32 8 32)",)


@pytest.mark.parametrize(
    "new, start, end, place",
    [
        ("abcd", 0, 4, (0, 4)),
        ("abXcd", 0, 2, (0, 2)),
        ("abXcd", 3, 5, (2, 4)),
        ("abXcd", 1, 4, None),
        ("acd", 1, 3, (2, 4)),
    ],
)
def test_a_place_is_followed_through_an_edit(new: str, start: int, end: int, place: tuple[int, int] | None) -> None:
    assert moved(new, "abcd", start, end) == place
