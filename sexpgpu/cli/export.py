"""`sexpgpu export RUN FILE.safetensors`: the parameters of a checkpoint, for other libraries."""

from __future__ import annotations

from pathlib import Path

import click

from sexpgpu.cli.common import reporting


@click.command("export")
@click.argument("run", metavar="RUN|CHECKPOINT")
@click.argument("file", metavar="FILE.safetensors", type=click.Path(path_type=Path))
@click.option("--weights", metavar="NAME", help="A `defaverage`, in place of the parameters that it covers.")
@reporting("export")
def command(run: str, file: Path, weights: str | None) -> None:
    """Write the parameters and model states of a run's newest checkpoint, or of one, by their paths."""
    from sexpgpu.s3 import is_s3
    from sexpgpu.train.export import export
    from sexpgpu.train.folder import resumed

    found = resumed(run if is_s3(run) else str(Path(run).absolute()), "", None, Path(), "sexpgpu export")
    saved = found.checkpoint
    names = export(saved, file, weights)
    for note in found.notes:
        click.echo(f"sexpgpu export: {note}", err=True)
    elements = sum(saved.tensors[name].size for name in names)
    click.echo(f"{file}: {elements:,} numbers in {len(names)} arrays, of step {saved.step}")
