"""Call one operation on arrays, and pull a cotangent back through it: shared by the tests of the families."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import ml_dtypes
import numpy as np

import sexpgpu.ir.ops  # noqa: F401
from sexpgpu.ir.builder import Builder
from sexpgpu.ir.evaluate import evaluate
from sexpgpu.ir.graph import Attr, Node
from sexpgpu.ir.opdef import OPS, Array
from sexpgpu.ir.types import NUMPY_DTYPES, TensorType

BF16 = np.dtype(ml_dtypes.bfloat16)
NAMES = {dtype: name for name, dtype in NUMPY_DTYPES.items()}


def type_of(array: Array) -> TensorType:
    return TensorType(NAMES[array.dtype], array.shape)


def build(op: str, arrays: Sequence[Array], attrs: dict[str, Attr]) -> tuple[Builder, Node]:
    b = Builder()
    return b, b.node(op, [b.input(f"x{i}", type_of(a)) for i, a in enumerate(arrays)], attrs)


def call(
    op: str,
    *arrays: Array,
    flag: Callable[[Node, str], None] | None = None,
    double: bool = False,
    **attrs: Attr,
) -> Array:
    """The operation's single result."""
    b, node = build(op, arrays, attrs)
    graph = b.graph("test", [("y", node.outputs[0])])
    return evaluate(graph, {f"x{i}": a for i, a in enumerate(arrays)}, double=double, flag=flag)["y"]


def gradients(op: str, arrays: Sequence[Array], cotangent: Array, **attrs: Attr) -> list[Array | None]:
    """The cotangent of each operand; None where the rule gives none."""
    b, node = build(op, arrays, attrs)
    rule = OPS[op].gradient
    assert rule is not None
    found = rule(b, node, [b.input("g", type_of(cotangent))])
    graph = b.graph("test", [(str(i), g) for i, g in enumerate(found) if g is not None])
    results = evaluate(graph, {"g": cotangent, **{f"x{i}": a for i, a in enumerate(arrays)}})
    return [results.get(str(i)) for i in range(len(arrays))]


def normal(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
