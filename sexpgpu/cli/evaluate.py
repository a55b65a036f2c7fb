"""`sexpgpu evaluate FILE`: the evaluations of a file, on a checkpoint."""

from __future__ import annotations

from pathlib import Path

import click

from sexpgpu.cli.common import device_option, experiment_options, load, reporting


@click.command("evaluate")
@experiment_options
@device_option
@click.option(
    "--checkpoint",
    default="latest",
    metavar="latest|initial|PATH",
    help="Which checkpoint; default the latest run's. `initial`: what a run begins with.",
)
@click.option("--out", type=click.Path(path_type=Path), help="The run's folder, as given to `run`.")
@click.option("--only", metavar="NAME", help="One evaluation of the file.")
@reporting("evaluate")
def command(
    file: Path,
    variant: str | None,
    settings: tuple[str, ...],
    run_name: str | None,
    device: str | None,
    checkpoint: str,
    out: Path | None,
    only: str | None,
) -> None:
    """Run the evaluations of FILE on a checkpoint."""
    import numpy as np

    from sexpgpu.cli.restored import restored
    from sexpgpu.diagnostics import Diagnostic, DiagnosticError, nearest
    from sexpgpu.train.evaluation import run_evaluation
    from sexpgpu.train.schedule import HostSchedule

    experiment = load(file, variant, settings, run_name)
    names = list(experiment.evaluations)
    if not names or (only is not None and only not in names):
        near = nearest(only or "", names)
        hint = f"`{near}` is a near name" if near else "the evaluations of this file: " + (", ".join(names) or "none")
        what = f"no evaluation is called `{only}`" if only else "this file has no `defeval`"
        raise DiagnosticError(Diagnostic("E-RUN-005", what, help=(hint,)))
    with restored(experiment, file, device, checkpoint, out) as (program, session, step):
        schedule = HostSchedule(program.schedule)
        click.echo(f"step {step}")
        for name in [only] if only else names:
            found = run_evaluation(experiment, program, session, schedule, experiment.evaluations[name], max(step, 1))
            for series, value in found.items():
                shown = f"{float(value):.6g}" if np.ndim(value) == 0 else " ".join(f"{v:.4g}" for v in np.ravel(value))
                click.echo(f"  {series.removeprefix('eval/'):<40}{shown}")
