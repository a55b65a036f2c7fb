"""First values: parameters, states and averages as a run begins with them, published weights among them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sexpgpu.backend.protocol import Call, Session
from sexpgpu.ir.program import Program
from sexpgpu.lang.experiment import Experiment
from sexpgpu.train.keys import stream_key
from sexpgpu.train.phases import WEIGHTS
from sexpgpu.train.schedule import HostSchedule


def initialise(experiment: Experiment, program: Program, session: Session) -> None:
    """Run the phase `initialise`: draws hang on (seed, path). Raises E-DATA-002 (a file became unreadable)."""
    phase = program.phase("initialise")
    host = HostSchedule(program.schedule).at(1)
    feeds = {name: host[name] for name in phase.feeds if name in host}
    if "stream" in phase.feeds:
        feeds["stream"] = np.asarray(stream_key(experiment.run.seed, "initialise"))
    feeds.update({WEIGHTS + name: weight.read() for name, weight in experiment.weights.items()})
    session.run([Call("initialise", feeds)]).result()


def untrained(experiment: Experiment) -> Experiment:
    """The experiment without its updates: what an evaluation of first values needs, and no optimizer's states."""
    return replace(experiment, run=replace(experiment.run, updates=()))
