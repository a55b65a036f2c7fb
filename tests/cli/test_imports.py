"""`check` starts fast: it imports nothing that it does not need."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
NEEDLESS = (
    "PIL",
    "rich",
    "safetensors",
    "torch",
    "concurrent",
    "asyncio",
    "multiprocessing",
    "sexpgpu.backend",
    "sexpgpu.plan",
    "sexpgpu.train.loop",
    "sexpgpu.train.checkpoint",
    "sexpgpu.train.phases",
)
PROGRAM = """
import sys
from sexpgpu.cli.main import main
main(sys.argv[1:], standalone_mode=False)
print("\\n".join(sys.modules), file=sys.stderr)
"""


def test_check_imports_no_more_than_it_needs(tmp_path: Path) -> None:
    example = str(CHECKOUT / "examples" / "tiny-adam.sx")
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM, "check", example],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        check=True,
    )
    modules = found.stderr.splitlines()
    needless = [m for m in modules if any(m == n or m.startswith(f"{n}.") for n in NEEDLESS)]
    assert not needless


@pytest.mark.slow
def test_check_of_a_large_file_takes_little_time(tmp_path: Path) -> None:
    """Processor time, which other work of the machine changes less than the time on the wall."""
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), "PYTHONPYCACHEPREFIX": str(tmp_path)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    times_s = []
    for _ in range(4):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, "-m", "sexpgpu", "check", str(CHECKOUT / "examples" / "gpt2.sx")],
            env=environment,
            capture_output=True,
            check=True,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times_s.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(times_s[1:]) < 0.7, times_s
