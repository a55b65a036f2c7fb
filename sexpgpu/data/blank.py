"""Data of no meaning in place of what is missing, for those who check a file without running it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sexpgpu.data.codec import ByteCodec, Codec, IdCodec
from sexpgpu.data.dataset import NUMPY_TYPES, Arrays, Dataset, TokenStream
from sexpgpu.data.ids import HeldShard, ShardedIds
from sexpgpu.data.spec import ArraysSpec, DataSpec, TextSpec, TokensSpec

BLANK_IDS, BLANK_DOCUMENT, BLANK_ROWS = 2**30, 2**24, 2**20
"""How many ids, ids of what has documents, and rows there are; they take no memory, but rows packed of documents do."""


def blank(spec: DataSpec, fields: Mapping[str, tuple[str, tuple[int, ...]]]) -> Dataset | None:
    """Zeros: ids with the vocabulary of `spec`, which of a text is that of bytes; of arrays `fields`, by name their
    dtype and the shape of a row. None for arrays of no known field, and for tables, lines and images."""
    codec: Codec
    size = BLANK_DOCUMENT
    match spec:
        case TokensSpec(vocabulary=vocabulary, ends=ends):
            codec = IdCodec(vocabulary)
            size = BLANK_IDS if ends is None else size
        case TextSpec():
            codec = ByteCodec()
        case ArraysSpec():
            zeros = {n: np.zeros((), NUMPY_TYPES[dtype]) for n, (dtype, _) in fields.items()}
            stored = {n: np.broadcast_to(zeros[n], (BLANK_ROWS, *shape)) for n, (_, shape) in fields.items()}
            return Arrays(spec, stored, ()) if stored else None
        case _:
            return None
    ids = np.broadcast_to(np.zeros((), np.uint8), (size,))
    documents = None if size == BLANK_IDS else np.array([size])
    return TokenStream(spec, ShardedIds([HeldShard(spec.path, ids)]), codec, (), documents)
