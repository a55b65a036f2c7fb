"""The training loop: steps, and what is due between them. It knows programs and sessions, never a device's name.

One step is, for every update in order: k microbatches a call until all have run, then a commit that is written only
if every proposal is finite. What a step reads is what the step before committed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sexpgpu.backend.protocol import Call, Outputs, Session
from sexpgpu.data import Prefetcher
from sexpgpu.diagnostics import DiagnosticError
from sexpgpu.ir.opdef import Array
from sexpgpu.lang.experiment import Experiment, Update
from sexpgpu.plan.memory import ProgramPlan, shown_size
from sexpgpu.train.blame import Finding, first_non_finite
from sexpgpu.train.evaluation import run_evaluation
from sexpgpu.train.faults import non_finite, skipped_line, stop_on_faults, zero_weight
from sexpgpu.train.folder import RunFolder
from sexpgpu.train.folds import apply_after, fold_measures, microbatch_results, weighted_mean
from sexpgpu.train.generation import run_generator, save_sample
from sexpgpu.train.initial import initialise
from sexpgpu.train.inner import generating, generator_calls
from sexpgpu.train.keys import stream_key
from sexpgpu.train.lanes import LANE
from sexpgpu.train.metrics import MetricsWriter
from sexpgpu.train.phases import Assembly
from sexpgpu.train.progress import Progress
from sexpgpu.train.schedule import HostSchedule
from sexpgpu.train.status import StatusFile
from sexpgpu.train.stopping import EarlyStop
from sexpgpu.train.writer import CheckpointWriter


def memory_line(peak_bytes: int, planned_bytes: int, unplanned_bytes: int) -> str:
    """The peak against the plan: in percent, or where they lie closer than what is in no plan, that they do."""
    line = f"memory: peak {shown_size(peak_bytes)} of {shown_size(planned_bytes)} planned"
    if abs(peak_bytes - planned_bytes) < unplanned_bytes:
        return f"{line} (±{shown_size(unplanned_bytes)} are Python's own)"
    return f"{line} ({(peak_bytes / planned_bytes - 1) * 100:+.1f}%)"


def due(step: int, every: int, last_step: int) -> bool:
    """`(every n …)`: step 1, multiples of n, the last step."""
    return step == 1 or step % every == 0 or step == last_step


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one update of one step gave: its last time, but for what was skipped, which counts all `:times`.

    bad: parameters and states whose proposals were not finite, of the last time that was skipped. cause: where the
    first update that this process skipped left the finite numbers; to find that takes another step on the host.
    """

    loss: float
    weight: float
    measures: Mapping[str, Array]
    diagnostics: Mapping[str, float]
    gradient_norm: float | None
    num_skipped: int
    bad: tuple[str, ...] = ()
    cause: Finding | None = None


class Stepper:
    """Runs steps on a session. Holds the position of the loaders' prefetching, and what it has explained."""

    def __init__(self, experiment: Experiment, assembly: Assembly, session: Session, last_step: int) -> None:
        self.experiment = experiment
        self.assembly = assembly
        self.session = session
        self.last_step = last_step
        self.schedule = HostSchedule(assembly.program.schedule)
        self._prefetchers: dict[str, Prefetcher[dict[str, Array]]] = {}
        self._explained: set[str] = set()
        self._phases = {phase.name: phase for phase in assembly.program.phases}

    def initialise(self) -> None:
        """First values of parameters and states, drawn from (seed, path)."""
        initialise(self.experiment, self.assembly.program, self.session)

    def step(self, step: int) -> dict[str, StepResult]:
        """All updates of one step, by name. Raises E-RUN-001, E-RUN-002, E-RUN-003; then nothing of it is kept."""
        found: dict[str, StepResult] = {}
        for update in self.experiment.run.updates:
            if _is_due(update, step):
                for time_of in range(update.times):
                    result = self._update(update, step, time_of)
                    found[update.name] = _after(found.get(update.name), result)
        return found

    def close(self) -> None:
        """End the prefetching threads."""
        for prefetcher in self._prefetchers.values():
            prefetcher.close()
        self._prefetchers.clear()

    def _update(self, update: Update, step: int, time_of: int) -> StepResult:
        run, k = self.experiment.run, self.assembly.stacking
        host = self.schedule.at(step)
        calls: list[Call] = []
        for j in range(0, run.microbatches, k):
            calls += self._microbatches(update, step, time_of, j, host)
        diagnosing = [r for r in run.diagnose if due(step, r.every, self.last_step)]
        name = f"update.{update.name}.commit"
        if diagnosing and f"{name}.diagnosed" in self._phases:
            name += ".diagnosed"
        commit = self._phases[name]
        calls.append(Call(name, {n: host[n] for n in commit.feeds}))
        outputs = self.session.run(calls).result()
        for each in outputs:
            stop_on_faults(each.faults, f"step {step}")
        inner = generating(f"update.{update.name}")
        kept = [each for call, each in zip(calls, outputs, strict=True) if not call.phase.startswith(inner)]
        return self._result(update, step, calls, tuple(kept), {r.name for r in diagnosing})

    def _microbatches(
        self, update: Update, step: int, time_of: int, j: int, host: Mapping[str, Array]
    ) -> Iterator[Call]:
        """The calls of microbatches j … j + k − 1: the generators that the loss calls, then the loss."""
        order = list(generator_calls(f"update.{update.name}", update.objective.generators))
        order.append((f"update.{update.name}.{'first' if j == 0 else 'next'}", 0))
        wanted = {feed for name in {name for name, _ in order} for feed in self._phases[name].feeds}
        known = {**host, **self._feeds(update, step, time_of, j, wanted)}
        for name, trip in order:
            known["trip"] = np.asarray(trip, np.int32)
            yield Call(name, {feed: known[feed] for feed in self._phases[name].feeds})

    def _feeds(self, update: Update, step: int, time_of: int, j: int, wanted: Collection[str]) -> dict[str, Array]:
        """What microbatches j … j + k − 1 of an update are given of `wanted`."""
        run, k = self.experiment.run, self.assembly.stacking
        first = ((step - 1) * update.times + time_of) * run.microbatches + j
        feeds: dict[str, Array] = {}
        if "stream" in wanted:
            keys = [
                stream_key(run.seed, "update", _position(run.updates, update), step, time_of, first + i)
                for i in range(k)
            ]
            feeds["stream"] = np.asarray(keys[0] if k == 1 else keys)
        if LANE in wanted:
            feeds[LANE] = np.asarray(j if k == 1 else range(j, j + k), np.int32)
        if update.loader is not None and update.objective.fields:
            batch = self._batch(update, step)
            feeds.update({n: batch[n.removeprefix("batch.")] for n in wanted if n.startswith("batch.")})
        return feeds

    def _batch(self, update: Update, step: int) -> dict[str, Array]:
        """The next k microbatches of the update's loader; a thread, begun at `step`, keeps those after them ready."""
        assert update.loader is not None
        loader, k = update.loader, self.assembly.stacking
        fields, num_per_step = update.objective.fields, update.times * self.experiment.run.microbatches

        def make(index: int) -> dict[str, Array]:
            nth, j = divmod(index * k, num_per_step)
            first = (_due_step(update, nth) - 1) * num_per_step + j
            parts = [self.experiment.batch(loader, first + i, fields) for i in range(k)]
            return parts[0] if k == 1 else {n: np.stack([p[n] for p in parts]) for n in parts[0]}

        prefetcher = self._prefetchers.get(update.name)
        if prefetcher is None:
            begin = _num_due_before(update, step) * num_per_step // k
            prefetcher = self._prefetchers[update.name] = Prefetcher(make, begin)
        return next(prefetcher)

    def _result(
        self, update: Update, step: int, calls: Sequence[Call], outputs: tuple[Outputs, ...], diagnosing: set[str]
    ) -> StepResult:
        """What an update gave. calls: all of it; outputs: those of its microbatches and of the commit."""
        *made, commit = outputs
        results = [each.results for each in made]
        k = self.assembly.stacking
        values, weights = (microbatch_results(results, name, k) for name in ("value", "weight"))
        loss, weight = weighted_mean(values, weights)
        if weight == 0:
            raise zero_weight(update, step)
        bad: tuple[str, ...] = ()
        cause: Finding | None = None
        if not commit.committed:
            leaves = self.assembly.updates[update.name].leaves
            bad = tuple(name for name, ok in zip(leaves, commit.results["finite"], strict=True) if not ok)
            if update.name not in self._explained:
                self._explained.add(update.name)
                cause = first_non_finite(self.assembly.program, calls, lambda slot: self.session.read(slot).result())
            if self.experiment.run.on_nonfinite == "stop":
                raise non_finite(update, step, float(loss), bad, cause)
        measures = [m for m in update.objective.measures if due(step, m.every, self.last_step)]
        norm = commit.results.get("gradient-norm")
        return StepResult(
            float(loss),
            float(weight),
            fold_measures(update.objective, results, k, measures),
            self._diagnostics(commit, diagnosing),
            None if norm is None else float(norm),
            int(not commit.committed),
            bad,
            cause,
        )

    def _diagnostics(self, commit: Outputs, diagnosing: set[str]) -> dict[str, float]:
        rules = {r.name: r for r in self.experiment.run.diagnose}
        found = {}
        for name, value in commit.results.items():
            if name.startswith("diagnostic:"):
                _, rule, group = name.split(":", 2)
                if rule in diagnosing:
                    found[f"{rule}/{group}"] = float(apply_after(rules[rule].after, value))
        return found


def _after(before: StepResult | None, result: StepResult) -> StepResult:
    """The result of an update that had one in this step already."""
    if before is None:
        return result
    num_skipped = before.num_skipped + result.num_skipped
    return replace(
        result, num_skipped=num_skipped, bad=result.bad or before.bad, cause=before.cause or result.cause
    )


def _is_due(update: Update, step: int) -> bool:
    """`:every n`: step 1 and multiples of n."""
    return step == 1 or step % update.every == 0


def _due_step(update: Update, nth: int) -> int:
    """The nth step, from 0, at which an update is due."""
    return nth + 1 if update.every == 1 else max(1, nth * update.every)


def _num_due_before(update: Update, step: int) -> int:
    """At how many steps before `step` an update was due."""
    return step - 1 if update.every == 1 else min(1, step - 1) + (step - 1) // update.every


def _position(updates: tuple[Update, ...], update: Update) -> int:
    return next(i for i, other in enumerate(updates) if other is update)


class Training:
    """A run: its steps, its events, and what it writes. One object per process; `run` is called once."""

    def __init__(
        self,
        experiment: Experiment,
        assembly: Assembly,
        session: Session,
        folder: RunFolder,
        progress: Progress,
        writer: CheckpointWriter,
        *,
        plan: ProgramPlan,
        digest: str,
        start_step: int,
        last_step: int,
        stop: Callable[[], bool],
    ) -> None:
        self.experiment = experiment
        self.assembly = assembly
        self.session = session
        self.folder = folder
        self.progress = progress
        self.writer = writer
        self.plan = plan
        self.digest = digest
        self.start_step = start_step
        self.last_step = last_step
        self.stop = stop
        self.stepper = Stepper(experiment, assembly, session, last_step)
        self.saved_step = start_step
        self.early_stop = EarlyStop(experiment.run.stop)
        self.scores: dict[str, float] = {}
        self.memory = ""

    def restore(self, tensors: Mapping[str, Array], meta: Mapping[str, Any]) -> None:
        """Put a checkpoint's tensors into the slots, and take up what else it knows; what no slot holds is left out."""
        for slot in self.assembly.program.saved:
            if slot.name in tensors:
                self.session.write(slot.name, tensors[slot.name])
        self.early_stop = EarlyStop(self.experiment.run.stop, meta.get("early_stop"))

    def run(self) -> int:
        """Steps from after `start_step` to `last_step`, or until `stop` or the run's patience says so; gives the last
        step made, saved.

        Afterwards `memory` compares what was held with the plan, and `early_stop.reason` says whether it was patience.
        Raises DiagnosticError where a step or a write fails; what was saved before stays, and a write under way is
        finished.
        """
        with ExitStack() as stack:
            resume = self.start_step if self.start_step else None
            self.metrics = stack.enter_context(MetricsWriter(self.folder.metrics, resume))
            self.status = StatusFile(self.folder.status, time.time)
            stack.callback(self.stepper.close)
            step = self.start_step
            self._note_plan(step + 1)
            try:
                if self.start_step == 0:
                    self.stepper.initialise()
                for step in self._steps():
                    self._events(step)
                    if self.early_stop.reason is not None and step < self.last_step:
                        self._stop_early(step, self.early_stop.reason)
                        break
                if self.saved_step != step:
                    self._save_last(step)
                self.writer.wait()
                self._tell_saved()
            except DiagnosticError as error:
                with suppress(DiagnosticError):
                    self.writer.wait()
                    self._tell_saved()
                first = error.diagnostics[0]
                with suppress(DiagnosticError):  # what stopped the run is the one to tell
                    self.metrics.annotate(step + 1, "failed", first.message, code=first.code, help=list(first.help))
                    self.status.update(step=step, force=True)
                raise
            self._compare_memory(step)
            done = step >= self.last_step or self.early_stop.reason is not None
            self.status.update(phase="done" if done else "interrupted", step=step, force=True)
            return step

    def _note_plan(self, step: int) -> None:
        """What was decided before the first step that this process makes."""
        at, k = self.plan.peak_at, self.assembly.stacking
        phase, place = (None, None) if at is None else (at.phase, at.origin.place)
        text = f"memory: {shown_size(self.plan.peak_bytes)} planned" + (f", fullest in {phase}" if phase else "")
        where = None if place is None else str(place)
        self.metrics.annotate(step, "memory", text, **self._planned(), fullest_phase=phase, fullest_place=where)
        self.metrics.annotate(step, "stacking", f"stacking {k}: microbatches in one call", stacking=k)

    def _compare_memory(self, step: int) -> None:
        peak = self.session.peak_bytes()
        self.memory = memory_line(peak, self.plan.peak_bytes, self.session.unplanned_bytes())
        self.metrics.annotate(step, "memory", self.memory, peak_bytes=peak, **self._planned())

    def _planned(self) -> dict[str, int]:
        """The plan's peak and its parts, as fields of an annotation."""
        parts = {f"{n} bytes".replace("'", "").replace(" ", "_"): size for n, size in self.plan.parts().items()}
        return {"planned_bytes": self.plan.peak_bytes, **parts}

    def _steps(self) -> Iterator[int]:
        tokens = self._tokens_per_step()
        self.status.update(phase="training", step=self.start_step, steps=self.last_step, force=True)
        for step in range(self.start_step + 1, self.last_step + 1):
            began = time.perf_counter()
            results = self.stepper.step(step)
            elapsed_ms = (time.perf_counter() - began) * 1e3
            shown = results.get(self._shown)
            loss = shown.loss if shown is not None else None
            self._record(step, results, elapsed_ms, tokens)
            self.progress.step(step, loss, tokens)
            rate = tokens / elapsed_ms * 1e3 if tokens else None
            eta_s = elapsed_ms / 1e3 * (self.last_step - step)
            known: dict[str, Any] = {} if loss is None else {"loss": loss}
            self.status.update(step=step, **known, step_ms=elapsed_ms, eta_s=eta_s, tokens_per_s=rate)
            yield step
            if self.stop():
                return

    @property
    def _shown(self) -> str:
        """The update whose loss a person sees: the first that is due at every step, else the first."""
        updates = self.experiment.run.updates
        return next((u.name for u in updates if u.every == 1), updates[0].name)

    def _tokens_per_step(self) -> int | None:
        """Tokens that one step of the first update reads, where its loader gives windows of text."""
        update = self.experiment.run.updates[0]
        loader = self.experiment.loaders.get(update.loader or "")
        if loader is None or loader.tokens_per_batch is None:
            return None
        return loader.tokens_per_batch * self.experiment.run.microbatches * update.times

    def _record(self, step: int, results: Mapping[str, StepResult], elapsed_ms: float, tokens: int | None) -> None:
        points: dict[str, Any] = {}
        prefixes = {update.name: self.experiment.run.prefix(update) for update in self.experiment.run.updates}
        for name, result in results.items():
            prefix = prefixes[name]
            points[f"{prefix}/loss"] = result.loss
            if result.gradient_norm is not None:
                points[f"{prefix}/gradient-norm"] = result.gradient_norm
            points.update({f"{prefix}/{path}": v for path, v in result.measures.items()})
            points.update({f"{prefix}/{path}": v for path, v in result.diagnostics.items()})
            if result.num_skipped:
                text = skipped_line(step, name, result.bad, result.cause)
                self.metrics.annotate(
                    step, "skipped", text, update=name, count=result.num_skipped, tensors=list(result.bad)
                )
                self.progress.line(text)
        points["runtime/step_ms"] = elapsed_ms
        if tokens:
            points["runtime/tokens_per_s"] = tokens / elapsed_ms * 1e3
        points["runtime/peak_bytes"] = self.session.peak_bytes()
        points["runtime/held_bytes"] = self.session.held_bytes()
        self.metrics.points(step, points)
        self.early_stop.see(step, points)

    def _events(self, step: int) -> None:
        run = self.experiment.run
        self._tell_saved()
        self.scores.clear()
        for event in run.evaluate:
            if due(step, event.every, self.last_step):
                self._evaluate(step, event.name)
        for event in run.generate:
            if due(step, event.every, self.last_step):
                self._generate(step, event.name)
        every = run.checkpoint.every
        if every is not None and due(step, every, self.last_step) and step != self.last_step:
            self._save(step)

    def _stop_early(self, step: int, reason: str) -> None:
        """This step turns out to be the last one: what is due then, and was not due before, and the word on why."""
        run = self.experiment.run
        for event in run.evaluate:
            if not due(step, event.every, self.last_step):
                self._evaluate(step, event.name)
        for event in run.generate:
            if not due(step, event.every, self.last_step):
                self._generate(step, event.name)
        self.metrics.annotate(step, "stopped", f"stopped early at step {step}: {reason}")
        self.status.update(stopped=reason)

    def _evaluate(self, step: int, name: str) -> None:
        found = run_evaluation(
            self.experiment,
            self.assembly.program,
            self.session,
            self.stepper.schedule,
            self.experiment.evaluations[name],
            step,
        )
        self.metrics.points(step, found)
        self.early_stop.see(step, found)
        self.scores |= {k: float(v) for k, v in found.items() if np.ndim(v) == 0 and math.isfinite(v)}
        scalars = [f"{k.removeprefix(f'eval/{name}/')} {float(v):.4f}" for k, v in found.items() if np.ndim(v) == 0]
        self.progress.line(f"step {step:>6}  {name}: {'  '.join(scalars)}")

    def _generate(self, step: int, name: str) -> None:
        generator = self.experiment.generators[name]
        sample = run_generator(
            self.experiment, self.assembly.program, self.session, self.stepper.schedule, generator, step
        )
        path = save_sample(self.folder.samples, generator, sample, step)
        self.metrics.annotate(step, "sample", sample.text or f"saved as {path.name}", generator=name)
        self.progress.line(f"step {step:>6}  {name}: {sample.text if sample.text is not None else path}")

    def _save(self, step: int) -> None:
        """Begin to save `step`, of which the run waits for the copy alone."""
        self.metrics.flush()
        self.writer.begin(step, self.session.snapshot, self._meta(step))
        self.saved_step = step

    def _save_last(self, step: int) -> None:
        """Save the step after which nothing is run, so that no copy is needed."""
        self.metrics.flush()
        pending = {slot.name: self.session.read(slot.name) for slot in self.assembly.program.saved}
        self.writer.save(step, {name: future.result() for name, future in pending.items()}, self._meta(step))
        self.saved_step = step

    def _meta(self, step: int) -> dict[str, Any]:
        meta = {
            "experiment_digest": self.digest,
            "cursor": {"microbatch": step * self.experiment.run.microbatches},
            "seed": self.experiment.run.seed,
            "file_text": self.experiment.text,
            "overrides": dict(self.experiment.overrides),
            "included": dict(self.experiment.included),
            "roles": {slot.name: slot.role for slot in self.assembly.program.saved},
        }
        if self.early_stop.rule is not None:
            meta["early_stop"] = self.early_stop.record()
        best = self.experiment.run.checkpoint.best
        if best is not None and best in self.scores:
            meta["scores"] = {best: self.scores[best]}
        return meta

    def _tell_saved(self) -> None:
        """Say in the status file what was published since the last time. Raises: what a write failed with."""
        saved = self.writer.saved()
        if saved is not None:
            self.status.update(last_checkpoint=saved, force=True)
