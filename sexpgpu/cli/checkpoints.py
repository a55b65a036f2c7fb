"""`sexpgpu checkpoints RUN`: what a run has saved, and whether it can be used."""

from __future__ import annotations

import sys

import click

from sexpgpu.cli.common import reporting
from sexpgpu.cli.runs import table


@click.command("checkpoints")
@click.argument("run")
@click.option("--verify", is_flag=True, help="Read every state and compare its digest.")
@reporting("checkpoints")
def command(run: str, verify: bool) -> None:
    """List the checkpoints of RUN: step, size, age, whether whole, and why kept.

    RUN is a run's folder, or its name under `runs`. Without --verify only files and
    sizes are looked at. Ends with 1 where one is damaged.
    """
    from sexpgpu.look.record import age, find_run, read_status, saved, why_kept
    from sexpgpu.plan.memory import shown_size
    from sexpgpu.train.facts import read_facts

    folder = find_run(run)
    found = saved(folder, verify)
    if not found:
        click.echo(f"{folder.path}: no checkpoint yet")
        return
    facts, last_step = read_facts(folder.facts), read_status(folder).get("step")
    num_live = sum(not each.superseded for each in found)
    rows = [("step", "size", "age", "state", "kept as")]
    for index, each in enumerate(found):
        state = "damaged" if each.damage else "verified" if verify else "whole"
        why = why_kept(each, num_live - index, facts, last_step)
        rows.append((str(each.step), shown_size(each.num_bytes), age(each.saved_s), state, why))
    for line in table(rows, right=(0, 1, 2), yielding=(4,)):
        click.echo(line)
    damaged = [each for each in found if each.damage]
    for each in damaged:
        click.echo(f"{each.path.name}: {each.damage}")
    if damaged:
        sys.exit(1)
