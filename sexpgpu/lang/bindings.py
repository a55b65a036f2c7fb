"""Which names a top-level form binds, and which of them nothing uses: read off the text, without evaluating it.

Flow: `toplevel` enters the forms; `load` warns of unused names and shows them beside errors of their form, and the
elaborator looks here for the name that an unknown one was meant to be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from sexpgpu.diagnostics import Diagnostic, Label
from sexpgpu.diagnostics.nearest import MAX_LETTERS, edit_distance
from sexpgpu.lang.scope import Scope
from sexpgpu.source import Span, contains
from sexpgpu.syntax import Form, Keyword, List, Symbol, Vector

PATHS = frozenset({"name", "scope"})
"""Keywords whose value is a part of a path: a bare word there is no use of a name."""
NAMED = frozenset({"param", "state", "measure"})
"""Forms whose first part is a name of their own."""
DEFINITIONS = frozenset({"defn", "defmodel", "defmetric", "defoptimizer", "defgenerator", "defdiagnostic"})


@dataclass(slots=True)
class Binding:
    """A name, where it is bound, and how often it is used.

    kind: `let`, `part` (of a pattern of `let`), `parameter` (of a `fn`), `loop`, or the name of the definition whose
    parameter it is. value: what a `let` binds it to.
    """

    name: str
    span: Span
    kind: str
    num_uses: int = 0
    value: Form | None = None


@dataclass(slots=True)
class Bindings:
    """The names that one top-level form binds. parameters: the span of its parameter list, if it has one; body: the
    spans of the forms that see the parameters and follow no keyword."""

    form: List
    found: list[Binding] = field(default_factory=list)
    parameters: Span | None = None
    body: list[Span] = field(default_factory=list)

    @property
    def unused(self) -> list[Binding]:
        """Bindings that nothing uses; a name that begins with `_` says so itself."""
        return [b for b in self.found if not b.num_uses and not b.name.startswith("_")]


def bindings_of(form: List) -> Bindings:
    """The names that a top-level form binds, in the order of the text; what is malformed binds nothing."""
    result = Bindings(form)
    _Walk(result).top(form)
    return result


def enclosing(forms: Sequence[List], span: Span) -> Bindings | None:
    """The bindings of the top-level form that holds `span`."""
    for form in forms:
        if contains(form.span, span):
            return bindings_of(form)
    return None


def meant(name: str, bindings: Bindings) -> Binding | None:
    """The unused name that is one slip of the hand away from `name`, however short: there both are likely one."""
    limit = max(1, min(2, len(name) // 3))
    if len(name) > MAX_LETTERS:
        return None
    alike = [b for b in bindings.unused if abs(len(b.name) - len(name)) <= limit]
    best = min(alike, key=lambda b: edit_distance(name, b.name), default=None)
    return best if best is not None and edit_distance(name, best.name) <= limit else None


def beside_unused(diagnostic: Diagnostic, forms: Sequence[List]) -> Diagnostic:
    """The diagnostic with a label for every `let` of the same form whose name nothing uses: likely its cause."""
    if diagnostic.span is None or diagnostic.severity == "warning":
        return diagnostic
    bindings = enclosing(forms, diagnostic.span)
    if bindings is None:
        return diagnostic
    known = {label.span for label in diagnostic.labels}
    labels = [
        Label(b.span, f"`{b.name}` is bound here, and nothing uses it")
        for b in bindings.unused
        if b.kind in ("let", "part") and b.span not in known and not contains(diagnostic.span, b.span)
    ]
    return replace(diagnostic, labels=(*diagnostic.labels, *labels)) if labels else diagnostic


class _Walk:
    """One walk over one form; `Scope` holds the binding that each name stands for."""

    def __init__(self, result: Bindings) -> None:
        self.result = result

    def top(self, form: List) -> None:
        head, scope = _head(form), Scope()
        if head not in DEFINITIONS or len(form.items) < 3:
            self.forms(form.items[1:], scope)
            return
        if isinstance(form.items[2], List):
            self.result.parameters = form.items[2].span
            self.parameters(form.items[2].items, scope, head)
        plain: list[Form] = []
        keyed: list[tuple[str, Form]] = []
        _options(form.items[3:], plain, keyed)
        for key, value in keyed:
            if key in ("state", "carry", "trips") and isinstance(value, Vector):
                scope = self.pairs(value, scope, "loop")
            else:
                self.form(value, scope)
        self.result.body = [item.span for item in plain]
        self.forms(plain, scope)

    def forms(self, items: Sequence[Form], scope: Scope) -> None:
        """The parts of a call: values, keywords, and what stands for a path."""
        for before, item in zip((None, *items), items, strict=False):
            if isinstance(before, Keyword) and before.name in PATHS:
                if isinstance(item, List):
                    self.forms(item.items[1:], scope)
            else:
                self.form(item, scope)

    def form(self, form: Form, scope: Scope) -> None:
        match form:
            case Symbol():
                holder = scope.holder(form.name)
                if holder is not None:
                    holder.names[form.name].num_uses += 1
            case Vector():
                self.forms(form.items, scope)
            case List() if form.items:
                self.list(form, scope)

    def list(self, form: List, scope: Scope) -> None:
        head, rest = _head(form), form.items[1:]
        match head, rest:
            case "let", (Vector() as bound, *body):
                self.forms(body, self.pairs(bound, scope, "let"))
            case "fn", (List() as parameters, *body):
                inner = Scope(scope)
                self.parameters(parameters.items, inner)
                self.forms(body, inner)
            case "for", (Vector() as walked, *body):
                self.forms(body, self.pairs(walked, scope, "loop"))
            case ("repeat", (Vector() as walked, Vector() as carried, *body)):
                self.loop([walked, carried], body, scope)
            case ("scan" | "table-scan", (Vector() as carried, Vector() as walked, *body)):
                self.loop([carried, walked], body, scope)
            case _:
                self.forms(rest[1:] if head in NAMED else form.items, scope)

    def loop(self, lists: Sequence[Vector], body: Sequence[Form], scope: Scope) -> None:
        """A loop's lists, whose values are computed around it, and its body."""
        inner = Scope(scope)
        for vector in lists:
            for pattern, value in _pairs(vector):
                self.form(value, scope)
                self.bind(pattern, inner, "loop")
        self.forms(body, inner)

    def pairs(self, vector: Vector, scope: Scope, kind: str) -> Scope:
        """The scope after `[pattern V …]`, each value seeing the names before it."""
        inner = Scope(scope)
        for pattern, value in _pairs(vector):
            self.form(value, inner)
            self.bind(pattern, inner, kind, value=value)
        return inner

    def bind(self, pattern: Form, scope: Scope, kind: str, *, value: Form | None = None) -> None:
        match pattern:
            case Symbol(name="_"):
                return
            case Symbol():
                scope.names[pattern.name] = binding = Binding(pattern.name, pattern.span, kind, value=value)
                self.result.found.append(binding)
            case Vector():
                for item in pattern.items:
                    self.bind(item, scope, "part" if kind == "let" else kind)

    def parameters(self, items: Sequence[Form], scope: Scope, kind: str = "parameter") -> None:
        for before, item in zip((None, *items), items, strict=False):
            match before, item:
                case Keyword(), _:
                    self.form(item, scope)
                    self.bind(Symbol(before.name, before.span), scope, kind)
                case _, List(items=(Symbol() as name, type)):
                    self.form(type, scope)
                    self.bind(name, scope, kind)
                case _, (Symbol() | Vector()):
                    self.bind(item, scope, kind)


def _head(form: List) -> str:
    return form.items[0].name if form.items and isinstance(form.items[0], Symbol) else ""


def _pairs(vector: Vector) -> Sequence[tuple[Form, Form]]:
    return list(zip(vector.items[::2], vector.items[1::2], strict=False))


def _options(items: Sequence[Form], plain: list[Form], keyed: list[tuple[str, Form]]) -> None:
    """Sort the parts of a definition into those after a keyword and the others."""
    for before, item in zip((None, *items), items, strict=False):
        if isinstance(before, Keyword):
            keyed.append((before.name, item))
        elif not isinstance(item, Keyword):
            plain.append(item)
