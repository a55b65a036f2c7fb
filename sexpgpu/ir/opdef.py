"""What an operation is: one frozen `OpDef`, in one place, and the registry of all of them.

Flow: `ir/ops/*` fill the registry at import; the builder asks type rules, transforms ask gradients and stacking
rules, the interpreter asks NumPy meanings, planners ask costs and work shapes. Nothing else knows op names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

from sexpgpu.ir.graph import Attrs, Graph, Node, Value
from sexpgpu.ir.types import NUMPY_DTYPES, TensorType

if TYPE_CHECKING:
    from sexpgpu.ir.builder import Builder

Array = np.ndarray[Any, np.dtype[Any]]


class Work(Enum):
    """The closed set of kinds of work; a backend implements these and never an op name."""

    INPUT = "input"
    FILL = "fill"
    MAP = "map"
    REDUCE = "reduce"
    MOVE = "move"
    CONTRACT = "contract"
    CONV = "conv"
    GATHER = "gather"
    SCATTER = "scatter"
    SCAN = "scan"
    TABLE_SCAN = "table-scan"
    SELECT = "select"
    RANDOM = "random"
    EXPAND = "expand"


@dataclass(frozen=True, slots=True)
class Context:
    """What a NumPy meaning may ask of its surroundings.

    `dtypes` is the storage of each IR dtype (all double in f64 mode); `flag` takes a run-time fault.
    """

    dtypes: dict[str, np.dtype[Any]] = field(default_factory=lambda: NUMPY_DTYPES)
    flag: Callable[[Node, str], None] | None = None

    def dtype(self, type: TensorType) -> np.dtype[Any]:
        return self.dtypes[type.dtype]


@dataclass(frozen=True, slots=True)
class Cost:
    """Work of one node: floating-point operations, and bytes read and written at least once."""

    flops: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One case for the derived tests: input types, attributes, a half-open range of values per input, bodies."""

    types: tuple[TensorType, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    ranges: tuple[tuple[float, float] | None, ...] = ()
    differentiable: bool = True
    bodies: tuple[Graph, ...] = field(default=(), repr=False)


Template = str | Mapping[str, str]
"""A scalar expression for all dtypes, or one each for `float`, `int` and `bool`.

It is text of the C family: `{a}`, `{b}`, `{c}` are operands, held in variables; `{T}` is their type in registers, `{U}`
its unsigned twin, `{F}` the suffix of functions of that type, `{lowest}` and `{highest}` its bounds, `{as}` the first
operand in the dtype of the result. A dialect fills these in.
"""
TypeRule = Callable[[Sequence[TensorType], Attrs, Sequence[Graph]], tuple[TensorType, ...]]
Meaning = Callable[[Context, Node, Sequence[Array]], Array | tuple[Array, ...]]
Into = Callable[[Context, Node, Sequence[Array], Sequence[Array]], None]
Stages = tuple[tuple[Callable[[], Any], ...], ...]
"""Calls that compute a node: stages in order, the calls of one stage independent of each other."""
Prepare = Callable[[Context, Node, Sequence[Array], Sequence[Array]], Stages]
GradientRule = Callable[["Builder", Node, Sequence[Value | None]], Sequence[Value | None]]
StackingRule = Callable[["Builder", Node, Sequence[Value], Sequence[bool], int], tuple[Value, ...]]


def bytes_moved(node: Node) -> int:
    """Bytes of all inputs and outputs: what a kernel must move at least."""
    return sum(v.type.num_bytes for v in node.inputs) + sum(t.num_bytes for t in node.types)


def _elementwise_cost(node: Node) -> Cost:
    return Cost(sum(t.size for t in node.types), bytes_moved(node))


@dataclass(frozen=True, slots=True)
class Manual:
    """What the manual says of an elementwise operation that files call by a word; see `sexpgpu.lang.manual`.

    summary: a sentence or two. gradient, types, edges: sections; the family has its own text where one is empty.
    example: lines that run, with what they give behind a semicolon.
    """

    summary: str
    gradient: str
    example: str
    types: str = ""
    edges: str = ""

    @property
    def page(self) -> str:
        """The page, as a doc string would hold it."""
        named = {"Gradient": self.gradient, "Types": self.types, "Edges": self.edges}
        sections = [f"{name}: {text}" for name, text in named.items() if text]
        return "\n".join([self.summary, "", *sections, "Example:", *(f"    {e}" for e in self.example.splitlines())])


@dataclass(frozen=True, slots=True)
class OpDef:
    """Everything the system knows of one operation.

    doc: one sentence with its shape law.
    params: its attributes, a word on each.
    type_rule: types of the outputs; raises TypeFault.
    meaning: the plainest correct NumPy text, the oracle of every device.
    into: the same written straight into given arrays, where that saves the interpreter a copy.
    ufunc: a NumPy function that is the whole meaning: of a map applied, of a reduction folded over `axes`.
    prepare: the same as calls on arrays that stay where they are: what depends on shapes and strides alone
        is found out once. How work is cut into calls depends on shapes alone too.
    gradient: cotangents of outputs (None: zero) to cotangents of inputs (None: zero or no gradient);
        None as a rule: the operation cannot be differentiated. `no_gradient` says that it is zero everywhere.
    stacking: the operation on k microbatches at once; inputs flagged True carry a leading axis of size k,
        and so do all outputs.
    cost: flops and bytes.
    work: its one work shape.
    samples: cases for the derived tests.
    scalar: of a map, one element of the result, as every dialect but this interpreter computes it.
    fault: of a map that reports, when an element is bad.
    word: what a file calls the function of one or two operands; empty: files do not call it by a word of its own.
    number: the same of numbers that a file computes with. manual: what the manual says of the word.
    """

    name: str
    doc: str
    work: Work
    type_rule: TypeRule
    meaning: Meaning
    stacking: StackingRule
    gradient: GradientRule | None
    samples: tuple[Sample, ...]
    params: dict[str, str] = field(default_factory=dict)
    into: Into | None = None
    ufunc: np.ufunc | None = None
    scalar: Template = ""
    fault: str = ""
    word: str = ""
    number: Callable[..., Any] | None = None
    manual: Manual | None = None
    prepare: Prepare | None = None
    cost: Callable[[Node], Cost] = _elementwise_cost

    @property
    def reports(self) -> bool:
        """Whether it flags faults while it runs; every device tells the place of the first, in row-major order."""
        return bool(self.fault) or self.work in (Work.GATHER, Work.SCATTER)

    @property
    def num_operands(self) -> int:
        """How many values the samples hand it."""
        return len(self.samples[0].types) if self.samples else 0


OPS: dict[str, OpDef] = {}
"""The registry; filled when `sexpgpu.ir.ops` is imported, then only read."""


def register(op: OpDef) -> OpDef:
    """Add `op` to the registry; a name is defined once."""
    assert op.name not in OPS, op.name
    OPS[op.name] = op
    return op


def no_gradient(b: Builder, node: Node, cotangents: Sequence[Value | None]) -> Sequence[Value | None]:
    """The gradient rule of a function that is flat everywhere, or whose inputs carry no gradient."""
    return (None,) * len(node.inputs)
