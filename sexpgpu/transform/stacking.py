"""Stacking: k consecutive microbatches in one call, made of the forward graph before it is differentiated.

Flow: after raising, before autodiff, so that a weight's gradient is one contraction over all k microbatches.
"""

from __future__ import annotations

from collections.abc import Collection

from sexpgpu.ir.builder import Builder
from sexpgpu.ir.graph import Graph
from sexpgpu.ir.ops.rules import batch
from sexpgpu.ir.stacking import stack_into


def stack(graph: Graph, k: int, batched: Collection[str]) -> Graph:
    """`graph` on k microbatches: inputs named in `batched` gain a leading axis of k, as do all outputs."""
    assert k >= 1, k
    unknown = set(batched) - set(graph.input_names)
    assert not unknown, (graph.name, unknown)
    b = Builder()
    inputs = {
        name: b.input(name, value.type.with_shape((k, *value.shape)) if name in batched else value.type)
        for name, value in zip(graph.input_names, graph.inputs, strict=True)
    }
    stacked = stack_into(b, graph, inputs, batched, k)
    outputs = [(name, batch(b, value, flag, k)) for name, (value, flag) in stacked.items()]
    return b.graph(graph.name, outputs, tuple(inputs.values()))
