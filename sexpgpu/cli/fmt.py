"""`sexpgpu fmt FILE…`: the one layout of .sx text, written in place, shown, or only asked for."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from sexpgpu.cli.common import reporting
from sexpgpu.diagnostics import Diagnostic, DiagnosticError
from sexpgpu.source import Source
from sexpgpu.syntax.format import format_source
from sexpgpu.syntax.loading import load_source
from sexpgpu.train.files import explaining, write_atomic

STANDARD_INPUT = "-"


@click.command("fmt")
@click.argument("files", nargs=-1, required=True, metavar="FILE…")
@click.option("--check", is_flag=True, help="Write nothing; exit with 1 if a file would change.")
@click.option("--diff", is_flag=True, help="Write nothing; print what would change.")
@reporting("fmt")
def command(files: tuple[str, ...], check: bool, diff: bool) -> None:
    """Lay out .sx files in one way: comments and line breaks stay, the rest follows rules.

    FILE may be a folder, which is searched for .sx files, or - for standard input.
    """
    if STANDARD_INPUT in files and len(files) > 1:
        raise click.UsageError("- is standard input, and stands alone")
    found: list[str] = []
    faults: list[Diagnostic] = []
    num_changed = 0
    for name in files:
        try:
            found += _found(name)
        except DiagnosticError as error:
            faults += error.diagnostics
    for name in found:
        try:
            num_changed += _one(name, check, diff)
        except DiagnosticError as error:
            faults += error.diagnostics
    if files != (STANDARD_INPUT,) and not diff:
        what = "file" if len(found) == 1 else "files"
        click.echo(f"{num_changed} of {len(found)} {what} {'would change' if check else 'changed'}")
    if faults:
        raise DiagnosticError(faults)
    if check and num_changed:
        sys.exit(1)


def _one(name: str, check: bool, diff: bool) -> bool:
    """Format one file as the options say, and tell whether it changes. Raises E-READ-…, E-IO-001."""
    source = _standard_input() if name == STANDARD_INPUT else load_source(name)
    text = format_source(source)
    changed = text != source.text
    if diff:
        click.echo("".join(_difference(source, text)), nl=False)
    elif check:
        if changed:
            click.echo(f"{source.name}: would change")
    elif name == STANDARD_INPUT:
        click.echo(text, nl=False)
    elif changed:
        _rewrite(Path(name), text)
        click.echo(f"{name}: formatted")
    return changed


def _found(name: str) -> list[str]:
    """A file, or those of a folder: a run's copy of its file and hidden folders are left out. Raises E-READ-001."""
    if name == STANDARD_INPUT or not Path(name).is_dir():
        return [name]
    inside: list[str] = []
    for folder, folders, files in os.walk(name):
        folders[:] = [each for each in folders if not each.startswith(".")]
        if "status.json" not in files:
            inside += [str(Path(folder, file)) for file in files if file.endswith(".sx")]
    if not inside:
        message = f"the folder `{name}` holds no .sx file"
        raise DiagnosticError(Diagnostic("E-READ-001", message, help=("name a file, or another folder",)))
    return sorted(inside)


def _standard_input() -> Source:
    data = sys.stdin.buffer.read()
    try:
        return Source("<standard input>", data.decode("utf-8").removeprefix("\ufeff"))
    except UnicodeDecodeError as error:
        message = f"byte {error.start} of standard input is not UTF-8: 0x{data[error.start]:02x}"
        raise DiagnosticError(Diagnostic("E-READ-002", message, help=("give it as UTF-8",))) from error


def _difference(source: Source, text: str) -> Iterator[str]:
    before, after = source.text.splitlines(True), text.splitlines(True)
    for line in difflib.unified_diff(before, after, source.name, f"{source.name}, formatted"):
        yield line if line.endswith("\n") else f"{line}\n\\ no line break at the end\n"


def _rewrite(path: Path, text: str) -> None:
    """Replace a file's content whole; a link stays one, and permissions stay. Raises E-IO-001."""
    path = path.resolve()
    with explaining("write", path):
        mode = path.stat().st_mode
    write_atomic(path, text.encode("utf-8"))
    with explaining("write", path):
        path.chmod(mode & 0o7777)
