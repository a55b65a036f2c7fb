"""What commands share: options, the way errors leave, and opening a program on a device."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import click

from sexpgpu.diagnostics import Diagnostic, DiagnosticError, hint, render

if TYPE_CHECKING:
    from sexpgpu.backend.protocol import Device, Session
    from sexpgpu.ir.program import Program
    from sexpgpu.lang.experiment import Experiment
    from sexpgpu.plan.memory import ProgramPlan
    from sexpgpu.settings import Settings

Command = Callable[..., Any]
GIB = 1 << 30
INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it."""
HINTED = "sexpgpu.hinted"
"""Where a command keeps that it has said how to learn more."""


def reporting(command: str) -> Callable[[Command], Command]:
    """Diagnostics of the block go to standard error as `sexpgpu COMMAND: …`, and the exit status is 1."""

    def wrap(function: Command) -> Command:
        @functools.wraps(function)
        def inner(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except DiagnosticError as error:
                tell(error.diagnostics, command)
                sys.exit(1)
            except OSError as error:
                # Files are explained where they are touched; what is left is the output, closed or full.
                _forget_output()
                if not isinstance(error, BrokenPipeError):
                    reason = (error.strerror or str(error)).lower()
                    click.echo(f"sexpgpu {command}: E-IO-001: cannot write the output: {reason}", err=True)
                sys.exit(1)
            except KeyboardInterrupt:
                click.echo(f"sexpgpu {command}: interrupted", err=True)
                sys.exit(INTERRUPTED)

        return inner

    return wrap


def tell(diagnostics: Sequence[Diagnostic], command: str) -> None:
    """Print diagnostics on standard error, and once a command how to learn more of them."""
    click.echo(render(diagnostics, command), err=True)
    context = click.get_current_context(silent=True)
    if context is not None and command != "explain" and not context.meta.setdefault(HINTED, False):
        context.meta[HINTED] = True
        click.echo(f"\n{hint(diagnostics)}", err=True)


def _forget_output() -> None:
    """Let what is still to be written go nowhere, so that the interpreter's own flush does not fail again."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def parse_settings(values: tuple[str, ...]) -> dict[str, str]:
    """`--set NAME=VALUE` as a mapping. Raises E-NAME-004."""
    found = {}
    for value in values:
        name, equals, text = value.partition("=")
        if not equals or not name:
            raise DiagnosticError(
                Diagnostic("E-NAME-004", f"`--set {value}` names no value", help=("write --set NAME=VALUE",))
            )
        found[name] = text
    return found


def experiment_options(function: Command) -> Command:
    """FILE, --variant, --set, --run."""
    return click.argument("file", type=click.Path(path_type=Path))(choice_options(function))


def choice_options(function: Command) -> Command:
    """--variant, --set, --run: which experiment of a file."""
    function = click.option("--run", "run_name", metavar="NAME", help="Which `defrun`, if the file has several.")(
        function
    )
    function = click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="Override a constant.")(
        function
    )
    return click.option("--variant", metavar="NAME", help="Use a `defvariant` of the file.")(function)


def device_option(function: Command) -> Command:
    """--device."""
    return click.option("--device", metavar="KIND", help="cpu, metal or cuda; default SEXPGPU_DEVICE, else cpu.")(
        function
    )


def load(
    file: Path,
    variant: str | None,
    settings: tuple[str, ...],
    run_name: str | None,
    keys: dict[str, dict[str, str]] | None = None,
) -> Experiment:
    """The experiment, every loss of which can be differentiated. Raises DiagnosticError."""
    from sexpgpu.lang.load import load_experiment
    from sexpgpu.train.differentiable import missing_gradients

    experiment = load_experiment(file, variant=variant, settings=parse_settings(settings), run=run_name, keys=keys)
    missing = missing_gradients(experiment)
    if missing:
        raise DiagnosticError(missing)
    return experiment


def warn(experiment: Experiment, command: str) -> None:
    """Print the warnings of an experiment on standard error."""
    if experiment.warnings:
        tell(experiment.warnings, command)


def open_program(
    program: Program, settings: Settings, snapshot: bool = False
) -> tuple[Device, ProgramPlan, Callable[[], Session]]:
    """The device, the plan of `program` on it, and what opens it and tells of warnings. Raises E-DEV-…, E-MEM-001.

    snapshot: see `Budget`.
    """
    from sexpgpu.backend.protocol import Budget

    device = device_of(settings)
    plan = device.plan(program, Budget(settings.memory_bytes, snapshot))
    return device, plan, lambda: _opened(device, plan)


def device_of(settings: Settings) -> Device:
    """The device that the settings name, with its kernels compiled or not as they say. Raises E-DEV-…"""
    from sexpgpu.backend.registry import Compiling, open_device

    compiling = Compiling(settings.interpret, settings.compiler)
    return open_device(settings.device, compiling=compiling, devices=settings.devices)


@runtime_checkable
class Telling(Protocol):
    """A session that may have found something to tell when it was opened."""

    warnings: Sequence[Diagnostic]


def _opened(device: Device, plan: ProgramPlan) -> Session:
    session = device.open(plan)
    if isinstance(session, Telling) and session.warnings:
        tell(session.warnings, str(click.get_current_context().info_name))
    return session
