"""`sexpgpu generate FILE [--KEY VALUE …]`: a generator of a file, on a checkpoint, with the file's own keys."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from sexpgpu.cli.common import device_option, experiment_options, load, reporting


@click.command("generate", context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@experiment_options
@device_option
@click.option(
    "--checkpoint",
    default="latest",
    metavar="latest|initial|PATH",
    help="Which checkpoint; default the latest run's. `initial`: what a run begins with.",
)
@click.option("--out", type=click.Path(path_type=Path), help="The run's folder, as given to `run`.")
@click.option("--only", metavar="NAME", help="Which generator, if the file has several.")
@click.option("--sample", type=int, default=0, help="Another number, another sample.")
@click.option("--save", type=click.Path(path_type=Path), help="Write the sample under this folder.")
@click.pass_context
@reporting("generate")
def command(
    ctx: click.Context,
    file: Path,
    variant: str | None,
    settings: tuple[str, ...],
    run_name: str | None,
    device: str | None,
    checkpoint: str,
    out: Path | None,
    only: str | None,
    sample: int,
    save: Path | None,
) -> None:
    """Run a generator of FILE on a checkpoint. The generator's keys are options: --prompt "The " --heat 0.7"""
    from sexpgpu.cli.restored import restored
    from sexpgpu.diagnostics import Diagnostic, DiagnosticError, nearest
    from sexpgpu.train.generation import run_generator, save_sample, shows_as_it_comes
    from sexpgpu.train.schedule import HostSchedule

    keys = _keys(ctx.args)
    experiment = load(file, variant, settings, run_name)
    names = list(experiment.generators)
    if not names or (only is not None and only not in names) or (only is None and len(names) > 1):
        near = nearest(only or "", names)
        hint = f"`{near}` is a near name" if near else "the generators of this file: " + (", ".join(names) or "none")
        what = (
            f"no generator is called `{only}`"
            if only
            else "name the generator with --only"
            if names
            else ("this file has no `defgenerator`")
        )
        raise DiagnosticError(Diagnostic("E-RUN-005", what, help=(hint,)))
    name = only or names[0]
    if keys:
        experiment = load(file, variant, settings, run_name, {name: keys})
    generator = experiment.generators[name]
    with restored(experiment, file, device, checkpoint, out) as (program, session, step):
        schedule = HostSchedule(program.schedule)
        streaming = shows_as_it_comes(generator)

        def write(text: str) -> None:
            sys.stdout.write(_shown(text))
            sys.stdout.flush()

        made = run_generator(
            experiment, program, session, schedule, generator, step, sample, write if streaming else None
        )
        if streaming:
            click.echo()
        elif made.text is not None:
            click.echo(_shown(made.text))
        if save is not None or made.text is None:
            click.echo(f"saved as {save_sample(save or Path(), generator, made, step)}")


def _shown(text: str) -> str:
    """A sample as it may be written: on a terminal it cannot steer that, elsewhere it is as it is."""
    from sexpgpu.diagnostics import visible

    return visible(text, kept="\n\t") if sys.stdout.isatty() else text


def _keys(arguments: list[str]) -> dict[str, str]:
    """`--prompt TEXT --heat 0.7` or `--heat=0.7` as a mapping. Raises E-FORM-001."""
    from sexpgpu.diagnostics import Diagnostic, DiagnosticError

    found: dict[str, str] = {}
    rest = iter(arguments)
    for argument in rest:
        name, equals, text = argument.removeprefix("--").partition("=")
        value = text if equals else next(rest, None)
        if not argument.startswith("--") or value is None:
            raise DiagnosticError(
                Diagnostic("E-FORM-001", f"`{argument}` is no key with a value", help=('write --prompt "The "',))
            )
        found[name] = value
    return found
