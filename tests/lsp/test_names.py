"""Static names: which binding a name refers to, form by form."""

from pathlib import Path

import pytest

from sexpgpu.lsp.analysis import Project
from tests.lsp.marked import cut, opened


def places(project: Project, path: Path, offset: int) -> list[str]:
    """The places of the binding at an offset, as line:column."""
    spans = project.references(path, offset)
    return [f"{s.line}:{s.column}" for s in spans]


# In each text `|` marks a use or a definition, and `^` in front of a name every place of the same binding.
CASES = [
    "(def ^|width 3) (def b (+ ^width 1)) (defvariant v (^width 4))",
    "(def x 1) (defn f (^|x) (+ ^x 1)) (def y x)",
    "(defn f (x) (let [^|x (+ x 1)] (* ^x 2)))",
    "(defn f (x) (let [^x 1 y ^|x x (* ^x y)] x))",
    "(defn f (x) (let [[a ^|b] x c ^b] (+ a ^b c)))",
    "(defn f (x :^|rate 1 :twice (* ^rate 2)) ^rate) (def y (f 1 :^rate 3))",
    "(defn f (x :name a) x) (def up 1) (def y (f 1 :name ^|up)) (def ^up 1)",
    "(defmodel m ((x (f32 _ ^|?t))) (reshape x [^?t 1]))",
    "(defn f ((x (f32 ^?t)) (y (f32 ^|?t))) (+ x ^?t))",
    "(def y (map (fn (^|x) (+ ^x 1)) 3))",
    "(def y (repeat [i 3] [^|h 0] (next :^h (+ ^h i) :emit i)))",
    "(def y (repeat [^|i 3] [h 0] (+ h ^i)))",
    "(defn f (xs) (scan [^|h 0] [x xs] :reverse true (next :^h (+ ^h x))))",
    "(defn f (xs) (scan [h 0] [^|x xs] (+ h ^x)))",
    "(defn f (t i) (table-scan [row t] [^|i i] :index ^i (next :row row)))",
    "(def y (for [^|i 3] (* ^i ^i)))",
    "(defoptimizer o (^|p g :rate _) :state [m (zeros-like ^p)] (propose :^p (- ^p g) :m m))",
    "(defoptimizer o (p g :^|rate _) (propose :p (* ^rate p))) (defrun r :optimizer (o :^rate 3))",
    "(defoptimizer o (p g) :state [^|m (zeros-like p)] (propose :p p :^m (+ ^m g)))",
    "(defgenerator g (:^|heat 1.0) :trips [t 3] :carry [x ^heat] (next :x (* x ^heat)))",
    "(defgenerator g () :trips [^|t 3] :carry [x 0] (next :x ^t))",
    "(defgenerator g () :trips [t 3] :carry [^|x 0 y ^x] (next :^x (+ ^x y)))",
    '(defdiagnostic d (p g ^|new) :over "*" (norm (- ^new p)))',
    '(defdata ^|c (text "a")) (defloader l (rows ^c) :batch 3)',
    "(defloader ^|l (rows c)) (defloader z (zip [a ^l])) (defrun r :loader ^l)",
    "(defmetric ^|m () 1) (defrun r :loss ^m) (defeval e :loader l ^m)",
    '(def path "x") (def ^|p 3) (defdata c (if (= ^p 3) (text path) (arrays path)))',
    "(defn f (x) (with :scope (a ^|x) (param w ^x 0)))".replace("(x)", "(^x)"),
    "(def last 1) (def ^|k 2) (defloader l (rows c) :last pad :batch ^k)",
    "(defn let (^|x) ^x)",
    '(def ^|path none) (defn f (w) w) (defweights m ^path ("a" "b" f))',
    '(defn ^|turned (w) w) (defweights m "f" ("a" "b" ^turned) ("c" ["d" "e"] (fn (x y) (^turned x))))',
    '(defweights m "f" ("c" ["d" "e"] (fn (^|x y) (+ ^x y))))',
]


@pytest.mark.parametrize("marked", CASES)
def test_a_name_refers_to_one_binding(marked: str, tmp_path: Path) -> None:
    without = marked.replace("|", "")
    first, *pieces = without.split("^")
    wanted, text = [], first
    for piece in pieces:
        wanted.append(f"1:{len(text) + 1}")
        text += piece
    offset = len(marked[: marked.index("|")].replace("^", ""))
    project, path = opened(tmp_path, text)
    assert places(project, path, offset) == wanted


@pytest.mark.parametrize(
    "marked",
    [
        "(def mean 1) (defn f (x) (measure a x :reduce |mean))",
        "(def w 1) (defn f (x) (param |w (f32 1) 0.0))",
        "(def add 1) (defn f (x) (scatter x 1 x :fold |add))",
        "(def all 1) (defeval e :loader l :batches |all m)",
        "(def skip 1) (defrun r :on-nonfinite |skip)",
        '(def bytes 1) (defdata c (text "a" :by |bytes))',
    ],
)
def test_a_bare_word_is_no_name(marked: str, tmp_path: Path) -> None:
    text, offset = cut(marked)
    project, path = opened(tmp_path, text)
    assert project.definition(path, offset + 1) is None


def test_names_of_included_files(tmp_path: Path) -> None:
    (tmp_path / "inner.sx").write_text("(def width 3)\n(defn twice (x) (* x width))\n", "utf-8")
    (tmp_path / "parts.sx").write_text('(include "inner.sx")\n(def other width)\n', "utf-8")
    text, offset = cut('(include "parts.sx")\n(def y (twice |width))\n')
    project, path = opened(tmp_path, text)
    span = project.definition(path, offset)
    assert span is not None and Path(span.source.name) == (tmp_path / "inner.sx").resolve()
    assert places(project, path, offset) == ["2:15", "1:6", "2:22", "2:12"]


def test_files_that_include_each_other_end(tmp_path: Path) -> None:
    (tmp_path / "b.sx").write_text('(include "a.sx")\n(def b 1)\n', "utf-8")
    text, offset = cut('(include "b.sx")\n(def a |b)\n')
    project, path = opened(tmp_path, text)
    assert project.definition(path, offset) is not None


def test_a_name_of_the_library_leads_to_its_file(tmp_path: Path) -> None:
    text, offset = cut("(defn f (x) (|linear x 3))")
    project, path = opened(tmp_path, text)
    span = project.definition(path, offset)
    assert span is not None and span.source.name == "std/layers.sx" and span.text == "linear"


def test_the_editor_may_have_an_included_file_open(tmp_path: Path) -> None:
    text, offset = cut('(include "parts.sx")\n(def y |twice)\n')
    project, path = opened(tmp_path, text)
    assert project.definition(path, offset) is None
    project.set_text((tmp_path / "parts.sx").resolve(), "\n\n(defn twice (x) x)")
    span = project.definition(path, offset)
    assert span is not None and span.line == 3
