"""Source texts, line indices and spans."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sexpgpu.source import Source, Span, cover

TEXT = "(def a 1)\n\n(def größe 2)\r\n; end"


@pytest.mark.parametrize(
    "offset, place",
    [(0, (1, 1)), (9, (1, 10)), (10, (2, 1)), (11, (3, 1)), (16, (3, 6)), (len(TEXT), (4, 6))],
)
def test_line_column_counts_from_one(offset: int, place: tuple[int, int]) -> None:
    assert Source("a.sx", TEXT).line_column(offset) == place


def test_line_text_leaves_out_the_line_break() -> None:
    source = Source("a.sx", TEXT)
    assert [source.line_text(line) for line in range(1, source.num_lines + 1)] == [
        "(def a 1)",
        "",
        "(def größe 2)",
        "; end",
    ]


def test_empty_text_has_one_empty_line() -> None:
    source = Source("a.sx", "")
    assert (source.num_lines, source.line_text(1), source.line_column(0)) == (1, "", (1, 1))


def test_span_names_its_place_and_text() -> None:
    span = Span(Source("a.sx", TEXT), 16, 21)
    assert (span.line, span.column, span.text, str(span)) == (3, 6, "größe", "a.sx:3:6")


def test_cover_holds_both_spans_in_either_order() -> None:
    source = Source("a.sx", TEXT)
    a, b = Span(source, 1, 4), Span(source, 12, 15)
    assert cover(a, b) == cover(b, a) == Span(source, 1, 15)


@given(st.text(alphabet="ab \n\r\té"))
def test_every_offset_is_found_again_on_its_line(text: str) -> None:
    source = Source("a.sx", text)
    for offset in range(len(text) + 1):
        line, column = source.line_column(offset)
        assert source.line_starts[line - 1] + column - 1 == offset
        assert "\n" not in source.line_text(line)
