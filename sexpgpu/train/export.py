"""Parameters for other libraries: a safetensors file in which every array stands under its path."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors.numpy import save

from sexpgpu.diagnostics import Diagnostic, DiagnosticError, nearest
from sexpgpu.train.checkpoint import Checkpoint
from sexpgpu.train.files import write_atomic

SUFFIX = ".safetensors"
METADATA = {"format": "pt"}
"""Without it some readers of safetensors refuse a file."""


def export(checkpoint: Checkpoint, path: Path, average: str | None = None) -> list[str]:
    """Write the parameters and the model's states to `path`, replaced whole; gives their names.

    average: the `defaverage` that stands for the parameters that it covers.
    Raises: E-IO-001, E-RUN-005 (no such average).
    """
    if path.suffix != SUFFIX:
        message = f"`{path}` does not end in `{SUFFIX}`"
        raise DiagnosticError(Diagnostic("E-IO-001", message, help=(f"name it `{path.with_suffix(SUFFIX).name}`",)))
    roles = checkpoint.meta["roles"]
    found = {name: checkpoint.tensors[name] for name, role in roles.items() if role in ("parameter", "state")}
    if average is not None:
        slots = [name.removeprefix("average.") for name, role in roles.items() if role == "average"]
        averages = sorted({slot.partition("/")[0] for slot in slots})
        if average not in averages:
            near = nearest(average, averages)
            known = f"`{near}` is a near name" if near else f"its averages: {', '.join(averages) or 'none'}"
            raise DiagnosticError(Diagnostic("E-RUN-005", f"no average is called `{average}`", help=(known,)))
        covered = [slot.partition("/")[2] for slot in slots if slot.startswith(f"{average}/")]
        found |= {name: checkpoint.tensors[f"average.{average}/{name}"] for name in covered}
    write_atomic(path, save({name: np.asarray(found[name], order="C") for name in sorted(found)}, METADATA))
    return sorted(found)
