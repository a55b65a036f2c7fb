"""`sexpgpu verify [FILE] --device D`: what a device computes, beside the interpreter; what to attach to an issue."""

from __future__ import annotations

import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sexpgpu.cli.common import choice_options, device_of, device_option, load, reporting, tell

if TYPE_CHECKING:
    from sexpgpu.train.verification import Finding

NUM_WORST = 8
"""Values that are shown: those that break their bounds, or come closest to them."""


@click.command("verify")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@choice_options
@device_option
@click.option("--kernels", is_flag=True, help="The samples of every operation too; then FILE may be left out.")
@click.option("--json", "as_json", is_flag=True, help="Every value, as one JSON object.")
@reporting("verify")
def command(
    file: Path | None,
    variant: str | None,
    settings: tuple[str, ...],
    run_name: str | None,
    device: str | None,
    kernels: bool,
    as_json: bool,
) -> None:
    """Compare every operation of FILE on a device with the interpreter. Exit status 1 where a bound is broken."""
    if file is None and not kernels:
        raise click.UsageError("give FILE, or --kernels, or both")
    from sexpgpu.backend.protocol import Budget
    from sexpgpu.settings import from_environment
    from sexpgpu.train.phases import assemble
    from sexpgpu.train.samples import verify_samples
    from sexpgpu.train.verification import Verification, verify_experiment

    environment = from_environment(device)
    experiment = None if file is None else load(file, variant, settings, run_name)
    chosen = device_of(environment)
    budget = Budget(environment.memory_bytes)
    samples = list(verify_samples(chosen, budget)) if kernels else []
    found = Verification()
    if experiment is not None:
        found = verify_experiment(experiment, assemble(experiment), chosen, budget)
    broken = [*(each for each in samples if each.difference.broken), *found.broken]
    if as_json:
        click.echo(json.dumps(_record(chosen.name, chosen.describe(), file, samples, found)))
    else:
        click.echo(_short(f"verify: {chosen.name} {chosen.describe()}", 80))
        for line in _lines(samples, found):
            click.echo(line)
    if found.stopped is not None:
        tell(found.stopped.diagnostics, "verify")
    if broken or found.missed or found.stopped is not None:
        sys.exit(1)


def _lines(samples: Sequence[Finding], found: Any) -> Iterable[str]:
    """The report, within 80 columns."""
    from sexpgpu.train.differences import BOUNDS

    if samples:
        yield from _by_operation("samples of operations", samples)
    if found.nodes:
        yield from _by_operation("operations of the file", found.nodes)
    if found.outputs:
        yield f"  {'whole phases':<34}{'values':>8}{'largest':>10}{'relative':>10}{'of bound':>10}"
        for phase, values in _grouped(found.outputs, lambda each: each.phase).items():
            yield _row(phase, values)
    for name in found.missed:
        yield _short(f"  not compared: {name}", 80)
    everything = [*samples, *found.nodes, *found.outputs]
    worst = sorted(everything, key=lambda each: each.difference.used, reverse=True)
    shown = [each for each in worst[:NUM_WORST] if each.difference.used > 0]
    if shown:
        yield "  worst values"
        for each in shown:
            difference, type = each.difference, _short(str(each.type), 17)
            numbers = (
                f"{_number(difference.absolute):>10}{_number(difference.relative):>10}{_share(difference.used):>10}"
            )
            yield f"  {_short(each.operation, 24):<25}{type:>17}{numbers}"
            yield f"      {_place(each)}"
    bounds = ", ".join(f"{dtype} {BOUNDS[dtype]:.0e}" for dtype in ("f32", "bf16"))
    yield f"  bounds of an operation, relative: {bounds}; integers equal"
    num_broken = sum(each.difference.broken for each in everything)
    verdict = f"{num_broken:,} BREAK their bounds" if num_broken else "all within their bounds"
    yield f"{len(everything):,} values: {verdict}"


def _by_operation(title: str, values: Sequence[Finding]) -> Iterable[str]:
    yield f"  {title:<34}{'values':>8}{'largest':>10}{'relative':>10}{'of bound':>10}"
    for operation, same in sorted(_grouped(values, lambda each: each.operation).items()):
        yield _row(operation, same)


def _row(name: str, values: Sequence[Finding]) -> str:
    largest = max(each.difference.absolute for each in values)
    relative = max(each.difference.relative for each in values)
    used = max(each.difference.used for each in values)
    return f"  {_short(name, 33):<34}{len(values):>8,}{_number(largest):>10}{_number(relative):>10}{_share(used):>10}"


def _grouped(values: Sequence[Finding], key: Any) -> dict[str, list[Finding]]:
    found: dict[str, list[Finding]] = defaultdict(list)
    for each in values:
        found[key(each)].append(each)
    return found


def _number(x: float) -> str:
    return f"{x:.1e}" if x else "0"


def _share(used: float) -> str:
    """Of what is allowed; more than all of it in capitals."""
    return "BROKEN" if used > 1 else f"{used:.0%}" if used >= 0.01 else "<1%" if used else "0"


def _place(finding: Finding) -> str:
    span = finding.place
    where = "" if span is None else f", {span.source.name}:{span.line}"
    return _short(f"{finding.phase}{where}", 74)


def _short(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _record(device: str, about: str, file: Path | None, samples: Sequence[Finding], found: Any) -> dict[str, Any]:
    from sexpgpu.train.differences import BOUNDS, PHASE_BOUNDS, SLACK

    return {
        "device": device,
        "about": about,
        "file": None if file is None else str(file),
        "bounds": {"operation": BOUNDS, "phase": PHASE_BOUNDS, "slack": SLACK},
        "samples": [_entry(each) for each in samples],
        "operations": [_entry(each) for each in found.nodes],
        "phases": [_entry(each) for each in found.outputs],
        "missed": list(found.missed),
        "broken": sum(each.difference.broken for each in (*samples, *found.nodes, *found.outputs)),
        "stopped": None if found.stopped is None else found.stopped.diagnostics[0].message,
    }


def _entry(finding: Finding) -> dict[str, Any]:
    span, difference = finding.place, finding.difference
    return {
        "phase": finding.phase,
        "operation": finding.operation,
        "type": str(finding.type),
        "place": None if span is None else f"{span.source.name}:{span.line}",
        "absolute": _finite(difference.absolute),
        "relative": _finite(difference.relative),
        "used": _finite(difference.used),
        "broken": difference.broken,
    }


def _finite(x: float) -> float | None:
    """JSON has no infinity."""
    return x if math.isfinite(x) else None
