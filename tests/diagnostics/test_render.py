"""Golden renderings of diagnostics."""

import json

from hypothesis import given
from hypothesis import strategies as st

from sexpgpu.diagnostics import Diagnostic, Label, render
from sexpgpu.source import Source, Span


def find(source: Source, text: str, nth: int = 0) -> Span:
    """The span of the nth occurrence of a text."""
    start = -1
    for _ in range(nth + 1):
        start = source.text.index(text, start + 1)
    return Span(source, start, start + len(text))


GPT2 = Source(
    "gpt2.sx",
    "\n" * 11 + "  (param w (f32 768 512) (normal 0.02))\n" + "  ; the head\n" + '  (product "b w, w o -> b o" x w)\n',
)
OPERAND = Span(GPT2, GPT2.text.index(" x w)") + 1, GPT2.text.index(" x w)") + 2)
PRODUCT = Diagnostic(
    "E-TYPE-004",
    "`product` sums over `w`, which is 512 in x and 768 in w",
    OPERAND,
    (
        Label(OPERAND, "x is (f32 8 512): its `w` axis is 512"),
        Label(find(GPT2, "(f32 768 512)"), "w's `w` axis is 768 (vocab-width, line 3)"),
    ),
    ('transpose the notation of w to "o w", or give w the shape (f32 512 768)',),
)


def test_full_is_the_picture_of_the_style_guide() -> None:
    assert render([PRODUCT]) == (
        "sexpgpu check: E-TYPE-004: `product` sums over `w`, which is 512 in x and 768 in w\n"
        "  --> gpt2.sx:14:30\n"
        "12 |   (param w (f32 768 512) (normal 0.02))\n"
        "   |            ------------- w's `w` axis is 768 (vocab-width, line 3)\n"
        '14 |   (product "b w, w o -> b o" x w)\n'
        "   |                              ^ x is (f32 8 512): its `w` axis is 512\n"
        '   = help: transpose the notation of w to "o w", or give w the shape (f32 512 768)'
    )


def test_concise_is_one_line_each() -> None:
    plain = Diagnostic("E-DP-003", "3 GPUs do not divide 32 microbatches")
    assert render([PRODUCT, plain], "run", "concise") == (
        "gpt2.sx:14:30: E-TYPE-004: `product` sums over `w`, which is 512 in x and 768 in w\n"
        "sexpgpu run: E-DP-003: 3 GPUs do not divide 32 microbatches"
    )


def test_json_is_one_object_a_line() -> None:
    lines = render([PRODUCT, Diagnostic("W-NAME-001", "`a` is never used")], style="json").split("\n")
    first, second = (json.loads(line) for line in lines)
    assert first["code"] == "E-TYPE-004" and first["severity"] == "error"
    assert first["span"] == {
        "file": "gpt2.sx",
        "line": 14,
        "column": 30,
        "end_line": 14,
        "end_column": 31,
        "start": OPERAND.start,
        "end": OPERAND.end,
    }
    assert [label["span"]["line"] for label in first["labels"]] == [14, 12]
    assert second["span"] is None and second["severity"] == "warning"


def test_without_a_place_the_remedy_joins_the_headline() -> None:
    diagnostic = Diagnostic(
        "E-DP-003",
        "3 GPUs do not divide 32 microbatches",
        help=("use 1, 2 or 4", "or change `:microbatches`"),
        notes=("`SEXPGPU_DEVICES` is 0,1,2",),
    )
    assert render([diagnostic], "run") == (
        "sexpgpu run: E-DP-003: 3 GPUs do not divide 32 microbatches; use 1, 2 or 4\n"
        "  = help: or change `:microbatches`\n"
        "  = note: `SEXPGPU_DEVICES` is 0,1,2"
    )


def test_gaps_other_files_and_several_labels_of_a_line() -> None:
    here = Source("main.sx", "(include)\n\n\n\n(f a b)\n")
    there = Source("lib.sx", "(defn f (x) x)")
    diagnostic = Diagnostic(
        "E-CALL-002",
        "`f` takes 1 argument, not 2",
        find(here, "f"),  # in line 5
        (
            Label(find(there, "(x)"), "the parameters"),
            Label(find(here, "b)"), "too many"),
            Label(find(here, "(include)"), "f comes from here"),
        ),
    )
    assert render([diagnostic]) == (
        "sexpgpu check: E-CALL-002: `f` takes 1 argument, not 2\n"
        " --> main.sx:5:2\n"
        "1 | (include)\n"
        "  | --------- f comes from here\n"
        "...\n"
        "5 | (f a b)\n"
        "  |  ^\n"
        "  |      -- too many\n"
        " ::: lib.sx:1:9\n"
        "1 | (defn f (x) x)\n"
        "  |         --- the parameters"
    )


def test_tabs_wide_and_control_characters_keep_the_columns() -> None:
    source = Source("a.sx", "\t(名前 \x1b[31m e\u0301x y)")
    full = render([Diagnostic("E-NAME-001", "no `y`", find(source, "y"), (Label(find(source, "名前"), "w"),))])
    assert full.split("\n")[2:] == [
        "1 |     (名前 \ufffd[31m e\u0301x y)",
        "  |      ---- w",
        "  |                    ^",
    ]


def test_long_lines_are_cut_around_the_label() -> None:
    source = Source("a.sx", "(" + "a " * 200 + "HERE" + " b" * 200 + ")")
    _, _, line, mark = render([Diagnostic("E-NAME-001", "no `HERE`", find(source, "HERE"))]).split("\n")
    assert len(line) == 100
    assert line.startswith("1 | ...") and line.endswith("...")
    assert line[mark.index("^") : mark.rindex("^") + 1] == "HERE"


def test_a_span_of_several_lines_is_marked_on_its_first() -> None:
    source = Source("a.sx", "(f a\n   b)")
    full = render([Diagnostic("E-CALL-001", "`f` is not a function", Span(source, 0, 10))])
    assert full.split("\n")[2:] == ["1 | (f a", "  | ^^^^"]


@given(st.text(), st.data())
def test_rendering_never_fails(text: str, data: st.DataObject) -> None:
    source = Source("a.sx", text)
    places = [data.draw(st.tuples(*[st.integers(0, len(text))] * 2).map(sorted)) for _ in range(3)]
    spans = [Span(source, start, end) for start, end in places]
    labels = tuple(Label(span, "m") for span in spans[1:])
    diagnostic = Diagnostic("E-NAME-001", text, spans[0], labels, (text,))
    for style in ("full", "concise", "json"):
        rendered = render([diagnostic], style=style)
        assert "\x1b" not in rendered


@given(st.integers(0, 400), st.integers(1, 30), st.sampled_from(["a", "\t", "名", "e\u0301"]))
def test_cut_lines_stay_within_the_width_and_show_the_mark(start: int, length: int, filler: str) -> None:
    source = Source("a.sx", filler * start + "X" * length + filler * 400)
    first = len(filler) * start
    diagnostic = Diagnostic("E-NAME-001", "m", Span(source, first, first + length))
    _, _, line, mark = render([diagnostic]).split("\n")
    assert "X" * length in line and mark.count("^") == length
    assert len(line.replace("名", "__").replace("\u0301", "")) <= 100
