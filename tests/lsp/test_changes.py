"""Renaming and completion."""

from pathlib import Path

import pytest

from sexpgpu.lsp.completion import complete
from sexpgpu.lsp.rename import Refused, rename
from tests.lsp.marked import RUN, cut, opened

TEXT = """(def width 16)
(defn grow (x :by 2) (* x by width))
(defn other (width) (let [y width] (* y (grow 3 :by 4))))
"""


def renamed(tmp_path: Path, marked: str, new: str) -> str:
    """The text after the name at `|` has become `new`."""
    text, offset = cut(marked)
    project, path = opened(tmp_path, text)
    for edit in sorted(rename(project, path, offset, new), key=lambda e: -e.span.start):
        assert edit.path == path
        text = text[: edit.span.start] + edit.text + text[edit.span.end :]
    return text


OTHER = "(defn other (width) (let [y width]"


@pytest.mark.parametrize(
    "place, new, after",
    [
        ("(def |width", "size", TEXT.replace("(def width", "(def size").replace("by width", "by size")),
        ("other (|width", "size", TEXT.replace(OTHER, "(defn other (size) (let [y size]")),
        ("[y |width]", "n", TEXT.replace(OTHER, "(defn other (n) (let [y n]")),
        ("(|grow 3", "up", TEXT.replace("grow", "up")),
        (":|by 4", "times", TEXT.replace(":by", ":times").replace("x by", "x times")),
    ],
)
def test_every_place_of_one_binding_changes(place: str, new: str, after: str, tmp_path: Path) -> None:
    plain = place.replace("|", "")
    assert plain in TEXT and OTHER in TEXT
    assert renamed(tmp_path, TEXT.replace(plain, place, 1), new) == after


@pytest.mark.parametrize(
    "marked, new, why",
    [
        ("(defn f (x) (|linear x 3))", "dense", "`linear` belongs to the library, std/layers.sx"),
        ("(defn f (x) (|mean x))", "average", "`mean` is built into the language"),
        ("(defmetric m (|tokens) tokens)", "ids", "`tokens` is a field of a loader, whose data names it"),
        ("(defn f (x) |unknown)", "a", "no name of this file stands here"),
        ("(def |a 1)", "b c", "`b c` is no name"),
        ("(def |a 1)", "3", "`3` is no name"),
        ("(def |a 1)", ":a", "`:a` is no name"),
        ("(def |a 1)", "let", "`let` is a word of the language"),
        ("(def |a 1) (def b a)", "b", "`b` means something else already where this name is used"),
        ("(def |a 1) (defn f (x) (+ x a))", "x", "`x` means something else already where this name is used"),
        ("(def a 1) (defn f (|x) (+ x a))", "a", "`a` means something else already where this name is used"),
        ("(defn f (|x) (mean x))", "mean", "`mean` means something else already where this name is used"),
        ("(defmodel m ((x (f32 |?t))) ?t)", "t", "a size that a type binds begins with `?`: `?t`"),
        ("(def |a 1)", "?a", "only a size that a type binds begins with `?`"),
    ],
)
def test_a_name_that_cannot_change_is_refused(marked: str, new: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(Refused) as refused:
        renamed(tmp_path, marked, new)
    assert str(refused.value) == why


def test_a_name_may_hide_the_library_where_nothing_needs_it(tmp_path: Path) -> None:
    assert renamed(tmp_path, "(defn f (|x) (+ x 1))", "gelu") == "(defn f (gelu) (+ gelu 1))"


def test_a_name_changes_in_every_open_file(tmp_path: Path) -> None:
    inner = (tmp_path / "inner.sx").resolve()
    text, offset = cut('(include "inner.sx")\n(def b (+ |width 1))\n')
    project, path = opened(tmp_path, text)
    project.set_text(inner, "(def width 3)\n(def c width)\n")
    edits = rename(project, inner, 6, "size")
    assert [(e.path.name, e.span.line) for e in edits] == [("a.sx", 2), ("inner.sx", 1), ("inner.sx", 2)]
    assert rename(project, path, offset, "size") == edits


@pytest.mark.parametrize(
    "marked, wanted, unwanted",
    [
        ("(de|", {"defn": "form", "defmodel": "form"}, ("let", "dense")),
        ("(defn f (x) (le|", {"let": "form", "leaky-relu": "function", "length": "operation"}, ("defn",)),
        ("(def width 3)\n(defn f (x) (+ x w|))", {"width": "constant"}, ("with",)),
        ("(defn f (xs) (let [y 1 x2 xs] (+ |", {"y": "local", "x2": "local", "xs": "parameter"}, ("defn",)),
        ("(defn f (xs) (let [y | x2 xs] y))", {"xs": "parameter"}, ("y", "x2")),
        ("(defn f (x) x)\n(defn g (y) |)", {"y": "parameter"}, ("x",)),
        ("(defn f (x) (linear x 3 :|", {":bias": "keyword", ":init": "keyword", ":name": "keyword"}, ("linear",)),
        ("(defn f (x) (linear x 3 :bias true :|))", {":init": "keyword"}, (":bias",)),
        ("(defn f (x) (mean x :a|))", {":axis": "keyword"}, (":keep",)),
        ("(defrun go :st|", {":steps": "keyword"}, (":loss",)),
        ("(defloader l (rows c) :|)", {":batch": "keyword", ":shuffle": "keyword"}, (":steps",)),
        ("(defdata c (tokens p :v|))", {":vocabulary": "keyword"}, ()),
        ("(def y (repeat [i 3] [a 0 b 1] (next :|)))", {":a": "keyword", ":b": "keyword", ":emit": "keyword"}, ()),
        ("(defoptimizer o (p g) :state [m 0] (propose :|))", {":p": "keyword", ":m": "keyword"}, (":g",)),
        ("(defn f (x) (scan [h 0] [x x] :|", {":axis": "keyword", ":save": "keyword"}, (":emit",)),
        ('(defn f (x) "te|', {}, ("tensor",)),
        ("(defn f (x) ; co|", {}, ("concat", "conv")),
        ("(defn f (x) #| co|", {}, ("concat",)),
        ("|", {}, ("defn",)),
    ],
)
def test_what_may_stand_here(marked: str, wanted: dict[str, str], unwanted: tuple[str, ...], tmp_path: Path) -> None:
    before, _, after = marked.rpartition("|")
    text, offset = before + after, len(before)
    project, path = opened(tmp_path, text)
    start, found = complete(project, path, offset)
    kinds = {p.label: p.kind for p in found if p.label.startswith(text[start:offset])}
    assert {name: kinds.get(name) for name in wanted} == wanted
    assert not [name for name in unwanted if name in kinds]


def test_near_names_come_first_and_say_what_they_are(tmp_path: Path) -> None:
    text, offset = cut('(def width 16 "of all")\n(defn f (x) (* x |))' + RUN)
    project, path = opened(tmp_path, text)
    found = {p.label: p for p in complete(project, path, offset)[1]}
    assert found["x"].order < found["width"].order < found["linear"].order < found["mean"].order
    assert (found["width"].detail, found["width"].doc) == ("width = 16", "of all")
    assert found["linear"].detail.startswith("(linear x out :bias true")
