#!/usr/bin/env python3
"""Degrees of stacking and planned memory on the cuda device: two tables of 80 columns.

The degrees: `examples/gpt2.sx` at B = 4 with four microbatches a step, run by 1, 2 and 4 of them a call: the same
losses to rounding, the same products with more rows. Memory: five examples, the plan against what the allocator and
the driver say.
Example: python benchmarks/degrees.py --steps 12
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from pathlib import Path
from typing import Any

from sexpgpu.backend.cuda.device import CudaDevice, open_cuda
from sexpgpu.backend.protocol import Budget
from sexpgpu.ir.ops.contract import flop_sizes
from sexpgpu.ir.program import Program
from sexpgpu.lang.load import load_experiment
from sexpgpu.train.loop import Stepper
from sexpgpu.train.phases import assemble

EXAMPLES = Path(__file__).parents[1] / "examples"
GIB = 1 << 30
MEMORY: tuple[tuple[str, dict[str, str]], ...] = (
    ("topics-gpt.sx", {}),
    ("char-gpt.sx", {}),
    ("names-bigram.sx", {}),
    ("tiny-adam.sx", {}),
    ("gpt2.sx", {"batch": "16", "microbatches": "2"}),
)


def products(program: Program) -> Counter[int]:
    """The products of a training call by their size, m·n·k with the batch."""
    graph = program.phase("update.pretrain.first").graph
    found: Counter[int] = Counter()
    for node in graph.walk():
        if node.op == "product":
            size = 1
            for n in flop_sizes(node).values():
                size *= n
            found[size] += 1
    return found


def degrees(device: CudaDevice, num_steps: int) -> None:
    print(f"{'degree':<8}{'step ms':>9}{'first losses':>34}{'products':>10}{'of k times the size':>21}")
    alone: Counter[int] = Counter()
    for k in (1, 2, 4):
        experiment = load_experiment(EXAMPLES / "gpt2.sx", settings={"batch": "4", "microbatches": "4"})
        assembly = assemble(experiment, stacking=k)
        found = products(assembly.program)
        alone = alone or found
        session = device.open(device.plan(assembly.program, Budget()))
        stepper = Stepper(experiment, assembly, session, experiment.run.steps)
        stepper.initialise()
        losses, times = [], []
        for step in range(1, num_steps + 1):
            began = time.perf_counter()
            losses.append(stepper.step(step)["pretrain"].loss)
            times.append((time.perf_counter() - began) * 1e3)
        stepper.close()
        session.close()
        same = found == Counter({size * k: count for size, count in alone.items()})
        shown = " ".join(f"{loss:.6f}" for loss in losses[:3])
        print(f"{k:<8}{statistics.median(times[4:]):>9.2f}{shown:>34}{found.total():>10}{'yes' if same else 'no':>21}")


def memory(device: CudaDevice) -> None:
    print(f"\n{'file':<20}{'planned GiB':>13}{'allocator GiB':>15}{'driver GiB':>12}{'allocator/plan':>16}")
    for file, settings in MEMORY:
        experiment = load_experiment(EXAMPLES / file, settings=settings)
        assembly = assemble(experiment)
        free_bytes = device.free_bytes()
        plan = device.plan(assembly.program, Budget())
        session: Any = device.open(plan)
        stepper = Stepper(experiment, assembly, session, experiment.run.steps)
        stepper.initialise()
        for step in range(1, 4):
            stepper.step(step)
        planned, held, driver = plan.peak_bytes, session.peak_bytes(), free_bytes - device.free_bytes()
        stepper.close()
        session.close()
        figures = f"{planned / GIB:>13.4f}{held / GIB:>15.4f}{driver / GIB:>12.4f}{held / planned:>16.4f}"
        print(f"{file:<20}{figures}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12)
    args = parser.parse_args()
    device = open_cuda("")
    degrees(device, args.steps)
    memory(device)


if __name__ == "__main__":
    main()
