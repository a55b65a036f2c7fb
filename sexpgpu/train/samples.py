"""The samples of all operations on a device, beside their meanings: whether its kernels work at all.

Flow: `cli.verify --kernels`, and the tests of every device.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

import sexpgpu.ir.ops  # noqa: F401
from sexpgpu.backend.protocol import Budget, Call, Device
from sexpgpu.ir.builder import Builder
from sexpgpu.ir.evaluate import evaluate
from sexpgpu.ir.graph import Graph, Node
from sexpgpu.ir.opdef import OPS, Array, Sample
from sexpgpu.ir.program import FEED, RESULT, Phase, Program
from sexpgpu.ir.types import NUMPY_DTYPES
from sexpgpu.train.differences import of_elements
from sexpgpu.train.verification import NO_SCHEDULE, Finding


@dataclass(frozen=True, slots=True)
class Case:
    """One sample of one operation. name: `softplus-1`, the second of them."""

    name: str
    op: str
    sample: Sample

    def graph(self) -> Graph:
        """The operation alone: from `feed:x0`, … to `result:y0`, …."""
        b = Builder()
        inputs = [b.input(f"{FEED}x{i}", type) for i, type in enumerate(self.sample.types)]
        node = b.node(self.op, inputs, self.sample.attrs, self.sample.bodies)
        return b.graph("p", [(f"{RESULT}y{i}", v) for i, v in enumerate(node.outputs)], inputs)

    def feeds(self) -> dict[str, Array]:
        """The same values every time, within the ranges that the sample states."""
        rng = np.random.default_rng(zlib.crc32(self.op.encode()))
        return {f"x{i}": self._values(i, rng) for i in range(len(self.sample.types))}

    def _values(self, position: int, rng: np.random.Generator) -> Array:
        sample = self.sample
        type = sample.types[position]
        limits = sample.ranges[position] if position < len(sample.ranges) else None
        low, high = limits or ((0, 3) if type.is_integer else (-2, 2))
        if type.is_integer:
            made: Array = rng.integers(int(low), max(int(low) + 1, int(high)), type.shape)
        else:
            made = np.asarray(rng.uniform(low, high, type.shape))
        return np.asarray(made > 0 if type.dtype == "bool" else made).astype(NUMPY_DTYPES[type.dtype])


def cases() -> Iterator[Case]:
    """Every sample of every operation, by name."""
    for name, op in sorted(OPS.items()):
        for number, sample in enumerate(op.samples):
            yield Case(f"{name}-{number}", name, sample)


def verify_samples(device: Device, budget: Budget) -> Iterator[Finding]:
    """Every case as a phase of one program, but those of dtypes that the device does not have.

    Faults that differ from the interpreter's break a bound too.
    """
    every = {case.name: (case, graph) for case in cases() if _fits(graph := case.graph(), device.dtypes)}
    phases = tuple([Phase(name, graph) for name, (_, graph) in every.items()])
    session = device.open(device.plan(Program((), phases, NO_SCHEDULE), budget))
    try:
        for name, (case, graph) in every.items():
            feeds = case.feeds()
            given = {FEED + key: array for key, array in feeds.items()}
            flagged: dict[str, None] = {}
            with np.errstate(all="ignore"):
                wanted = evaluate(graph, given, flag=partial(_note, flagged))
            (outputs,) = session.run([Call(name, feeds)]).result()
            same_faults = [fault.message for fault in outputs.faults] == list(flagged)
            for output, value in graph.outputs:
                found = outputs.results[output.removeprefix(RESULT)]
                difference = of_elements(found, wanted[output], value.dtype, partial(_exact, graph, given, output))
                if not same_faults:
                    difference = replace(difference, used=np.inf)
                yield Finding(name, case.op, value.type, None, difference)
    finally:
        session.close()


def _fits(graph: Graph, dtypes: Collection[str]) -> bool:
    return all(type.dtype in dtypes for node in graph.walk() for type in node.types)


def _note(flagged: dict[str, None], node: Node, message: str) -> None:
    flagged.setdefault(message)


def _exact(graph: Graph, given: Mapping[str, Array], output: str) -> Array:
    with np.errstate(all="ignore"):
        return evaluate(graph, given, double=True)[output]
