"""Stream keys: where the random draws of a phase begin.

A stream is keyed by (seed, phase, update, step, global microbatch); the path of a call and the trip count are mixed
in on the device. So a draw depends on nothing else: not on stacking, ranks, or what was drawn before.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np


def stream_key(seed: int, phase: str, *counters: int) -> np.int64:
    """A 64-bit key."""
    text = "/".join([str(seed), phase, *map(str, counters)])
    return np.int64(int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little", signed=True))
