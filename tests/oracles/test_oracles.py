"""Suites of peers as oracles: a sample in the test command, all of them under the mark `oracles`.

`python -m tests.oracles --write` keeps new counts.
"""

import json

import numpy as np
import pytest

from tests.oracles.cases import Case, accepted, judge
from tests.oracles.suites import COUNTS, SUITES, counts_of, handled_less

KEPT = json.loads(COUNTS.read_text("utf-8"))
X = np.array([[1, 2], [3, 5]], np.float32)


def case(text: str = "(* x x)", factor: float = 1.0, slope: float = 2.0) -> Case:
    return Case("g", "n", text, {"x": X}, [X * X * factor], {"x": slope * X}, {0: np.ones_like(X)})


def test_a_right_case_is_right_on_every_way() -> None:
    assert judge(case(), device=True) == ""


@pytest.mark.parametrize(
    "wrong, says",
    [
        (case(factor=1.001), "value 0: 4 of 4 differ, 1 where 1.001"),
        (case(slope=2.001), "gradient of x: 4 of 4 differ"),
        (case("(sum x)"), "value 0: shape (), not (2, 2)"),
        (case("(> x 0)"), "value 0: bool, not float32"),
        (case("(unstack x)"), "2 values, not 1"),
        (case("(product x)"), "refused: E-TYPE-006"),
        (case("(* x (gather x (cast [0 9] i32)))"), "flagged: index 9"),
    ],
)
def test_what_is_wrong_is_said(wrong: Case, says: str) -> None:
    assert judge(wrong).startswith(says)


def test_a_wrong_call_must_be_refused() -> None:
    assert accepted("(reshape x [3])", {"x": X}) == ""
    assert accepted("(gather x (cast [9] i32))", {"x": X}) == ""
    assert accepted("(reshape x [4])", {"x": X}) == "accepted (reshape x [4])"


def test_a_falling_count_is_told() -> None:
    kept = {"s": {"a": {"handled": 3, "skipped": 1}, "b": {"handled": 1, "skipped": 0}}}
    assert handled_less({"s": {"a": {"handled": 2}, "b": {"handled": 2}}}, kept) == [
        "s, a: 2 cases are handled, 3 were before"
    ]


def packages(name: str) -> None:
    for package in SUITES[name].packages:
        pytest.importorskip(package)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SUITES)
def test_a_sample_of_each_suite(name: str) -> None:
    packages(name)
    tally = SUITES[name].run(SUITES[name].sample)
    assert not {g: lines for g, lines in tally.wrong.items() if lines}
    kept = sum(group["handled"] for group in KEPT[name].values())
    assert tally.total()[0] > kept / SUITES[name].sample / 4


@pytest.mark.oracles
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SUITES)
def test_every_case(name: str) -> None:
    packages(name)
    tally = SUITES[name].run()
    assert not {g: lines for g, lines in tally.wrong.items() if lines}
    assert not handled_less({name: counts_of(tally)}, {name: KEPT[name]})
