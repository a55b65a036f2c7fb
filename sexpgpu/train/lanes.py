"""Lane states in phases: a slot `[M, …]`, of which each of the M microbatches of a step has its own entry.

A graph reads its microbatch's entry; what it sets goes to a slot of proposals, which the commit copies. Outside
training a lane is what it was initially.
"""

from __future__ import annotations

from collections.abc import Iterable

from sexpgpu.ir.builder import Builder
from sexpgpu.ir.graph import Graph, Value
from sexpgpu.ir.program import FEED, SLOT
from sexpgpu.ir.types import TensorType
from sexpgpu.lang.experiment import Experiment
from sexpgpu.lang.trace import Initialised

LANE = "lane"
"""The feed that says which microbatches of the step a call runs: an i32, or k of them."""


def lanes_of(experiment: Experiment, graph: Graph) -> list[Initialised]:
    """The lane states that a graph reads."""
    names = (name.removeprefix(SLOT) for name in graph.input_names if name.startswith(SLOT))
    return [experiment.states[n] for n in names if n in experiment.states and experiment.states[n].lane]


def slot_type(experiment: Experiment, state: Initialised) -> TensorType:
    """The type of a state's slot."""
    type = state.type
    return type.with_shape((experiment.run.microbatches, *type.shape)) if state.lane else type


def proposal_type(experiment: Experiment, state: Initialised) -> TensorType:
    """The type of the slot that holds what the microbatches set: one value folded, or an entry for each."""
    type = slot_type(experiment, state)
    return type.with_dtype("f32") if state.lane and type.dtype == "bf16" else type


def first_contents(b: Builder, experiment: Experiment, state: Initialised, initial: Value) -> Value:
    """A state's slot before the first step."""
    if not state.lane:
        return initial
    return b.broadcast(initial, slot_type(experiment, state).shape, range(1, initial.rank + 1))


def read_lanes(b: Builder, experiment: Experiment, lanes: Iterable[Initialised], k: int) -> dict[str, Value]:
    """The entries of the k microbatches of a call, by graph input."""
    found = {}
    for state in lanes:
        whole = b.input(SLOT + state.name, slot_type(experiment, state))
        shape = state.type.shape if k == 1 else (k, *state.type.shape)
        if k == experiment.run.microbatches:
            found[SLOT + state.name] = b.reshape(whole, shape)
        else:
            found[SLOT + state.name] = b.op("gather", whole, _index(b, k), axis=0, batch=0)
    return found


def write_lane(
    b: Builder, experiment: Experiment, state: Initialised, slot: str, value: Value, k: int, *, first: bool
) -> Value:
    """The proposals of a lane state in `slot` with those of the k microbatches of a call entered."""
    type = proposal_type(experiment, state)
    wide = b.cast(value, type.dtype)
    if k == experiment.run.microbatches:
        return b.reshape(wide, type.shape)
    zero: float | int | bool = 0.0 if type.is_float else False if type.dtype == "bool" else 0
    before = b.constant(zero, type) if first else b.input(SLOT + slot, type)
    return b.op("scatter", before, _index(b, k), wide, axis=0, batch=0, fold="set")


def initial_lanes(b: Builder, experiment: Experiment, graph: Graph) -> dict[str, Value]:
    """What a graph outside training reads of lane states, by graph input."""
    return {SLOT + state.name: b.copy(state.initial)[0] for state in lanes_of(experiment, graph)}


def _index(b: Builder, k: int) -> Value:
    return b.input(FEED + LANE, TensorType("i32", () if k == 1 else (k,)))
