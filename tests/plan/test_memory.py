"""Plans of hand-built programs: layouts, lifetimes, placement, parts, admission."""

from __future__ import annotations

import re

import pytest

import sexpgpu.ir.ops  # noqa: F401
from sexpgpu.diagnostics import DiagnosticError
from sexpgpu.ir.builder import Builder
from sexpgpu.ir.graph import Value
from sexpgpu.ir.program import Phase, Program, Slot
from sexpgpu.ir.types import TensorType
from sexpgpu.plan.constants import Constants
from sexpgpu.plan.layout import Layout
from sexpgpu.plan.memory import MemoryProfile, ProgramPlan, admit, plan_memory
from sexpgpu.plan.phase import PhasePlan, plan_phase
from sexpgpu.transform.autodiff import differentiate
from tests.effort import calls

CPU = MemoryProfile("cpu")
F = TensorType("f32", (8, 16))
BYTES = 8 * 16 * 4


def program(*phases: Phase, slots: tuple[Slot, ...] = ()) -> Program:
    return Program(slots, phases, Builder().graph("schedule", []))


def planned(b: Builder, *outputs: tuple[str, Value], guard: str | None = None) -> PhasePlan:
    return plan_phase(Phase("p", b.graph("p", outputs), guard), CPU, Constants())


def test_views_move_nothing() -> None:
    b = Builder()
    x = b.input("feed:x", F)
    turned = b.transpose(x, (1, 0))
    part = b.op("slice", turned, starts=(2, 1), stops=(16, 8), steps=(3, 1))
    back = b.op("reverse", part, axes=(0,))
    wide = b.broadcast(b.constant(2.0, TensorType("f32", ())), back.shape, ())
    plan = planned(b, ("result:y", b.mul(back, wide)))
    assert [step.node.op for step in plan.steps] == ["mul"]
    assert plan.layouts[turned] == Layout("feed:x", 0, (1, 16))
    assert plan.layouts[part] == Layout("feed:x", (2 + 16) * 4, (3, 16))
    assert plan.layouts[back] == Layout("feed:x", (2 + 16 + 4 * 3) * 4, (-3, 16))
    assert plan.layouts[wide] == Layout("constant:0", 0, (0, 0))


def test_reshape_is_a_view_where_strides_allow() -> None:
    b = Builder()
    x = b.input("feed:x", F)
    flat = b.reshape(x, (128,))
    merged = b.reshape(b.transpose(b.reshape(x, (8, 4, 4)), (1, 2, 0)), (16, 8))
    copied = b.reshape(b.transpose(x, (1, 0)), (128,))
    plan = planned(b, ("result:a", flat), ("result:b", merged), ("result:c", copied))
    assert plan.layouts[flat] == Layout("feed:x", 0, (1,))
    assert plan.layouts[merged] == Layout("feed:x", 0, (1, 16))
    assert plan.layouts[copied].buffer == "arena"
    assert [step.node.op for step in plan.steps] == ["reshape"]


def test_an_owner_lives_as_long_as_its_views() -> None:
    b = Builder()
    x = b.input("feed:x", F)
    y = b.op("exp", x)
    view = b.transpose(y, (1, 0))
    other = b.sum(b.op("tanh", x), (0, 1))
    late = b.mul(view, b.broadcast(other, view.shape, ()))
    plan = planned(b, ("result:late", late))
    ranges = [(plan.layouts[v].offset_bytes, v.type.num_bytes) for v in (y, late)]
    assert abs(ranges[0][0] - ranges[1][0]) >= BYTES, ranges  # written while its view is read at other places


def test_elementwise_chains_work_in_place() -> None:
    b = Builder()
    y = b.input("feed:x", F)
    for _ in range(5):
        y = b.op("tanh", b.op("exp", y))
    plan = planned(b, ("result:y", y))
    assert plan.arena_bytes == plan.live_bytes == BYTES


def test_an_input_with_another_reader_is_not_overwritten() -> None:
    b = Builder()
    x = b.op("exp", b.input("feed:x", F))
    plan = planned(b, ("result:y", b.op("tanh", x)), ("result:x", x))
    assert plan.arena_bytes == 2 * BYTES


def test_accumulation_is_written_into_its_slot() -> None:
    b = Builder()
    x, acc = b.input("feed:x", F), b.input("slot:acc", F)
    total = b.add(acc, b.op("exp", x))
    plan = planned(b, ("slot:acc", total))
    assert plan.placed == ("acc",) and not plan.commits
    assert plan.layouts[total] == Layout("slot:acc", 0, (16, 1))
    assert plan.arena_bytes == BYTES


def test_a_reshaped_output_is_written_into_its_slot() -> None:
    b = Builder()
    made = b.op("exp", b.input("feed:x", F))
    plan = planned(b, ("slot:s", b.reshape(made, (128,))), ("result:r", b.transpose(made, (1, 0))))
    assert plan.placed == ("s",) and not plan.commits and plan.arena_bytes == 0
    assert plan.layouts[made] == Layout("slot:s", 0, (16, 1))
    assert plan.results["r"][1] == Layout("slot:s", 0, (1, 16))


def test_one_value_for_two_slots_is_placed_once() -> None:
    b = Builder()
    made = b.op("exp", b.input("feed:x", F))
    plan = planned(b, ("slot:s", made), ("slot:t", made))
    assert plan.placed == ("s",)
    assert [(c.source.buffer, c.target.buffer) for c in plan.commits] == [("slot:s", "slot:t")]


def test_phases_share_one_arena() -> None:
    sizes = {}
    phases = []
    for width in (8, 64, 32):
        b = Builder()
        x = b.input(f"feed:x{width}", TensorType("f32", (width, width)))
        phases.append(Phase(f"p{width}", b.graph("p", [("result:y", b.product("ab,bc->ac", x, x))])))
        sizes[f"p{width}"] = width * width * 4
    plan = plan_memory(program(*phases), CPU)
    assert {name: phase.arena_bytes for name, phase in plan.phases.items()} == sizes
    assert plan.arena_bytes == 64 * 64 * 4 and plan.peak_at is not None and plan.peak_at.phase == "p64"


@pytest.mark.parametrize("case", ["guarded", "read later", "read across"])
def test_what_may_not_be_written_into_its_slot(case: str) -> None:
    b = Builder()
    square = TensorType("f32", (4, 4))
    old = b.input("slot:s", square)
    # The sum keeps the order: it reads the slot through what was made from the new contents.
    new = b.add(b.op("exp", old), b.transpose(old, (1, 0)) if case == "read across" else old)
    outputs = [("slot:s", new)]
    if case == "read later":
        outputs.append(("result:r", b.add(b.broadcast(b.sum(new, (0, 1)), (4, 4), ()), old)))
    guard = "ok" if case == "guarded" else None
    if guard:
        outputs.append(("result:ok", b.op("all", b.op("is-finite", new), axes=(0, 1))))
    plan = planned(b, *outputs, guard=guard)
    assert not plan.placed
    assert [copy.target.buffer for copy in plan.commits] == ["slot:s"]


def test_swapped_slots_are_set_aside_first() -> None:
    b = Builder()
    x, y = b.input("slot:x", F), b.input("slot:y", F)
    plan = planned(b, ("slot:x", y), ("slot:y", x))
    assert len(plan.saves) == 2 and len(plan.commits) == 2
    assert {copy.source.buffer for copy in plan.commits} == {"arena"}
    assert plan.arena_bytes == 2 * BYTES


def test_a_slot_given_its_own_contents_is_left_alone() -> None:
    b = Builder()
    plan = planned(b, ("slot:x", b.input("slot:x", F)))
    assert not plan.saves and not plan.commits and not plan.steps


def test_equal_constants_of_all_phases_are_stored_once() -> None:
    phases = []
    for name in "ab":
        b = Builder()
        x = b.input("feed:x", F)
        y = b.add(b.scale(x, 0.5), b.iota("f32", (8, 16), 1))
        phases.append(Phase(name, b.graph(name, [("result:y", y)])))
    plan = plan_memory(program(*phases), CPU)
    assert [node.op for node in plan.constants] == ["constant", "iota"]
    assert plan.constants_bytes == 2 * 64
    assert plan.feeds_bytes == BYTES


def test_a_composite_runs_as_its_body_or_as_one_step() -> None:
    inner = Builder()
    x = inner.input("x", F)
    body = inner.graph("body", [("y", inner.op("tanh", inner.op("exp", x))), ("x", x)])
    b = Builder()
    first = b.node("composite", (b.input("feed:x", F),), {"name": "twice"}, (body,))
    second = b.node("composite", (first.outputs[0],), {"name": "twice"}, (body,))
    phase = Phase("p", b.graph("p", [("result:y", b.add(second.outputs[0], first.outputs[1]))]))
    plan = plan_memory(program(phase), CPU).phases["p"]
    assert [step.node.op for step in plan.steps] == ["exp", "tanh", "exp", "tanh", "add"]
    assert plan.layouts[first.outputs[1]].buffer == "feed:x"
    assert plan.arena_bytes == BYTES
    whole = plan_memory(program(phase), MemoryProfile("card", by_body=lambda node: False)).phases["p"]
    assert [step.node.op for step in whole.steps] == ["composite", "composite", "add"]


def layered(num_layers: int, width: int, batch: int) -> Phase:
    b = Builder()
    weights = [b.input(f"slot:w{i}", TensorType("f32", (width, width))) for i in range(num_layers)]
    x = b.input("feed:x", TensorType("f32", (batch, width)))
    for weight in weights:
        x = b.op("tanh", b.product("ab,bc->ac", x, weight))
    loss = b.sum(x, (0, 1))
    gradients = differentiate(b, {loss: b.constant(1.0, loss.type)}, weights)
    outputs = [("result:loss", loss)]
    for i, gradient in enumerate(gradients):
        assert gradient is not None
        outputs.append((f"slot:g{i}", b.add(b.input(f"slot:g{i}", gradient.type), gradient)))
    return Phase("microbatch", b.graph("microbatch", outputs))


def test_a_gradient_is_summed_as_soon_as_it_is_there() -> None:
    layers, width, batch = 12, 64, 16
    plan = plan_memory(program(layered(layers, width, batch)), CPU).phases["microbatch"]
    activation, gradient = batch * width * 4, width * width * 4
    assert len(plan.placed) == layers
    assert plan.arena_bytes == plan.live_bytes
    assert plan.arena_bytes <= layers * activation + 2 * gradient + 3 * activation


def test_planning_is_linear_work() -> None:
    phase = layered(300, 8, 4)
    plan_memory(program(layered(10, 8, 4)), CPU)
    per_node = calls(lambda: plan_memory(program(phase), CPU)) / len(phase.graph.nodes)
    assert per_node < 300


def guarded_update(num_leaves: int) -> Phase:
    b = Builder()
    ok = b.constant(True, TensorType("bool", ()))
    outputs = []
    for i in range(num_leaves):
        new = b.scale(b.input(f"slot:p{i}", F), 0.5)
        ok = b.op("and", ok, b.op("all", b.op("is-finite", new), axes=(0, 1)))
        outputs.append((f"slot:p{i}", new))
    return Phase("update", b.graph("update", [*outputs, ("result:ok", ok)]), "ok")


def test_proposals_are_kept_only_over_an_idle_arena() -> None:
    b = Builder()
    x = b.input("feed:x", TensorType("f32", (64, 64)))
    large = Phase("large", b.graph("large", [("result:y", b.product("ab,bc->ac", x, x))]))
    kept = plan_memory(program(guarded_update(8), large), CPU).phases["update"]
    assert kept.apply is None and len(kept.commits) == 8 and kept.arena_bytes >= 8 * BYTES
    alone = plan_memory(program(guarded_update(8)), CPU).phases["update"]
    assert alone.apply is not None and len(alone.apply.placed) == 8 and not alone.commits
    assert alone.arena_bytes < 2 * BYTES


def test_proposals_that_the_guard_does_not_need_are_kept() -> None:
    b = Builder()
    ok = b.op("all", b.op("is-finite", b.input("feed:x", F)), axes=(0, 1))
    outputs = [(f"slot:p{i}", b.scale(b.input(f"slot:p{i}", F), 0.5)) for i in range(3)]
    phase = Phase("update", b.graph("update", [*outputs, ("result:ok", ok)]), "ok")
    assert plan_memory(program(phase), CPU).phases["update"].apply is None


def small_plan() -> ProgramPlan:
    b = Builder()
    p, g = b.input("slot:p", F), b.input("slot:g", F)
    new = b.sub(p, g)
    ok = b.op("all", b.op("is-finite", new), axes=(0, 1))
    update = Phase("update", b.graph("update", [("slot:p", new), ("result:ok", ok)]), "ok")
    b = Builder()
    tokens = b.cast(b.input("feed:x", TensorType("i32", (8, 16))), "f32")
    generate = Phase("generate.text", b.graph("generate", [("result:y", b.product("ab,cb->ac", tokens, tokens))]))
    slots = (Slot("p", F, "parameter"), Slot("m", F, "optimizer"), Slot("g", F, "gradient"))
    return plan_memory(program(update, generate, slots=slots), CPU)


def test_parts_sum_to_the_peak() -> None:
    plan = small_plan()
    parts = plan.parts()
    assert list(parts) == [
        "parameters", "optimizer states", "gradients",
        "largest graph's live set", "generator's largest phase", "feeds",
    ]  # fmt: skip
    smaller = min(parts["largest graph's live set"], parts["generator's largest phase"])
    assert sum(parts.values()) - smaller == plan.peak_bytes
    assert plan.peak_at is not None and plan.peak_at.phase == "generate.text"


def test_admission_names_parts_and_remedy() -> None:
    plan = small_plan()
    assert admit(plan, plan.peak_bytes) is plan
    with pytest.raises(DiagnosticError) as caught:
        admit(plan, plan.peak_bytes - 1)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "E-MEM-001"
    assert re.fullmatch(r"the run would hold [\d.]+ \w+ at its peak, and [\d.]+ \w+ may be used", diagnostic.message)
    assert "optimizer states" in diagnostic.notes[0]
    assert "`:microbatches`" in diagnostic.help[0] and "`--variant smoke`" in diagnostic.help[0]
    assert diagnostic.notes[1:] == ("the arena is fullest in phase `generate.text`",)
    with pytest.raises(DiagnosticError) as caught:
        admit(plan, 1000)
    assert "a smaller batch is no help" in caught.value.diagnostics[0].help[0]


def test_a_tensor_over_the_device_maximum() -> None:
    b = Builder()
    huge = b.iota("i64", (65535, 65535))
    phase = Phase("p", b.graph("p", [("result:y", huge)]))
    with pytest.raises(DiagnosticError) as caught:
        plan_memory(program(phase), MemoryProfile("Metal", max_tensor_bytes=1 << 34))
    assert str(caught.value) == (
        "E-MEM-002: the Metal device could not allocate 34358689800 bytes for a tensor of [65535, 65535] "
        "i64; the run does not fit this GPU"
    )


def test_what_a_device_keeps_for_its_steps_is_counted() -> None:
    from dataclasses import replace

    plain = small_plan()
    profile = replace(CPU, runtime_bytes=lambda num_steps: 1000 + 10 * num_steps)
    plan = plan_memory(plain.program, profile)
    num_steps = sum(len(phase.steps) for phase in plan.phases.values())
    assert num_steps > 3
    assert plan.parts()["runtime"] == plan.runtime_bytes == 1000 + 10 * num_steps
    assert plan.peak_bytes == plain.peak_bytes + plan.runtime_bytes
