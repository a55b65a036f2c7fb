"""One case of a peer's suite: an expression of ours, its inputs, and what the peer makes of them; and the judging.

A driver of a suite turns each of the peer's samples into a `Case`, by an adapter that writes the sample down in our
language with a `Writer`. An adapter that cannot raises `Skip`, with the reason that the tables show.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sexpgpu.backend.cpu.device import CpuDevice
from sexpgpu.backend.protocol import Budget, Call
from sexpgpu.diagnostics import DiagnosticError
from sexpgpu.ir.builder import Builder
from sexpgpu.ir.evaluate import evaluate
from sexpgpu.ir.graph import Graph, Value
from sexpgpu.ir.program import FEED, RESULT, SLOT, Phase, Program
from sexpgpu.ir.types import NUMPY_DTYPES
from sexpgpu.ir.verify import verify
from sexpgpu.lang.files import Files
from sexpgpu.lang.load import load_experiment
from sexpgpu.source import Source
from sexpgpu.transform.autodiff import differentiate

TAIL = """
(defmetric loss-of-the-tail () (square (param w-of-the-tail (f32) 1.0)))
(defrun go :loss loss-of-the-tail :optimizer (sgd :rate 0.1) :steps 1)
"""
DTYPE_NAMES = {dtype: name for name, dtype in NUMPY_DTYPES.items() if name != "f64"}


class Skip(Exception):
    """The sample has no spelling in our language, or asks for what we decided otherwise; the text is the reason."""


@dataclass(frozen=True)
class Case:
    """expected: the peer's values, in order; a None is not compared. gradients: the peer's, by input; cotangents: by
    number of output. single: bounds of values in f32, relative and absolute; double: the same in double. owned: inputs
    that layers make."""

    group: str
    name: str
    text: str
    inputs: Mapping[str, np.ndarray]
    expected: Sequence[np.ndarray | None]
    gradients: Mapping[str, np.ndarray] = field(default_factory=dict)
    cotangents: Mapping[int, np.ndarray] = field(default_factory=dict)
    single: tuple[float, float] = (2e-5, 2e-5)
    double: tuple[float, float] = (1e-6, 1e-6)
    owned: tuple[str, ...] = ()


class _InMemory(Files):
    """A file that was never written."""

    def __init__(self, text: str) -> None:
        self.text = text

    def source(self, path: Path | str) -> Source:
        return Source(str(path), self.text)


def number(value: Any) -> str:
    """A number as our files write it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, complex):
        raise Skip("complex numbers")
    value = float(value)
    return "nan" if value != value else "inf" if value == np.inf else "(- inf)" if value == -np.inf else repr(value)


def vector(values: Sequence[Any]) -> str:
    """A vector of numbers, or of texts that are forms already."""
    return "[" + " ".join(v if isinstance(v, str) else number(v) for v in values) + "]"


def type_text(array: np.ndarray) -> str:
    """The type of an array: `(f32 2 3)`."""
    return "(" + " ".join([DTYPE_NAMES[array.dtype], *map(str, array.shape)]) + ")"


class Writer:
    """Gives names to arrays while an adapter writes an expression. owned: arrays of parameters that a layer makes."""

    def __init__(self) -> None:
        self.inputs: dict[str, np.ndarray] = {}
        self.owned: dict[str, np.ndarray] = {}
        self._names: dict[int, str] = {}
        self._kept: list[np.ndarray] = []

    def name(self, array: np.ndarray, key: int | None = None) -> str:
        """The name of an array; `key` tells the same one from another."""
        if array.dtype not in DTYPE_NAMES:
            raise Skip(f"the dtype {array.dtype}")
        key = id(array) if key is None else key
        if key not in self._names:
            self._kept.append(array)
            self._names[key] = f"x{len(self._names)}"
            self.inputs[self._names[key]] = array
        return self._names[key]

    def own(self, path: str, array: np.ndarray) -> str:
        """An array in place of a parameter's first value; its name among the inputs is the path."""
        self.owned[path] = array
        return path

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        return {**self.inputs, **self.owned}


NARROWED = {"uint8": "int32", "int8": "int32", "uint16": "int32", "int16": "int32", "uint32": "int64",
            "uint64": "int64", "float64": "float32", "float16": "float32"}  # fmt: skip
"""Dtypes that we lack, and what holds their values here."""


class ArrayWriter(Writer):
    """Names for NumPy arrays; what is no array is written as it is."""

    def __call__(self, value: Any) -> str:
        """An array's name, a number, a vector of either."""
        if isinstance(value, np.ndarray | np.generic):
            if id(value) not in self._names:
                self._kept.append(np.asarray(value))
            array = np.asarray(value)
            return self.name(np.array(array.astype(NARROWED.get(array.dtype.name, array.dtype))), id(value))
        if isinstance(value, list | tuple):
            return vector([self(v) for v in value])
        return number(value)

    def f(self, value: Any) -> str:
        """The same, integers and booleans as f32."""
        if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biu":
            return f"(cast {self(value)} f32)"
        return self(float(value)) if isinstance(value, bool | int) else self(value)

    def stretched(self, *values: Any) -> list[str]:
        """Operands repeated by hand where our rule of shapes, unlike NumPy's, wants it so."""
        shapes = [np.shape(v) for v in values]
        joint = np.broadcast_shapes(*shapes)
        uneven = any(len(s) != len(joint) for s in shapes if s)
        return [
            f"(broadcast {self(v)} {vector(joint)})" if uneven and s not in ((), joint) else self(v)
            for v, s in zip(values, shapes, strict=True)
        ]


def elaborate(text: str, inputs: Mapping[str, np.ndarray], owned: Sequence[str] = ()) -> Graph:
    """The graph of an expression in which the names of `inputs` are tensors. Raises DiagnosticError."""
    bound = " ".join(
        f"{n} (state {n} {type_text(v)} {'false' if v.dtype == bool else '0'})"
        for n, v in inputs.items() if n not in owned
    )  # fmt: skip
    body = f"(let [{bound}] {text})" if bound else text
    disk = _InMemory(f"(defgenerator expression () {body})\n{TAIL}")
    return load_experiment("oracle.sx", disk=disk).generators["expression"].start


def with_gradients(graph: Graph, case: Case) -> Graph:
    """The graph with a cotangent for each output that has one, and the gradients as further outputs `d:NAME`."""
    b = Builder()
    values = b.copy(graph)
    seeds: dict[Value, Value] = {}
    for index in case.cotangents:
        value = values[index]
        seed = b.input(f"cotangent:{index}", value.type)
        seeds[value] = seed if value not in seeds else b.add(seeds[value], seed)
    known = {v.node.attrs["name"]: v for v in b._inputs.values()}
    wanted = [n for n in case.gradients if SLOT + n in known]
    found = differentiate(b, seeds, [known[SLOT + n] for n in wanted])
    outputs = [(f"y:{i}", v) for i, v in enumerate(values)]
    outputs += [(f"d:{n}", g) for n, g in zip(wanted, found, strict=True) if g is not None]
    return b.graph("case", outputs)


def fed(graph: Graph, case: Case) -> dict[str, np.ndarray]:
    """What the inputs of a graph take."""
    arrays = {SLOT + n: v for n, v in case.inputs.items()}
    arrays |= {f"cotangent:{i}": v for i, v in case.cotangents.items()}
    return {n: arrays[n] for n in graph.input_names}


def on_cpu(graph: Graph, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs of a graph as the cpu device computes them, planned and with dead memory poisoned."""
    b = Builder()
    placed = {
        name: b.input(f"{FEED}x{i}", v.type)
        for i, (name, v) in enumerate(zip(graph.input_names, graph.inputs, strict=True))
    }
    values = b.copy(graph, placed)
    made = b.graph("case", [(f"{RESULT}{i}", v) for i, v in enumerate(values)], list(placed.values()))
    device = CpuDevice(threads=1, poison=True)
    session = device.open(device.plan(Program((), (Phase("case", made),), Builder().graph("schedule", [])), Budget()))
    feeds = {
        f"x{i}": np.array(inputs[n], NUMPY_DTYPES[v.type.dtype], order="C") for i, (n, v) in enumerate(placed.items())
    }
    (outputs,) = session.run([Call("case", feeds)]).result()
    return {name: np.array(outputs.results[f"{i}"]) for i, (name, _) in enumerate(graph.outputs)}


def differs(found: np.ndarray, wanted: np.ndarray, bounds: tuple[float, float]) -> str:
    """What is wrong with an array; empty if nothing is."""
    found, wanted = np.asarray(found), np.asarray(wanted)
    if found.shape != wanted.shape:
        return f"shape {found.shape}, not {wanted.shape}"
    if (found.dtype.kind in "fV") != (wanted.dtype.kind in "fV"):
        return f"{found.dtype}, not {wanted.dtype}"
    if wanted.dtype.kind in "biu":
        wrong = int(np.sum(found.astype(np.int64) != wanted.astype(np.int64)))
        return f"{wrong} of {wanted.size} differ" if wrong else ""
    x, y = found.astype(np.float64), wanted.astype(np.float64)
    with np.errstate(all="ignore"):
        close = (np.abs(x - y) <= bounds[1] + bounds[0] * np.abs(y)) | (x == y) | (np.isnan(x) & np.isnan(y))
    if close.all():
        return ""
    at = tuple(int(i) for i in np.argwhere(~close)[0])
    return f"{int(np.sum(~close))} of {y.size} differ, {x[at]:.8g} where {y[at]:.8g} is right"


def judge(case: Case, owned: Sequence[str] = (), *, device: bool = False) -> str:
    """What is wrong with our answer; empty if nothing is. device: ask the cpu device too."""
    try:
        return _judged(case, owned, device)
    except Exception as error:  # a crash of ours is a wrong case like another, and the next one is judged
        return f"crashed: {type(error).__name__}: {error}"


def accepted(text: str, inputs: Mapping[str, np.ndarray], owned: Sequence[str] = ()) -> str:
    """What is wrong with our answer to a wrong call: that it has a value, or that it crashed. Empty if refused."""
    try:
        graph = elaborate(text, inputs, owned)
    except DiagnosticError as error:
        return "" if error.diagnostics[0].code.startswith("E-") else str(error)
    except Exception as error:  # a crash is no refusal
        return f"crashed: {type(error).__name__}: {error}"
    if any(v.shape != inputs[str(v.node.attrs["name"]).removeprefix(SLOT)].shape for v in graph.inputs):
        raise Skip("a parameter of another size than its layer makes")
    flagged: list[str] = []
    evaluate(graph, {n: inputs[n.removeprefix(SLOT)] for n in graph.input_names}, flag=lambda n, m: flagged.append(m))
    return "" if flagged else f"accepted {text[:90]}"


def _judged(case: Case, owned: Sequence[str], device: bool) -> str:
    try:
        graph = elaborate(case.text, case.inputs, owned)
    except DiagnosticError as error:
        return f"refused: {error.diagnostics[0].code} {error.diagnostics[0].message}"
    verify(graph)
    if len(graph.outputs) != len(case.expected):
        return f"{len(graph.outputs)} values, not {len(case.expected)}"
    flagged: list[str] = []
    values = evaluate(graph, fed(graph, case), flag=lambda node, message: flagged.append(message))
    if flagged:
        return f"flagged: {flagged[0]}"
    for i, (value, wanted) in enumerate(zip(values.values(), case.expected, strict=True)):
        with np.errstate(all="ignore"):
            fault = "" if wanted is None else differs(value, _narrow(wanted), case.single)
        if fault:
            return f"value {i}: {fault}"
    whole = graph
    if case.cotangents:
        whole = with_gradients(graph, case)
        verify(whole)
        exact = evaluate(whole, fed(whole, case), double=True)
        for name, wanted in case.gradients.items():
            value = exact.get(f"d:{name}", np.zeros(wanted.shape))
            fault = differs(value, wanted, case.double)
            if fault:
                return f"gradient of {name}: {fault}"
    if device:
        inputs = fed(whole, case)
        plain = evaluate(whole, inputs)
        for name, value in on_cpu(whole, inputs).items():
            fault = differs(value, plain[name], case.single)
            if fault:
                return f"cpu device, {name}: {fault}"
    return ""


def _narrow(wanted: np.ndarray) -> np.ndarray:
    return wanted.astype(np.float32) if wanted.dtype == np.float64 else wanted


Adapter = Callable[..., str]
