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


@dataclass(frozen=True, slots=True)
class TableSpec:
    """CSV with a header, or TSV where the file's name ends so.

    categories: for columns of words, what they may hold; the place of a word is its id. columns: the ones to read;
    None reads all.
    """

    path: str
    categories: tuple[tuple[str, tuple[str, ...]], ...] = ()
    columns: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class LinesSpec:
    """UTF-8 text of which every line that is not empty is an example of `length` tokens, cut or filled with line ends.

    Line ends and byte order marks are read as in `TextSpec`.
    """

    path: str
    length: int
    by: Literal["characters", "bytes"] = "characters"


@dataclass(frozen=True, slots=True)
class ImagesSpec:
    """Pictures of a folder, at any depth, or of a pattern; the folder that holds a picture names its class.

    size: height and width to which every picture is resized; None: all have the same. channels: 3, or 1 for grey.
    """

    path: str
    size: tuple[int, int] | None = None
    channels: int = 3


DataSpec = TextSpec | TokensSpec | ArraysSpec | TableSpec | LinesSpec | ImagesSpec
