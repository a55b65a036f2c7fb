"""`sexpgpu lsp`: the language server, started by an editor."""

from __future__ import annotations

import importlib.util

import click

from sexpgpu.cli.common import reporting
from sexpgpu.diagnostics import Diagnostic, DiagnosticError


@click.command("lsp")
@reporting("lsp")
def command() -> None:
    """Serve an editor over standard input and output: mistakes while typing, types, definitions, renaming."""
    if importlib.util.find_spec("pygls") is None:
        message = "the language server needs pygls, which is not installed"
        raise DiagnosticError(Diagnostic("E-LSP-001", message, help=("pip install 'sexpgpu[lsp]'",)))
    from sexpgpu.lsp.server import run

    run()
