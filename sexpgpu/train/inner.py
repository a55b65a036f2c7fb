"""Phases of the generators that a loss calls: they run before each call of the training graph, once for its k
microbatches, and leave arguments, carries and what was emitted in slots."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sexpgpu.ir.builder import Builder
from sexpgpu.ir.graph import Graph, Value
from sexpgpu.ir.program import FEED, SLOT, Phase, Slot
from sexpgpu.ir.types import TensorType
from sexpgpu.lang.experiment import Experiment, InnerGenerator, Update
from sexpgpu.lang.trace import TRIP
from sexpgpu.train.lanes import lanes_of, read_lanes
from sexpgpu.transform.passes import FINAL_PASSES, forward_passes, run_passes


def phase_name(update: Update, generator: InnerGenerator, part: str) -> str:
    """`update.U.generate.G.start` or `.trip`."""
    return f"update.{update.name}.generate.{generator.name}.{part}"


def batched_inputs(experiment: Experiment, update: Update, graph: Graph) -> list[str]:
    """The inputs that each microbatch has its own of, beside those of the batch: lanes, and what generators left."""
    own = {SLOT + slot for g in update.objective.generators for slot, _ in (*g.arguments_of, *g.carries, *g.emits)}
    lanes = [SLOT + state.name for state in lanes_of(experiment, graph)]
    return [*lanes, *(name for name in graph.input_names if name in own)]


def read_generated(b: Builder, generators: tuple[InnerGenerator, ...], k: int) -> dict[str, Value]:
    """What generators emitted, by the input that reads it: in its slot the trips come first, even before k."""
    found = {}
    for generator in generators:
        for slot, type in generator.emits:
            whole = b.input(SLOT + slot, _emit_type(generator, type, k))
            found[SLOT + slot] = whole if k == 1 else b.transpose(whole, (1, 0, *range(2, whole.rank)))
            if type.dtype == "bf16":
                found[SLOT + slot] = b.cast(found[SLOT + slot], "bf16")
    return found


def generator_phases(experiment: Experiment, update: Update, k: int, slots: dict[str, Slot]) -> Iterator[Phase]:
    """The phases of all generators of an update, and their slots."""
    for place, generator in enumerate(update.objective.generators):
        for slot, type in (*generator.arguments_of, *generator.carries):
            slots[slot] = Slot(slot, _of_k(type, k), "carry", initialised=False)
        for slot, type in generator.emits:
            slots[slot] = Slot(slot, _emit_type(generator, type, k), "carry", initialised=False)
        earlier = update.objective.generators[:place]
        b = Builder()
        arguments = _outputs(b, experiment, update, generator.arguments, k, read_generated(b, earlier, k))
        given = {SLOT + name: value for name, value in arguments.items()}
        written = arguments | _outputs(b, experiment, update, generator.start, k, given)
        for slot, _ in generator.emits:
            type = slots[slot].type
            written[slot] = b.constant(False if type.dtype == "bool" else 0.0 if type.is_float else 0, type)
        yield _finish(phase_name(update, generator, "start"), b, written)
        if generator.trip is None:
            continue
        b = Builder()
        written = _outputs(b, experiment, update, generator.trip, k, {})
        for slot, _ in generator.emits:
            before = b.input(SLOT + slot, slots[slot].type)
            value = b.cast(written[slot], before.dtype)
            trip = b.input(FEED + "trip", TRIP)
            written[slot] = b.op("scatter", before, trip, value, axis=0, batch=0, fold="set")
        yield _finish(phase_name(update, generator, "trip"), b, written)


def _finish(name: str, b: Builder, written: Mapping[str, Value]) -> Phase:
    outputs = [(SLOT + slot, value) for slot, value in written.items()]
    return Phase(name, run_passes(b.graph(name, outputs), FINAL_PASSES))


def _outputs(
    b: Builder, experiment: Experiment, update: Update, graph: Graph, k: int, given: Mapping[str, Value]
) -> dict[str, Value]:
    """The outputs of one graph for k microbatches, by name."""
    own = [n for n in graph.input_names if n.startswith(FEED + "batch.") or n == FEED + "stream"]
    batched = [*own, *batched_inputs(experiment, update, graph)]
    forward = run_passes(graph, forward_passes(k, batched))
    lanes = read_lanes(b, experiment, lanes_of(experiment, graph), k)
    return dict(zip([name for name, _ in graph.outputs], b.copy(forward, {**lanes, **given}), strict=True))


def _of_k(type: TensorType, k: int) -> TensorType:
    return type if k == 1 else type.with_shape((k, *type.shape))


def _emit_type(generator: InnerGenerator, type: TensorType, k: int) -> TensorType:
    shaped = _of_k(type, k)
    wide = shaped.with_dtype("f32") if type.dtype == "bf16" else shaped
    return wide.with_shape((generator.num_trips, *shaped.shape))
