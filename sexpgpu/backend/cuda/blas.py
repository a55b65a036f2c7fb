"""cuBLASLt through its C interface: a product is prepared once, and then enqueued with addresses.

Flow: `session` prepares the products of a plan here. Products accumulate in f32, never in TF32; the algorithm is
the library's first choice, so the same card and library give the same bits.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable
from ctypes import c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any

from sexpgpu.backend.cuda.driver import DriverError
from sexpgpu.backend.cuda.gemm import Gemm, Matrix

WORKSPACE_BYTES = 32 << 20
"""What the library's own choices assume on the newest cards."""

COMPUTE_32F = 68
DATA_TYPES = {"f32": 0, "bf16": 14}
TRANSPOSE_A, TRANSPOSE_B = 3, 4
BATCH_COUNT, BATCH_OFFSET = 5, 6
MAX_WORKSPACE, MIN_ALIGNMENT_A = 1, 5
MAX_ALIGNMENT_BYTES = 256


class _Heuristic(ctypes.Structure):
    """`cublasLtMatmulHeuristicResult_t`."""

    _fields_ = (
        ("algorithm", c_uint64 * 8),
        ("workspace_bytes", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    )


@dataclass(frozen=True, slots=True)
class Prepared:
    """A product with its algorithm chosen; the handles live as long as the library."""

    gemm: Gemm
    descriptor: c_void_p
    layouts: tuple[c_void_p, c_void_p, c_void_p]
    heuristic: _Heuristic


class Blas:
    """The library, opened. library: what stands in for it in a test. Raises DriverError where a call fails."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._handle = c_void_p()
        self._call("cublasLtCreate", ctypes.byref(self._handle))
        self._one, self._zero = c_float(1.0), c_float(0.0)
        self._prepared: dict[tuple[Gemm, tuple[int, int, int]], Prepared | None] = {}

    def _call(self, name: str, *args: Any) -> None:
        status = getattr(self._library, name)(*args)
        if status != 0:
            raise DriverError(name, status, "cuBLASLt refused")

    def version(self) -> str:
        """`13.1.0`."""
        function = self._library.cublasLtGetVersion
        function.restype = c_size_t
        number = int(function())
        return f"{number // 10000}.{number // 100 % 100}.{number % 100}"

    def prepare(self, gemm: Gemm, alignment_bytes: tuple[int, int, int]) -> Prepared | None:
        """A product whose A, B and C are aligned so; None if the library has no algorithm for it."""
        key = (gemm.one, alignment_bytes)
        if key not in self._prepared:
            self._prepared[key] = self._choose(*key)
        return self._prepared[key]

    def _choose(self, gemm: Gemm, alignment_bytes: tuple[int, int, int]) -> Prepared | None:
        descriptor, preference, heuristic = c_void_p(), c_void_p(), _Heuristic()
        self._call("cublasLtMatmulDescCreate", ctypes.byref(descriptor), COMPUTE_32F, DATA_TYPES["f32"])
        for attribute, matrix in ((TRANSPOSE_A, gemm.a), (TRANSPOSE_B, gemm.b)):
            value = c_int32(int(matrix.transposed))
            self._set("cublasLtMatmulDescSetAttribute", descriptor, attribute, value)
        layouts = tuple(
            [
                self._layout(matrix, dtype, gemm.batch)
                for matrix, dtype in ((gemm.a, gemm.dtype), (gemm.b, gemm.dtype), (gemm.c, gemm.out_dtype))
            ]
        )
        self._call("cublasLtMatmulPreferenceCreate", ctypes.byref(preference))
        set_preference = "cublasLtMatmulPreferenceSetAttribute"
        self._set(set_preference, preference, MAX_WORKSPACE, c_uint64(WORKSPACE_BYTES))
        a, b, c = alignment_bytes
        for i, alignment in enumerate((a, b, c, c)):
            self._set(set_preference, preference, MIN_ALIGNMENT_A + i, c_uint32(alignment))
        num_found = c_int()
        status = self._library.cublasLtMatmulAlgoGetHeuristic(
            self._handle, descriptor, *layouts, layouts[2], preference, 1, ctypes.byref(heuristic),
            ctypes.byref(num_found),
        )  # fmt: skip
        self._call("cublasLtMatmulPreferenceDestroy", preference)
        if status != 0 or num_found.value == 0 or heuristic.state != 0:
            return None
        return Prepared(gemm, descriptor, (layouts[0], layouts[1], layouts[2]), heuristic)

    def _layout(self, matrix: Matrix, dtype: str, batch: int) -> c_void_p:
        layout = c_void_p()
        sizes = (c_uint64(matrix.rows), c_uint64(matrix.columns), c_int64(matrix.leading))
        self._call("cublasLtMatrixLayoutCreate", ctypes.byref(layout), DATA_TYPES[dtype], *sizes)
        if batch > 1:
            set_layout = "cublasLtMatrixLayoutSetAttribute"
            self._set(set_layout, layout, BATCH_COUNT, c_int32(batch))
            self._set(set_layout, layout, BATCH_OFFSET, c_int64(matrix.batch_stride))
        return layout

    def _set(self, call: str, target: c_void_p, attribute: int, value: Any) -> None:
        self._call(call, target, attribute, ctypes.byref(value), c_size_t(ctypes.sizeof(value)))

    def enqueue(self, product: Prepared, a: int, b: int, c: int, workspace: int, stream: int) -> None:
        """C = op(A)·op(B) at these addresses. workspace: of WORKSPACE_BYTES."""
        layout_a, layout_b, layout_c = product.layouts
        one, zero = ctypes.byref(self._one), ctypes.byref(self._zero)
        self._call(
            "cublasLtMatmul", self._handle, product.descriptor, one, c_void_p(a), layout_a, c_void_p(b), layout_b,
            zero, c_void_p(c), layout_c, c_void_p(c), layout_c, ctypes.byref(product.heuristic.algorithm),
            c_void_p(workspace), c_size_t(WORKSPACE_BYTES), c_void_p(stream),
        )  # fmt: skip

    def close(self) -> None:
        """Give the library's own memory back."""
        self._call("cublasLtDestroy", self._handle)


def alignment(address: int) -> int:
    """The alignment that the library may count on at `address`."""
    return min(MAX_ALIGNMENT_BYTES, address & -address) if address else MAX_ALIGNMENT_BYTES


def load_library(loader: Callable[[str], Any] | None = None) -> Any:
    """cuBLASLt, wherever NVIDIA's packages or the system keep it. Raises ImportError or RuntimeError."""
    load = importlib.import_module("cuda.pathfinder").load_nvidia_dynamic_lib if loader is None else loader
    return ctypes.CDLL(load("cublasLt").abs_path)
