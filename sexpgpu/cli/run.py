"""`sexpgpu run FILE`: load, plan, open, train; a bar on a terminal, lines elsewhere; Ctrl-C leaves a resumable run."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from sexpgpu.cli.common import (
    INTERRUPTED,
    device_option,
    experiment_options,
    load,
    open_program,
    reporting,
    warn,
)

if TYPE_CHECKING:
    from sexpgpu.backend.pieces import Profile
    from sexpgpu.backend.protocol import Session
    from sexpgpu.train.store import Store

TRACE = "trace.json"


@click.command("run")
@experiment_options
@device_option
@click.option("--steps", type=click.IntRange(min=1), help="End at this step, if that is before the file's `:steps`.")
@click.option("--out", type=click.Path(path_type=Path), help="The run's folder; default runs/FILE, runs/FILE-2, …")
@click.option("--checkpoints", "place", metavar="s3://…", help="Save there, and not in the run's folder.")
@click.option(
    "--resume",
    metavar="latest|PATH",
    help="Continue the latest run of FILE, a run's folder or s3:// address, or a checkpoint.",
)
@click.option("--profile", "profiled", is_flag=True, help="Time each kernel and call; write trace.json for Perfetto.")
@click.option("--quiet", is_flag=True, help="Print errors only.")
@reporting("run")
def command(
    file: Path,
    variant: str | None,
    settings: tuple[str, ...],
    run_name: str | None,
    device: str | None,
    steps: int | None,
    out: Path | None,
    place: str | None,
    resume: str | None,
    profiled: bool,
    quiet: bool,
) -> None:
    """Train: run the experiment of FILE."""
    from rich.console import Console

    from sexpgpu import __version__
    from sexpgpu.diagnostics import Diagnostic, DiagnosticError
    from sexpgpu.plan.memory import shown_size
    from sexpgpu.settings import from_environment
    from sexpgpu.train.checkpoint import Best, same_experiment, supersede
    from sexpgpu.train.facts import experiment_facts, write_facts
    from sexpgpu.train.files import explaining, write_atomic
    from sexpgpu.train.fitting import refuse_misfits
    from sexpgpu.train.folder import folder_of, held, new_folder, resumed
    from sexpgpu.train.identity import experiment_digest
    from sexpgpu.train.loop import Training
    from sexpgpu.train.phases import assemble
    from sexpgpu.train.progress import Progress
    from sexpgpu.train.status import mark_ended
    from sexpgpu.train.stopping import EarlyStop
    from sexpgpu.train.store import FolderStore, open_store
    from sexpgpu.train.writer import CheckpointWriter

    _check_places(out, place)
    console = Console(highlight=False, soft_wrap=True, markup=False, emoji=False)
    experiment = load(file, variant, settings, run_name)
    if not experiment.run.name:
        what = "this file has no `defrun`, so there is nothing to train; its weights are there for the other commands"
        help = f"sexpgpu evaluate {file}, or sexpgpu generate {file}"
        raise DiagnosticError(Diagnostic("E-RUN-004", what, help=(help,)))
    if not quiet:
        warn(experiment, "run")
    assembly = assemble(experiment)
    environment = from_environment(device)
    chosen, plan, open_session = open_program(assembly.program, environment, experiment.run.saves_between)
    free = environment.memory_bytes or chosen.free_bytes()
    digest = experiment_digest(experiment, assembly.program)
    last_step = min(experiment.run.steps, steps or experiment.run.steps)
    tensors, meta, start_step = {}, {}, 0
    store: Store
    if resume is not None:
        found = resumed(resume, file.stem, out, Path("runs"), place=place)
        saved = found.checkpoint
        same_experiment(saved.meta, digest, experiment.text, dict(experiment.overrides))
        refuse_misfits(assembly.program.saved, saved)
        tensors, meta, start_step = saved.tensors, saved.meta, saved.step
        for note in found.notes:
            click.echo(f"sexpgpu run: {note}", err=True)
        store = found.store if place is None else open_store(place)
        folder = found.folder or folder_of(store.place, file.stem, out, Path("runs"))
    else:
        if place is not None:
            _check_empty(open_store(place))
        folder = new_folder(file.stem, out, Path("runs"))
        store = FolderStore(folder.checkpoints) if place is None else open_store(place)
    if not (folder.path / "experiment.sx").exists():
        write_atomic(folder.path / "experiment.sx", experiment.text.encode())
    if not quiet:
        states = f", {len(experiment.states)} states" if experiment.states else ""
        console.print(
            f"{file}: {experiment.num_parameters:,} parameters in {len(experiment.parameters)} tensors{states}"
        )
        console.print(f"lowering: {chosen.name} {chosen.describe()}")
        console.print(f"  {'memory':<24}{shown_size(plan.peak_bytes)} of {shown_size(free)} free")
        console.print(f"  {'stacking':<24}{assembly.stacking}: this device runs one microbatch a call")
        resuming = f", resuming after step {start_step}" if start_step else ""
        console.print(f"run: {folder.path}, {last_step} steps{resuming}")
    stopped_early = EarlyStop(experiment.run.stop, meta.get("early_stop")).reason
    rule = experiment.run.checkpoint
    writer = CheckpointWriter(store, rule.keep, Best(rule.best, rule.higher) if rule.best else None)
    with contextlib.ExitStack() as stack:
        stack.enter_context(held(folder))
        with explaining("save in", store.place):
            store.clean()
        if start_step >= last_step or stopped_early is not None:
            # Its process may have ended after the last checkpoint and before it could say so.
            writer.prune()
            mark_ended(folder.status, "done")
            if not quiet:
                why = f", where the run stopped early: {stopped_early}" if stopped_early is not None else ""
                console.print(f"nothing to do: the checkpoint is of step {start_step}{why}")
            return
        if resume is not None:
            supersede(store, start_step)
        facts = experiment_facts(experiment, last_step) | {
            "device": chosen.name,
            "machine": chosen.describe(),
            "version": __version__,
            "stacking": assembly.stacking,
            "planned_bytes": plan.peak_bytes,
            "parts": plan.parts(),
        }
        if not isinstance(store, FolderStore):
            facts["checkpoints"] = store.place
        write_facts(folder.facts, facts, time.time(), start_step)
        session = open_session()
        stack.callback(session.close)
        profile = _profile(session, chosen.name) if profiled else None
        with _interrupts() as stopped, Progress(console, last_step, start_step, quiet) as progress:
            training = Training(
                experiment,
                assembly,
                session,
                folder,
                progress,
                writer,
                plan=plan,
                digest=digest,
                start_step=start_step,
                last_step=last_step,
                stop=lambda: bool(stopped),
            )
            training.restore(tensors, meta)
            tensors.clear()
            try:
                reached = training.run()
            except (DiagnosticError, KeyboardInterrupt) as error:
                with contextlib.suppress(DiagnosticError):  # what stopped the run is the one to tell
                    code = error.diagnostics[0].code if isinstance(error, DiagnosticError) else None
                    mark_ended(folder.status, "failed" if code else "interrupted", code)
                raise
        reason = training.early_stop.reason
        if profile is not None:
            for line in _told(profile, session, chosen.name, folder.path / TRACE):
                if not quiet:
                    console.print(line)
        if not quiet:
            console.print(training.memory)
            if reason is not None and reached < last_step:
                console.print(f"stopped early at step {reached} of {last_step}, saved: {reason}")
    if reached < last_step and reason is None:
        if not quiet:
            console.print(f"interrupted after step {reached}, saved; continue with --resume latest")
        sys.exit(INTERRUPTED)


def _profile(session: Session, device: str) -> Profile:
    """What the session fills from now on. Raises E-DEV-005 where it cannot time what it does."""
    from sexpgpu.backend.pieces import Profile, Profiling
    from sexpgpu.diagnostics import Diagnostic, DiagnosticError

    if not isinstance(session, Profiling):
        message = f"`{device}` cannot time what it does, and `--profile` asks for that"
        raise DiagnosticError(Diagnostic("E-DEV-005", message, help=("leave out --profile, or use `--device cpu`",)))
    profile = Profile()
    session.profile(profile)
    return profile


def _told(profile: Profile, session: Session, device: str, path: Path) -> list[str]:
    """Write the trace; the table, and where the trace is."""
    from sexpgpu.backend.pieces import Profiling
    from sexpgpu.cli.profile import profile_lines, trace_text
    from sexpgpu.train.files import explaining, write_atomic

    assert isinstance(session, Profiling)
    phases = session.pieces()
    with explaining("write", path):
        write_atomic(path, trace_text(profile, phases, device).encode())
    return [*profile_lines(profile, phases, session.rates()), "", f"profile: {path}, for ui.perfetto.dev"]


def _check_places(out: Path | None, place: str | None) -> None:
    """Raises E-IO-004: a run's folder is on a disk, and what `--checkpoints` names is not."""
    from sexpgpu.diagnostics import Diagnostic, DiagnosticError
    from sexpgpu.s3 import is_s3

    if out is not None and out.parts[:1] == ("s3:",):
        message = f"a run's folder is on a disk, not at `s3://{'/'.join(out.parts[1:])}`"
        help = f"only checkpoints can lie there: --checkpoints s3://{'/'.join(out.parts[1:])}"
        raise DiagnosticError(Diagnostic("E-IO-004", message, help=(help,)))
    if place is not None and not is_s3(place):
        message = f"`--checkpoints {place}` is no address of S3"
        help = "write s3://BUCKET/PREFIX; a folder of this machine is chosen by --out"
        raise DiagnosticError(Diagnostic("E-IO-004", message, help=(help,)))


def _check_empty(store: Store) -> None:
    """Raises E-IO-002 where a run has saved."""
    from sexpgpu.diagnostics import Diagnostic, DiagnosticError
    from sexpgpu.train.checkpoint import holds_any

    if holds_any(store):
        help = f"--resume {store.place} continues it; another --checkpoints begins anew"
        raise DiagnosticError(Diagnostic("E-IO-002", f"{store.place} holds a run already", help=(help,)))


@contextlib.contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Signals that ask to stop: the first lets the step end and is recorded, the second ends the process."""
    caught: list[int] = []

    def handler(number: int, frame: FrameType | None) -> None:
        if caught:
            raise KeyboardInterrupt
        caught.append(number)

    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield caught
    finally:
        for number, old in before.items():
            signal.signal(number, old)
