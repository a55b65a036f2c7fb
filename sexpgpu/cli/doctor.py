"""`sexpgpu doctor`: what this machine has to run on."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib import metadata
from typing import Protocol, runtime_checkable

import click

from sexpgpu.cli.common import reporting

LIBRARIES = ("numpy", "ml_dtypes", "safetensors", "click", "rich", "pillow")


@runtime_checkable
class Detailed(Protocol):
    """A device that has more to say than one line."""

    def details(self) -> Sequence[str]:
        """Its libraries, its memory, and what would be better."""
        ...


@click.command("doctor")
@reporting("doctor")
def command() -> None:
    """What this machine has to run on: devices, and why the others cannot be opened; library versions."""
    from rich.console import Console
    from rich.table import Table

    from sexpgpu import __version__
    from sexpgpu.backend.registry import device_kinds, missing, open_device
    from sexpgpu.diagnostics import DiagnosticError
    from sexpgpu.settings import from_environment

    console = Console(width=80, highlight=False)
    devices = Table(box=None, pad_edge=False, show_edge=False)
    for column in ("device", "here", "what"):
        devices.add_column(column, overflow="fold")
    for name in device_kinds():
        try:
            device = open_device(name, devices=from_environment().devices)
        except DiagnosticError as error:
            diagnostic = error.diagnostics[0]
            devices.add_row(name, "no", "\n".join([missing(name) or diagnostic.message, *diagnostic.help]))
            continue
        details = device.details() if isinstance(device, Detailed) else ()
        devices.add_row(name, "yes", "\n".join([device.describe(), *details]))
    console.print(devices)
    console.print()
    console.print(
        f"sexpgpu {__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    )
    versions = [f"{name} {metadata.version(name)}" for name in LIBRARIES]
    console.print(", ".join(versions))
