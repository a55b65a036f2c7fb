"""An experiment written out in a test, opened on the interpreter and stepped by hand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from sexpgpu.backend.cpu.device import CpuDevice
from sexpgpu.backend.protocol import Budget
from sexpgpu.ir.opdef import Array
from sexpgpu.lang.experiment import Experiment
from sexpgpu.lang.load import load_experiment
from sexpgpu.train.loop import Stepper, StepResult
from sexpgpu.train.phases import Assembly, assemble


def write_experiment(folder: Path, text: str, name: str = "file.sx", **arrays: Array) -> Path:
    """A file with `text`, and beside it `data.npz` with `arrays`; one that is there with the same is left alone, since
    another trial may read it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(text, "utf-8")
    if arrays and not _holds(folder / "data.npz", arrays):
        np.savez(folder / "data.npz", **arrays)  # type: ignore[arg-type]
    return path


def _holds(path: Path, arrays: Mapping[str, Array]) -> bool:
    if not path.exists():
        return False
    with np.load(path) as stored:
        return stored.keys() == arrays.keys() and all(
            stored[n].dtype == np.asarray(a).dtype and np.array_equal(stored[n], a) for n, a in arrays.items()
        )


class Trial:
    """A session with the first values of an experiment in it."""

    def __init__(
        self,
        experiment: Experiment,
        *,
        stacking: int = 1,
        double: bool = False,
        poison: bool = False,
        last_step: int | None = None,
    ) -> None:
        self.experiment = experiment
        self.assembly: Assembly = assemble(experiment, stacking=stacking)
        device = CpuDevice(double=double, threads=1, poison=poison)
        self.session = device.open(device.plan(self.assembly.program, Budget()))
        self.stepper = Stepper(experiment, self.assembly, self.session, last_step or experiment.run.steps)
        self.stepper.initialise()
        self.at = 0

    def step(self) -> dict[str, StepResult]:
        """The next step."""
        self.at += 1
        return self.stepper.step(self.at)

    def losses(self, num_steps: int) -> list[float]:
        """The loss of the first update at each of the next steps."""
        return [next(iter(self.step().values())).loss for _ in range(num_steps)]

    def read(self, slot: str) -> Array:
        """The contents of a slot."""
        return self.session.read(slot).result().copy()

    def read_all(self, *roles: str) -> dict[str, Array]:
        """The contents of all slots of these roles."""
        return {s.name: self.read(s.name) for s in self.assembly.program.slots if s.role in roles}

    def write(self, values: Mapping[str, Array]) -> None:
        """Set slots."""
        for name, value in values.items():
            self.session.write(name, value)

    def close(self) -> None:
        """Give everything back."""
        self.stepper.close()
        self.session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_trial(folder: Path, text: str, arrays: Mapping[str, Array] | None = None, **options: Any) -> Trial:
    """Write, load and open: `settings` and `variant` go to the loader, the rest to `Trial`."""
    loading = {name: options.pop(name) for name in ("settings", "variant", "run") if name in options}
    path = write_experiment(folder, text, **(arrays or {}))
    return Trial(load_experiment(path, **loading), **options)
