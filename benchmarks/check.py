"""How long `sexpgpu check` takes: every example, plain and in all variants, and a file of 2,000 lines.

python benchmarks/check.py [--runs 5]

Whole processes, bytecode and files in the caches; the least of several runs, on the wall and of the processor.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(CHECKOUT))

from tests.lang.long_file import long_file  # noqa: E402


def seconds(path: Path, settings: list[str], num_runs: int, environment: dict[str, str]) -> tuple[float, float]:
    """Least wall and processor time of a check, in seconds."""
    wall, processor = [], []
    for _ in range(num_runs + 1):
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        command = [sys.executable, "-m", "sexpgpu", "check", str(path), *settings]
        subprocess.run(command, env=environment, cwd=CHECKOUT, stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        wall.append(time.perf_counter() - began)
        processor.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(wall[1:]), min(processor[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    num_runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        environment |= {"PYTHONPYCACHEPREFIX": str(folder / "pycache"), "OMP_NUM_THREADS": "1"}
        digits = folder / "digits.npz"
        np.savez(digits, image=np.zeros((600, 64), np.float32), label=np.arange(600, dtype=np.int32) % 10)
        long = folder / "long.sx"
        long.write_text(long_file(2000), "utf-8")
        (folder / "words.txt").write_text("some words of text, and some more of them. " * 200, "utf-8")
        print(f"{'file':<18}{'lines':>6}{'wall s':>9}{'processor s':>13}")
        for path in [long, *sorted((CHECKOUT / "examples").glob("*.sx"))]:
            text = path.read_text("utf-8")
            settings = [f"--set=digits={digits}"] if "digits.npz" in text else []
            wall, processor = seconds(path, settings, num_runs, environment)
            print(f"{path.stem:<18}{text.count(chr(10)):>6}{wall:>9.2f}{processor:>13.2f}", flush=True)


if __name__ == "__main__":
    main()
