"""`sexpgpu lower FILE`: what a device would make of the program, without a step."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import click

from sexpgpu.cli.common import device_option, experiment_options, load, open_program, reporting

if TYPE_CHECKING:
    from sexpgpu.backend.protocol import Device
    from sexpgpu.plan.memory import ProgramPlan

MOST_COPIES = 12
"""Rows of copies that remain, the largest first; the others are counted."""


@runtime_checkable
class Reporting(Protocol):
    """A device that says what it makes of a plan."""

    def lowering(self, plan: ProgramPlan) -> list[str]:
        """Rows of the lowering report."""
        ...


@click.command("lower")
@experiment_options
@device_option
@click.option(
    "--print",
    "what",
    type=click.Choice(["plan", "kernels"]),
    help="Print each step with its layouts, or the text of each kernel.",
)
@reporting("lower")
def command(
    file: Path,
    variant: str | None,
    settings: tuple[str, ...],
    run_name: str | None,
    device: str | None,
    what: str | None,
) -> None:
    """Print the lowering report of FILE: what runs as what and why, copies, memory and stacking."""
    from sexpgpu.plan.text import plan_text
    from sexpgpu.settings import from_environment
    from sexpgpu.train.phases import assemble

    experiment = load(file, variant, settings, run_name)
    assembly = assemble(experiment)
    environment = from_environment(device)
    chosen, plan, _ = open_program(assembly.program, environment, experiment.run.saves_between)
    if what == "plan":
        click.echo(plan_text(plan))
        return
    if what == "kernels":
        _print_kernels(chosen, plan)
        return
    free = environment.memory_bytes or chosen.free_bytes()
    click.echo(f"lowering: {chosen.name} {chosen.describe()}")
    if isinstance(chosen, Reporting):
        for line in chosen.lowering(plan):
            click.echo(line)
    else:
        for name, phase in plan.phases.items():
            click.echo(f"  {name:<24}{len(phase.steps)} steps")
    for line in (*_copies(plan), *_memory(plan, free)):
        click.echo(line)
    click.echo(f"  {'stacking':<24}{assembly.stacking}: this device runs one microbatch a call")


def _print_kernels(device: Device, plan: ProgramPlan) -> None:
    """Every text, each behind a line with its name. Raises E-DEV-005 where the device has none."""
    from sexpgpu.backend.pieces import Printing
    from sexpgpu.diagnostics import Diagnostic, DiagnosticError

    texts = device.kernels(plan) if isinstance(device, Printing) else {}
    if not texts:
        message = f"`{device.name}` runs this program without kernels of its own, so there is no text to print"
        help = "sexpgpu lower FILE says what it runs; --print plan prints each step"
        raise DiagnosticError(Diagnostic("E-DEV-005", message, help=(help,)))
    for name, text in texts.items():
        click.echo(f"// {name}\n{text.strip()}\n")


def _copies(plan: ProgramPlan) -> list[str]:
    """A row for each place of the file that has values copied, in each phase."""
    from sexpgpu.backend.report import place_text, row
    from sexpgpu.plan.memory import shown_size
    from sexpgpu.plan.remaining import remaining_copies

    alike: dict[tuple[str, str, str], list[int]] = {}
    for copy in remaining_copies(plan):
        alike.setdefault((copy.phase, copy.what, place_text(copy.origin)), []).append(copy.num_bytes)
    ordered = sorted(alike.items(), key=lambda item: -sum(item[1]))
    rows = []
    for (phase, what, at), sizes in ordered[:MOST_COPIES]:
        where = f" at {at}" if at else ""
        rows.append(row("copied", f"{what} × {len(sizes)}{where}: {shown_size(sum(sizes))} in {phase}"))
    others = [sum(sizes) for _, sizes in ordered[MOST_COPIES:]]
    if others:
        rows.append(row("", f"{len(others)} other places: {shown_size(sum(others))}"))
    return rows


def _memory(plan: ProgramPlan, free: int) -> list[str]:
    """The peak, the parts that it is made of, and where the arena is fullest."""
    from sexpgpu.backend.report import place_text, row
    from sexpgpu.plan.memory import shown_size

    rows = [row("memory", f"{shown_size(plan.peak_bytes)} of {shown_size(free)} free")]
    rows += [row(f"  {name}", shown_size(num_bytes)) for name, num_bytes in plan.parts().items()]
    at = plan.peak_at
    if at is not None:
        place = place_text(at.origin)
        rows.append(row("  fullest", f"in {at.phase}" + (f" at {place}" if place else "")))
    return rows
