"""The plainest executor: every node's NumPy meaning, one after the other, nothing planned.

Flow: tests compare every device with it; the host evaluates schedules by it. `backend.cpu` runs the same meanings
over a plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from sexpgpu.ir.graph import Graph, Node, Value
from sexpgpu.ir.opdef import OPS, Array, Context
from sexpgpu.ir.types import NUMPY_DTYPES, ORACLE_DTYPES


def evaluate(
    graph: Graph,
    inputs: Mapping[str, Array],
    *,
    double: bool = False,
    flag: Callable[[Node, str], None] | None = None,
) -> dict[str, Array]:
    """The outputs of `graph` by name, given its inputs by name.

    double: the f64 mode: floats are held and computed in double precision, whatever their dtype.
    flag: takes run-time faults (index out of range, division by zero).
    """
    ctx = Context(ORACLE_DTYPES if double else NUMPY_DTYPES, flag)
    arrays = [
        np.asarray(inputs[name]).astype(ctx.dtype(v.type), copy=False)
        for name, v in zip(graph.input_names, graph.inputs, strict=True)
    ]
    return dict(zip([name for name, _ in graph.outputs], run_graph(ctx, graph, arrays), strict=True))


def run_graph(ctx: Context, graph: Graph, inputs: Sequence[Array]) -> tuple[Array, ...]:
    """The outputs of `graph` in order, given its inputs in order, in storage of `ctx`."""
    known: dict[Value, Array] = dict(zip(graph.inputs, inputs, strict=True))
    for node in graph.nodes:
        if node.op == "input":
            continue
        result = OPS[node.op].meaning(ctx, node, [known[v] for v in node.inputs])
        results = result if isinstance(result, tuple) else (result,)
        known.update(zip(node.outputs, results, strict=True))
    return tuple(known[value] for value in graph.output_values)
