"""The memory of a whole program: its slots, one arena that all phases share, and what the peak is made of.

Flow: a device's `plan` calls `plan_memory` with its profile, then `admit`; its `open` allocates what this
says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sexpgpu.diagnostics import Diagnostic, DiagnosticError
from sexpgpu.ir.graph import Node, Origin
from sexpgpu.ir.opdef import OPS, Work
from sexpgpu.ir.program import FEED, Program
from sexpgpu.ir.types import ITEM_BYTES, TensorType
from sexpgpu.plan.arena import aligned
from sexpgpu.plan.constants import Constants
from sexpgpu.plan.phase import PhasePlan, Step, plan_in_two_passes, plan_phase
from sexpgpu.plan.regions import Rules, writes_any_strides

GIB = 1 << 30
PART_OF_ROLE = {
    "parameter": "parameters",
    "optimizer": "optimizer states",
    "gradient": "gradients",
    "state": "model states",
    "average": "averages",
    "fold": "folds",
    "carry": "carries",
}
LIVE_SET, GENERATOR = "largest graph's live set", "generator's largest phase"
GENERATOR_PHASES = "generate."


def _is_composite(node: Node) -> bool:
    return OPS[node.op].work is Work.EXPAND


def _no_workspace(node: Node) -> int:
    return 0


def _no_runtime(num_steps: int) -> int:
    return 0


@dataclass(frozen=True)
class MemoryProfile:
    """What a plan must know of a device: data, so that a plan for an absent one is the same call.

    item_bytes: storage of an element by IR dtype. workspace_bytes: what a step allocates for itself.
    runtime_bytes: what an opened plan of so many steps keeps beside tensors: prepared calls, libraries' buffers.
    by_body: composites that run as the steps of their body; the others are one step.
    max_tensor_bytes: the largest tensor that the device can hold; None: no limit of its own.
    loop_bytes: what the body of a loop runs in; all loops of a program share one such buffer.
    rules: what the device does as one piece of work; None: it works node by node. writes_any_strides: what leaves its
    results in any order of axes at no cost.
    is_host: its memory is the host's, so what the host keeps for checkpoints counts.
    """

    title: str
    item_bytes: Mapping[str, int] = field(default_factory=lambda: ITEM_BYTES)
    workspace_bytes: Callable[[Node], int] = _no_workspace
    runtime_bytes: Callable[[int], int] = _no_runtime
    by_body: Callable[[Node], bool] = _is_composite
    max_tensor_bytes: int | None = None
    loop_bytes: Callable[[Node], int] = _no_workspace
    rules: Rules | None = None
    writes_any_strides: Callable[[Node], bool] = writes_any_strides
    is_host: bool = False


@dataclass(frozen=True, slots=True)
class PeakAt:
    """Where the arena is fullest: the phase, and the origin of the node that runs then."""

    phase: str
    origin: Origin


@dataclass(frozen=True, eq=False)
class ProgramPlan:
    """How to execute a program, and all the memory that this takes.

    slot_bytes: by role. constants: nodes that make `constant:INDEX`. workspace_bytes: the most that one step
    allocates beside the arena, with the buffer of loops, which is `loop_bytes` long. runtime_bytes: see
    `MemoryProfile`. The arena is as long as the phase that needs most of it. snapshot_bytes: the host's copy of what is
    saved, which a checkpoint is written from while the run goes on.
    """

    program: Program
    profile: MemoryProfile
    phases: Mapping[str, PhasePlan]
    constants: tuple[Node, ...]
    slot_bytes: Mapping[str, int]
    arena_bytes: int
    constants_bytes: int
    feeds_bytes: int
    workspace_bytes: int
    runtime_bytes: int = 0
    loop_bytes: int = 0
    snapshot_bytes: int = 0

    @property
    def _counted_snapshot_bytes(self) -> int:
        return self.snapshot_bytes if self.profile.is_host else 0

    @property
    def peak_bytes(self) -> int:
        """The most that an opened plan holds."""
        persistent = sum(self.slot_bytes.values()) + self.constants_bytes + self.feeds_bytes
        return persistent + self.arena_bytes + self.workspace_bytes + self.runtime_bytes + self._counted_snapshot_bytes

    @property
    def peak_at(self) -> PeakAt | None:
        """Where the arena is fullest; None if no phase uses it."""
        if not self.arena_bytes:
            return None
        fullest = max(self.phases.values(), key=lambda plan: plan.arena_bytes)
        assert fullest.peak_node is not None, fullest.phase.name
        return PeakAt(fullest.phase.name, fullest.peak_node.origin)

    def parts(self) -> dict[str, int]:
        """Bytes by name, in order; parts that a program does not have are left out.

        They sum to `peak_bytes`, but for the generator's: its phases live in the same arena, so it counts
        only where it is the larger of the two.
        """
        found = {PART_OF_ROLE[role]: num_bytes for role, num_bytes in self.slot_bytes.items()}
        found["constants"] = self.constants_bytes
        generators = [plan for name, plan in self.phases.items() if name.startswith(GENERATOR_PHASES)]
        others = [plan for name, plan in self.phases.items() if not name.startswith(GENERATOR_PHASES)]
        found[LIVE_SET] = max([plan.arena_bytes for plan in others], default=0)
        found[GENERATOR] = max([plan.arena_bytes for plan in generators], default=0)
        found["feeds"] = self.feeds_bytes
        found["workspace"] = self.workspace_bytes
        found["runtime"] = self.runtime_bytes
        found["checkpoint copy"] = self._counted_snapshot_bytes
        return {name: num_bytes for name, num_bytes in found.items() if num_bytes}


def plan_memory(program: Program, profile: MemoryProfile, snapshot: bool = False) -> ProgramPlan:
    """Plan every phase of `program` for a device. snapshot: with a copy of what is saved.

    Raises: E-MEM-002 if one tensor is larger than the device can hold.
    """
    if profile.max_tensor_bytes is not None:
        _check_tensors(program, profile, profile.max_tensor_bytes)

    def num_bytes(type: TensorType) -> int:
        return aligned(type.size * profile.item_bytes[type.dtype])

    constants = Constants()
    phases = {phase.name: plan_phase(phase, profile, constants) for phase in program.phases}
    # A guarded phase keeps its proposals over the arena that the others leave idle, unless that is too short.
    idle_bytes = max([plan.arena_bytes for plan in phases.values() if plan.phase.guard is None], default=0)
    for name, plan in phases.items():
        if plan.phase.guard is not None and plan.arena_bytes > idle_bytes:
            passes = plan_in_two_passes(plan.phase, profile, constants)
            if passes is not None and passes.arena_bytes < plan.arena_bytes:
                phases[name] = passes
    slot_bytes: dict[str, int] = {}
    for role in PART_OF_ROLE:
        sizes = [num_bytes(slot.type) for slot in program.slots if slot.role == role]
        if sizes:
            slot_bytes[role] = sum(sizes)
    feeds = {(FEED + name, type) for phase in program.phases for name, type in phase.feeds.items()}
    loop_bytes = max([profile.loop_bytes(s.node) for plan in phases.values() for s in _steps(plan)], default=0)
    return ProgramPlan(
        program=program,
        profile=profile,
        phases=phases,
        constants=tuple(constants.nodes),
        slot_bytes=slot_bytes,
        arena_bytes=max([plan.arena_bytes for plan in phases.values()], default=0),
        constants_bytes=constants.num_bytes,
        feeds_bytes=sum(num_bytes(type) for _, type in feeds),
        workspace_bytes=max([plan.workspace_bytes for plan in phases.values()], default=0) + loop_bytes,
        loop_bytes=loop_bytes,
        runtime_bytes=profile.runtime_bytes(sum([_num_steps(plan) for plan in phases.values()])),
        snapshot_bytes=sum([num_bytes(slot.type) for slot in program.saved]) if snapshot else 0,
    )


def _steps(plan: PhasePlan) -> tuple[Step, ...]:
    return (*plan.steps, *(plan.apply.steps if plan.apply is not None else ()))


def _num_steps(plan: PhasePlan) -> int:
    """Steps of a phase, and of the bodies of its loops."""
    steps = _steps(plan)
    return len(steps) + sum([1 for step in steps for body in step.node.bodies for _ in body.walk()])


def _check_tensors(program: Program, profile: MemoryProfile, limit: int) -> None:
    for phase in program.phases:
        for node in phase.graph.walk():
            for type in node.types:
                num_bytes = type.size * profile.item_bytes[type.dtype]
                if num_bytes > limit:
                    shape = ", ".join(map(str, type.shape))
                    message = (
                        f"the {profile.title} device could not allocate {num_bytes} bytes for a tensor of "
                        f"[{shape}] {type.dtype}; the run does not fit this GPU"
                    )
                    raise DiagnosticError(Diagnostic("E-MEM-002", message, node.origin.place))


def admit(plan: ProgramPlan, budget_bytes: int) -> ProgramPlan:
    """`plan`, if it fits in `budget_bytes`.

    Raises: E-MEM-001, which names the parts and what would make it fit.
    """
    if plan.peak_bytes <= budget_bytes:
        return plan
    sizes = sorted(plan.parts().items(), key=lambda part: -part[1])
    parts = ", ".join(f"{name} {shown_size(num_bytes)}" for name, num_bytes in sizes)
    peak, budget = shown_size(plan.peak_bytes), shown_size(budget_bytes)
    message = f"the run would hold {peak} at its peak, and {budget} may be used"
    persistent = sum(plan.slot_bytes.values()) + plan.constants_bytes + plan.parts().get("checkpoint copy", 0)
    if persistent > budget_bytes:
        help = (
            "what outlives a call is too much already, so a smaller batch is no help: "
            "use a smaller model, or `--variant smoke`"
        )
    else:
        rest, now = shown_size(budget_bytes - persistent), shown_size(plan.peak_bytes - persistent)
        help = (
            "use a smaller batch with more `:microbatches`, or `--variant smoke`: "
            f"what depends on the batch must fit in {rest} and takes {now} now"
        )
    at = plan.peak_at
    span = at.origin.place if at is not None else None
    fullest = (f"the arena is fullest in phase `{at.phase}`",) if at is not None else ()
    raise DiagnosticError(Diagnostic("E-MEM-001", message, span, help=(help,), notes=(f"it holds {parts}", *fullest)))


def shown_size(num_bytes: int) -> str:
    """Bytes in the largest unit that leaves a number above 0.1."""
    for unit, size in (("GiB", GIB), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if num_bytes >= size / 10:
            return f"{num_bytes / size:.1f} {unit}"
    return f"{num_bytes} bytes"
