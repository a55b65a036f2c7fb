"""Regions: what runs as one, what lies in memory between them, and that nothing is computed otherwise for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

import sexpgpu.ir.ops  # noqa: F401
from sexpgpu.backend.cuda.attention import is_attention, rounded_edges
from sexpgpu.backend.kernels import rows
from sexpgpu.backend.kernels.rows import program_of
from sexpgpu.backend.kernels.scans import absorbs
from sexpgpu.ir.builder import Builder
from sexpgpu.ir.composites import make
from sexpgpu.ir.evaluate import evaluate
from sexpgpu.ir.graph import Graph, Node, Value
from sexpgpu.ir.opdef import OPS, Array, Context, Work
from sexpgpu.ir.program import Phase
from sexpgpu.ir.types import TensorType
from sexpgpu.plan import copies, regions
from sexpgpu.plan.constants import Constants
from sexpgpu.plan.flatten import Flat, Item, flatten, orders
from sexpgpu.plan.memory import MemoryProfile
from sexpgpu.plan.narrow import narrow
from sexpgpu.plan.phase import PhasePlan, plan_phase
from sexpgpu.plan.regions import Rules, form_regions
from tests.transform.random_graphs import Case, grown, with_gradients

F, H = TensorType("f32", (32, 128)), TensorType("bf16", (32, 128))
COLUMN = TensorType("f32", (128,))


def is_row_program(body: Graph) -> bool:
    return program_of(body) is not None


def by_body(node: Node) -> bool:
    if OPS[node.op].work is not Work.EXPAND:
        return False
    return not is_attention(node) and not is_row_program(node.bodies[0])


RULES = Rules(is_row_program, lambda node: node.inputs[0].dtype == "bf16", is_attention, absorbs)
PROFILE = MemoryProfile("test", by_body=by_body, rules=RULES)


def planned(b: Builder, **results: Value) -> PhasePlan:
    graph = b.graph("p", [(f"result:{name}", value) for name, value in results.items()])
    return plan_phase(Phase("p", graph), PROFILE, Constants())


def shown(plan: PhasePlan) -> list[str]:
    """Each step as the operations in it."""
    found = []
    for step in plan.steps:
        bodies = step.node.bodies if step.node.op == "region" else ()
        members = [node for body in bodies for node in body.nodes if node.op not in ("input", "constant", "broadcast")]
        found.append(" ".join([str(node.attrs.get("name", node.op)) for node in members]) or step.node.op)
    return found


def rounded(b: Builder) -> Value:
    """A bf16 value that lies in the arena."""
    w = b.input("feed:w", TensorType("bf16", (128, 128)))
    return b.cast(b.product("ab,bc->ac", b.input("feed:x", H), w), "bf16")


def test_elementwise_work_that_follows_is_one() -> None:
    b = Builder()
    x = b.input("feed:x", F)
    y = b.op("neg", b.op("tanh", b.op("exp", x)))
    plan = planned(b, y=y)
    assert shown(plan) == ["exp tanh neg"]
    assert plan.arena_bytes == F.num_bytes, "what is made within lies nowhere"


def test_what_others_read_is_written() -> None:
    b = Builder()
    x = b.input("feed:x", F)
    e = b.op("exp", x)
    plan = planned(b, y=b.op("tanh", e), z=b.product("ab,cb->ac", e, e))
    assert sorted(shown(plan)) == ["exp tanh", "product"]
    region = next(step for step in plan.steps if step.node.op == "region")
    assert len(region.outputs) == 2


def test_no_path_leads_out_and_back() -> None:
    b = Builder()
    x = b.input("feed:x", TensorType("f32", (32, 12)))
    e = b.op("exp", x)
    total = b.broadcast(b.sum(e, (1,)), x.shape, (0,))
    plan = planned(b, y=b.div(e, total))
    assert shown(plan) == ["exp", "sum", "div"]


def test_a_widened_value_is_made_by_each_reader() -> None:
    b = Builder()
    wide = b.cast(rounded(b), "f32")
    product = b.product("ab,cb->ac", b.op("exp", wide), b.input("feed:v", TensorType("f32", (128, 128))))
    plan = planned(b, y=b.mul(product, wide))
    assert shown(plan) == ["product cast", "cast exp", "product", "cast mul"]


def test_what_can_be_made_again_is_not_kept() -> None:
    b = Builder()
    t = b.op("tanh", b.cast(rounded(b), "f32"))
    h = b.product("ab,bc->ac", b.cast(b.mul(t, t), "bf16"), b.input("feed:v", TensorType("bf16", (128, 128))))
    plan = planned(b, y=b.mul(h, b.sub(b.like(1.0, t), b.mul(t, t))))
    assert shown(plan) == ["product cast", "cast tanh mul cast", "product", "cast tanh mul sub mul"]


def test_what_a_late_product_reads_is_made_again_beside_other_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of a weight reads what a GELU gave, which the gradient of the GELU makes from the same input."""
    monkeypatch.setattr(copies, "FAR", 8)
    monkeypatch.setattr(copies, "MIN_BYTES_AGAIN", 0)
    b = Builder()
    u = rounded(b)
    wide = b.cast(u, "f32")
    h = b.cast(b.mul(b.op("tanh", wide), wide), "bf16")
    w = b.input("feed:v", TensorType("bf16", (128, 128)))
    y = b.product("ab,bc->ac", h, w)
    for _ in range(6):
        y = b.product("ab,cb->ac", b.cast(b.op("exp", y), "bf16"), w)
    back = b.cast(y, "bf16")
    slope = b.mul(b.product("ab,cb->ac", back, w), b.op("sigmoid", wide))
    plan = planned(b, slope=b.cast(slope, "bf16"), weight=b.product("ab,ac->bc", h, back))
    makes_both = [step for step in plan.steps if len(step.outputs) == 2]
    assert len(makes_both) == 1 and "sigmoid" in shown(plan)[plan.steps.index(makes_both[0])]
    last = plan.steps[-1]
    assert last.node.op == "product" and set(makes_both[0].outputs) & set(last.inputs)


def test_a_small_value_is_made_for_each_element() -> None:
    b = Builder()
    x, bias = b.input("feed:x", H), b.input("slot:bias", COLUMN)
    column = b.cast(b.broadcast(b.cast(bias, "bf16"), H.shape, (1,)), "f32")
    plan = planned(b, y=b.add(b.cast(x, "f32"), column))
    (step,) = plan.steps
    assert [v.type for v in step.node.inputs] in ([H, COLUMN], [COLUMN, H])


def test_a_chain_of_sums_is_not_small() -> None:
    """Each residual is read by widening casts alone; making it again would grow with the depth."""
    b = Builder()
    x = b.cast(b.input("feed:x", F), "bf16")
    w = b.input("feed:w", TensorType("bf16", (128, 128)))
    for _ in range(4):
        added = b.add(b.cast(x, "f32"), b.product("ab,bc->ac", x, w))
        x = b.cast(added, "bf16")
    assert max(len(text.split()) for text in shown(planned(b, y=x))) <= 4


def test_a_product_is_rounded_where_it_is_made() -> None:
    b = Builder()
    x, w = b.input("feed:x", H), b.input("feed:w", TensorType("bf16", (128, 128)))
    made = b.product("ab,bc->ac", x, w)
    plan = planned(b, y=b.op("exp", b.cast(b.cast(made, "bf16"), "f32")))
    assert shown(plan) == ["product cast", "cast exp"]
    plan = planned(b, y=b.cast(made, "bf16"), z=b.op("exp", made))
    assert "product" in shown(plan), "somebody reads the f32"


def test_a_norm_takes_what_is_before_and_after() -> None:
    b = Builder()
    x, y = b.input("feed:x", H), b.input("feed:y", H)
    scale, bias = b.input("slot:scale", COLUMN), b.input("slot:bias", COLUMN)
    total = b.cast(b.add(b.cast(x, "f32"), b.cast(y, "f32")), "bf16")
    normal = make(b, "layer-norm", (b.cast(total, "f32"), scale, bias), eps=1e-5).outputs[0]
    plan = planned(b, x=total, y=b.cast(normal, "bf16"))
    (step,) = plan.steps
    assert step.node.attrs["kind"] == "rows" and step.node.types == (H, H)


def test_sums_down_columns_go_with_what_makes_them() -> None:
    b = Builder()
    x, g = b.input("feed:x", F), b.input("feed:g", F)
    made = b.mul(x, b.op("tanh", g))
    plan = planned(b, y=b.cast(made, "bf16"), z=b.sum(made, (0,)))
    assert shown(plan) == ["tanh mul cast sum"]


def test_a_row_program_may_overwrite_what_it_reads() -> None:
    b = Builder()
    logits = b.op("add", b.input("feed:x", F), b.input("feed:y", F))
    targets = b.input("feed:t", TensorType("i32", (32,)))
    row = TensorType("f32", (32,))
    sums = b.op("max", logits, axes=(1,))
    made = make(b, "cross-entropy-gradient", (logits, targets, sums, sums, b.input("feed:g", row))).outputs[0]
    plan = planned(b, y=made)
    step = plan.steps[-1]
    assert step.node.attrs["kind"] == "rows" and step.inputs[0].offset_bytes == step.outputs[0].offset_bytes


def test_two_results_do_not_take_one_place() -> None:
    b = Builder()
    x = b.op("exp", b.input("feed:x", F))
    w = b.input("feed:w", TensorType("f32", (128, 128)))
    read = b.product("ab,bc->ac", x, w)
    one, two = b.op("tanh", read), b.op("neg", read)
    plan = planned(b, p=b.product("ab,cb->ac", one, two), y=b.add(one, two))
    for step in plan.steps:
        assert len({layout.offset_bytes for layout in step.outputs}) == len(step.outputs)


def step_of_rule(b: Builder, name: str, shape: tuple[int, ...]) -> tuple[Value, Value]:
    """A proposal against a clipped gradient, and whether it is finite."""
    type = TensorType("f32", shape)
    p, g = b.input(f"slot:{name}", type), b.input(f"slot:{name}.grad", type)
    new = b.sub(p, b.mul(g, b.broadcast(b.input("feed:rate", TensorType("f32", ())), shape, ())))
    return new, b.op("all", b.op("is-finite", new), axes=tuple(range(len(shape))))


def guarded(b: Builder, shapes: list[tuple[int, ...]]) -> PhasePlan:
    outputs = []
    ok = b.constant(True, TensorType("bool", ()))
    for i, shape in enumerate(shapes):
        new, finite = step_of_rule(b, f"w{i}", shape)
        outputs.append((f"slot:w{i}", new))
        ok = b.op("and", ok, finite)
    phase = Phase("commit", b.graph("commit", [*outputs, ("result:ok", ok)]), guard="ok")
    return plan_phase(phase, PROFILE, Constants())


def test_what_is_alike_runs_at_once_with_its_folds() -> None:
    plan = guarded(Builder(), [(32, 128), (128,), (7,)])
    first, *rest = plan.steps
    assert first.node.attrs["kind"] == "leaves" and len(first.node.bodies) == 3
    assert all(step.node.types[0].rank == 0 for step in rest), "the flags are left"


def test_what_waits_for_another_is_not_at_once() -> None:
    b = Builder()
    one, finite = step_of_rule(b, "w", (64,))
    next_rate = b.where(finite, b.constant(1.0, TensorType("f32", ())), b.constant(2.0, TensorType("f32", ())))
    other = b.input("slot:v", TensorType("f32", (64,)))
    two = b.sub(other, b.mul(one, b.broadcast(next_rate, (64,), ())))
    ok = b.op("all", b.op("is-finite", two), axes=(0,))
    phase = Phase("commit", b.graph("commit", [("slot:w", one), ("slot:v", two), ("result:ok", ok)]), guard="ok")
    plan = plan_phase(phase, PROFILE, Constants())
    kinds = [step.node.attrs.get("kind") for step in plan.steps]
    assert kinds.count("leaves") == 2 and all(len(step.node.bodies) <= 1 for step in plan.steps)


def test_without_a_guard_only_what_reads_slots_runs_at_once() -> None:
    b = Builder()
    first = [b.cast(b.input(f"slot:w{i}", F), "bf16") for i in range(3)]
    products = [b.product("ab,cb->ac", x, x) for x in first]
    added = {f"y{i}": b.mul(p, b.input(f"slot:g{i}", TensorType("f32", p.shape))) for i, p in enumerate(products)}
    plan = planned(b, **added)
    assert [len(step.node.bodies) for step in plan.steps].count(3) == 1, "the casts"
    assert len(plan.steps) == 7, "each gradient is added where it is made"


def attention_phase() -> Graph:
    b = Builder()
    packed = TensorType("bf16", (2, 128, 3, 4, 64))
    qkv = b.input("feed:qkv", packed)
    parts = [b.reshape(b.slice(qkv, 2, i, i + 1), (2, 128, 4, 64)) for i in range(3)]
    q, k, v = (b.transpose(part, (0, 2, 1, 3)) for part in parts)
    out, sums = make(b, "attention", (q, k, v), causal=True, scale=0.125).outputs
    narrow_out = b.reshape(b.transpose(b.cast(out, "bf16"), (0, 2, 1, 3)), (2, 128, 256))
    g = b.input("feed:g", TensorType("f32", out.shape))
    gradients = make(b, "attention-gradient", (q, k, v, out, sums, g), causal=True, scale=0.125).outputs
    joined = b.op("concat", *[b.reshape(d, (1, *d.shape)) for d in gradients], axis=0)
    back = b.reshape(b.transpose(joined, (1, 3, 0, 2, 4)), (2, 128, 768))
    weights = b.input("feed:w", TensorType("bf16", (768, 8)))
    results = [("result:y", b.product("abc,cd->abd", narrow_out, b.slice(weights, 0, 0, 256)))]
    results += [("result:d", b.product("abc,cd->abd", b.cast(back, "bf16"), weights))]
    return b.graph("p", results)


def test_attention_leaves_its_results_where_they_are_read() -> None:
    graph = narrow(attention_phase(), lambda node: rounded_edges(node) if is_attention(node) else ((), ()))
    plan = plan_phase(Phase("p", graph), PROFILE, Constants())
    texts = shown(plan)
    assert not [text for text in texts if text in ("reshape", "transpose", "concat")], texts
    assert "attention cast" in texts and any(text.endswith("concat") for text in texts), texts


# Nothing is computed otherwise.


def run(flat: Flat, items: Sequence[Item], feeds: dict[str, Array]) -> dict[str, Array]:
    known = {value: feeds[name] for name, value in flat.inputs.items()}
    for item in items:
        result = OPS[item.node.op].meaning(Context(), item.node, [known[value] for value in item.inputs])
        known.update(zip(item.outputs, result if isinstance(result, tuple) else (result,), strict=True))
    return {name: known[value] for name, value in flat.outputs}


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("first", range(0, 200, 25))
def test_random_graphs(first: int, at_once: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In every order, bit for bit what the graph gives node by node; rows of any length are row programs."""
    monkeypatch.setattr(rows, "MIN_COLUMNS", 2)
    monkeypatch.setattr(copies, "FAR", 8)
    monkeypatch.setattr(copies, "MIN_BYTES_AGAIN", 0)
    program_of.cache_clear()
    formed_regions = 0
    for seed in range(first, first + 25):
        case = grown(seed)
        graph = with_gradients(case)
        with np.errstate(all="ignore"):
            wanted = evaluate(graph, case.values)
            flat = flatten(graph, by_body)
            formed, choices = form_regions(flat, orders(graph, flat), RULES, at_once)
            assert len(choices) == 3 and len({len(order) for order in choices}) == 1
            for order in choices:
                found = run(formed, order, case.values)
                for name, array in wanted.items():
                    assert np.array_equal(found[name], array, equal_nan=True), (seed, name)
        formed_regions += sum(item.node.op == "region" for item in formed.items)
    assert formed_regions > 25
    program_of.cache_clear()


def network(seed: int) -> Case:
    """A deep network of random layers: norms, rounding, activations, residuals, weights and biases."""
    rng, b = np.random.default_rng(seed), Builder()
    x = b.input("slot:x", TensorType("f32", (6, 8)))
    values: dict[str, Array] = {"slot:x": rng.normal(size=x.shape).astype(np.float32)}

    def parameter(shape: tuple[int, ...]) -> Value:
        name = f"slot:p{len(values)}"
        values[name] = rng.normal(size=shape).astype(np.float32) / 3
        return b.input(name, TensorType("f32", shape))

    for _ in range(8):
        narrow = "bf16" if rng.random() < 0.7 else "f32"
        h = x
        if rng.random() < 0.5:
            h = make(b, "layer-norm", (h, parameter((8,)), parameter((8,))), eps=1e-5).outputs[0]
        product = b.product("ab,bc->ac", b.cast(h, narrow), b.cast(parameter((8, 8)), narrow))
        h = b.cast(b.cast(product, narrow), "f32")
        if rng.random() < 0.6:
            h = b.add(h, b.broadcast(parameter((8,)), h.shape, (1,)))
        for name in rng.choice(["tanh", "sigmoid", "sin"], int(rng.integers(0, 3))):
            h = b.mul(h, b.op(str(name), h))
        h = b.cast(b.cast(h, narrow), "f32")
        x = b.add(x, h) if rng.random() < 0.6 else h
    loss = b.sum(b.mul(x, x), (0, 1))
    return Case(b.graph("network", [("result:loss", loss), ("result:x", x)]), values)


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_random_networks(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what is made again, for gradients of weights among others, bit for bit the same."""
    monkeypatch.setattr(rows, "MIN_COLUMNS", 2)
    monkeypatch.setattr(copies, "FAR", 8)
    monkeypatch.setattr(copies, "MIN_BYTES_AGAIN", 0)
    program_of.cache_clear()
    hosts = Counter[bool]()
    has_host = regions._Former._has_host

    def noted(former: regions._Former, copy: regions._Cluster, late: int) -> bool:
        found = has_host(former, copy, late)
        hosts[found] += 1
        return found

    monkeypatch.setattr(regions._Former, "_has_host", noted)
    for seed in range(first, first + 20):
        case = network(seed)
        graph = narrow(with_gradients(case), lambda node: ((), ()))
        with np.errstate(all="ignore"):
            wanted = evaluate(graph, case.values)
            flat = flatten(graph, by_body)
            formed, choices = form_regions(flat, orders(graph, flat), RULES)
            for order in choices:
                found = run(formed, order, case.values)
                for name, array in wanted.items():
                    assert np.array_equal(found[name], array, equal_nan=True), (seed, name)
    assert hosts[True] > 20, hosts
    program_of.cache_clear()


@pytest.mark.parametrize("first", range(0, 100, 25))
def test_narrow_changes_nothing(first: int) -> None:
    for seed in range(first, first + 25):
        case = grown(seed)
        graph = with_gradients(case)
        with np.errstate(all="ignore"):
            wanted = evaluate(graph, case.values)
            found = evaluate(narrow(graph, lambda node: ((), ())), case.values)
        for name, array in wanted.items():
            assert np.array_equal(found[name], array, equal_nan=True), (seed, name)
