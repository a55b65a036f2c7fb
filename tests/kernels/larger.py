"""Cases beside the samples of the operations: sizes that reach every form of every printer, and rare values."""

from __future__ import annotations

from sexpgpu.ir.opdef import Sample
from sexpgpu.ir.types import TensorType


def t(dtype: str, *shape: int) -> TensorType:
    return TensorType(dtype, shape)


def scatter(
    dtype: str, x: tuple[int, ...], i: tuple[int, ...], axis: int, batch: int, fold: str, low: int = -1
) -> Sample:
    v = (*x[:axis], *i[batch:], *x[axis + 1 :])
    types = (t(dtype, *x), t("i32", *i), t(dtype, *v))
    return Sample(types, {"axis": axis, "batch": batch, "fold": fold}, (None, (low, x[axis]), None))


def product(spec: str, dtype: str, **sizes: int) -> Sample:
    left, right = spec.split("->")[0].split(",")
    types = tuple(t(dtype, *(sizes[c] for c in side)) for side in (left, right))
    return Sample(types, {"spec": spec})


REDUCED = (
    Sample((t("f32", 5, 2048),), {"axes": (1,)}),
    Sample((t("f32", 3, 70),), {"axes": (1,)}),
    Sample(
        (
            t(
                "f32",
                9000,
            ),
        ),
        {"axes": (0,)},
    ),
    Sample((t("f32", 300, 40),), {"axes": (0,)}),
    Sample((t("f32", 200, 3),), {"axes": (0,)}),
    Sample((t("f32", 6, 50, 4, 8),), {"axes": (0, 2)}),
    Sample((t("i32", 5, 600),), {"axes": (1,)}),
)
ARGUED = tuple(Sample(s.types, {"axis": s.attrs["axes"][0]}, ((0, 40),)) for s in REDUCED if len(s.attrs["axes"]) == 1)
RUNNING = (
    Sample((t("f32", 40, 70),), {"axis": 1}),
    Sample((t("f32", 70, 40),), {"axis": 0}),
    Sample((t("i64", 3, 40, 2),), {"axis": 1}),
)

SCATTERED = tuple(
    scatter("f32", x, i, axis, batch, fold, low)
    for fold in ("set", "add", "max", "min")
    for x, i, axis, batch, low in (
        ((50, 16), (40, 5), 0, 0, -3),
        ((3, 5), (2000,), 1, 0, -1),
        ((2, 3, 40, 4), (2, 100), 2, 1, -1),
        ((200,), (1500,), 0, 0, -1),
    )
)

LARGER: dict[str, tuple[Sample, ...]] = {
    "add": (
        Sample((t("f32", 8, 32),) * 2),
        Sample((t("f32", 1030),) * 2),
        Sample((t("i64", 6, 10),) * 2, ranges=((-(2**62), 2**62),) * 2),
        Sample((t("f64", 6, 10),) * 2),
    ),
    "mul": (Sample((t("i32", 40),) * 2, ranges=((-(2**31), 2**31 - 1),) * 2),),
    "where": (
        Sample((t("bool", 8, 32), t("f32", 8, 32), t("f32", 8, 32))),
        Sample((t("bool", 64), t("bf16", 64), t("bf16", 64))),
    ),
    "cast": (
        Sample((t("f32", 4, 64),), {"dtype": "bf16"}),
        Sample((t("bf16", 4, 64),), {"dtype": "f32"}),
        Sample((t("f32", 64),), {"dtype": "i32"}, ((-3e9, 3e9),)),
        Sample((t("f32", 64),), {"dtype": "i64"}, ((-1e19, 1e19),)),
        Sample((t("f64", 64),), {"dtype": "i32"}, ((-3e9, 3e9),)),
        Sample((t("f64", 64),), {"dtype": "bf16"}),
        Sample((t("i64", 64),), {"dtype": "i32"}, ((-(2**62), 2**62),)),
        Sample((t("i64", 64),), {"dtype": "f32"}, ((-(2**62), 2**62),)),
        Sample((t("i32", 64),), {"dtype": "bf16"}, ((-(2**31), 2**31 - 1),)),
        Sample((t("f32", 64),), {"dtype": "bool"}),
        Sample((t("bool", 70),), {"dtype": "bf16"}),
    ),
    "quotient": (Sample((t("i64", 30),) * 2, ranges=((-9, 9), (-3, 3))),),
    "rem": (Sample((t("i64", 30),) * 2, ranges=((-9, 9), (-3, 3))),),
    "transpose": (
        Sample((t("f32", 40, 50),), {"perm": (1, 0)}),
        Sample((t("bf16", 3, 40, 2, 24),), {"perm": (0, 3, 2, 1)}),
    ),
    "reshape": (Sample((t("f32", 4, 6, 8),), {"shape": (24, 8)}), Sample((t("bf16", 32, 33),), {"shape": (33, 32)})),
    "pad": (
        Sample((t("f32", 3, 16),), {"low": (1, 0), "high": (2, 0), "interior": (1, 0)}),
        Sample((t("bf16", 3, 4, 8),), {"low": (0, 2, 0), "high": (0, 1, 0), "interior": (0, 0, 0)}),
    ),
    "concat": (
        Sample((t("f32", 4, 16), t("f32", 4, 32)), {"axis": 1}),
        Sample((t("bf16", 2, 40), t("bf16", 5, 40)), {"axis": 0}),
    ),
    "sum": REDUCED, "prod": REDUCED[1:2], "max": REDUCED, "min": REDUCED[:3],
    "any": (Sample((t("bool", 5, 700),), {"axes": (1,)}), Sample((t("bool", 300, 7),), {"axes": (0,)})),
    "argmax": ARGUED, "argmin": ARGUED,
    "cumsum": RUNNING, "cumprod": RUNNING[:1], "cummax": RUNNING,
    "gather": (
        Sample((t("bf16", 20, 64), t("i32", 7, 5)), {"axis": 0, "batch": 0}, (None, (-3, 22))),
        Sample((t("f32", 3, 9, 16), t("i64", 3, 11)), {"axis": 1, "batch": 1}, (None, (0, 9))),
        Sample((t("f32", 3, 2, 9, 4), t("i32", 3, 5)), {"axis": 2, "batch": 1}, (None, (-1, 10))),
    ),
    "pick": (Sample((t("f32", 30, 9), t("i32", 30)), {"axis": 1}, (None, (-2, 12))),),
    "scatter": (*SCATTERED, scatter("i32", (70, 3), (100,), 0, 0, "add")),
    "sort": (
        Sample((t("f32", 3, 1030),), {"axis": 1, "descending": True}),
        Sample((t("i32", 5000, 2),), {"axis": 0, "descending": False}, ((0, 50),)),
    ),
    "top-k": (
        Sample((t("f32", 2, 2100),), {"axis": 1, "k": 2050}),
        Sample((t("i32", 3100),), {"axis": 0, "k": 7}, ((0, 20),)),
        Sample((t("f64", 40, 9),), {"axis": 0, "k": 40}),
    ),
    "product": (
        product("ab,bc->ac", "f32", a=70, b=40, c=65),
        product("zab,zcb->zac", "bf16", z=2, a=20, b=33, c=70),
        product("abk,kc->cab", "i32", a=4, b=9, k=20, c=30),
        product("abk,bk->a", "f32", a=4, b=9, k=20),
        product("ab,ab->", "i64", a=40, b=9),
        product("abx,bc->ac", "f32", a=20, b=20, c=20, x=3),
    ),
}  # fmt: skip
