"""Products: notation, faults, layouts, and torch's einsum as the reference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sexpgpu.ir.builder import Builder
from sexpgpu.ir.opdef import OPS, Array, Context
from sexpgpu.ir.ops import contract as module
from sexpgpu.ir.ops.contract import MAX_TILES, canonical, contract, cuts, flop_sizes, tile_grid
from sexpgpu.ir.types import TensorType, TypeFault
from tests.ir.ops.calls import BF16, build, call, gradients, normal

SIZES = {"a": 2, "b": 3, "c": 4, "d": 5, "e": 1, "f": 6}

SPECS = (
    "ab,bc->ac", "ab,bc->ca", "ba,bc->ac", "ab,cb->ac", "abc,cd->abd", "abc,abd->cd", "abcd,aecd->ace",
    "abcd,aecd->aceb", "abcf,abdf->abcd", "abcf,abfd->abcd", "acbd,abed->ceab", "abcd,dcba->",
    "abcd,badc->ab", "ab,ab->ab", "ab,ba->ba", "a,b->ab", "a,b->ba", "a,bc->cab", ",->", ",ab->ba",
    "ab,->b", "abc,bd->ad", "ab,cd->", "ab,cd->bc", "abc,cba->b", "ab,b->a", "b,ab->a", "fabc,fbd->fdac",
    "abe,ecb->ac", "cab,cab->b",
)  # fmt: skip


def operands(spec: str, dtype: np.dtype | type = np.float32) -> tuple[Array, Array]:
    left, right = spec.split("->")[0].split(",")
    x, y = (normal(i, *(SIZES[c] for c in side)) for i, side in enumerate((left, right)))
    return np.asarray(x).astype(dtype), np.asarray(y).astype(dtype)


@pytest.mark.torch
@pytest.mark.parametrize("spec", SPECS)
def test_product_and_gradients_agree_with_torch(spec: str) -> None:
    torch = pytest.importorskip("torch")
    x, y = operands(spec)
    tx, ty = (torch.tensor(a, requires_grad=True) for a in (x, y))
    expected = torch.einsum(spec, tx, ty)
    actual = call("product", x, y, spec=spec)
    np.testing.assert_allclose(actual, expected.detach().numpy(), rtol=1e-5, atol=1e-5)
    g = np.asarray(normal(9, *actual.shape))
    expected.backward(torch.tensor(g))
    for found, wanted in zip(gradients("product", (x, y), g, spec=spec), (tx, ty), strict=True):
        np.testing.assert_allclose(found, wanted.grad.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.torch
@pytest.mark.parametrize("spec", ["abc,cd->abd", "ab,cd->bc"])
def test_bf16_operands_give_f32_and_bf16_cotangents(spec: str) -> None:
    torch = pytest.importorskip("torch")
    x, y = operands(spec, BF16)
    actual = call("product", x, y, spec=spec)
    assert actual.dtype == np.float32
    np.testing.assert_allclose(actual, np.einsum(spec, x.astype(np.float32), y.astype(np.float32)), rtol=1e-5)
    g = np.asarray(normal(9, *actual.shape))
    tx, ty = (torch.tensor(a.astype(np.float32), requires_grad=True) for a in (x, y))
    torch.einsum(spec, tx, ty).backward(torch.tensor(g.astype(BF16).astype(np.float32)))
    for found, wanted in zip(gradients("product", (x, y), g, spec=spec), (tx, ty), strict=True):
        assert found is not None
        assert found.dtype == BF16
        np.testing.assert_allclose(found.astype(np.float32), wanted.grad.numpy(), rtol=8e-3, atol=1e-6)


def test_the_cotangent_is_narrowed_by_a_visible_cast() -> None:
    b, node = build("product", operands("ab,bc->ac", BF16), {"spec": "ab,bc->ac"})
    rule = OPS["product"].gradient
    assert rule is not None
    dx, dy = rule(b, node, [b.input("g", node.types[0])])
    for cotangent in (dx, dy):
        assert cotangent is not None
        product = cotangent.node.inputs[0].node
        assert (cotangent.node.op, product.op, product.types[0].dtype) == ("cast", "product", "f32")
        assert {v.dtype for v in product.inputs} == {"bf16"}


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, dict[str, int], tuple[int, ...]]:
    """A notation, sizes, and a memory order of each of the three arrays."""
    names = st.lists(st.sampled_from("abcde"), unique=True, max_size=4)
    left, right = draw(names), draw(names)
    known = sorted({*left, *right})
    out = draw(st.lists(st.sampled_from(known), unique=True)) if known else []
    sizes = {c: draw(st.sampled_from([0, 1, 2, 3, 3])) for c in "abcde"}
    spec = f"{''.join(left)},{''.join(right)}->{''.join(out)}"
    return spec, sizes, tuple(draw(st.integers(0, 1000)) for _ in range(3))


def in_memory_order(array: Array, seed: int) -> Array:
    """The same elements, their axes in some order in memory, sometimes with gaps."""
    rng = np.random.default_rng(seed)
    perm = rng.permutation(array.ndim)
    gap = int(rng.integers(1, 3))
    room = np.zeros([array.shape[p] * gap for p in perm], array.dtype)
    view = room[(*(slice(None, None, gap) for _ in perm), ...)].transpose(np.argsort(perm))
    view[...] = array
    return view


@given(cases())
def test_any_notation_in_any_layout(case: tuple[str, dict[str, int], tuple[int, ...]]) -> None:
    spec, sizes, seeds = case
    sides, out = spec.split("->")
    x, y = (np.asarray(normal(i, *(sizes[c] for c in side))) for i, side in enumerate(sides.split(",")))
    expected = np.einsum(spec, x, y)
    result = in_memory_order(np.full([sizes[c] for c in out], 7, np.float32), seeds[2])
    contract(spec, in_memory_order(x, seeds[0]), in_memory_order(y, seeds[1]), result)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


def test_broadcast_operands() -> None:
    x = np.broadcast_to(np.float32(2), (3, 4))
    y = np.broadcast_to(normal(0, 5), (4, 5))
    np.testing.assert_allclose(call("product", x, y, spec="ab,bc->ac"), np.array(x) @ np.array(y), rtol=1e-6)


def test_integers_wrap() -> None:
    x = np.full((2, 2), 2**30, np.int32)
    assert call("product", x, x, spec="ab,bc->ac").tolist() == [[0, 0], [0, 0]]


def test_stacking_is_one_product() -> None:
    b, node = build("product", operands("ab,bc->ac"), {"spec": "ab,bc->ac"})
    for batched, spec in (
        ((True, True), "dab,dbc->dac"),
        ((True, False), "dab,bc->dac"),
        ((False, True), "ab,dbc->dac"),
    ):
        inputs = [
            b.input(f"k{batched}{i}", v.type.with_shape(((7,) if flag else ()) + v.shape))
            for i, (v, flag) in enumerate(zip(node.inputs, batched, strict=True))
        ]
        (out,) = OPS["product"].stacking(b, node, inputs, batched, 7)
        assert out.node.op == "product"
        assert out.node.attrs["spec"] == spec
        assert out.shape == (7, 2, 4)


def test_canonical_and_costs() -> None:
    assert canonical("btw,wo->bto") == canonical("xyz,zq->xyq") == "abc,cd->abd"
    _, node = build("product", operands("abc,cd->abd"), {"spec": "abc,cd->abd"})
    assert flop_sizes(node) == {"a": 2, "b": 3, "c": 4, "d": 5}
    assert OPS["product"].cost(node).flops == 2 * 2 * 3 * 4 * 5


@pytest.mark.parametrize(
    ("spec", "x", "y", "code", "parts"),
    [
        ("ab,bc->ac", ("f32", (2, 3)), ("f32", (4, 5)), "E-TYPE-004", ["`b`", "3", "4"]),
        ("ab,bc->ac", ("f32", (2, 3)), ("bf16", (3, 5)), "E-TYPE-001", ["f32", "bf16"]),
        ("ab,bc->ac", ("bool", (2, 3)), ("bool", (3, 5)), "E-TYPE-001", ["bool"]),
        ("ab,bc->ac", ("f32", (2, 3, 4)), ("f32", (3, 5)), "E-TYPE-002", ["`ab`", "(f32 2 3 4)"]),
        ("aa,ac->ac", ("f32", (2, 2)), ("f32", (2, 5)), "E-TYPE-002", ["`a`", "twice"]),
        ("ab,bc->ad", ("f32", (2, 3)), ("f32", (3, 5)), "E-TYPE-002", ["`d`"]),
        ("ab->a", ("f32", (2, 3)), ("f32", (3, 5)), "E-TYPE-002", ["ab->a"]),
        ("ab,b c->ac", ("f32", (2, 3)), ("f32", (3, 5)), "E-TYPE-002", ["` `"]),
    ],
)
def test_faults(
    spec: str, x: tuple[str, tuple[int, ...]], y: tuple[str, tuple[int, ...]], code: str, parts: list[str]
) -> None:
    b = Builder()
    with pytest.raises(TypeFault) as fault:
        b.product(spec, b.input("x", TensorType(*x)), b.input("y", TensorType(*y)))
    assert fault.value.code == code
    assert all(part in fault.value.message for part in parts)


def run_stages(spec: str, x: Array, y: Array, out: Array) -> None:
    _, node = build("product", (x, y), {"spec": spec})
    prepare = OPS["product"].prepare
    assert prepare is not None
    stages = prepare(Context(), node, (x, y), (out,))
    for _ in range(2):
        out[...] = 0
        for stage in stages:
            for step in reversed(stage):
                step()


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("dtype", [np.float32, BF16, np.int32])
@pytest.mark.parametrize("awkward", [False, True])
def test_prepared_tiles_are_the_product(spec: str, dtype: type, awkward: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """awkward: every second element of larger arrays, which BLAS cannot address."""
    monkeypatch.setattr(module, "TILE_WORK", 1)
    monkeypatch.setattr(module, "LEAST_WORK", 1)
    monkeypatch.setattr(module, "LEAST_SIDE", 1)
    x, y = (np.asarray(2 * a).astype(dtype) for a in operands(spec))
    expected = call("product", x, y, spec=spec)
    out = np.empty_like(expected)
    if awkward:
        x, y, out = (np.repeat(a, 2, -1)[..., ::2] if a.ndim else a for a in (x, y, np.asarray(out)))
    run_stages(spec, x, y, out)
    np.testing.assert_allclose(out, expected, 1e-5, 1e-5)


@given(*[st.integers(1, 5000)] * 4)
def test_a_grid_covers_the_product(num_batch: int, m: int, n: int, k: int) -> None:
    batches, rows, columns = tile_grid(num_batch, m, n, k)
    assert batches * rows * columns <= MAX_TILES
    for size, parts in ((num_batch, batches), (m, rows), (n, columns)):
        found = [i for cut in cuts(size, parts) for i in range(size)[cut]]
        assert found == list(range(size)) and parts <= size


def test_small_products_are_one_tile() -> None:
    assert tile_grid(1, 64, 64, 64) == (1, 1, 1)
    assert tile_grid(1, 1024, 3072, 768)[1:] != (1, 1)
