"""`sexpgpu doctor`: what this machine has to run on."""

from __future__ import annotations

import platform
from importlib import metadata

import click

from sexpgpu.cli.common import reporting

LIBRARIES = ("numpy", "ml_dtypes", "safetensors", "click", "rich", "pillow")


@click.command("doctor")
@reporting("doctor")
def command() -> None:
    """What this machine has to run on: devices, and why the others cannot be opened; library versions."""
    from rich.console import Console
    from rich.table import Table

    from sexpgpu import __version__
    from sexpgpu.backend.registry import device_kinds, open_device
    from sexpgpu.diagnostics import DiagnosticError

    console = Console(width=80, highlight=False)
    devices = Table(box=None, pad_edge=False, show_edge=False)
    for column in ("device", "here", "what"):
        devices.add_column(column, overflow="fold")
    for name in device_kinds():
        try:
            devices.add_row(name, "yes", open_device(name).describe())
        except DiagnosticError as error:
            devices.add_row(name, "no", error.diagnostics[0].message)
    console.print(devices)
    console.print()
    console.print(f"sexpgpu {__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}")
    versions = [f"{name} {metadata.version(name)}" for name in LIBRARIES]
    console.print(", ".join(versions))
