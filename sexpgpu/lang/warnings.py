"""What is odd about an experiment that elaborates: the `W-` diagnostics of a file, beside its own `warning` forms.

Flow: `load` asks at the end, when the run is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from sexpgpu.data import Arrays, BatchSource, Fields, Loader, Mixture, Packed, Rows, Zipped
from sexpgpu.data.views import resolve
from sexpgpu.diagnostics import Diagnostic, Label
from sexpgpu.lang.bindings import bindings_of
from sexpgpu.lang.experiment import Evaluation, Objective, Run
from sexpgpu.lang.toplevel import Module
from sexpgpu.lang.trace import World
from sexpgpu.source import Source, Span
from sexpgpu.syntax import List

LARGE = 30_000_000
"""Parameters from which a file wants a variant `smoke`."""


def unread_names(
    module: Module, source: Source, forms: Sequence[List], world: World, run: Run
) -> Iterator[Diagnostic]:
    """Definitions, bindings and parameters that nothing reads, and parameters of the model that no loss reaches.

    A binding that nothing reads is one mistake, also where its value makes parameters.
    """
    unreached = _unreached(world, run) if run.name else {}  # weights that are only looked at are not trained
    by_command = (module.runs, module.evaluations, module.generators)
    for name, span in module.spans.items():
        if span.source is source and name not in module.mentioned and not any(name in t for t in by_command):
            yield Diagnostic("W-NAME-001", f"`{name}` is defined, but nothing uses it", span,
                             help=("remove it, or use it",))  # fmt: skip
    for found in (b for form in forms if form.span.source is source for b in bindings_of(form).unused):
            name, span = found.name, found.span
            if found.kind == "let" and found.value is not None:
                made = [p for p in unreached if p is not None and _within(p, found.value.span)]
                lost = _listed([name for place in made for name in unreached.pop(place)])
                notes = (f"so {lost} are never trained",) if made else ()
                yield Diagnostic("W-NAME-001", f"`{name}` is bound, but nothing below reads it", span,
                                 help=("read it, or remove the binding",), notes=notes)  # fmt: skip
            elif found.kind == "defmetric":
                yield Diagnostic("W-DATA-001", f"the metric takes the field `{name}` and never reads it", span,
                                 help=("read it, or take it out of the parameters",))  # fmt: skip
            elif found.kind in ("defn", "defmodel"):
                yield Diagnostic("W-NAME-001", f"`{name}` is a parameter, but its function never reads it", span,
                                 help=("read it, or take it out of the parameters",))  # fmt: skip
    for place, names in unreached.items():
        what = "parameter" if len(names) == 1 else "parameters"
        yield Diagnostic(
            "W-PARAM-001", f"no loss reaches the {what} {_listed(names)}", place,
            (Label(place, "made here, and never trained"),) if place is not None else (),
            ("use what this gives in a loss, or remove it",),
        )  # fmt: skip


def _unreached(world: World, run: Run) -> dict[Span | None, list[str]]:
    """Parameters that no loss depends on, by the place that makes them."""
    moved = {name for update in run.updates for name in update.rules}
    seen = {n.removeprefix("slot:") for update in run.updates for n in update.objective.reads}
    by_place: dict[Span | None, list[str]] = {}
    for name, parameter in world.parameters.items():
        if name not in moved and name not in seen:
            by_place.setdefault(parameter.span, []).append(name)
    return by_place


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names[:4]) + (f" and {len(names) - 4} more" if names[4:] else "")


def _within(inner: Span, outer: Span) -> bool:
    return inner.source is outer.source and outer.start <= inner.start and inner.end <= outer.end


def unread_fields(
    module: Module, loaders: Mapping[str, BatchSource], run: Run, evaluations: Iterable[Evaluation]
) -> Iterator[Diagnostic]:
    """Loaders of the run of which no metric reads any field, and masks that no metric of the file takes.

    Other fields may be left unread: a model of pictures needs no labels, and a file of arrays holds what it holds.
    A field of booleans says which elements count, and a loss that does not look at it counts them all.
    """
    read_by: dict[str, list[Objective]] = {}
    for update in run.updates:
        if update.loader is not None:
            read_by.setdefault(update.loader, []).append(update.objective)
    for evaluation in evaluations:
        if evaluation.loader is not None:
            read_by.setdefault(evaluation.loader, []).extend(evaluation.objectives)
    taken = {p.name.rpartition(".")[2] for metric in module.metrics.values() for p in metric.parameters}
    told: set[tuple[int, str]] = set()
    for name, objectives in read_by.items():
        span, loader = module.loaders[name].span, loaders[name]
        fields = {field for objective in objectives for field in objective.fields}
        prefixes = [f"{part}." for part in loader.parts] if isinstance(loader, Zipped) else [""]
        for prefix in prefixes:
            if not any(field.startswith(prefix) for field in fields):
                whose = f"`{prefix[:-1]}` of the loader `{name}`" if prefix else f"the loader `{name}`"
                help = "take a field as a parameter of the metric, or leave the loader out"
                yield Diagnostic("W-DATA-001", f"no metric reads a field of {whose}", span, help=(help,))
        for prefix, origin, known, otherwise in _masked(loader):
            for field, (dtype, shape) in known.items():
                if dtype == "bool" and field not in taken and (origin, field) not in told:
                    told.add((origin, field))
                    axes = " _" * (1 + len(shape))
                    yield Diagnostic(
                        "W-DATA-001", f"no metric reads the field `{field}` of the loader `{name}`, a mask", span,
                        help=(f"take it as a parameter, ({prefix}{field} (bool{axes})), {otherwise}",),
                    )  # fmt: skip


def _masked(loader: BatchSource, prefix: str = "") -> Iterator[tuple[str, int, Fields, str]]:
    """Where masks may be among the fields of a loader: the prefix of these fields, what they come from, they, and what
    to do with a mask that is not wanted."""
    match loader:
        case Zipped():
            for name, part in loader.parts.items():
                yield from _masked(part, f"{prefix}{name}.")
        case Mixture():
            for part in loader.sources:
                yield from _masked(part, prefix)
        case Loader(view=Rows() as view):
            dataset, _, _ = resolve(view.source)
            if isinstance(dataset, Arrays):
                yield prefix, id(dataset), dataset.schema, "or write the data without it"
        case Loader(view=Packed() as view) if view.filled < 1:
            yield prefix, id(view), view.fields, "which is false in padding"


def too_large_to_try(world: World, module: Module) -> Iterator[Diagnostic]:
    """A large experiment without a variant `smoke`."""
    size = sum(parameter.type.size for parameter in world.parameters.values())
    if size >= LARGE and "smoke" not in module.variants:
        yield Diagnostic(
            "W-VARIANT-001",
            f"{size:,} parameters and no variant `smoke`",
            help=("(defvariant smoke (CONSTANT SMALL) …) makes a trial cheap; without one, try --steps 3 on the GPU",),
        )
