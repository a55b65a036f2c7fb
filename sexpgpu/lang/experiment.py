"""The experiment: everything that a file says, elaborated. Data only.

Flow: `load.load_experiment` makes it; `train.phases` turns it into a `Program`, `train.loop` follows its run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from sexpgpu.data import BatchSource, Dataset
from sexpgpu.diagnostics import Diagnostic, DiagnosticError
from sexpgpu.ir.graph import Graph, Value
from sexpgpu.ir.types import TensorType
from sexpgpu.lang.averages import Average
from sexpgpu.lang.trace import Initialised, Schedule
from sexpgpu.lang.weights import ImportedWeight
from sexpgpu.source import Span


@dataclass(frozen=True, slots=True)
class MeasureInfo:
    """A series of an objective: `train/PATH` or `eval/NAME/PATH`. Its graph outputs are `measure:PATH` and, where it
    is weighted, `measure-weight:PATH`. after: a graph from `x` to `y`, applied to the folded value."""

    path: str
    reduce: str
    every: int
    weighted: bool
    after: Graph | None


@dataclass(frozen=True, slots=True)
class StateRule:
    """How a state moves: the fold over microbatches, and the graph from `old` and `seen` to `new` (None: seen)."""

    name: str
    reduce: str
    using: Graph | None


@dataclass(frozen=True, eq=False)
class InnerGenerator:
    """A generator that a metric calls, before its own graph runs.

    arguments: the slice of the metric that computes what it is given; start and trip read that from slots. Outputs of
    the three are named after the slots they fill; what a trip emits fills one entry of a slot. num_trips 0 with no
    trip: the outputs of `start` are the value.
    """

    name: str
    arguments: Graph
    start: Graph
    trip: Graph | None
    num_trips: int
    arguments_of: tuple[tuple[str, TensorType], ...]
    carries: tuple[tuple[str, TensorType], ...]
    emits: tuple[tuple[str, TensorType], ...]


@dataclass(frozen=True, eq=False)
class Objective:
    """A metric elaborated for one loader, training or not.

    graph: inputs `slot:…`, `feed:batch.FIELD`, `feed:host.N`, `feed:stream`; outputs `value`, `weight`,
    `measure:…`, `state:…` (what this microbatch proposes for a state).
    """

    name: str
    graph: Graph
    measures: tuple[MeasureInfo, ...]
    states: tuple[StateRule, ...]
    fields: tuple[str, ...]
    generators: tuple[InnerGenerator, ...] = ()

    @property
    def reads(self) -> frozenset[str]:
        """Names of what its graph and those of its generators read."""
        inner = [g for each in self.generators for g in (each.arguments, each.start, each.trip) if g is not None]
        return frozenset(name for graph in (self.graph, *inner) for name in graph.input_names)


@dataclass(frozen=True, eq=False)
class LeafRule:
    """An optimizer's rule for one type of leaf.

    graph: inputs `p`, `g`, `state:NAME`, `feed:host.N`; outputs `p`, `state:NAME`.
    initial: for each state its graph from `p` to `value`.
    """

    name: str
    graph: Graph
    initial: tuple[tuple[str, TensorType, Graph], ...]


@dataclass(frozen=True, eq=False)
class Update:
    """One update of a step: an objective, the parameters it moves, a rule for each."""

    name: str
    loader: str | None
    objective: Objective
    rules: Mapping[str, LeafRule]
    clip: float | Value | None
    times: int
    every: int
    span: Span


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Metrics over batches of a loader, or over as many draws. batches: None is one whole epoch of the loader."""

    name: str
    loader: str | None
    batches: int | None
    objectives: tuple[Objective, ...]


@dataclass(frozen=True, eq=False)
class GeneratorGraphs:
    """A generator elaborated for given keys.

    start: outputs `carry:I`; trip: inputs `slot:generate.NAME/I`, `feed:trip`, outputs `carry:I` and `emit:I`.
    num_trips 0: there is no trip, and the outputs of `start` are the value.
    """

    name: str
    start: Graph
    trip: Graph | None
    num_trips: int
    carries: tuple[tuple[str, TensorType], ...]
    num_emitted: int
    axis: int
    show: str | None
    prompt: tuple[int, ...] | None


@dataclass(frozen=True, slots=True, eq=False)
class DiagnosticRule:
    """A series per parameter or group. graph: inputs `p`, `g`, `new`; output `value`; one graph per parameter."""

    name: str
    graphs: Mapping[str, Graph]
    groups: Mapping[str, str]
    reduce: str
    after: Graph | None
    every: int


@dataclass(frozen=True, slots=True)
class Event:
    """Something due at step 1, multiples of `every` and the last step."""

    every: int
    name: str


@dataclass(frozen=True, slots=True)
class CheckpointRule:
    """When to save, how many of the newest to keep, and by which series the best. every None: at the end only."""

    every: int | None = None
    keep: int = 3
    best: str | None = None
    higher: bool = False


@dataclass(frozen=True, slots=True)
class StopRule:
    """`:stop (patience n SERIES)`: the run ends where `patience` values of `series` in a row bettered none before them.

    every: the values that count are those of step 1 and of multiples of it. A value is better by more than `by`.
    """

    series: str
    every: int
    patience: int
    by: float
    rising: bool


@dataclass(frozen=True, eq=False)
class Run:
    """`defrun`: what a step does and what happens around it. A file of weights alone has one without name and steps."""

    name: str
    updates: tuple[Update, ...]
    microbatches: int
    steps: int
    seed: int
    on_nonfinite: str
    evaluate: tuple[Event, ...]
    generate: tuple[Event, ...]
    diagnose: tuple[DiagnosticRule, ...]
    checkpoint: CheckpointRule
    stop: StopRule | None = None

    def prefix(self, update: Update) -> str:
        """What the series of an update begin with."""
        return f"train/{update.name}" if len(self.updates) > 1 else "train"

    @property
    def saves_between(self) -> bool:
        """Whether it saves while it goes on, and not only at its end."""
        return self.checkpoint.every is not None


@dataclass(frozen=True, eq=False)
class Experiment:
    """A file, elaborated with one variant and its overrides.

    included: the texts of files that it includes, by path. loader_spans: where each loader stands.
    """

    path: str
    text: str
    included: Mapping[str, str]
    overrides: Mapping[str, str]
    run: Run
    parameters: Mapping[str, Initialised]
    states: Mapping[str, Initialised]
    averages: Mapping[str, Average]
    weights: Mapping[str, ImportedWeight]
    loaders: Mapping[str, BatchSource]
    datasets: Mapping[str, Dataset]
    evaluations: Mapping[str, Evaluation]
    generators: Mapping[str, GeneratorGraphs]
    schedule: Schedule
    variants: tuple[str, ...]
    warnings: tuple[Diagnostic, ...] = ()
    loader_spans: Mapping[str, Span] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)

    def batch(self, loader: str, m: int, fields: Collection[str]) -> dict[str, NDArray[Any]]:
        """Global microbatch m of a loader. Raises E-DATA-… as the loader does, at the place of the loader."""
        try:
            return self.loaders[loader].batch(m, fields)
        except DiagnosticError as error:
            span = self.loader_spans.get(loader)
            raise DiagnosticError([replace(d, span=d.span or span) for d in error.diagnostics]) from None

    @property
    def num_parameters(self) -> int:
        """Elements of all parameters."""
        return sum(p.type.size for p in self.parameters.values())
