"""The meaning of each operation, against NumPy."""

import math

import ml_dtypes
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from tests.lang.files import elaborated, ops_of, value_of

F, INT = np.float32, np.int32
BF16 = ml_dtypes.bfloat16
R = np.random.default_rng(0)
A = R.standard_normal((3, 4)).astype(F)
B = R.standard_normal((3, 4)).astype(F)
V = R.standard_normal(4).astype(F)
P = np.abs(A) + F(0.5)
T = R.standard_normal((2, 3, 4)).astype(F)
N = np.array([[7, -7, 5], [-5, 3, -3]], INT)
D = np.array([[2, 2, -3], [3, -2, 3]], INT)
M = np.array([[True, False, True, True], [False, False, False, False], [True, True, True, True]])
IDS = np.array([2, 0, 2], INT)


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


ELEMENTWISE = [
    ("(+ a b)", A + B),
    ("(- a b)", A - B),
    ("(* a b)", A * B),
    ("(/ a b)", A / B),
    ("(- a)", -A),
    ("(+ a b a)", A + B + A),
    ("(* 2 a)", 2 * A),
    ("(* a 0.5)", A * F(0.5)),
    ("(- a 1 1)", A - 2),
    ("(/ 1 p)", 1 / P),
    ("(pow p 2)", P**2),
    ("(pow p 0.5)", np.sqrt(P)),
    ("(pow p b)", P**B),
    ("(minimum a b)", np.minimum(A, B)),
    ("(maximum a 0)", np.maximum(A, 0)),
    ("(maximum a b 0.1)", np.maximum(np.maximum(A, B), F(0.1))),
    ("(abs a)", np.abs(A)),
    ("(sign a)", np.sign(A)),
    ("(exp a)", np.exp(A)),
    ("(expm1 a)", np.expm1(A)),
    ("(log p)", np.log(P)),
    ("(log1p p)", np.log1p(P)),
    ("(sqrt p)", np.sqrt(P)),
    ("(rsqrt p)", 1 / np.sqrt(P)),
    ("(tanh a)", np.tanh(A)),
    ("(sigmoid a)", 1 / (1 + np.exp(-A))),
    ("(erf a)", np.vectorize(math.erf)(A)),
    ("(sin a)", np.sin(A)),
    ("(cos a)", np.cos(A)),
    ("(floor a)", np.floor(A)),
    ("(ceil a)", np.ceil(A)),
    ("(round a)", np.round(A)),
    ("(is-finite (/ a 0))", np.isfinite(A * np.inf)),
    ("(= a a)", A == A),
    ("(!= a b)", A != B),
    ("(< a b)", A < B),
    ("(<= a b)", A <= B),
    ("(> a 0)", A > 0),
    ("(>= a b)", A >= B),
    ("(where (> a 0) a b)", np.where(A > 0, A, B)),
    ("(where (> a 0) 1 0.5)", np.where(A > 0, F(1), F(0.5))),
    ("(where m 1 0)", np.where(M, 1, 0)),
    ("(where (> a 0) a v)", np.where(A > 0, A, V)),
    ("(and (> a 0) m)", (A > 0) & M),
    ("(or (> a 0) m)", (A > 0) | M),
    ("(not m)", ~M),
    ("(and m true)", M),
    ("(or m false)", M),
    ("(quotient n d)", N // D),
    ("(rem n d)", N % D),
    ("(quotient n 2)", N // 2),
    ("(rem n -3)", N % -3),
    ("(+ n 1)", N + 1),
    ("(cast n f32)", N.astype(F)),
    ("(cast a i32)", A.astype(INT)),
    ("(cast m f32)", M.astype(F)),
    ("(cast (> a 0) i32)", (A > 0).astype(INT)),
    ("(stop-gradient a)", A),
    # The library's.
    ("(square a)", A * A),
    ("(relu a)", np.maximum(A, 0)),
    ("(leaky-relu a :slope 0.1)", np.where(A > 0, A, F(0.1) * A)),
    ("(silu a)", A / (1 + np.exp(-A))),
    ("(softplus a)", np.log1p(np.exp(A))),
    ("(clamp a -0.5 0.5)", np.clip(A, -0.5, 0.5)),
    ("(gelu a)", 0.5 * A * (1 + np.tanh(0.7978845608028654 * (A + 0.044715 * A**3)))),
    ("(softmax a)", softmax(A)),
    ("(softmax a :axis 0)", softmax(A, 0)),
    ("(log-softmax a)", np.log(softmax(A))),
    ("(norm a)", np.sqrt((A * A).sum())),
    ("(rms a)", np.sqrt((A * A).mean())),
    ("(lerp a b 0.25)", A + F(0.25) * (B - A)),
]


@pytest.mark.parametrize(("text", "wanted"), ELEMENTWISE, ids=[text for text, _ in ELEMENTWISE])
def test_elementwise(text, wanted):
    found = value_of(text, a=A, b=B, v=V, p=P, n=N, d=D, m=M)
    assert found.shape == np.shape(wanted)
    assert_allclose(found, wanted, rtol=2e-6, atol=1e-6)


FOLDED = [
    ("(+ 1 2 3)", 6),
    ("(- 5)", -5),
    ("(* 4 0.5)", 2.0),
    ("(/ 12 4)", 3),
    ("(/ 1.0 4)", 0.25),
    ("(quotient -7 2)", -4),
    ("(rem -7 2)", 1),
    ("(pow 2 10)", 1024),
    ("(pow 2.0 -1)", 0.5),
    ("(pow 2 -1)", 0.5),
    ("(minimum 3 1 2)", 1),
    ("(maximum 3 1)", 3),
    ("(abs -3)", 3),
    ("(sign -2.5)", -1),
    ("(exp 0.0)", 1.0),
    ("(sqrt 9.0)", 3.0),
    ("(rsqrt 4.0)", 0.5),
    ("(sigmoid 0.0)", 0.5),
    ("(floor 2.7)", 2),
    ("(ceil 2.1)", 3),
    ("(round 2.5)", 2),
    ("(cos pi)", -1.0),
    ("(length [1 2 3])", 3),
    ("(nth [4 5 6] -1)", 6),
    ("(length (range 2 11 3))", 3),
    ("(nth (range 2 11 3) 1)", 5),
    ("(nth (append [1] 2 3) 2)", 3),
    ("(size (f32 3 4))", 12),
    ("(rank (f32 3 4))", 2),
    ("(dim (f32 3 4) -1)", 4),
    ("(nth (shape (f32 3 4)) 0)", 3),
    ("(cast 2.7 i32)", 2),
    ("(cast 2 f32)", 2.0),
    ("(if (= 1 1.0) 1 2)", 1),
    ("(if (= [1 2] [1 2]) 1 2)", 1),
    ('(if (!= "a" "b") 1 2)', 1),
    ('(if (matches "net.a.w" "*.w") 1 2)', 1),
    ("(if (< 1 2) 1 2)", 1),
    ("(if false 1 false 2 3)", 3),
    ("(if false 1 true 2 3)", 2),
    ("(if (and true (not false)) 1 2)", 1),
    ("(if (or false (>= 2 2)) 1 2)", 1),
    ("(if (none? none) 1 2)", 1),
    ("(if (number? 3) 1 2)", 1),
    ("(if (number? none) 1 2)", 2),
    ("(if (= (dtype (f32 2)) f32) 1 2)", 1),
    ("(if (= f32 bf16) 1 2)", 2),
    ("(if (= (type i32 [2 3]) (i32 2 3)) 1 2)", 1),
    ("(reverse-first [1 2 3])", 3),
    ("(vocabulary words)", 28),
    ('(length (encode words "the"))', 3),
    ("(is-it-finite inf)", 2),
    ("(floor (/ 7 2.0))", 3),
    ("(cast true i32)", 1),
]
HELPERS = """(defn reverse-first (v) (nth (reverse v) 0)) (defdata words (text "words.txt"))
(defn is-it-finite (x) (if (is-finite x) 1 2))"""


@pytest.mark.parametrize(("text", "wanted"), FOLDED, ids=[text for text, _ in FOLDED])
def test_numbers_fold_while_the_file_is_read(text, wanted):
    found = value_of(
        f"(full (type {'i32' if isinstance(wanted, int) else 'f32'} []) known)", before=f"{HELPERS} (def known {text})"
    )
    assert found == wanted


SHAPES = [
    ("(reshape t [6 4])", T.reshape(6, 4)),
    ("(reshape t [_ 2])", T.reshape(12, 2)),
    ("(reshape t [24])", T.reshape(24)),
    ('(rearrange "a b c -> c a b" t)', T.transpose(2, 0, 1)),
    ('(rearrange "a b c -> (a b) c" t)', T.reshape(6, 4)),
    ('(rearrange "a b (x y) -> a x b y" t :x 2)', T.reshape(2, 3, 2, 2).transpose(0, 2, 1, 3)),
    ('(rearrange "... c -> c ..." t)', np.moveaxis(T, -1, 0)),
    ('(rearrange "a ... -> ... a" t)', np.moveaxis(T, 0, -1)),
    ('(rearrange "a b c -> a 1 b c 1" t)', T[:, None, :, :, None]),
    ('(rearrange "1 a -> a" (reshape v [1 4]))', V),
    ('(rearrange "-> 1 1" (sum v))', V.sum().reshape(1, 1)),
    ('(rearrange "a b (head-dim n) -> n a b head-dim" t :head-dim 2)', np.moveaxis(T.reshape(2, 3, 2, 2), 3, 0)),
    ("(broadcast v [3 4])", np.broadcast_to(V, (3, 4))),
    ("(broadcast (reshape v [4 1]) [4 5])", np.broadcast_to(V[:, None], (4, 5))),
    ("(broadcast v a)", np.broadcast_to(V, (3, 4))),
    ("(broadcast 1.5 [2 2])", np.full((2, 2), 1.5, F)),
    ("(slice a 1)", A[1:]),
    ("(slice a 1 3)", A[1:3]),
    ("(slice a -2)", A[-2:]),
    ("(slice a 0 -1)", A[:-1]),
    ("(slice a 1 3 :axis 1)", A[:, 1:3]),
    ("(slice a 0 4 :axis -1 :step 2)", A[:, ::2]),
    ("(slice a 2 2)", A[2:2]),
    ("(pad a 1 2)", np.pad(A, ((1, 2), (0, 0)))),
    ("(pad a 0 1 :axis 1)", np.pad(A, ((0, 0), (0, 1)))),
    ("(concat [a b])", np.concatenate([A, B])),
    ("(concat [a b] :axis -1)", np.concatenate([A, B], -1)),
    ("(stack [a b])", np.stack([A, B])),
    ("(stack [a b] :axis -1)", np.stack([A, B], -1)),
    ("(stack [1 2.0])", np.array([1, 2], F)),
    ("(nth (unstack a) 1)", A[1]),
    ("(nth (unstack a :axis 1) -1)", A[:, -1]),
    ("(nth (split a 2 :axis 1) 1)", A[:, 2:]),
    ("(nth (split a [1 2]) 1)", A[1:]),
    ("(reverse a)", A[::-1]),
    ("(reverse a :axis [0 1])", A[::-1, ::-1]),
    ("(reverse a :axis -1)", A[:, ::-1]),
    ("(iota (i32 2 3) :axis 1)", np.broadcast_to(np.arange(3), (2, 3))),
    ("(iota (f32 3))", np.arange(3.0)),
    ("(zeros (f32 2 2))", np.zeros((2, 2))),
    ("(ones a)", np.ones((3, 4))),
    ("(ones-like a)", np.ones((3, 4))),
    ("(full (i32 2) 7)", np.full(2, 7)),
    ("(repeat-heads h 2)", np.repeat(T.reshape(1, 2, 3, 4), 2, 1)),
]


@pytest.mark.parametrize(("text", "wanted"), SHAPES, ids=[text for text, _ in SHAPES])
def test_shapes(text, wanted):
    assert_array_equal(value_of(text, a=A, b=B, t=T, v=V, h=T.reshape(1, 2, 3, 4)), wanted)


REDUCED = [
    ("(sum a)", A.sum()),
    ("(sum a :axis 0)", A.sum(0)),
    ("(sum a :axis [0 1] :keep true)", A.sum(keepdims=True)),
    ("(sum a :axis -1)", A.sum(-1)),
    ("(mean a :axis 1 :keep true)", A.mean(1, keepdims=True)),
    ("(max a :axis 0)", A.max(0)),
    ("(min a)", A.min()),
    ("(prod a :axis 1)", A.prod(1)),
    ("(sum a :where m)", A[M].sum()),
    ("(mean a :where m)", A[M].mean()),
    ("(mean a :axis 1 :where m)", [A[0][M[0]].mean(), 0, A[2].mean()]),
    ("(max a :axis 1 :where m)", np.where(M, A, -np.inf).max(1)),
    ("(sum n :axis 1)", N.sum(1)),
    ("(max n)", N.max()),
    ("(any m :axis 1)", M.any(1)),
    ("(all m :axis 1)", M.all(1)),
    ("(all m)", M.all()),
    ("(argmax a)", A.argmax(-1)),
    ("(argmin a :axis 0)", A.argmin(0)),
    ("(argmax a :axis 1 :keep true)", A.argmax(1)[:, None]),
    ("(count m)", M.sum()),
    ("(count m :axis 0)", M.sum(0)),
    ("(logsumexp a)", np.log(np.exp(A).sum(-1))),
    ("(logsumexp (- a inf))", np.full(3, -np.inf)),
    ("(logsumexp (+ a 1e4) :axis 0)", np.log(np.exp(A).sum(0)) + 1e4),
    ("(cumsum a)", A.cumsum(0)),
    ("(cumsum a :axis 1)", A.cumsum(1)),
    ("(cumprod a :axis -1)", A.cumprod(-1)),
    ("(cummax a :axis 0)", np.maximum.accumulate(A, 0)),
    ("(sum a :axis [])", A),
    ("(logsumexp a :axis [])", A),
    ("(sum (zeros (f32 0 2)) :axis 0)", np.zeros(2)),
]


@pytest.mark.parametrize(("text", "wanted"), REDUCED, ids=[text for text, _ in REDUCED])
def test_reductions(text, wanted):
    assert_allclose(value_of(text, a=A, m=M, n=N), wanted, rtol=2e-6)


W = R.standard_normal((4, 5)).astype(F)
INDEXED = [
    ("(gather a i)", A[IDS]),
    ("(gather a i :axis 1)", A[:, IDS]),
    ("(gather a 1)", A[1]),
    ("(gather a -1 :axis 1)", A[:, -1]),
    ("(gather v 2)", V[2]),
    ("(pick a i)", A[np.arange(3), IDS]),
    ('(pick (rearrange "r c -> c r" a) i :axis 0)', A[np.arange(3), IDS]),
    ("(embed a i)", A[IDS]),
    ("(scatter (zeros (f32 4 4)) i a)", [A[1], 0 * V, A[2], 0 * V]),
    ("(scatter (zeros (f32 4 4)) i a :fold add)", [A[1], 0 * V, A[0] + A[2], 0 * V]),
    ("(scatter (full (f32 3 4) -9) i a :fold max)", [A[1], 0 * V - 9, np.maximum(A[0], A[2])]),
    ("(scatter (full (f32 3 4) 9) i a :fold min)", [A[1], 0 * V + 9, np.minimum(A[0], A[2])]),
    ("(scatter (zeros (f32 3)) [-1 1 -1] [5 6 7])", [0, 6, 0]),
    ("(scatter v 1 9)", [V[0], 9, V[2], V[3]]),
    ("(one-hot i 3)", np.eye(3)[IDS]),
    ("(gather [10 20 30] i)", [30, 10, 30]),
    ('(product "a b, b c -> a c" a w)', A @ W),
    ('(product "a b, b c -> c a" a w)', (A @ W).T),
    ('(product "a b, a b -> a" a a)', (A * A).sum(1)),
    ('(product "... b, b c -> ... c" t w)', T @ W),
    ('(product "... i, i o -> ... o" v w)', V @ W),
    ('(product "a b, c b -> a c" a a)', A @ A.T),
    ('(product "a b, b c, c d -> a d" a w (rearrange "x y -> y x" w))', A @ W @ W.T),
    ('(product "a b -> b" a)', A.sum(0)),
    ('(product "a b -> b a" a)', A.T),
    ('(product "a, b -> a b" v v)', np.outer(V, V)),
    ('(product "b t w, b t w -> b" t t)', (T * T).sum((1, 2))),
    ('(product "... a, ... a -> ..." t a)', (T * A).sum(-1)),
    ('(product "a b, b c -> a c" n k)', N @ N.T),
]


@pytest.mark.parametrize(("text", "wanted"), INDEXED, ids=[text for text, _ in INDEXED])
def test_indices_and_products(text, wanted):
    assert_allclose(value_of(text, a=A, i=IDS, v=V, w=W, t=T, n=N, k=N.T), np.array(wanted), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize(("stride", "pad", "dilation"), [(1, 0, 1), (2, 1, 1), (1, 2, 2)])
def test_a_convolution_is_the_sum_over_its_window(stride, pad, dilation):
    x, k = R.standard_normal((2, 7, 6, 3)).astype(F), R.standard_normal((3, 3, 3, 2)).astype(F)
    found = value_of(f"(conv x k :stride {stride} :pad {pad} :dilation {dilation})", x=x, k=k)
    wide = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    reach = 2 * dilation + 1
    wanted = np.zeros((2, (wide.shape[1] - reach) // stride + 1, (wide.shape[2] - reach) // stride + 1, 2))
    for r in range(wanted.shape[1]):
        for c in range(wanted.shape[2]):
            seen = wide[:, r * stride : r * stride + reach : dilation, c * stride : c * stride + reach : dilation]
            wanted[:, r, c] = np.einsum("bhwi,hwio->bo", seen, k)
    assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_a_convolution_of_one_axis_groups_and_uneven_pads():
    x, k = R.standard_normal((2, 5, 4)).astype(F), R.standard_normal((3, 2, 6)).astype(F)
    found = value_of("(conv x k :groups 2 :pad [[2 0]])", x=x, k=k)
    wide = np.pad(x, ((0, 0), (2, 0), (0, 0)))
    halves = [
        np.stack(
            [
                np.einsum("bki,kio->bo", wide[:, t : t + 3, 2 * g : 2 * g + 2], k[:, :, 3 * g : 3 * g + 3])
                for t in range(5)
            ],
            1,
        )
        for g in range(2)
    ]
    assert_allclose(found, np.concatenate(halves, -1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("causal", [True, False])
def test_attention_with_grouped_heads(causal):
    q, k, v = (R.standard_normal(s).astype(F) for s in ((2, 4, 3, 5), (2, 2, 6, 5), (2, 2, 6, 7)))
    found = value_of(f"(attention q k v :causal {str(causal).lower()})", q=q, k=k, v=v)
    kk, vv = np.repeat(k, 2, 1), np.repeat(v, 2, 1)
    s = np.einsum("bhtd,bhsd->bhts", q, kk) / math.sqrt(5)
    if causal:
        s = np.where(np.arange(3)[:, None] + 3 >= np.arange(6), s, -np.inf)
    assert_allclose(found, np.einsum("bhts,bhsd->bhtd", softmax(s), vv), rtol=1e-5, atol=1e-6)


def test_a_row_with_nothing_to_attend_to_is_zero():
    q = R.standard_normal((1, 1, 2, 4)).astype(F)
    mask = np.array([[[[True, True], [False, False]]]])
    found = value_of("(attention q q q :mask m)", q=q, m=mask)
    assert_array_equal(found[0, 0, 1], 0)
    gradient = value_of("(grad (fn (x) (sum (square (attention x q q :mask m)))) q)", q=q, m=mask)
    assert np.isfinite(gradient).all() and not gradient[0, 0, 1].any()


def test_norms_and_losses():
    x = (A - A.mean(-1, keepdims=True)) / np.sqrt(A.var(-1, keepdims=True) + 1e-5)
    before = "(defmodel m (x) (layer-norm x :name n)) (defmodel r (x) (rms-norm x :name n))"
    slots = {"m.n.scale": np.ones(4, F), "m.n.bias": np.zeros(4, F), "r.n.scale": np.ones(4, F)}
    experiment, graph = elaborated("[(m a) (r a)]", before=before, a=A)
    from tests.lang.files import run_graph

    found = list(run_graph(experiment, graph, {"a": A, **slots}).values())
    assert_allclose(found[0], x, rtol=1e-5, atol=1e-6)
    assert_allclose(found[1], A / np.sqrt((A * A).mean(-1, keepdims=True) + 1e-5), rtol=1e-5)
    loss = value_of("(cross-entropy a i)", a=A, i=IDS)
    assert_allclose(loss, -np.log(softmax(A))[np.arange(3), IDS], rtol=1e-5)


# Broadcasting and dtypes.


@pytest.mark.parametrize(
    ("left", "right", "wanted"),
    [
        ((3, 4), (3, 1), (3, 4)),
        ((3, 1), (1, 4), (3, 4)),
        ((3, 4), (4,), (3, 4)),
        ((2, 3, 4), (3, 4), (2, 3, 4)),
        ((), (3, 4), (3, 4)),
        ((1,), (4,), (4,)),
    ],
)
def test_shapes_that_broadcast(left, right, wanted):
    x, y = R.standard_normal(left).astype(F), R.standard_normal(right).astype(F)
    for first, second in ((x, y), (y, x)):
        assert_array_equal(value_of("(+ x y)", x=first, y=second), first + second)
        assert (first + second).shape == wanted


def test_arithmetic_of_bf16_is_cast_up_added_and_cast_down():
    x, y = A.astype(BF16), B.astype(BF16)
    _, graph = elaborated("(+ x y)", x=x, y=y)
    assert ops_of(graph) == ["cast", "cast", "add", "cast"]
    assert_array_equal(value_of("(+ x y)", x=x, y=y), (x.astype(F) + y.astype(F)).astype(BF16))
    assert_array_equal(value_of("(sum x :axis 1)", x=x), x.astype(F).sum(1).astype(BF16))
    assert value_of("(< x y)", x=x, y=y).dtype == bool
    assert value_of("(* x 0.1)", x=x).dtype == BF16
    assert_array_equal(value_of("(* x 0.1)", x=x), (x.astype(F) * F(BF16(0.1))).astype(BF16))


def test_compute_touches_products_only():
    _, graph = elaborated('(with :compute bf16 (exp (product "a b, b c -> a c" a w)))', a=A, w=W)
    assert ops_of(graph) == ["cast", "cast", "product", "exp"]
    wanted = np.exp(A.astype(BF16).astype(F) @ W.astype(BF16).astype(F))
    assert_allclose(value_of('(with :compute bf16 (exp (product "a b, b c -> a c" a w)))', a=A, w=W), wanted, rtol=1e-5)
    assert value_of('(with :compute bf16 (product "a b, b c -> a c" (cast a bf16) w))', a=A, w=W).dtype == BF16
    assert ops_of(
        elaborated('(with :compute bf16 (with :compute f32 (product "a b, b c -> a c" a w)))', a=A, w=W)[1]
    ) == ["product"]


@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        ("(+ n 1)", INT),
        ("(* a 2)", F),
        ("(= n 1)", bool),
        ("[1 2]", INT),
        ("(stack [1 2])", INT),
        ("(reshape [1 2.5] [2])", F),
        ("(cast n i64)", np.int64),
        ("(+ (cast n i64) 3_000_000_000)", np.int64),
        ("(argmax a)", INT),
        ("(mean (cast a bf16))", BF16),
        ("(softmax (cast a bf16))", BF16),
        ("(* a step)", F),
        ("(* (cast a bf16) step)", BF16),
        ("(where (> a 0) (cast a bf16) 0)", BF16),
        ("(where (> a 0) step 0)", F),
    ],
)
def test_dtypes_of_results(text, dtype):
    found = value_of(text, a=A, n=N)
    assert all(part.dtype == dtype for part in (found if isinstance(found, list) else [found]))


def test_integers_wrap_and_are_exact():
    big = np.array([2**31 - 1], INT)
    assert_array_equal(value_of("(+ n 1)", n=big), np.array([-(2**31)], INT))
    assert value_of("(cast 16777217 i32)") == 16777217
    assert value_of("(full (i64) 9007199254740993)") == 9007199254740993


# Binding, choice, loops.


CONTROL = [
    ("(let [x 1 x (+ x 1) y (* x 10)] (+ x y))", 22),
    ("(let [[a [b _]] [1 [2 3]]] (+ a b))", 3),
    ("(let [f (fn (x) (+ x k)) k 5] (f 1))", None),
    ("(let [k 5 f (fn (x) (+ x k)) k 7] (f 1))", 6),
    ("((fn (x :by 2) (* x by)) 4 :by 3)", 12),
    ("(f 3)", 3 + 3 + 6),
    ("(f 3 :more 1)", 3 + 1 + 2),
    ("(f 3 :more 1 :most 1)", 5),
    ("(fact 10)", 3628800),
    ("(repeat [i 4] [x 1] (* x 2))", 16),
    ("(repeat [i 4] [x 0] (+ x i))", 6),
    ("(repeat [_ 3 out [1 10 100]] [x 0] (+ x out))", 111),
    ("(nth (repeat [i 3] [a 0 b 1] (next :a b :b (+ a b))) 1)", 3),
    ("(nth (repeat [i 3] [a 0 b 1] (next :b (+ a b i))) 0)", 0),
    ("(let [[last all] (repeat [i 3] [a 1] (next :a (* 2 a) :emit a))] (+ last (nth all 2)))", 12),
    ("(repeat [[a b] [[1 2] [3 4]]] [x 0] (+ x (* a b)))", 14),
    ("(let [[x y] (repeat [i 2] [[x y] [1 2]] (next :x y :y x))] (+ (* 10 x) y))", 12),
    ("(nth (for [i 4] (* i i)) 3)", 9),
    ("(nth (for [i 2 c [5 6]] (+ i c)) 1)", 7),
    ("(length (for [i 0] i))", 0),
    ("(repeat [i 0] [x 9] (+ x 1))", 9),
    ("(let [inner (fn (n) (if (= n 0) 0 (+ n (inner2 (- n 1)))))] (inner 3))", 6),
    ("(shadow 1)", 102),
    ("(fn-of (fn (x) (* x 3)))", 6),
    ("(pair-sum [3 4])", 7),
    ("(let [square (fn (x) 5)] (square 2))", 5),
]
CONTROL_DEFINITIONS = """
(defn f (x :more x :most (* 2 more)) (+ x more most))
(defn fact (n) "the product of 1 to n" (if (= n 0) 1 (* n (fact (- n 1)))))
(defn inner2 (n) (if (= n 0) 0 (+ n (inner2 (- n 1)))))
(def base 100)
(defn shadow (x) (let [y (+ x 1)] (+ y base)))
(defn fn-of (f) (f 2))
(defn pair-sum ([a b]) (+ a b))
"""


@pytest.mark.parametrize(
    ("text", "wanted"), [c for c in CONTROL if c[1] is not None], ids=[c[0] for c in CONTROL if c[1] is not None]
)
def test_control(text, wanted):
    assert value_of(f"(full (i32) {text})", before=CONTROL_DEFINITIONS) == wanted
    assert value_of("(full (i32) known)", before=f"{CONTROL_DEFINITIONS} (def known {text})") == wanted


def test_names_resolve_where_they_are_written():
    own = "(defn square (x) (* 100 x)) (defn clamp (x a b) x)"
    assert value_of("(square 2.0)", before=own) == 200
    # `norm` is the library's, and so is the `square` that it calls.
    assert_allclose(value_of("(norm v)", before=own, v=V), np.sqrt((V * V).sum()), rtol=1e-6)


def test_typed_parameters_bind_sizes():
    before = "(defn f ((x (f32 ?b ?t)) (y (float ... ?t)) (n (int _ _))) (full (i32) (+ (* 10 ?b) ?t)))"
    assert value_of("(f a v n)", before=before, a=A, v=V, n=N) == 34
    assert value_of("(f a t n)", before=before, a=A, t=T, n=N) == 34
    assert value_of("(g 2)", before="(defn g ((x (f32))) x)").dtype == F
    assert value_of("(g v)", before="(def width 4) (defn g ((x (any width))) (rank x))", v=V) == 1


# Gradients.


def numeric(function, x, h=1e-5):
    x = np.asarray(x, np.float64)
    out = np.zeros_like(x)
    for at in np.ndindex(x.shape):
        e = np.zeros_like(x)
        e[at] = h
        out[at] = (function(x + e) - function(x - e)) / (2 * h)
    return out


def test_gradients_against_finite_differences():
    found = value_of("(grad (fn (x) (sum (* (tanh x) (exp (* 0.3 x))))) a)", a=A, double=True)
    assert_allclose(found, numeric(lambda x: (np.tanh(x) * np.exp(0.3 * x)).sum(), A), rtol=1e-6, atol=1e-8)


def test_the_gradient_of_a_gradient():
    text = "(grad (fn (x) (sum (square (grad (fn (y) (sum (* (* y y) y))) x)))) a)"
    assert_allclose(value_of(text, a=A, double=True), 36 * A.astype(float) ** 3, rtol=1e-10)


def test_nested_gradients_do_not_mistake_their_arguments():
    x = np.float32(3)
    # d/da [ d/db (a b²) at x ] at x = d/da (2 a x) = 2 x
    assert value_of("(grad (fn (a) (grad (fn (b) (* (* a b) b)) x)) x)", x=x) == 6
    assert value_of("(grad (fn (a) (* a (grad (fn (b) (* a b)) x))) x)", x=x) == 6
    assert value_of("(grad (fn (a) (* a x)) x)", x=x) == 3
    assert_array_equal(value_of("[(grad (fn (a) (* a a)) x) (grad (fn (a) (* a a a)) x)]", x=x), [6, 27])


def test_gradients_of_several_arguments_and_of_what_does_not_matter():
    first, second = value_of("(grad (fn (x y) (sum (* x x))) a b)", a=A, b=B)
    assert_allclose(first, 2 * A)
    assert_array_equal(second, 0 * B)
    assert_array_equal(value_of("(grad (fn (x) (sum (* x (stop-gradient x)))) a)", a=A), A)


def test_a_branch_not_taken_has_no_gradient():
    x = np.array([-1.0, 0.0, 4.0], F)
    assert_allclose(value_of("(grad (fn (x) (sum (where (> x 0) (sqrt x) 0))) x)", x=x), [0, 0, 0.25])


# What depends on `step`.


@pytest.mark.parametrize("step", [1, 2, 4, 5, 8])
def test_every_is_due_at_the_first_step_and_at_multiples(step):
    due = step == 1 or step % 4 == 0
    assert value_of("(every 4 a b)", a=A, b=B, step=step)[0, 0] == (A if due else B)[0, 0]
    assert value_of("(* 1 (every 4 3 5))", step=step) == (3 if due else 5)
    assert value_of("(stack (every 4 [1.0 2.0] [3.0 4.0]))", step=step)[0] == (1 if due else 3)


@pytest.mark.parametrize("step", [1, 50, 99, 100, 101, 1000, 2000, 3000])
def test_schedules_are_computed_in_double(step):
    from tests.lang.files import TAIL, host_values, load_text

    def cosine():
        if step < 100:
            return 6e-4 * step / 100
        done = min(max((step - 100) / 1900, 0), 1)
        return 1e-5 + 0.5 * (6e-4 - 1e-5) * (1 + math.cos(math.pi * done))

    wanted = {
        "(warmup-cosine 6e-4 :warmup 100 :total 2000 :floor 1e-5)": cosine(),
        "(linear-schedule 1.0 0.0 :total 1000)": 1 - min(1, step / 1000),
        "(where (< step 100) 1 (/ 10 (sqrt step)))": 1 if step < 100 else 10 / math.sqrt(step),
        "(where (and (>= step 50) (not (= step 99))) 2 3)": 2 if step >= 50 and step != 99 else 3,
        "(minimum 0.999 (/ (+ step 1) (+ step 10)))": min(0.999, (step + 1) / (step + 10)),
    }
    for text, value in wanted.items():
        experiment = load_text(f"(defgenerator g () (* 1.0 {text})) {TAIL}")
        assert_allclose(host_values(experiment, step)["host.0"], value, rtol=1e-12)


def test_a_comparison_of_step_beside_tensors():
    assert_array_equal(value_of("(where (and (> step 3) m) 1 0)", m=M, step=4), M)
    assert_array_equal(value_of("(where (and (> step 3) m) 1 0)", m=M, step=3), 0 * M)
    assert_array_equal(value_of("(where (> step 3) a b)", a=A, b=B, step=4), A)


def test_the_gradient_of_a_quotient_hides_no_nan() -> None:
    x, y = np.array([[np.inf, 1, 0], [np.inf, np.inf, 2]], np.float32)
    found = value_of("(grad (fn (y) (sum (/ x y))) y)", x=x, y=y)
    assert np.isnan(found[0]) and found[1] == 0 and found[2] == 0
