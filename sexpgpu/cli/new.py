"""`sexpgpu new NAME --like TEMPLATE`: a first file to change, made of one of the examples."""

from __future__ import annotations

import re
from pathlib import Path

import click

import sexpgpu
from sexpgpu.cli.common import reporting
from sexpgpu.diagnostics import Diagnostic, DiagnosticError, nearest
from sexpgpu.train.files import explaining, write_atomic

TEMPLATES = Path(sexpgpu.__file__).parent / "templates"
"""The folder `examples` of the checkout, by a link; an installed package has the files themselves."""

_NAME = re.compile(r"\w[\w.-]*")
_SCRIPT = re.compile(r"\bmake_\w+\.py\b")


@click.command("new")
@click.argument("name", required=False)
@click.option("--like", "template", metavar="TEMPLATE", help="The example to begin with.")
@click.option("--list", "listing", is_flag=True, help="List the templates.")
@reporting("new")
def command(name: str | None, template: str | None, listing: bool) -> None:
    """Write NAME.sx, a copy of an example under its own name.

    NAME may be a path. A script that makes the example's data is copied beside it.
    """
    if listing:
        table = click.HelpFormatter(width=80)
        table.write_dl([(each, _summary(each)) for each in template_names()])
        click.echo(table.getvalue(), nl=False)
        return
    if name is None or template is None:
        raise click.UsageError("say NAME and --like TEMPLATE; `sexpgpu new --list` lists the templates")
    path = _path(name)
    text = _text(template)
    if path.exists() or path.is_symlink():
        remedy = "choose another name, or remove the file"
        raise DiagnosticError(Diagnostic("E-NEW-003", f"there is a `{path}` already", help=(remedy,)))
    scripts = sorted(set(_SCRIPT.findall(text)))
    notes = [_copy(TEMPLATES / script, path.with_name(script)) for script in scripts]
    write_atomic(path, _adapted(text, template, path, scripts).encode("utf-8"))
    click.echo(f"{path}: written, like {template}")
    for note in notes:
        click.echo(note)
    click.echo(f"next: sexpgpu check {path}")


def template_names() -> list[str]:
    """Every template, by name."""
    return sorted(path.stem for path in TEMPLATES.glob("*.sx"))


def _summary(template: str) -> str:
    """The first sentence of the comment that a template begins with."""
    lines: list[str] = []
    for line in _text(template).splitlines():
        if not line.startswith(";; "):
            break
        lines.append(line.removeprefix(";; "))
    told = " ".join(lines).removeprefix(f"{template}.sx: ")
    return told.partition(". ")[0].removesuffix(".")


def _text(template: str) -> str:
    """The text of a template. Raises E-NEW-001."""
    names = template_names()
    if template not in names:
        near = nearest(template, names)
        remedy = f"`{near}` is a near name" if near is not None else f"the templates: {', '.join(names)}"
        raise DiagnosticError(Diagnostic("E-NEW-001", f"no template is called `{template}`", help=(remedy,)))
    return (TEMPLATES / f"{template}.sx").read_text("utf-8")


def _path(name: str) -> Path:
    """Where the file goes. Raises E-NEW-002."""
    path = Path(name if name.endswith(".sx") else f"{name}.sx")
    if name.endswith("/") or not _NAME.fullmatch(path.name.removesuffix(".sx")):
        remedy = "use letters, digits, `-`, `_` and `.`, and begin with a letter or digit"
        raise DiagnosticError(Diagnostic("E-NEW-002", f"`{name}` is no name for a file", help=(remedy,)))
    return path


def _adapted(text: str, template: str, path: Path, scripts: list[str]) -> str:
    """The text under the file's own name, in its first line and in the commands that its comments show."""
    text = text.replace(f"examples/{template}.sx", str(path))
    for script in scripts:
        text = text.replace(f"examples/{script}", str(path.with_name(script)))
    return text.replace(f";; {template}.sx: ", f";; {path.name}: ", 1)


def _copy(script: Path, target: Path) -> str:
    """Put a data script beside the new file, and say so; one that is there already stays. Raises E-IO-001."""
    data = script.read_bytes()
    with explaining("read", target):
        there = target.read_bytes() if target.exists() else None
    if there is None:
        write_atomic(target, data)
        return f"{target}: written; it makes the data: python {target}"
    if there == data:
        return f"{target}: there already; it makes the data: python {target}"
    return f"{target}: there already, and another one than the template's; left as it is"
