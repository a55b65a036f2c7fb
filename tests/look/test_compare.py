"""Two runs compared, number by number."""

from __future__ import annotations

import math

import numpy as np

from sexpgpu.look.compare import Difference, compare
from sexpgpu.look.series import Series


def runs(**series: list[float] | dict[int, float]) -> dict[str, Series]:
    found = {}
    for written, values in series.items():
        name = written.replace("_", "/", 1)
        points = values if isinstance(values, dict) else dict(enumerate(values, 1))
        found[name] = Series(name, np.array(list(points)), np.array(list(points.values()), np.float64))
    return found


def test_equal_runs() -> None:
    a = runs(train_loss=[3.0, math.nan, 1.0], eval_nll={1: 2.0, 3: 1.0}, runtime_step_ms=[1.0, 2.0, 3.0])
    b = runs(train_loss=[3.0, math.nan, 1.0], eval_nll={1: 2.0, 3: 1.0}, runtime_step_ms=[9.0, 9.0, 9.0])
    found = compare(a, b)
    assert found.equal and found.num_equal == 5 and found.difference is None


def test_the_first_step_that_differs_and_of_it_the_first_series() -> None:
    a = runs(eval_nll={3: 1.0, 4: 1.0}, train_loss=[3.0, 2.0, 1.0, 0.5])
    b = runs(eval_nll={3: 1.0, 4: 9.0}, train_loss=[3.0, 2.0, 1.0 + 2**-52, 9.0])
    found = compare(a, b)
    assert found.difference == Difference("train/loss", 3, 1.0, 1.0 + 2**-52)
    assert found.num_equal == 2 and not found.equal


def test_signs_of_zeros_are_bits() -> None:
    assert compare(runs(train_loss=[0.0]), runs(train_loss=[-0.0])).difference is not None


def test_one_run_is_longer_or_has_more() -> None:
    a, b = runs(train_loss=[3.0, 2.0], eval_nll={2: 1.0}), runs(train_loss=[3.0, 2.0, 1.0], train_norm=[1.0, 1.0, 1.0])
    found = compare(a, b)
    assert found.difference is None and not found.equal
    assert (found.only_first, found.only_second, found.last_steps) == (("eval/nll",), ("train/norm",), (2, 3))
    assert not compare({}, b).equal and compare({}, {}).equal
