"""Generators between steps: run the trips, and show what came out as text or as pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sexpgpu.backend.protocol import Call, Session
from sexpgpu.data import Lines, TokenStream
from sexpgpu.ir.opdef import Array
from sexpgpu.ir.program import Program
from sexpgpu.lang.experiment import Experiment, GeneratorGraphs
from sexpgpu.train.faults import stop_on_faults
from sexpgpu.train.files import explaining
from sexpgpu.train.folder import sample_name
from sexpgpu.train.keys import stream_key
from sexpgpu.train.pictures import save_pictures
from sexpgpu.train.schedule import HostSchedule

CHUNK = 32
"""Trips handed to the device at once."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The value of a generator: final carries and stacked emissions, and its text where it shows one."""

    carries: tuple[Array, ...]
    emitted: tuple[Array, ...]
    text: str | None


def shows_as_it_comes(generator: GeneratorGraphs) -> bool:
    """Whether each trip gives one more token of one text."""
    if generator.trip is None or not generator.num_emitted or not (generator.show or "").startswith("text:"):
        return False
    return generator.trip.output("emit:0").type.size == 1


class _Shown:
    """A text that grows token by token. A token may be part of a character, so all are decoded together, and what
    may yet change, the mark of an unfinished character at the end, waits."""

    def __init__(self, decode: Callable[..., str], prompt: Sequence[int], say: Callable[[str], None]) -> None:
        self._decode = decode
        self._tokens = list(prompt)
        self._say = say
        self._num_shown = 0
        self.add(())

    def add(self, tokens: Iterable[int], last: bool = False) -> None:
        """Show what `tokens` add."""
        self._tokens += tokens
        text = self._decode(self._tokens)
        settled = text if last else text.rstrip("\ufffd")
        if len(settled) > self._num_shown:
            self._say(settled[self._num_shown :])
            self._num_shown = len(settled)


def run_generator(
    experiment: Experiment,
    program: Program,
    session: Session,
    schedule: HostSchedule,
    generator: GeneratorGraphs,
    step: int,
    sample: int = 0,
    stream_text: Callable[[str], None] | None = None,
) -> Sample:
    """One sample. Draws are keyed by (seed, generator, step, sample); `stream_text` gets text as it comes, of a
    generator that `shows_as_it_comes`.

    Raises DiagnosticError E-RUN-003.
    """
    key = np.asarray(stream_key(experiment.run.seed, f"generate {generator.name}", step, sample))
    host = schedule.at(max(step, 1))
    dataset = experiment.datasets.get((generator.show or "").removeprefix("text:"))
    decode = dataset.decode if isinstance(dataset, TokenStream | Lines) else None

    def call(suffix: str, trip: int) -> Call:
        phase = program.phase(f"generate.{generator.name}.{suffix}")
        feeds = {name: host[name] for name in phase.feeds if name in host}
        if "stream" in phase.feeds:
            feeds["stream"] = key
        if "trip" in phase.feeds:
            feeds["trip"] = np.asarray(trip, np.int32)
        return Call(phase.name, feeds)

    def run(calls: list[Call]) -> list[dict[str, Array]]:
        outputs = session.run(calls).result()
        for each in outputs:
            stop_on_faults(each.faults, f"generator `{generator.name}`")
        return [dict(each.results) for each in outputs]

    (started,) = run([call("start", 0)])
    if generator.trip is None:
        carries = tuple(started[slot] for slot, _ in generator.carries)
        return Sample(carries, (), None)
    shown = _Shown(decode, generator.prompt or (), stream_text) if decode and stream_text else None
    at_once = CHUNK if shown is None else 1
    rows: list[dict[str, Array]] = []
    for first in range(0, generator.num_trips, at_once):
        last = min(first + at_once, generator.num_trips)
        rows += run([call("trip", t) for t in range(first, last)])
        if shown is not None:
            shown.add([int(rows[-1]["emit:0"].item())], last == generator.num_trips)
    emitted = tuple(np.stack([r[f"emit:{i}"] for r in rows], axis=generator.axis) for i in range(generator.num_emitted))
    carries = tuple(session.read(slot).result().copy() for slot, _ in generator.carries)
    return Sample(carries, emitted, _text(generator, decode, carries, emitted))


def _text(
    generator: GeneratorGraphs,
    decode: Callable[..., str] | None,
    carries: tuple[Array, ...],
    emitted: tuple[Array, ...],
) -> str | None:
    if decode is None:
        return None
    if emitted:
        tokens = np.reshape(np.moveaxis(emitted[0], generator.axis, 0), (generator.num_trips, -1)).T
        prompt = list(generator.prompt or ())
        return "\n---\n".join(decode([*prompt, *(int(v) for v in row)]) for row in tokens)
    whole = next((c for c in carries if c.dtype.kind == "i" and c.ndim), None)
    if whole is None:
        return None
    return "\n---\n".join(decode([int(v) for v in row]) for row in np.atleast_2d(whole))


def save_sample(folder: Path, generator: GeneratorGraphs, sample: Sample, step: int) -> Path:
    """Write a sample under `folder`: text as .txt, pictures as .png, anything else as .npz. Raises E-IO-001."""
    stem = sample_name(generator.name, step)
    with explaining("write a sample under", folder):
        folder.mkdir(parents=True, exist_ok=True)
        if sample.text is not None:
            path = folder / f"{stem}.txt"
            path.write_text(sample.text, "utf-8")
            return path
        last = (sample.emitted or sample.carries)[-1]
        if generator.show == "image":
            path = folder / f"{stem}.png"
            save_pictures(path, last)
            return path
        path = folder / f"{stem}.npz"
        np.savez(path, **{f"value-{i}": v for i, v in enumerate((*sample.carries, *sample.emitted))})  # type: ignore[arg-type]
        return path
