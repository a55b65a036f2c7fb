"""Tensor types: what every value of the IR has, and all that the front end knows of it.

Flow: `lang` computes types while it elaborates; the builder checks them with the same rules.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import ml_dtypes
import numpy as np

FLOATS = ("f32", "bf16", "f64")
INTEGERS = ("i32", "i64")
DTYPES = ("f32", "bf16", "i32", "i64", "bool", "f64")
ITEM_BYTES = {"f32": 4, "bf16": 2, "f64": 8, "i32": 4, "i64": 8, "bool": 1}
NUMPY_DTYPES: dict[str, np.dtype] = {
    "f32": np.dtype(np.float32),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f64": np.dtype(np.float64),
    "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64),
    "bool": np.dtype(np.bool_),
}
"""Storage of each IR dtype on the host. `f64` is for schedules and for gradient checks; files cannot name it."""

ORACLE_DTYPES = {**NUMPY_DTYPES, "f32": np.dtype(np.float64), "bf16": np.dtype(np.float64)}
"""The interpreter's f64 mode: every float is held and computed in double precision."""


@dataclass(frozen=True, slots=True)
class TensorType:
    """A dtype and a static shape; `(f32 8 512)` in text."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        return self.size * ITEM_BYTES[self.dtype]

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS

    @property
    def is_integer(self) -> bool:
        return self.dtype in INTEGERS

    def with_shape(self, shape: tuple[int, ...]) -> TensorType:
        return TensorType(self.dtype, shape)

    def with_dtype(self, dtype: str) -> TensorType:
        return TensorType(dtype, self.shape)

    def __str__(self) -> str:
        return "(" + " ".join([self.dtype, *map(str, self.shape)]) + ")"


MAX_RANK = 32
"""Axes of a tensor; NumPy's own limit is 64."""
MAX_ELEMENTS = 2**38
"""Elements of a tensor: 1 TiB of f32, which no machine holds. Sizes beyond it are slips of the hand."""


def admit(type: TensorType) -> TensorType:
    """The type itself. Raises TypeFault (E-TYPE-005) for one that no machine holds."""
    if len(type.shape) > MAX_RANK:
        raise TypeFault(f"a tensor of {len(type.shape)} axes; at most {MAX_RANK} are allowed", "E-TYPE-005")
    if type.size > MAX_ELEMENTS:
        raise TypeFault(f"{type} has more than 2^38 elements, which no machine holds", "E-TYPE-005")
    return type


class TypeFault(Exception):
    """A type rule refused its inputs. The front end turns it into a diagnostic at the user's form."""

    def __init__(self, message: str, code: str = "E-TYPE-002", help: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.help = help
