#!/usr/bin/env python3
"""A GPT-2 124M training step on the cuda device: one microbatch, forward and backward, and the update.

One JSON line per part: the plan, the step, where its time goes. Times are between events, or of waited calls.
Example: python benchmarks/gpt2.py --batch 16 --steps 20
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

from sexpgpu.backend.cuda.device import CudaDevice, open_cuda
from sexpgpu.backend.cuda.lowering import is_library_call
from sexpgpu.backend.cuda.session import CudaSession
from sexpgpu.backend.cuda.traffic import copied_bytes, fewest_bytes, moved_bytes
from sexpgpu.backend.protocol import Budget, Call
from sexpgpu.ir.opdef import Array
from sexpgpu.ir.program import Phase
from sexpgpu.lang.load import load_experiment
from sexpgpu.train.phases import assemble
from sexpgpu.train.schedule import HostSchedule

FILE = Path(__file__).parents[1] / "examples" / "gpt2.sx"
TOKENS_PER_SEQUENCE = 1024
FLOPS_PER_TOKEN = 855.4e6
"""6 N + 12 L C T of the model, as usual."""


def emit(**fields: object) -> None:
    print(json.dumps({"bench": "gpt2", **fields}), flush=True)


def feeds(phase: Phase, schedule: HostSchedule, step: int, rng: np.random.Generator) -> dict[str, Array]:
    """Random tokens, the schedule's scalars, and a stream."""
    found: dict[str, Array] = {}
    host = schedule.at(step)
    for name, type in phase.feeds.items():
        if name in host:
            found[name] = host[name]
        elif name.startswith("batch."):
            found[name] = rng.integers(0, 50304, type.shape).astype(np.int32)
        else:
            found[name] = np.full(type.shape, step, np.int64)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--top", type=int, default=40, help="how many of the slowest actions to list")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    args = parser.parse_args()
    began = time.perf_counter()
    settings = {"batch": str(args.batch), **dict(each.split("=", 1) for each in args.set)}
    experiment = load_experiment(FILE, settings=settings)
    program = assemble(experiment).program
    assembled = time.perf_counter()
    device = open_cuda("")
    opened = time.perf_counter()
    plan = device.plan(program, Budget())
    planned = time.perf_counter()
    session = device.open(plan)
    ready = time.perf_counter()
    emit(
        what="start", device=device.describe(), assemble_s=assembled - began, device_s=opened - assembled,
        plan_s=planned - opened, open_s=ready - planned, planned_bytes=plan.peak_bytes,
        peak_bytes=session.peak_bytes(), device_bytes=session.device_bytes(), parts=plan.parts(),
    )  # fmt: skip
    phases = {phase.name: phase for phase in program.phases}
    schedule = HostSchedule(program.schedule)
    rng = np.random.default_rng(0)
    session.run([Call("initialise", feeds(phases["initialise"], schedule, 1, rng))]).result()
    names = ("update.pretrain.first", "update.pretrain.commit")
    for phase in names:
        lowered = session.lowered[phase]
        steps = plan.phases[phase]
        moved = sum(moved_bytes(steps)) + copied_bytes(steps)
        fewest = fewest_bytes(steps, is_library_call)
        emit(
            what="lowered", phase=phase, actions=len(lowered.actions), kinds=_counts(lowered.kinds),
            moved_bytes=moved, fewest_bytes=fewest,
        )  # fmt: skip
    _time_steps(args, session, phases, schedule, rng, names)
    _time_parts(args, device, session, phases, schedule, rng, names)
    session.close()


def _counts(kinds: tuple[str, ...]) -> dict[str, int]:
    return {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}


def _time_steps(
    args: argparse.Namespace,
    session: CudaSession,
    phases: dict[str, Phase],
    schedule: HostSchedule,
    rng: np.random.Generator,
    names: tuple[str, ...],
) -> None:
    times, host, losses = [], [], []
    for step in range(1, args.steps + 6):
        calls = [Call(name, feeds(phases[name], schedule, step, rng)) for name in names]
        start = time.perf_counter()
        future = session.run(calls)
        enqueued = time.perf_counter()
        first, commit = future.result()
        times.append((time.perf_counter() - start) * 1e3)
        host.append((enqueued - start) * 1e3)
        losses.append(float(first.results["value"]) / max(1.0, float(first.results.get("weight", np.ones(())))))
        assert commit.committed and not first.faults
    timed = times[5:]
    step_ms = statistics.median(timed)
    tokens = args.batch * TOKENS_PER_SEQUENCE
    emit(
        what="step", batch=args.batch, step_ms=step_ms, min_ms=min(timed), max_ms=max(timed),
        first_ms=times[0], host_ms=statistics.median(host[5:]), tokens_per_s=tokens / step_ms * 1e3,
        tflops=tokens * FLOPS_PER_TOKEN / step_ms / 1e9, first_loss=losses[0], last_loss=losses[-1],
        peak_bytes=session.peak_bytes(), device_bytes=session.device_bytes(),
    )  # fmt: skip


def _time_parts(
    args: argparse.Namespace,
    device: CudaDevice,
    session: CudaSession,
    phases: dict[str, Phase],
    schedule: HostSchedule,
    rng: np.random.Generator,
    names: tuple[str, ...],
) -> None:
    for name in names:
        call, times = Call(name, feeds(phases[name], schedule, 1, rng)), []
        for _ in range(12):
            start = time.perf_counter()
            session.run([call]).result()
            times.append((time.perf_counter() - start) * 1e3)
        emit(what="replay", phase=name, ms=statistics.median(times[2:]))
        found = session.time_by_action(Call(name, feeds(phases[name], schedule, 1, rng)))
        by_kind: dict[str, list[float]] = defaultdict(list)
        for kind, _, ms in found:
            by_kind[kind].append(ms)
        total = sum([ms for _, _, ms in found])
        emit(
            what="parts", phase=name, total_ms=total, launches=len(found),
            ms={kind: round(sum(each), 3) for kind, each in by_kind.items()},
            count={kind: len(each) for kind, each in by_kind.items()},
        )  # fmt: skip
        by_label: dict[str, list[float]] = defaultdict(list)
        for kind, label, ms in found:
            by_label[f"{kind} {label}"].append(ms)
        slowest = sorted(by_label.items(), key=lambda each: -sum(each[1]))[: args.top]
        for label, each in slowest:
            emit(what="slow", phase=name, label=label, ms=round(sum(each), 4), count=len(each))


if __name__ == "__main__":
    main()
