"""`sexpgpu diff RUN_A RUN_B`: where two runs part, and what was set otherwise."""

from __future__ import annotations

import sys

import click

from sexpgpu.cli.common import reporting


@click.command("diff")
@click.argument("first", metavar="RUN_A")
@click.argument("second", metavar="RUN_B")
@reporting("diff")
def command(first: str, second: str) -> None:
    """Compare two runs: their configurations, then the first number whose bits differ.

    A run is its folder, or its name under `runs`. Ends with 0 where the runs are equal,
    with 1 where they are not. Times and memory are no part of it.
    """
    from sexpgpu.look.compare import common_checkpoint, compare, configuration
    from sexpgpu.look.record import find_run, read_run, saved_by

    folders = find_run(first), find_run(second)
    a, b = (read_run(folder) for folder in folders)
    setup = list(configuration(a, b))
    click.echo("configuration: " + ("equal" if not setup else f"{folders[0].path} | {folders[1].path}"))
    for line in setup:
        click.echo(f"  {line}")
    found = compare(a.stream.series, b.stream.series)
    for path, names in zip((f.path for f in folders), (found.only_first, found.only_second), strict=True):
        if names:
            click.echo(f"only in {path}: {', '.join(names)}")
    if found.last_steps[0] != found.last_steps[1]:
        click.echo(f"they end at different steps: {found.last_steps[0]} | {found.last_steps[1]}")
    if found.difference is None:
        click.echo(f"numbers: all {found.num_equal:,} that both have are equal, bit for bit")
    else:
        d = found.difference
        click.echo(f"numbers: {found.num_equal:,} equal before step {d.step}, then {d.series} differs:")
        for path, value in zip((f.path for f in folders), (d.first, d.second), strict=True):
            click.echo(f"  {value!r:<24} {value.hex():<24} {path}")
    common = common_checkpoint(*(saved_by(folder) for folder in folders))
    if common is not None:
        step, same = common
        click.echo(f"checkpoint of step {step}: {'the same bytes' if same else 'other bytes'}")
    equal = found.equal and (common is None or common[1])
    click.echo("the runs are equal" if equal else "the runs differ")
    if not equal:
        sys.exit(1)
