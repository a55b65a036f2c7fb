"""Every example's program: its text is read back to itself, it is well formed, and its digest is the same elsewhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sexpgpu.ir.program import Program
from sexpgpu.ir.text import digest, parse_program, program_text
from sexpgpu.ir.verify import verify_program
from sexpgpu.lang.load import load_experiment
from sexpgpu.train.phases import assemble

CHECKOUT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((CHECKOUT / "examples").glob("*.sx"))
CASES = [
    pytest.param(path.name, variant, id=f"{path.stem}-{variant or 'plain'}")
    for path in EXAMPLES
    for variant in (None, "smoke")
    if variant is None or f"(defvariant {variant} " in path.read_text("utf-8")
]
DIGESTS = """
import sys
from sexpgpu.ir.text import digest
from sexpgpu.lang.load import load_experiment
from sexpgpu.train.phases import assemble
for argument in sys.argv[1:]:
    path, _, variant = argument.partition("@")
    print(digest(assemble(load_experiment(path, variant=variant or None)).program))
"""


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the examples with the data that one of them makes."""
    copied = tmp_path_factory.mktemp("examples")
    for file in (CHECKOUT / "examples").iterdir():
        if file.is_file():
            shutil.copyfile(file, copied / file.name)
    subprocess.run([sys.executable, "make_digits.py"], cwd=copied, check=True, capture_output=True)
    return copied


def program_of(path: Path, variant: str | None) -> Program:
    return assemble(load_experiment(path, variant=variant)).program


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 3


@pytest.mark.parametrize(("name", "variant"), CASES)
def test_the_text_of_a_program_is_read_back_to_itself(folder: Path, name: str, variant: str | None) -> None:
    program = program_of(folder / name, variant)
    verify_program(program)
    text = program_text(program)
    again = parse_program(text)
    verify_program(again)
    assert program_text(again) == text
    assert digest(again) == digest(program)


@pytest.mark.parametrize("name", [path.name for path in EXAMPLES])
def test_a_stacked_program_is_well_formed(folder: Path, name: str) -> None:
    smoke = "(defvariant smoke " in (folder / name).read_text("utf-8")
    experiment = load_experiment(folder / name, variant="smoke" if smoke else None)
    experiment = replace(experiment, run=replace(experiment.run, microbatches=4))
    program = assemble(experiment, stacking=2).program
    verify_program(program)
    assert program_text(parse_program(program_text(program))) == program_text(program)


def test_digests_are_the_same_in_another_process(folder: Path) -> None:
    """With another seed of Python's hashes: nothing hangs on the order of a set."""
    wanted, arguments = [], []
    for name, variant in (case.values for case in CASES):
        if variant == "smoke":
            wanted.append(digest(program_of(folder / name, variant)))
            arguments.append(f"{folder / name}@{variant}")
    for seed in ("1", "2"):
        found = subprocess.run(
            [sys.executable, "-c", DIGESTS, *arguments],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(CHECKOUT)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert found.stdout.split() == wanted
