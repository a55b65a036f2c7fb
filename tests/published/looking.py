"""Published models as a user looks at them: prepared weights, the generators and evaluations of a file."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

from sexpgpu.backend.cpu.device import CpuDevice
from sexpgpu.backend.protocol import Budget
from sexpgpu.ir.opdef import Array
from sexpgpu.lang.load import load_experiment
from sexpgpu.train.evaluation import run_evaluation
from sexpgpu.train.generation import Sample, run_generator
from sexpgpu.train.initial import initialise, untrained
from sexpgpu.train.phases import assemble
from sexpgpu.train.schedule import HostSchedule

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "published"
sys.path.append(str(FOLDER))  # one script imports another
FILES = {path.stem: path for path in sorted(FOLDER.glob("*.sx"))}


def script(name: str, needs: str | None = None) -> ModuleType:
    """One of the scripts that write weights; skips the test where the package that it needs is absent.

    needs: the script that knows the package, if it is another.
    """
    if needs is not None:
        script(needs)
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    try:
        if needs is None:
            module.package()
    except SystemExit as missing:
        pytest.skip(str(missing))
    return module


@contextmanager
def opened(file: Path, settings: Mapping[str, str], keys: Mapping[str, Mapping[str, str]], variant: str | None = None):
    """The experiment without its updates, its program, a session with the first values in it, and the schedule."""
    experiment = untrained(load_experiment(file, variant=variant, settings=settings, keys=keys))
    program = assemble(experiment).program
    device = CpuDevice(threads=1)
    session = device.open(device.plan(program, Budget()))
    try:
        initialise(experiment, program, session)
        yield experiment, program, session, HostSchedule(program.schedule)
    finally:
        session.close()


def generate(file: Path, name: str, settings: Mapping[str, str], **keys: str) -> Sample:
    """What a generator makes of the first values."""
    with opened(file, settings, {name: keys}) as (experiment, program, session, schedule):
        return run_generator(experiment, program, session, schedule, experiment.generators[name], 0)


def evaluate(file: Path, name: str, settings: Mapping[str, str]) -> dict[str, Array]:
    """The series of an evaluation of the first values, without the evaluation's name."""
    with opened(file, settings, {}) as (experiment, program, session, schedule):
        found = run_evaluation(experiment, program, session, schedule, experiment.evaluations[name], 1)
        return {series.removeprefix(f"eval/{name}/"): value for series, value in found.items()}


def beside(folder: Path, name: str, text: str) -> Path:
    """A file that includes a published one and says more."""
    path = folder / "beside.sx"
    path.write_text(f'(include "{FILES[name]}")\n{text}', "utf-8")
    return path
