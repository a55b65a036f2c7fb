"""The functions that Metal lacks, against double precision over arguments of every size."""

from __future__ import annotations

import math

import numpy as np
import pytest

import sexpgpu.ir.ops  # noqa: F401
from tests.kernels.emulator import MSL, Unit, compiler, execute
from tests.kernels.test_rare_values import prepared

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs g++")

UNITS = {"erf": 2, "expm1": 4, "log1p": 4}
"""In the last place, at most."""


def arguments(name: str) -> np.ndarray:
    sizes = np.float32(10.0) ** np.random.default_rng(0).uniform(-9, 1.9, 20000).astype(np.float32)
    both = np.concatenate([sizes, -sizes])
    return both[both > -1] if name == "log1p" else both


def test_functions_of_our_own() -> None:
    made = {name: prepared(MSL, name, [arguments(name)]) for name in UNITS}
    unit = Unit(MSL, [launch for step, _, _ in made.values() for launch in MSL.print_step(step)])
    for name, (step, inputs, outputs) in made.items():
        execute(unit, step, inputs, outputs, "forward")
        found = outputs[0].value.astype(np.float64)
        wanted = np.array([getattr(math, name)(x) for x in inputs[0].value.astype(np.float64)])
        error = np.abs(found - wanted) / np.spacing(np.abs(wanted).astype(np.float32)).astype(np.float64)
        assert error.max() <= UNITS[name], (name, error.max(), inputs[0].value[error.argmax()])
