"""The buffers of an opened plan, and the windows that values are in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sexpgpu.ir.graph import Node
from sexpgpu.ir.opdef import OPS, Array, Context
from sexpgpu.ir.types import TensorType
from sexpgpu.plan.layout import Layout, constant_strides

LOOPS = "loops"
"""The buffer in which bodies of loops run, one at a time."""


def constant_bytes(node: Node, ctx: Context) -> Array:
    """The bytes of a constant, without what its layout repeats."""
    array = OPS[node.op].meaning(ctx, node, ())
    assert isinstance(array, np.ndarray), node
    once = tuple([slice(0, 1) if stride == 0 else slice(None) for stride in constant_strides(node)])
    stored = np.asarray(array)[once]
    return np.frombuffer(np.ascontiguousarray(stored).tobytes(), np.uint8)


@dataclass(frozen=True, slots=True)
class Memory:
    """The buffers of an opened plan, as bytes by name, and how each IR dtype is stored."""

    buffers: dict[str, Array]
    dtypes: Mapping[str, np.dtype[Any]]

    def view(self, layout: Layout, type: TensorType) -> Array:
        """The window of a buffer that holds a value."""
        dtype = self.dtypes[type.dtype]
        if type.size == 0:  # a part of nothing may lie outside of its buffer
            return np.empty(type.shape, dtype)
        strides = [stride * dtype.itemsize for stride in layout.strides]
        return np.ndarray(type.shape, dtype, self.buffers[layout.buffer].data, layout.offset_bytes, strides)
