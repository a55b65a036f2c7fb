"""`sexpgpu lower FILE`: what a device would make of the program, without a step."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import click

from sexpgpu.cli.common import device_option, experiment_options, load, open_program, reporting

if TYPE_CHECKING:
    from sexpgpu.plan.memory import ProgramPlan


@runtime_checkable
class Reporting(Protocol):
    """A device that says what it makes of a plan."""

    def lowering(self, plan: ProgramPlan) -> list[str]:
        """Rows of the lowering report."""
        ...


@click.command("lower")
@experiment_options
@device_option
@reporting("lower")
def command(
    file: Path, variant: str | None, settings: tuple[str, ...], run_name: str | None, device: str | None
) -> None:
    """Print the lowering report of FILE: kernels, library calls, patterns, memory and stacking."""
    from sexpgpu.plan.memory import shown_size
    from sexpgpu.settings import from_environment
    from sexpgpu.train.phases import assemble

    experiment = load(file, variant, settings, run_name)
    assembly = assemble(experiment)
    environment = from_environment(device)
    chosen, plan, _ = open_program(assembly.program, environment, experiment.run.saves_between)
    free = environment.memory_bytes or chosen.free_bytes()
    click.echo(f"lowering: {chosen.name} {chosen.describe()}")
    if isinstance(chosen, Reporting):
        for line in chosen.lowering(plan):
            click.echo(line)
    else:
        for name, phase in plan.phases.items():
            click.echo(f"  {name:<24}{len(phase.steps)} steps")
    click.echo(f"  {'memory':<24}{shown_size(plan.peak_bytes)} of {shown_size(free)} free")
    click.echo(f"  {'stacking':<24}{assembly.stacking}: this device runs one microbatch a call")
