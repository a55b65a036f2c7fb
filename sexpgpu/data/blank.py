"""Data of no meaning in place of missing text and tokens, for those who check a file without running it."""

from __future__ import annotations

import numpy as np

from sexpgpu.data.codec import ByteCodec, Codec, IdCodec
from sexpgpu.data.dataset import TokenStream
from sexpgpu.data.ids import Shard, ShardedIds
from sexpgpu.data.spec import DataSpec, TextSpec, TokensSpec

BLANK_IDS = 2**30
"""How many ids there are; they take no memory."""


def blank(spec: DataSpec) -> TokenStream | None:
    """Zeros with the vocabulary of `spec`, which of a text is that of bytes; None for arrays, whose fields only the
    file knows."""
    codec: Codec
    match spec:
        case TokensSpec(vocabulary=vocabulary):
            codec = IdCodec(vocabulary)
        case TextSpec():
            codec = ByteCodec()
        case _:
            return None
    ids = np.broadcast_to(np.zeros((), np.uint8), (BLANK_IDS,))
    return TokenStream(spec, ShardedIds([Shard(spec.path, ids)]), codec, ())
