"""What is known of a run before its first step: `run.json`, written by `sexpgpu run`, read by those that look at runs.

    {"file": "a.sx", "overrides": {…}, "device": "cpu", …, "sessions": [{"began": "2026-…", "after": 0}, …]}

A session is one process: a resume adds one. The other fields are those of the newest session.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sexpgpu.train import files

if TYPE_CHECKING:  # who looks at runs needs no language
    from sexpgpu.lang.experiment import Experiment


def experiment_facts(experiment: Experiment, last_step: int) -> dict[str, Any]:
    """What the file says of the run, as plain data. last_step: where this session ends, at the latest."""
    run = experiment.run
    return {
        "file": experiment.path,
        "included": dict(experiment.included),
        "overrides": dict(experiment.overrides),
        "run": run.name,
        "losses": {update.name: update.objective.name for update in run.updates},
        "diagnostics": [rule.name for rule in run.diagnose],
        "steps": last_step,
        "microbatches": run.microbatches,
        "seed": run.seed,
        "checkpoint": asdict(run.checkpoint),
        "stop": None if run.stop is None else asdict(run.stop),
        "parameters": experiment.num_parameters,
        "tensors": len(experiment.parameters),
    }


def write_facts(path: Path, facts: Mapping[str, Any], now_s: float, after_step: int) -> None:
    """Write `facts`, with one more session: it begins at `now_s` (seconds since the epoch) after `after_step`.

    Raises: E-IO-001
    """
    before = read_facts(path).get("sessions", []) if after_step else []
    began = datetime.datetime.fromtimestamp(now_s, datetime.UTC).isoformat(timespec="seconds")
    record = {**facts, "sessions": [*before, {"began": began, "after": after_step}]}
    text = json.dumps(record, indent=1, ensure_ascii=False) + "\n"
    files.replace_atomic(path, text.encode("utf-8", "backslashreplace"))  # half a surrogate pair as JSON's own escape


def read_facts(path: Path) -> dict[str, Any]:
    """The facts of a run; empty where there are none, or none that can be read as such.

    Raises: E-IO-001
    """
    if not path.exists():
        return {}
    with files.explaining("read", path):
        data = path.read_bytes()
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
