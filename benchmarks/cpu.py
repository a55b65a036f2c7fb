#!/usr/bin/env python3
"""Training steps on the cpu device beside PyTorch's eager ones, turn by turn in one run.

python benchmarks/cpu.py [--case char mlp conv gpt2] [--threads 2] [--rounds 7] [--interpreter]

Both sides take steps in turns of about a second, in two processes of which one waits, so that a machine that others
use slows both. A step is forward, backward, clipping and the update, on a batch that is there already. Shown are the
least time of a step and the median of the turns' medians, the ratios ours / PyTorch of both, the peak resident memory
of each process, and seconds from the start of the process to the end of the first step.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

STARTED = time.time()
CHECKOUT = Path(__file__).resolve().parents[1]
TURN_S = 1.0

CHAR = CHECKOUT / "examples" / "char-gpt.sx"
GPT2 = CHECKOUT / "examples" / "gpt2.sx"
MLP = """
(defdata drawn (arrays "data.npz"))
(defloader train (rows drawn) :batch 32)
(defmetric mse ((x (f32 _ 64)) (y (f32 _ 64)))
  (mean (square (- (linear (tanh (linear x 64 :name up)) 64 :name down) y))))
(defrun go :loader train :loss mse :clip 1.0 :steps 1000 :optimizer (sgd :rate 0.01))
"""
CONV = """
(defn conv-relu (x out)
  (relu (+ (conv x (param w (f32 3 3 (dim x -1) out) he) :pad 1) (param b (f32 out) 0.0))))
(defmodel net ((image (f32 _ 8 8 1)))
  (let [x (pool (conv-relu (conv-relu image 16 :name one) 32 :name two) :window 2)]
    (linear (rearrange "b h w c -> b (h w c)" x) 10 :name head)))
(defdata drawn (arrays "data.npz"))
(defloader train (rows drawn) :batch 64)
(defmetric nll ((image (f32 _ 8 8 1)) (label (i32 _))) (mean (cross-entropy (net image) label)))
(defrun go :loader train :loss nll :clip 1.0 :steps 1000 :optimizer (adam :rate 0.001))
"""


# Ours.


def our_step(case: str, threads: int, interpret: bool) -> Callable[[], None]:
    """Opens the experiment and gives what takes one step."""
    import numpy as np

    from sexpgpu.backend.protocol import Budget, Call
    from sexpgpu.backend.registry import Compiling, open_device
    from sexpgpu.lang.load import load_experiment
    from sexpgpu.train.initial import initialise
    from sexpgpu.train.phases import assemble
    from sexpgpu.train.schedule import HostSchedule

    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name:
        path, settings = Path(name) / "file.sx", {}
        if case == "mlp":
            path.write_text(MLP)
            data = {"x": rng.normal(size=(64, 64)).astype("f"), "y": rng.normal(size=(64, 64)).astype("f")}
            np.savez(Path(name) / "data.npz", **data)
        elif case == "conv":
            path.write_text(CONV)
            images = rng.normal(size=(64, 8, 8, 1)).astype("f")
            np.savez(Path(name) / "data.npz", image=images, label=rng.integers(0, 10, 64).astype("i4"))
        else:
            path = CHAR if case == "char" else GPT2
            settings = {} if case == "char" else {"batch": "1", "precision": "f32"}
        experiment = load_experiment(path, settings=settings)
    program = assemble(experiment).program
    device = open_device("cpu", threads=threads, compiling=Compiling(interpret))
    session = device.open(device.plan(program, Budget()))
    initialise(experiment, program, session)
    (update,) = experiment.run.updates
    phases = {phase.name: phase for phase in program.phases}
    schedule = HostSchedule(program.schedule)
    given: dict[str, Any] = {}
    for name, type in phases[f"update.{update.name}.first"].feeds.items():
        drawn = (
            rng.integers(0, 10 if case == "conv" else 65, type.shape)
            if type.is_integer
            else rng.normal(size=type.shape)
        )
        given[name] = drawn.astype("i4" if type.is_integer else "f4")
    number = 0

    def step() -> None:
        nonlocal number
        number += 1
        known = {**given, **schedule.at(number)}
        calls = [
            Call(name, {feed: known[feed] for feed in phases[name].feeds})
            for name in (f"update.{update.name}.first", f"update.{update.name}.commit")
        ]
        outputs = session.run(calls).result()
        assert outputs[-1].committed

    return step


# PyTorch's.


def torch_step(case: str, threads: int) -> Callable[[], None]:
    """The same model as a user of PyTorch would write it."""
    import torch
    from torch import nn
    from torch.nn import functional

    torch.set_num_threads(threads)
    torch.manual_seed(0)

    class Block(nn.Module):
        def __init__(self, width: int, heads: int, bias: bool) -> None:
            super().__init__()
            self.heads = heads
            self.before, self.between = nn.LayerNorm(width, bias=bias), nn.LayerNorm(width, bias=bias)
            self.qkv, self.out = nn.Linear(width, 3 * width, bias), nn.Linear(width, width, bias)
            self.up, self.down = nn.Linear(width, 4 * width, bias), nn.Linear(4 * width, width, bias)

        def forward(self, x: Any) -> Any:
            rows, length, width = x.shape
            parts = self.qkv(self.before(x)).chunk(3, dim=2)
            q, k, v = (p.view(rows, length, self.heads, -1).transpose(1, 2) for p in parts)
            seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(seen.transpose(1, 2).reshape(rows, length, width))
            return x + self.down(functional.gelu(self.up(self.between(x)), approximate="tanh"))

    class Language(nn.Module):
        def __init__(self, vocab: int, length: int, layers: int, heads: int, width: int, bias: bool) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(vocab, width), nn.Embedding(length, width)
            self.blocks = nn.Sequential(*[Block(width, heads, bias) for _ in range(layers)])
            self.last = nn.LayerNorm(width, bias=bias)

        def forward(self, tokens: Any) -> Any:
            x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
            return functional.linear(self.last(self.blocks(x)), self.words.weight)

    if case in ("char", "gpt2"):
        sizes = (103, 64, 4, 4, 128, False) if case == "char" else (50304, 1024, 12, 12, 768, True)
        tokens = torch.randint(0, 65, (12 if case == "char" else 1, sizes[1] + 1))
        model: Any = Language(*sizes)
        optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1)

        def loss() -> Any:
            return functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    elif case == "mlp":
        x, y = torch.randn(32, 64), torch.randn(32, 64)
        model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

        def loss() -> Any:
            return functional.mse_loss(model(x), y)

    else:
        images, labels = torch.randn(64, 1, 8, 8), torch.randint(0, 10, (64,))
        model = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
            nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 10),
        )  # fmt: skip
        optimizer = torch.optim.Adam(model.parameters(), lr=0.001)

        def loss() -> Any:
            return functional.cross_entropy(model(images), labels)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


# Turns.


def serve(side: str, case: str, threads: int, interpret: bool) -> None:
    """Take turns: a line on standard input is one; then print the times of its steps in ms."""
    step = torch_step(case, threads) if side == "torch" else our_step(case, threads, interpret)
    step()
    print(json.dumps(time.time() - STARTED), flush=True)
    for _ in range(2):
        step()
    for _ in sys.stdin:
        times: list[float] = []
        while not times or sum(times) < TURN_S * 1e3:
            began = time.perf_counter()
            step()
            times.append((time.perf_counter() - began) * 1e3)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps([statistics.median(times), min(times), peak]), flush=True)


def measured(case: str, threads: int, rounds: int, interpret: bool) -> dict[str, list[Any]]:
    """Of each side: seconds to the first step, then a median, a least time and a peak for each turn."""
    processes, found = {}, {}
    for side in ("ours", "torch"):
        command = [sys.executable, __file__, "--serve", side, "--case", case, "--threads", str(threads)]
        command += ["--interpreter"] if interpret else []
        environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), "OMP_NUM_THREADS": str(threads)}
        processes[side] = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        found[side] = [json.loads(processes[side].stdout.readline())]
    for _ in range(rounds):
        for side, process in processes.items():
            process.stdin.write("\n")
            process.stdin.flush()
            found[side].append(json.loads(process.stdout.readline()))
    for process in processes.values():
        process.stdin.close()
        process.wait()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", nargs="+", default=["char", "mlp", "conv"], choices=["char", "mlp", "conv", "gpt2"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--interpreter", action="store_true", help="ours without kernels")
    parser.add_argument("--serve", choices=["ours", "torch"], help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.serve:
        serve(chosen.serve, chosen.case[0], chosen.threads, chosen.interpreter)
        return
    print(f"{'case':<6}{'ours ms':>16}{'PyTorch ms':>18}{'ratio':>14}{'MiB':>12}{'first s':>12}")
    for case in chosen.case:
        found = measured(case, chosen.threads, chosen.rounds, chosen.interpreter)
        medians = {side: statistics.median([turn[0] for turn in turns[1:]]) for side, turns in found.items()}
        leasts = {side: min([turn[1] for turn in turns[1:]]) for side, turns in found.items()}
        shown = {side: f"{leasts[side]:.2f} {medians[side]:.2f}" for side in found}
        ratio = f"{leasts['ours'] / leasts['torch']:.2f} {medians['ours'] / medians['torch']:.2f}"
        peaks = " ".join([f"{turns[-1][2]:.0f}" for turns in found.values()])
        firsts = " ".join([f"{turns[0]:.1f}" for turns in found.values()])
        print(f"{case:<6}{shown['ours']:>16}{shown['torch']:>18}{ratio:>14}{peaks:>12}{firsts:>12}", flush=True)


if __name__ == "__main__":
    main()
