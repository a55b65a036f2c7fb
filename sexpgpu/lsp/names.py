"""Which name means what: a file's bindings and the places that refer to them, found without evaluating anything.

The rules are those of the evaluator (`sexpgpu.lang.special`, `sexpgpu.lang.loops`, `sexpgpu.lang.toplevel`), read
statically, so that code with mistakes elsewhere, and code that no run reaches, is understood too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from sexpgpu.ir.types import DTYPES
from sexpgpu.lang.builtins import BUILTINS
from sexpgpu.lang.load import library_forms
from sexpgpu.source import Source, Span
from sexpgpu.syntax import Form, Keyword, List, ReadResult, String, Symbol, Vector

KINDS = {
    "def": "constant", "defn": "function", "defmodel": "model", "defmetric": "metric", "defoptimizer": "optimizer",
    "defdata": "data", "defloader": "loader", "defeval": "evaluation", "defupdate": "update",
    "defgenerator": "generator", "defaverage": "average", "defdiagnostic": "diagnostic", "defrun": "run",
}  # fmt: skip
"""What each top-level form defines."""

WORDS = frozenset((
    "reduce", "on-nonfinite", "last", "by", "order", "best",
))  # fmt: skip
"""Keywords of special and top-level forms whose value is a bare word, not a name."""


@dataclass(eq=False)
class Binding:
    """A name and where it is defined; `span` is None for what is built in.

    form: the form that defines it. value: the form of its value. type: its declared type. parameters: the keywords of
    a function, by name.
    """

    name: str
    kind: str
    span: Span | None = None
    form: List | None = None
    value: Form | None = None
    type: Form | None = None
    parameters: dict[str, Binding] = field(default_factory=dict)

    @property
    def is_own(self) -> bool:
        """Whether it stands in a file of the user."""
        return self.span is not None and not self.span.source.is_library


class Environment:
    """Names in sight. carries: what `next` or `propose` may name here."""

    __slots__ = ("carries", "names", "outer")

    def __init__(self, outer: Environment | None = None, carries: Mapping[str, Binding] | None = None) -> None:
        self.outer = outer
        self.names: dict[str, Binding] = {}
        inherited = None if outer is None else outer.carries
        self.carries: Mapping[str, Binding] | None = inherited if carries is None else carries

    def find(self, name: str) -> Binding | None:
        """What `name` means here."""
        at: Environment | None = self
        while at is not None:
            if name in at.names:
                return at.names[name]
            at = at.outer
        return None

    def visible(self) -> dict[str, Binding]:
        """Every name in sight, the innermost meaning of each."""
        found: dict[str, Binding] = {}
        at: Environment | None = self
        while at is not None:
            found = {**at.names, **found}
            at = at.outer
        return found


@dataclass(frozen=True, slots=True)
class Occurrence:
    """A place where a name stands: its definition, or a use. The span of a keyword is without its colon."""

    span: Span
    binding: Binding
    defines: bool


@dataclass
class Names:
    """What is known of one file. includes: the same of the files that it includes. regions: where which names are
    in sight, by offset."""

    source: Source
    result: ReadResult
    top: Environment
    includes: list[Names] = field(default_factory=list)
    occurrences: list[Occurrence] = field(default_factory=list)
    regions: list[tuple[int, int, Environment]] = field(default_factory=list)
    outline: list[Binding] = field(default_factory=list)

    def at(self, offset: int) -> Occurrence | None:
        """The name that stands at an offset, or ends there."""
        touching = [o for o in self.occurrences if o.span.start <= offset <= o.span.end]
        return max(touching, key=lambda o: (offset < o.span.end, o.span.start), default=None)

    def environment(self, offset: int) -> Environment:
        """The names in sight at an offset."""
        found, best = self.top, -1
        for start, end, environment in self.regions:
            if best <= start <= offset <= end:
                found, best = environment, start
        return found

    def files(self) -> Iterator[Names]:
        """This file and all that it includes, each once."""
        seen: set[int] = set()
        waiting = [self]
        while waiting:
            names = waiting.pop(0)
            if id(names) not in seen:
                seen.add(id(names))
                yield names
                waiting += names.includes


Opener = Callable[[str], "Names | None"]


def resolve(source: Source, result: ReadResult, outer: Environment, include: Opener = lambda _: None) -> Names:
    """The names of a file. include: the names of a file by the path that `include` gives; None if there is none."""
    names = Names(source, result, Environment(outer))
    resolver = _Resolver(names)
    forms = [form for form in result.forms if isinstance(form, List)]
    for form in forms:
        resolver.declare(form, include)
    for form in forms:
        resolver.top_level(form)
    return names


@cache
def library() -> tuple[Environment, tuple[Names, ...]]:
    """What every file sees: the library's names and, outside them, those that are built in; and the library's files."""
    base = Environment()
    for name in BUILTINS:
        base.names[name] = Binding(name, "operation")
    for name in DTYPES:
        if name != "f64":
            base.names[name] = Binding(name, "dtype")
    for name in ("none", "pi", "inf", "nan", "step", "training"):
        base.names[name] = Binding(name, "ambient")
    shared = Environment(base)
    files = []
    for source, result in library_forms().items():
        names = Names(source, result, shared)
        files.append((names, _Resolver(names)))
    for names, resolver in files:
        for form in names.result.forms:
            if isinstance(form, List):
                resolver.declare(form, lambda _: None)
    for names, resolver in files:
        for form in names.result.forms:
            if isinstance(form, List):
                resolver.top_level(form)
    return shared, tuple(names for names, _ in files)


class _Resolver:
    """Walks the forms of one file."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.top = names.top
        self.own: dict[int, Binding] = {}
        self.special: dict[str, Callable[[List, Environment], None]] = {
            "let": self._let, "fn": self._fn, "with": self._with, "repeat": self._repeat, "for": self._for,
            "next": self._carried, "propose": self._carried, "param": self._stored, "state": self._stored,
            "measure": self._stored, "scan": self._scan, "table-scan": self._scan,
        }  # fmt: skip

    # Entering names.

    def declare(self, form: List, include: Opener) -> None:
        """Enter what a top-level form defines."""
        match form.items:
            case (Symbol(name="include"), String(value=path), *_):
                found = include(path)
                if found is not None:
                    self.names.includes.append(found)
                    for name, binding in found.top.names.items():
                        self.top.names.setdefault(name, binding)
            case (Symbol(name=head), Symbol() as name, *rest) if head in KINDS:
                binding = self.define(name, self.top, KINDS[head], form, rest[0] if head == "def" and rest else None)
                self.own[id(form)] = binding
                self.names.outline.append(binding)
            case (Symbol(name="defvariant"), Symbol() as name, *_):
                self.names.outline.append(Binding(name.name, "variant", name.span, form))

    def define(
        self, at: Symbol | Keyword, where: Environment, kind: str, form: List | None = None, value: Form | None = None
    ) -> Binding:
        """A new name in an environment."""
        span = Span(at.span.source, at.span.start + 1, at.span.end) if isinstance(at, Keyword) else at.span
        binding = Binding(at.name, kind, span, form, value)
        if at.name != "_":
            where.names[at.name] = binding
            self.names.occurrences.append(Occurrence(span, binding, True))
        return binding

    def pattern(self, pattern: Form, where: Environment, kind: str, value: Form | None = None) -> dict[str, Binding]:
        """The names that a pattern binds."""
        match pattern:
            case Symbol(name="_"):
                return {}
            case Symbol():
                return {pattern.name: self.define(pattern, where, kind, value=value)}
            case Vector():
                return {n: b for item in pattern.items for n, b in self.pattern(item, where, kind).items()}
        return {}

    def region(self, start: int, end: int, environment: Environment) -> None:
        """Remember what is in sight between two offsets."""
        self.names.regions.append((start, end, environment))

    # Uses.

    def use(self, symbol: Symbol, where: Environment) -> Binding | None:
        """A name that stands where a value is expected."""
        found = where.find(symbol.name)
        if found is not None:
            self.names.occurrences.append(Occurrence(symbol.span, found, False))
        return found

    def keyword_use(self, keyword: Keyword, binding: Binding) -> None:
        """A keyword that names a parameter or carry."""
        span = Span(keyword.span.source, keyword.span.start + 1, keyword.span.end)
        self.names.occurrences.append(Occurrence(span, binding, False))

    def walk(self, form: Form, where: Environment) -> None:
        """A form that is evaluated."""
        match form:
            case Symbol():
                self.use(form, where)
            case Vector():
                for item in form.items:
                    self.walk(item, where)
            case List(items=(Symbol() as head, *rest)):
                special = where.find(head.name) is None
                if special and head.name in self.special:
                    self.special[head.name](form, where)
                elif special:
                    self.parts(rest, where)
                else:
                    self.call(self.use(head, where), rest, where)
            case List(items=(head, *rest)):
                self.walk(head, where)
                self.call(None, rest, where)

    def walk_all(self, forms: Sequence[Form], where: Environment) -> None:
        """Several forms in one environment."""
        for form in forms:
            self.walk(form, where)

    def call(self, function: Binding | None, rest: Sequence[Form], where: Environment) -> None:
        """Operands and keywords of a call."""
        words: frozenset[str] = frozenset()
        if function is not None and function.kind == "operation":
            words = BUILTINS[function.name].words
        key: Keyword | None = None
        for item in rest:
            if isinstance(item, Keyword):
                key = item
                if function is not None and key.name in function.parameters:
                    self.keyword_use(key, function.parameters[key.name])
                continue
            own = key is not None and function is not None and key.name in function.parameters
            if key is not None and key.name == "name" and not own:
                self.path(item, where)
            elif key is None or key.name not in words:
                self.walk(item, where)
            key = None

    def path(self, form: Form, where: Environment) -> None:
        """`up`, `"up"` or `(block i)`: only what follows a head is evaluated."""
        if isinstance(form, List):
            self.walk_all(form.items[1:], where)

    def options(self, items: Sequence[Form]) -> tuple[list[Form], dict[str, Form]]:
        """Plain and keyword parts, as far as they can be told apart."""
        plain: list[Form] = []
        keyed: dict[str, Form] = {}
        key: Keyword | None = None
        for item in items:
            if isinstance(item, Keyword):
                key = item
            elif key is not None:
                keyed.setdefault(key.name, item)
                key = None
            else:
                plain.append(item)
        return plain, keyed

    def parts(self, items: Sequence[Form], where: Environment) -> None:
        """A form whose parts are all evaluated, bare words aside."""
        plain, keyed = self.options(items)
        self.walk_all(plain, where)
        self.keyed(keyed, where)

    def keyed(self, keyed: Mapping[str, Form], where: Environment, *, bare: Sequence[str] = ()) -> None:
        """Keyword parts; those of `bare` and of `WORDS` hold words when they are symbols."""
        for key, form in keyed.items():
            if not ((key in WORDS or key in bare) and isinstance(form, Symbol)):
                self.walk(form, where)

    # Special forms.

    def body(self, forms: Sequence[Form], where: Environment, end: int) -> None:
        """A body, in which `where` is in sight up to `end`."""
        if forms:
            self.region(forms[0].span.start, end, where)
        self.walk_all(forms, where)

    def pairs(self, form: Form | None) -> list[tuple[Form, Form | None]]:
        """The pairs of a binding list; the last may lack its value."""
        items = form.items if isinstance(form, Vector) else ()
        return [(items[i], items[i + 1] if i + 1 < len(items) else None) for i in range(0, len(items), 2)]

    def _let(self, form: List, where: Environment) -> None:
        local = where
        end = form.span.end
        for pattern, value in self.pairs(form.items[1] if len(form.items) > 1 else None):
            if value is not None:
                self.walk(value, local)
            local = Environment(local)
            self.pattern(pattern, local, "local", value)
            self.region((value or pattern).span.end, end, local)
        self.walk_all(form.items[2:], local)

    def _fn(self, form: List, where: Environment) -> None:
        if len(form.items) > 1:
            local = Environment(where)
            self.parameters(form.items[1], local)
            self.body(form.items[2:], local, form.span.end)

    def parameters(
        self, form: Form, local: Environment, kind: str = "parameter", owner: Binding | None = None
    ) -> None:
        """A parameter list; its owner learns its keywords by name."""
        keywords: dict[str, Binding] = {}
        key: Keyword | None = None
        self.region(form.span.start, form.span.end, local)
        for item in form.items if isinstance(form, List) else ():
            if key is not None:
                self.walk(item, local)
                keywords[key.name] = self.define(key, local, "keyword", value=item)
                key = None
            elif isinstance(item, Keyword):
                key = item
            elif isinstance(item, List):
                match item.items:
                    case (Symbol() as name, type, *_):
                        self.type(type, local)
                        self.define(name, local, kind).type = type
            else:
                self.pattern(item, local, kind)
        if owner is not None:
            owner.parameters = keywords

    def type(self, form: Form, local: Environment) -> None:
        """A declared type: `?t` is defined where it stands first."""
        for size in form.items[1:] if isinstance(form, List) else ():
            if not isinstance(size, Symbol):
                self.walk(size, local)
            elif size.name.startswith("?") and size.name not in local.names:
                self.define(size, local, "dimension")
            elif size.name not in ("_", "..."):
                self.use(size, local)

    def _with(self, form: List, where: Environment) -> None:
        plain, keyed = self.options(form.items[1:])
        scope = keyed.pop("scope", None)
        if scope is not None:
            self.path(scope, where)
        self.keyed(keyed, where)
        self.walk_all(plain, where)

    def carried(self, form: Form | None, where: Environment, local: Environment) -> dict[str, Binding]:
        """A carry list: values in `where`, names in `local`."""
        found: dict[str, Binding] = {}
        for pattern, value in self.pairs(form):
            if value is not None:
                self.walk(value, where)
            found.update(self.pattern(pattern, local, "carry", value))
        return found

    def walked(self, form: Form | None, where: Environment, local: Environment) -> dict[str, Binding]:
        """What a loop walks: values in `where`, names in `local`."""
        found: dict[str, Binding] = {}
        for pattern, value in self.pairs(form):
            if value is not None:
                self.walk(value, where)
            found.update(self.pattern(pattern, local, "local", value))
        return found

    def _repeat(self, form: List, where: Environment) -> None:
        if len(form.items) < 3:
            return self.walk_all(form.items[1:], where)
        local = Environment(where, {})
        self.walked(form.items[1], where, local)
        local.carries = self.carried(form.items[2], where, local)
        self.body(form.items[3:], local, form.span.end)

    def _for(self, form: List, where: Environment) -> None:
        local = Environment(where)
        self.walked(form.items[1] if len(form.items) > 1 else None, where, local)
        self.body(form.items[2:], local, form.span.end)

    def _scan(self, form: List, where: Environment) -> None:
        plain, keyed = self.options(form.items[1:])
        index = keyed.pop("index", None)
        self.keyed(keyed, where)
        local = Environment(where, {})
        carries = self.carried(plain[0] if plain else None, where, local)
        walked = self.walked(plain[1] if len(plain) > 1 else None, where, local)
        local.names.update(carries)
        local.carries = carries
        if isinstance(index, Symbol) and index.name in walked:
            self.names.occurrences.append(Occurrence(index.span, walked[index.name], False))
        self.body(plain[2:], local, form.span.end)

    def _carried(self, form: List, where: Environment) -> None:
        for item in form.items[1:]:
            if isinstance(item, Keyword):
                if where.carries and item.name in where.carries:
                    self.keyword_use(item, where.carries[item.name])
            else:
                self.walk(item, where)

    def _stored(self, form: List, where: Environment) -> None:
        plain, keyed = self.options(form.items[1:])
        self.walk_all(plain[1:], where)
        self.keyed(keyed, where)

    # Top-level forms.

    def top_level(self, form: List) -> None:
        """What stands in a top-level form."""
        if not form.items or not isinstance(form.items[0], Symbol):
            return
        head, rest = form.items[0].name, form.items[2:]
        binding = self.own.get(id(form))
        match head:
            case "defn" | "defmodel" | "defmetric":
                self._function(binding, form, rest, "field" if head == "defmetric" else "parameter")
            case "defoptimizer":
                self._optimizer(binding, form, rest)
            case "defgenerator":
                self._generator(binding, form, rest)
            case "defdiagnostic":
                plain, keyed = self.options(rest)
                self.keyed(keyed, self.top)
                self._function(None, form, plain, "parameter")
            case "defvariant":
                for item in rest:
                    if isinstance(item, List) and item.items:
                        self.walk_all(item.items, self.top)
            case "defdata":
                self._source(rest[0] if rest else None)
            case "defloader":
                plain, keyed = self.options(rest)
                match plain:
                    case [List(items=(Symbol(name="zip"), *vectors)), *_] if self.top.find("zip") is None:
                        for vector in vectors:
                            self.walk_all([loader for _, loader in self.pairs(vector) if loader is not None], self.top)
                    case _:
                        self.walk_all(plain, self.top)
                self.keyed(keyed, self.top)
            case "defeval":
                plain, keyed = self.options(rest)
                self.walk_all(plain, self.top)
                self.keyed(keyed, self.top, bare=("batches",) if _is(keyed.get("batches"), "all") else ())
            case "defweights":
                self.walk_all(rest[:1], self.top)
                for rule in rest[1:]:
                    self.walk_all(rule.items[2:] if isinstance(rule, List) else (), self.top)
            case "include":
                pass
            case _:
                self.parts(rest, self.top)

    def _function(self, binding: Binding | None, form: List, rest: Sequence[Form], kind: str) -> None:
        local = Environment(self.top)
        if rest:
            self.parameters(rest[0], local, kind, binding)
            self.body(rest[1:], local, form.span.end)

    def _optimizer(self, binding: Binding | None, form: List, rest: Sequence[Form]) -> None:
        plain, keyed = self.options(rest)
        if not plain:
            return
        local = Environment(self.top, {})
        self.parameters(plain[0], local, owner=binding)
        first = next((b for b in local.names.values() if b.kind == "parameter"), None)
        states = self.carried(keyed.pop("state", None), local, local)
        self.keyed(keyed, self.top)
        local.carries = {**({first.name: first} if first is not None else {}), **states}
        self.body(plain[1:], local, form.span.end)

    def _generator(self, binding: Binding | None, form: List, rest: Sequence[Form]) -> None:
        plain, keyed = self.options(rest)
        if not plain:
            return
        local = Environment(self.top, {})
        self.parameters(plain[0], local, owner=binding)
        trips, carry = keyed.pop("trips", None), keyed.pop("carry", None)
        image = ("show",) if _is(keyed.get("show"), "image") and "image" not in self.top.names else ()
        self.keyed(keyed, local, bare=image)
        inner = Environment(local, {})
        inner.carries = self.carried(carry, inner, inner)
        self.walked(trips, local, inner)
        self.body(plain[1:], inner, form.span.end)

    def _source(self, form: Form | None) -> None:
        match form:
            case List(items=(Symbol(name="if"), *rest)):
                for index, item in enumerate(rest):
                    if index % 2 == 0 and index + 1 < len(rest):
                        self.walk(item, self.top)
                    else:
                        self._source(item)
            case List(items=(_, *rest)):
                self.parts(rest, self.top)


def _is(form: Form | None, word: str) -> bool:
    return isinstance(form, Symbol) and form.name == word
