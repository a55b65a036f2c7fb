"""Second derivatives of ten composed functions: how the gradient moves along a direction, against PyTorch in f64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests.lang.files import value_of

torch = pytest.importorskip("torch")
functional = torch.nn.functional
pytestmark = pytest.mark.torch

R = np.random.default_rng(3)
X, TURN, WEIGHTS = (R.uniform(-1.5, 1.5, (2, 4, 6)).astype(np.float32) for _ in range(3))
LABELS = R.integers(0, 6, (2, 4)).astype(np.int32)
KERNEL = R.uniform(-1, 1, (3, 6, 6)).astype(np.float32)
ROW = R.uniform(0.5, 1.5, 6).astype(np.float32)
GIVEN = {"x": X, "turn": TURN, "weights": WEIGHTS, "labels": LABELS, "kernel": KERNEL, "row": ROW}


def double(name: str) -> torch.Tensor:
    return torch.tensor(GIVEN[name].astype(np.int64 if name == "labels" else np.float64))


def channels(f: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    """`f`, which wants channels first, of channels last."""
    return lambda x: f(x.movedim(-1, 1)).movedim(1, -1)


def attention(x: torch.Tensor) -> torch.Tensor:
    return functional.scaled_dot_product_attention(x, x * x, torch.sin(x), is_causal=True)


def scanned(x: torch.Tensor) -> torch.Tensor:
    h, made = torch.zeros(2, 6, dtype=torch.float64), []
    for t in range(4):
        h = torch.tanh(0.7 * h * x[:, t] + x[:, t])
        made.append(h)
    return torch.stack(made, 1)


FUNCTIONS = {
    "(softmax x)": lambda x: x.softmax(-1),
    "(rearrange \"b t -> b t 1\" (logsumexp x))": lambda x: x.logsumexp(-1, keepdim=True),
    "(rearrange \"b t -> b t 1\" (cross-entropy x labels))": lambda x: functional.cross_entropy(
        x.flatten(0, 1), double("labels").flatten(), reduction="none").view(2, 4, 1),
    "(let [c (- x (mean x :axis -1 :keep true))]"
    " (* row c (rsqrt (+ 0.1 (mean (square c) :axis -1 :keep true)))))":
        lambda x: double("row") * functional.layer_norm(x, (6,), eps=0.1),
    "(* row x (rsqrt (+ 0.1 (mean (square x) :axis -1 :keep true))))":
        lambda x: double("row") * functional.rms_norm(x, (6,), eps=0.1),
    "(gelu x)": lambda x: functional.gelu(x, approximate="tanh"),
    "(silu x)": functional.silu,
    "(rearrange \"b 1 t d -> b t d\" (let [x (rearrange \"b t d -> b 1 t d\" x)]"
    " (attention x (* x x) (sin x) :causal true)))": attention,
    "(tanh (conv x kernel :pad 1))": channels(
        lambda x: torch.tanh(functional.conv1d(x, double("kernel").permute(2, 1, 0), padding=1))),
    "(nth (scan [h (zeros (f32 2 6))] [e x] :axis 1 (let [h (tanh (+ (* 0.7 (* h e)) e))] (next :h h :emit h))) 1)":
        scanned,
}  # fmt: skip


@pytest.mark.parametrize("text", FUNCTIONS)
def test_second_derivatives(text: str) -> None:
    def slope(x: torch.Tensor) -> torch.Tensor:
        return torch.sum(double("weights") * FUNCTIONS[text](x) ** 2)

    _, wanted = torch.autograd.functional.hvp(slope, double("x"), double("turn"))
    assert float(wanted.abs().max()) > 1e-2
    gradient = f"(grad (fn (x) (sum (* weights (square {text})))) x)"
    found = value_of(f"(grad (fn (x) (sum (* turn {gradient}))) x)", double=True, **GIVEN)
    assert_allclose(found, wanted.numpy(), rtol=1e-7, atol=1e-9)
