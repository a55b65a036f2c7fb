"""Evaluations: metrics and measures folded over batches; nothing of the run changes."""

from __future__ import annotations

import numpy as np

from sexpgpu.backend.protocol import Call, Session
from sexpgpu.ir.opdef import Array
from sexpgpu.ir.program import Program
from sexpgpu.lang.experiment import Evaluation, Experiment
from sexpgpu.train.faults import stop_on_faults
from sexpgpu.train.folds import fold_measures, weighted_mean
from sexpgpu.train.inner import generator_calls
from sexpgpu.train.keys import stream_key
from sexpgpu.train.schedule import HostSchedule

CHUNK = 16
"""Batches handed to the device at once."""


def run_evaluation(
    experiment: Experiment,
    program: Program,
    session: Session,
    schedule: HostSchedule,
    evaluation: Evaluation,
    step: int,
) -> dict[str, Array]:
    """`eval/NAME/METRIC` and `eval/NAME/PATH/MEASURE`. An evaluation draws the same each time.

    Raises DiagnosticError E-RUN-003.
    """
    loader = None if evaluation.loader is None else experiment.loaders[evaluation.loader]
    num_batches = evaluation.batches or (0 if loader is None else loader.batches_per_epoch)
    found: dict[str, Array] = {}
    host = schedule.at(step)
    for index, objective in enumerate(evaluation.objectives):
        owner = f"eval.{evaluation.name}.{index}"
        order = [*generator_calls(owner, objective.generators), (owner, 0)]
        phases = {name: program.phase(name) for name, _ in order}
        results = []
        for first in range(0, num_batches, CHUNK):
            calls = []
            for m in range(first, min(first + CHUNK, num_batches)):
                named = evaluation.loader
                batch = {} if named is None else experiment.batch(named, m, objective.fields)
                known = {**host, **{f"batch.{name}": value for name, value in batch.items()}}
                known["stream"] = np.asarray(stream_key(experiment.run.seed, f"eval {evaluation.name}", m))
                for name, trip in order:
                    known["trip"] = np.asarray(trip, np.int32)
                    calls.append(Call(name, {feed: known[feed] for feed in phases[name].feeds}))
            for call, outputs in zip(calls, session.run(calls).result(), strict=True):
                stop_on_faults(outputs.faults, f"evaluation `{evaluation.name}` at step {step}")
                if call.phase == owner:
                    results.append(outputs.results)
        value, _ = weighted_mean([r["value"] for r in results], [r["weight"] for r in results])
        found[f"eval/{evaluation.name}/{objective.name}"] = value
        for path, measured in fold_measures(objective, results, 1, objective.measures).items():
            found[f"eval/{evaluation.name}/{path}"] = measured
    return found
