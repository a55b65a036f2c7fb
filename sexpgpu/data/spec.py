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
class TokenizerSpec:
    """A file that the library `tokenizers` writes, usually called `tokenizer.json`."""

    path: str


@dataclass(frozen=True, slots=True)
class TiktokenSpec:
    """A file of ranks as the library `tiktoken` reads it: on each line a token in base 64 and its id.

    pattern: the expression that cuts text before tokens are sought. special: texts that are one token each, with ids.
    """

    path: str
    pattern: str
    special: tuple[tuple[str, int], ...] = ()


Tokenizer = TokenizerSpec | TiktokenSpec
By = Literal["characters", "bytes"] | Tokenizer


@dataclass(frozen=True, slots=True)
class TextSpec:
    """UTF-8 text cut into characters or by a tokenizer, or any file cut into bytes.

    A CRLF line end reads as LF and a byte order mark is dropped, so that one text is the same on every system; by bytes
    the file is taken as it is. Several matches of a glob are joined in sorted order. ends: the text that ends a
    document, and belongs to it; None: each file is a document.
    """

    path: str
    by: By = "characters"
    ends: str | None = None


@dataclass(frozen=True, slots=True)
class TokensSpec:
    """Shards of token ids: raw uint16 or uint32, `.npy`, or with the 256-word header that `llm.c` writes.

    ends: the id that ends a document, and belongs to it. bits: of an id in a raw file, 16 or 32. by: the tokenizer
    that wrote the ids, for prompts and what is generated; None: texts are ids in decimal.
    """

    path: str
    vocabulary: int
    ends: int | None = None
    bits: int = 16
    by: Tokenizer | None = None


@dataclass(frozen=True, slots=True)
class ArraysSpec:
    """Arrays of equal row count: the members of an `.npz`, or an `.npy` as a field named by its stem.

    missing: whether NaN is data, and stands for what is missing; else it is a fault.
    """

    path: str
    missing: bool = False


@dataclass(frozen=True, slots=True)
class TableSpec:
    """CSV with a header, TSV where the file's name ends so, Parquet where it ends in `.parquet`.

    categories: for columns of words, what they may hold; the place of a word is its id. columns: the ones to read;
    None reads all. missing: whether a value may be missing, and is NaN then; else it is a fault.
    """

    path: str
    categories: tuple[tuple[str, tuple[str, ...]], ...] = ()
    columns: tuple[str, ...] | None = None
    missing: bool = False


@dataclass(frozen=True, slots=True)
class LinesSpec:
    """UTF-8 text of which every line that is not empty is an example of `length` tokens, cut or filled with line ends.

    Line ends and byte order marks are read as in `TextSpec`; a tokenizer's rows are filled with its id 0.
    """

    path: str
    length: int
    by: By = "characters"


@dataclass(frozen=True, slots=True)
class ImagesSpec:
    """Pictures of a folder, at any depth, or of a pattern; the folder that holds a picture names its class.

    size: height and width to which every picture is resized; None: all have the same. channels: 3, or 1 for grey.
    """

    path: str
    size: tuple[int, int] | None = None
    channels: int = 3


DataSpec = TextSpec | TokensSpec | ArraysSpec | TableSpec | LinesSpec | ImagesSpec
