"""Loops of a program for a device that has none of its own: they are written out, trip after trip.

Flow: such a device's `plan` calls `write_out` before it plans.
"""

from __future__ import annotations

from sexpgpu.diagnostics import Diagnostic, DiagnosticError
from sexpgpu.ir.ops.scan import places
from sexpgpu.ir.program import Program
from sexpgpu.plan.unroll import num_unrolled, unroll_program
from sexpgpu.source import Span

MAX_UNROLLED = 20_000
"""Nodes of a phase whose loops are written out."""


def write_out(program: Program, device: str) -> Program:
    """`program` without loops. device: its name, for the message.

    Raises: E-DEV-004, at the longest loop of each phase, where its loops written out have too many nodes.
    """
    found: dict[Span | None, Diagnostic] = {}
    for phase in program.phases:
        loops = [node for node in phase.graph.walk() if node.op == "scan"]
        num_nodes = num_unrolled(phase.graph) if loops else 0
        if num_nodes > MAX_UNROLLED:
            longest = max(loops, key=lambda node: len(places(node)) * num_unrolled(node.bodies[0]))
            origin = longest.origin
            while origin.span is None and origin.parent is not None:
                origin = origin.parent
            message = (
                f"{device} writes out the trips of a loop, and phase `{phase.name}` would have {num_nodes:,} nodes; "
                f"{MAX_UNROLLED:,} are the most; this loop has {len(places(longest)):,} trips"
            )
            help = ("walk fewer places, or use `--device cpu`",)
            found.setdefault(origin.span, Diagnostic("E-DEV-004", message, origin.span, help=help))
    if found:
        raise DiagnosticError(list(found.values()))
    return unroll_program(program)
