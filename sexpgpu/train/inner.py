"""Phases of the generators that a metric calls: they run before each call of its graph, in training once for its k
microbatches, and leave arguments, carries and what was emitted in slots."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from sexpgpu.ir.builder import Builder
from sexpgpu.ir.graph import Graph, Value
from sexpgpu.ir.program import FEED, SLOT, Phase, Slot
from sexpgpu.ir.types import TensorType
from sexpgpu.lang.experiment import Experiment, InnerGenerator
from sexpgpu.lang.trace import TRIP
from sexpgpu.train.lanes import lanes_of
from sexpgpu.transform.passes import FINAL_PASSES, forward_passes, run_passes

ReadLanes = Callable[[Builder, Graph], Mapping[str, Value]]
"""What a graph reads of lane states, by graph input."""


def generating(owner: str) -> str:
    """What the names of the phases of its generators begin with; owner: `update.U` or `eval.E.I`."""
    return f"{owner}.generate."


def generator_calls(owner: str, generators: Sequence[InnerGenerator]) -> Iterator[tuple[str, int]]:
    """Phases in order, each with its trip."""
    for generator in generators:
        yield f"{generating(owner)}{generator.name}.start", 0
        for trip in range(generator.num_trips):
            yield f"{generating(owner)}{generator.name}.trip", trip


def batched_inputs(experiment: Experiment, generators: Sequence[InnerGenerator], graph: Graph) -> list[str]:
    """The inputs that each microbatch has its own of, beside those of the batch: lanes, and what generators left."""
    own = {SLOT + slot for g in generators for slot, _ in (*g.arguments_of, *g.carries, *g.emits)}
    lanes = [SLOT + state.name for state in lanes_of(experiment, graph)]
    return [*lanes, *(name for name in graph.input_names if name in own)]


def read_generated(b: Builder, generators: Sequence[InnerGenerator], k: int) -> dict[str, Value]:
    """What generators emitted, by the input that reads it: in its slot the trips come first, even before k."""
    found = {}
    for generator in generators:
        for slot, type in generator.emits:
            whole = b.input(SLOT + slot, _emit_type(generator, type, k))
            found[SLOT + slot] = whole if k == 1 else b.transpose(whole, (1, 0, *range(2, whole.rank)))
            if type.dtype == "bf16":
                found[SLOT + slot] = b.cast(found[SLOT + slot], "bf16")
    return found


def generator_phases(
    experiment: Experiment, owner: str, generators: Sequence[InnerGenerator], k: int, lanes: ReadLanes,
    slots: dict[str, Slot],
) -> Iterator[Phase]:  # fmt: skip
    """The phases of all generators of a metric, and their slots. owner: see `generating`."""
    for place, generator in enumerate(generators):
        for slot, type in (*generator.arguments_of, *generator.carries):
            slots[slot] = Slot(slot, _of_k(type, k), "carry", initialised=False)
        for slot, type in generator.emits:
            slots[slot] = Slot(slot, _emit_type(generator, type, k), "carry", initialised=False)

        def outputs(b: Builder, graph: Graph, given: Mapping[str, Value]) -> dict[str, Value]:
            """The outputs of one graph for k microbatches, by name."""
            own = [n for n in graph.input_names if n.startswith(FEED + "batch.") or n == FEED + "stream"]
            batched = [*own, *batched_inputs(experiment, generators, graph)]
            forward = run_passes(graph, forward_passes(k, batched))
            names = [name for name, _ in graph.outputs]
            return dict(zip(names, b.copy(forward, {**lanes(b, graph), **given}), strict=True))

        b = Builder()
        arguments = outputs(b, generator.arguments, read_generated(b, generators[:place], k))
        given = {SLOT + name: value for name, value in arguments.items()}
        written = arguments | outputs(b, generator.start, given)
        for slot, _ in generator.emits:
            type = slots[slot].type
            written[slot] = b.constant(False if type.dtype == "bool" else 0.0 if type.is_float else 0, type)
        yield _finish(f"{generating(owner)}{generator.name}.start", b, written)
        if generator.trip is None:
            continue
        b = Builder()
        written = outputs(b, generator.trip, {})
        for slot, _ in generator.emits:
            before = b.input(SLOT + slot, slots[slot].type)
            value = b.cast(written[slot], before.dtype)
            trip = b.input(FEED + "trip", TRIP)
            written[slot] = b.op("scatter", before, trip, value, axis=0, batch=0, fold="set")
        yield _finish(f"{generating(owner)}{generator.name}.trip", b, written)


def _finish(name: str, b: Builder, written: Mapping[str, Value]) -> Phase:
    outputs = [(SLOT + slot, value) for slot, value in written.items()]
    return Phase(name, run_passes(b.graph(name, outputs), FINAL_PASSES))


def _of_k(type: TensorType, k: int) -> TensorType:
    return type if k == 1 else type.with_shape((k, *type.shape))


def _emit_type(generator: InnerGenerator, type: TensorType, k: int) -> TensorType:
    shaped = _of_k(type, k)
    wide = shaped.with_dtype("f32") if type.dtype == "bf16" else shaped
    return wide.with_shape((generator.num_trips, *shaped.shape))
