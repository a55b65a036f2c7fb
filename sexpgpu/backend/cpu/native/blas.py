"""Products of f32 matrices by the BLAS library that NumPy has loaded, called from C.

Flow: `lowering` asks for the tiles of a product, cut by its shape alone; each is one call that stays on its thread.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

from sexpgpu.backend.cpu.native.driver import PRODUCT
from sexpgpu.ir.opdef import Array

SYMBOLS = (("scipy_cblas_sgemm64_", 1), ("cblas_sgemm64_", 1), ("scipy_cblas_sgemm", 0), ("cblas_sgemm", 0))
"""Names of the function, and whether its integers have 64 bits."""
LARGEST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Blas:
    """The function for products. wide: 1 if its integers have 64 bits."""

    address: int
    wide: int


@lru_cache(maxsize=1)
def find_blas() -> Blas | None:
    """The product of the OpenBLAS that NumPy has loaded; None where it has another library."""
    np.matmul(np.ones((2, 2), np.float32), np.ones((2, 2), np.float32))
    for about in ThreadpoolController().info():
        if about["internal_api"] != "openblas" or "numpy" not in about["filepath"]:
            continue
        library = ctypes.CDLL(about["filepath"])
        for name, wide in SYMBOLS:
            if hasattr(library, name):
                address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
                return None if address is None else Blas(address, wide)
    return None


def products_of(calls: Sequence[Callable[[], Any]]) -> np.ndarray | None:
    """Calls of `np.matmul` as rows of `driver.PRODUCT`; None if one of them is something else."""
    rows: list[tuple[int, ...]] = []
    for call in calls:
        if not isinstance(call, partial) or call.func is not np.matmul or len(call.args) != 3:
            return None
        x, y, out = call.args
        if min(x.ndim, y.ndim) < 2 or x.shape[:-2] != out.shape[:-2] or y.shape[:-2] != out.shape[:-2]:
            return None
        for place in np.ndindex(out.shape[:-2]):
            row = _product(x[place], y[place], out[place])
            if row is None:
                return None
            rows.append(row)
    return np.array(rows, PRODUCT)


def _product(x: Array, y: Array, out: Array) -> tuple[int, ...] | None:
    """One product; where the result lies column by column, that of the transposed matrices."""
    if _step(out, 1) is None:
        x, y, out = y.T, x.T, out.T
    step = _step(out, 1)
    left, right = _side(x), _side(y)
    if step is None or left is None or right is None or max(*x.shape, *y.shape) > LARGEST:
        return None
    sizes = (out.shape[0], out.shape[1], x.shape[1])
    return (*sizes, left[0], right[0], left[1], right[1], step, x.ctypes.data, y.ctypes.data, out.ctypes.data)


def _side(matrix: Array) -> tuple[int, int] | None:
    """Whether a matrix lies column by column, and the elements from row to row, or from column to column."""
    step = _step(matrix, 1)
    if step is not None:
        return 0, step
    step = _step(matrix, 0)
    return None if step is None else (1, step)


def _step(matrix: Array, near: int) -> int | None:
    """Elements from line to line of a matrix whose axis `near` has neighbours side by side."""
    item, far = matrix.itemsize, 1 - near
    if matrix.shape[near] != 1 and matrix.strides[near] != item:
        return None
    if matrix.shape[far] == 1:
        return max(1, matrix.shape[near])
    step = matrix.strides[far]
    return step // item if step % item == 0 and step // item >= max(1, matrix.shape[near]) else None
