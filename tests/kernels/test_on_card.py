"""Every sample of every operation on a real card against its NumPy meaning: `pytest -m cuda`."""

from __future__ import annotations

import ctypes.util
import zlib

import numpy as np
import pytest

from sexpgpu.backend.kernels.cuda import print_step
from sexpgpu.backend.kernels.flags import FLAG_BYTES, flag_message, read_flag
from sexpgpu.ir.opdef import OPS, Context
from tests.kernels.card import Card, bound, spaces
from tests.kernels.larger import LARGER
from tests.kernels.test_samples import LAYOUTS, OPERATIONS, Case, case

pytestmark = pytest.mark.cuda

WITH_ROUNDING_OF_THEIR_OWN = ("exp", "log", "pow", "tanh", "erf", "sin", "cos", "sigmoid", "expm1", "log1p")


@pytest.fixture(scope="session")
def card() -> Card:
    if ctypes.util.find_library("cuda") is None:
        pytest.skip("needs an NVIDIA driver")
    return Card()


@pytest.mark.parametrize("name", OPERATIONS)
def test_samples_on_the_card(name: str, card: Card) -> None:
    cases = [
        case(name, sample, layout, zlib.crc32(f"{name}{number}".encode()))
        for number, sample in enumerate([*OPS[name].samples, *LARGER.get(name, ())])
        for layout in (LAYOUTS if sample.types else ("contiguous",))
    ]
    launches = [launch for c in cases for launch in print_step(c.step)]
    functions = card.unit(launches) if launches else {}
    for c in cases:
        run(card, functions, c)


def run(card: Card, functions: dict, c: Case) -> None:
    faults: list[str] = []
    with np.errstate(all="ignore"):
        context = Context(flag=lambda node, message: faults.append(message))
        wanted = OPS[c.node.op].meaning(context, c.node, [p.array for p in c.inputs])
    held = []
    for placed in (*c.inputs, *c.outputs):
        base = card.allocate(placed.raw.nbytes + 256)
        # As far from an aligned address as on the host.
        base += placed.raw.ctypes.data % 256
        card.upload(base, placed.raw)
        held.append(base)
    pointers = [base + p.start for base, p in zip(held, (*c.inputs, *c.outputs), strict=True)]
    workspaces, flag = spaces(card, c.step)
    first = None
    for _ in range(2):
        card.upload(flag, np.zeros(FLAG_BYTES // 4, np.uint32))
        inputs, outputs = pointers[: len(c.inputs)], pointers[len(c.inputs) :]
        for launch, given in bound(c.step, inputs, outputs, workspaces, flag):
            card.launch(functions, launch, given)
        card.wait()
        clean = [p.others() for p in c.outputs]
        for placed, base in zip(c.outputs, held[len(c.inputs) :], strict=True):
            card.download(base, placed.raw)
        assert [p.others() for p in c.outputs] == clean, (c.node, "wrote outside an output")
        bits = [p.raw.tobytes() for p in c.outputs]
        assert first is None or bits == first, (c.node, "two runs differ")
        first = bits
    words = np.zeros(FLAG_BYTES // 4, np.uint32)
    card.download(flag, words)
    found = read_flag(words)
    assert ([] if found is None else [flag_message(c.node, found)]) == faults, c.node
    results = wanted if isinstance(wanted, tuple) else (wanted,)
    for placed, result in zip(c.outputs, results, strict=True):
        array, result = placed.array.astype(np.float64), np.asarray(result).astype(np.float64)
        np.testing.assert_allclose(array, result, 2e-5, 1e-5, err_msg=f"{c.node} {c.step}")
