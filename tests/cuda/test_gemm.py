"""Products in einsum notation as strided batched matrix products, multiplied by an emulation of the library."""

from __future__ import annotations

import random

import numpy as np
import pytest

from sexpgpu.backend.cuda import gemm
from sexpgpu.ir.opdef import OPS, Array
from sexpgpu.ir.ops.contract import letter_sizes, letters
from sexpgpu.ir.types import NUMPY_DTYPES
from tests.cuda.fake import multiply

SPECS = [
    "ab,bc->ac", "ba,cb->ca", "btw,wo->bto", "btw,bto->wo", "bthd,bshd->bhts", "bhts,bshd->bthd", "akl,klb->ab",
    "ab,ab->", "ab,b->a", "nbthd,bshd->nbhts", "ab,ca->bc",
]  # fmt: skip


def strided(rng: random.Random, shape: tuple[int, ...], dtype: np.dtype) -> Array:
    """An array of this shape: dense, permuted, a window of something larger, or repeated."""
    order = rng.sample(range(len(shape)), len(shape)) if rng.random() < 0.5 else list(range(len(shape)))
    extra = [rng.randint(0, 2) * (rng.random() < 0.3) for _ in shape]
    padded = [shape[axis] + extra[axis] for axis in order]
    whole = np.random.default_rng(rng.randrange(1 << 30)).integers(-2, 3, padded).astype(dtype)
    window = whole[(*(slice(0, shape[axis]) for axis in order), ...)]
    return window.transpose(np.argsort(order))


def strides(x: Array) -> tuple[int, ...]:
    return tuple(s // x.itemsize for s in x.strides)


def run(found: gemm.Gemm, x: Array, y: Array, out: Array) -> None:
    for at_x, at_y, at_out in found.offsets:
        first = x.ctypes.data + at_x * x.itemsize
        second = y.ctypes.data + at_y * y.itemsize
        a, b = (second, first) if found.swapped else (first, second)
        multiply(found, a, b, out.ctypes.data + at_out * out.itemsize)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_layouts_as_they_lie(spec: str, dtype: str) -> None:
    rng = random.Random(spec + dtype)
    num_found = 0
    for _ in range(60):
        sizes = {letter: rng.choice([1, 2, 3, 5]) for letter in spec if letter.isalpha()}
        groups = letters(spec)
        x, y = (strided(rng, tuple(sizes[c] for c in side), NUMPY_DTYPES[dtype]) for side in (groups.x, groups.y))
        out = strided(rng, tuple(sizes[c] for c in groups.out), np.dtype(np.float32))
        out[...] = np.nan
        found = gemm.find(spec, sizes, strides(x), strides(y), strides(out), dtype, "f32")
        if found is None:
            continue
        num_found += 1
        run(found, x, y, out)
        wanted = np.einsum(spec, x.astype(np.float32), y.astype(np.float32))
        np.testing.assert_array_equal(out, wanted)
    assert num_found >= 10


def test_packed_operands_always_do() -> None:
    for sample in OPS["product"].samples:
        spec = str(sample.attrs["spec"])
        groups = letters(spec)
        x_type, y_type = sample.types
        sizes = letter_sizes(spec, x_type.shape, y_type.shape)
        if groups.lone_x or groups.lone_y or not groups.k or 0 in sizes.values():
            continue
        packed = gemm.packed(spec, sizes)
        assert gemm.find(spec, sizes, *packed, "f32", "f32") is not None, spec


def test_what_is_no_matrix_product() -> None:
    assert gemm.find("axb,byc->ac", dict(a=2, x=3, b=4, y=2, c=3), (12, 4, 1), (6, 3, 1), (3, 1), "f32", "f32") is None
    assert gemm.find("a,b->ab", dict(a=2, b=3), (1,), (1,), (3, 1), "f32", "f32") is None
    assert gemm.find("ab,bc->ac", dict(a=3, b=0, c=2), (0, 1), (2, 1), (2, 1), "f32", "f32") is None


def test_batch_axes_that_do_not_merge_are_several_launches() -> None:
    sizes = dict(b=2, h=3, t=4, s=5, d=6)
    packed_qkv = (4 * 3 * 3 * 6, 3 * 3 * 6, 6, 1)  # b t h d, a window of b t (3 h d)
    found = gemm.find("bthd,bshd->bhts", sizes, packed_qkv, (5 * 18, 18, 6, 1), (60, 20, 5, 1), "f32", "f32")
    assert found is not None
    assert (found.m, found.n, found.k, found.batch, len(found.offsets)) == (5, 4, 6, 3, 2)
    assert found.one.offsets == ((0, 0, 0),)


def test_the_large_products_of_a_transformer_take_one_launch_each() -> None:
    sizes = dict(a=16, b=1024, c=768, d=2304)
    rows = (1024 * 768, 768, 1)
    found = gemm.find("abc,cd->abd", sizes, rows, (2304, 1), (1024 * 2304, 2304, 1), "bf16", "bf16")
    assert found is not None and found.swapped
    assert (found.m, found.n, found.k, found.batch, len(found.offsets)) == (2304, 16384, 768, 1, 1)
    gradient = gemm.find("abd,abc->cd", sizes, (1024 * 2304, 2304, 1), rows, (2304, 1), "bf16", "f32")
    assert gradient is not None and (gradient.m, gradient.n, gradient.k) == (2304, 768, 16384)
