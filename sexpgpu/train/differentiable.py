"""Whether every loss of a run can be differentiated: asked while a file is checked, not at the first step."""

from __future__ import annotations

from sexpgpu.diagnostics import Diagnostic
from sexpgpu.ir.opdef import OPS
from sexpgpu.ir.program import SLOT
from sexpgpu.lang.experiment import Experiment
from sexpgpu.transform.autodiff import depends_on


def missing_gradients(experiment: Experiment) -> list[Diagnostic]:
    """E-TYPE-009 for each operation without a gradient on the way from a moved parameter to its loss."""
    found: list[Diagnostic] = []
    for update in experiment.run.updates:
        graph = update.objective.graph
        moved = {SLOT + name for name in update.rules}
        wrt = [v for v in graph.inputs if v.node.attrs["name"] in moved]
        active = depends_on((graph.output("value"),), wrt)
        for node in graph.nodes:
            if node.id in active and OPS[node.op].gradient is None:
                found.append(
                    Diagnostic(
                        "E-TYPE-009",
                        f"`{node.op}` has no gradient, but the loss `{update.objective.name}` needs it",
                        node.origin.place,
                        help=("(stop-gradient x) where none is meant",),
                    )
                )
    return found
