"""What a small file can ask for without end is refused with a code, before it takes time or memory."""

import pytest

from sexpgpu.diagnostics import render
from sexpgpu.lang import elaborator
from sexpgpu.source import Source
from sexpgpu.syntax import read
from tests.lang.files import codes
from tests.lang.test_errors import TAIL

DOUBLING = "(defn go0 (x) (+ x 1))" + "".join(f"(defn go{i} (x) (go{i - 1} (go{i - 1} x)))" for i in range(1, 60))


def metric(expression: str, before: str = "") -> str:
    """A file whose metric computes the expression."""
    return f"{before}(defmetric loss (x) (+ (mean x) {expression})){TAIL}"


@pytest.mark.parametrize(
    "expression, code",
    [
        ("(mean (zeros (f32 1000000 1000000)))", "E-TYPE-005"),
        ("(mean (zeros (type f32 (range 1 100000))))", "E-TYPE-005"),
        ("(repeat [i 1000000000] [a 0] (+ a 1))", "E-TYPE-005"),
        ("(length (range 1e9))", "E-TYPE-005"),
        ("(pow 10 1000000000)", "E-TYPE-005"),
        ("(length (repeat [i 60] [v [1]] [v v]))", "E-TYPE-005"),
        ("(length (repeat [i 60] [v [1]] (append (append v v) v)))", "E-TYPE-005"),
    ],
)
def test_sizes(expression: str, code: str):
    assert codes(metric(expression)) == [code]


@pytest.mark.parametrize(
    "expression",
    [
        "(repeat [i 1000000] [a x] (mean (+ a 1)))",
        "(length (unstack (zeros (f32 10000000 2))))",
        "(length (for [i 1000] (range 1000000)))",
        "(mean (cast (range 1000000) f32))",
        "(go59 1)",
    ],
)
def test_work(expression: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(elaborator, "MAX_WORK", 5000)
    assert codes(metric(expression, DOUBLING)) == ["E-CALL-005"]


def test_a_line_of_many_faults_is_told_in_part():
    found = read(Source("f.sx", "#;" * 100_000)).diagnostics
    assert len(found) == 100
    assert max(map(len, render(found).splitlines())) < 200


def test_names_too_long_to_be_near():
    assert codes(f"(def {'a' * 100_000} 1)" + metric("b" * 100_000)) == ["E-NAME-001"]
