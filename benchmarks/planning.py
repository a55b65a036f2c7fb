"""How long the way from a file to a plan takes: the 12-layer model of examples/gpt2.sx, for a cpu and for a card.

python benchmarks/planning.py [--runs 5] [--stacking 1]

Each run is a process of its own, so that nothing is there already; shown is the least of several, part by part, in ms
of the processor: all is done by one thread, so that is the time on a machine with nothing else to do. No card is
needed: the one planned for is of the tests.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(CHECKOUT))
MODEL = CHECKOUT / "examples" / "gpt2.sx"
LIMIT_MS = 1500


def timed(spent: dict[str, float], name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, whose time is added to `spent`, and taken from the part that called it."""

    def call(*args: Any, **kwargs: Any) -> Any:
        outer = sum(spent.values())
        began = time.process_time()
        result = function(*args, **kwargs)
        inner = sum(spent.values()) - outer
        spent[name] = spent.get(name, 0.0) + 1e3 * (time.process_time() - began) - inner
        return result

    return call


def measure(device: str, stacking: int) -> dict[str, float]:
    """Milliseconds of each part, in this process."""
    from sexpgpu.backend.cpu.device import CpuDevice
    from sexpgpu.backend.cpu.native.compiler import find_compiler
    from sexpgpu.backend.cuda.device import CudaDevice
    from sexpgpu.backend.protocol import Budget
    from sexpgpu.cli.common import load
    from sexpgpu.cli.main import set_collection
    from sexpgpu.train import phases
    from sexpgpu.transform import passes
    from tests.cuda.fake import GIB, FakeDriver, toolbox

    gc.collect()
    set_collection()
    spent: dict[str, float] = {}
    passes.raise_composites = timed(spent, "raise", passes.raise_composites)
    passes.stack = timed(spent, "stack", passes.stack)
    phases.differentiate = timed(spent, "autodiff", phases.differentiate)
    card = CudaDevice(toolbox(FakeDriver(free_bytes=400 * GIB)))
    chosen: Any = card if device == "cuda" else CpuDevice(threads=2, compiler=find_compiler(None))
    settings = () if stacking == 1 else (f"microbatches={stacking}",)
    experiment = timed(spent, "check", load)(MODEL, None, settings, None)
    assembly = timed(spent, "phases", phases.assemble)(experiment, stacking=stacking)
    timed(spent, "plan", chosen.plan)(assembly.program, Budget(400 * GIB))
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--stacking", type=int, default=1, help="microbatches in one call")
    parser.add_argument("--one", choices=["cpu", "cuda"], help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        print(json.dumps(measure(chosen.one, chosen.stacking)))
        return
    names = ["check", "raise", "stack", "autodiff", "phases", "plan"]
    print(f"{'ms':<8}" + "".join([f"{name:>10}" for name in names]) + f"{'all':>10}")
    for device in ("cpu", "cuda"):
        command = [sys.executable, __file__, "--one", device, "--stacking", str(chosen.stacking)]
        environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
        found = []
        for _ in range(chosen.runs):
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True)
            found.append(json.loads(done.stdout))
        best = min(found, key=lambda spent: sum(spent.values()))
        total = sum(best.values())
        line = f"{device:<8}" + "".join([f"{best.get(name, 0.0):>10.0f}" for name in names]) + f"{total:>10.0f}"
        print(line + (f"   above {LIMIT_MS}" if total > LIMIT_MS else ""), flush=True)


if __name__ == "__main__":
    main()
