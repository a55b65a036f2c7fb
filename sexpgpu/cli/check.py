"""`sexpgpu check FILE`: every mistake that can be found without a step."""

from __future__ import annotations

import atexit
import contextlib
import gc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click

from sexpgpu.cli.common import experiment_options, load, reporting, tell
from sexpgpu.diagnostics import Diagnostic, DiagnosticError, render
from sexpgpu.diagnostics.render import Style


@click.command("check")
@experiment_options
@click.option(
    "--print",
    "what",
    type=click.Choice(["forms", "graph"]),
    help="Print the forms, or each objective's graph.",
)
@click.option(
    "--format",
    "style",
    type=click.Choice(["full", "concise", "json"]),
    default="full",
    help="How errors look.",
)
@reporting("check")
def command(
    file: Path,
    variant: str | None,
    settings: tuple[str, ...],
    run_name: str | None,
    what: str | None,
    style: Style,
) -> None:
    """Elaborate FILE, and every variant of it unless --variant chooses one; print what is wrong."""
    if what == "forms":
        _print_forms(file)
        return
    try:
        with _without_collection():
            experiment = load(file, variant, settings, run_name)
            variants = experiment.variants if variant is None else ()
            _check_variants(file, variants, settings, run_name)
    except DiagnosticError as error:
        _tell(error.diagnostics, style)
        raise SystemExit(1) from None
    if what == "graph":
        from sexpgpu.ir.text import graph_text

        for update in experiment.run.updates:
            click.echo(graph_text(update.objective.graph))
        return
    if experiment.warnings:
        _tell(experiment.warnings, style)
    if style == "json":
        return
    shown = ", ".join(["plain", *variants]) if variants else (variant or "plain")
    count = f"{experiment.num_parameters:,} parameters in {len(experiment.parameters)} tensors"
    states = f", {len(experiment.states)} states" if experiment.states else ""
    click.echo(f"{file}: good ({shown}): {count}{states}")


def _tell(diagnostics: tuple[Diagnostic, ...], style: Style) -> None:
    """People read standard error; lines for editors and programs go to standard output."""
    if style == "full":
        tell(diagnostics, "check")
    else:
        click.echo(render(diagnostics, "check", style))


def _check_variants(file: Path, variants: tuple[str, ...], settings: tuple[str, ...], run_name: str | None) -> None:
    """Every variant of a good experiment; a mistake that several have is told once. Raises DiagnosticError."""
    found: dict[Diagnostic, list[str]] = {}
    for name in variants:
        try:
            load(file, name, settings, run_name)
        except DiagnosticError as error:
            for diagnostic in error.diagnostics:
                found.setdefault(diagnostic, []).append(name)
    if found:
        raise DiagnosticError([replace(d, notes=(*d.notes, _whose(names))) for d, names in found.items()])


def _whose(names: list[str]) -> str:
    listed = ", ".join(f"`{name}`" for name in names)
    return f"the plain experiment is good; this is in the {'variant' if len(names) == 1 else 'variants'} {listed}"


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """No search for cycles inside the block, nor when the process ends: what a check makes is bounded, and most of it
    lives to the end."""
    atexit.register(gc.freeze)
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _print_forms(file: Path) -> None:
    from sexpgpu.syntax import load_source, pretty, read

    result = read(load_source(file))
    if result.diagnostics:
        raise DiagnosticError(result.diagnostics)
    for form in result.forms:
        click.echo(pretty(form))
