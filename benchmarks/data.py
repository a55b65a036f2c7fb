"""Windows from a token shard of a gigabyte: bytes of the shard a second, memory, and the time to the first batch.

    python benchmarks/data.py [--length 1024] [--batch 32] [--seconds 5]

The shard is made in a temporary folder and removed. Each figure comes from a process of its own; memory is the peak of
one that reads the shard for `--seconds`, less that of one that reads a shard of a megabyte.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

VOCABULARY = 50304
SHARD_BYTES = 1 << 30
NEEDED = {"MB/s": 200.0, "MB": 200.0, "s": 0.5}


def write_shard(path: Path, num_bytes: int) -> None:
    block = np.random.default_rng(0).integers(0, VOCABULARY, 1 << 23).astype("<u2")
    with path.open("wb") as file:
        for _ in range(-(-num_bytes // block.nbytes)):
            file.write(block.tobytes()[: num_bytes - file.tell()])


def read(shard: Path, length: int, batch: int, seconds: float, shuffle: bool) -> dict[str, float]:
    """What one process sees; its imports are no part of the time to the first batch."""
    from sexpgpu.data import Loader, Prefetcher, TokensSpec, Windows, open_dataset

    began = time.perf_counter()
    dataset = open_dataset(TokensSpec(str(shard), VOCABULARY), shard.parent)
    loader = Loader("train", Windows(dataset, length), batch, shuffle)
    with Prefetcher(loader.batch, 0) as batches:
        next(batches)
        first_s = time.perf_counter() - began
        num_batches = 0
        began, cpu = time.perf_counter(), time.process_time()
        while time.perf_counter() - began < seconds:
            next(batches)
            num_batches += 1
        wall_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    read_mb = num_batches * batch * (length + 1) * 2 / 1e6
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6
    return {"first_s": first_s, "mb_per_s": read_mb / wall_s, "mb_per_cpu_s": read_mb / cpu_s, "peak_mb": peak_mb}


def measured(shard: Path, arguments: argparse.Namespace, shuffle: bool) -> dict[str, float]:
    command = [
        sys.executable, __file__, "--shard", str(shard), "--length", str(arguments.length),
        "--batch", str(arguments.batch), "--seconds", str(arguments.seconds), *(["--shuffle"] if shuffle else []),
    ]  # fmt: skip
    return dict(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--shard", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--shuffle", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.shard is not None:
        found = read(arguments.shard, arguments.length, arguments.batch, arguments.seconds, arguments.shuffle)
        print(json.dumps(found))
        return 0
    missed = False
    with tempfile.TemporaryDirectory() as name:
        large, small = Path(name, "large.bin"), Path(name, "small.bin")
        write_shard(large, SHARD_BYTES)
        write_shard(small, 1 << 20)
        for shuffle in (True, False):
            without, found = measured(small, arguments, shuffle), measured(large, arguments, shuffle)
            more_mb = found["peak_mb"] - without["peak_mb"]
            print(f"{'shuffled' if shuffle else 'in order'}: {found['mb_per_s']:.0f} MB/s of the shard "
                  f"({found['mb_per_cpu_s']:.0f} MB per second of processor), {more_mb:.0f} MB of memory more than "
                  f"without, first batch after {found['first_s']:.3f} s")  # fmt: skip
            missed |= found["mb_per_s"] < NEEDED["MB/s"] or more_mb > NEEDED["MB"] or found["first_s"] > NEEDED["s"]
    print("a figure is beyond its bound: 200 MB/s, 200 MB, 0.5 s" if missed else "all within 200 MB/s, 200 MB, 0.5 s")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
