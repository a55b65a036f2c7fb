"""The visible list of passes, and the one function that runs them.

Flow: `train.phases` runs `forward_passes` over a loss graph, differentiates what they give, assembles
phases of it, and runs `FINAL_PASSES` over each.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from sexpgpu.ir.graph import Graph
from sexpgpu.ir.verify import verify
from sexpgpu.transform.loops import prune_loops
from sexpgpu.transform.raising import raise_composites
from sexpgpu.transform.recompute import inline_recompute
from sexpgpu.transform.simplify import simplify
from sexpgpu.transform.stacking import stack


@dataclass(frozen=True, slots=True)
class Pass:
    """A named function from graph to graph that keeps the names of inputs and outputs."""

    name: str
    function: Callable[[Graph], Graph]


def forward_passes(k: int, batched: Collection[str]) -> tuple[Pass, ...]:
    """Before differentiation; `batched` names the inputs that each of k microbatches has its own of."""
    raised = Pass("raise", raise_composites)
    return (raised,) if k == 1 else (raised, Pass("stack", lambda graph: stack(graph, k, batched)))


FINAL_PASSES: tuple[Pass, ...] = (
    Pass("prune-loops", prune_loops),
    Pass("inline-recompute", inline_recompute),
    Pass("simplify", simplify),
)
"""What runs once nothing differentiates the graph any more."""


def run_passes(graph: Graph, passes: Sequence[Pass], *, check: bool = False) -> Graph:
    """`graph` through `passes` in order; `check` verifies it before the first and after each."""
    if check:
        verify(graph)
    for each in passes:
        before, graph = graph, each.function(graph)
        if check:
            _verify_after(each, before, graph)
    return graph


def _verify_after(each: Pass, before: Graph, after: Graph) -> None:
    try:
        verify(after)
    except AssertionError as error:
        raise AssertionError(f"after `{each.name}`: {error}") from error
    assert before.input_names == after.input_names, (each.name, before.input_names, after.input_names)
    names = [name for name, _ in before.outputs], [name for name, _ in after.outputs]
    assert names[0] == names[1], (each.name, names)
