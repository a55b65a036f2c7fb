"""A session with a checkpoint in it, for the commands that look at a trained run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sexpgpu.cli.common import open_program

if TYPE_CHECKING:
    from sexpgpu.backend.protocol import Session
    from sexpgpu.ir.program import Program
    from sexpgpu.lang.experiment import Experiment


INITIAL = "initial"
"""What stands for the first values in place of a checkpoint."""


@contextmanager
def restored(
    experiment: Experiment, file: Path, device: str | None, checkpoint: str, out: Path | None
) -> Iterator[tuple[Program, Session, int]]:
    """The program, a session holding the checkpoint's parameters and states, and its step.

    checkpoint: as the commands take it; `initial` stands for what a run begins with, published weights among it, and is
    all that there is where the file has no run.
    Only what the program reads is needed, so an evaluation may be changed after training; parameters must agree.
    Raises E-CKPT-….
    """
    from sexpgpu.ir.program import Program
    from sexpgpu.settings import from_environment
    from sexpgpu.train.fitting import refuse_misfits
    from sexpgpu.train.folder import resumed
    from sexpgpu.train.phases import assemble

    if checkpoint == INITIAL or (checkpoint == "latest" and not experiment.run.name):
        with _initial(experiment, device) as (program, session):
            yield program, session, 0
        return
    saved = resumed(checkpoint, file.stem, out, Path("runs"), "--checkpoint").checkpoint
    whole = assemble(experiment).program
    phases = tuple(p for p in whole.phases if p.name.startswith(("eval.", "generate.")))
    needed = {name for phase in phases for name in (*phase.reads, *phase.writes)}
    program = Program(tuple(s for s in whole.slots if s.name in needed), phases, whole.schedule)
    refuse_misfits(program.saved, saved)
    _, _, open_session = open_program(program, from_environment(device))
    session = open_session()
    try:
        for slot in program.saved:
            session.write(slot.name, saved.tensors[slot.name])
        yield program, session, saved.step
    finally:
        session.close()


@contextmanager
def _initial(experiment: Experiment, device: str | None) -> Iterator[tuple[Program, Session]]:
    from sexpgpu.settings import from_environment
    from sexpgpu.train.initial import initialise, untrained
    from sexpgpu.train.phases import assemble

    program = assemble(untrained(experiment)).program
    _, _, open_session = open_program(program, from_environment(device))
    session = open_session()
    try:
        initialise(experiment, program, session)
        yield program, session
    finally:
        session.close()
