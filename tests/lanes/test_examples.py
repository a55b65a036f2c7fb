"""Every kernel that the cuda device makes of every example, on the lane engine beside the interpreter.

Each goes through the text rules, three orders of lanes whose results are equal to the bit, and the access checker; what
each phase of a program leaves is compared with the interpreter's. Products and attention are the libraries', by NumPy.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sexpgpu.backend.protocol import Budget
from sexpgpu.lang.load import load_experiment
from sexpgpu.train.loop import Stepper
from sexpgpu.train.phases import assemble
from sexpgpu.train.verification import Finding, _Noting, _parts, _whole
from tests.kernels.test_compiled import LOOPS, settings
from tests.lanes.card import counted, device
from tests.lanes.unit import compiler

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs g++")

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.sx"))
FULL: dict[str, dict[str, str]] = {"gpt2": {"batch": "1", "seq": "128", "vocab": "8192"}}
"""At full size but for these settings: on one core a step of more takes longer than an hour."""


def verified(path: Path, variant: str | None, given: dict[str, str]) -> list[Finding]:
    """What each phase of a program left on the emulated card, beside the interpreter."""
    experiment = load_experiment(path, variant=variant, settings=given)
    assembly, card, found = assemble(experiment), device(), list[Finding]()
    session = card.open(card.plan(assembly.program, Budget()))
    noting = _Noting(session, assembly.program, lambda record: found.extend(_whole(record)))
    stepper = Stepper(experiment, assembly, noting, last_step=3)
    try:
        stepper.initialise()
        for part in _parts(experiment, assembly.program, noting, stepper):
            part()
    finally:
        stepper.close()
        session.close()
    assert not noting.unseen
    return found


def check(path: Path, variant: str | None, given: dict[str, str]) -> None:
    with counted() as count:
        found = verified(path, variant, given)
    print(f"\n{path.stem}: {count['kernels']:.0f} kernels that no other example had, {count['seconds']:.1f} s")
    assert found
    broken = [f"{each.phase} {each.operation} {each.difference}" for each in found if each.difference.broken]
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_kernels_of_an_example(path: Path, tmp_path: Path) -> None:
    variant = "smoke" if "(defvariant smoke" in path.read_text(encoding="utf-8") else None
    check(path, variant, settings(path, tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("path", [path for path in EXAMPLES if path.stem not in LOOPS], ids=lambda path: path.stem)
def test_kernels_of_an_example_in_full(path: Path, tmp_path: Path) -> None:
    check(path, None, settings(path, tmp_path) | FULL.get(path.stem, {}))
