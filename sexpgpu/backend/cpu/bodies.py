"""The plan of a loop's body: its steps, and the memory that they share from trip to trip.

Flow: `workspace` counts it when a program is planned, `loops` executes it. All loops of a program take turns in
one buffer, as only one runs at a time; a loop inside a body has its memory behind that of the body.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from sexpgpu.ir.builder import Builder
from sexpgpu.ir.graph import Graph, Node
from sexpgpu.ir.program import FEED, RESULT, Phase
from sexpgpu.plan.arena import aligned
from sexpgpu.plan.constants import Constants
from sexpgpu.plan.layout import ARENA
from sexpgpu.plan.memory import MemoryProfile
from sexpgpu.plan.phase import PhasePlan, plan_phase


@dataclass(frozen=True, eq=False)
class BodyPlan:
    """One trip as a phase: inputs of the body are feeds, its outputs results, by the same names.

    places: offset and bytes of each buffer in the memory of loops. num_bytes: what the body takes of it.
    inner_bytes: what loops inside it take behind that, one at a time.
    """

    plan: PhasePlan
    constants: tuple[Node, ...]
    places: Mapping[str, tuple[int, int]]
    num_bytes: int
    inner_bytes: int

    @property
    def total_bytes(self) -> int:
        """With the loops inside it."""
        return self.num_bytes + self.inner_bytes


def is_loop(node: Node) -> bool:
    """Whether a node runs by a body, trip after trip."""
    return node.op == "scan"


def plan_body(body: Graph, item_bytes: Mapping[str, int]) -> BodyPlan:
    """The plan of `body`, made once."""
    return _planned(body, tuple(item_bytes.items()))


@lru_cache(maxsize=1024)
def _planned(body: Graph, item_bytes: tuple[tuple[str, int], ...]) -> BodyPlan:
    b = Builder()
    sizes = dict(item_bytes)
    inputs = [b.input(FEED + n, v.type) for n, v in zip(body.input_names, body.inputs, strict=True)]
    values = b.copy(body, dict(zip(body.input_names, inputs, strict=True)))
    outputs = [(RESULT + name, v) for (name, _), v in zip(body.outputs, values, strict=True)]
    constants = Constants()
    phase = Phase(body.name, b.graph(body.name, outputs, inputs))
    plan = plan_phase(phase, MemoryProfile("cpu", sizes), constants)
    places: dict[str, tuple[int, int]] = {}
    end = 0
    feeds = [(FEED + n, v.type.size * sizes[v.dtype]) for n, v in zip(body.input_names, body.inputs, strict=True)]
    for name, num_bytes in (*feeds, (ARENA, plan.arena_bytes)):
        places[name] = (end, num_bytes)
        end += aligned(num_bytes)
    inner = [plan_body(s.node.bodies[0], sizes).total_bytes for s in plan.steps if is_loop(s.node)]
    return BodyPlan(plan, tuple(constants.nodes), places, end, max(inner, default=0))
