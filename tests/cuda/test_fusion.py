"""Which elementwise steps become one kernel, what it reads and writes, and that its text compiles."""

from __future__ import annotations

import pytest

import sexpgpu.ir.ops  # noqa: F401
from sexpgpu.backend.cuda.fusion import Group, Value, longest_group, narrowed, print_group
from sexpgpu.backend.kernels.cuda import NVRTC_OPTIONS, module_source
from sexpgpu.ir.builder import Builder
from sexpgpu.ir.types import TensorType
from sexpgpu.plan.arena import aligned
from sexpgpu.plan.layout import ARENA, Layout, contiguous
from sexpgpu.plan.phase import Step

SHAPE = (64, 48)
F, H = TensorType("f32", SHAPE), TensorType("bf16", SHAPE)
SIZE = aligned(F.num_bytes)


def at(place: int, type: TensorType = F, buffer: str = ARENA) -> Layout:
    """The dense layout of a value in the arena's `place`th range."""
    return Layout(buffer, place * SIZE, contiguous(type.shape))


def step(op: str, places: list[Layout], out: Layout, dies: list[int] | None = None, type: TensorType = F) -> Step:
    b = Builder()
    node = b.op(op, *[b.input(f"x{i}", type) for i in range(len(places))]).node
    return Step(node, tuple(places), (out,), tuple((place * SIZE, SIZE) for place in dies or []))


def cast(source: Layout, type: TensorType, out: Layout, to: str, dies: list[int] | None = None) -> Step:
    b = Builder()
    node = b.cast(b.input("x", type), to).node
    return Step(node, (source,), (out,), tuple((place * SIZE, SIZE) for place in dies or []))


def group_of(*steps: Step, at_least: int = 2) -> Group:
    found = longest_group(steps, 0, at_least)
    assert found is not None
    return found


def test_what_dies_within_is_never_written() -> None:
    group = group_of(step("exp", [at(0)], at(1)), step("add", [at(1), at(0)], at(2), dies=[0, 1]))
    assert group.num_steps == 2 and len(group.reads) == 1
    assert [value.layout for value in group.writes] == [at(2)]


def test_what_lives_on_is_written() -> None:
    group = group_of(step("exp", [at(0)], at(1)), step("add", [at(1), at(0)], at(2), dies=[0]))
    assert [value.layout for value in group.writes] == [at(1), at(2)]


def test_a_value_over_its_input_replaces_it() -> None:
    group = group_of(step("exp", [at(0)], at(1)), step("tanh", [at(1)], at(1)), step("neg", [at(1)], at(0)))
    assert [value.layout for value in group.writes] == [at(1), at(0)]
    assert [names for _, names, _ in group.lines] == [("r0",), ("v0",), ("v1",)]


def test_another_walk_over_what_was_written_ends_the_group() -> None:
    transposed = Layout(ARENA, SIZE, (1, 64))
    group = longest_group(
        [step("exp", [at(0)], at(1)), step("neg", [at(0)], at(2)), step("tanh", [transposed], at(3))], 0
    )
    assert group is not None and group.num_steps == 2


def test_a_write_over_what_other_threads_still_read_ends_the_group() -> None:
    # The last value lies over the first input, but half a range on: its threads are not those that read it.
    shifted = Layout(ARENA, SIZE // 2, contiguous(SHAPE))
    steps = [step("exp", [at(0)], at(2), dies=[0]), step("neg", [at(2)], at(3)), step("tanh", [at(3)], shifted)]
    group = longest_group(steps, 0)
    assert group is not None and group.num_steps == 2
    assert longest_group(steps[1:], 0) is not None, "on its own the last is in step with nothing"


def test_a_small_step_between_runs_before() -> None:
    small = TensorType("f32", (48,))
    bias, shown = Layout(ARENA, 9 * SIZE, (1,)), Layout(ARENA, 9 * SIZE, (0, 1))
    group = group_of(
        step("exp", [at(0)], at(1)),
        step("neg", [Layout("slot:b", 0, (1,))], bias, type=small),
        step("add", [at(1), shown], at(2), dies=[1]),
    )
    assert group.num_steps == 3 and [s.node.op for s in group.hoisted] == ["neg"]
    assert [value.layout for value in group.reads] == [at(0), shown]


def test_a_step_that_needs_the_group_is_not_moved() -> None:
    small = TensorType("f32", (48,))
    steps = [
        step("exp", [at(0)], at(1)),
        step("neg", [Layout(ARENA, SIZE, (1,))], Layout(ARENA, 9 * SIZE, (1,)), type=small),
        step("add", [at(1), at(0)], at(2)),
    ]
    assert longest_group(steps, 0) is None


def test_a_product_may_leave_bf16_behind() -> None:
    steps = [
        cast(at(0), F, at(1, H), "bf16", dies=[0]),
        cast(at(1, H), H, at(2), "f32", dies=[1]),
        step("tanh", [at(2)], at(2)),
    ]
    group = group_of(*steps)
    found = narrowed(group, Value(at(0), F), at(0))
    assert found is not None
    assert [(v.type.dtype, v.layout) for v in found.reads] == [("bf16", at(0))]
    assert [node.op for node, _, _ in found.lines] == ["cast", "tanh"] and found.num_steps == 3
    alive = group_of(cast(at(0), F, at(1, H), "bf16"), *steps[1:])
    assert narrowed(alive, Value(at(0), F), at(0)) is None, "somebody reads the f32 later"
    exact = group_of(steps[0], step("add", [at(0), at(0)], at(3), dies=[0]))
    assert narrowed(exact, Value(at(0), F), at(0)) is None, "the group itself needs the f32"


@pytest.mark.parametrize("columns", [48, 47])
def test_texts_compile(columns: int) -> None:
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc")
    f, h = TensorType("f32", (64, columns)), TensorType("bf16", (64, columns))
    b = Builder()
    x, y = b.input("x", h), b.input("y", f)
    wide = b.cast(x, "f32")
    positive = b.op("gt", wide, y)
    chosen = b.where(positive, b.op("tanh", wide), y)
    nodes = [wide.node, positive.node, chosen.node.inputs[1].node, chosen.node, b.cast(chosen, "bf16").node]
    place = {x: Layout("slot:x", 0, contiguous(h.shape)), y: Layout("slot:y", 0, (0, 1))}
    steps = []
    for number, node in enumerate(nodes):
        out = Layout(ARENA, number * 64 * 256, contiguous(f.shape))
        steps.append(Step(node, tuple([place[v] for v in node.inputs]), (out,)))
        place[node.outputs[0]] = out
    group = group_of(*steps)
    assert group.num_steps == 5
    launch = print_group(group)
    assert len(launch.operands) == len(group.reads) + len(group.writes)
    _, program = nvrtc.nvrtcCreateProgram(module_source([launch]).encode(), b"unit.cu", 0, [], [])
    options = [option.encode() for option in (*NVRTC_OPTIONS, "--gpu-architecture=sm_80")]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    assert int(status) == 0, launch.source
