"""Offsets and the positions of editors."""

import pytest

from sexpgpu.lsp.positions import Lines

TEXT = "a𝛼é\r\nb\rc\n\n𝛽"


@pytest.mark.parametrize("encoding, column", [("utf-8", 7), ("utf-16", 4), ("utf-32", 3)])
def test_a_column_counts_the_units_of_the_encoding(encoding: str, column: int) -> None:
    lines = Lines(TEXT, encoding)
    assert lines.position(3) == (0, column)
    assert lines.offset(0, column) == 3


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-32"])
def test_every_offset_comes_back(encoding: str) -> None:
    lines = Lines(TEXT, encoding)
    inside_a_break = TEXT.index("\n")
    for offset in range(len(TEXT) + 1):
        if offset != inside_a_break:
            assert lines.offset(*lines.position(offset)) == offset


def test_all_three_line_breaks_and_no_other() -> None:
    lines = Lines("a\x0cb\u2028c\rd\r\ne\nf")
    assert [lines.position(i)[0] for i in (0, 2, 4, 6, 9, 11)] == [0, 0, 0, 1, 2, 3]


def test_what_lies_beyond_a_line_or_the_text_is_its_end() -> None:
    lines = Lines("ab\ncd")
    assert lines.offset(0, 99) == 2
    assert lines.offset(9, 0) == 5


def test_a_column_inside_a_character_is_its_end() -> None:
    assert Lines("𝛼b").offset(0, 1) == 1
