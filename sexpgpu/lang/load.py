"""From a file to an `Experiment`: read, declare, override, elaborate, trace. Collects the errors of each phase.

Flow: `cli` calls `load_experiment`; `check` calls it once per variant.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase, translate
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sexpgpu.data import BatchSource
from sexpgpu.diagnostics import Diagnostic, DiagnosticError, nearest
from sexpgpu.ir.types import DTYPES, TensorType
from sexpgpu.lang.averages import Average, averaging_rate, weights_name
from sexpgpu.lang.builtins import BUILTINS
from sexpgpu.lang.collector import Collector, place
from sexpgpu.lang.elaborator import Ambient, Elaborator
from sexpgpu.lang.experiment import (
    CheckpointRule,
    DiagnosticRule,
    Evaluation,
    Event,
    Experiment,
    GeneratorGraphs,
    LeafRule,
    Objective,
    Run,
    Update,
)
from sexpgpu.lang.files import DISK, Files
from sexpgpu.lang.forms import EXPRESSIONS
from sexpgpu.lang.inner import call_generator, generator_parameters
from sexpgpu.lang.loaders import LoaderMaker, loader_times
from sexpgpu.lang.patterns import parse_parameters, pattern_names
from sexpgpu.lang.reading import FormReader
from sexpgpu.lang.saving import check_best, checkpoint_rule
from sexpgpu.lang.scope import FileScope, Lazy, Poisoned, Scope
from sexpgpu.lang.special import MAX_ROUNDS
from sexpgpu.lang.stopping import stop_rule
from sexpgpu.lang.storage import REDUCERS, host_function
from sexpgpu.lang.toplevel import Declared, Module, apply_overrides, declare, mention
from sexpgpu.lang.tracing import RuleTracer, trace_diagnostic, trace_generator, trace_objective
from sexpgpu.lang.values import (
    WILD,
    DataHandle,
    DType,
    Due,
    Function,
    HostScalar,
    OptimizerRule,
    Patience,
    Reference,
    kind_of,
)
from sexpgpu.lang.warnings import too_large_to_try, unread_fields, unread_names
from sexpgpu.lang.weights import WeightReader
from sexpgpu.source import Source, Span
from sexpgpu.syntax import Form, List, ReadResult, String, Symbol, read

MAX_PLACEHOLDERS = 4
"""Of a group's pattern; the ways to match one grow with the length of a path to this power."""

_LIBRARY_FORM = re.compile(r"^\((?:defn|defmodel|defoptimizer) (\S+)", re.MULTILINE)
"""A form of the library: none of its values are constants, which would be evaluated by one experiment for all."""

RECURSION_LIMIT = 20_000
"""Python frames for 256 nested calls of the language, each of which takes a few dozen."""


def _step(el: Elaborator, span: Span) -> HostScalar:
    return HostScalar(el.schedule.step)


def _training(el: Elaborator, span: Span) -> bool:
    if el.trace is None:
        el.fail("E-TYPE-006", "`training` is known inside a metric or a generator only", span)
    el.world.training_reads += 1
    return el.trace.ambient.training


def _base_scope() -> Scope:
    names: dict[str, Any] = dict(BUILTINS)
    names.update({name: DType(name) for name in DTYPES if name != "f64"})
    names.update(none=None, pi=math.pi, inf=math.inf, nan=math.nan, _=WILD)
    names["step"] = Ambient(_step)
    names["training"] = Ambient(_training)
    return FileScope(None, names)


@cache
def library_sources() -> tuple[Source, ...]:
    """The files of the library."""
    files = sorted((Path(__file__).parents[1] / "std").glob("*.sx"))
    return tuple([Source(f"std/{file.name}", file.read_text("utf-8")) for file in files])


@cache
def library_forms() -> Mapping[Source, ReadResult]:
    """The files of the library and their forms, read once."""
    return MappingProxyType({source: read(source) for source in library_sources()})


@cache
def _library_scope() -> Scope:
    """The names of the library, which no elaboration changes; a form is read when its name is first looked up."""
    library = Module(FileScope(_base_scope()), Path())
    for source in library_sources():
        found = list(_LIBRARY_FORM.finditer(source.text))
        ends = [following.start() for following in found[1:]] + [len(source.text)]
        for form, end in zip(found, ends, strict=True):
            library.scope.names[form[1]] = Lazy(partial(_library_value, library, form[1], source, form.start(), end))
    return library.scope


def _library_value(library: Module, name: str, source: Source, start: int, end: int) -> Any:
    module = replace(library, spans={})  # one that was interrupted can be read again
    wrong = declare(Elaborator(EXPRESSIONS), module, source, read(source, start, end))
    assert not wrong, wrong
    return library.scope.names[name]


def load_experiment(
    path: Path | str,
    *,
    variant: str | None = None,
    settings: Mapping[str, str] | None = None,
    run: str | None = None,
    keys: Mapping[str, Mapping[str, str]] | None = None,
    disk: Files = DISK,
    elaborator: Callable[[Mapping[str, Any]], Elaborator] = Elaborator,
) -> Experiment:
    """Elaborate the file at `path`.

    variant, settings: overrides of its constants. run: which `defrun`, if it has several.
    keys: for generators by name, keywords given as text. disk: where texts and data come from. elaborator: makes the
    evaluator from the table of special forms; one that looks on is the language server's.
    Raises DiagnosticError with all errors of the phase.
    """
    source = disk.source(path)
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, RECURSION_LIMIT))
    try:
        el = elaborator(EXPRESSIONS)
        return _Loading(el, disk, source, Path(path), dict(settings or {}), variant).experiment(run, keys or {})
    except RecursionError:
        message = "the forms of this file are nested too deeply to be elaborated"
        raise DiagnosticError(
            Diagnostic("E-CALL-004", message, help=("end recursions with an `if`, or loop with `repeat` or `for`",))
        ) from None
    finally:
        sys.setrecursionlimit(before)


class _Loading(FormReader):
    """One elaboration of one file."""

    def __init__(
        self, el: Elaborator, disk: Files, source: Source, path: Path, settings: dict[str, str], variant: str | None
    ) -> None:
        self.source = source
        self.path = path
        resolved = path.resolve()
        super().__init__(el, Module(FileScope(_library_scope()), path.parent, (resolved,), disk=disk))
        self._indifferent: dict[tuple[Any, ...], Objective] = {}
        self.collector = collector = Collector(self.el.forms)
        collector.found += declare(self.el, self.module, source, read(source), resolved)
        collector.stop()
        self.el.defined = self.module.spans
        self.el.call_generator = lambda name, *call: call_generator(
            self.el, self.module, self.module.generators[name], *call
        )
        apply_overrides(self.el, self.module, variant, settings)
        self.overrides = {"variant": variant or "", **settings}
        for name, value in list(self.module.scope.names.items()):
            if isinstance(value, Lazy):
                symbol = Symbol(name, self.module.spans[name])
                collector.attempt(partial(self.el.lookup, symbol, self.module.scope))

    # The phases of elaboration.

    def experiment(self, run_name: str | None, keys: Mapping[str, Mapping[str, str]]) -> Experiment:
        # What needs a definition that failed is left out, so the phases go on and report what is independent of it.
        collector = self.collector
        declared = collector.attempt(partial(self._choose_run, run_name))
        if declared is None:
            collector.stop()
        assert declared is not None
        seed = collector.attempt(lambda: self._integer(declared, "seed", 0))
        microbatches = collector.attempt(lambda: self._microbatches(declared))
        times = collector.attempt(partial(self._times, declared))
        maker = LoaderMaker(self.el, self.module, seed or 0, microbatches or 1, times or {})
        for name in self.module.loaders:
            collector.attempt(partial(maker.make, name))
        self.loaders: dict[str, BatchSource] = maker.made
        for average in self.module.averages.values():
            collector.attempt(partial(self._average, average))
        # The run comes first: parameters and fed scalars stand in the order of training, whatever else a file has.
        run = collector.attempt(partial(self._run, declared, seed or 0))
        evaluations = {
            d.name: collector.attempt(partial(self._evaluation, d)) for d in self.module.evaluations.values()
        }
        if run is not None and None not in evaluations.values():
            span = declared.keyed["checkpoint"].span if "checkpoint" in declared.keyed else declared.span
            collector.attempt(partial(check_best, self.el, span, run, evaluations))
        generators = {
            d.name: collector.attempt(partial(self._generator, d, keys.get(d.name, {})))
            for d in self.module.generators.values()
            if not self._takes_values(d)
        }
        patience = collector.attempt(partial(self._patience, declared))
        collector.stop()
        for average in self.module.averages.values():  # patterns are looked up among parameters that were all made
            collector.attempt(partial(self._over, average.keyed.get("over"), ()))
        assert run is not None
        if patience is not None:
            stop = collector.attempt(partial(stop_rule, self.el, patience, run, evaluations))
            run = replace(run, stop=stop)
        collector.stop()
        averages = {name: a.of(self.el.world.parameters) for name, a in self.el.world.averages.items()}
        weights = WeightReader(self.el, self.module, self.el.world.parameters, self.el.world.states).read()
        return Experiment(
            self.source.name, self.source.text, self._included(), self.overrides, run,
            self.el.world.parameters, self.el.world.states, averages, weights,
            self.loaders, self.module.datasets, evaluations, generators, self.el.schedule,
            tuple(self.module.variants), tuple(self._warnings(run, evaluations.values())),
            {name: declared.span for name, declared in self.module.loaders.items()},
        )  # fmt: skip

    def _scope(self, declared: Declared) -> Scope:
        return self.module.scopes[id(declared.span.source)]

    def _included(self) -> dict[str, str]:
        """The texts of the files that this one includes, by their path from its folder."""
        folder = self.path.resolve().parent
        return {os.path.relpath(p, folder): s.text for p, (s, _) in self.module.files.items() if s is not self.source}

    def _choose_run(self, name: str | None) -> Declared:
        runs = self.module.runs
        if name is not None and name in runs:
            return runs[name]
        known = ", ".join(runs) or "none"
        if name is not None:
            self._fail("E-RUN-005", f"no run is called `{name}`", help=f"the runs of this file: {known}")
        module = self.module
        if not runs and module.weights and not module.updates and (module.evaluations or module.generators):
            return Declared("", module.weights[0].span, (), {})  # nothing is trained: the weights are there
        if len(runs) != 1:
            what = "several runs" if runs else "no `defrun`"
            remedy = (
                f"choose one with --run: {known}" if runs else "(defrun NAME :loader L :loss M :optimizer O :steps n)"
            )
            self._fail("E-RUN-004", f"this file has {what}", help=remedy)
        return next(iter(runs.values()))

    def _loader_named(self, declared: Declared) -> str | None:
        form = declared.keyed.get("loader")
        if form is None:
            return None
        value = self._eval(form)
        if not isinstance(value, Reference) or value.kind != "loader":
            self._fail("E-TYPE-006", f"{kind_of(value)} is no loader", form.span)
        return str(value.name)

    def _metric(self, form: Form) -> Function:
        value = self._eval(form)
        if not isinstance(value, Function) or self.module.metrics.get(value.name) is not value:
            self._fail(
                "E-TYPE-006", f"{kind_of(value)} is no metric", form.span, help="(defmetric NAME (FIELD …) BODY)"
            )
        assert isinstance(value, Function)
        return value

    def _average(self, declared: Declared) -> None:
        if declared.plain or "decay" not in declared.keyed:
            self._fail("E-FORM-001", "this form is (defaverage NAME :over P :decay D)", declared.span)
        patterns = self._patterns(declared.keyed.get("over"))
        rate = averaging_rate(self.el, self._eval(declared.keyed["decay"]), declared.keyed["decay"])
        self.el.world.averages[declared.name] = Average(declared.name, patterns, rate)

    def _weights(self, declared: Declared) -> str | None:
        form = declared.keyed.get("weights")
        return None if form is None else weights_name(self.el, self._eval(form), form)

    def _objective(
        self, form: Form, loader: str | None, training: bool, name: str, weights: str | None = None
    ) -> Objective:
        if loader is not None and loader not in self.loaders:
            raise Poisoned
        fields = self.loaders[loader].fields if loader is not None else {}
        metric = self._metric(form)
        read = [p.name for p in metric.parameters]
        for prefix, valid in self.loaders[loader].padding.items() if loader is not None else ():
            if valid not in read and (not prefix or any(name.startswith(prefix) for name in read)):
                self._fail(
                    "E-DATA-005",
                    f"the loader `{loader}` pads its last batch, but `{metric.name}` does not read `{valid}`",
                    form.span,
                    help=f"take ({valid} (bool _)) as a parameter and leave padded rows out",
                )
        # A metric that never asks whether it is in training has one graph, in a loss and in evaluations.
        key = (id(metric), tuple(fields.items()), weights)
        known = self._indifferent.get(key)
        if known is not None:
            return replace(known, graph=replace(known.graph, name=name))
        reads = self.el.world.training_reads
        made = trace_objective(
            self.el, metric, fields, loader, training=training, name=name, span=form.span, weights=weights
        )
        if self.el.world.training_reads == reads and not made.generators:
            self._indifferent[key] = made
        return made

    def _evaluation(self, declared: Declared) -> Evaluation:
        loader = self._loader_named(declared)
        form = declared.keyed.get("batches")
        batches: int | None = None
        if form is not None and not (isinstance(form, Symbol) and form.name == "all"):
            batches = self._integer(declared, "batches", 1, 1)
        if loader is None and batches is None:
            self._fail(
                "E-FORM-004",
                f"the evaluation `{declared.name}` needs `:loader`, or `:batches n` for metrics that draw their data",
                declared.span,
            )
        if not declared.plain:
            self._fail("E-FORM-001", f"the evaluation `{declared.name}` names no metric", declared.span)
        weights = self._weights(declared)
        collector = Collector()
        objectives = tuple(
            collector.attempt(partial(self._objective, f, loader, False, f"{declared.name}.{i}", weights))
            for i, f in enumerate(declared.plain)
        )
        collector.hand_up()
        return Evaluation(declared.name, loader, batches, objectives)

    def _generator(self, declared: Declared, given: Mapping[str, str]) -> GeneratorGraphs:
        parameters = generator_parameters(self.el, declared)
        show, dataset = self._show(declared)
        keys: dict[str, Any] = {}
        for name in given:
            if name not in {p.name for p in parameters}:
                near = nearest(name, [p.name for p in parameters])
                self._fail("E-FORM-003", f"the generator `{declared.name}` has no key `{name}`",
                           help=f"`{near}` is a near name" if near else "")  # fmt: skip
        for parameter in parameters:
            scope = Scope(self._scope(declared), dict(keys))
            self.el.stack = []
            if parameter.default is None and parameter.name not in given:
                self._fail("E-FORM-004", f"the generator `{declared.name}` needs `--{parameter.name}`", declared.span)
            value = self.el.eval(parameter.default, scope) if parameter.default is not None else None
            if parameter.name in given:
                text = given[parameter.name]
                off = value is None and parameter.default is not None and not isinstance(_number(text), str)
                if dataset is not None and (isinstance(value, tuple) or value is None) and not off:
                    self.el.stack = [parameter.span or declared.span]
                    value = tuple(self.el.located(partial(dataset.encode, text)))
                else:
                    value = _number(text)
            keys[parameter.name] = value
        graphs = trace_generator(
            self.el, declared.name, keys, self._scope(declared), declared.keyed, declared.plain[1:], declared.span,
            self._weights(declared),
        )  # fmt: skip
        if show == "image":
            self._check_pictures(graphs, declared)
        return replace(graphs, show=show)

    def _check_pictures(self, graphs: GeneratorGraphs, declared: Declared) -> None:
        """What a generator shows last must be pictures."""
        shown = graphs.carries[-1][1] if graphs.carries else None
        if graphs.trip is not None and graphs.num_emitted:
            emitted = graphs.trip.output(f"emit:{graphs.num_emitted - 1}").type
            at = graphs.axis % (len(emitted.shape) + 1)
            shown = replace(emitted, shape=(*emitted.shape[:at], graphs.num_trips, *emitted.shape[at:]))
        match shown.shape if shown is not None else ():
            case (_, _, _) | (_, _, _, 1 | 3) as shape if 0 not in shape:
                return
            case (n, places) if n > 0 and places > 0 and math.isqrt(places) ** 2 == places:
                return
        self._fail("E-TYPE-006", f"`:show image` shows pictures, not {shown or 'nothing'}", declared.keyed["show"].span,
                   help="the last value is (n h w), (n h w 1), (n h w 3), or (n h·h) for square pictures")  # fmt: skip

    def _takes_values(self, declared: Declared) -> bool:
        """Whether a generator has positional arguments, which only a loss can give."""
        match declared.plain:
            case (List(items=items), *_):
                return any(not p.keyword for p in parse_parameters(self.el, items))
        return False

    def _show(self, declared: Declared) -> tuple[str | None, Any]:
        form = declared.keyed.get("show")
        if form is None:
            return None, None
        if isinstance(form, Symbol) and form.name == "image" and form.name not in self.module.scope.names:
            return "image", None
        value = self._eval(form)
        if not isinstance(value, DataHandle) or not hasattr(value.dataset, "decode"):
            self._fail("E-TYPE-006", f"`:show` is a text or `image`, not {kind_of(value)}", form.span)
        return f"text:{value.name}", value.dataset

    # Updates.

    def _update(self, declared: Declared, default_loader: str | None, rules: RuleTracer) -> Update:
        loader = self._loader_named(declared) or default_loader
        if "loss" not in declared.keyed:
            self._fail("E-FORM-004", f"`{declared.name}` needs `:loss`", declared.span)
        collector = Collector()
        traced = partial(self._objective, declared.keyed["loss"], loader, True, declared.name)
        objective = collector.attempt(traced)
        if objective is None and "optimizer" in declared.keyed:
            collector.attempt(partial(self._eval, declared.keyed["optimizer"]))
        collector.hand_up()
        leaf_rules = self._rules(declared, objective, rules) if "optimizer" in declared.keyed else {}
        clip = self._eval(declared.keyed["clip"]) if "clip" in declared.keyed else None
        if isinstance(clip, HostScalar):
            clip = clip.value
        elif clip is not None and (isinstance(clip, bool) or not isinstance(clip, int | float) or clip <= 0):
            self._fail("E-TYPE-006", f"`:clip` is a positive number, not {kind_of(clip)}", declared.keyed["clip"].span)
        times = self._integer(declared, "times", 1, 1)
        every = self._integer(declared, "every", 1, 1)
        return Update(declared.name, loader, objective, leaf_rules, clip, times, every, declared.span)

    def _patterns(self, form: Form | None) -> tuple[str, ...]:
        if form is None:
            return ("*",)
        value = self._eval(form)
        found = value if isinstance(value, tuple) else (value,)
        for pattern in found:
            if not isinstance(pattern, str):
                self._fail("E-TYPE-006", f'`:over` takes patterns such as "net.*", not {kind_of(pattern)}', form.span)
        return found

    def _over(self, form: Form | None, names: Sequence[str]) -> list[str]:
        patterns = self._patterns(form)
        matches = [(pattern, re.compile(translate(pattern)).match) for pattern in patterns]
        matched = [(name, [pattern for pattern, match in matches if match(name)]) for name in names]
        idle = set(patterns if form is not None else ()).difference(*(found for _, found in matched))
        for pattern in patterns:
            if pattern in idle and not any(fnmatchcase(name, pattern) for name in self.el.world.parameters):
                near = nearest(pattern.removesuffix(".*"), {n.split(".")[0] for n in self.el.world.parameters})
                self._fail("E-NAME-001", f'no parameter matches "{pattern}"', form.span if form else None,
                           help=f"`{near}` is a near root" if near else f"the parameters: {_some(names)}")  # fmt: skip
        return [name for name, found in matched if found]

    def _rules(self, declared: Declared, objective: Objective, rules: RuleTracer) -> dict[str, LeafRule]:
        read = [n.removeprefix("slot:") for n in objective.graph.input_names if n.startswith("slot:")]
        chosen = self._over(declared.keyed.get("over"), [n for n in read if n in self.el.world.parameters])
        form = declared.keyed["optimizer"]
        value = self._eval(form)
        found: dict[str, LeafRule] = {}
        # A function that does not ask for the path is applied once for each type.
        by_type: dict[TensorType, Any] | None = {} if _ignores_first(value) else None
        order = {name: place for place, name in enumerate(self.el.world.parameters)}
        for name in sorted(chosen, key=order.__getitem__):
            leaf = self.el.world.parameters[name]
            rule = value if by_type is None else by_type.get(leaf.type, value)
            if isinstance(rule, Function):
                self.el.stack = []
                given = [name, leaf.type][: len(rule.parameters)]
                rule = self.el.apply(rule, given, {}, form.span)
                if by_type is not None:
                    by_type[leaf.type] = rule
            if not isinstance(rule, OptimizerRule):
                self._fail("E-TYPE-006", f"`:optimizer` gives {kind_of(rule)} for `{name}`", form.span,
                           help="(adamw :rate 1e-3), or (fn (path p) …) that gives one")  # fmt: skip
            assert isinstance(rule, OptimizerRule)
            found[name] = rules.trace(rule, leaf.type)
        if not found:
            patterns = declared.keyed.get("over")
            owned = [n for n in read if n in self.el.world.parameters or n in self.el.world.states]
            within = f" of {patterns.span.text}" if patterns is not None else ""
            self._fail(
                "E-FORM-004",
                f"`{declared.name}` has an optimizer, but its loss `{objective.name}` reaches no parameter{within}",
                form.span,
                help=f"it reaches: {_some(owned)}"
                if owned
                else "parameters are made by `param`, in `linear` for instance",
            )
        return found

    def _updates(self, declared: Declared) -> list[Declared]:
        """The forms that say what the updates of a run are: those it names, or itself."""
        if "updates" in declared.keyed:
            form = declared.keyed["updates"]
            names = self._eval(form)
            references = names if isinstance(names, tuple) else (names,)
            for key in ("loss", "optimizer", "over", "clip"):
                if key in declared.keyed:
                    self._fail("E-FORM-003", f"`:{key}` belongs to the updates, since `:updates` names them",
                               declared.keyed[key].span)  # fmt: skip
            for reference in references:
                if not isinstance(reference, Reference) or reference.kind != "update":
                    self._fail("E-TYPE-006", f"{kind_of(reference)} is no update", form.span)
            return [self.module.updates[r.name] for r in references]
        return [declared]

    def _microbatches(self, declared: Declared) -> int:
        found = self._integer(declared, "microbatches", 1, 1)
        if found > MAX_ROUNDS:
            self._fail("E-TYPE-005", f"`:microbatches` is at most {MAX_ROUNDS:,}, not {found:,}",
                       declared.keyed["microbatches"].span)  # fmt: skip
        return found

    def _times(self, declared: Declared) -> dict[str, int]:
        if not declared.name:
            return {}
        default = self._loader_named(declared)
        read = [(self._loader_named(d) or default, self._integer(d, "times", 1, 1)) for d in self._updates(declared)]
        return loader_times(self.el, self.module, [(name, times) for name, times in read if name is not None])

    def _run(self, declared: Declared, seed: int) -> Run:
        if not declared.name:
            return Run("", (), 1, 0, seed, "stop", (), (), (), CheckpointRule())
        collector = Collector(self.el.forms)
        rules = RuleTracer(self.el)
        loader = self._loader_named(declared)
        updates = [collector.attempt(partial(self._update, d, loader, rules)) for d in self._updates(declared)]
        if "steps" not in declared.keyed:
            missing = partial(self._fail, "E-FORM-004", "a run needs `:steps`", declared.span, help=":steps 1000")
            collector.attempt(missing)
        steps = collector.attempt(partial(self._integer, declared, "steps", 1, 1))
        microbatches = collector.attempt(partial(self._microbatches, declared))
        guard = collector.attempt(partial(self._word, declared, "on-nonfinite", ("stop", "skip")))
        evaluate = collector.attempt(partial(self._events, declared, "evaluate", "eval", steps))
        generate = collector.attempt(partial(self._events, declared, "generate", "generator", steps))
        checkpoint = collector.attempt(partial(self._checkpoint, declared))
        collector.hand_up()
        return Run(
            declared.name, tuple(updates), microbatches, steps, seed, guard, evaluate, generate,
            self._diagnostics(declared, updates), checkpoint,
        )  # fmt: skip

    def _patience(self, declared: Declared) -> Patience | None:
        form = declared.keyed.get("stop")
        if form is None:
            return None
        value = self._eval(form)
        if not isinstance(value, Patience):
            self._fail("E-TYPE-006", f"`:stop` is (patience n SERIES), not {kind_of(value)}", form.span)
        assert isinstance(value, Patience)
        return value

    def _events(self, declared: Declared, key: str, kind: str, steps: int) -> tuple[Event, ...]:
        form = declared.keyed.get(key)
        if form is None:
            return ()
        value = self._eval(form)
        found = []
        for item in value if isinstance(value, tuple) else (value,):
            every, what = (item.every, item.what) if isinstance(item, Due) else (steps, item)
            if isinstance(item, Due) and item.options:
                self._fail(
                    "E-FORM-003", f"`:{next(iter(item.options))}` belongs to `:checkpoint`, not to `:{key}`", form.span
                )
            for reference in what if isinstance(what, tuple) else (what,):
                if not isinstance(reference, Reference) or reference.kind != kind:
                    self._fail("E-TYPE-006", f"`:{key}` names {kind_of(reference)}", form.span,
                               help=f"(every 100 NAME) of a `def{kind}`")  # fmt: skip
                if kind == "generator" and self._takes_values(self.module.generators[reference.name]):
                    self._fail("E-FORM-001", f"the generator `{reference.name}` takes values by position, which only "
                               "a loss can give", form.span, help="give it keys with defaults: :key V")  # fmt: skip
                found.append(Event(every, reference.name))
        return tuple(found)

    def _checkpoint(self, declared: Declared) -> CheckpointRule:
        form = declared.keyed.get("checkpoint")
        return CheckpointRule() if form is None else checkpoint_rule(self.el, self._eval(form), form.span)

    def _diagnostics(self, declared: Declared, updates: Sequence[Update]) -> tuple[DiagnosticRule, ...]:
        form = declared.keyed.get("diagnose")
        if form is None:
            return ()
        value = self._eval(form)
        found = []
        for reference in value if isinstance(value, tuple) else (value,):
            if not isinstance(reference, Reference) or reference.kind != "diagnostic":
                self._fail("E-TYPE-006", f"`:diagnose` names {kind_of(reference)}", form.span)
            found.append(self._diagnostic(self.module.diagnostics[reference.name], updates))
        return tuple(found)

    def _diagnostic(self, declared: Declared, updates: Sequence[Update]) -> DiagnosticRule:
        if len(declared.plain) < 2 or not isinstance(declared.plain[0], List):
            self._fail("E-FORM-001", "this form is (defdiagnostic NAME (p g new) … BODY)", declared.span)
        head = declared.plain[0]
        assert isinstance(head, List)
        parameters = parse_parameters(self.el, head.items)
        function = Function(declared.name, parameters, declared.plain[1:], self._scope(declared), declared.span)
        moved = [name for update in updates for name in update.rules]
        names = self._over(declared.keyed.get("over"), moved)
        groups = {name: name for name in names}
        if "group" in declared.keyed:
            pattern = declared.keyed["group"]
            if not isinstance(pattern, String):
                self._fail("E-FORM-001", '`:group` is a pattern such as "net.{i}.*"', pattern.span)
            assert isinstance(pattern, String)
            if pattern.value.count("{") + pattern.value.count("*") > MAX_PLACEHOLDERS:
                self._fail("E-FORM-001", f"`:group` has at most {MAX_PLACEHOLDERS} placeholders and `*`", pattern.span)
            groups = {n: g for n in names if (g := group_of(n, pattern.value)) is not None}
            if not groups:
                self._fail("E-NAME-001", f'no parameter matches the group "{pattern.value}"', pattern.span)
        reducer = self._word(declared, "reduce", REDUCERS)
        after = None
        if "after" in declared.keyed:
            after = host_function(self.el, self._eval(declared.keyed["after"]), declared.span)
        types = {name: self.el.world.parameters[name].type for name in groups}
        by_type = {type: trace_diagnostic(self.el, function, type) for type in dict.fromkeys(types.values())}
        graphs = {name: by_type[type] for name, type in types.items()}
        every = self._integer(declared, "every", 1, 1)
        return DiagnosticRule(declared.name, graphs, groups, reducer, after, every)

    def _warnings(self, run: Run, evaluations: Iterable[Evaluation]) -> list[Diagnostic]:
        found = [
            *dict.fromkeys(self.el.warnings),
            *unread_names(self.module, self.source, self.el.forms, self.el.world, run),
            *unread_fields(self.module, self.loaders, run, evaluations),
            *too_large_to_try(self.el.world, self.module),
        ]
        return sorted(found, key=place)


def group_of(name: str, pattern: str) -> str | None:
    """The part of `name` up to where the last placeholder of `pattern` matched; None if it does not match.

    A placeholder stands for one step of the path, a name with the index after it: `net.{i}.*` groups
    `net.block.3.up.w` under `net.block.3`, and `net.block.{i}.*` does the same.
    """
    parts = re.split(r"(\{[\w-]+\}|\*)", pattern)
    expression, cut = "", 0
    for index, part in enumerate(parts):
        if part.startswith("{"):
            expression += r"([^.]+(?:\.\d+)*)"
            cut = index
        elif part == "*":
            expression += "(.*)"
        else:
            expression += re.escape(part)
    match = re.fullmatch(expression, name)
    if match is None:
        return None
    count = sum(1 for part in parts[: cut + 1] if part.startswith("{") or part == "*")
    return name[: match.end(count)] if count else pattern


def _ignores_first(value: Any) -> bool:
    """Whether `value` is a function whose body does not mention its first parameter."""
    if not isinstance(value, Function) or not value.parameters:
        return False
    names: set[str] = set()
    for form in value.body:
        mention(names, form)
    return not names.intersection(pattern_names(value.parameters[0].pattern))


def _number(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (", …" if len(names) > 6 else "")
