"""`sexpgpu diff RUN_A RUN_B`: where two runs part, and what was set otherwise; with `--graph` the node."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sexpgpu.cli.common import open_program, reporting

if TYPE_CHECKING:
    from sexpgpu.look.compare import Difference
    from sexpgpu.look.nodes import Side
    from sexpgpu.look.record import RunRecord


@click.command("diff")
@click.argument("first", metavar="RUN_A")
@click.argument("second", metavar="RUN_B")
@click.option("--graph", is_flag=True, help="Make the first step that differs again, and name the node.")
@reporting("diff")
def command(first: str, second: str, graph: bool) -> None:
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
        if graph:
            _graph(a, b, d)
    common = common_checkpoint(*(saved_by(folder) for folder in folders))
    if common is not None:
        step, same = common
        click.echo(f"checkpoint of step {step}: {'the same bytes' if same else 'other bytes'}")
    equal = found.equal and (common is None or common[1])
    click.echo("the runs are equal" if equal else "the runs differ")
    if not equal:
        sys.exit(1)


def _graph(a: RunRecord, b: RunRecord, difference: Difference) -> None:
    """Make both runs again on the cpu up to their first difference, and print the node that it comes from."""
    from sexpgpu.look.compare import equal_checkpoint
    from sexpgpu.look.nodes import first_parting
    from sexpgpu.look.record import saved_by
    from sexpgpu.train.checkpoint import load

    start, begin = equal_checkpoint(saved_by(a.folder), saved_by(b.folder), difference.step)
    kind, name, *_ = difference.series.split("/")
    with contextlib.ExitStack() as stack:
        first, second = _side(a, stack), _side(b, stack)
        if begin is not None:
            tensors = load(begin.store, begin.name).tensors
            first.begin(tensors)
            second.begin(tensors)
        found = first_parting(first, second, start, difference.step, name if kind == "eval" else None)
    begun = f"from the checkpoint of step {start}" if start else "from the beginning"
    if found is None:
        click.echo(f"graph: made again on the cpu {begun}, the bits of both are equal up to step {difference.step}:")
        click.echo("  the difference came with another device, library or machine, and not from the experiments")
        return
    when = f"step {found.step}" if found.step else "the first values"
    click.echo(f"graph: made again on the cpu {begun}, they part in {when}, phase {found.phase}:")
    for line in found.lines:
        click.echo(f"  {line}")


def _side(run: RunRecord, stack: contextlib.ExitStack) -> Side:
    """A run opened again, with its texts as they were. Raises E-RUN-006, E-CKPT-003, and what loading raises."""
    from sexpgpu.diagnostics import Diagnostic, DiagnosticError
    from sexpgpu.lang.files import Recorded
    from sexpgpu.lang.load import load_experiment
    from sexpgpu.look.nodes import Side
    from sexpgpu.look.record import saved_by
    from sexpgpu.settings import Settings
    from sexpgpu.train.checkpoint import load, same_experiment
    from sexpgpu.train.files import explaining
    from sexpgpu.train.identity import experiment_digest
    from sexpgpu.train.phases import assemble

    folder, facts = run.folder, run.facts
    checkpoints = [each for each in saved_by(folder) if not each.superseded and not each.damage]
    if not folder.text.exists() or "file" not in facts or not checkpoints:
        what = f"{folder.path} has no whole record of its experiment: its text, its `run.json` and a checkpoint"
        raise DiagnosticError(Diagnostic("E-RUN-006", what, help=("`--graph` compares runs that have all three",)))
    with explaining("read", folder.text):
        text = folder.text.read_text("utf-8")
    file = Path(str(facts["file"]))
    overrides = dict(facts.get("overrides") or {})
    variant = overrides.pop("variant", "") or None
    disk = Recorded(file, text, dict(facts.get("included") or {}))
    experiment = load_experiment(file, variant=variant, settings=overrides, run=facts.get("run"), disk=disk)
    assembly = assemble(experiment)
    meta = load(checkpoints[-1].store, checkpoints[-1].name).meta
    same_experiment(meta, experiment_digest(experiment, assembly.program), text, dict(experiment.overrides))
    _, _, open_session = open_program(assembly.program, Settings(device="cpu"))
    side = Side(str(folder.path), experiment, assembly, open_session(), int(facts["steps"]))
    stack.callback(side.close)
    return side
