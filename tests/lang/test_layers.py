"""Layers of the library against PyTorch's modules: values, gradients, and what they remember."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from sexpgpu.lang.load import load_experiment
from tests.lang.files import codes, elaborated, load_text, run_graph, value_of
from tests.train.trial import Trial, open_trial, write_experiment

torch = pytest.importorskip("torch")
functional = torch.nn.functional
pytestmark = pytest.mark.torch

F = np.float32
R = np.random.default_rng(0)
B, T, IN, WIDTH = 3, 6, 4, 5
X = R.standard_normal((B, T, IN)).astype(F)


def with_parameters(call: str, values: dict[str, Any], model: str = "m") -> tuple[Any, dict[str, np.ndarray]]:
    """The values of a call in a model `m` on the tensors `values`, with random parameters, and those."""
    names = " ".join(values)
    experiment, graph = elaborated(f"(m {names})", before=f"(defmodel m ({names}) {call})", **values)
    draws = np.random.default_rng(1)
    owned = {n: draws.standard_normal(p.type.shape).astype(F) / 2 for n, p in experiment.parameters.items()}
    found = list(run_graph(experiment, graph, {**values, **owned}).values())
    return found, {name.removeprefix(f"{model}."): value for name, value in owned.items()}


def recurrent(kind: str, owned: dict[str, np.ndarray]) -> Any:
    """PyTorch's layer with our parameters; its second bias of the LSTM is 0."""
    layer = (torch.nn.GRU if kind == "gru" else torch.nn.LSTM)(IN, WIDTH, batch_first=True)
    with torch.no_grad():
        layer.weight_ih_l0.copy_(torch.tensor(owned["l.w"].T))
        layer.weight_hh_l0.copy_(torch.tensor(owned["l.u"].T))
        layer.bias_ih_l0.copy_(torch.tensor(owned["l.b"]))
        layer.bias_hh_l0.copy_(torch.tensor(owned.get("l.ub", np.zeros_like(owned["l.b"]))))
    return layer


@pytest.mark.parametrize("kind", ["lstm", "gru"])
@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_recurrent_layers(kind: str, started: bool, reverse: bool) -> None:
    h, c = (R.standard_normal((B, WIDTH)).astype(F) for _ in range(2))
    begins = "" if not started else ":start [h c]" if kind == "lstm" else ":start h"
    call = f"({kind} x {WIDTH} :name l :reverse {str(reverse).lower()} {begins})"
    found, owned = with_parameters(call, {"x": X, "h": h, "c": c} if started else {"x": X})
    layer = recurrent(kind, owned)
    state = [torch.tensor(v)[None] for v in ((h, c) if kind == "lstm" else (h,))] if started else None
    given = torch.tensor(X[:, ::-1].copy() if reverse else X)
    wanted, last = layer(given, None if state is None else tuple(state) if kind == "lstm" else state[0])
    wanted = wanted.detach().numpy()
    finals = last if kind == "lstm" else (last,)
    assert_allclose(found[0], wanted[:, ::-1] if reverse else wanted, rtol=1e-5, atol=1e-6)
    assert len(found) == 1 + len(finals)
    for ours, theirs in zip(found[1:], finals, strict=True):
        assert_allclose(ours, theirs[0].detach().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
@pytest.mark.parametrize("reverse", ["false", "true"])
def test_a_mask_stops_the_state(kind: str, reverse: str) -> None:
    lengths = np.array([6, 2, 4])
    mask = np.arange(T) < lengths[:, None]
    found, owned = with_parameters(f"({kind} x {WIDTH} :name l :mask real :reverse {reverse})", {"x": X, "real": mask})
    layer = recurrent(kind, owned)
    for row, length in enumerate(lengths):
        part = X[row : row + 1, :length]
        wanted, last = layer(torch.tensor(part[:, ::-1].copy() if reverse == "true" else part))
        wanted = wanted.detach().numpy()[0]
        assert_allclose(found[0][row, :length], wanted[::-1] if reverse == "true" else wanted, rtol=1e-5, atol=1e-6)
        final = (last[0] if kind == "lstm" else last)[0, 0].detach().numpy()
        assert_allclose(found[1][row], final, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_recurrent_layers_learn_as_pytorchs(kind: str, tmp_path: Path) -> None:
    y = R.standard_normal((8, T, WIDTH)).astype(F)
    x = R.standard_normal((8, T, IN)).astype(F)
    text = f"""(defdata d (arrays "data.npz")) (defloader train (rows d) :batch 8)
(defmodel m ((x (f32 _ _ _))) (nth ({kind} x {WIDTH} :name l) 0))
(defmetric far (x y) (mean (square (- (m x) y))))
(defrun go :loader train :loss far :optimizer (sgd :rate 0.5) :steps 9)"""
    with open_trial(tmp_path, text, {"x": x, "y": y}) as trial:
        before = {n.removeprefix("m."): v for n, v in trial.read_all("parameter").items()}
        found = trial.losses(6)
    bound = 1 / np.sqrt(WIDTH)
    assert 0.8 * bound < np.abs(before["l.u"]).max() <= bound and not before["l.b"].any()
    layer = recurrent(kind, before)
    if kind == "lstm":
        layer.bias_hh_l0.requires_grad_(False)
    optimizer = torch.optim.SGD([p for p in layer.parameters() if p.requires_grad], 0.5)
    wanted = []
    for _ in range(6):
        optimizer.zero_grad()
        loss = (layer(torch.tensor(x))[0] - torch.tensor(y)).square().mean()
        loss.backward()
        optimizer.step()
        wanted.append(loss.item())
    assert_allclose(found, wanted, rtol=1e-5)
    assert found[-1] < found[0]


def test_recurrent_layers_of_bf16_keep_their_state_in_f32() -> None:
    (y, h, c), _ = with_parameters(f"(with :compute bf16 (lstm (cast x bf16) {WIDTH} :name l))", {"x": X})
    assert (y.dtype.name, h.dtype, c.dtype) == ("bfloat16", F, F)


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("options", [{}, {"stride": 2, "pad": 1}, {"dilation": 2, "groups": 2}, {"bias": False}])
def test_convolve(axes: int, options: dict[str, Any]) -> None:
    x = R.standard_normal((*(2, 7, 6, 8)[: axes + 1], 4)).astype(F)
    text = " ".join(f":{key} {str(value).lower()}" for key, value in options.items())
    (found,), owned = with_parameters(f"(convolve x 6 :name c {text})", {"x": x})
    groups = options.get("groups", 1)
    assert owned["c.w"].shape == (*[3] * axes, 4 // groups, 6)
    kernel = torch.tensor(np.moveaxis(owned["c.w"], (-1, -2), (0, 1)).copy())
    bias = torch.tensor(owned["c.b"]) if "c.b" in owned else None
    wanted = getattr(functional, f"conv{axes}d")(
        torch.tensor(np.moveaxis(x, -1, 1).copy()), kernel, bias, stride=options.get("stride", 1),
        padding=options.get("pad", 0), dilation=options.get("dilation", 1), groups=groups,
    )  # fmt: skip
    assert ("c.b" in owned) == options.get("bias", True)
    assert_allclose(found, np.moveaxis(wanted.numpy(), 1, -1), rtol=1e-4, atol=2e-5)


def test_convolve_with_a_window_for_each_axis_and_transposed() -> None:
    x = R.standard_normal((2, 7, 6, 4)).astype(F)
    (found,), owned = with_parameters("(convolve x 6 :name c :window [1 5] :pad [0 2])", {"x": x})
    assert found.shape == (2, 7, 6, 6) and owned["c.w"].shape == (1, 5, 4, 6)
    (found,), owned = with_parameters("(convolve x 6 :name c :window 2 :stride 2 :transposed true)", {"x": x})
    kernel = torch.tensor(owned["c.w"].transpose(2, 3, 0, 1).copy())
    wanted = functional.conv_transpose2d(torch.tensor(np.moveaxis(x, -1, 1).copy()), kernel, stride=2)
    bias = owned["c.b"]
    assert_allclose(found, np.moveaxis(wanted.numpy(), 1, -1) + bias, rtol=1e-4, atol=2e-5)
    assert codes("(defmetric m () (mean (convolve (zeros (f32 1 5 3)) 4 :groups 2)))"
                 "(defrun r :loss m :optimizer (sgd :rate 0.1) :steps 1)") == ["E-CALL-003"]  # fmt: skip


def test_running_statistics_of_batch_norm(tmp_path: Path) -> None:
    """Mean and unbiased variance move by a tenth a step, as PyTorch's; outside training they stand in."""
    x = R.standard_normal((20, 6, 3)).astype(F) * 3 + 1
    text = """(defdata d (arrays "data.npz")) (defloader train (rows d) :batch 5)
(defmodel m ((x (f32 _ _ _))) (batch-norm x :name n))
(defmetric size (x) (mean (square (m x))))
(defmetric mean-of (x) (mean (m x)))
(defeval check :loader train :batches 1 mean-of)
(defrun go :loader train :loss size :optimizer (sgd :rate 0.1) :steps 9)"""
    layer = torch.nn.BatchNorm1d(3)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    with open_trial(tmp_path, text, {"x": x}) as trial:
        for step in range(3):
            trial.step()
            optimizer.zero_grad()
            layer(torch.tensor(np.moveaxis(x[5 * step : 5 * step + 5], -1, 1).copy())).square().mean().backward()
            optimizer.step()
            assert_allclose(trial.read("m.n.mean"), layer.running_mean.numpy(), rtol=1e-5)
            assert_allclose(trial.read("m.n.variance"), layer.running_var.numpy(), rtol=1e-5)
        experiment = trial.experiment
        slots = trial.read_all("parameter", "state")
    graph = experiment.evaluations["check"].objectives[0].graph
    found = run_graph(experiment, graph, {"x": x[:5], **slots})["value"]
    layer.eval()
    wanted = layer(torch.tensor(np.moveaxis(x[:5], -1, 1).copy())).mean().item()
    assert_allclose(found, wanted, rtol=1e-5)


CACHED = """
(def width 8) (def heads 4) (def few 2) (def span 7)
(defn attend (x at cache)
  (let [heads-of (fn (y n) (rearrange "b t (h d) -> b h t d" y :h n))
        q (rope (heads-of (linear x width :name q) heads) at)
        k (rope (heads-of (linear x (* few 2) :name k) few) at)
        v (heads-of (linear x (* few 2) :name v) few)
        [y cache] (attend-cached q k v cache at)]
    [(rearrange "b h t d -> b t (h d)" y) cache]))
(defmodel m ((x (f32 _ _ _)) :at (iota (i32 (dim x 1))) :cache none) (attend x at cache :name a))
"""


@pytest.mark.parametrize("parts", [[7], [3, 1, 1, 1, 1], [1] * 7, [4, 3]])
def test_attention_that_remembers_is_attention(parts: list[int]) -> None:
    x = R.standard_normal((2, 7, 8)).astype(F)
    steps, at = [], 0
    for n in parts:
        steps.append(f"[y cache] (m (slice x {at} {at + n} :axis 1) :at (+ {at} (iota (i32 {n}))) :cache cache)")
        steps.append("ys (append ys y)")
        at += n
    walk = f"(let [cache (empty-cache 2 few span 2) ys [] {' '.join(steps)}] (concat ys :axis 1))"
    experiment, graph = elaborated(f"[(nth (m x) 0) {walk}]", before=CACHED, x=x)
    draws = np.random.default_rng(2)
    owned = {n: draws.standard_normal(p.type.shape).astype(F) for n, p in experiment.parameters.items()}
    whole, found = run_graph(experiment, graph, {"x": x, **owned}).values()
    assert_allclose(found, whole, rtol=1e-5, atol=1e-5)


def test_clip_by_value_and_ema(tmp_path: Path) -> None:
    g = np.array([-3, -0.5, 0.2, 9], F)
    assert_array_equal(value_of("(clip-by-value g 0.5)", g=g), np.clip(g, -0.5, 0.5))
    assert_allclose(value_of("(ema a b 0.9)", a=g, b=g[::-1].copy()), 0.9 * g + 0.1 * g[::-1], rtol=1e-6)
    text = """(defoptimizer capped (p g :rate _ :limit 1.0) (propose :p (- p (* rate (clip-by-value g limit)))))
(defmetric far () (sum (* 3.0 (param w (f32 2) 1.0))))
(defrun go :loss far :optimizer (capped :rate 0.25) :steps 3)"""
    with Trial(load_experiment(write_experiment(tmp_path, text))) as trial:
        trial.step()
        assert_array_equal(trial.read("w"), [0.75, 0.75])


def library() -> list[str]:
    """Every name that the library defines."""
    texts = [f.read_text("utf-8") for f in (resources.files("sexpgpu") / "std").iterdir() if f.name.endswith(".sx")]
    return sorted(name for text in texts for name in re.findall(r"^\(def(?:n|optimizer) (\S+)", text, re.M))


def test_a_file_defines_any_name_of_the_library_anew() -> None:
    names = library()
    assert len(names) > 70 and {"lstm", "muon", "he", "softmax", "cyclic", "attend-cached"} <= set(names)
    calls = " ".join(f"({name} one)" for name in names)
    text = "\n".join(f"(defn {name} (it) (* it {place}))" for place, name in enumerate(names))
    experiment = load_text(f"""{text}
(defoptimizer down (p g) (propose :p (- p g)))
(defgenerator found () (let [one (full (f32) 1.0)] [{calls}]))
(defmetric l () (let [w (param w-of-run (f32) 1.0)] (* w w)))
(defrun go :loss l :optimizer (down) :steps 1)""")
    found = run_graph(experiment, experiment.generators["found"].start, {}).values()
    assert [float(v) for v in found] == list(range(len(names)))
