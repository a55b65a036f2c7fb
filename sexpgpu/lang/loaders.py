"""`defloader`: from a view, streams, a mixture or a zip of other loaders to something that gives batch number m."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sexpgpu.data import BatchSource, Loader, Mixture, Packed, Rows, StreamLoader, Streams, Windows, Zipped
from sexpgpu.ir.evaluate import evaluate
from sexpgpu.ir.graph import Graph
from sexpgpu.ir.text import graph_text
from sexpgpu.lang.elaborator import Elaborator
from sexpgpu.lang.parts import name_of, pairs
from sexpgpu.lang.reading import FormReader
from sexpgpu.lang.toplevel import Declared, Module
from sexpgpu.lang.values import HostScalar, Mix, Reference, kind_of
from sexpgpu.syntax import Form, List, Symbol


class LoaderMaker(FormReader):
    """Makes the loaders of one file; `made` holds them in the order of the file.

    microbatches: of a step. times: for a loader by name, how often the update that reads it runs in a step.
    """

    def __init__(self, el: Elaborator, module: Module, seed: int, microbatches: int, times: Mapping[str, int]) -> None:
        super().__init__(el, module)
        self.seed = seed
        self.microbatches = microbatches
        self.times = times
        self.made: dict[str, BatchSource] = {}
        self._busy: list[str] = []

    def make(self, name: str) -> BatchSource:
        """The loader called `name`, and those that it zips. Raises DiagnosticError."""
        if name not in self.made:
            declared = self.module.loaders[name]
            if name in self._busy:
                self._fail("E-NAME-001", f"the loader `{name}` zips itself", declared.span)
            self._busy.append(name)
            try:
                self.made[name] = self._make(declared)
            finally:
                self._busy.pop()
        return self.made[name]

    def _make(self, declared: Declared) -> BatchSource:
        if len(declared.plain) != 1:
            self._fail("E-FORM-001", "this form is (defloader NAME VIEW :batch n …)", declared.span)
        (form,) = declared.plain
        if zipped(form) is not None:
            return self._zip(declared, form)
        view = self._eval(form)
        if not isinstance(view, Rows | Windows | Packed | Streams | Mix):
            self._fail("E-TYPE-006", f"{kind_of(view)} is no view of data", form.span,
                       help="(rows S), (windows S :length n), (packed S :length n), (streams S :length n), "
                       "(mix [VIEW W …]) or (zip [a L …])")  # fmt: skip
        if "batch" not in declared.keyed:
            self._fail("E-FORM-004", f"the loader `{declared.name}` needs `:batch`", declared.span)
        batch = self._integer(declared, "batch", 1, 1)
        shuffle = self._eval(declared.keyed["shuffle"]) if "shuffle" in declared.keyed else False
        if not isinstance(shuffle, bool):
            self._fail(
                "E-TYPE-006", f"`:shuffle` is true or false, not {kind_of(shuffle)}", declared.keyed["shuffle"].span
            )
        name, times = declared.name, self.times.get(declared.name, 1)
        if isinstance(view, Streams):
            self._refuse(declared, ("shuffle", "last"), "streams go on from batch to batch")
            return self._placed(declared, lambda: StreamLoader(name, view, batch, self.microbatches))
        if isinstance(view, Mix):
            self._refuse(declared, ("last",), "a mixture has no last batch")
            weights = _Weights(self.el, view)
            per_step = self.microbatches * times
            return self._placed(
                declared,
                lambda: Mixture(name, view.views, weights, weights.text, batch, shuffle, self.seed, per_step),
            )
        rule: Any = self._word(declared, "last", ("drop", "pad", "error"))
        return self._placed(declared, lambda: Loader(name, view, batch, shuffle, rule, self.seed))

    def _placed(self, declared: Declared, make: Callable[[], BatchSource]) -> BatchSource:
        self.el.stack = [declared.span]
        return self.el.located(make)

    def _refuse(self, declared: Declared, keys: tuple[str, ...], why: str) -> None:
        for key in keys:
            if key in declared.keyed:
                self._fail("E-FORM-003", f"`:{key}` has no meaning here: {why}", declared.keyed[key].span)

    def _zip(self, declared: Declared, form: Form) -> BatchSource:
        self._refuse(declared, tuple(declared.keyed), "each zipped loader has its own")
        parts: dict[str, BatchSource] = {}
        for pattern, loader in zipped(form, self.el) or ():
            prefix = name_of(self.el, pattern, "what a zip calls a loader")
            if prefix in parts:
                self._fail("E-NAME-002", f"the zip names `{prefix}` twice", pattern.span)
            value = self._eval(loader)
            if not isinstance(value, Reference) or value.kind != "loader":
                self._fail("E-TYPE-006", f"{kind_of(value)} is no loader", loader.span,
                           help="(zip [a L1 b L2]) reads loaders that have names of their own")  # fmt: skip
            parts[prefix] = self.make(value.name)
        if not parts:
            self._fail("E-FORM-001", "this form is (zip [a L1 b L2])", form.span)
        return Zipped(declared.name, parts)


def zipped(form: Form, el: Elaborator | None = None) -> list[tuple[Form, Form]] | None:
    """The pairs of `(zip [a L1 b L2])`, read only where `el` is given; None for any other form."""
    match form:
        case List(items=(Symbol(name="zip"), *rest)):
            if el is None:
                return []
            if len(rest) != 1:
                el.fail("E-FORM-001", "this form is (zip [a L1 b L2])", form.span)
            return pairs(el, rest[0], "what a zip reads")
    return None


def loader_times(el: Elaborator, module: Module, updates: list[tuple[str, int]]) -> dict[str, int]:
    """How often the update that reads a loader runs in a step, by loader; of several the first counts.

    updates: the loader and the `:times` of each update in order.
    """
    found: dict[str, int] = {}
    for name, times in updates:
        found.setdefault(name, times)
        declared = module.loaders.get(name)
        for form in declared.plain if declared is not None else ():
            for _, loader in zipped(form, el) or ():
                if isinstance(loader, Symbol):
                    found.setdefault(loader.name, times)
    return found


class _Weights:
    """The weights of a mixture at a step: host scalars are evaluated in double precision, once for each step."""

    def __init__(self, el: Elaborator, mix: Mix) -> None:
        self._fixed = [None if isinstance(w, HostScalar) else float(w) for w in mix.weights]
        outputs = [(str(i), w.value) for i, w in enumerate(mix.weights) if isinstance(w, HostScalar)]
        b = el.schedule.builder
        self._graph: Graph | None = b.graph("weights", outputs, [el.schedule.step]) if outputs else None
        self.text = repr(self._fixed) + (graph_text(self._graph) if self._graph is not None else "")

    def __call__(self, step: int) -> list[float]:
        graph = self._graph
        values = {} if graph is None else evaluate(graph, {"step": np.asarray(step, np.float64)})
        return [float(values[str(i)]) if w is None else w for i, w in enumerate(self._fixed)]
