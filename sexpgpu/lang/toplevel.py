"""Top-level forms: what a file declares. Each form is entered in a table here and evaluated when it is needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from sexpgpu.data import Dataset, DataSpec
from sexpgpu.diagnostics import Diagnostic, DiagnosticError, Label, nearest
from sexpgpu.lang.elaborator import Elaborator
from sexpgpu.lang.files import DISK, Files
from sexpgpu.lang.parts import name_of, options, pairs
from sexpgpu.lang.patterns import parse_parameters
from sexpgpu.lang.scope import FileScope, Lazy, Scope
from sexpgpu.lang.sources import KINDS, data_spec
from sexpgpu.lang.values import DataHandle, Function, OptimizerDefinition, Reference
from sexpgpu.source import Source, Span
from sexpgpu.syntax import Form, List, ReadResult, String, Symbol, Vector, read


@dataclass(frozen=True, slots=True)
class Declared:
    """A form that names something for the run: its keyword parts and plain parts, not yet evaluated."""

    name: str
    span: Span
    plain: tuple[Form, ...]
    keyed: dict[str, Form]


@dataclass
class Module:
    """One file's declarations and its scope.

    The tables are one for a file and all that it includes; scope, folder and the chain of files that led here are each
    file's own. files: those read so far, by resolved path; scopes: where the names of a source resolve, by its id.
    """

    scope: Scope
    base: Path
    chain: tuple[Path, ...] = ()
    files: dict[Path, tuple[Source, Scope]] = field(default_factory=dict)
    scopes: dict[int, Scope] = field(default_factory=dict)
    spans: dict[str, Span] = field(default_factory=dict)
    constants: dict[str, Form] = field(default_factory=dict)
    variants: dict[str, tuple[dict[str, Span], dict[str, Form]]] = field(default_factory=dict)
    overrides: dict[str, Form] = field(default_factory=dict)
    metrics: dict[str, Function] = field(default_factory=dict)
    loaders: dict[str, Declared] = field(default_factory=dict)
    evaluations: dict[str, Declared] = field(default_factory=dict)
    updates: dict[str, Declared] = field(default_factory=dict)
    generators: dict[str, Declared] = field(default_factory=dict)
    averages: dict[str, Declared] = field(default_factory=dict)
    weights: list[Declared] = field(default_factory=list)
    diagnostics: dict[str, Declared] = field(default_factory=dict)
    runs: dict[str, Declared] = field(default_factory=dict)
    datasets: dict[str, Dataset] = field(default_factory=dict)
    mentioned: set[str] = field(default_factory=set)
    disk: Files = DISK

    def scope_of(self, form: Form) -> Scope:
        """Where the names of `form` resolve: in the file that it is written in."""
        return self.scopes.get(id(form.span.source), self.scope)

    def folder_of(self, form: Form) -> Path:
        """The folder of the file that `form` is written in."""
        own = (path.parent for path, (source, _) in self.files.items() if source is form.span.source)
        return next(own, self.base)


TopLevel = Callable[[Elaborator, Module, List], None]


def _name(el: Elaborator, module: Module, form: List, shape: str) -> str:
    if len(form.items) < 2 or not isinstance(form.items[1], Symbol):
        el.fail("E-FORM-001", f"this form is {shape}", form.span)
    name = form.items[1].name
    if name in module.spans:
        el.fail("E-NAME-002", f"`{name}` is defined twice", form.items[1].span,
                labels=[Label(module.spans[name], "defined here first")])  # fmt: skip
    module.spans[name] = form.items[1].span
    return name


def _def(el: Elaborator, module: Module, form: List) -> None:
    shape = '(def NAME VALUE) or (def NAME VALUE "doc")'
    name = _name(el, module, form, shape)
    if len(form.items) not in (3, 4) or (len(form.items) == 4 and not isinstance(form.items[3], String)):
        el.fail("E-FORM-001", f"this form is {shape}", form.span)
    module.constants[name] = form.items[2]

    def compute() -> Any:
        el.stack = []
        chosen = module.overrides.get(name, form.items[2])
        return el.eval(chosen, module.scope_of(chosen))

    module.scope.names[name] = Lazy(compute)


def _defvariant(el: Elaborator, module: Module, form: List) -> None:
    shape = "(defvariant NAME (CONSTANT VALUE) …)"
    if len(form.items) < 2 or not isinstance(form.items[1], Symbol):
        el.fail("E-FORM-001", f"this form is {shape}", form.span)
    name = form.items[1].name
    if name in module.variants:
        el.fail("E-NAME-002", f"the variant `{name}` is defined twice", form.items[1].span)
    changes: dict[str, Form] = {}
    places: dict[str, Span] = {}
    for item in form.items[2:]:
        match item:
            case List(items=(Symbol() as constant, value)):
                if constant.name in changes:
                    el.fail("E-NAME-002", f"the variant `{name}` sets `{constant.name}` twice", item.span)
                changes[constant.name] = value
                places[constant.name] = constant.span
            case _:
                el.fail("E-FORM-001", f"this form is {shape}", item.span)
    module.variants[name] = (places, changes)


def _check_constant(el: Elaborator, module: Module, name: str, span: Span | None) -> None:
    if name in module.constants:
        return
    near = nearest(name, module.constants)
    known = ", ".join(module.constants) or "none"
    labels = [Label(module.spans[near], f"`{near}` is defined here")] if near and span else []
    el.fail("E-NAME-004", f"no constant is called `{name}`", span, labels=labels,
            help=f"`{near}` is a near name" if near else f"the constants of this file: {known}")  # fmt: skip


def _function(model: bool) -> TopLevel:
    word = "defmodel" if model else "defn"

    def top(el: Elaborator, module: Module, form: List) -> None:
        shape = f"({word} NAME (PARAMETER …) BODY)"
        name = _name(el, module, form, shape)
        items: list[Form] = list(form.items[2:])
        if not items or not isinstance(items[0], List):
            el.fail("E-FORM-001", f"the parameters of `{name}` stand in round brackets: {shape}", form.span)
        doc = ""
        if len(items) > 2 and isinstance(items[1], String):
            doc = items[1].value
            del items[1]
        if len(items) < 2:
            el.fail("E-FORM-001", f"`{name}` has no body: {shape}", form.span)
        parameters = parse_parameters(el, items[0].items)
        module.scope.names[name] = Function(name, parameters, tuple(items[1:]), module.scope, form.span, model, doc)

    return top


def _defmetric(el: Elaborator, module: Module, form: List) -> None:
    shape = "(defmetric NAME (FIELD …) BODY)"
    name = _name(el, module, form, shape)
    if len(form.items) < 4 or not isinstance(form.items[2], List):
        el.fail("E-FORM-001", f"this form is {shape}", form.span)
    parameters = parse_parameters(el, form.items[2].items)
    for parameter in parameters:
        if parameter.keyword or not isinstance(parameter.pattern, Symbol):
            el.fail(
                "E-FORM-001", "the parameters of a metric are fields of a loader: FIELD or (FIELD TYPE)", parameter.span
            )
    metric = Function(name, parameters, form.items[3:], module.scope, form.span)
    module.metrics[name] = metric
    module.scope.names[name] = metric


def _defoptimizer(el: Elaborator, module: Module, form: List) -> None:
    shape = "(defoptimizer NAME (p g :key DEFAULT …) :state [s S0 …] BODY)"
    name = _name(el, module, form, shape)
    if len(form.items) < 4 or not isinstance(form.items[2], List):
        el.fail("E-FORM-001", f"this form is {shape}", form.span)
    plain, keyed = options(el, form.items[3:], ("state",), "defoptimizer")
    doc = plain.pop(0) if len(plain) > 1 and isinstance(plain[0], String) else None
    parameters = parse_parameters(el, form.items[2].items)
    if sum(not p.keyword for p in parameters) != 2 or not plain:
        el.fail("E-FORM-001", f"an optimizer takes a parameter and its gradient, then keywords: {shape}", form.span)
    state: list[tuple[str, Form]] = []
    if "state" in keyed:
        state = [(name_of(el, p, "a state"), v) for p, v in pairs(el, keyed["state"], "`:state`")]
    module.scope.names[name] = OptimizerDefinition(
        name, parameters, tuple(state), tuple(plain), module.scope, form.span,
        doc.value if isinstance(doc, String) else "",
    )  # fmt: skip


def _defdata(el: Elaborator, module: Module, form: List) -> None:
    shape = f'(defdata NAME ({"|".join(KINDS)} "PATH" …))'
    name = _name(el, module, form, shape)
    if len(form.items) != 3 or not isinstance(form.items[2], List) or not form.items[2].items:
        el.fail("E-FORM-001", f"this form is {shape}", form.span)
    source = form.items[2]

    def compute() -> DataHandle:
        el.stack = [source.span]
        spec = data_spec(el, source, module.scope)
        dataset = _opened(el, module, spec)
        module.datasets[name] = dataset
        el.stack = []
        return DataHandle(name, dataset)

    module.scope.names[name] = Lazy(compute)


def _opened(el: Elaborator, module: Module, spec: DataSpec) -> Dataset:
    try:
        return el.located(lambda: module.disk.dataset(spec, module.base))
    except DiagnosticError as error:
        stand_in = module.disk.stand_in(spec, error.diagnostics)
        if stand_in is None:
            raise
        return stand_in


def _include(el: Elaborator, module: Module, form: List) -> None:
    if len(form.items) != 2 or not isinstance(form.items[1], String):
        el.fail("E-FORM-001", 'this form is (include "file.sx")', form.span)
    written = form.items[1]
    path = module.base / Path(written.value).expanduser()
    resolved = path.resolve()
    if resolved in module.chain:
        ways = " includes ".join(p.name for p in (*module.chain[module.chain.index(resolved) :], resolved))
        el.fail("E-FORM-002", f"the file includes itself: {ways}", written.span)
    if resolved not in module.files:
        try:
            # A name that begins with `std/` would pass for the library.
            source = module.disk.source(f"./{path}" if str(path).startswith("std/") else path)
        except DiagnosticError as error:
            raise DiagnosticError([replace(d, span=d.span or written.span) for d in error.diagnostics]) from None
        inner = replace(module, scope=FileScope(module.scope.outer), base=path.parent, chain=(*module.chain, resolved))
        found = declare(el, inner, source, read(source), resolved)
        if found:
            raise DiagnosticError(found)
    _, scope = module.files[resolved]
    for name, value in scope.names.items():
        if isinstance(value, Lazy):
            symbol = Symbol(name, module.spans[name])
            value = Lazy(partial(el.lookup, symbol, scope))
        module.scope.names.setdefault(name, value)


def _defweights(el: Elaborator, module: Module, form: List) -> None:
    shape = '(defweights PREFIX FILE (OURS THEIRS "o i -> i o") …)'
    if len(form.items) < 3:
        el.fail("E-FORM-001", f"this form is {shape}", form.span)
    prefix, file = form.items[1], form.items[2]
    if not isinstance(prefix, Symbol | String):
        el.fail("E-FORM-001", f"this form is {shape}", form.span)
    if isinstance(file, List) and file.items and isinstance(file.items[0], String):
        el.fail("E-FORM-001", f"this form is {shape}", form.span, labels=[Label(file.span, "a rule, but no FILE")])
    name = prefix.name if isinstance(prefix, Symbol) else prefix.value
    module.weights.append(Declared(name, form.span, form.items[2:], {}))


def _declared(
    kind: str, table: str, allowed: Sequence[str], shape: str, num_plain: int | None = None
) -> TopLevel:
    """A form whose parts are entered as they stand. num_plain: the most of them that follow no keyword."""

    def top(el: Elaborator, module: Module, form: List) -> None:
        name = _name(el, module, form, shape)
        plain, keyed = options(el, form.items[2:], allowed, f"def{kind}")
        if num_plain is not None and len(plain) > num_plain:
            near = plain[num_plain]
            el.fail("E-FORM-001", "this value stands after no keyword", near.span, help=f"this form is {shape}")
        getattr(module, table)[name] = Declared(name, form.span, tuple(plain), keyed)
        module.scope.names[name] = Reference(kind, name)

    return top


UPDATE_KEYS = ("loss", "loader", "over", "optimizer", "clip", "times", "every")
RUN_KEYS = (
    "loader", "loss", "over", "optimizer", "clip", "updates", "microbatches", "steps", "seed", "on-nonfinite",
    "evaluate", "generate", "diagnose", "checkpoint",
)  # fmt: skip

FORMS: dict[str, TopLevel] = {
    "include": _include,
    "def": _def,
    "defvariant": _defvariant,
    "defn": _function(False),
    "defmodel": _function(True),
    "defmetric": _defmetric,
    "defoptimizer": _defoptimizer,
    "defdata": _defdata,
    "defloader": _declared("loader", "loaders", ("batch", "shuffle", "last"), "(defloader NAME VIEW :batch n …)", 1),
    "defeval": _declared(
        "eval", "evaluations", ("loader", "batches", "weights"), "(defeval NAME :loader L :batches n METRIC …)"
    ),
    "defupdate": _declared("update", "updates", UPDATE_KEYS, "(defupdate NAME :loss L …)", 0),
    "defgenerator": _declared(
        "generator", "generators", ("trips", "carry", "axis", "show", "weights"), "(defgenerator NAME (ARGS) … BODY)"
    ),
    "defaverage": _declared("average", "averages", ("over", "decay"), "(defaverage NAME :over P :decay D)", 0),
    "defweights": _defweights,
    "defdiagnostic": _declared(
        "diagnostic",
        "diagnostics",
        ("over", "group", "reduce", "after", "every"),
        "(defdiagnostic NAME (p g new) BODY)",
    ),
    "defrun": _declared("run", "runs", RUN_KEYS, "(defrun NAME :loss L :optimizer O …)", 0),
}


def mention(names: set[str], form: Form, *, in_variant: bool = False) -> None:
    """Enter every name that stands in `form`; a variant's constant is set there, not used."""
    match form:
        case Symbol():
            names.add(form.name)
        case List() | Vector():
            for item in form.items[1 if in_variant else 0 :]:
                mention(names, item)


def declare(
    el: Elaborator, module: Module, source: Source, result: ReadResult, path: Path | None = None
) -> list[Diagnostic]:
    """Enter every form of `source` in `module`; gives what was wrong, all of it. path: the file, resolved."""
    if path is not None:
        module.files[path] = source, module.scope
        module.scopes[id(source)] = module.scope
    if result.diagnostics:
        return list(result.diagnostics)
    found: list[Diagnostic] = []
    if not source.is_library:
        el.forms += [form for form in result.forms if isinstance(form, List)]
    for form in result.forms:
        el.stack = []
        try:
            if not isinstance(form, List) or not form.items or not isinstance(form.items[0], Symbol):
                el.fail("E-FORM-002", "a file is made of forms such as (def …) or (defmodel …)", form.span)
            head = form.items[0].name
            if head not in FORMS:
                near = nearest(head, FORMS)
                el.fail("E-FORM-002", f"`{head}` is no top-level form", form.items[0].span,
                        help=f"`{near}` is a near name" if near else f"the forms: {', '.join(FORMS)}")  # fmt: skip
            FORMS[head](el, module, form)
            for item in form.items[2:]:
                mention(module.mentioned, item, in_variant=head == "defvariant")
        except DiagnosticError as error:
            found += error.diagnostics
    return found


def apply_overrides(el: Elaborator, module: Module, variant: str | None, settings: dict[str, str]) -> None:
    """Replace constants by the variant's values, then by `--set`. Raises E-NAME-003, E-NAME-004."""
    el.stack = []
    for places, _ in module.variants.values():
        for name, span in places.items():
            _check_constant(el, module, name, span)
    if variant is not None:
        if variant not in module.variants:
            near = nearest(variant, module.variants)
            known = ", ".join(module.variants) or "none"
            el.fail("E-NAME-003", f"no variant is called `{variant}`",
                    help=f"`{near}` is a near name" if near else f"the variants of this file: {known}")  # fmt: skip
        module.overrides.update(module.variants[variant][1])
    for name, text in settings.items():
        _check_constant(el, module, name, None)
        module.overrides[name] = _setting(el, module, name, text)


def _setting(el: Elaborator, module: Module, name: str, text: str) -> Form:
    """`--set NAME=TEXT` as a form: verbatim where the file says a string, else read as an expression."""
    source = Source(f"--set {name}", text)
    whole = Span(source, 0, len(text))
    if isinstance(module.constants[name], String) and not text.startswith('"'):
        return String(text, whole)
    result = read(source)
    if result.diagnostics:
        raise DiagnosticError(result.diagnostics)
    if len(result.forms) != 1:
        el.fail("E-NAME-004", f"`--set {name}={text}` needs one value", help=f"--set {name}=128")
    return result.forms[0]
