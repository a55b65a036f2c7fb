"""The evaluator: walks forms, computes elaboration values, records tensors in the current trace.

Flow: `load` evaluates the top level, `tracing` applies metrics, optimizers and generators under a `Trace`.
Special forms are in `special`, operations in `builtins`; both are tables of plain functions that take the
elaborator first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, NoReturn, TypeVar

from sexpgpu.diagnostics import Diagnostic, DiagnosticError, Label, nearest
from sexpgpu.ir.graph import Origin, Value
from sexpgpu.ir.types import TensorType, TypeFault, admit
from sexpgpu.lang.labels import operand_labels, unknown
from sexpgpu.lang.patterns import bind_pattern, match_type
from sexpgpu.lang.replay import REPEATABLE, Replays, Spent
from sexpgpu.lang.scope import POISON, Lazy, Poisoned, Scope
from sexpgpu.lang.trace import Schedule, Trace, World
from sexpgpu.lang.values import (
    Builtin,
    DataHandle,
    DType,
    Function,
    HostScalar,
    OptimizerDefinition,
    OptimizerRule,
    Parameter,
    Reference,
    Weighted,
    kind_of,
)
from sexpgpu.source import Span, contains
from sexpgpu.syntax import Boolean, Float, Form, Integer, Keyword, List, String, Symbol, Vector

MAX_DEPTH = 256
MAX_SIZE = 2**48
"""No axis, count or batch is larger."""
MAX_WORK = 150_000
"""Calls of one elaboration and operations that they ask for, some seconds of work; a GPT-2 of 12 layers takes 5,500."""
MAX_ELEMENTS = 1_000_000
"""Elements of a vector, those of the vectors in it included."""
ELEMENTS_PER_CALL = 8
"""So many elements of a vector cost as much as a call."""

PATH_PART = re.compile(r"[\w?!+-]+")
DRAWS = ("random-normal", "random-uniform", "bernoulli", "categorical", "permutation")
"""Operations whose `:name` is a part of the path that their bits depend on."""
_ARITY_HELP = {
    "max": "(maximum x y) is elementwise, (max x :axis a) reduces",
    "min": "(minimum x y) is elementwise, (min x :axis a) reduces",
}

Special = Any
T = TypeVar("T")


class Elaborator:
    """Evaluates forms in scopes. `trace` is the graph being recorded, None at the top level."""

    def __init__(self, specials: Mapping[str, Special]) -> None:
        self.world = World()
        self.trace: Trace | None = None
        self.specials = specials
        self.stack: list[Span] = []
        self.depth = 0
        self.bound: str | None = None
        self.defined: dict[str, Span] = {}
        self.forms: list[List] = []
        self.operands: Sequence[Form] = ()
        self.keys: dict[str, Span] = {}
        self.warnings: list[Diagnostic] = []
        self.work = self.apart = 0
        self.deepest = 0
        self.replays = Replays()
        self._weights: dict[int, tuple[tuple[Any, ...], int]] = {}
        self.call_generator: Callable[..., Any] | None = None

    @property
    def schedule(self) -> Schedule:
        return self.world.schedule

    # Faults.

    def fail(
        self, code: str, message: str, span: Span | None = None, *, help: str = "", labels: Sequence[Label] = ()
    ) -> NoReturn:
        """Raise the diagnostic, blaming the innermost form of the user's own files."""
        raise DiagnosticError(self.diagnostic(code, message, span, help=help, labels=labels))

    def diagnostic(
        self, code: str, message: str, span: Span | None = None, *, help: str = "", labels: Sequence[Label] = ()
    ) -> Diagnostic:
        places = [*self.stack, span] if span is not None else list(self.stack)
        own = [place for place in places if not place.source.is_library]
        blamed = own[-1] if own else (places[-1] if places else None)
        notes: list[str] = []
        hidden = [place for place in places if place.source.is_library]
        if hidden and own and places and places[-1] is not blamed:
            notes.append(f"inside the library, at {hidden[-1]}")
        # A form around the next one is no call of it: `let` around `(net x)`, say.
        callers = [place for place, inner in pairwise(own) if not contains(place, inner)]
        notes += [f"called from {place}" for place in reversed(callers[-3:])]
        return Diagnostic(code, message, blamed, tuple(labels), (help,) if help else (), tuple(notes))

    def place(self, span: Span) -> Span:
        """The innermost form of the user's own files on the way to `span`; `span` itself if there is none."""
        own = [p for p in (*self.stack, span) if not p.source.is_library]
        return own[-1] if own else span

    def located(self, make: Callable[[], T]) -> T:
        """What `make` gives; faults of data, which know no file, are placed at the form under evaluation."""
        try:
            return make()
        except DiagnosticError as error:
            place = self.diagnostic("E-DATA-001", "").span
            raise DiagnosticError([replace(d, span=d.span or place) for d in error.diagnostics]) from None

    # Limits.

    def spend(self, work: int = 1) -> None:
        """Count work, in calls. Raises E-CALL-005 when it is more than a file may take, after that Poisoned."""
        before = self.work
        self.work += work
        if self.work <= MAX_WORK:
            return
        if before > MAX_WORK:
            raise Poisoned
        self.fail("E-CALL-005", f"the file takes more than {MAX_WORK:,} calls and operations to elaborate",
                  help="`scan` loops at run time; `repeat`, `for` and calls are written out one by one")  # fmt: skip

    @contextmanager
    def set_apart(self) -> Iterator[None]:
        """The work of the block is no part of the call around it: a constant's, which is evaluated once for all."""
        work, apart = self.work, self.apart
        try:
            yield
        finally:
            self.apart = apart + self.work - work

    def measured(self, evaluate: Callable[[], T]) -> tuple[T, Spent]:
        """What `evaluate` gives, and what it took."""
        work, apart, reads, deepest = self.work, self.apart, self.world.training_reads, self.deepest
        self.deepest = self.depth
        try:
            value = evaluate()
            apart = self.apart - apart
            depth = self.deepest - self.depth
            return value, Spent(self.work - work - apart, apart, depth, self.world.training_reads - reads)
        finally:
            self.deepest = max(deepest, self.deepest)

    def affords(self, spent: Spent) -> bool:
        """Whether no limit is met where as much is spent again."""
        return self.work + spent.work + spent.apart <= MAX_WORK and self.depth + spent.depth <= MAX_DEPTH

    def repeat(self, spent: Spent) -> None:
        """Count what a call took once more; initial values have been made again, and are counted."""
        self.spend(spent.work)
        self.deepest = max(self.deepest, self.depth + spent.depth)
        self.world.training_reads += spent.reads

    def vector(self, parts: Sequence[Any]) -> tuple[Any, ...]:
        """A vector, counted with the vectors in it, however often they stand there. Raises E-TYPE-005."""
        made = tuple(parts)
        nested = [part for part in made if isinstance(part, tuple)]
        if not nested:
            return made
        weight = len(made) + sum(self._weights[id(p)][1] if id(p) in self._weights else len(p) for p in nested)
        if weight > MAX_ELEMENTS:
            self.fail("E-TYPE-005", f"a vector of {weight:,} elements, in all; at most {MAX_ELEMENTS:,} are made")
        self._weights[id(made)] = made, weight
        return made

    def counted_like(self, made: tuple[Any, ...], known: tuple[Any, ...]) -> None:
        """Count the elements of a vector as those of another of the same structure."""
        if id(known) in self._weights:
            self._weights[id(made)] = made, self._weights[id(known)][1]

    # Evaluation.

    def eval(self, form: Form, scope: Scope) -> Any:
        """The value of `form`. Raises DiagnosticError; Poisoned for uses of a failed definition."""
        if isinstance(form, Symbol):
            return self.lookup(form, scope)
        if isinstance(form, List):
            return self._eval_list(form, scope)
        match form:
            case Integer() | Float() | Boolean() | String():
                return form.value
            case Vector():
                return self.vector([self.eval(item, scope) for item in form.items])
            case Keyword():
                self.fail("E-FORM-001", f"the keyword `:{form.name}` stands where a value is expected", form.span)

    def lookup(self, symbol: Symbol, scope: Scope) -> Any:
        name = symbol.name
        holder = scope.holder(name)
        if holder is None:
            if name in self.specials:
                self.fail("E-FORM-001", f"`{name}` is a form, not a value: write ({name} …)", symbol.span)
            unknown(self, symbol, scope)
        value = holder.names[name]
        if isinstance(value, Lazy):
            value = self._force(name, value, symbol, scope)
        if value is POISON:
            raise Poisoned
        if isinstance(value, Ambient):
            return value.read(self, symbol.span)
        return value

    def _force(self, name: str, lazy: Lazy, symbol: Symbol, scope: Scope) -> Any:
        holder = scope.holder(name)
        assert holder is not None
        if lazy.busy:
            self.fail("E-NAME-001", f"the definition of `{name}` needs `{name}` itself", symbol.span)
        lazy.busy = True
        outer = self.trace, self.stack, self.bound, self.depth
        self.trace, self.stack, self.bound, self.depth = None, [], None, 0
        try:
            with self.set_apart():
                value = lazy.compute()
            holder.names[name] = value
            return value
        except (DiagnosticError, Poisoned):
            holder.names[name] = POISON
            raise
        finally:
            lazy.busy = False
            self.trace, self.stack, self.bound, self.depth = outer

    def _eval_list(self, form: List, scope: Scope) -> Any:
        if not form.items:
            self.fail("E-FORM-001", "an empty form `()` has no value", form.span)
        self.spend()
        head = form.items[0]
        bound, self.bound = self.bound, None
        if isinstance(head, Symbol) and head.name in self.specials and scope.holder(head.name) is None:
            self.stack.append(form.span)
            if self.trace is not None and head.name not in REPEATABLE:
                self.trace.unrepeatable += 1
            try:
                return self.specials[head.name](self, form, scope)
            except TypeFault as fault:
                self.fail(fault.code, fault.message, form.span, help=fault.help)
            finally:
                self.stack.pop()
        function = self.eval(head, scope)
        positional: list[Any] = []
        keywords: dict[str, Any] = {}
        keys: dict[str, Span] = {}
        name: tuple[str, ...] | None = None
        rest = form.items[1:]
        index = 0
        while index < len(rest):
            item = rest[index]
            if not isinstance(item, Keyword):
                positional.append(self.eval(item, scope))
                index += 1
                continue
            if index + 1 == len(rest) or isinstance(rest[index + 1], Keyword):
                self.fail("E-FORM-001", f"`:{item.name}` has no value after it", item.span)
            if item.name in keywords:
                self.fail("E-FORM-003", f"`:{item.name}` is given twice", item.span)
            keys[item.name] = item.span
            if item.name == "name" and not _takes_name(function):
                name = self.path_name(rest[index + 1], scope)
                if not isinstance(function, Function) and not (
                    isinstance(function, Builtin) and function.name in DRAWS
                ):
                    self.fail("E-FORM-003", f"{kind_of(function)} owns no parameters, so `:name` has no meaning here",
                              item.span, help="functions and models take `:name`")  # fmt: skip
            elif isinstance(function, Builtin) and item.name in function.words:
                keywords[item.name] = self.word(item, rest[index + 1])
            else:
                keywords[item.name] = self.eval(rest[index + 1], scope)
            index += 2
        self.stack.append(form.span)
        try:
            self.operands = rest
            self.keys = keys
            return self.apply(function, positional, keywords, form.span, name=name, bound=bound)
        finally:
            self.stack.pop()

    def word(self, key: Keyword, form: Form) -> str:
        """A bare word, such as `add` in `:fold add`."""
        if not isinstance(form, Symbol):
            self.fail("E-FORM-003", f"`:{key.name}` is followed by a bare word", form.span)
        return form.name

    def eval_body(self, body: Sequence[Form], scope: Scope) -> Any:
        """The value of the last form; the forms before it are there for their effects."""
        for form in body[:-1]:
            value = self.eval(form, scope)
            if value is not None:
                self.fail(
                    "E-FORM-001",
                    f"the value of this form, {kind_of(value)}, is dropped",
                    form.span,
                    help="only effects such as `measure` and `set-state` stand before the last form of a body",
                )
        return self.eval(body[-1], scope)

    def path_name(self, form: Form, scope: Scope) -> tuple[str, ...]:
        """The parts of a path: `up` is itself, `(block i)` evaluates what follows the head, a string is split."""
        match form:
            case Symbol(text) | String(text):
                return self._path(text.split("."), form.span)
            case List() if form.items and isinstance(form.items[0], Symbol):
                parts = [form.items[0].name]
                for item in form.items[1:]:
                    value = self.eval(item, scope)
                    if not isinstance(value, int | str) or isinstance(value, bool):
                        self.fail(
                            "E-TYPE-006", f"a path is made of names and integers, not {kind_of(value)}", item.span
                        )
                    parts.append(str(value))
                return self._path(parts, form.span)
        self.fail("E-FORM-001", "a path is a name, a string or a form such as (block i)", form.span)

    def _path(self, parts: Sequence[str], span: Span) -> tuple[str, ...]:
        for part in parts:
            if not PATH_PART.fullmatch(part):
                self.fail(
                    "E-FORM-001", f"`{part}` is no part of a path, which is made of letters, digits, `-` and `_`", span
                )
        return tuple(parts)

    # Calls.

    def apply(
        self,
        function: Any,
        positional: Sequence[Any],
        keywords: dict[str, Any],
        span: Span,
        *,
        name: tuple[str, ...] | None = None,
        bound: str | None = None,
    ) -> Any:
        """Call `function`. name: the `:name` of the call; bound: the name its value is bound to."""
        match function:
            case Builtin():
                return self._apply_builtin(function, positional, keywords, span, ".".join(name) if name else bound)
            case Function():
                return self._apply_function(function, positional, keywords, span, name, bound)
            case DType():
                if keywords:
                    self.fail("E-FORM-003", "a type takes no keywords", span)
                try:
                    return admit(TensorType(function.name, tuple([self.size(p, span) for p in positional])))
                except TypeFault as fault:
                    self.fail(fault.code, fault.message, span, help=fault.help)
            case OptimizerDefinition():
                return self._bind_optimizer(function, positional, keywords, span)
            case Value() | HostScalar():
                self.fail("E-CALL-001", f"{kind_of(function)} cannot be called", span,
                          help="elements are read with (gather x i) or (slice x a b)")  # fmt: skip
            case Reference(kind="generator"):
                assert self.call_generator is not None
                if self.trace is not None:
                    self.trace.unrepeatable += 1
                return self.call_generator(function.name, tuple(positional), keywords, span, bound)
        help = ""
        if isinstance(function, bool | int | float | str | tuple):
            help = "round brackets are a call; values in a row are a vector, in square ones: [8 16]"
        self.fail("E-CALL-001", f"{kind_of(function)} cannot be called", span, help=help)

    def _apply_builtin(
        self, builtin: Builtin, positional: Sequence[Any], keywords: dict[str, Any], span: Span, bound: str | None
    ) -> Any:
        if len(positional) < builtin.num_required or (
            len(positional) > len(builtin.positional) and not builtin.variadic
        ):
            names = [n if i < builtin.num_required else f"[{n}]" for i, n in enumerate(builtin.positional)]
            wanted = " ".join([builtin.name, *names, *(["…"] if builtin.variadic else [])])
            self.fail(
                "E-CALL-002",
                f"`{builtin.name}` is called with {_count(len(positional), 'value')}, but takes ({wanted})",
                span,
                help=_ARITY_HELP.get(builtin.name, ""),
            )
        if keywords and not builtin.any_keyword:
            for key in keywords:
                if key not in builtin.keywords:
                    near = nearest(key, builtin.keywords)
                    known = ", ".join(f":{k}" for k in sorted(builtin.keywords)) or "none"
                    self.fail("E-FORM-003", f"`{builtin.name}` has no keyword `:{key}`", self.keys.get(key, span),
                              help=f"`:{near}` is a near name" if near else f"its keywords: {known}")  # fmt: skip
            keywords = {k.replace("-", "_"): v for k, v in keywords.items()}
        operands, self.operands = self.operands, ()
        trace, self.bound = self.trace, bound
        before = trace.builder.origin if trace is not None else None
        num_asked = 0
        if trace is not None and before is not None:
            trace.builder.origin = Origin(span, "called from" if before.span else "", before if before.span else None)
            num_asked = len(trace.builder.log)
        try:
            value = builtin.call(self, *positional, **keywords)
            if trace is not None:
                self.spend(len(trace.builder.log) - num_asked)
            return value
        except TypeFault as fault:
            labels = operand_labels(self, operands, positional, span)
            self.fail(fault.code, fault.message, span, help=fault.help, labels=labels)
        finally:
            self.bound = None
            if trace is not None and before is not None:
                trace.builder.origin = before

    def bind(
        self,
        name: str,
        parameters: Sequence[Parameter],
        positional: Sequence[Any],
        keywords: dict[str, Any],
        scope: Scope,
        span: Span,
        defined: Span | None = None,
    ) -> Scope:
        """A new scope inside `scope` with `parameters` bound; checks arity, keywords and types.

        defined: the definition that the parameters are part of.
        """
        local = Scope(scope)
        plain = [p for p in parameters if not p.keyword]
        if len(positional) != len(plain):
            shape = " ".join([name, *(p.name for p in plain)])
            self.fail(
                "E-CALL-002",
                f"`{name}` is called with {_count(len(positional), 'value')}, but takes {len(plain)}: ({shape})",
                span,
                labels=self._head_of(defined, parameters),
            )
        known = {p.name for p in parameters if p.keyword}
        for key in keywords:
            if key not in known:
                near = nearest(key, known)
                listed = ", ".join(f":{k}" for k in sorted(known)) or "none"
                self.fail("E-FORM-003", f"`{name}` has no keyword `:{key}`", self.keys.get(key, span),
                          help=f"`:{near}` is a near name" if near else f"its keywords: {listed}",
                          labels=self._head_of(defined, parameters))  # fmt: skip
        given = iter(positional)
        for parameter in parameters:
            if not parameter.keyword:
                value = next(given)
            elif parameter.name in keywords:
                value = keywords[parameter.name]
            elif parameter.default is None:
                self.fail("E-FORM-004", f"`{name}` needs `:{parameter.name}`", span,
                          help=f"({name} … :{parameter.name} V)")  # fmt: skip
            else:
                value = self.eval(parameter.default, local)
            if parameter.type is not None:
                label = Label(parameter.span, "declared here") if parameter.span else None
                value = match_type(self, parameter.name, parameter.type, value, local, span, label)
            bind_pattern(self, parameter.pattern, value, local)
        return local

    def _head_of(self, defined: Span | None, parameters: Sequence[Parameter]) -> tuple[Label, ...]:
        """A label at the head of a definition of the user's own files: `(defn f (x y`."""
        if defined is None or defined.source.is_library:
            return ()
        last = parameters[-1].span if parameters else None
        end = last.end if last is not None else defined.source.text.find("(", defined.start + 1, defined.end)
        return (Label(Span(defined.source, defined.start, max(end, defined.start + 1)), "defined here"),)

    def _apply_function(
        self,
        function: Function,
        positional: Sequence[Any],
        keywords: dict[str, Any],
        span: Span,
        name: tuple[str, ...] | None,
        bound: str | None,
    ) -> Any:
        if self.depth >= MAX_DEPTH:
            self.fail(
                "E-CALL-004",
                f"calls are nested deeper than {MAX_DEPTH}; `{function.name}` calls itself for ever",
                span,
                help="end the recursion with an `if` on an elaboration value",
            )
        self.depth += 1
        self.deepest = max(self.deepest, self.depth)
        try:
            trace = self.trace
            evaluate = partial(self._body, function, positional, keywords, span)
            if trace is None:
                return evaluate()
            label = ".".join(name) if name else f"{function.name}={bound}" if bound else function.name
            before = trace.builder.origin
            outer = trace.scope, trace.draws, trace.created
            trace.builder.origin = Origin(span, "called from" if before.span else "", before if before.span else None)
            trace.draws = (*trace.draws, label)
            if function.model:
                trace.scope = trace.scope + name if name else (function.name,)
                trace.created = {}
            elif name:
                trace.scope += name
            try:
                return self.replays.call(self, trace, function, positional, keywords, evaluate)
            finally:
                trace.scope, trace.draws, trace.created = outer
                trace.builder.origin = before
                if function.model:  # its storage lies under a root of its own
                    trace.unrepeatable += 1
        finally:
            self.depth -= 1

    def _body(self, function: Function, positional: Sequence[Any], keywords: dict[str, Any], span: Span) -> Any:
        """The value of the body, its parameters bound."""
        scope = self.bind(function.name, function.parameters, positional, keywords, function.scope, span, function.span)
        return self.eval_body(function.body, scope)

    def _bind_optimizer(
        self, definition: OptimizerDefinition, positional: Sequence[Any], keywords: dict[str, Any], span: Span
    ) -> OptimizerRule:
        if positional:
            self.fail("E-CALL-002", f"the optimizer `{definition.name}` takes keywords only, such as :rate", span)
        options = [p for p in definition.parameters if p.keyword]
        local = self.bind(definition.name, options, (), keywords, definition.scope, span)
        return OptimizerRule(definition, dict(local.names), span)

    # Conversions that operations share.

    def require_trace(self) -> Trace:
        """The current trace; a fault at the top level, where there are no tensors."""
        if self.trace is None:
            self.fail("E-TYPE-006", "a tensor is made at the top level, where there are only numbers",
                      help="move it into a function, a model or a metric")  # fmt: skip
        return self.trace

    def tensor(self, value: Any, dtype: str | None = None) -> Value:
        """`value` as a tensor: numbers and vectors of numbers become constants, of `dtype` or their natural one."""
        trace = self.require_trace()
        if isinstance(value, Value):
            adopted = trace.adopt(value)
            if adopted is None:
                self.fail("E-TYPE-006", f"a tensor {value.type} of the model is used inside {trace.what}",
                          help="only numbers, and tensors made inside it, are known there")  # fmt: skip
            return adopted
        match value:
            case HostScalar():
                number = value.value
                b = trace.builder
                if number.dtype == "bool":
                    fed = trace.host(self.schedule.builder.cast(number, "f64"))
                    return b.cast(b.op("ne", fed, b.like(0.0, fed)), dtype or "bool")
                return b.cast(trace.host(number), dtype or "f32")
            case bool() | int() | float():
                return trace.builder.constant(*self.literal(value, dtype))
            case tuple():
                leaves, shape = self._leaves(value)
                self.spend(len(leaves))
                if leaves and all(isinstance(v, Value) for v in leaves):
                    self.fail("E-TYPE-006", "a vector of tensors is not a tensor", help="(stack […]) or (concat […])")
                kinds = {self.literal(v, dtype)[1].dtype for v in leaves} or {dtype or "f32"}
                chosen = dtype or ("f32" if "f32" in kinds else kinds.pop())
                type = TensorType(chosen, shape)
                return trace.builder.literal([self.literal(v, chosen)[0] for v in leaves], type)
            case DataHandle():
                self.fail("E-TYPE-006", f"{kind_of(value)} is not a tensor",
                          help="a loader reads it; its fields are the metric's parameters")  # fmt: skip
            case Weighted():
                self.fail("E-TYPE-006", "a weighted value is not a tensor", help="only a metric or `measure` takes it")
        self.fail("E-TYPE-006", f"{kind_of(value)} stands where a tensor is expected")

    def literal(self, value: Any, dtype: str | None) -> tuple[float | int | bool, TensorType]:
        """A number as the element of a constant: checked against the dtype it must take."""
        if isinstance(value, bool):
            if dtype not in (None, "bool"):
                self.fail("E-TYPE-001", f"{kind_of(value)} stands beside {dtype}", help="(cast x f32)")
            return value, TensorType("bool", ())
        if isinstance(value, int):
            chosen = dtype or "i32"
            if chosen == "bool":
                self.fail("E-TYPE-001", f"{kind_of(value)} stands beside a bool tensor", help="(cast x i32)")
            bits = 31 if chosen == "i32" else 63
            if chosen in ("i32", "i64") and not -(2**bits) <= value < 2**bits:
                self.fail("E-TYPE-001", f"{kind_of(value)} does not fit {chosen}",
                          help="(cast x i64)" if chosen == "i32" else "")  # fmt: skip
            return (value if chosen in ("i32", "i64") else float(value)), TensorType(chosen, ())
        if isinstance(value, float):
            if dtype in ("i32", "i64", "bool"):
                self.fail("E-TYPE-001", f"the float {value:g} stands beside a tensor of {dtype}", help="(cast x f32)")
            return value, TensorType(dtype or "f32", ())
        self.fail("E-TYPE-006", f"{kind_of(value)} stands where a number is expected")

    def _leaves(self, value: Any) -> tuple[list[Any], tuple[int, ...]]:
        if not isinstance(value, tuple):
            return [value], ()
        if not value:
            return [], (0,)
        parts = [self._leaves(v) for v in value]
        if any(shape != parts[0][1] for _, shape in parts):
            self.fail("E-TYPE-006", "a vector whose parts differ in size is not a tensor")
        return [leaf for leaves, _ in parts for leaf in leaves], (len(value), *parts[0][1])

    def size(self, value: Any, span: Span | None = None) -> int:
        """A non-negative elaboration integer: a size or a count."""
        whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        if whole and not isinstance(value, bool) and value >= 0:
            if value > MAX_SIZE:
                self.fail("E-TYPE-005", f"{kind_of(value)} is too large for a size", span)
            return int(value)
        self.fail("E-TYPE-006", f"{kind_of(value)} stands where a size is expected", span)

    def integer(self, value: Any, what: str = "an integer") -> int:
        """An elaboration integer."""
        whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        if isinstance(value, bool) or not whole:
            self.fail("E-TYPE-006", f"{kind_of(value)} stands where {what} is expected")
        return int(value)

    def axis(self, value: Any, rank: int) -> int:
        """An axis of a tensor of `rank`, negative from the end."""
        axis = self.integer(value, "an axis")
        if not -rank <= axis < rank:
            owned = f"a tensor of {_count(rank, 'axis', 'axes')}" if rank else "a scalar, which has no axes"
            self.fail("E-TYPE-005", f"axis {axis} of {owned}",
                      help=f"axes count from 0 to {rank - 1}, or from -{rank} to -1" if rank else "")  # fmt: skip
        return axis % rank

    def axes(self, value: Any, rank: int) -> tuple[int, ...]:
        """Axes from an integer, a vector of them, or none (all)."""
        if value is None:
            return tuple(range(rank))
        found = [self.axis(v, rank) for v in (value if isinstance(value, tuple) else (value,))]
        if len(set(found)) != len(found):
            self.fail("E-TYPE-005", f"axis {max(found, key=found.count)} is named twice")
        return tuple(sorted(found))


def _takes_name(function: Any) -> bool:
    """Whether `:name` is a keyword of the function's own, and not the name of the call."""
    return isinstance(function, Function) and any(p.keyword and p.name == "name" for p in function.parameters)


class Ambient:
    """A name whose value depends on where it is read: `step`, `training`."""

    def __init__(self, read: Any) -> None:
        self._read = read

    def read(self, el: Elaborator, span: Span) -> Any:
        """The value as seen from where `el` is."""
        return self._read(el, span)


def _count(n: int, one: str, many: str = "") -> str:
    return f"{n} {one}" if n == 1 else f"{n} {many or one + 's'}"
