"""Every kernel that the devices of GPUs make of every example, on the lane engine beside the interpreter.

Each goes through the rules on texts, three orders of lanes whose results are equal to the bit, and the access checker;
what each phase of a program leaves is compared with the interpreter's. Products and attention of cuda are the
libraries', by NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sexpgpu.backend.protocol import Budget, Device
from sexpgpu.lang.load import load_experiment
from sexpgpu.train.loop import Stepper
from sexpgpu.train.phases import assemble
from sexpgpu.train.verification import Finding, _Noting, _parts, _whole
from tests.kernels.test_compiled import LOOPS, settings
from tests.lanes import card
from tests.lanes.unit import compiler
from tests.lanes.watched import Kernels
from tests.metal import mac

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs g++")

DIALECTS: dict[str, tuple[Callable[[], Device], Kernels]] = {
    "cuda": (card.device, card.KERNELS), "msl": (mac.watched, mac.KERNELS)
}  # fmt: skip
EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.sx"))
SMALL = {
    "gpt2": {"batch": "1", "layers": "1", "width": "64", "seq": "32", "vocab": "256"},
    **{name: {"batch": "2", "seq": "16"} for name in ("char-gpt", "llama", "lora", "moe", "topics-gpt")},
    **{name: {"batch": "16"} for name in ("digits-schedule", "gan")},
    "memory-table": {"batch": "8"}, "names-lstm": {"batch": "4"},
}  # fmt: skip
"""Beside the small variant: what changes sizes, and no kind of kernel."""
FULL = {
    ("cuda", "gpt2"): {"batch": "1", "layers": "2", "heads": "6", "width": "384", "seq": "256", "vocab": "8192"},
    ("msl", "gpt2"): {"batch": "1", "layers": "1", "heads": "4", "width": "128", "seq": "64"},
}
"""At full size but for these settings: the checker keeps nine times the memory that a kernel touches, and products of
MSL run lane by lane, so with one block and short rows it has the whole vocabulary."""


def verified(device: Device, path: Path, variant: str | None, given: dict[str, str]) -> list[Finding]:
    """What each phase of a program left on an emulated device, beside the interpreter."""
    experiment = load_experiment(path, variant=variant, settings=given)
    assembly, found = assemble(experiment), list[Finding]()
    session = device.open(device.plan(assembly.program, Budget()))
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


def check(dialect: str, path: Path, variant: str | None, given: dict[str, str]) -> None:
    opened, kernels = DIALECTS[dialect]
    before, seconds = len(kernels.checked), kernels.seconds
    found = verified(opened(), path, variant, given)
    print(
        f"\n{dialect}, {path.stem}: {len(kernels.checked) - before} new kernels, {kernels.seconds - seconds:.1f} s; "
        f"so far {len(kernels.checked)} kernels, {kernels.seconds:.1f} s"
    )
    assert found
    broken = [f"{each.phase} {each.operation} {each.difference}" for each in found if each.difference.broken]
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_kernels_of_an_example(dialect: str, path: Path, tmp_path: Path) -> None:
    variant = "smoke" if "(defvariant smoke" in path.read_text(encoding="utf-8") else None
    check(dialect, path, variant, settings(path, tmp_path) | SMALL.get(path.stem, {}))


@pytest.mark.slow
@pytest.mark.parametrize("path", [path for path in EXAMPLES if path.stem not in LOOPS], ids=lambda path: path.stem)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_kernels_of_an_example_in_full(dialect: str, path: Path, tmp_path: Path) -> None:
    check(dialect, path, None, settings(path, tmp_path) | FULL.get((dialect, path.stem), {}))
