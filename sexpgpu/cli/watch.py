"""`sexpgpu watch RUN`: a run that goes on elsewhere, in this terminal."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from sexpgpu.cli.common import reporting

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from sexpgpu.look.follow import Follower, View
    from sexpgpu.train.folder import RunFolder

INTERVAL_S = 0.5
_SAMPLE_LINES = 8
_CONTROLS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"} | {0x7F: 0x2421}


@click.command("watch")
@click.argument("run")
@click.option("--every", type=click.FloatRange(min=0.1), default=10.0, metavar="SECONDS", help="Between plain lines.")
@reporting("watch")
def command(run: str, every: float) -> None:
    """Follow RUN until it ends: loss, rate, evaluations and the newest sample.

    RUN is a run's folder, or its name under `runs`. Where the output is no terminal, plain
    lines. Ctrl-C ends the watching and leaves the run alone. Ends with 0 where the run is
    done, else with 1.
    """
    from rich.console import Console

    from sexpgpu.look.follow import Follower
    from sexpgpu.look.page import headline
    from sexpgpu.look.record import find_run, read_run

    folder = find_run(run)
    console = Console(highlight=False, soft_wrap=True, markup=False, emoji=False)
    follower = Follower(folder)
    if console.is_terminal and not console.is_dumb_terminal:
        kind = _live(follower, folder, console)
    else:
        kind = _plain(follower, every)
    click.echo(headline(read_run(folder)))
    if kind != "done":
        sys.exit(1)


def _live(follower: Follower, folder: RunFolder, console: Console) -> str:
    """A few lines, drawn anew. Gives the state that the run ended in."""
    from rich.live import Live

    with Live(console=console, auto_refresh=False) as live:
        while True:
            view = follower.look()
            live.update(picture(view, str(folder.path), min(console.width, 100)), refresh=True)
            if view.state.kind != "running":
                return view.state.kind
            time.sleep(INTERVAL_S)


def _plain(follower: Follower, every: float) -> str:
    """News as they come, and a line now and then. Gives the state that the run ended in."""
    next_s, told = 0.0, None
    while True:
        view = follower.look()
        for line in view.news:
            click.echo(line.translate(_CONTROLS))
        step = view.status.get("step")
        if step != told and (time.monotonic() >= next_s or view.state.kind != "running"):
            click.echo("  ".join(facts(view)))
            next_s, told = time.monotonic() + every, step
        if view.state.kind != "running":
            return view.state.kind
        time.sleep(INTERVAL_S)


def facts(view: View) -> list[str]:
    """Step, loss, time of a step, rate and what remains, as far as they are known."""
    from sexpgpu.look.series import duration, short

    status = view.status
    found = [f"step {status.get('step') or 0}/{status.get('steps') or '?'}"]
    if isinstance(status.get("loss"), int | float):
        found.append(f"loss {short(float(status['loss']))}")
    if status.get("step_ms"):
        found.append(f"{float(status['step_ms']):.3g} ms/step")
    if status.get("tokens_per_s"):
        found.append(f"{short(float(status['tokens_per_s']))} tokens/s")
    if status.get("eta_s") and view.state.kind == "running":
        found.append(f"{duration(float(status['eta_s']))} to go")
    return found


def picture(view: View, name: str, width: int) -> Text:
    """The run in a few lines of at most `width` columns."""
    from rich.text import Text

    from sexpgpu.look.series import short, sparkline

    lines = [f"{name}: {view.state}", "  ".join(facts(view))]
    if view.losses:
        lines.append(f"loss  {sparkline(view.losses, width - 8)}")
    if view.evaluations:
        lines.append("  ".join(f"{n} {short(v)}" for n, v in view.evaluations.items()))
    if view.sample is not None:
        step, text = view.sample
        shown = text.translate(_CONTROLS).splitlines()
        lines += [f"sample of step {step}:", *(f"  {line}" for line in shown[:_SAMPLE_LINES])]
    return Text("\n".join(line if len(line) < width else line[: width - 2] + "…" for line in lines), no_wrap=True)
