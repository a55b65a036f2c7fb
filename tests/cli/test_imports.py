"""`check` starts fast: it imports nothing that it does not need."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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


def test_looking_at_runs_needs_neither_the_language_nor_a_device(tmp_path: Path) -> None:
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "runs" / "a" / "run.json").write_text("{}")
    for command in (["runs"], ["report", "a"], ["checkpoints", "a"], ["diff", "a", "a"]):
        found = subprocess.run(
            [sys.executable, "-c", PROGRAM, *command],
            env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        loaded = found.stderr.split()
        assert "sexpgpu.look.record" in loaded
        for name in ("sexpgpu.lang", "sexpgpu.backend", "sexpgpu.data", "PIL"):
            assert name not in loaded, (command, name)
