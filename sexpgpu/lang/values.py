"""What an expression may evaluate to while a file is elaborated.

Numbers, booleans, strings, `None` (`none`) and tuples (vectors) are Python's own; a tensor is an `ir.Value`.
The rest is here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sexpgpu.data import Packed, Part, Rows, Streams, Windows
from sexpgpu.ir.graph import Value
from sexpgpu.ir.types import TensorType
from sexpgpu.source import Span
from sexpgpu.syntax import Form

if TYPE_CHECKING:
    from sexpgpu.data import Dataset, View
    from sexpgpu.lang.scope import Scope


@dataclass(frozen=True, slots=True)
class HostScalar:
    """A number that depends on `step`: a node of the schedule graph, evaluated on the host in double precision."""

    value: Value


@dataclass(frozen=True, slots=True)
class Weighted:
    """A value and its weight: how an objective or a measure over uneven data says what it averages."""

    value: Value
    weight: Value


@dataclass(frozen=True, slots=True)
class DType:
    """A dtype as a value: `(cast x bf16)`; called with sizes it makes a type: `(f32 b t)`."""

    name: str


class Wild:
    """`_` where a value is expected: any size, or a default that must be given."""

    def __repr__(self) -> str:
        return "_"


WILD = Wild()


@dataclass(frozen=True, slots=True)
class Parameter:
    """One entry of a parameter list: a name or pattern, its type form, and whether it is a keyword with a default."""

    pattern: Form
    name: str
    type: Form | None = None
    keyword: bool = False
    default: Form | None = None
    span: Span | None = None

    @property
    def required(self) -> bool:
        return not self.keyword or self.default is None


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """A closure. model: it owns a parameter root of its name, and calls of it share parameters."""

    name: str
    parameters: tuple[Parameter, ...]
    body: tuple[Form, ...]
    scope: Scope
    span: Span
    model: bool = False
    doc: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Builtin:
    """An operation of the language written in Python; `call` takes the elaborator first. words: keywords whose value
    is a bare word, as in `:fold add`. doc: its page of the manual, as `sexpgpu.lang.manual` reads it."""

    name: str
    call: Callable[..., Any]
    positional: tuple[str, ...]
    variadic: bool
    keywords: frozenset[str]
    any_keyword: bool
    num_required: int
    words: frozenset[str] = frozenset()
    doc: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class OptimizerDefinition:
    """`defoptimizer`: parameters `p g :k …`, state with initial values, and a body that proposes."""

    name: str
    parameters: tuple[Parameter, ...]
    state: tuple[tuple[str, Form], ...]
    body: tuple[Form, ...]
    scope: Scope
    span: Span
    doc: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class OptimizerRule:
    """An optimizer with its keywords bound, waiting for parameters."""

    definition: OptimizerDefinition
    bound: dict[str, Any]
    span: Span


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a `propose` form gives: new contents by name."""

    values: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Next:
    """What a `next` form gives: new carries by name, and what is emitted (in the order written)."""

    carries: dict[str, Any]
    emitted: tuple[Any, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Due:
    """`(every n X …)` in a run: something that is due at step 1, multiples of n and the last step."""

    every: int
    what: Any
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Patience:
    """`(patience n SERIES …)`: how long a run goes on without a better value of a series. by: the least that counts."""

    num: int
    series: str
    by: float
    rising: bool
    span: Span


@dataclass(frozen=True, slots=True, eq=False)
class DataHandle:
    """`defdata`: an opened dataset."""

    name: str
    dataset: Dataset


@dataclass(frozen=True, slots=True, eq=False)
class Mix:
    """`(mix [VIEW W …])`: views and their weights, numbers that may depend on `step`."""

    views: tuple[View, ...]
    weights: tuple[float | HostScalar, ...]


@dataclass(frozen=True, slots=True)
class Reference:
    """A loader, metric, evaluation, generator, … named in the file."""

    kind: str
    name: str


def kind_of(value: object) -> str:
    """A few words for a value in a message."""
    match value:
        case None:
            return "none"
        case bool():
            return f"the boolean `{str(value).lower()}`"
        case int():
            return f"the integer {value}" if abs(value) < 10**30 else "an integer of many digits"
        case float():
            return f"the number {value:g}"
        case str():
            return f'the string "{value}"'
        case tuple():
            return f"a vector of {len(value)}"
        case Value():
            return f"a tensor {value.type}"
        case HostScalar():
            return "a number that depends on `step`"
        case Weighted():
            return "a weighted value"
        case DType():
            return f"the dtype {value.name}"
        case TensorType():
            return f"the type {value}"
        case Function():
            return f"the {'model' if value.model else 'function'} `{value.name}`"
        case Builtin():
            return f"the operation `{value.name}`"
        case OptimizerDefinition() | OptimizerRule():
            return "an optimizer"
        case Reference():
            return f"the {value.kind} `{value.name}`"
        case DataHandle():
            return f"the data `{value.name}`"
        case Next():
            return "a `next` form"
        case Proposal():
            return "a `propose` form"
        case Due():
            return "an `every` form"
        case Patience():
            return "a `patience` form"
        case Wild():
            return "`_`"
        case Part():
            return "a part of data"
        case Rows() | Windows() | Packed() | Streams():
            return "a view of data"
        case Mix():
            return "a mixture of views"
    return type(value).__name__
