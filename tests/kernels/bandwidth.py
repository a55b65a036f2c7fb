"""How fast kernels are on the card of this machine: `python -m tests.kernels.bandwidth [PART OF A NAME]`.

Bytes are those that an operation moves at least; times are medians of event times, launches one after the other.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import Any

import numpy as np

import sexpgpu.ir.ops  # noqa: F401
from sexpgpu.backend.kernels.cuda import print_step
from sexpgpu.ir.builder import Builder
from sexpgpu.ir.opdef import OPS
from sexpgpu.ir.types import TensorType
from sexpgpu.plan.layout import Layout, contiguous
from sexpgpu.plan.phase import Step
from tests.kernels.card import Card, bound, check, spaces

M = 1 << 26
REPEATS = 15


def t(dtype: str, *shape: int) -> TensorType:
    return TensorType(dtype, shape)


Case = tuple[str, str, list[TensorType], dict[str, Any], dict[int, tuple[int, ...]]]
CASES: list[Case] = [
    ("add f32 64M", "add", [t("f32", M)] * 2, {}, {}),
    ("mul f32 64M", "mul", [t("f32", M)] * 2, {}, {}),
    ("tanh f32 64M", "tanh", [t("f32", M)], {}, {}),
    ("cast f32 bf16 64M", "cast", [t("f32", M)], {"dtype": "bf16"}, {}),
    ("cast bf16 f32 64M", "cast", [t("bf16", M)], {"dtype": "f32"}, {}),
    ("add row [65536 768]", "add", [t("f32", 65536, 768)] * 2, {}, {1: (0, 1)}),
    ("add column [65536 768]", "add", [t("f32", 65536, 768)] * 2, {}, {1: (1, 0)}),
    ("where 64M", "where", [t("bool", M), t("f32", M), t("f32", M)], {}, {}),
    ("add f32 small 1M", "add", [t("f32", 1 << 20)] * 2, {}, {}),
    ("transpose f32 8192²", "transpose", [t("f32", 8192, 8192)], {"perm": (1, 0)}, {}),
    ("transpose bf16 8192²", "transpose", [t("bf16", 8192, 8192)], {"perm": (1, 0)}, {}),
    ("heads bf16", "transpose", [t("bf16", 64, 1024, 12, 64)], {"perm": (0, 2, 1, 3)}, {}),
    ("pad rows", "pad", [t("f32", 65536, 768)], {"low": (1, 0), "high": (0, 0), "interior": (0, 0)}, {}),
    ("concat", "concat", [t("f32", 65536, 384)] * 2, {"axis": 1}, {}),
    ("sum rows [65536 768]", "sum", [t("f32", 65536, 768)], {"axes": (1,)}, {}),
    ("sum rows [8192 50304]", "sum", [t("f32", 8192, 50304)], {"axes": (1,)}, {}),
    ("sum columns [65536 768]", "sum", [t("f32", 65536, 768)], {"axes": (0,)}, {}),
    ("sum columns [16384 3072]", "sum", [t("f32", 16384, 3072)], {"axes": (0,)}, {}),
    ("sum all 64M", "sum", [t("f32", M)], {"axes": (0,)}, {}),
    ("max rows [8192 50304]", "max", [t("f32", 8192, 50304)], {"axes": (1,)}, {}),
    ("argmax rows [8192 50304]", "argmax", [t("f32", 8192, 50304)], {"axis": 1}, {}),
    ("gather bf16 65536 x 768", "gather", [t("bf16", 50304, 768), t("i32", 65536)], {"axis": 0, "batch": 0}, {}),
    ("pick [8192 50304]", "pick", [t("f32", 8192, 50304), t("i32", 8192)], {"axis": 1}, {}),
    ("scatter add uniform", "scatter", [t("f32", 50304, 768), t("i32", 65536), t("f32", 65536, 768)],
     {"axis": 0, "batch": 0, "fold": "add"}, {0: (0, 0)}),
    ("scatter add Zipf", "scatter", [t("f32", 50304, 768), t("i32", 65536), t("f32", 65536, 768)],
     {"axis": 0, "batch": 0, "fold": "add"}, {0: (0, 0)}),
    ("uniform 64M", "random-uniform", [t("i64"), t("i32")], {"shape": (M,), "site": 7}, {}),
    ("normal 64M", "random-normal", [t("i64"), t("i32")], {"shape": (M,), "site": 7}, {}),
    ("cumsum rows 8192²", "cumsum", [t("f32", 8192, 8192)], {"axis": 1}, {}),
    ("cumsum columns 8192²", "cumsum", [t("f32", 8192, 8192)], {"axis": 0}, {}),
    ("product f32 2048³", "product", [t("f32", 2048, 2048)] * 2, {"spec": "ab,bc->ac"}, {}),
    ("product bf16 2048³", "product", [t("bf16", 2048, 2048)] * 2, {"spec": "ab,cb->ac"}, {}),
    ("conv f32 32x32x64", "conv", [t("f32", 64, 32, 32, 64), t("f32", 3, 3, 64, 64)],
     {"stride": (1, 1), "low": (1, 1), "high": (1, 1), "dilation": (1, 1), "input_dilation": (1, 1), "groups": 1}, {}),
]  # fmt: skip


def indices(name: str, type: TensorType, limit: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    if "Zipf" in name:
        return np.minimum(rng.zipf(1.2, type.shape) - 1, limit - 1).astype(np.int32)
    return rng.integers(0, limit, type.shape).astype(np.int32)


def time_ms(card: Card, functions: dict[str, Any], given: list[Any]) -> float:
    """Median time of all the launches together."""
    events = [check(card.driver.cuEventCreate(0)) for _ in range(REPEATS + 1)]
    for event in events:
        for launch, arguments in given:
            card.launch(functions, launch, arguments)
        check(card.driver.cuEventRecord(event, 0))
    card.wait()
    return float(np.median([check(card.driver.cuEventElapsedTime(a, z)) for a, z in pairwise(events)]))


def measure(card: Card, case: Case) -> str:
    name, op, types, attrs, strides = case
    b = Builder()
    node = b.node(op, [b.input(f"x{i}", x) for i, x in enumerate(types)], attrs)
    inputs = [Layout("b", 0, strides.get(i, contiguous(x.shape))) for i, x in enumerate(types)]
    outputs = [Layout("b", 0, contiguous(x.shape)) for x in node.types]
    step = Step(node, tuple(inputs), tuple(outputs))
    pointers = [card.allocate(x.num_bytes) for x in (*types, *node.types)]
    for pointer, x in zip(pointers, types, strict=False):
        check(card.driver.cuMemsetD32(pointer, 0, max(1, x.num_bytes // 4)))
        if x.dtype == "i32" and x.size > 1:
            card.upload(pointer, indices(name, x, types[0].shape[attrs["axis"]]))
    workspaces, flag = spaces(card, step)
    given = bound(step, pointers[: len(types)], pointers[len(types) :], workspaces, flag)
    functions = card.unit(print_step(step))
    ms = time_ms(card, functions, given)
    parts = [f"{time_ms(card, functions, [one]):.4f}" for one in given] if len(given) > 1 else []
    moved = OPS[op].cost(node).bytes
    for i, walk in strides.items():
        moved -= types[i].num_bytes
        used = [n for n, s in zip(types[i].shape, walk, strict=True) if s]
        moved += int(np.prod(used, dtype=np.int64)) * 4
    flops = OPS[op].cost(node).flops
    for pointer in (*pointers, *workspaces, flag):
        card.free(pointer)
    return f"{name:28} {ms:8.4f} ms {moved / ms / 1e6:8.0f} GB/s {flops / ms / 1e9:8.2f} TFLOP/s {' + '.join(parts)}"


def main() -> None:
    card = Card()
    for case in CASES:
        if len(sys.argv) > 1 and sys.argv[1] not in case[0]:
            continue
        print(measure(card, case), flush=True)


if __name__ == "__main__":
    main()
