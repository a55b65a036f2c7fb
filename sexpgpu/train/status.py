"""The status file of a run: `status.json`, one small object that says where the run stands now.

The loop writes it; `report`, dashboards and shell scripts read it. It is replaced whole, so a reader never
sees half of it.
"""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from sexpgpu.train import files
from sexpgpu.train.metrics import plain_number

Field: TypeAlias = str | int | float | np.number[Any] | None

FIELDS = (
    "phase",
    "step",
    "steps",
    "loss",
    "tokens_per_s",
    "step_ms",
    "eta_s",
    "last_checkpoint",
    "error_code",
    "stopped",
)
"""The fields that a caller sets; `heartbeat` (ISO 8601, UTC) is written with them."""

_INTERVAL_S = 0.5  # at most two writes a second


class StatusFile:
    """Writes `status.json`; fields keep their value until they are set again.

    `clock` gives seconds since the epoch, as `time.time` does.
    """

    def __init__(self, path: str | os.PathLike[str], clock: Callable[[], float]) -> None:
        self._path = Path(path)
        self._clock = clock
        self._fields: dict[str, Field] = dict.fromkeys(FIELDS)
        self._written_s: float | None = None
        files.remove_leftovers(self._path)

    def update(self, *, force: bool = False, **fields: Field) -> None:
        """Set fields; write the file unless it was written within half a second; `force` writes it anyway.

        What is set without being written goes out with the next write.

        Raises: E-IO-001
        """
        assert fields.keys() <= set(FIELDS), f"unknown status fields {sorted(fields.keys() - set(FIELDS))}"
        self._fields.update(fields)
        now_s = self._clock()
        # A clock that was set back must not silence the file, hence both bounds.
        if not force and self._written_s is not None and 0 <= now_s - self._written_s < _INTERVAL_S:
            return
        heartbeat = datetime.datetime.fromtimestamp(now_s, datetime.UTC).isoformat(timespec="milliseconds")
        record = {name: plain_number(value) for name, value in self._fields.items()} | {
            "heartbeat": heartbeat
        }
        files.replace_atomic(self._path, (json.dumps(record, indent=1) + "\n").encode())
        self._written_s = now_s


def mark_ended(path: str | os.PathLike[str], phase: str, code: str | None = None) -> None:
    """Set `phase` and `error_code` in the status file of a run that stopped; the rest stays as it was.

    Raises: E-IO-001
    """
    file = Path(path)
    if not file.exists():
        return
    record = json.loads(file.read_text("utf-8")) | {"phase": phase, "error_code": code}
    files.replace_atomic(file, (json.dumps(record, indent=1) + "\n").encode())
