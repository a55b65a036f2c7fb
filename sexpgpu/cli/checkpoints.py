"""`sexpgpu checkpoints RUN`: what a run has saved, and whether it can be used."""

from __future__ import annotations

import sys
from typing import Any

import click

from sexpgpu.cli.common import reporting
from sexpgpu.cli.runs import table


@click.command("checkpoints")
@click.argument("run")
@click.option("--verify", is_flag=True, help="Read every state and compare its digest.")
@reporting("checkpoints")
def command(run: str, verify: bool) -> None:
    """List the checkpoints of RUN: step, size, age, whether whole, and why kept.

    RUN is a run's folder, its name under `runs`, or an s3:// address. Without --verify
    only records and sizes are looked at. Ends with 1 where one is damaged.
    """
    from sexpgpu.look.record import age, find_run, read_status, saved, why_kept
    from sexpgpu.plan.memory import shown_size
    from sexpgpu.s3 import is_s3
    from sexpgpu.train.facts import read_facts
    from sexpgpu.train.folder import store_of
    from sexpgpu.train.store import open_store

    facts: dict[str, Any] = {}
    last_step = None
    if is_s3(run):
        store = open_store(run)
    else:
        folder = find_run(run)
        store, facts, last_step = store_of(folder), read_facts(folder.facts), read_status(folder).get("step")
    found = saved(store, verify)
    if not found:
        click.echo(f"{store.place}: no checkpoint yet")
        return
    rows = [("step", "size", "age", "state", "kept as")]
    for each in found:
        state = "damaged" if each.damage else "verified" if verify else "whole"
        why = why_kept(each, found, facts, last_step)
        rows.append((str(each.step), shown_size(each.num_bytes), age(each.saved_s), state, why))
    for line in table(rows, right=(0, 1, 2), yielding=(4,)):
        click.echo(line)
    damaged = [each for each in found if each.damage]
    for each in damaged:
        click.echo(f"{each.name}: {each.damage}")
    if damaged:
        sys.exit(1)
