"""Loops on the cpu: a body is prepared once, as a phase is, and its calls run for every place.

Flow: `steps` makes one for each scan. See `bodies` for the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sexpgpu.backend.cpu.bodies import plan_body
from sexpgpu.backend.cpu.memory import LOOPS, Memory, constant_bytes
from sexpgpu.ir.graph import Node
from sexpgpu.ir.opdef import Array, Context
from sexpgpu.ir.ops.scan import inside, places, split
from sexpgpu.ir.program import FEED
from sexpgpu.plan.layout import Layout, contiguous
from sexpgpu.plan.phase import Step

Prepare = Callable[[Sequence[Step], Memory, Context], Sequence[Callable[[], Any]]]


class LoopCall:
    """A scan: carries, and what is walked, are copied to where the body reads them, its results to where they go."""

    def __init__(
        self,
        node: Node,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        memory: Memory,
        ctx: Context,
        prepare: Prepare,
    ) -> None:
        self.nodes = [node]
        body, (carries, first) = node.bodies[0], split(node)
        ctx = inside(ctx, node)
        planned = plan_body(body, {name: dtype.itemsize for name, dtype in memory.dtypes.items()})
        own = memory.buffers[LOOPS]
        buffers = {name: own[start : start + size] for name, (start, size) in planned.places.items()}
        buffers[LOOPS] = own[planned.num_bytes :]
        for index, constant in enumerate(planned.constants):
            buffers[f"constant:{index}"] = constant_bytes(constant, ctx)
        inner = Memory(buffers, memory.dtypes)
        given = [
            inner.view(Layout(FEED + name, 0, contiguous(v.shape)), v.type)
            for name, v in zip(body.input_names, body.inputs, strict=True)
        ]
        results = [planned.plan.results[name] for name, _ in body.outputs]
        made = [inner.view(layout, type) for type, layout in results]
        self._places = places(node)
        self._calls = prepare(planned.plan.steps, inner, ctx)
        self._begin = list(zip(given[:carries], inputs[:carries], strict=True))
        self._begin += zip(given[first:], inputs[first:], strict=True)
        self._walked = list(zip(given[carries:first], inputs[carries:first], strict=True))
        self._emitted = list(zip(outputs[carries:], made[carries:], strict=True))
        self._end = list(zip(outputs[:carries], given[:carries], strict=True))
        # A new carry that is an old one in another place must be set aside before that is overwritten.
        self._aside: list[tuple[Array, Array]] = []
        self._next: list[tuple[Array, Array]] = []
        for target, (_, layout), value in zip(given[:carries], results[:carries], made[:carries], strict=True):
            if layout.buffer.startswith(FEED):
                copy = np.empty(value.shape, value.dtype)
                self._aside.append((copy, value))
                value = copy
            self._next.append((target, value))

    def __call__(self) -> None:
        copy, calls = np.copyto, self._calls
        for target, source in self._begin:
            copy(target, source)
        for place in self._places:
            for target, source in self._walked:
                copy(target, source[place])
            for call in calls:
                call()
            for target, source in self._emitted:
                target[place] = source
            for target, source in self._aside:
                copy(target, source)
            for target, source in self._next:
                copy(target, source)
        for target, source in self._end:
            copy(target, source)
