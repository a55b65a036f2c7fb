"""Lines: a text file of which every line is an example.

Flow: `dataset.open_dataset` makes `Lines` of what this reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sexpgpu.data.codec import ByteCodec, CharacterCodec, character_ids
from sexpgpu.data.files import read_bytes, read_text
from sexpgpu.data.spec import LinesSpec

END = "\n"


def read_lines(spec: LinesSpec, paths: Sequence[Path]) -> tuple[CharacterCodec | ByteCodec, dict[str, NDArray[Any]]]:
    """The codec, and the fields: `tokens` i32 `[N, length]`, `mask` bool `[N, length]`, true where a token of the line
    stands, `length` i32 `[N]`, how many do. What a line does not fill holds line ends, which every vocabulary has.

    Raises: E-DATA-002 (unreadable, not UTF-8).
    """
    codec: CharacterCodec | ByteCodec
    ids: NDArray[np.integer]
    if spec.by == "bytes":
        whole = b"".join(read_bytes(path).replace(b"\r\n", b"\n") + b"\n" for path in paths)
        codec, ids = ByteCodec(), np.frombuffer(whole, np.uint8)
    else:
        codec, (ids,) = character_ids(["".join(read_text(path) + END for path in paths)])
    (end,) = codec.encode(END)
    ends = np.flatnonzero(ids == end)
    begins = np.concatenate([[0], ends[:-1] + 1])
    lengths = (ends - begins)[ends > begins]
    begins = begins[ends > begins]
    lengths = np.minimum(lengths, spec.length).astype(np.int32)
    mask_NT = np.arange(spec.length) < lengths[:, None]
    tokens_NT = np.full(mask_NT.shape, end, ids.dtype)
    for row, begin, length in zip(tokens_NT, begins.tolist(), lengths.tolist(), strict=True):
        row[:length] = ids[begin : begin + length]
    return codec, {"tokens": tokens_NT, "mask": mask_NT, "length": lengths}
