"""`sexpgpu report RUN`: a run as one HTML page."""

from __future__ import annotations

from pathlib import Path

import click

from sexpgpu.cli.common import reporting


@click.command("report")
@click.argument("run")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Where to write; default RUN/report.html.")
@reporting("report")
def command(run: str, out: Path | None) -> None:
    """Write how RUN went as one HTML page, which needs no network.

    RUN is a run's folder, or its name under `runs`; it may still be running.
    """
    from sexpgpu.look.page import report
    from sexpgpu.look.record import find_run, read_run, saved_by
    from sexpgpu.train.files import replace_atomic

    folder = find_run(run)
    path = out or folder.path / "report.html"
    replace_atomic(path, report(read_run(folder), saved_by(folder)).encode("utf-8", "backslashreplace"))
    click.echo(f"{path}: written")
