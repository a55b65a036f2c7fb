"""The buffers of an opened plan, and the windows that values are in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sexpgpu.ir.opdef import Array
from sexpgpu.ir.types import TensorType
from sexpgpu.plan.layout import Layout


@dataclass(frozen=True, slots=True)
class Memory:
    """The buffers of an opened plan, as bytes by name, and how each IR dtype is stored."""

    buffers: dict[str, Array]
    dtypes: Mapping[str, np.dtype[Any]]

    def view(self, layout: Layout, type: TensorType) -> Array:
        """The window of a buffer that holds a value."""
        dtype = self.dtypes[type.dtype]
        strides = [stride * dtype.itemsize for stride in layout.strides]
        return np.ndarray(type.shape, dtype, self.buffers[layout.buffer].data, layout.offset_bytes, strides)
