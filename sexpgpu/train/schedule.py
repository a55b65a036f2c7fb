"""Host scalars: the schedule graph, evaluated in double precision once a step, fed as f32."""

from __future__ import annotations

import numpy as np

from sexpgpu.ir.evaluate import evaluate
from sexpgpu.ir.graph import Graph
from sexpgpu.ir.opdef import Array


class HostSchedule:
    """Values of the feeds `host.N` by step; those of the last step asked for are remembered."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._step = -1
        self._values: dict[str, Array] = {}

    def at(self, step: int) -> dict[str, Array]:
        """Every host scalar at `step`, as f32."""
        if step != self._step:
            values = evaluate(self._graph, {"step": np.asarray(step, np.float64)})
            self._values = {name: np.asarray(v, np.float32) for name, v in values.items()}
            self._step = step
        return self._values
