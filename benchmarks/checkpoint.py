#!/usr/bin/env python3
"""What saving costs a run: GPT-2 124M with its optimizer, 1.5 GB, real steps of a short sequence, saved as they go on.

Steps without a write under way and steps beside one take turns, so that a busy machine slows both. One JSON line per
checkpoint, and one for all: the pause (the copy in memory, in ms) and the processor time in it, which other work on the
machine does not lengthen; how long the write took; how much slower a step was beside it (in percent, of medians).
Example: python benchmarks/checkpoint.py --checkpoints 5 --folder /tmp/checkpoints
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

from sexpgpu.backend.protocol import Budget
from sexpgpu.backend.registry import open_device
from sexpgpu.lang.load import load_experiment
from sexpgpu.train.loop import Stepper
from sexpgpu.train.phases import assemble
from sexpgpu.train.store import open_store
from sexpgpu.train.writer import CheckpointWriter

FILE = Path(__file__).parents[1] / "examples" / "gpt2.sx"


def emit(**fields: object) -> None:
    print(json.dumps({"bench": "checkpoint", **fields}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4, help="steps without a write before each checkpoint")
    parser.add_argument("--folder", help="a folder or an s3:// address; default a temporary folder")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--set", action="append", default=["batch=1", "seq=32"], metavar="NAME=VALUE")
    args = parser.parse_args()
    experiment = load_experiment(FILE, settings=dict(each.split("=", 1) for each in args.set))
    assembly = assemble(experiment)
    device = open_device(args.device)
    session = device.open(device.plan(assembly.program, Budget(snapshot=True)))
    stepper = Stepper(experiment, assembly, session, experiment.run.steps)
    stepper.initialise()
    saved = assembly.program.saved
    meta = {
        "experiment_digest": "",
        "cursor": {},
        "seed": 0,
        "file_text": experiment.text,
        "overrides": {},
        "roles": {slot.name: slot.role for slot in saved},
    }
    at = 0

    def step() -> float:
        nonlocal at
        at += 1
        began = time.perf_counter()
        stepper.step(at)
        return time.perf_counter() - began

    for _ in range(3):
        step()
    pauses, work, slower = [], [], []
    with tempfile.TemporaryDirectory() as temporary:
        writer = CheckpointWriter(open_store(args.folder or temporary), keep=1)
        for number in range(args.checkpoints):
            alone = [step() for _ in range(args.steps)]
            began, worked = time.perf_counter(), time.process_time()
            writer.begin(at, session.snapshot, meta)
            pauses.append(time.perf_counter() - began)
            work.append(time.process_time() - worked)
            beside: list[float] = []
            while writer.saved() is None:
                beside.append(step())
            took = time.perf_counter() - began
            alone += [step() for _ in range(args.steps)]
            slower.append(statistics.median(beside) / statistics.median(alone) - 1)
            emit(
                number=number,
                pause_ms=round(pauses[-1] * 1e3, 1),
                pause_cpu_ms=round(work[-1] * 1e3, 1),
                write_s=round(took, 2),
                step_ms=round(statistics.median(alone) * 1e3, 1),
                step_beside_ms=round(statistics.median(beside) * 1e3, 1),
                slower_percent=round(slower[-1] * 100, 1),
            )
    num_bytes = sum(copy.nbytes for copy in session.snapshot().values())
    emit(
        what="all",
        gigabytes=round(num_bytes / 1e9, 3),
        pause_ms=round(statistics.median(pauses) * 1e3, 1),
        most_pause_ms=round(max(pauses) * 1e3, 1),
        pause_cpu_ms=round(statistics.median(work) * 1e3, 1),
        slower_percent=round(statistics.median(slower) * 100, 1),
    )
    stepper.close()
    session.close()


if __name__ == "__main__":
    main()
