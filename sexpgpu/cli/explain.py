"""`sexpgpu explain CODE`: the page of an error or a warning, or the list of all."""

from __future__ import annotations

import click

from sexpgpu.cli.common import reporting
from sexpgpu.diagnostics import CODES, Diagnostic, DiagnosticError
from sexpgpu.diagnostics.nearest import edit_distance
from sexpgpu.diagnostics.pages import for_terminal, page

NUM_NEAR = 3


@click.command("explain")
@click.argument("codes", nargs=-1, metavar="[CODE]...")
@reporting("explain")
def command(codes: tuple[str, ...]) -> None:
    """Say what CODE means, with an example and its remedy; without CODE, list all codes."""
    if not codes:
        _list_codes()
    for index, name in enumerate([_known(code) for code in codes]):
        if index:
            click.echo()
        for line, heading in for_terminal(page(name)):
            click.echo(click.style(line, bold=True) if heading else line)


def _known(name: str) -> str:
    """The code that `name` is, in either case. Raises E-NAME-005."""
    code = name.upper()
    if code in CODES:
        return code
    near = sorted(CODES, key=lambda other: edit_distance(code, other))[:NUM_NEAR]
    close = [f"`{other}` ({CODES[other].title})" for other in near if edit_distance(code, other) <= NUM_NEAR]
    listed = f"near ones: {', '.join(close)}" if close else "`sexpgpu explain` lists them all"
    raise DiagnosticError(Diagnostic("E-NAME-005", f"there is no code `{name}`", help=(listed,)))


def _list_codes() -> None:
    area = ""
    for code in CODES.values():
        if code.area != area:
            if area:
                click.echo()
            area = code.area
            click.echo(click.style(f"{area[0].upper()}{area[1:]}", bold=True))
        click.echo(f"  {code.code:13}  {code.title}")
    click.echo("\n`sexpgpu explain CODE` says more of each.")
