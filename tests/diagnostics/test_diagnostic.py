"""Diagnostics as data, the table of codes, and the nearest name."""

import re

import pytest

from sexpgpu.diagnostics import CODES, Diagnostic, DiagnosticError, nearest
from sexpgpu.source import Source, Span


def test_an_unlisted_code_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError, match="E-NONE-001"):
        Diagnostic("E-NONE-001", "never")


def test_the_code_decides_the_severity() -> None:
    assert Diagnostic("W-NAME-001", "`a` is never used").severity == "warning"
    assert Diagnostic("E-NAME-001", "no `a`").severity == "error"
    with pytest.raises(AssertionError):
        Diagnostic("E-NAME-001", "no `a`", severity="warning")


def test_an_error_carries_one_diagnostic_or_many() -> None:
    one = Diagnostic("E-NAME-001", "no `a`", Span(Source("f.sx", "a"), 0, 1))
    two = Diagnostic("E-DP-003", "3 GPUs do not divide 32 microbatches")
    assert DiagnosticError(one).diagnostics == (one,)
    assert DiagnosticError([one, two]).diagnostics == (one, two)
    assert str(DiagnosticError([one, two])) == (
        "f.sx:1:1: E-NAME-001: no `a`\nE-DP-003: 3 GPUs do not divide 32 microbatches"
    )


def test_codes_are_numbered_without_gaps_in_each_family() -> None:
    families: dict[str, list[int]] = {}
    for name, code in CODES.items():
        assert code.code == name
        match = re.fullmatch(r"([EW]-[A-Z]+)-(\d{3})", name)
        assert match is not None, name
        families.setdefault(match[1], []).append(int(match[2]))
    for family, numbers in families.items():
        assert numbers == list(range(1, len(numbers) + 1)), family


def test_codes_are_worded_by_the_house_rules() -> None:
    for code in CODES.values():
        for text in (code.title, code.when, code.fix):
            assert text and not text.endswith(".") and text.count("`") % 2 == 0, code


@pytest.mark.parametrize(
    "name, expected",
    [
        ("witdh", "width"),
        ("Width", "width"),
        ("layernorm", "layer-norm"),
        ("cross_entropy", "cross-entropy"),
        ("step", "steps"),
        ("width", None),
        ("x", None),
        ("momentum", None),
    ],
)
def test_nearest_answers_a_slip_and_nothing_else(name: str, expected: str | None) -> None:
    assert nearest(name, ["width", "layer-norm", "cross-entropy", "steps", "y"]) == expected


def test_nearest_takes_the_closest_then_the_first() -> None:
    assert nearest("layers", ["players", "layer", "laser"]) == "layer"
    assert nearest("abcdef", ["abcdxx", "abcdeg"]) == "abcdeg"
