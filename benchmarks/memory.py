"""Resident memory of runs on the cpu against their plans.

python benchmarks/memory.py [NAME …] [--steps 3]

A process for each: the most by which it grew from before the plan was opened, data and Python's own objects included,
beside the planned peak. The last column is what the growth exceeds 1.05 times the plan by: the constant that the
claim "within 5 % of the plan plus a constant" needs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

CHECKOUT = Path(__file__).resolve().parents[1]
MIB = 1 << 20
FULL = {
    "char-gpt": [],
    "gpt2": ["--set=batch=1", "--set=precision=f32"],
    "topics-gpt": [],
    "digits-conv": [],
}
"""Files that are run at their own size as well."""


def measured(path: Path, options: list[str], steps: int, folder: Path) -> tuple[int, int]:
    """Bytes at the peak of a run, planned and measured."""
    out = folder / "run"
    command = [sys.executable, "-m", "sexpgpu", "run", str(path), "--out", str(out), f"--steps={steps}", "--quiet"]
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    subprocess.run([*command, *options], env=environment, cwd=folder, check=True)
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text("utf-8").splitlines()]
    last = [record for record in records if record.get("annotation") == "memory"][-1]
    return last["planned_bytes"], last["peak_bytes"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="of examples; all by default")
    parser.add_argument("--steps", type=int, default=3)
    chosen = parser.parse_args()
    print(f"{'file':<26}{'planned MiB':>12}{'measured':>10}{'ratio':>7}{'above 1.05 ×':>14}")
    most = 0.0
    for path in sorted((CHECKOUT / "examples").glob("*.sx")):
        text = path.read_text("utf-8")
        if chosen.names and path.stem not in chosen.names:
            continue
        variants = ["smoke"] if re.search(r"^\(defvariant smoke", text, re.MULTILINE) else [""]
        for variant in [*variants, *([""] if path.stem in FULL and variants[0] else [])]:
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                images = np.zeros((600, 64), np.float32)
                np.savez(folder / "digits.npz", image=images, label=np.arange(600, dtype=np.int32) % 10)
                options = [f"--set=digits={folder / 'digits.npz'}"] if "digits.npz" in text else []
                options += ["--variant", variant] if variant else FULL.get(path.stem, [])
                planned, peak = measured(path, options, chosen.steps, folder)
            above = (peak - 1.05 * planned) / MIB
            most = max(most, above)
            title = f"{path.stem} {variant}".strip()
            line = f"{title:<26}{planned / MIB:>12.1f}{peak / MIB:>10.1f}{peak / planned:>7.2f}{above:>14.1f}"
            print(line, flush=True)
    print(f"the constant: {most:.1f} MiB")


if __name__ == "__main__":
    main()
