"""The texts of Metal before a compiler that knows address spaces, and before the rules of its dialect."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import sexpgpu.ir.ops  # noqa: F401
from sexpgpu.backend.kernels import copies
from sexpgpu.backend.kernels.launch import Launch, Operand
from sexpgpu.backend.kernels.operands import Argument
from sexpgpu.backend.kernels.rows import print_rows, program_of
from sexpgpu.ir.opdef import OPS
from sexpgpu.ir.types import TensorType
from sexpgpu.plan.layout import Layout, contiguous
from tests.cuda import test_fusion, test_leaves, test_rows
from tests.kernels import test_attention, test_scan_input
from tests.kernels.emulator import MSL
from tests.kernels.larger import LARGER
from tests.kernels.test_samples import OPERATIONS, case, held
from tests.lanes import rules, strict


def argument(operand: Operand, type: TensorType) -> Argument:
    return Argument(MSL.dialect, operand, type, Layout("buffer", 0, contiguous(type.shape)))


def launches() -> Iterator[Launch]:
    for name in OPERATIONS:
        for sample in held([*OPS[name].samples, *LARGER.get(name, ())], MSL):
            for layout in ("contiguous", "transposed") if sample.types else ("contiguous",):
                yield from MSL.print_step(case(name, sample, layout, 0, MSL).step)
    for name, rows, width, dtype, *_ in test_rows.CASES:
        node = test_rows.node_of(name, rows, width, dtype)
        program = program_of(node.bodies[0])
        assert program is not None
        inputs = [argument(("input", i), v.type) for i, v in enumerate(node.inputs)]
        outputs = [argument(("output", i), type) for i, type in enumerate(node.types)]
        yield from print_rows(program, inputs, outputs)
    for case_of_attention in test_attention.CASES:
        for node in test_attention.attention(*case_of_attention):
            yield from MSL.print_attention(test_attention.step_of(node))
    for types, make in test_scan_input.ABSORBED.values():
        yield from MSL.print_step(test_scan_input.fold(test_scan_input.planned(types, make, test_scan_input.RULES)))
    yield MSL.print_group(test_fusion.group_of(test_fusion.mixed()))
    for packs in (True, False):
        yield from MSL.print_leaves(test_leaves.node_of(test_leaves.SHAPES), packs, 3)
    for guarded in (True, False):
        yield copies.commit(MSL.dialect, 3, guarded, 2)
        yield copies.decide(MSL.dialect, 5, guarded)
        yield copies.commit_window(MSL.dialect, TensorType("bf16", (3, 4)), (8, 2), (4, 1), guarded)
    yield copies.join(MSL.dialect, 5, "i32", 2)


@pytest.fixture(scope="module")
def text() -> str:
    return MSL.module_source(launches())


def test_rules(text: str) -> None:
    rules.check(text, "msl")


@pytest.mark.skipif(strict.clang() is None, reason="needs clang")
def test_address_spaces(text: str) -> None:
    strict.check(text)
