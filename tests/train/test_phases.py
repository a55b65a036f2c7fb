"""The meaning of one update: what microbatches add up to, the clip, the optimizers, and what the guard keeps."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from sexpgpu.diagnostics import DiagnosticError
from sexpgpu.ir.verify import verify_program
from sexpgpu.lang.load import load_experiment
from sexpgpu.train.phases import assemble
from sexpgpu.train.schedule import HostSchedule
from tests.train.trial import Trial, open_trial, write_experiment

RNG = np.random.default_rng(7)
X = RNG.standard_normal((48, 5)).astype(np.float32)
Y = RNG.integers(0, 3, (48, 4)).astype(np.int32)
# Uneven masks: some rows whole, some empty, the first half much emptier than the second.
MASK = RNG.random((48, 4)) < np.linspace(0.05, 0.9, 48)[:, None]

MASKED = """
(defmodel net ((x (f32 _ 5)))
  (rearrange "b (t c) -> b t c" (linear (tanh (linear x 8 :name up)) 12 :name down) :c 3))
(defdata rows-of (arrays "data.npz"))
(defloader train (rows rows-of) :batch 48/MICRO)
(defmetric loss (x y mask) (mean-over (cross-entropy (net x) y) mask))
(defrun go :loader train :loss loss :microbatches MICRO :steps 9 :seed 1 CLIP
  :optimizer (sgd :rate 0.5))
"""


def masked(micro: int, clip: str = "") -> str:
    text = MASKED.replace("48/MICRO", str(48 // micro)).replace("MICRO", str(micro))
    return text.replace("CLIP", clip)


def raw_gradients(trial: Trial) -> dict[str, np.ndarray]:
    """The gradient slots over the weight: the gradient of the step's loss."""
    found = trial.read_all("gradient")
    weight = found.pop("weight.go", np.float64(trial.experiment.run.microbatches))
    return {name.removeprefix("gradient.go/"): value / weight for name, value in found.items()}


@pytest.mark.parametrize("clip", ["", ":clip 0.05"])
def test_cutting_a_batch_into_microbatches_changes_nothing(tmp_path: Path, clip: str) -> None:
    seen = []
    for micro in (1, 2, 3, 8, 48):
        with open_trial(
            tmp_path / str(micro), masked(micro, clip), {"x": X, "y": Y, "mask": MASK}, double=True
        ) as trial:
            result = trial.step()["go"]
            assert result.weight == MASK.sum()
            seen.append((result, raw_gradients(trial), trial.read_all("parameter")))
    (whole, gradients, parameters), *others = seen
    for result, found, moved in others:
        assert result.loss == pytest.approx(whole.loss, rel=1e-6)
        if clip:
            assert result.gradient_norm == pytest.approx(whole.gradient_norm, rel=1e-12)
        assert found.keys() == gradients.keys()
        for name, gradient in gradients.items():
            np.testing.assert_allclose(found[name], gradient, rtol=1e-11, atol=1e-15, err_msg=name)
            np.testing.assert_allclose(moved[name], parameters[name], rtol=1e-11, atol=1e-15)


def test_mean_over_is_the_sum_over_the_count(tmp_path: Path) -> None:
    with open_trial(tmp_path, masked(8), {"x": X, "y": Y, "mask": MASK}, double=True) as trial:
        values = trial.read_all("parameter")
        loss = trial.step()["go"].loss
        gradients = raw_gradients(trial)
    hidden = np.tanh(X @ values["net.up.w"] + values["net.up.b"])
    logits = (hidden @ values["net.down.w"] + values["net.down.b"]).reshape(48, 4, 3)
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    ce = -np.take_along_axis(log_p, Y[..., None], -1)[..., 0]
    assert loss == pytest.approx(ce[MASK].sum() / MASK.sum(), rel=1e-6)
    error = (np.exp(log_p) - np.eye(3)[Y]) * MASK[..., None] / MASK.sum()
    np.testing.assert_allclose(gradients["net.down.w"], hidden.T @ error.reshape(48, 12), rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(gradients["net.down.b"], error.reshape(48, 12).sum(0), rtol=1e-8, atol=1e-12)


def test_a_microbatch_that_is_all_masked_counts_for_nothing(tmp_path: Path) -> None:
    mask = MASK.copy()
    mask[:24] = False
    with open_trial(tmp_path / "a", masked(4), {"x": X, "y": Y, "mask": mask}, double=True) as trial:
        result = trial.step()["go"]
        cut = trial.read_all("parameter")
    assert result.weight == mask.sum() and math.isfinite(result.loss)
    with open_trial(tmp_path / "b", masked(1), {"x": X, "y": Y, "mask": mask}, double=True) as trial:
        assert trial.step()["go"].loss == pytest.approx(result.loss, rel=1e-6)
        for name, value in trial.read_all("parameter").items():
            np.testing.assert_allclose(cut[name], value, rtol=1e-11)


BY_LIBRARY = "(mean-over (cross-entropy (net x) y) mask)"
BY_HAND = """(let [n (sum (cast mask f32))]
  (weighted (/ (sum (where mask (cross-entropy (net x) y) 0)) n) n))"""


@pytest.mark.parametrize("loss", [BY_LIBRARY, BY_HAND], ids=["library", "hand"])
@pytest.mark.parametrize("stacking", [1, 2])
def test_eight_of_four_four_of_eight_and_one_of_32_agree_in_f32(tmp_path: Path, loss: str, stacking: int) -> None:
    """Sequences of uneven length; rows 8 to 15 count for nothing, which is a whole microbatch of eight rows.

    By hand its value is 0/0, and its weight 0.
    """
    lengths = RNG.integers(1, 5, 32)
    lengths[8:16] = 0
    data = {"x": X[:32], "y": Y[:32], "mask": np.arange(4) < lengths[:, None]}
    text = masked(8).replace(":batch 6", ":batch 4").replace(BY_LIBRARY, loss)
    seen = []
    for micro in (8, 4, 1):
        cut = text.replace(":batch 4", f":batch {32 // micro}").replace(":microbatches 8", f":microbatches {micro}")
        with open_trial(tmp_path / str(micro), cut, data, stacking=min(stacking, micro)) as trial:
            result = trial.step()["go"]
            assert result.weight == lengths.sum()
            seen.append((result.loss, raw_gradients(trial)))
    loss_of_one, gradients = seen.pop()
    largest = max(float(np.abs(g).max()) for g in gradients.values())
    assert np.isfinite(loss_of_one) and largest > 0.01
    for found_loss, found in seen:
        assert found_loss == pytest.approx(loss_of_one, rel=4e-7)
        assert found.keys() == gradients.keys()
        for name, gradient in gradients.items():
            np.testing.assert_allclose(found[name], gradient, rtol=0, atol=4e-7 * largest, err_msg=name)


def test_a_step_without_any_weight_is_refused(tmp_path: Path) -> None:
    with open_trial(tmp_path, masked(4), {"x": X, "y": Y, "mask": np.zeros_like(MASK)}) as trial:
        before = trial.read_all("parameter")
        with pytest.raises(DiagnosticError) as caught:
            trial.step()
        (found,) = caught.value.diagnostics
        assert found.code == "E-RUN-002" and "`loss`" in found.message and found.span is not None
        for name, value in trial.read_all("parameter").items():
            np.testing.assert_array_equal(value, before[name])


# --- optimizers ---------------------------------------------------------------------------------------------

QUADRATIC = """
(defmodel net ((x (f32 _ 5))) (linear (tanh (linear x 4 :name up)) 1 :name down))
(defdata rows-of (arrays "data.npz"))
(defloader train (rows rows-of) :batch 8)
(defmetric loss (x y) (mean (square (- (rearrange "b 1 -> b" (net x)) y))))
(defrun go :loader train :loss loss :steps 20 :seed 1 OPTIONS)
"""


def torch_run(values: dict[str, np.ndarray], optimizer: str, options: dict, clip: float | None) -> list:
    """The same 20 steps by PyTorch in double precision: the loss of each, then the parameters."""
    import torch

    leaves = {n: torch.tensor(np.asarray(v, np.float64), requires_grad=True) for n, v in values.items()}
    chosen = getattr(torch.optim, optimizer)(list(leaves.values()), **options)
    losses = []
    norms = []
    for step in range(20):
        rows = slice(step % 6 * 8, step % 6 * 8 + 8)
        x, y = (torch.tensor(a[rows], dtype=torch.float64) for a in (X, Y[:, 0]))
        hidden = torch.tanh(x @ leaves["net.up.w"] + leaves["net.up.b"])
        out = (hidden @ leaves["net.down.w"] + leaves["net.down.b"])[:, 0]
        loss = ((out - y) ** 2).mean()
        chosen.zero_grad()
        loss.backward()
        if clip is not None:
            norms.append(float(torch.nn.utils.clip_grad_norm_(list(leaves.values()), clip)))
        chosen.step()
        losses.append(loss.item())
    return [losses, norms, {n: v.detach().numpy() for n, v in leaves.items()}]


@pytest.mark.torch
@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize(
    ("rule", "optimizer", "options"),
    [
        ("(sgd :rate 0.05)", "SGD", {"lr": 0.05}),
        ("(sgd :rate 0.05 :decay 0.1)", "SGD", {"lr": 0.05, "weight_decay": 0.1}),
        ("(momentum :rate 0.05)", "SGD", {"lr": 0.05, "momentum": 0.9}),
        (
            "(momentum :rate 0.02 :beta 0.8 :decay 0.01)",
            "SGD",
            {"lr": 0.02, "momentum": 0.8, "weight_decay": 0.01},
        ),
        ("(momentum :rate 0.05 :nesterov true)", "SGD", {"lr": 0.05, "momentum": 0.9, "nesterov": True}),
        ("(adam :rate 0.02)", "Adam", {"lr": 0.02}),
        (
            "(adam :rate 0.02 :betas [0.8 0.95] :eps 1e-6)",
            "Adam",
            {"lr": 0.02, "betas": (0.8, 0.95), "eps": 1e-6},
        ),
        ("(adamw :rate 0.02)", "AdamW", {"lr": 0.02}),
        (
            "(adamw :rate 0.02 :betas [0.9 0.95] :decay 0.1)",
            "AdamW",
            {"lr": 0.02, "betas": (0.9, 0.95), "weight_decay": 0.1},
        ),
    ],
)
def test_optimizers_are_those_of_torch(
    tmp_path: Path, rule: str, optimizer: str, options: dict, clip: float | None
) -> None:
    pytest.importorskip("torch")
    text = QUADRATIC.replace("OPTIONS", f":optimizer {rule}" + (f" :clip {clip}" if clip else ""))
    with open_trial(tmp_path, text, {"x": X, "y": Y[:, 0].astype(np.float32)}, double=True) as trial:
        first = trial.read_all("parameter")
        results = [trial.step()["go"] for _ in range(20)]
        last = trial.read_all("parameter")
    losses, norms, expected = torch_run(first, optimizer, options, clip)
    np.testing.assert_allclose([r.loss for r in results], losses, rtol=1e-6)
    if clip is not None:
        np.testing.assert_allclose([r.gradient_norm for r in results], norms, rtol=1e-6)
        assert min(norms) < clip < max(norms), "both sides of the clip are seen"
    for name, value in expected.items():
        np.testing.assert_allclose(last[name], value, rtol=1e-6, atol=1e-7, err_msg=name)


# --- host scalars -------------------------------------------------------------------------------------------

SCHEDULED = """
(defmodel net ((x (f32 _ 5))) (linear x 1))
(defdata rows-of (arrays "data.npz"))
(defloader train (rows rows-of) :batch 8)
(defmetric loss (x)
  (measure rate RATE)
  (mean (square (net x))))
(defrun go :loader train :loss loss :steps 400 :seed 1 :optimizer (sgd :rate RATE))
"""


def cosine(step: int, peak: float, warmup: int, total: int, floor: float) -> float:
    if step < warmup:
        return peak * step / warmup
    done = min(max((step - warmup) / max(1, total - warmup), 0.0), 1.0)
    return floor + 0.5 * (peak - floor) * (1 + math.cos(math.pi * done))


@pytest.mark.parametrize(
    ("rate", "formula"),
    [
        (
            "(warmup-cosine 6e-4 :warmup 70 :total 400)",
            lambda s: cosine(s, 6e-4, 70, 400, 0.0),
        ),
        (
            "(warmup-cosine 1e-3 :warmup 1 :total 300 :floor 1e-5)",
            lambda s: cosine(s, 1e-3, 1, 300, 1e-5),
        ),
        ("(warmup-cosine 0.1 :total 400)", lambda s: cosine(s, 0.1, 0, 400, 0.0)),
        ("(linear-schedule 0.5 0.01 :total 100)", lambda s: 0.5 + (0.01 - 0.5) * min(1.0, s / 100)),
        ("(* 0.1 (pow 0.97 step))", lambda s: 0.1 * 0.97**s),
        ("(/ 0.1 (sqrt step))", lambda s: 0.1 / math.sqrt(s)),
        (
            "(where (< step 10) 0.1 (where (< step 200) 0.01 0.001))",
            lambda s: 0.1 if s < 10 else 0.01 if s < 200 else 0.001,
        ),
        ("(* 1e-3 (- step (* 7 (floor (/ step 7)))))", lambda s: 1e-3 * (s % 7)),
    ],
)
def test_schedules_are_computed_in_double_precision(tmp_path: Path, rate: str, formula) -> None:
    path = write_experiment(tmp_path, SCHEDULED.replace("RATE", rate), x=X)
    program = assemble(load_experiment(path)).program
    schedule = HostSchedule(program.schedule)
    names = [n for n in program.phase("update.go.first").feeds if n.startswith("host.")]
    assert names
    for step in (1, 2, 3, 9, 10, 69, 70, 71, 99, 100, 101, 235, 399, 400, 401, 1000):
        values = {float(schedule.at(step)[name]) for name in names}
        assert values == {float(np.float32(formula(step)))} or any(
            v == pytest.approx(formula(step), rel=3e-7, abs=1e-12) for v in values
        ), step


def test_a_clip_may_follow_a_schedule(tmp_path: Path) -> None:
    text = QUADRATIC.replace("OPTIONS", ":optimizer (sgd :rate 1.0) :clip (/ 0.01 step)")
    with open_trial(tmp_path, text, {"x": X, "y": 9 + Y[:, 0].astype(np.float32)}, double=True) as trial:
        before = trial.read_all("parameter")
        for step in (1, 2, 3):
            trial.step()
            after = trial.read_all("parameter")
            moved = math.sqrt(sum(float(((after[n] - before[n]) ** 2).sum()) for n in after))
            assert moved == pytest.approx(0.01 / step, rel=1e-5)
            before = after


# --- the program --------------------------------------------------------------------------------------------


def test_phases_and_slots_of_a_run(tmp_path: Path) -> None:
    path = write_experiment(tmp_path, masked(4, ":clip 1.0"), x=X, y=Y, mask=MASK)
    program = assemble(load_experiment(path)).program
    verify_program(program)
    assert [p.name for p in program.phases] == [
        "initialise",
        "update.go.first",
        "update.go.next",
        "update.go.commit",
    ]
    commit = program.phase("update.go.commit")
    assert commit.guard == "ok" and set(commit.results) == {"weight", "gradient-norm", "finite", "ok"}
    roles = {slot.name: slot.role for slot in program.slots}
    assert roles["net.up.w"] == "parameter" and roles["gradient.go/net.up.w"] == "gradient"
    assert [s.name for s in program.saved] == ["net.up.w", "net.up.b", "net.down.w", "net.down.b"]


def test_a_step_of_one_call_needs_no_second_phase(tmp_path: Path) -> None:
    path = write_experiment(tmp_path, masked(4), x=X, y=Y, mask=MASK)
    program = assemble(load_experiment(path), stacking=4).program
    verify_program(program)
    assert [p.name for p in program.phases] == ["initialise", "update.go.first", "update.go.commit"]


@pytest.mark.parametrize("k", [2, 4])
def test_a_stacked_call_folds_the_same_weights(tmp_path: Path, k: int) -> None:
    data = {"x": X, "y": Y, "mask": MASK}
    with open_trial(tmp_path, masked(4, ":clip 0.05"), data, double=True) as one:
        expected, parameters = one.step()["go"], one.read_all("parameter")
    with open_trial(tmp_path, masked(4, ":clip 0.05"), data, double=True, stacking=k) as stacked:
        found = stacked.step()["go"]
        assert found.loss == pytest.approx(expected.loss, rel=1e-6) and found.weight == expected.weight
        assert found.gradient_norm == pytest.approx(expected.gradient_norm, rel=1e-12)
        for name, value in stacked.read_all("parameter").items():
            np.testing.assert_allclose(value, parameters[name], rtol=1e-11, atol=1e-15)
