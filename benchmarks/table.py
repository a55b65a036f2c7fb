#!/usr/bin/env python3
"""One table of 80 columns from the JSON lines of `gpt2.py` and `gpt2_torch.py`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

GIB = 1 << 30


def records(folder: Path) -> list[dict[str, Any]]:
    found = []
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            if line.startswith("{"):
                found.append(json.loads(line))
    return found


def main() -> None:
    found = records(Path(sys.argv[1]))
    steps = [r for r in found if r.get("what") == "step" or r["bench"] == "gpt2_torch"]
    ours = next((r["step_ms"] for r in steps if r["bench"] == "gpt2"), None)
    print(f"{'GPT-2 124M, one step':<28}{'ms':>9}{'tokens/s':>11}{'TFLOP/s':>9}{'GiB':>7}{'ours is':>12}")
    for r in steps:
        name = f"sexpgpu, B = {r['batch']}" if r["bench"] == "gpt2" else f"PyTorch {r['mode']}, B = {r['batch']}"
        ratio = "" if ours is None or r["bench"] == "gpt2" else f"{ours / r['step_ms']:.2f} × as long"
        gib = r["peak_bytes"] / GIB
        print(f"{name:<28}{r['step_ms']:>9.2f}{r['tokens_per_s']:>11,.0f}{r['tflops']:>9.0f}{gib:>7.1f}{ratio:>16}")
    replays = {r["phase"]: r["ms"] for r in found if r.get("what") == "replay"}
    for r in found:
        if r.get("what") == "lowered":
            moved, fewest = r["moved_bytes"] / 1e9, r["fewest_bytes"] / 1e9
            print(f"\n{r['phase']}: {moved:.1f} GB moved, {fewest:.1f} at least")
        if r.get("what") == "parts":
            replay = f"{replays[r['phase']]:.2f} ms as a graph, " if r["phase"] in replays else ""
            print(f"\n{r['phase']}: {replay}{r['total_ms']:.2f} ms action by action, {r['launches']} launches")
            for kind, ms in sorted(r["ms"].items(), key=lambda each: -each[1]):
                print(f"  {kind:<26}{ms:>9.2f}{r['count'][kind]:>11}")
        if r.get("what") == "start":
            shown = {key: round(r[key], 2) for key in ("assemble_s", "device_s", "plan_s", "open_s")}
            planned, held = r["planned_bytes"] / GIB, r["device_bytes"] / GIB
            print(f"\nstart, seconds: {shown}; plan {planned:.2f} GiB, held {held:.2f}")


if __name__ == "__main__":
    main()
