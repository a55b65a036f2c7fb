"""Operations as calls on arrays: what is known of a node is looked up once, when a plan is opened."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from sexpgpu.ir.graph import Node
from sexpgpu.ir.opdef import OPS, Array, Context, Into, Meaning, Stages

Kernel = Callable[..., Any]
"""Takes the arrays of all inputs, then those of all outputs."""

KEYWORD_ONLY = (np.maximum, np.minimum)
"""Functions that take their result's place by keyword only: they may have more operands one day."""


def map_kernel(ctx: Context, node: Node) -> Kernel:
    """An elementwise node on arrays, or on the same part of each of its arrays."""
    op = OPS[node.op]
    if op.ufunc is not None:
        return _by_keyword[op.ufunc] if op.ufunc in KEYWORD_ONLY else op.ufunc
    if op.into is not None:
        return partial(_into, op.into, ctx, node, len(node.inputs))
    return partial(_assign, op.meaning, ctx, node, len(node.inputs))


def _maximum(x: Array, y: Array, out: Array) -> None:
    np.maximum(x, y, out=out)


def _minimum(x: Array, y: Array, out: Array) -> None:
    np.minimum(x, y, out=out)


_by_keyword: dict[np.ufunc, Kernel] = {np.maximum: _maximum, np.minimum: _minimum}


def _into(into: Into, ctx: Context, node: Node, num_inputs: int, *arrays: Array) -> None:
    into(ctx, node, arrays[:num_inputs], arrays[num_inputs:])


def _assign(meaning: Meaning, ctx: Context, node: Node, num_inputs: int, *arrays: Array) -> None:
    """Compute a meaning and copy its results to their places."""
    result = meaning(ctx, node, arrays[:num_inputs])
    results = result if isinstance(result, tuple) else (result,)
    for out, made in zip(arrays[num_inputs:], results, strict=True):
        np.copyto(out, made)


def stages(ctx: Context, node: Node, inputs: Sequence[Array], outputs: Sequence[Array]) -> Stages:
    """Any node as calls: stages in order, the calls of one independent of each other."""
    op = OPS[node.op]
    if op.prepare is not None:
        return op.prepare(ctx, node, inputs, outputs)
    return ((partial(map_kernel(ctx, node), *inputs, *outputs),),)
