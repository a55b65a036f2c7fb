"""All forms of expressions in one table: what the elaborator looks a head up in before it thinks of a call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sexpgpu.lang.loops import LOOPS
from sexpgpu.lang.recompute import RECOMPUTE
from sexpgpu.lang.special import SPECIALS
from sexpgpu.lang.storage import STORAGE

EXPRESSIONS: Mapping[str, Any] = {**SPECIALS, **STORAGE, **LOOPS, **RECOMPUTE}
