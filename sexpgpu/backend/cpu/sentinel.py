"""The poison mode: memory filled with a byte that nothing live holds, and looked at after everything that runs.

Flow: `session` asks for fenced buffers when it allocates, and has a `Sentinel` run its phases, in tests only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from sexpgpu.backend.cpu.blocks import BlockCall
from sexpgpu.backend.cpu.native.lowering import Stretch
from sexpgpu.backend.cpu.native.operations import operations_of
from sexpgpu.ir.opdef import Array
from sexpgpu.ir.types import TensorType
from sexpgpu.plan.arena import ALIGNMENT_BYTES
from sexpgpu.plan.layout import ARENA, Layout, extent
from sexpgpu.plan.phase import PhasePlan, Step

POISON = 0xFF
"""Every float made of it is NaN."""
FENCE_BYTES = 4096

PreparedCall = Callable[[], object]
Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Moment:
    """What one action changes in the arena: bytes that it may write from now on, and those that then hold nothing."""

    born: tuple[Range, ...]
    dies: tuple[Range, ...]


@dataclass(slots=True)
class Sentinel:
    """Watches the memory of a session.

    touched_bytes: the end of the highest byte of the arena that anything was written to, as far as that shows.
    """

    item_bytes: Mapping[str, int]
    touched_bytes: int = 0
    _arena: Array = field(init=False)
    _live: Array = field(init=False)
    _fences: dict[str, tuple[Array, Array]] = field(default_factory=dict)
    _constants: dict[str, tuple[Array, bytes]] = field(default_factory=dict)
    _moments: dict[int, list[list[Moment]]] = field(default_factory=dict)

    def fenced(self, name: str, contents: Array) -> Array:
        """A buffer with those contents between two fences, as aligned as any."""
        raw = np.full(contents.size + ALIGNMENT_BYTES + 2 * FENCE_BYTES, POISON, np.uint8)
        start = FENCE_BYTES + -raw.ctypes.data % ALIGNMENT_BYTES
        stop = start + contents.size
        raw[start:stop] = contents
        self._fences[name] = raw[:start], raw[stop:]
        if name == ARENA:
            self._arena, self._live = raw[start:stop], np.zeros(contents.size, np.uint8)
        elif name.startswith("constant:"):
            self._constants[name] = raw[start:stop], contents.tobytes()
        return raw[start:stop]

    def run(self, plan: PhasePlan, calls: Sequence[PreparedCall]) -> None:
        """Run a phase, and look after each action: dead memory is as it was, and what has died is poisoned."""
        moments = self._moments.get(id(plan))
        if moments is None:
            moments = self._moments[id(plan)] = self._cut(plan.steps, calls)
        name = plan.phase.name
        self._arena[:] = POISON
        self._live[:] = 0
        for number, (call, own) in enumerate(zip(calls, moments, strict=True)):
            where = f"{name}, call {number}"
            self._bear(own[0])
            if isinstance(call, Stretch):
                call.run_each(partial(self._next, deque(own), where))
            else:
                call()
                self._look(own[0], where)
        self.check_fences(name)

    def copy(self, plan: PhasePlan, copies: Callable[[], None]) -> None:
        """Set slots aside, for which the plan has ranges as well."""
        saves = [self._span(copy.target, copy.type) for copy in plan.saves]
        moment = Moment(tuple(saves), ())
        self._bear(moment)
        copies()
        self._look(moment, f"{plan.phase.name}, what is set aside")

    def check_fences(self, where: str) -> None:
        """Raises AssertionError where anything outside of a buffer, or in a constant, was written."""
        for name, fences in self._fences.items():
            assert all((fence == POISON).all() for fence in fences), f"{where}: written outside of {name}"
        for name, (array, before) in self._constants.items():
            assert array.tobytes() == before, f"{where}: {name} was written"

    def _next(self, moments: deque[Moment], where: str) -> None:
        """One action is done; the next may write what it bears."""
        self._look(moments.popleft(), where)
        if moments:
            self._bear(moments[0])

    def _bear(self, moment: Moment) -> None:
        for start, stop in moment.born:
            self._live[start:stop] = POISON

    def _look(self, moment: Moment, where: str) -> None:
        dead = self._arena | self._live
        if dead.size and dead.min() != POISON:
            at = int(np.argmax(dead != POISON))
            raise AssertionError(f"{where}: byte {at} of the arena was written, and nothing lives there")
        written = np.flatnonzero(self._arena[self.touched_bytes :] != POISON)
        if written.size:
            self.touched_bytes += int(written[-1]) + 1
        for start, stop in moment.dies:
            self._arena[start:stop] = POISON
            self._live[start:stop] = 0

    # What each action may write.

    def _cut(self, steps: Sequence[Step], calls: Sequence[PreparedCall]) -> list[list[Moment]]:
        found: list[list[Moment]] = []
        position = 0
        for call in calls:
            taken = len(call.nodes) if isinstance(call, (Stretch, BlockCall)) else 1
            own = steps[position : position + taken]
            position += taken
            found.append(self._actions(own, call) if isinstance(call, Stretch) else [self._moment(own)])
        assert position == len(steps), "a call that is no step"
        return found

    def _actions(self, steps: Sequence[Step], stretch: Stretch) -> list[Moment]:
        """Of each action: it begins steps, and ends those up to the first that still has operations to come.

        Actions may be in another order than steps: what is done early may still be read by what comes late, and what a
        step ends is not what a later one has put there already.
        """
        left = [max(1, len(operations_of(step))) for step in steps]
        numbers: dict[int, list[int]] = {}
        for number, step in enumerate(steps):
            numbers.setdefault(id(step.node), []).append(number)
        written: dict[int, list[Range]] = {}
        num_ended = 0
        moments: list[Moment] = []
        helps = [bool(m.nodes) and all(id(node) not in numbers for node in m.nodes) for m in stretch.made_of]
        for made_of in stretch.made_of:
            if not made_of.nodes:  # it folds what the one before it left, so what that ends lives as long
                moments[-1], last = Moment(moments[-1].born, ()), moments[-1]
                moments.append(Moment((), last.dies))
                continue
            born: list[Range] = []
            for node in made_of.nodes:
                for number in [n for n in numbers.get(id(node), ()) if left[n]][:1]:
                    written[number] = self._spans(steps[number])
                    born += written[number]
                    left[number] -= 1
            dies: list[Range] = []
            while num_ended < len(steps) and not left[num_ended]:
                later = [each for other, spans in written.items() if other > num_ended for each in spans]
                for start, num_bytes in steps[num_ended].dies:
                    dies += _without((start, start + num_bytes), later)
                num_ended += 1
            # Copies that no step asks for prepare the next one, and may write what that writes.
            for helper in range(len(moments) - 1, -1, -1):
                if not helps[helper]:
                    break
                moments[helper] = Moment(tuple(born), ())
            moments.append(Moment(tuple(born), tuple(dies)))
        assert not any(left), "an operation that no action does"
        return moments

    def _moment(self, steps: Sequence[Step]) -> Moment:
        """Of steps that are one call."""
        spans = [self._spans(step) for step in steps]
        dies: list[Range] = []
        for number, step in enumerate(steps):
            later = [each for others in spans[number + 1 :] for each in others]
            for start, num_bytes in step.dies:
                dies += _without((start, start + num_bytes), later)
        return Moment(tuple([each for own in spans for each in own]), tuple(dies))

    def _spans(self, step: Step) -> list[Range]:
        """The bytes of the arena that a step writes."""
        places = zip(step.outputs, step.node.types, strict=True)
        return [self._span(layout, type) for layout, type in places if layout.buffer == ARENA and type.size]

    def _span(self, layout: Layout, type: TensorType) -> Range:
        low, high = extent(type.shape, layout.strides)
        size = self.item_bytes[type.dtype]
        return layout.offset_bytes + low * size, layout.offset_bytes + (high + 1) * size


def _without(whole: Range, others: Sequence[Range]) -> list[Range]:
    """What is left of a range."""
    left = [whole]
    for low, high in others:
        parts = [part for start, stop in left for part in ((start, min(stop, low)), (max(start, high), stop))]
        left = [(start, stop) for start, stop in parts if start < stop]
    return left
