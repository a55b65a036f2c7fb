"""Calls that are elaborated once and then replayed: a model of twelve equal layers is one elaboration, eleven replays.

What a call does to its graph follows from the function, from what its arguments are (numbers and words themselves, of
tensors the types) and from the ambient settings; where the call stands decides paths and origins alone. So the first
such call is kept as a stretch of its trace's log: what the builder was asked for, and what was drawn and stored, in
order. The next one asks for the same again with its own tensors, path and origin, and has what evaluating the body
would have given: the same nodes in the same order, the same names, the same spans.

That holds under conditions. Where one fails the body is evaluated as ever:

- The key says all that evaluation may look at. A tensor counts by its type and by which arguments are one tensor, a
  closure by its form and the names around it. What has no key, such as a weighted value, is not replayed.
- Nothing happened that a log does not hold: an effect, a gradient, a body of its own, a model, a warning. The forms of
  `REPEATABLE` do no such thing; all others, and what compares tensors, are counted in `Trace.unrepeatable`.
- Every operand is an argument or was asked for within the call, and nothing asked for is an argument: otherwise it
  would not be plain which of the two an operand means.
- `training` is what it was, if it was read; storage can be made, or found, as it was; no limit is near.

What fails leaves no record, so its mistakes are told each time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from sexpgpu.ir.builder import Builder
from sexpgpu.ir.graph import Attr, Graph, Node, Origin, Value
from sexpgpu.ir.types import TensorType
from sexpgpu.lang.scope import FileScope
from sexpgpu.lang.values import Builtin, DataHandle, DType, Function, HostScalar, Reference, Weighted, Wild
from sexpgpu.source import Span

if TYPE_CHECKING:
    from sexpgpu.lang.elaborator import Elaborator
    from sexpgpu.lang.trace import Trace

REPEATABLE = frozenset(
    ("let", "fn", "if", "when", "and", "or", "with", "repeat", "for", "next", "every", "param", "state")
)
"""Special forms that do what their parts do and no more, and storage, which a log holds."""

MAX_PARTS = 200
"""Of a key, the elements of vectors and the names around closures included; a call of more is evaluated."""

MAX_IN_VAIN = 64
"""Calls of one function recorded in a row without a replay; who has so many differs from call to call."""

PLAIN = frozenset((type(None), bool, int, str))
"""Values that are equal where their types are and Python says so. Of floats 0.0 is not -0.0."""

NAMED = frozenset((HostScalar, DType, TensorType, Wild, Builtin, DataHandle, Reference))
"""Values that hold no tensor of a trace, and stand for themselves in a key."""

Change = Callable[[Value], Value]
"""From a tensor of the recorded call to that of the replayed one."""


class Step(Protocol):
    """An entry of a log whose names follow from where it happens.

    value: the tensor that it gave, if it gives one. needs: the tensors that it is made of.
    """

    @property
    def origin(self) -> Origin: ...

    @property
    def needs(self) -> tuple[Value, ...]: ...

    @property
    def value(self) -> Value | None: ...

    def possible(self, el: Elaborator, way: Way) -> bool:
        """Whether it can happen at the other end of `way` as it did here."""

    def again(self, el: Elaborator, way: Way, change: Change) -> Value | None:
        """Let it happen there."""


Log = list["tuple[Node, Origin] | Step"]


class Recorder(Builder):
    """A builder with a log of what it was asked for, in order, each with the origin that a new node would have had."""

    def __init__(self) -> None:
        super().__init__()
        self.log: Log = []

    def node(
        self,
        op: str,
        inputs: Sequence[Value] = (),
        attrs: Mapping[str, Attr] | None = None,
        bodies: Sequence[Graph] = (),
    ) -> Node:
        """The interned node. Raises TypeFault where the operation's type rule refuses."""
        made = Builder.node(self, op, inputs, attrs, bodies)
        self.log.append((made, self.origin))
        return made

    def instead(self, start: int, step: Step) -> None:
        """Let one step stand in the log for all that was asked for from `start` on."""
        del self.log[start:]
        self.log.append(step)


@dataclass(slots=True, eq=False, repr=False)
class Spent:
    """What a call took. work: calls and operations, without initial values, and constants, which are evaluated once;
    apart: those. depth: of the calls in it. reads: how often it asked for `training`."""

    work: int
    apart: int
    depth: int
    reads: int


class Place:
    """Where a call stands: the paths inside it, how many forms are around it, and the origin of what it makes."""

    __slots__ = ("draws", "num_frames", "origin", "scope")

    def __init__(self, el: Elaborator, trace: Trace) -> None:
        self.scope = trace.scope
        self.draws = trace.draws
        self.num_frames = len(el.stack)
        self.origin = trace.builder.origin


class Way:
    """From the place where a call was recorded to the one where it is replayed."""

    __slots__ = ("end", "start")

    def __init__(self, start: Place, end: Place) -> None:
        self.start = start
        self.end = end

    def scope(self, scope: tuple[str, ...]) -> tuple[str, ...]:
        """A path of parameters."""
        return self.end.scope + scope[len(self.start.scope) :]

    def draws(self, draws: tuple[str, ...]) -> tuple[str, ...]:
        """A path of draws."""
        return self.end.draws + draws[len(self.start.draws) :]

    def frames(self, stack: tuple[Span, ...]) -> tuple[Span, ...]:
        """The forms of the call that are around a step."""
        return stack[self.start.num_frames :]


class Replays:
    """The calls of one elaboration that were recorded."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], dict[bool, _Recording]] = {}
        self._in_vain: dict[int, int] = {}

    def call(
        self,
        el: Elaborator,
        trace: Trace,
        function: Function,
        positional: Sequence[Any],
        keywords: Mapping[str, Any],
        evaluate: Callable[[], Any],
    ) -> Any:
        """The value of a call whose place `trace` has entered; `evaluate` gives it in the ordinary way."""
        b, key, form = trace.builder, _Key(trace), id(function.body[0])
        if self._in_vain.get(form, 0) >= MAX_IN_VAIN or not key.holds(function, positional, keywords):
            return evaluate()
        place, training = Place(el, trace), trace.ambient.training
        known = self._known.setdefault(tuple(key.parts), {})
        found = known.get(training)
        if found is None and (other := known.get(not training)) is not None and not other.spent.reads:
            found = other
        if found is not None:
            tape, way = found.tape, Way(found.place, place)
            if tape is None:
                return evaluate()
            if el.affords(found.spent) and all(step.possible(el, way) for step in tape.steps):
                self._in_vain[form] = 0
                value = tape.replayed(el, b, way, list(key.tensors))
                el.repeat(found.spent)
                return value
        start, unrepeatable, warned = len(b.log), trace.unrepeatable, len(el.warnings)
        value, spent = el.measured(evaluate)
        if trace.unrepeatable == unrepeatable and len(el.warnings) == warned:
            kept = function, positional, keywords
            known[training] = _Recording(kept, place, b.log, start, len(b.log), list(key.tensors), value, spent)
            self._in_vain[form] = self._in_vain.get(form, 0) + 1
        return value


class _Key:
    """What evaluation may look at, in parts. tensors: those of the arguments, each once, and its number."""

    def __init__(self, trace: Trace) -> None:
        ambient = trace.ambient
        self.trace = trace
        self.parts: list[Any] = [ambient.compute, ambient.weights, trace.params_refused]
        self.tensors: dict[Value, int] = {}

    def holds(self, function: Function, positional: Sequence[Any], keywords: Mapping[str, Any]) -> bool:
        """Take a call in; whether that says all of it."""
        if not self._function(function):
            return False
        self.parts.append(len(positional))
        for value in positional:
            if not self._value(value):
                return False
        for name, value in keywords.items():
            self.parts.append(name)
            if not self._value(value):
                return False
        return True

    def _value(self, value: Any) -> bool:
        kind, parts = type(value), self.parts
        parts.append(kind)
        if kind is Value:
            number = self.tensors.get(value)
            if number is None:
                if not self.trace.reaches(value):
                    return False
                number = self.tensors[value] = len(self.tensors)
            parts += (value.type, number, self.trace.owns(value))
        elif kind in PLAIN or kind in NAMED:
            parts.append(value)
        elif kind is float:
            parts.append(repr(value))
        elif kind is tuple:
            parts.append(len(value))
            return len(parts) + len(value) < MAX_PARTS and all(map(self._value, value))
        else:
            return kind is Function and self._function(value)
        return True

    def _function(self, function: Function) -> bool:
        parts, scope = self.parts, function.scope
        parts.append(id(function.body[0]))
        while type(scope) is not FileScope:
            for name, value in scope.names.items():
                parts.append(name)
                if len(parts) > MAX_PARTS or not self._value(value):
                    return False
            if scope.outer is None:
                return False
            scope = scope.outer
        parts.append(id(scope))
        return True


class _Unclear(Exception):
    """A log that does not tell how a call is done again."""


@dataclass(eq=False, repr=False)
class _Recording:
    """A call as it was elaborated, a stretch of a log, and what it took.

    kept: what its key names by an id. arguments: its tensors, each once.
    """

    kept: Any
    place: Place
    log: Log
    start: int
    stop: int
    arguments: Sequence[Value]
    result: Any
    spent: Spent

    @cached_property
    def tape(self) -> _Tape | None:
        """How it is done again; None where the log does not tell."""
        try:
            return _Tape(self)
        except _Unclear:
            return None


class _Tape:
    """A recorded call, its values numbered: the arguments first, then what each entry gave.

    origins: from 1 on, a span, a note and the number of the parent; 0 is the origin of the call.
    """

    def __init__(self, made: _Recording) -> None:
        self.origins: list[tuple[Span | None, str, int]] = []
        self.entries: list[tuple[Node | Step, tuple[int, ...], int]] = []
        self.steps: list[Step] = []
        self.result = made.result
        self._numbers = {value: number for number, value in enumerate(made.arguments)}
        self._known = {id(made.place.origin): 0}
        given, count = frozenset(made.arguments), len(made.arguments)
        for entry in made.log[made.start : made.stop]:
            outputs: Sequence[Value]
            if isinstance(entry, tuple):
                node, origin = entry
                outputs = node.outputs
                if node.bodies or node.op == "input" or not given.isdisjoint(outputs):
                    raise _Unclear
                if outputs[0] in self._numbers:
                    continue  # asked for twice
                operands = tuple([self._number(value) for value in node.inputs])
                self.entries.append((node, operands, self._origin(origin)))
            else:
                outputs = () if entry.value is None else (entry.value,)
                if not given.isdisjoint(outputs):
                    raise _Unclear
                for value in entry.needs:
                    self._number(value)
                self.entries.append((entry, (), self._origin(entry.origin)))
                self.steps.append(entry)
            for value in outputs:
                self._numbers[value] = count
                count += 1
        self._check(self.result)

    def _number(self, value: Value) -> int:
        number = self._numbers.get(value)
        if number is None:
            raise _Unclear
        return number

    def _origin(self, origin: Origin) -> int:
        number = self._known.get(id(origin))
        if number is None:
            if origin.parent is None:
                raise _Unclear
            parent = self._origin(origin.parent)
            self.origins.append((origin.span, origin.note, parent))
            number = self._known[id(origin)] = len(self.origins)
        return number

    def _check(self, result: Any) -> None:
        """A result that holds what cannot be changed, such as a closure over tensors, is unclear."""
        match result:
            case Value():
                self._number(result)
            case tuple():
                for part in result:
                    self._check(part)
            case Weighted():
                self._check((result.value, result.weight))
            case _ if type(result) not in PLAIN and type(result) not in NAMED and type(result) is not float:
                raise _Unclear

    def replayed(self, el: Elaborator, b: Recorder, way: Way, arguments: Sequence[Value]) -> Any:
        """The value of the call, done again at the end of `way` with other tensors."""
        values = list(arguments)
        origins = [way.end.origin]
        for span, note, parent in self.origins:
            origins.append(Origin(span, note, origins[parent]))

        def change(value: Value) -> Value:
            number = self._numbers.get(value)
            return value if number is None else values[number]

        log, again = b.log, b.again
        for what, operands, number in self.entries:
            origin = b.origin = origins[number]
            if not isinstance(what, Node):
                value = what.again(el, way, change)
                if value is not None:
                    values.append(value)
            else:
                made = again(what, tuple([values[i] for i in operands]))
                log.append((made, origin))
                values += made.outputs
        b.origin = way.end.origin
        return changed(el, self.result, change)


def changed(el: Elaborator, value: Any, change: Change) -> Any:
    """A value with every tensor in it changed."""
    match value:
        case Value():
            return change(value)
        case tuple():
            made = tuple([changed(el, part, change) for part in value])
            el.counted_like(made, value)
            return made
        case Weighted():
            return Weighted(change(value.value), change(value.weight))
    return value
