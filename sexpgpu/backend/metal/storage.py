"""How values lie in Metal's memory: bf16 as f32, every integer as i64. The host converts where it writes and reads.

An i32 still overflows as an i32, since kernels compute in it; a bf16 value is one that bf16 has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sexpgpu.backend.kernels.msl import MSL
from sexpgpu.ir.opdef import Array
from sexpgpu.ir.types import NUMPY_DTYPES, TensorType

STORED: Mapping[str, np.dtype[Any]] = MSL.memory
"""What holds an element, by IR dtype. There is no f64."""
ITEM_BYTES = {dtype: stored.itemsize for dtype, stored in STORED.items()}


def stored(value: Array, dtype: str) -> Array:
    """Contents as they lie in memory, dense."""
    return np.ascontiguousarray(value, STORED[dtype])


def loaded(raw: Array, type: TensorType) -> Array:
    """A value of its own from the dense bytes of a tensor in memory."""
    held = raw[: type.size * ITEM_BYTES[type.dtype]].view(STORED[type.dtype])
    return held.astype(NUMPY_DTYPES[type.dtype]).reshape(type.shape)
