"""`sexpgpu ir FILE`: the program as text, byte for byte the same for every device."""

from __future__ import annotations

from pathlib import Path

import click

from sexpgpu.cli.common import experiment_options, load, reporting


@click.command("ir")
@experiment_options
@click.option("--phase", "phase_name", metavar="NAME", help="Print one phase only.")
@reporting("ir")
def command(
    file: Path, variant: str | None, settings: tuple[str, ...], run_name: str | None, phase_name: str | None
) -> None:
    """Print the program of FILE: its slots, its schedule, and the graph of every phase."""
    from sexpgpu.diagnostics import Diagnostic, DiagnosticError, nearest
    from sexpgpu.ir.text import graph_text, program_text
    from sexpgpu.train.phases import assemble

    program = assemble(load(file, variant, settings, run_name)).program
    if phase_name is None:
        click.echo(program_text(program))
        return
    names = [phase.name for phase in program.phases]
    if phase_name not in names:
        near = nearest(phase_name, names)
        hint = f"`{near}` is a near name" if near else "the phases: " + ", ".join(names)
        raise DiagnosticError(Diagnostic("E-RUN-005", f"no phase is called `{phase_name}`", help=(hint,)))
    click.echo(graph_text(program.phase(phase_name).graph))
