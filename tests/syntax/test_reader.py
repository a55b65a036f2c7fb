"""Reading: data of every kind, recovery, and no text that it cannot answer."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sexpgpu.diagnostics import DiagnosticError, render
from sexpgpu.source import Source
from sexpgpu.syntax import (
    Boolean,
    Float,
    Form,
    Integer,
    Keyword,
    List,
    String,
    Symbol,
    Vector,
    load_source,
    read,
    to_text,
)
from sexpgpu.syntax.reader import MAX_DEPTH
from tests.effort import calls


def read_text(text: str) -> tuple[tuple[Form, ...], list[str]]:
    """The forms of a text, and its faults in the concise style."""
    result = read(Source("f.sx", text))
    return result.forms, render(result.diagnostics, style="concise").splitlines()


@pytest.mark.parametrize(
    "text, form",
    [
        ("3", Integer(3)),
        ("-3", Integer(-3)),
        ("1_000", Integer(1000)),
        ("6e-4", Float(6e-4)),
        (".5", Float(0.5)),
        ("1.0", Float(1.0)),
        ("1_0.2_5", Float(10.25)),
        ("true", Boolean(True)),
        ("false", Boolean(False)),
        (":rate", Keyword("rate")),
        ('"a\\n\\t\\\\\\"b"', String('a\n\t\\"b')),
        ("()", List(())),
        ("[a (b) 1]", Vector((Symbol("a"), List((Symbol("b"),)), Integer(1)))),
    ],
)
def test_every_kind_of_datum(text: str, form: Form) -> None:
    assert read_text(text) == ((form,), [])


def test_names_hold_anything_but_spaces_brackets_quotes_and_semicolons() -> None:
    text = "?t -> ... m.tokens %12 slot:net.w + - -x .x inf nan none? größe a#b a' b|c"
    assert read_text(text) == (tuple(map(Symbol, text.split(" "))), [])


@pytest.mark.parametrize(
    "text",
    [
        "; to the end (\na b",
        "#| a #| nested |# ) |# a b",
        "#; (skipped (form)) a b",
        "a \ufeff b",
        "#; #; one two a #; three b",
        "\ufeffa b",
        "a #;[x\n] b ; end",
    ],
)
def test_comments_are_no_data(text: str) -> None:
    assert read_text(text) == ((Symbol("a"), Symbol("b")), [])


def test_spans_are_character_offsets() -> None:
    source = Source("f.sx", "; größe\n(a  [b 12])")
    (form,) = read(source).forms
    assert isinstance(form, List)
    assert (form.span.line, form.span.column, form.span.text) == (2, 1, "(a  [b 12])")
    assert form.items[1].span.text == "[b 12]"


def test_equality_ignores_spans_and_kinds_differ() -> None:
    assert read_text("(a 1)")[0] == read_text("  (a  1)")[0]
    different: list[Form] = [Integer(1), Float(1.0), Boolean(True), Symbol("a"), Keyword("a"), String("a")]
    assert len(set(different)) == len(different)


# Text, the forms as read all the same, and the faults.
RECOVERIES = {
    "a bracket in column 0 ends what is open": (
        "(def a (+ 1 2)\n(def b 3)\n(def c (f 1)\n(def d 4)",
        "(def a (+ 1 2)) (def b 3) (def c (f 1)) (def d 4)",
        ["1:1: E-READ-003: `(def` is never closed", "3:1: E-READ-003: `(def` is never closed"],
    ),
    "a bracket missing here and one too many there": (
        "(def a (+ 1 2)\n(def b 3))",
        "(def a (+ 1 2)) (def b 3)",
        ["1:1: E-READ-003: `(def` is never closed", "2:10: E-READ-004: `)` closes nothing"],
    ),
    "indentation names the opener": (
        "(defn f (x)\n  (let [a 1]\n    (+ a (* x 2)\n    (foo b)))\n",
        "(defn f (x) (let [a 1] (+ a (* x 2) (foo b))))",
        ["3:5: E-READ-003: `(+` is never closed"],
    ),
    "without evidence the innermost opener is named": (
        "(def a\n  (f [1 2",
        "(def a (f [1 2]))",
        ["2:6: E-READ-003: `[` is never closed"],
    ),
    "a closer further out closes what is inside": (
        "(let [a (+ x 1\n      b 2]\n  a)\n(def c 1)",
        "(let [a (+ x 1 b 2)] a) (def c 1)",
        ["1:9: E-READ-003: `(+` is not closed before `]`"],
    ),
    "a closer of the wrong kind": (
        "(let (a 1] b)",
        "(let (a 1) b)",
        ["1:10: E-READ-004: `(a` is closed by `]`"],
    ),
    "a consequence is not told": (
        "(let [a (foo] b] c)",
        "(let [a (foo)] b c)",
        ["1:9: E-READ-003: `(foo` is not closed before `]`"],
    ),
    "stray closers are told once a form": (
        "(f x)))\n(g y))\n",
        "(f x) (g y)",
        ["1:6: E-READ-004: `)` closes nothing", "2:6: E-READ-004: `)` closes nothing"],
    ),
    "a string that swallows the next form": (
        '(def a "abc)\n(def b "x" 3)\n(def c 2',
        '(def a "abc") (def b "x" 3) (def c 2)',
        ["1:8: E-READ-006: this string is never ended", "3:1: E-READ-003: `(def` is never closed"],
    ),
    "a comment without an end": (
        "(def a 1) (b #| c",
        "(def a 1) (b)",
        ["1:14: E-READ-007: this block comment is never ended"],
    ),
    "malformed words": (
        '(a 12ab : "\\q" 1__0 1e999 #;)',
        '(a 12ab : "q" 1__0 inf)',
        [
            "1:4: E-READ-005: `12ab` is not a number",
            "1:9: E-READ-005: `:` is not a keyword",
            "1:12: E-READ-005: `\\q` is not an escape",
            "1:16: E-READ-005: `1__0` is not a number",
            "1:21: E-READ-005: `1e999` is too large for a float",
            "1:27: E-READ-005: `#;` has no datum to skip",
        ],
    ),
}


@pytest.mark.parametrize("text, forms, faults", RECOVERIES.values(), ids=RECOVERIES.keys())
def test_recovery(text: str, forms: str, faults: list[str]) -> None:
    found, found_faults = read_text(text)
    assert " ".join(to_text(form) for form in found) == forms
    assert found_faults == [f"f.sx:{fault}" for fault in faults]


def test_a_missing_bracket_shows_both_ends() -> None:
    text = "(defn f (x)\n  (let [a 1]\n    (+ a (* x 2)\n    (foo b)))\n"
    assert render(read(Source("f.sx", text)).diagnostics) == (
        "sexpgpu check: E-READ-003: `(+` is never closed\n"
        " --> f.sx:3:5\n"
        "3 |     (+ a (* x 2)\n"
        "  |     ^ this `(` has no `)`\n"
        "  |                 - `)` is missing here, or earlier\n"
        "4 |     (foo b)))\n"
        "  |     - this line is indented as if it were closed\n"
        "  = help: add `)` at the end of line 3"
    )


def test_brackets_of_two_kinds_show_both_places() -> None:
    assert render(read(Source("f.sx", "(let (a 1] b)")).diagnostics) == (
        "sexpgpu check: E-READ-004: `(a` is closed by `]`\n"
        " --> f.sx:1:10\n"
        "1 | (let (a 1] b)\n"
        "  |      - `(` is opened here\n"
        "  |          ^ expected `)`\n"
        "  = help: write `)` here"
    )


def test_deep_nesting_is_answered() -> None:
    forms, faults = read_text("(" * 100_000 + ")" * 100_000 + "\n(def a 1)")
    assert [to_text(form) for form in forms] == ["(def a 1)"]
    assert faults == [f"f.sx:1:{MAX_DEPTH + 1}: E-READ-008: more than {MAX_DEPTH} brackets are open at once"]


def test_the_deepest_form_can_be_compared_and_shown() -> None:
    text = "(" * MAX_DEPTH + ")" * MAX_DEPTH
    (a,), _ = read_text(text)
    (b,), _ = read_text(text)
    assert a == b and hash(a) == hash(b) and repr(a) == repr(b) and to_text(a) == text


@given(st.text(alphabet='()[]";#|\\ \n\tab:1.-_e\r\ufeff'))
def test_no_text_of_syntax_is_too_strange(text: str) -> None:
    result = read(Source("f.sx", text))
    render(result.diagnostics)
    if not result.diagnostics:
        again = read(Source("f.sx", " ".join(to_text(form) for form in result.forms)))
        assert again == result


@given(st.text())
def test_no_text_is_too_strange(text: str) -> None:
    render(read(Source("f.sx", text)).diagnostics)


def test_reading_is_little_work() -> None:
    block = "(defn block (x)\n" + "  (let [x (+ x (attend (layer-norm x :eps 1e-5) :name attn))]\n" * 8
    text = (block + "    x" + ")" * 9 + "\n") * 200
    assert not read(Source("f.sx", text)).diagnostics
    per_character = calls(lambda: read(Source("f.sx", text))) / len(text)
    assert per_character < 5


def test_the_acceptance_files_read_clean(shared: Path) -> None:
    paths = sorted((shared / "experiments").glob("*.sx"))
    assert paths
    for path in paths:
        assert read(load_source(path)).diagnostics == ()


def test_a_missing_file_names_its_neighbour(tmp_path: Path) -> None:
    (tmp_path / "gpt2.sx").write_text("(def a 1)", encoding="utf-8")
    with pytest.raises(DiagnosticError) as caught:
        load_source(tmp_path / "gtp2.sx")
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "E-READ-001" and diagnostic.help == ("the same folder holds `gpt2.sx`",)


def test_a_folder_and_a_bad_path_are_answered(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "a\0b"):
        with pytest.raises(DiagnosticError, match="E-READ-001"):
            load_source(path)


def test_a_file_that_is_not_utf8_names_byte_and_line(tmp_path: Path) -> None:
    path = tmp_path / "latin.sx"
    path.write_bytes("(def ä 1)\n; ".encode() + b"gr\xf6\xdfe\n")
    with pytest.raises(DiagnosticError) as caught:
        load_source(path)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.message == f"byte 15 of `{path}`, on line 2, is not UTF-8: 0xf6"
    assert diagnostic.span is not None and (diagnostic.span.line, diagnostic.span.column) == (2, 5)


def test_a_byte_order_mark_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "bom.sx"
    path.write_bytes(b"\xef\xbb\xbf(def a 1)")
    assert load_source(path) == Source(str(path), "(def a 1)")


def test_a_stretch_of_a_text_has_the_forms_and_spans_of_the_whole() -> None:
    source = Source("a.sx", "(def a 1)\n; more\n(def b [2\n  3])\n(def c 4)\n")
    starts = [source.text.index(f"(def {name}") for name in "abc"]
    whole = read(source).forms
    for form, start, end in zip(whole, starts, [*starts[1:], len(source.text)], strict=True):
        part = read(source, start, end)
        assert part.forms == (form,) and not part.diagnostics
        assert part.forms[0].span == form.span
