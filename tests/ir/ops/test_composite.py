"""Composites: bodies and gradients against PyTorch and finite differences, stacking against a loop."""

from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.nn.functional as F

import sexpgpu.ir.ops  # noqa: F401
from sexpgpu.ir.builder import Builder
from sexpgpu.ir.composites import COMPOSITES, make
from sexpgpu.ir.evaluate import evaluate
from sexpgpu.ir.graph import Graph, Node
from sexpgpu.ir.opdef import OPS
from sexpgpu.ir.stacking import stack_into
from sexpgpu.ir.types import TensorType, TypeFault
from sexpgpu.transform.autodiff import differentiate

BF16 = np.dtype(ml_dtypes.bfloat16)
NAMES = {"float32": "f32", "bfloat16": "bf16", "int32": "i32", "int64": "i64", "bool": "bool"}


def type_of(array: np.ndarray) -> TensorType:
    return TensorType(NAMES[array.dtype.name], array.shape)


def built(name: str, arrays: list[np.ndarray], params: dict[str, Any]) -> tuple[Builder, Node, Graph]:
    b = Builder()
    node = make(b, name, [b.input(f"a{i}", type_of(a)) for i, a in enumerate(arrays)], **params)
    return b, node, b.graph(name, [(f"r{i}", v) for i, v in enumerate(node.outputs)], node.inputs)


def feeds(arrays: list[np.ndarray]) -> dict[str, np.ndarray]:
    return {f"a{i}": a for i, a in enumerate(arrays)}


def run(name: str, arrays: list[np.ndarray], **params: Any) -> list[np.ndarray]:
    return list(evaluate(built(name, arrays, params)[2], feeds(arrays)).values())


def gradients(
    name: str,
    arrays: list[np.ndarray],
    cotangents: list[np.ndarray | None],
    *,
    double: bool = False,
    **params: Any,
) -> list[np.ndarray]:
    """Gradients of Σ ⟨cotangent, output⟩ with respect to the float inputs."""
    b, node, _ = built(name, arrays, params)
    given = {f"g{i}": c for i, c in enumerate(cotangents) if c is not None}
    seeds = {node.outputs[int(g[1:])]: b.input(g, node.outputs[int(g[1:])].type) for g in given}
    found = differentiate(b, seeds, [v for v in node.inputs if v.type.is_float])
    graph = b.graph("g", [(f"d{i}", v) for i, v in enumerate(found) if v is not None])
    result = evaluate(graph, feeds(arrays) | given, double=double)
    return [result[f"d{i}"] for i in range(len(found))]


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@dataclass
class Case:
    name: str
    arrays: list[np.ndarray]
    params: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        shapes = "-".join("x".join(map(str, a.shape)) or "scalar" for a in self.arrays)
        return f"{self.name}-{shapes}-{'-'.join(map(str, self.params.values()))}"


def attention_inputs(lead: tuple[int, ...], t: int, s: int, dtype: Any = np.float32) -> list[np.ndarray]:
    return [a.astype(dtype) for a in (normal(1, *lead, t, 4), normal(2, *lead, s, 4), normal(3, *lead, s, 5))]


def mask(lead: tuple[int, ...], t: int, s: int) -> np.ndarray:
    seen = np.random.default_rng(9).random((*lead, t, s)) < 0.6
    seen[..., 1, :] = False
    return seen


CASES = [
    *(
        case
        for lead in ((), (3,), (2, 3))
        for case in (
            Case("softmax", [normal(0, *lead, 7)]),
            Case("logsumexp", [normal(0, *lead, 7)]),
            Case(
                "cross-entropy",
                [normal(0, *lead, 7), np.random.default_rng(1).integers(0, 7, lead, np.int32)],
            ),
            Case("layer-norm", [normal(0, *lead, 8), normal(1, 8), normal(2, 8)], {"eps": 1e-5}),
            Case("rms-norm", [normal(0, *lead, 8), normal(1, 8)], {"eps": 1e-6}),
            Case("gelu", [normal(0, *lead, 7) * 2]),
            Case("silu", [normal(0, *lead, 7) * 2]),
        )
    ),
    Case("cross-entropy", [normal(0, 3, 7).astype(BF16), np.array([0, 6, 3], np.int64)]),
    *(
        Case("attention", attention_inputs(lead, t, s), {"causal": causal, "scale": 0.5})
        for lead in ((), (2,), (2, 3))
        for t, s in ((4, 4), (3, 5))
        for causal in (False, True)
    ),
    Case("attention", [*attention_inputs((2,), 4, 5), mask((2,), 4, 5)], {"causal": False, "scale": 0.5}),
    Case("attention", [*attention_inputs((2,), 4, 5), mask((2,), 4, 5)], {"causal": True, "scale": 0.5}),
    Case("attention", attention_inputs((2,), 5, 3), {"causal": True, "scale": 1.0}),
    Case("attention", attention_inputs((2,), 4, 4, BF16), {"causal": True, "scale": 0.5}),
]


def gradient_cases() -> list[Case]:
    """Each gradient composite as a function of its own inputs, which need not come from a forward pass."""
    cases = []
    for case in CASES:
        gradient = COMPOSITES[case.name].gradient
        assert gradient is not None
        outputs = run(case.name, case.arrays, **case.params)
        arrays: list[np.ndarray] = []
        for taken in gradient.takes:
            if taken == "x":
                arrays += case.arrays
            elif taken[0] == "x":
                arrays.append(case.arrays[int(taken[1:])])
            elif taken[0] == "y":
                arrays.append(outputs[int(taken[1:])])
            else:
                shape = outputs[int(taken[1:])].shape
                arrays.append(np.random.default_rng(5).normal(size=shape).astype(np.float32))
        params = {k: v for k, v in case.params.items() if k in COMPOSITES[gradient.name].parameters}
        cases.append(Case(gradient.name, arrays, params))
    return cases


ALL = [*CASES, *gradient_cases()]


def torched(case: Case) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The case by PyTorch in f32: its inputs and outputs."""
    xs = [torch.tensor(a.astype(np.float32) if a.dtype == BF16 else a) for a in case.arrays]
    xs = [x.requires_grad_() if x.is_floating_point() else x for x in xs]
    x = xs[0]
    match case.name:
        case "softmax":
            return xs, [torch.softmax(x, -1)]
        case "logsumexp":
            return xs, [torch.logsumexp(x, -1)]
        case "cross-entropy":
            picked = x.gather(-1, xs[1].long().unsqueeze(-1)).squeeze(-1)
            most = x.amax(-1)
            return xs, [torch.logsumexp(x, -1) - picked, most, torch.exp(x - most.unsqueeze(-1)).sum(-1)]
        case "layer-norm":
            variance, mean = torch.var_mean(x, -1, correction=0)
            eps = case.params["eps"]
            return xs, [F.layer_norm(x, x.shape[-1:], xs[1], xs[2], eps), mean, torch.rsqrt(variance + eps)]
        case "rms-norm":
            rstd = torch.rsqrt((x * x).mean(-1) + case.params["eps"])
            return xs, [F.rms_norm(x, x.shape[-1:], xs[1], case.params["eps"]), rstd]
        case "gelu":
            return xs, [F.gelu(x, approximate="tanh")]
        case "silu":
            return xs, [F.silu(x)]
        case "attention":
            q, k, v, *rest = xs
            t, s = q.shape[-2], k.shape[-2]
            seen = rest[0] if rest else torch.ones(t, s, dtype=torch.bool)
            if case.params["causal"]:
                seen = seen & torch.ones(t, s, dtype=torch.bool).tril(s - t)
            scores = q @ k.mT * case.params["scale"]
            p = torch.softmax(scores.masked_fill(~seen, -1e30), -1) * seen
            return xs, [p @ v, torch.logsumexp(scores.masked_fill(~seen, -torch.inf), -1)]
        case _:
            raise AssertionError(case.name)


def close(ours: np.ndarray, theirs: np.ndarray, tolerance: float) -> None:
    np.testing.assert_allclose(ours.astype(np.float64), theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.torch
@pytest.mark.parametrize("case", CASES, ids=str)
def test_bodies_mean_what_torch_means(case: Case) -> None:
    outputs = run(case.name, case.arrays, **case.params)
    _, wanted = torched(case)
    tolerance = 1e-2 if case.arrays[0].dtype == BF16 and case.name == "attention" else 2e-6
    assert [v.dtype for v in outputs] == [np.float32] * len(outputs)
    for ours, theirs in zip(outputs, wanted, strict=True):
        close(ours, theirs.detach().numpy(), tolerance)


@pytest.mark.torch
@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients_are_those_of_torch(case: Case) -> None:
    xs, outputs = torched(case)
    g = torch.tensor(normal(7, *outputs[0].shape))
    wanted = torch.autograd.grad((outputs[0] * g).sum(), [x for x in xs if x.is_floating_point()])
    cotangents = [g.numpy(), *[None] * (len(outputs) - 1)]
    found = gradients(case.name, case.arrays, cotangents, **case.params)
    bf16 = case.arrays[0].dtype == BF16
    for x, ours, theirs in zip((a for a in case.arrays if a.dtype in (np.float32, BF16)), found, wanted, strict=True):
        assert ours.dtype == x.dtype
        close(ours, theirs.numpy(), 3e-2 if bf16 else 2e-5)


SEVERAL = ("cross-entropy", "layer-norm", "rms-norm", "attention")
SEVERAL_BACK = ("layer-norm-gradient", "rms-norm-gradient", "attention-gradient")
FIRST_AND_ALL = [(case, False) for case in ALL] + [
    (case, True) for case in ALL if case.name in (*SEVERAL, *SEVERAL_BACK)
]


@pytest.mark.parametrize("case, every", FIRST_AND_ALL, ids=str)
def test_gradients_are_finite_differences(case: Case, every: bool) -> None:
    """In double precision; secondary outputs too, whose cotangents only the body can take."""
    arrays = [a.astype(np.float64) if a.dtype in (np.float32, BF16) else a for a in case.arrays]
    _, node, graph = built(case.name, case.arrays, case.params)
    rng = np.random.default_rng(11)
    outputs = list(evaluate(graph, feeds(arrays), double=True).values())
    weights = [rng.normal(size=y.shape) * np.isfinite(y) for y in outputs]
    used = len(outputs) if every else 1
    cotangents = [w if i < used else None for i, w in enumerate(weights)]
    floats = [i for i, a in enumerate(arrays) if a.dtype == np.float64]
    b, node, _ = built(case.name, case.arrays, case.params)
    seeds = {v: b.input(f"g{i}", v.type) for i, v in enumerate(node.outputs[:used])}
    found = differentiate(b, seeds, [node.inputs[i] for i in floats])
    result = evaluate(
        b.graph("g", [(f"d{i}", v) for i, v in zip(floats, found, strict=True) if v is not None]),
        feeds(arrays) | {f"g{i}": c for i, c in enumerate(cotangents) if c is not None},
        double=True,
    )

    def total(moved: dict[str, np.ndarray]) -> float:
        values = evaluate(graph, moved, double=True).values()
        return sum(
            float(np.sum(np.where(w != 0, y, 0) * w)) for y, w in zip(values, cotangents, strict=True) if w is not None
        )

    for i in floats:
        direction = rng.normal(size=arrays[i].shape)
        direction = np.where(np.isfinite(arrays[i]), direction, 0)
        step = 1e-6
        ahead, behind = (total(feeds(arrays) | {f"a{i}": arrays[i] + sign * step * direction}) for sign in (1, -1))
        ours = float(np.sum(result.get(f"d{i}", np.zeros(())) * direction))
        assert ours == pytest.approx((ahead - behind) / (2 * step), rel=2e-6, abs=2e-7), i


@pytest.mark.parametrize("case", ALL, ids=str)
def test_stacked_is_looped(case: Case) -> None:
    k = 3
    _, _, graph = built(case.name, case.arrays, case.params)
    shared = COMPOSITES[case.name].shared
    every = tuple(range(len(case.arrays)))
    for batched in {(0,), tuple(i for i in every if i not in shared), every, (len(every) - 1,)}:
        rng = np.random.default_rng(3)
        stacked = feeds(case.arrays)
        for i in batched:
            a = case.arrays[i]
            noise = rng.normal(size=(k, *a.shape)) * 0.3
            stacked[f"a{i}"] = np.stack([a] * k) if a.dtype.kind in "ib" else (a + noise).astype(a.dtype)
        b = Builder()
        names = [f"a{i}" for i in batched]
        outputs = stack_into(b, graph, {}, names, k)
        together = evaluate(b.graph("s", [(name, v) for name, (v, _) in outputs.items()]), stacked)
        for j in range(k):
            alone = evaluate(graph, {n: a[j] if n in names else a for n, a in stacked.items()})
            for name, value in alone.items():
                loose = 2e-2 if value.dtype == BF16 else 3e-6
                close(together[name][j], value.astype(np.float64), loose)


def test_stacking_keeps_a_norm_whole_and_its_scale_unstacked() -> None:
    case = Case("layer-norm", [normal(0, 4, 8), normal(1, 8), normal(2, 8)], {"eps": 1e-5})
    _, _, graph = built(case.name, case.arrays, case.params)
    b = Builder()
    outputs = stack_into(b, graph, {}, ["a0"], 5)
    (value, flag) = outputs["r0"]
    assert flag and value.node.op == "composite" and value.shape == (5, 4, 8)
    assert [v.shape for v in value.node.inputs] == [(5, 4, 8), (8,), (8,)]


def test_a_query_without_keys() -> None:
    arrays = [*attention_inputs((2,), 4, 5), mask((2,), 4, 5)]
    for causal in (False, True):
        out, row_lse = run("attention", arrays, causal=causal, scale=0.5)
        assert np.all(out[:, 1] == 0) and np.all(row_lse[:, 1] == -np.inf)
        assert np.all(np.isfinite(out))
        dq, dk, dv = gradients("attention", arrays, [normal(4, 2, 4, 5), None], causal=causal, scale=0.5)
        assert np.all(dq[:, 1] == 0)
        assert np.all(np.isfinite(dq)) and np.all(np.isfinite(dk)) and np.all(np.isfinite(dv))


def test_a_row_of_minus_infinity_has_a_logsumexp_of_minus_infinity() -> None:
    x = normal(0, 2, 4)
    x[1] = -np.inf
    assert run("logsumexp", [x])[0][1] == -np.inf
    (dx,) = gradients("logsumexp", [x], [np.ones(2, np.float32)])
    assert np.all(dx[1] == 0) and np.isclose(dx[0].sum(), 1)


def test_targets_out_of_range_clamp_and_are_flagged_at_the_composite() -> None:
    x, targets = normal(0, 3, 5), np.array([-4, 2, 9], np.int32)
    clamped = np.array([0, 2, 4], np.int32)
    np.testing.assert_array_equal(run("cross-entropy", [x, targets])[0], run("cross-entropy", [x, clamped])[0])
    g = [np.ones(3, np.float32), None]
    np.testing.assert_array_equal(
        gradients("cross-entropy", [x, targets], g)[0], gradients("cross-entropy", [x, clamped], g)[0]
    )
    flagged: list[Node] = []
    _, node, graph = built("cross-entropy", [x, targets], {})
    evaluate(graph, feeds([x, targets]), flag=lambda at, fault: flagged.append(at))
    assert flagged and set(flagged) == {node}


def test_large_logits_do_not_overflow() -> None:
    x = np.array([[3e4, -3e4, 2.9e4]], np.float32)
    for name in ("softmax", "logsumexp"):
        assert np.all(np.isfinite(run(name, [x])[0]))
    assert np.all(np.isfinite(run("cross-entropy", [x, np.array([1], np.int32)])[0]))


def test_equal_composites_are_one_node() -> None:
    b = Builder()
    x = b.input("x", TensorType("f32", (3, 8)))
    w = b.input("w", TensorType("f32", (8,)))
    assert make(b, "softmax", [x]) is make(b, "softmax", [x])
    assert make(b, "rms-norm", [x, w], eps=1e-6) is make(b, "rms-norm", [x, w], eps=1e-6)
    assert make(b, "rms-norm", [x, w], eps=1e-6) is not make(b, "rms-norm", [x, w], eps=1e-5)
    other = Builder().input("x", TensorType("f32", (3, 8)))
    assert make(b, "softmax", [x]).bodies[0] is make(Builder(), "softmax", [other]).bodies[0]


def test_a_body_of_other_types_is_refused() -> None:
    b = Builder()
    x = b.input("x", TensorType("f32", (3, 8)))
    body = make(b, "softmax", [x]).bodies[0]
    with pytest.raises(TypeFault, match="its body takes"):
        b.node("composite", [b.input("z", TensorType("f32", (3, 9)))], {"name": "softmax"}, (body,))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_first_cotangents_meet_the_paired_composite(case: Case) -> None:
    b, node, _ = built(case.name, case.arrays, case.params)
    seed = b.input("g", node.outputs[0].type)
    found = differentiate(b, {node.outputs[0]: seed}, [v for v in node.inputs if v.type.is_float])
    gradient = COMPOSITES[case.name].gradient
    assert gradient is not None
    assert {v.node.attrs["name"] for v in found if v is not None} == {gradient.name}


def test_cost_counts_the_work_of_the_body_and_the_bytes_of_its_edge() -> None:
    _, node, _ = built("attention", attention_inputs((2,), 16, 16), {"causal": False, "scale": 1.0})
    cost = OPS["composite"].cost(node)
    assert cost.bytes == 4 * 2 * 16 * (4 + 4 + 5 + 5 + 1)
    assert cost.flops >= 2 * 2 * 16 * 16 * (4 + 5)
