"""The formatter: one layout, the same reading, and nothing left to do the second time."""

import difflib
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sexpgpu.diagnostics import DiagnosticError
from sexpgpu.lang.forms import EXPRESSIONS
from sexpgpu.source import Source
from sexpgpu.syntax import read, to_text
from sexpgpu.syntax.format import BODIES, WIDTH, format_source, format_text
from sexpgpu.syntax.reader import MAX_DEPTH, tokens
from tests.syntax.test_printer import ATOMS, FORMS

CHECKOUT = Path(__file__).resolve().parents[2]
OURS = [*sorted((CHECKOUT / "examples").glob("*.sx")), *sorted((CHECKOUT / "sexpgpu" / "std").glob("*.sx"))]
TEXTS = [path.read_text("utf-8") for path in OURS]
LAYOUT = (CHECKOUT / "docs" / "format.md").read_text("utf-8")
COMMENTS = re.compile(r";[^\n]*")


def reading(text: str) -> tuple:
    result = read(Source("f.sx", text))
    assert not result.diagnostics, (text, [d.message for d in result.diagnostics])
    return result.forms


def comments(text: str) -> list[str]:
    """Comments of both kinds, in order, and every `#;`."""
    found = []
    for kind, start, end in tokens(Source("f.sx", text)):
        if kind == "gap":
            found += [comment.rstrip() for comment in COMMENTS.findall(text[start:end])]
        elif kind in ("comment", "skip"):
            found.append(text[start:end])
    return found


def formatted(text: str) -> str:
    """The text formatted, held to what always holds."""
    made = format_text(text)
    assert reading(made) == reading(text)
    assert comments(made) == comments(text)
    assert format_text(made) == made
    return made


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_our_files_are_formatted(path: Path) -> None:
    text = path.read_text("utf-8")
    assert formatted(text) == text, f"run `sexpgpu fmt {path.relative_to(CHECKOUT)}`"
    assert all(len(line) <= WIDTH for line in text.splitlines() if not line.startswith(";"))


@pytest.mark.parametrize("snippet", re.findall(r"```lisp\n(.*?)```", LAYOUT, re.DOTALL))
def test_the_page_shows_what_it_says(snippet: str) -> None:
    assert formatted(snippet) == snippet


def test_acceptance_files_keep_their_looks(shared: Path) -> None:
    """Of 670 lines fifty change: long ones, and what stood out of its column."""
    num_lines = num_changed = 0
    for path in sorted((shared / "experiments").glob("*.sx")):
        text = path.read_text("utf-8")
        made = formatted(text)
        code = [line.partition(";")[0] for line in made.splitlines()]
        assert all(len(line) <= WIDTH for line in code), path.name
        changes = list(difflib.unified_diff(text.splitlines(), made.splitlines(), n=0))[2:]
        num_lines += text.count("\n")
        num_changed += sum(line.startswith("-") for line in changes)
    assert num_lines and num_changed < 0.1 * num_lines


# --- what is kept ---------------------------------------------------------------------------------------------------

KEPT = {
    "several forms on a line": "(def a 1) (def b 2)   ; sizes\n(def c 3)\n",
    "literals": '(def a [1_000 6e-4 .5 +3 1E5 -0 "a\\n\\"b\\"" true])\n',
    "a string over lines": '(defn f (x) "first  \n   second"\n  (g x))\n',
    "a column of values": "(let [qkv     (linear x 3)\n      [q k v] (unstack qkv)\n      y       (f q k v)]\n  y)\n",
    "a plain list of values": "(let [heads (f 1)\n      q (g 2)]\n  (h heads q))\n",
    "siblings in columns": "(defloader train (rows a) :batch 1)\n(defloader val   (rows b) :batch 1)\n",
    "comments far right": "(def a 1)           ; one\n(def b (f 2 3))     ; two\n",
    "comments inside": "(let [a 1   ; one\n      ;; alone\n      b 2]\n  #| block |# (f a b))\n",
    "a comment before the end": "(defrun go\n  :steps 1\n  ; :seed 2\n)\n",
    "data left out": "(f 1 #;(g 2) 3 #; #|why|# 4)\n",
    "a body": "(with :compute bf16\n  (when training\n    (f x)))\n",
    "arguments": "(linear (relu x)\n        10 :name head)\n",
    "a call of what a call makes": "((slope\n   f)\n x)\n",
    "loops": "(scan [h h0]\n      [x xs] :axis 1\n  (next :h h\n        :emit x))\n",
    "a choice": "(if (= a 1) (f x)\n    (= a 2) (g x)\n    (h x))\n",
    "a choice on lines": "(if (= a 1)\n    (f x)\n    (h x))\n",
    "parameters": "(defmetric nll (tokens\n                targets)\n  (f tokens targets))\n",
    "state": "(defoptimizer f (p g)\n  :state [m (zeros p) v (zeros p)\n          r (zeros p)]\n  (propose :p p))\n",
    "nothing": "",
}


@pytest.mark.parametrize("text", KEPT.values(), ids=KEPT.keys())
def test_is_kept(text: str) -> None:
    assert formatted(text) == text


# --- what is changed ------------------------------------------------------------------------------------------------

CHANGED = {
    "blanks": ("( def  a\t1 )  ", "(def a 1)\n"),
    "crlf and a mark": ("\ufeff(def a 1)\r\n\r\n\r\n(def b 2) ; x \r\n", "(def a 1)\n\n(def b 2) ; x\n"),
    "blank lines": ("\n\n(def a 1)\n\n\n\n; c\n(def b 2)\n\n", "(def a 1)\n\n; c\n(def b 2)\n"),
    "closing brackets": ("(f (g 1\n   )\n)", "(f (g 1))\n"),
    "closing brackets behind a comment": ("(f [a ; one\n]\n)", "(f [a]) ; one\n"),
    "opening brackets": ("(\n  f\n  [\n 1\n 2])", "(f\n  [1\n   2])\n"),
    "indentation": ("(defn f (x)\n (g\nx\n    y))", "(defn f (x)\n  (g\n    x\n    y))\n"),
    "arguments": ("(f a\n  b\n      c)", "(f a\n   b\n   c)\n"),
    "a renamed pattern": (
        "(let [qkv     (f 1)\n      [q k] (g qkv)]\n  q)",
        "(let [qkv   (f 1)\n      [q k] (g qkv)]\n  q)\n",
    ),
    "one more blank asks for a column": ("(let [a  1\n      bcd 2]\n  a)", "(let [a   1\n      bcd 2]\n  a)\n"),
    "a pattern stands out of a long list": (
        "(let [a  1\n      b 2\n      cc 3\n      dd 4\n      [e f g] 5]\n  a)",
        "(let [a  1\n      b  2\n      cc 3\n      dd 4\n      [e f g] 5]\n  a)\n",
    ),
    "comments that code has reached": (
        "(def a 1)  ; one\n(def long-name 22)  ; two\n",
        "(def a 1)          ; one\n(def long-name 22) ; two\n",
    ),
    "siblings": (
        "(defloader a (rows a)  :batch 1)\n(defloader bcd (rows bcd) :batch 1)",
        "(defloader a (rows a)     :batch 1)\n(defloader bcd (rows bcd) :batch 1)\n",
    ),
    "what follows several lines": ("(f\n  a) (def b 1)", "(f\n  a)\n(def b 1)\n"),
    "skips": ("#;   (f  1) #; #; 2 3", "#;(f 1) #;#;2 3\n"),
}


@pytest.mark.parametrize("text, wanted", CHANGED.values(), ids=CHANGED.keys())
def test_is_changed(text: str, wanted: str) -> None:
    assert formatted(text) == wanted


# --- long lines -----------------------------------------------------------------------------------------------------

LONG = "(linear (relu (layer-norm x :name ln1)) (* 4 width) :name up)"


def test_forms_that_do_not_fit_begin_a_line() -> None:
    made = formatted(" ".join(f"(def constant-{i} {i})" for i in range(10)))
    assert [line.count("(def") for line in made.splitlines()] == [6, 4]


def test_options_stay_beside_their_values() -> None:
    made = formatted(f"(defrun go :loss {LONG} :optimizer (adamw :rate 1e-3 :betas [0.9 0.99]) :steps 100)")
    assert made.splitlines()[1:] == ["  :optimizer (adamw :rate 1e-3 :betas [0.9 0.99]) :steps 100)"]


def test_a_long_let_has_a_line_for_each_pair_and_its_body() -> None:
    made = formatted(f"(let [a {LONG} b {LONG} c 1] (f a b c))")
    assert made == f"(let [a {LONG}\n      b {LONG}\n      c 1]\n  (f a b c))\n"


def test_a_broken_let_breaks_its_pairs() -> None:
    made = formatted(f"(let [a 1 b 2] (f {LONG} {LONG}))")
    assert made == f"(let [a 1\n      b 2]\n  (f {LONG}\n     {LONG}))\n"
    assert formatted(f"(let [a 1] (f {LONG} {LONG}))").startswith("(let [a 1]\n  (f ")


def test_a_long_definition_begins_its_body_on_a_line() -> None:
    assert formatted(f"(defn block (x) (+ {LONG} {LONG}))") == (f"(defn block (x)\n  (+ {LONG}\n     {LONG}))\n")


def test_deep_brackets_go_back_to_the_left() -> None:
    text = "x"
    for depth in range(30):
        text = f"(function-{depth} {text} other-argument)"
    assert max(map(len, formatted(text).splitlines())) <= WIDTH


def test_comments_move_left_before_they_pass_the_width() -> None:
    made = formatted(f"(def a 1){' ' * 60}; {'c' * 70}\n(def bcd 2){' ' * 58}; d")
    assert [len(line) for line in made.splitlines()] == [WIDTH, WIDTH - 69]


def test_comments_too_long_for_a_column_follow_their_code() -> None:
    made = formatted(f"{LONG} ; {'c' * 80}\n(f x) ; d")
    assert made == f"{LONG} ; {'c' * 80}\n(f x) ; d\n"


# --- any text -------------------------------------------------------------------------------------------------------

BLANKS = st.sampled_from(
    [" ", "  ", "\n", "\n\n\n", "\n    ", " ; note\n", "\n;; alone  \n", " #| in |# ", " #|\n|#\n", " \t"]
)
SCRAPS = st.one_of(BLANKS, st.sampled_from(["", "(f", ")", "#;", '"', "]", "[a  b"]))


@st.composite
def written(draw: st.DrawFn) -> str:
    """Forms with blanks, breaks, comments and `#;` between their tokens."""
    text = " ".join(to_text(form) for form in draw(st.lists(FORMS, max_size=4)))
    parts = []
    for kind, start, end in tokens(Source("f.sx", text)):
        parts.append(text[start:end] if kind != "gap" else "")
        parts.append(draw(BLANKS))
        if kind == "gap" and draw(st.integers(0, 5)) == 0:
            parts.append(f"#;{draw(BLANKS)}{to_text(draw(ATOMS))} ")
    made = "".join(parts)
    return re.sub(r"^(?=[(\[])", " ", made, flags=re.MULTILINE) if draw(st.booleans()) else made


@given(written())
def test_any_forms(text: str) -> None:
    if not read(Source("f.sx", text)).diagnostics:
        formatted(text)


@given(st.sampled_from(TEXTS), st.data())
def test_mutants_of_our_files(text: str, data: st.DataObject) -> None:
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, len(text)))
        end = min(len(text), at + data.draw(st.integers(0, 12)))
        text = text[:at] + data.draw(SCRAPS) + text[end:]
    if read(Source("f.sx", text)).diagnostics:
        with pytest.raises(DiagnosticError):
            format_text(text)
    else:
        formatted(text)


@given(st.sampled_from(TEXTS), st.data())
def test_our_files_with_other_blanks(text: str, data: st.DataObject) -> None:
    """Every gap of a file drawn anew: its comments stay, its breaks may go or come."""
    parts = []
    for kind, start, end in tokens(Source("f.sx", text)):
        keep = kind != "gap" or ";" in text[start:end] or data.draw(st.integers(0, 9)) > 0
        parts.append(text[start:end] if keep else data.draw(st.sampled_from([" ", "  ", "\n  ", "\n\n  "])))
    made = formatted("".join(parts))
    code = [line for line in made.splitlines() if ";" not in line and '"' not in line]
    assert all(len(line) <= WIDTH for line in code)


def test_a_text_that_does_not_read_is_refused() -> None:
    with pytest.raises(DiagnosticError) as caught:
        format_source(Source("f.sx", "(def a 1\n(def b 2)"))
    assert caught.value.diagnostics[0].code == "E-READ-003"


def test_as_deep_as_can_be_read() -> None:
    text = "(f\n " * MAX_DEPTH + ")" * MAX_DEPTH
    assert formatted(text).count("\n") == MAX_DEPTH


def test_bodies_are_forms_of_the_language() -> None:
    assert set(EXPRESSIONS) >= BODIES
