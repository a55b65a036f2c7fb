"""What makes two runs the same experiment: the program with its overrides, and the data that it reads."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

from sexpgpu.ir.program import Program
from sexpgpu.ir.text import digest
from sexpgpu.lang.experiment import Experiment


def experiment_digest(experiment: Experiment, program: Program) -> str:
    """sha256 over the unstacked program, the run's numbers, the loaders and the data's identity."""
    run = experiment.run
    facts: dict[str, Any] = {
        "program": digest(program),
        "seed": run.seed,
        "microbatches": run.microbatches,
        "data": {name: data.identity() for name, data in sorted(experiment.datasets.items())},
        "loaders": {
            name: loader.identity() for name, loader in sorted(experiment.loaders.items())
        },
    }
    if experiment.weights:
        files = {weight.files.written: weight.files for weight in experiment.weights.values()}
        facts["weights"] = {name: weight.identity() for name, weight in sorted(experiment.weights.items())}
        facts["weight files"] = {written: each.identity() for written, each in sorted(files.items())}
    return sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
