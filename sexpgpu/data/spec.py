"""Descriptions of data sets, as `defdata` writes them: the first stop of data on its way to a batch.

A description says where the data lies and how it is read; it opens nothing. A path may be a glob. A
relative path is looked up beside the experiment's file first and, where nothing matches there, in the
current directory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PYTHON_TOPICS = "python:topics"
"""The path of the text that every Python carries: the help topics of `pydoc_data`, sorted by name."""


@dataclass(frozen=True, slots=True)
class TextSpec:
    """UTF-8 text cut into characters, or any file cut into bytes.

    By characters a CRLF line end reads as LF and a byte order mark is dropped, so that one text has one
    vocabulary on every system; by bytes the file is taken as it is. Several matches of a glob are joined in
    sorted order.
    """

    path: str
    by: Literal["characters", "bytes"] = "characters"


@dataclass(frozen=True, slots=True)
class TokensSpec:
    """Shards of token ids: raw uint16, or with the 256-word header that `llm.c` writes (uint16 or uint32)."""

    path: str
    vocabulary: int


@dataclass(frozen=True, slots=True)
class ArraysSpec:
    """Arrays of equal row count: the members of an `.npz`, or an `.npy` as a field named by its stem."""

    path: str


DataSpec = TextSpec | TokensSpec | ArraysSpec
