"""`sexpgpu tensorboard RUN`: a run's numbers for TensorBoard."""

from __future__ import annotations

from pathlib import Path

import click

from sexpgpu.cli.common import reporting


@click.command("tensorboard")
@click.argument("run")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Where to write; default RUN/tensorboard.")
@reporting("tensorboard")
def command(run: str, out: Path | None) -> None:
    """Write every series of RUN as an event file of TensorBoard, in place of an earlier one.

    RUN is a run's folder, or its name under `runs`; it may still be running.
    """
    from sexpgpu.look.events import FILE_NAME, event_file
    from sexpgpu.look.record import find_run, read_run
    from sexpgpu.train.files import explaining, replace_atomic

    folder = find_run(run)
    path = (out or folder.path / "tensorboard") / FILE_NAME
    with explaining("write", path):
        path.parent.mkdir(parents=True, exist_ok=True)
    replace_atomic(path, event_file(read_run(folder)))
    click.echo(f"{path}: written; tensorboard --logdir {path.parent}")
