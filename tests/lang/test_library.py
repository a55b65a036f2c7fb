"""The library against PyTorch: values, and gradients where they have a choice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from sexpgpu.lang.load import load_experiment
from tests.lang.files import codes, elaborated, host_values, load_text, run_graph, value_of
from tests.train.trial import Trial, write_experiment

torch = pytest.importorskip("torch")
functional = torch.nn.functional
pytestmark = pytest.mark.torch

F = np.float32
R = np.random.default_rng(0)
A = R.standard_normal((6, 8)).astype(F)
B = R.standard_normal((6, 8)).astype(F)
LABELS = np.array([0, 3, 7, 1, 1, 5], np.int32)
IMAGE = R.standard_normal((2, 7, 8, 4)).astype(F)


def first(x: np.ndarray) -> torch.Tensor:
    """Channels last to channels first."""
    return torch.tensor(np.moveaxis(x, -1, 1))


def last(x: torch.Tensor) -> np.ndarray:
    return np.moveaxis(x.detach().numpy(), 1, -1)


ACTIVATIONS = {
    "(elu x :alpha 0.7)": lambda x: functional.elu(x, 0.7),
    "(selu x)": functional.selu,
    "(mish x)": functional.mish,
    "(hard-tanh x)": functional.hardtanh,
    "(hard-tanh x :low -0.2 :high 0.4)": lambda x: functional.hardtanh(x, -0.2, 0.4),
    "(hard-sigmoid x)": functional.hardsigmoid,
    "(hard-swish x)": functional.hardswish,
    "(softplus x)": functional.softplus,
    "(erf-inverse (* 0.999 (tanh x)))": lambda x: torch.erfinv(0.999 * torch.tanh(x)),
}


@pytest.mark.parametrize("text", ACTIVATIONS)
def test_activations(text: str) -> None:
    x = np.array([*np.linspace(-6, 6, 41), 0.0, 100.0, -100.0], F)
    if "inverse" in text:
        x = x[7:34]  # further out the slope hangs on the last digits of tanh
    given = torch.tensor(x, requires_grad=True)
    wanted = ACTIVATIONS[text](given)
    wanted.sum().backward()
    assert_allclose(value_of(text, x=x), wanted.detach().numpy(), rtol=1e-5, atol=2e-6)
    found = value_of(f"(grad (fn (x) (sum {text})) x)", x=x)
    smooth = np.ones(x.shape, bool) if "hard" not in text else np.abs(np.abs(x) - 3) > 1e-3
    assert_allclose(found[smooth], given.grad.numpy()[smooth], rtol=2e-4, atol=2e-5)


def test_softplus_of_infinities() -> None:
    assert_array_equal(value_of("(softplus x)", x=np.array([-np.inf, np.inf], F)), [0, np.inf])


def test_losses() -> None:
    x, y, labels = torch.tensor(A), torch.tensor(B), torch.tensor(LABELS.astype(np.int64))
    odds = 1 / (1 + np.exp(-B))
    cases = [
        ("(mse a b)", functional.mse_loss(x, y)),
        ("(mae a b)", functional.l1_loss(x, y)),
        ("(huber a b)", functional.huber_loss(x, y, reduction="none")),
        ("(huber a b :delta 0.3)", functional.huber_loss(x, y, reduction="none", delta=0.3)),
        (
            "(binary-cross-entropy (* a 30) o)",
            functional.binary_cross_entropy_with_logits(30 * x, torch.tensor(odds), reduction="none"),
        ),
        ("(cross-entropy a i)", functional.cross_entropy(x, labels, reduction="none")),
        (
            "(cross-entropy a i :smoothing 0.1)",
            functional.cross_entropy(x, labels, reduction="none", label_smoothing=0.1),
        ),
    ]
    for text, wanted in cases:
        assert_allclose(value_of(text, a=A, b=B, o=odds, i=LABELS), wanted.numpy(), rtol=2e-5, atol=1e-6)
    zero = value_of("(grad (fn (x) (sum (binary-cross-entropy x o))) x)", x=np.zeros((6, 8), F), o=odds)
    assert_allclose(zero, 0.5 - odds, atol=1e-6)


@pytest.mark.parametrize("kind", ["max", "mean"])
@pytest.mark.parametrize("shape", [(2, 9, 3), (2, 7, 8, 3), (1, 5, 6, 7, 2)])
@pytest.mark.parametrize(("window", "stride", "pad"), [(2, None, 0), (3, 2, 1), (3, 1, 1), (2, 3, 0)])
def test_pool(kind: str, shape: tuple[int, ...], window: int, stride: int | None, pad: int) -> None:
    x = R.integers(-3, 3, shape).astype(F)  # with ties
    rank = len(shape) - 2
    given = first(x).requires_grad_()
    if kind == "max":
        wanted = getattr(functional, f"max_pool{rank}d")(given, window, stride, pad)
    else:
        wanted = getattr(functional, f"avg_pool{rank}d")(given, window, stride, pad, count_include_pad=False)
    g = R.standard_normal(last(wanted).shape).astype(F)
    wanted.backward(first(g))
    step = "" if stride is None else f":stride {stride}"
    text = f"(pool x :kind {kind} :window {window} {step} :pad {pad})"
    assert_allclose(value_of(text, x=x), last(wanted), rtol=1e-5, atol=1e-6)
    found = value_of(f"(grad (fn (x) (sum (* g {text}))) x)", x=x, g=g)
    assert_allclose(found, last(given.grad), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("ceil", ["true", "false"])
@pytest.mark.parametrize(
    ("size", "window", "stride", "pad", "gap"), [(9, 2, 2, 1, 1), (10, 3, 2, 1, 2), (7, 2, 3, 0, 3)]
)
def test_pool_with_gaps_and_with_windows_over_the_end(
    ceil: str, size: int, window: int, stride: int, pad: int, gap: int
) -> None:
    x = R.integers(-3, 3, (2, size, size + 1, 3)).astype(F)
    given = first(x).requires_grad_()
    wanted = functional.max_pool2d(given, window, stride, pad, gap, ceil == "true")
    wanted.sum().backward()
    text = f"(pool x :window {window} :stride {stride} :pad {pad} :dilation {gap} :ceil {ceil})"
    assert_array_equal(value_of(text, x=x), last(wanted))
    assert_array_equal(value_of(f"(grad (fn (x) (sum {text})) x)", x=x), last(given.grad))


def test_mean_pool_over_the_end_counts_what_is_there() -> None:
    x = np.arange(6, dtype=F).reshape(1, 6, 1)
    assert_array_equal(value_of("(pool x :kind mean :window 3 :stride 2 :ceil true)", x=x).ravel(), [1, 3, 4.5])
    assert_array_equal(value_of("(pool x :kind mean :window 2 :stride 1 :dilation 5)", x=x).ravel(), [2.5])


def test_log_softmax_keeps_its_digits() -> None:
    x = np.arange(4, dtype=F)
    for text in ("(log-softmax x)", "(- (cross-entropy (broadcast x [4 4]) (iota (i32 4))))"):
        assert_allclose(value_of(text, x=x + 10_000), value_of(text, x=x), rtol=1e-6)


@pytest.mark.parametrize("fold", ["set", "add", "max", "min"])
def test_scatter_of_bf16_rounds_once(fold: str) -> None:
    narrow = "(scatter (cast x bf16) i (cast v bf16) :fold {0})"
    given = {"x": np.zeros(4, F), "i": np.array([1, 1, 1], np.int32), "v": np.array([256, 1, 1], F)}
    wanted = value_of(f"(cast (scatter x i v :fold {fold}) bf16)", **given)
    found = value_of(narrow.format(fold), **given)
    assert found.dtype == wanted.dtype
    assert_array_equal(found.astype(F), wanted.astype(F))


def test_pool_of_one_axis_only_and_of_bf16() -> None:
    wanted = functional.max_pool2d(first(IMAGE), (1, 3), (1, 2), (0, 1))
    assert_array_equal(value_of("(pool x :window [1 3] :stride [1 2] :pad [[0 0] [1 1]])", x=IMAGE), last(wanted))
    assert value_of("(pool (cast x bf16) :kind mean :window 2)", x=IMAGE).dtype.name == "bfloat16"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("(pool (zeros (f32 2 4 3)))", "E-CALL-002"),
        ("(pool (zeros (f32 2 4 3)) :window 2 :pad 2)", "E-TYPE-005"),
        ("(pool (zeros (f32 2 4 3)) :window 5)", "E-TYPE-002"),
        ("(pool (zeros (f32 2 4 3)) :window 2 :dilation 0)", "E-TYPE-005"),
        ("(pool (zeros (f32 2 1 3)) :window 2 :pad 2 :dilation 3)", "E-TYPE-005"),
        ("(pool (zeros (f32 2 4 3)) :window 2 :ceil 1)", "E-TYPE-006"),
        ("(huber (zeros (f32 2)) 1.0 :delta 0)", "E-CALL-003"),
        ("(hard-tanh (zeros (f32 2)) :low 1.0 :high -1.0)", "E-CALL-003"),
        ("(pool (zeros (f32 2 4 3)) :window 2 :kind sum)", "E-FORM-003"),
        ("(pool (zeros (i32 2 4 3)) :window 2)", "E-TYPE-001"),
        ("(pool (zeros (f32 2 4)) :window 2)", "E-TYPE-002"),
        ("(top-k (zeros (f32 2 4)) 5)", "E-TYPE-002"),
        ("(sort (zeros (bool 2 4)))", "E-TYPE-001"),
        ("(sort (zeros (f32 2 4)) :descending 1)", "E-TYPE-006"),
        ("(permutation (f32 4))", "E-TYPE-001"),
        ("(group-norm (zeros (f32 2 4 6)) 4)", "E-CALL-003"),
    ],
)
def test_mistakes(text: str, code: str) -> None:
    assert codes(f"(defmetric m () (mean {text})) (defrun r :loss m :optimizer (sgd :rate 0.1) :steps 1)")[0] == code


@pytest.mark.parametrize(("stride", "pad", "dilation"), [(1, 0, 1), (2, 1, 1), (3, 2, 2), (2, 4, 1)])
@pytest.mark.parametrize("groups", [1, 2])
def test_transposed_convolution(stride: int, pad: int, dilation: int, groups: int) -> None:
    kernel = R.standard_normal((3, 2, 4 // groups, 6)).astype(F)
    # Here (k… in/groups out); there (in out/groups k…), the groups' outputs side by side.
    parts = [kernel[..., g * 6 // groups : (g + 1) * 6 // groups].transpose(2, 3, 0, 1) for g in range(groups)]
    x, k = first(IMAGE).requires_grad_(), torch.tensor(np.concatenate(parts), requires_grad=True)
    pads = (pad, min(pad, 1))
    wanted = functional.conv_transpose2d(x, k, stride=stride, padding=pads, dilation=dilation, groups=groups)
    g = R.standard_normal(last(wanted).shape).astype(F)
    wanted.backward(first(g))
    text = (
        f"(conv x k :transposed true :stride {stride} :pad [{pads[0]} {pads[1]}] :dilation {dilation} :groups {groups})"
    )
    assert_allclose(value_of(text, x=IMAGE, k=kernel), last(wanted), rtol=1e-4, atol=2e-5)
    found = value_of(f"(grad (fn (x) (sum (* g {text}))) x)", x=IMAGE, k=kernel, g=g)
    assert_allclose(found, last(x.grad), rtol=1e-4, atol=5e-5)
    found = value_of(f"(grad (fn (k) (sum (* g {text}))) k)", x=IMAGE, k=kernel, g=g)
    theirs = k.grad.numpy().reshape(groups, 4 // groups, 6 // groups, 3, 2).transpose(3, 4, 1, 0, 2)
    assert_allclose(found, theirs.reshape(kernel.shape), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("dilation", "groups"), [(2, 1), (1, 2), (2, 2), (1, 4)])
def test_convolution_with_dilation_and_groups(dilation: int, groups: int) -> None:
    kernel = R.standard_normal((3, 3, 4 // groups, 8)).astype(F)
    wanted = functional.conv2d(
        first(IMAGE), torch.tensor(kernel.transpose(3, 2, 0, 1)), padding=2, dilation=dilation, groups=groups
    )
    found = value_of(f"(conv x k :pad 2 :dilation {dilation} :groups {groups})", x=IMAGE, k=kernel)
    assert_allclose(found, last(wanted), rtol=1e-4, atol=2e-5)


def test_group_norm() -> None:
    scale, bias = R.standard_normal(4).astype(F), R.standard_normal(4).astype(F)
    experiment, graph = elaborated("(m a)", before="(defmodel m (x) (group-norm x 2 :name n))", a=IMAGE)
    (found,) = run_graph(experiment, graph, {"a": IMAGE, "m.n.scale": scale, "m.n.bias": bias}).values()
    wanted = functional.group_norm(first(IMAGE), 2, torch.tensor(scale), torch.tensor(bias))
    assert_allclose(found, last(wanted), rtol=1e-5, atol=1e-5)


def test_rotary_positions_turn_pairs() -> None:
    x, at = R.standard_normal((2, 3, 5, 8)).astype(F), np.array([0, 1, 4, 9, 30], np.int32)
    angle = at[:, None] * 10000.0 ** (-np.arange(4) / 4)
    turned = (x[..., :4] + 1j * x[..., 4:]) * np.exp(1j * angle)
    assert_allclose(value_of("(rope x at)", x=x, at=at), np.concatenate([turned.real, turned.imag], -1), atol=1e-5)


def test_sort_and_top_k_and_their_gradients() -> None:
    x = R.permutation(48).reshape(6, 8).astype(F)
    g = R.standard_normal((6, 3)).astype(F)
    given = torch.tensor(x, requires_grad=True)
    torch.topk(given, 3, -1).values.backward(torch.tensor(g))
    assert_array_equal(value_of("(nth (top-k x 3) 0)", x=x), np.sort(x)[:, :-4:-1])
    assert_array_equal(value_of("(nth (top-k x 3 :axis 0) 1)", x=x), np.argsort(-x, 0)[:3])
    assert_array_equal(value_of("(grad (fn (x) (sum (* g (nth (top-k x 3) 0)))) x)", x=x, g=g), given.grad.numpy())
    assert_array_equal(value_of("(nth (sort x :axis 0) 0)", x=x), np.sort(x, 0))
    assert_array_equal(value_of("(nth (sort x :descending true) 1)", x=x), np.argsort(-x, -1))
    ties = np.array([1, np.nan, 1, 2, np.nan, -np.inf], F)
    assert_array_equal(value_of("(nth (sort x) 1)", x=ties), [5, 0, 2, 3, 1, 4])
    assert_array_equal(value_of("(nth (top-k x 4) 1)", x=ties), [1, 4, 3, 0])
    assert_array_equal(value_of("(nth (sort x :descending true) 1)", x=np.array([2**31 - 1, -(2**31), 0], np.int32)),
                       [0, 2, 1])  # fmt: skip
    assert value_of("(nth (top-k (cast x bf16) 2) 0)", x=x).dtype.name == "bfloat16"


def test_permutations() -> None:
    found = value_of("(permutation (i32 50 20))")
    assert_array_equal(np.sort(found, -1), np.broadcast_to(np.arange(20), (50, 20)))
    assert len({row.tobytes() for row in found}) == 50
    assert_array_equal(np.sort(value_of("(permutation 1000)")), np.arange(1000))
    assert abs(found[:, 0].mean() - 9.5) < 3
    assert value_of("(permutation (i64 0))").shape == (0,)


# Initialisers.


def drawn(init: str, *sizes: int) -> np.ndarray:
    return value_of(f"({init} (f32 {' '.join(map(str, sizes))}))")


def test_truncated_normal() -> None:
    x = drawn("(truncated-normal 0.5)", 200, 100)
    assert np.abs(x).max() <= 1.0
    wanted = torch.empty(200, 100)
    torch.nn.init.trunc_normal_(wanted, 0, 0.5, -1, 1, generator=torch.Generator().manual_seed(0))
    for share in (0.05, 0.25, 0.5, 0.75, 0.95):
        assert abs(np.quantile(x, share) - np.quantile(wanted.numpy(), share)) < 0.03
    assert np.abs(drawn("(truncated-normal 1.0 :within 1)", 100, 100)).max() <= 1.0


def test_uniform_initialisers() -> None:
    he, glorot = drawn("he-uniform", 300, 100), drawn("glorot-uniform", 300, 100)
    assert np.abs(he).max() <= np.sqrt(6 / 300) and abs(he.var() / (2 / 300) - 1) < 0.05
    assert np.abs(glorot).max() <= np.sqrt(6 / 400) and abs(glorot.var() / (2 / 400) - 1) < 0.05


@pytest.mark.parametrize("sizes", [(16, 16), (100, 30), (30, 100), (128, 128), (3, 3, 4, 8), (1, 5)])
def test_orthogonal(sizes: tuple[int, ...]) -> None:
    x = drawn("orthogonal", *sizes).reshape(-1, sizes[-1]).astype(np.float64)
    small = x.T @ x if x.shape[0] >= x.shape[1] else x @ x.T
    assert_allclose(small, np.eye(len(small)), atol=2e-4)
    assert abs(x.mean()) < 0.1 or min(x.shape) < 3


# Optimizers.


def muon(p: torch.Tensor, **options: float) -> torch.optim.Optimizer:
    """PyTorch's, which iterates in bf16: in f32 here."""

    class Muon(torch.optim.Optimizer):
        def __init__(self) -> None:
            super().__init__([p], {})

        def step(self) -> None:  # type: ignore[override]
            m = self.state[p].get("m", torch.zeros_like(p))
            m = self.state[p]["m"] = m.lerp(p.grad, 0.05)
            x = p.grad.lerp(m, 0.95).T  # (out in), as theirs
            wide = (max(1, x.shape[0] / x.shape[1])) ** 0.5
            turn = x.shape[0] > x.shape[1]
            x = x.T if turn else x
            x = x / (x.norm() + 1e-7)
            for _ in range(5):
                a = x @ x.T
                x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
            x = x.T if turn else x
            with torch.no_grad():
                p.mul_(1 - options["lr"] * options["weight_decay"]).sub_(options["lr"] * wide * x.T)

    return Muon()


OPTIMIZERS = {
    "(rmsprop :rate 0.01 :beta 0.9)": lambda p: torch.optim.RMSprop([p], lr=0.01, alpha=0.9),
    "(adafactor :rate 0.05)": lambda p: torch.optim.Adafactor([p], lr=0.05, eps=(1.1920929e-7, 1e-3)),
    "(adafactor :rate 0.5 :decay 0.1)": lambda p: torch.optim.Adafactor([p], lr=0.5, weight_decay=0.1),
    "(muon :rate 0.02 :decay 0.1)": lambda p: muon(p, lr=0.02, weight_decay=0.1),
}


def trained(folder: Path, optimizer: str, sizes: str, num_steps: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The parameter before and after, and the target whose squared distance was the loss."""
    target = R.standard_normal([int(n) for n in sizes.split()]).astype(F)
    path = write_experiment(
        folder,
        f"""(defdata d (arrays "data.npz")) (defloader rows-of (rows d) :batch 1)
(defmetric far (t)
  (let [t (gather t 0)]
    (sum (* (+ 1.0 (square t)) (square (- (param w (f32 {sizes}) (normal 1.0)) t))))))
(defrun go :loader rows-of :loss far :optimizer {optimizer} :steps {num_steps} :seed 0)""",
        t=target[None],
    )
    with Trial(load_experiment(path)) as trial:
        before = trial.read_all("parameter")["w"]
        for _ in range(num_steps):
            trial.step()
        return before, trial.read_all("parameter")["w"], target


@pytest.mark.parametrize("sizes", ["6 9", "9 6", "7", "2 3 4"])
@pytest.mark.parametrize("text", OPTIMIZERS)
def test_optimizers(text: str, sizes: str, tmp_path: Path) -> None:
    if "muon" in text and len(sizes) != 3:
        pytest.skip("for matrices")
    before, after, target = trained(tmp_path, text, sizes, 12)
    p, t = torch.tensor(before, requires_grad=True), torch.tensor(target)
    optimizer = OPTIMIZERS[text](p)
    for _ in range(12):
        optimizer.zero_grad()
        ((1 + t**2) * (p - t) ** 2).sum().backward()
        optimizer.step()
    assert_allclose(after, p.detach().numpy(), rtol=2e-4, atol=2e-5)
    assert np.abs(after - before).max() > 0.05


def test_lion(tmp_path: Path) -> None:
    before, after, t = trained(tmp_path, "(lion :rate 0.01 :decay 0.1)", "5 4", 9)
    p, m = before.astype(np.float64), np.zeros((5, 4))
    for _ in range(9):
        g = 2 * (1 + t**2) * (p - t)
        p, m = p - 0.01 * (np.sign(0.9 * m + 0.1 * g) + 0.1 * p), 0.99 * m + 0.01 * g
    assert_allclose(after, p, atol=1e-5)


def test_the_polynomial_of_muon_agrees_with_torch() -> None:
    from torch.optim._muon import _zeropower_via_newtonschulz as theirs

    x = R.standard_normal((12, 20)).astype(F)
    wanted = theirs(torch.tensor(x), (3.4445, -4.7750, 2.0315), 5, 1e-7).float().numpy()
    assert_allclose(value_of("(orthogonalise x)", x=x), wanted, atol=0.03)  # theirs is in bf16


# Schedules.


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("(constant 0.5)", {1: 0.5, 9: 0.5}),
        ("(constant 0.5 :warmup 4)", {1: 0.125, 4: 0.5, 9: 0.5}),
        ("(inverse-sqrt 1.0 :warmup 4)", {1: 0.25, 4: 1.0, 16: 0.5, 64: 0.25}),
        ("(cyclic 0.0 1.0 :period 4)", {1: 0.0, 2: 0.5, 3: 1.0, 4: 0.5, 5: 0.0, 7: 1.0}),
        ("(step-decay 1.0 :period 3 :factor 0.5)", {1: 1.0, 3: 1.0, 4: 0.5, 7: 0.25}),
    ],
)
def test_schedules(text: str, wanted: dict[int, float]) -> None:
    experiment = load_text(
        "(defmetric m () (square (param w (f32) 1.0)))"
        f"(defrun r :loss m :steps 9 :optimizer (sgd :rate (* {text} 1.0)))"
    )
    for step, value in wanted.items():
        found = [float(v) for v in host_values(experiment, step).values()]
        assert found == [pytest.approx(value)] or (found == [] and text == "(constant 0.5)")
