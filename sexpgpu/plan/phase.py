"""The plan of one phase: order, layout of every value, lifetimes, and what is written where at the end.

Flow: `plan.memory` plans each phase with it; a device turns the steps into launches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from sexpgpu.ir.graph import Graph, Node, Value, reachable
from sexpgpu.ir.opdef import OPS, Work
from sexpgpu.ir.ops.rules import attr_ints
from sexpgpu.ir.program import FEED, RESULT, SLOT, Phase
from sexpgpu.ir.types import TensorType
from sexpgpu.plan.arena import Cell, aligned, live_peak, place
from sexpgpu.plan.constants import Constants
from sexpgpu.plan.flatten import Flat, Item, flatten, orders
from sexpgpu.plan.layout import ARENA, VIEWS, Layout, Strides, contiguous, is_contiguous
from sexpgpu.plan.regions import Rules, form_regions, may_overwrite
from sexpgpu.plan.schedule import Task, best_order


@dataclass(frozen=True, slots=True)
class Step:
    """One node to execute: a layout per input and output of the node.

    dies: ranges of the arena (offset, bytes) that hold nothing any more once the step is done.
    """

    node: Node
    inputs: tuple[Layout, ...]
    outputs: tuple[Layout, ...]
    dies: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Copy:
    """Contents to move from one layout to another; both have the type `type`."""

    type: TensorType
    source: Layout
    target: Layout


@dataclass(frozen=True, eq=False)
class PhasePlan:
    """How to execute one phase.

    steps: in order. saves: copies to make next, of slots that are read and overwritten. results: by name,
    to be read next. commits: copies into slots, to be made last, and only if the guard holds.
    placed: slots that a step writes itself. layouts: where each value of the phase's own graph lies.
    Units: arena_bytes is what the phase needs of the arena, live_bytes the most that is live in it at once,
    at step `peak_step`; workspace_bytes the most that one step allocates beside it.
    apply: None, or what to run instead of `commits` where the guard holds: the plan then first runs without
    keeping proposals, and `apply` makes them again, straight into the slots. The figures cover both.
    """

    phase: Phase
    steps: tuple[Step, ...]
    saves: tuple[Copy, ...]
    results: Mapping[str, tuple[TensorType, Layout]]
    commits: tuple[Copy, ...]
    placed: tuple[str, ...]
    layouts: Mapping[Value, Layout]
    arena_bytes: int
    live_bytes: int
    peak_step: int
    workspace_bytes: int
    apply: PhasePlan | None = None

    @property
    def peak_node(self) -> Node | None:
        """The node that runs when most is live; None in a phase without steps."""
        if self.apply is not None and self.apply.arena_bytes == self.arena_bytes:
            return self.apply.peak_node
        return self.steps[min(self.peak_step, len(self.steps) - 1)].node if self.steps else None


class Profile(Protocol):
    """What the plan of a phase must know of a device; `plan.memory.MemoryProfile` is one."""

    @property
    def item_bytes(self) -> Mapping[str, int]:
        """Bytes of an element by IR dtype."""
        ...

    def by_body(self, node: Node) -> bool:
        """Whether a node runs as the steps of its body."""
        ...

    @property
    def rules(self) -> Rules | None:
        """What the device does as one piece of work; None: node by node."""
        ...

    def workspace_bytes(self, node: Node) -> int:
        """What a step allocates for itself beside its outputs."""
        ...

    def writes_any_strides(self, node: Node) -> bool:
        """Whether a node leaves its results in any order of axes at no cost, where the last one stays."""
        ...


@dataclass(slots=True)
class _Window:
    """A value as a window of its owner: another value that has memory of its own."""

    owner: int
    offset: int
    strides: Strides


def plan_phase(phase: Phase, profile: Profile, constants: Constants) -> PhasePlan:
    """Order, layouts and lifetimes of one phase."""
    return _PhasePlanner(phase, profile, constants).plan()


def plan_in_two_passes(phase: Phase, profile: Profile, constants: Constants) -> PhasePlan | None:
    """A guarded phase as a pass that only finds its results, and one that then writes the slots.

    It computes proposals twice and keeps none. None if a slot's new contents are no part of what the
    results need: a fault in them would come too late.
    """
    assert phase.guard is not None, phase.name
    first = _restricted(phase, RESULT)
    known = {node.id for node in first.graph.nodes}
    second = _restricted(phase, SLOT)
    if any(value.node.id not in known for value in second.graph.output_values):
        return None
    check, apply = (plan_phase(part, profile, constants) for part in (first, second))
    return replace(
        check,
        phase=phase,
        apply=apply,
        arena_bytes=max(check.arena_bytes, apply.arena_bytes),
        live_bytes=max(check.live_bytes, apply.live_bytes),
        workspace_bytes=max(check.workspace_bytes, apply.workspace_bytes),
    )


def _restricted(phase: Phase, prefix: str) -> Phase:
    """The unguarded phase that has only those outputs whose names start with `prefix`."""
    graph = phase.graph
    outputs = tuple([(name, value) for name, value in graph.outputs if name.startswith(prefix)])
    nodes = reachable(tuple([value for _, value in outputs]))
    used = {node.id for node in nodes}
    inputs = tuple([value for value in graph.inputs if value.node.id in used])
    return Phase(phase.name, Graph(graph.name, inputs, outputs, nodes))


class _PhasePlanner:
    """The tables of one phase while it is planned; values and owners are numbers of `flat`."""

    def __init__(self, phase: Phase, profile: Profile, constants: Constants) -> None:
        self.phase = phase
        self.profile = profile
        self.constants = constants
        self.flat: Flat = flatten(phase.graph, profile.by_body)
        self.orders = orders(phase.graph, self.flat)
        if profile.rules is not None:
            at_once = phase.guard is not None
            self.flat, self.orders = form_regions(
                self.flat, self.orders, profile.rules, at_once, profile.item_bytes
            )
        self.windows: list[_Window | None] = [None] * len(self.flat.types)
        self.wishes = _wishes(self.flat, profile.writes_any_strides)
        self.fixed: dict[int, Layout] = {}  # owners outside the arena: slots, feeds, constants, placed outputs
        self.slot_owner: dict[str, int] = {}
        self.last: dict[int, int] = {}  # the step that reads an owner last
        self.cell_of: dict[int, int] = {}
        self.cells: list[Cell] = []

    def plan(self) -> PhasePlan:
        tasks = self._resolve()
        items = self._order(tasks)
        self._lifetimes(items)
        placed = self._place_outputs(items)
        self._make_cells(items)
        save_cells = self._saves()
        end = len(items)
        for _, cell in save_cells:
            self.cells.append(cell)
        live_bytes, peak_step = live_peak(self.cells, end)
        offsets, arena_bytes = place(self.cells)
        saved = {}
        for position, (value, _) in enumerate(save_cells):
            offset = offsets[len(self.cells) - len(save_cells) + position]
            saved[value] = Layout(ARENA, offset, contiguous(self.flat.types[value].shape))
        saves = [Copy(self.flat.types[v], self._layout(v, offsets), layout) for v, layout in saved.items()]
        steps = self._steps(items, offsets)
        return PhasePlan(
            phase=self.phase,
            steps=steps,
            saves=tuple(saves),
            results={
                name.removeprefix(RESULT): (self.flat.types[value], self._layout(value, offsets))
                for name, value in self.flat.outputs
                if name.startswith(RESULT)
            },
            commits=self._commits(placed, saved, offsets),
            placed=tuple(placed),
            layouts={v: self._layout(n, offsets) for v, n in self.flat.numbers.items() if self.windows[n] is not None},
            arena_bytes=arena_bytes,
            live_bytes=live_bytes,
            peak_step=peak_step,
            workspace_bytes=max([self.profile.workspace_bytes(item.node) for item in items], default=0),
        )

    # Which value is a window of which.

    def _bytes(self, value: int) -> int:
        type = self.flat.types[value]
        return type.size * self.profile.item_bytes[type.dtype]

    def _own(self, value: int) -> None:
        self.windows[value] = _Window(value, 0, self.wishes.get(value) or contiguous(self.flat.types[value].shape))

    def _window(self, value: int) -> _Window:
        window = self.windows[value]
        assert window is not None, (self.phase.name, value)
        return window

    def _resolve(self) -> list[Item]:
        """Give every value its window; the items that are left to execute."""
        for name, value in self.flat.inputs.items():
            assert name.startswith((SLOT, FEED)), (self.phase.name, name)
            self._own(value)
            self.fixed[value] = Layout(name, 0, contiguous(self.flat.types[value].shape))
            if name.startswith(SLOT):
                self.slot_owner[name.removeprefix(SLOT)] = value
        tasks = []
        for item in self.flat.items:
            node = item.node
            if not item.inputs and OPS[node.op].work is Work.FILL:
                (value,) = item.outputs
                layout = self.constants.layout(node, self.profile.item_bytes)
                self.fixed[value] = layout
                self.windows[value] = _Window(value, 0, layout.strides)
            elif not self._view(item):
                for value in item.outputs:
                    self._own(value)
                tasks.append(item)
        return tasks

    def _view(self, item: Item) -> bool:
        rule = VIEWS.get(item.node.op)
        if rule is None:
            return False
        source = self._window(item.inputs[0])
        found = rule(item.node, item.node.inputs[0], source.strides)
        if found is None:
            return False
        offset, strides = found
        self.windows[item.outputs[0]] = _Window(source.owner, source.offset + offset, strides)
        return True

    def _owners(self, values: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(dict.fromkeys([self._window(v).owner for v in values]))

    # When it runs, and how long it is needed.

    def _order(self, items: list[Item]) -> list[Item]:
        outputs = {self._window(value).owner for _, value in self.flat.outputs}
        written = set()
        if self.phase.guard is None:
            written = {self._window(v).owner for name, v in self.flat.outputs if name.startswith(SLOT)}
        owner_bytes = [0] * len(self.flat.types)
        numbered = {id(item): number for number, item in enumerate(items)}
        tasks = []
        for item in items:
            # An output that a slot may take directly needs nothing of the arena.
            sizes = {value: 0 if value in written else self._bytes(value) for value in item.outputs}
            for value, size in sizes.items():
                owner_bytes[value] = 0 if value in outputs else size
            tasks.append(Task(self._owners(item.inputs), item.outputs, sum(sizes.values())))
        choices = [[numbered[id(item)] for item in order if id(item) in numbered] for order in self.orders]
        return [items[number] for number in best_order(choices, tasks, owner_bytes)]

    def _lifetimes(self, items: list[Item]) -> None:
        for step, item in enumerate(items):
            for owner in self._owners(item.inputs):
                self.last[owner] = step
            for value in item.outputs:
                self.last[value] = step
        for _, value in self.flat.outputs:
            self.last[self._window(value).owner] = len(items)

    def _aligned_with(self, value: int, owner: int) -> bool:
        """Whether `value` is all of its owner, element for element in row-major order."""
        window = self._window(value)
        whole = window.offset == 0 and is_contiguous(self.flat.types[value].shape, window.strides)
        return whole and self._bytes(value) == self._bytes(owner)

    def _may_overwrite(self, item: Item, owner: int, output: int) -> bool:
        """Whether `item` may write `output` over `owner`, which it reads: element by element, in step."""
        if self._bytes(owner) != self._bytes(output):
            return False
        reads = [i for i, value in enumerate(item.inputs) if self._window(value).owner == owner]
        if not may_overwrite(item.node, item.outputs.index(output), reads):
            return False
        return all(self._aligned_with(item.inputs[i], owner) for i in reads)

    def _place_outputs(self, items: list[Item]) -> dict[str, int]:
        """Outputs that are written straight into their slot: what they replace is not needed any more."""
        if self.phase.guard is not None:
            return {}
        made = {value: step for step, item in enumerate(items) for value in item.outputs}
        placed: dict[str, int] = {}
        for name, value in self.flat.outputs:
            source = self._window(value).owner
            slot = name.removeprefix(SLOT)
            if not name.startswith(SLOT) or source not in made or source in self.fixed:
                continue
            if self._aligned_with(value, source) and self._slot_is_free(slot, source, items, made[source]):
                placed[slot] = value
                self._fix(source, name, items, made)
        return placed

    def _fix(self, value: int, name: str, items: list[Item], made: dict[int, int]) -> None:
        """Place a value in a slot, and what it may be written over too, if the slot is not read after that is made."""
        self.fixed[value] = Layout(name, 0, contiguous(self.flat.types[value].shape))
        step, slot = made[value], self.slot_owner.get(name.removeprefix(SLOT))
        for owner in self._owners(items[step].inputs):
            if owner not in made or owner in self.fixed or self.last[owner] != step:
                continue
            unread = slot is None or self.last.get(slot, -1) < made[owner]
            if unread and self._may_overwrite(items[step], owner, value):
                self._fix(owner, name, items, made)
                return

    def _slot_is_free(self, slot: str, output: int, items: list[Item], step: int) -> bool:
        """Whether nothing needs what `slot` holds once `step` writes `output` there."""
        owner = self.slot_owner.get(slot)
        if owner is None or self.last.get(owner, -1) < step:
            return True
        return self.last[owner] == step and self._may_overwrite(items[step], owner, output)

    def _make_cells(self, items: list[Item]) -> None:
        """A cell of the arena for each owner, or the cell of an input that ends where the owner begins."""
        for step, item in enumerate(items):
            ending = [owner for owner in self._owners(item.inputs) if self.last[owner] == step]
            for value in item.outputs:
                if value in self.fixed:
                    continue
                end = self.last[value]
                heir = self._inherits(step, item, value, ending)
                if heir is None:
                    self.cell_of[value] = len(self.cells)
                    self.cells.append(Cell(step, end, self._bytes(value)))
                else:
                    self.cell_of[value] = cell = self.cell_of[heir]
                    self.cells[cell].end = end

    def _inherits(self, step: int, item: Item, output: int, ending: Sequence[int]) -> int | None:
        """Of the owners that `step` reads last, the first that an output may be written over."""
        for owner in ending:
            cell = self.cell_of.get(owner)
            # A cell that another output of the step has taken lasts longer than its owner.
            if cell is None or self.cells[cell].end != step:
                continue
            if self._may_overwrite(item, owner, output):
                return owner
        return None

    # What becomes of it at the end.

    def _saves(self) -> list[tuple[int, Cell]]:
        """Outputs for slots that lie in slots which are themselves overwritten: they are set aside first."""
        written = {self.slot_owner.get(slot) for slot in self.phase.writes}
        end = max(self.last.values(), default=0)
        found: dict[int, Cell] = {}
        for name, value in self.flat.outputs:
            owner = self._window(value).owner
            if name.startswith(SLOT) and owner in written and not self._is_slot(value, name.removeprefix(SLOT)):
                found[value] = Cell(end, end, self._bytes(value))
        return list(found.items())

    def _is_slot(self, value: int, slot: str) -> bool:
        owner = self.slot_owner.get(slot)
        return owner is not None and self._window(value).owner == owner and self._aligned_with(value, owner)

    def _commits(self, placed: dict[str, int], saved: dict[int, Layout], offsets: list[int]) -> tuple[Copy, ...]:
        commits = []
        for name, value in self.flat.outputs:
            slot = name.removeprefix(SLOT)
            if not name.startswith(SLOT) or placed.get(slot) == value or self._is_slot(value, slot):
                continue
            type = self.flat.types[value]
            source = saved.get(value) or self._layout(value, offsets)
            commits.append(Copy(type, source, Layout(name, 0, contiguous(type.shape))))
        return tuple(commits)

    def _layout(self, value: int, offsets: list[int]) -> Layout:
        window = self._window(value)
        offset_bytes = window.offset * self.profile.item_bytes[self.flat.types[value].dtype]
        fixed = self.fixed.get(window.owner)
        if fixed is not None:
            return Layout(fixed.buffer, fixed.offset_bytes + offset_bytes, window.strides)
        return Layout(ARENA, offsets[self.cell_of[window.owner]] + offset_bytes, window.strides)

    def _steps(self, items: list[Item], offsets: list[int]) -> tuple[Step, ...]:
        dies: dict[int, list[tuple[int, int]]] = {}
        for cell, offset in zip(self.cells, offsets, strict=True):
            dies.setdefault(cell.end, []).append((offset, aligned(cell.num_bytes)))
        return tuple(
            [
                Step(
                    item.node,
                    tuple([self._layout(v, offsets) for v in item.inputs]),
                    tuple([self._layout(v, offsets) for v in item.outputs]),
                    tuple(dies.get(step, ())),
                )
                for step, item in enumerate(items)
            ]
        )


def _wishes(flat: Flat, writes_any_strides: Callable[[Node], bool]) -> dict[int, Strides]:
    """Strides of what may be written in any order of axes: that in which a reshape, after transposes, reads it."""
    maker = {value: item for item in flat.items for value in item.outputs}
    outputs = {value for _, value in flat.outputs}
    found: dict[int, Strides] = {}
    for item in flat.items:
        if item.node.op != "reshape":
            continue
        value, axes = item.inputs[0], tuple(range(item.node.inputs[0].rank))
        while value in maker and maker[value].node.op == "transpose":
            perm = attr_ints(maker[value].node.attrs, "perm")
            value, axes = maker[value].inputs[0], tuple([perm[axis] for axis in axes])
        free = value in maker and writes_any_strides(maker[value].node) and value not in outputs
        if free and value not in found and axes[-1:] == (len(axes) - 1,):
            dense = contiguous(tuple([flat.types[value].shape[axis] for axis in axes]))
            found[value] = tuple([stride for _, stride in sorted(zip(axes, dense, strict=True))])
    return found
