"""`sexpgpu`: the group of commands. Each is imported when it is called, so that `check` starts fast."""

from __future__ import annotations

import gc
import importlib
import io
import sys

import click

from sexpgpu import __version__

COMMANDS = {
    "run": "Train: run the experiment of FILE.",
    "check": "Elaborate FILE and every variant of it; print what is wrong.",
    "ir": "Print the program of FILE, the same for every device.",
    "lower": "Print what a device would make of FILE: kernels, libraries, memory.",
    "verify": "Compare every operation of FILE on a device with the interpreter.",
    "evaluate": "Run the evaluations of FILE on a checkpoint.",
    "generate": "Run a generator of FILE on a checkpoint.",
    "export": "Write the parameters of a checkpoint for other libraries.",
    "runs": "List runs: how each stands, and how well it did.",
    "watch": "Follow a run that goes on elsewhere.",
    "report": "Write how a run went as one HTML page.",
    "tensorboard": "Write a run's numbers for TensorBoard.",
    "diff": "Say where two runs part, and what was set otherwise.",
    "checkpoints": "List what a run has saved, and whether it is whole.",
    "fmt": "Lay out .sx files in one way, or say which are not.",
    "new": "Write a new .sx file like one of the examples.",
    "lsp": "Serve an editor: mistakes while typing, types, definitions, renaming.",
    "explain": "Say what an error code means, with an example and its remedy.",
    "doctor": "What this machine has to run on.",
}


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"sexpgpu.cli.{cmd_name}")
        command = module.command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80})
@click.version_option(__version__, prog_name="sexpgpu")
def main() -> None:
    """Describe a machine-learning experiment in one .sx file, and run it."""
    for stream in (sys.stdout, sys.stderr):  # a sample may hold what a narrow encoding lacks
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    set_collection()


def set_collection() -> None:
    """Search for cycles seldom: graphs and plans are large, live to the end, and have few."""
    gc.set_threshold(50_000, 20, 100)
