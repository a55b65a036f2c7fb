"""Random programs through a device's own path, their kernels on the lane engine, beside the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from sexpgpu.backend.protocol import Budget, Device
from tests.backend.random_programs import CASTS, assert_follows, random_program
from tests.lanes import card
from tests.lanes.unit import compiler
from tests.metal import mac

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs g++")

DEVICES: dict[str, tuple[Callable[[], Device], Sequence[str]]] = {
    "cuda": (card.device, CASTS), "msl": (mac.watched, CASTS[:2])
}  # fmt: skip
"""By dialect: a device whose kernels run on the lane engine, and the dtypes that it casts to."""
AT_A_TIME = 6
"""Programs whose kernels are compiled together."""
NUM_QUICK, NUM_ALL = 24, 500


def starts(first: int, stop: int) -> list[int]:
    return list(range(first, stop, AT_A_TIME))


@pytest.mark.parametrize(
    "first", [*starts(0, NUM_QUICK), *[pytest.param(n, marks=pytest.mark.slow) for n in starts(NUM_QUICK, NUM_ALL)]]
)
@pytest.mark.parametrize("dialect", DEVICES)
def test_random_programs(dialect: str, first: int) -> None:
    opened, casts = DEVICES[dialect]
    device = opened()
    programs = [random_program(seed, casts=casts) for seed in range(first, min(first + AT_A_TIME, NUM_ALL))]
    sessions = [device.open(device.plan(program, Budget())) for program, _, _ in programs]
    for (program, contents, feeds), session in zip(programs, sessions, strict=True):
        assert_follows(session, program, contents, feeds)
        session.close()
