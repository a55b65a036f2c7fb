"""`sexpgpu runs [DIR]`: a table of runs, the one that moved last first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from sexpgpu.cli.common import reporting

COLUMNS = 80


@click.command("runs")
@click.argument("root", type=click.Path(path_type=Path), default=Path("runs"), metavar="[DIR]")
@reporting("runs")
def command(root: Path) -> None:
    """List the runs in DIR, by default `runs`: how each stands, and how well it did."""
    from sexpgpu.diagnostics import Diagnostic, DiagnosticError
    from sexpgpu.look.record import age, list_runs, moved_s, read_status, state_of
    from sexpgpu.look.series import best_evaluation, read_stream, short
    from sexpgpu.train.facts import read_facts

    found = list_runs(root)
    if not found:
        remedy = "`sexpgpu run FILE` begins one; give another folder to look there"
        raise DiagnosticError(Diagnostic("E-RUN-006", f"there is no run in `{root}`", help=(remedy,)))
    rows = [("run", "state", "step", "loss", "best evaluation", "age")]
    for folder in found:
        status, facts = read_status(folder), read_facts(folder.facts)
        losses = facts.get("losses", {}).values()
        best = best_evaluation(read_stream(folder.metrics, only=b'"series": "eval/').series, losses)
        shown = f"{short(best[1][2])} {best[0].removeprefix('eval/')}" if best else ""
        steps = status.get("steps") or facts.get("steps") or "?"
        loss = status.get("loss")
        rows.append(
            (
                folder.path.name,
                str(state_of(folder, status)),
                f"{status.get('step') or 0}/{steps}",
                "" if loss is None else short(float(loss)),
                shown,
                age(moved_s(folder)),
            )
        )
    for line in table(rows, right=(2, 3, 5), yielding=(0, 4)):
        click.echo(line)


def table(rows: Sequence[Sequence[str]], right: tuple[int, ...] = (), yielding: tuple[int, ...] = ()) -> list[str]:
    """Rows in columns, 80 wide together. right: columns to the right. yielding: what is cut for that."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    gap = 2
    while sum(widths) + gap * (len(widths) - 1) > COLUMNS:
        widest = max(yielding, key=lambda i: widths[i], default=None)
        if widest is None or widths[widest] <= 8:
            break
        widths[widest] -= 1
    lines = []
    for row in rows:
        cells = []
        for i, (cell, width) in enumerate(zip(row, widths, strict=True)):
            shown = cell if len(cell) <= width else cell[: width - 1] + "…"
            cells.append(shown.rjust(width) if i in right else shown.ljust(width))
        lines.append((" " * gap).join(cells).rstrip())
    return lines
