"""Checking a text as `sexpgpu check` does, and keeping what every form of it evaluated to."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sexpgpu.data import ArraysSpec, Dataset, DataSpec, WeightFiles
from sexpgpu.data.blank import blank
from sexpgpu.data.files import find_files
from sexpgpu.diagnostics import Diagnostic, DiagnosticError
from sexpgpu.ir.graph import Origin, Value
from sexpgpu.lang.elaborator import Elaborator
from sexpgpu.lang.files import Files
from sexpgpu.lang.load import load_experiment
from sexpgpu.lang.replay import Change, Way, changed
from sexpgpu.lang.scope import Scope
from sexpgpu.source import Source, Span
from sexpgpu.syntax import Form, Integer, List, Symbol, load_source, read
from sexpgpu.train.differentiable import missing_gradients

MAX_SIZE = 2**20
"""A larger size of an array that is missing is not believed."""

Stamp = tuple[tuple[str, int, int], ...]


class Outdated(Exception):
    """The text that is being checked has changed."""


evaluate, evaluate_body = Elaborator.eval, Elaborator.eval_body


class Observer(Elaborator):
    """An evaluator that keeps what the user's own forms evaluate to. seen: by a form's id, the form and its values."""

    def __init__(self, specials: Mapping[str, Any], outdated: Callable[[], bool], keeping: bool) -> None:
        super().__init__(specials)
        self.seen: dict[int, list[Any]] = {}
        self._outdated = outdated
        self._wanted = self._keeping = keeping

    def eval(self, form: Form, scope: Scope) -> Any:
        """The value of `form`, kept unless it stands in the library."""
        value = evaluate(self, form, scope)
        if self._keeping:
            self.keep(form, value)
        return value

    def keep(self, form: Form, value: Any) -> None:
        """Remember a value of a form, and let a call that is replayed remember its own."""
        entry = self.seen.get(id(form))
        if entry is None:
            self.seen[id(form)] = [form, value]
        else:
            entry.append(value)
        if self.trace is not None:
            self.trace.builder.log.append(_Seen(form, value, self.trace.builder.origin))

    def eval_body(self, body: Sequence[Form], scope: Scope) -> Any:
        """The value of a body. Raises Outdated where nobody waits for it."""
        if self._outdated():
            raise Outdated
        before = self._keeping
        self._keeping = self._wanted and not body[0].span.source.is_library
        try:
            return evaluate_body(self, body, scope)
        finally:
            self._keeping = before


@dataclass(slots=True, eq=False, repr=False)
class _Seen:
    """In the log of a trace: what a form evaluated to."""

    form: Form
    seen: Any
    origin: Origin
    value: None = None
    needs: tuple[Value, ...] = ()

    def possible(self, el: Elaborator, way: Way) -> bool:
        """Looking on is always possible."""
        return True

    def again(self, el: Elaborator, way: Way, change: Change) -> None:
        """Remember what it evaluates to there."""
        assert isinstance(el, Observer)
        el.keep(self.form, changed(el, self.seen, change))


class OpenedData:
    """Data sets and weights between two checks: opened again only when their files have changed."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], tuple[Stamp, Any]] = {}

    def dataset(self, spec: DataSpec, base: Path, make: Callable[[], Dataset]) -> Dataset:
        """The data set of `spec`; `make` opens it."""
        return self._fresh((spec, base, Path.cwd()), spec.path, base, make)

    def weights(self, written: str, base: Path, make: Callable[[], WeightFiles]) -> WeightFiles:
        """Published weights; `make` opens them."""
        return self._fresh((written, base, Path.cwd()), written, base, make)

    def _fresh(self, key: tuple[Any, ...], written: str, base: Path, make: Callable[[], Any]) -> Any:
        known = self._known.get(key)
        if known is not None and known[0] == _stamp(written, base):
            return known[1]
        made = make()
        self._known[key] = _stamp(written, base), made
        return made


def _stamp(written: str, base: Path) -> Stamp:
    """Names, times and sizes of the files of a path; none for a text that Python carries."""
    if written.startswith("python:"):
        return ()
    try:
        return tuple((str(p), (s := os.stat(p)).st_mtime_ns, s.st_size) for p in find_files(written, base))
    except (DiagnosticError, OSError):
        return (("", 0, 0),)


class EditedFiles(Files):
    """The disk as the editor has it.

    texts: open files by resolved path. missing: what was wrong with data. fields: what metrics declare of arrays, by
    name a dtype and the shape of a row, for arrays that are missing. guessed: whether these had to do.
    """

    def __init__(self, texts: Mapping[Path, str], opened: OpenedData) -> None:
        self.texts = texts
        self.opened = opened
        self.missing: list[Diagnostic] = []
        self.fields: dict[str, tuple[str, tuple[int, ...]]] = {}
        self.guessed = False
        self.paths: dict[int, tuple[Source, Path]] = {}
        self._read: dict[Path, Source] = {}

    def source(self, path: Path | str) -> Source:
        """The text of a file, the editor's if it is open. Raises E-READ-001, E-READ-002."""
        resolved = Path(path).resolve()
        source = self._read.get(resolved)
        if source is None:
            text = self.texts.get(resolved)
            source = load_source(path) if text is None else Source(str(path), text)
            self._read[resolved] = source
            self.paths[id(source)] = source, resolved
        return source

    def path_of(self, source: Source) -> Path | None:
        """The resolved path of a source that was read here."""
        known = self.paths.get(id(source))
        return known[1] if known is not None else None

    def dataset(self, spec: DataSpec, base: Path) -> Dataset:
        """The data that `spec` describes. Raises E-DATA-…"""
        return self.opened.dataset(spec, base, lambda: super(EditedFiles, self).dataset(spec, base))

    def weights(self, written: str, base: Path) -> WeightFiles:
        """Published weights. Raises E-DATA-001, E-DATA-002."""
        return self.opened.weights(written, base, lambda: super(EditedFiles, self).weights(written, base))

    def stand_in(self, spec: DataSpec, faults: Sequence[Diagnostic]) -> Dataset | None:
        """Data of no meaning for what is missing, so that everything else is checked all the same."""
        found = blank(spec, self.fields)
        if found is not None:
            self.missing += faults
            self.guessed = self.guessed or isinstance(spec, ArraysSpec)
        return found


@dataclass(frozen=True, eq=False)
class Report:
    """What a check found. diagnostics: each once, in order of place. files: the sources that it read.

    seen: by a form's id, the form and then its values, of the plain experiment.
    """

    diagnostics: tuple[Diagnostic, ...]
    files: EditedFiles
    seen: dict[int, list[Any]] = field(default_factory=dict)


def never() -> bool:
    """Nothing outdates a check."""
    return False


def check_plain(path: Path, files: EditedFiles, outdated: Callable[[], bool] = never) -> tuple[Report, bool]:
    """Check the file at `path` as it stands, every run of it; and whether its variants can be checked.

    Raises Outdated.
    """
    found: dict[Diagnostic, None] = {}
    seen: dict[int, list[Any]] = {}
    source = _source(path, files, found)
    good = source is not None
    files.fields = _declared_fields(source) if source is not None else {}
    for run in _runs(source) if source is not None else ():
        good = _check(path, files, None, run, outdated, found, seen) and good
    return Report(_sorted([*found, *files.missing]), files, seen), good


def check_variants(path: Path, report: Report, outdated: Callable[[], bool] = never) -> Report:
    """The report with the errors of variants alone: what one leaves unused may be its purpose. Raises Outdated."""
    found: dict[Diagnostic, None] = {}
    source = report.files.source(path)
    for variant in _named(source, "defvariant"):
        inner: dict[Diagnostic, None] = {}
        for run in _runs(source):
            _check(path, report.files, variant, run, outdated, inner, None)
        note = f"the plain experiment is good; this is in the variant `{variant}`"
        known = {(d.code, d.message, d.span) for d in report.diagnostics}
        for diagnostic in (*inner, *report.files.missing):
            told = (diagnostic.code, diagnostic.message, diagnostic.span)
            if diagnostic.severity == "error" and told not in known:
                found[replace(diagnostic, notes=(*diagnostic.notes, note))] = None
        report.files.missing.clear()
    return replace(report, diagnostics=_sorted([*report.diagnostics, *found]))


def _source(path: Path, files: EditedFiles, found: dict[Diagnostic, None]) -> Source | None:
    try:
        return files.source(path)
    except DiagnosticError as error:
        found.update(dict.fromkeys(error.diagnostics))
        return None


def _check(
    path: Path, files: EditedFiles, variant: str | None, run: str | None, outdated: Callable[[], bool],
    found: dict[Diagnostic, None], seen: dict[int, list[Any]] | None,
) -> bool:  # fmt: skip
    """One elaboration; whether it is without errors. seen: takes the values, if they are wanted."""
    observers: list[Observer] = []

    def elaborator(specials: Mapping[str, Any]) -> Observer:
        observers.append(Observer(specials, outdated, seen is not None))
        return observers[0]

    try:
        experiment = load_experiment(path, variant=variant, run=run, disk=files, elaborator=elaborator)
        gradients = missing_gradients(experiment)
        found.update(dict.fromkeys((*experiment.warnings, *gradients)))
        return not gradients
    except DiagnosticError as error:
        # A field that no metric declares in full is missing with the data: that has been said.
        told = [d for d in error.diagnostics if not (files.guessed and d.code == "E-DATA-005")]
        found.update(dict.fromkeys(told))
        return False
    finally:
        if seen is not None:
            for observer in observers:
                seen |= {key: entry for key, entry in observer.seen.items() if key not in seen}


def _declared_fields(source: Source) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The fields whose type some metric declares in numbers, or in constants that are numbers."""
    forms = read(source).forms
    constants: dict[str, int] = {}
    found: dict[str, tuple[str, tuple[int, ...]]] = {}
    for form in forms:
        match form:
            case List(items=(Symbol(name="def"), Symbol(name=name), Integer(value=value), *_)):
                constants[name] = value
    for form in forms:
        match form:
            case List(items=(Symbol(name="defmetric"), _, List(items=parameters), *_)):
                for parameter in parameters:
                    match parameter:
                        case List(items=(Symbol(name=name), List(items=(Symbol(name=dtype), _, *sizes)))):
                            known = [_number(size, constants) for size in sizes]
                            chosen = {"float": "f32", "int": "i32"}.get(dtype, dtype)
                            if chosen in ("f32", "i32", "i64", "bool") and all(n is not None for n in known):
                                found.setdefault(name, (chosen, tuple(n for n in known if n is not None)))
    return found


def _number(form: Form, constants: Mapping[str, int]) -> int | None:
    match form:
        case Integer(value=value) if 0 <= value < MAX_SIZE:
            return value
        case Symbol(name=name) if 0 <= constants.get(name, -1) < MAX_SIZE:
            return constants[name]
    return None


def _named(source: Source, head: str) -> list[str]:
    """The names that top-level forms of one kind define."""
    found = []
    for form in read(source).forms:
        match form:
            case List(items=(Symbol(name=name), Symbol(name=defined), *_)) if name == head:
                found.append(defined)
    return list(dict.fromkeys(found))


def _runs(source: Source) -> Sequence[str | None]:
    """The runs to check by name; where there is at most one in this file, the one that there is."""
    runs = _named(source, "defrun")
    return runs if len(runs) > 1 else [None]


def _sorted(diagnostics: Sequence[Diagnostic]) -> tuple[Diagnostic, ...]:
    unique = {(d.code, d.message, d.span): d for d in reversed(diagnostics)}
    return tuple(sorted(unique.values(), key=lambda d: _place(d.span)))


def _place(span: Span | None) -> tuple[str, int]:
    return (span.source.name, span.start) if span is not None else ("", 0)
