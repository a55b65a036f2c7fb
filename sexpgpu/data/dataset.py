"""Opened data sets: what views cut windows and rows from.

A data set is either a stream of token ids with a codec, or named arrays of equal row count. Opening reads
headers and samples; the bulk stays on disk as memory maps. Text by characters and lines are held as ids, tables as
arrays.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sexpgpu.data.codec import ByteCodec, CharacterCodec, Codec, IdCodec, character_ids
from sexpgpu.data.faults import DAMAGED, MISSING, ROWS_DISAGREE, TOO_SHORT, count, fail
from sexpgpu.data.files import fail_unreadable, find_files, identify_bytes, identify_files, read_text
from sexpgpu.data.ids import SAMPLED_IDS, Shard, ShardedIds, check_vocabulary
from sexpgpu.data.images import Images, open_images
from sexpgpu.data.lines import read_lines
from sexpgpu.data.npy import map_npy, map_npz
from sexpgpu.data.spec import (
    PYTHON_TOPICS,
    ArraysSpec,
    DataSpec,
    ImagesSpec,
    LinesSpec,
    TableSpec,
    TextSpec,
    TokensSpec,
)
from sexpgpu.data.tables import read_table
from sexpgpu.data.tokens import open_shard

PYTHON_PREFIX = "python:"
# (kind, itemsize) as stored -> the type that a program sees; uint32 widens, since i32 would not hold it.
STORED_TYPES: dict[tuple[str, int], str] = {
    ("f", 2): "f32",
    ("f", 4): "f32",
    ("f", 8): "f32",
    ("i", 1): "i32",
    ("i", 2): "i32",
    ("i", 4): "i32",
    ("i", 8): "i64",
    ("u", 1): "i32",
    ("u", 2): "i32",
    ("u", 4): "i64",
    ("b", 1): "bool",
}
NUMPY_TYPES: dict[str, np.dtype[Any]] = {
    "f32": np.dtype(np.float32),
    "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64),
    "bool": np.dtype(np.bool_),
}


class TokenStream:
    """One sequence of token ids, with the codec between ids and text.

    Shapes: `ids` `[N]`, every id in 0 .. vocabulary - 1.
    """

    def __init__(
        self, spec: TextSpec | TokensSpec, ids: ShardedIds, codec: Codec, paths: tuple[Path, ...]
    ) -> None:
        self.spec = spec
        self.ids = ids
        self.codec = codec
        self.paths = paths

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def name(self) -> str:
        """The path as it was written."""
        return self.spec.path

    @property
    def vocabulary(self) -> int:
        """How many ids there are."""
        return self.codec.vocabulary

    def encode(self, text: str) -> list[int]:
        """The ids of a text; token files take ids in decimal.

        Raises: E-DATA-004 (something that the vocabulary lacks).
        """
        return self.codec.encode(text)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids; token files give ids in decimal.

        Raises: E-DATA-004 (an id outside the vocabulary).
        """
        return self.codec.decode(ids)

    def windows(self, begins_B: NDArray[np.int64], length: int) -> NDArray[np.integer]:
        """The `length` ids from each begin on, checked against the vocabulary.

        Shapes: begins_B `[B]` → a new `[B, length]` in the stored integer type.
        Raises: E-DATA-004 (an id outside the vocabulary; names the file and the offset).
        """
        block_BL = self.ids.windows(begins_B, length)
        if isinstance(self.codec, IdCodec):
            check_vocabulary(self.ids, block_BL, begins_B, self.vocabulary)
        return block_BL

    def identity(self) -> dict[str, Any]:
        """What the experiment's digest knows of this data: kind, and for each file name, bytes and sampled
        hash.

        Raises: E-DATA-002 (a file became unreadable).
        """
        match self.spec:
            case TextSpec(path, by):
                files = (
                    identify_files(self.paths)
                    if self.paths
                    else [identify_bytes(path, python_topics().encode())]
                )
                return {"kind": "text", "by": by, "files": files}
            case TokensSpec(_, vocabulary):
                return {"kind": "tokens", "vocabulary": vocabulary, "files": identify_files(self.paths)}


class Arrays:
    """Named arrays whose leading axis counts rows.

    Shapes: every array `[num_rows, …]`. `stored` keeps the arrays as they lie on disk; `schema` names the
        type and
    the row shape that a program sees; `take` gives rows in that type, and so do the whole arrays of `fields`.
    """

    def __init__(
        self, spec: ArraysSpec | TableSpec | LinesSpec, stored: dict[str, NDArray[Any]], paths: tuple[Path, ...]
    ) -> None:
        self.spec = spec
        self.stored = stored
        self.paths = paths
        self.schema: dict[str, tuple[str, tuple[int, ...]]] = {
            name: (STORED_TYPES[array.dtype.kind, array.dtype.itemsize], array.shape[1:])
            for name, array in stored.items()
        }

    def __len__(self) -> int:
        return len(next(iter(self.stored.values())))

    @property
    def name(self) -> str:
        """The path as it was written."""
        return self.spec.path

    @cached_property
    def fields(self) -> dict[str, NDArray[Any]]:
        """The whole arrays in the types of `schema`: mapped where stored so, else converted at first use.

        Loaders convert a batch at a time and never need this.
        """
        return {
            name: array.astype(NUMPY_TYPES[self.schema[name][0]], copy=False)
            for name, array in self.stored.items()
        }

    def take(self, name: str, rows_B: NDArray[np.int64]) -> NDArray[Any]:
        """Rows of one field in the type of its schema.

        Shapes: rows_B `[B]` → a new contiguous `[B, …]`.
        """
        dtype = NUMPY_TYPES[self.schema[name][0]]
        return np.ascontiguousarray(self.stored[name][rows_B], dtype=dtype)

    def identity(self) -> dict[str, Any]:
        """What the experiment's digest knows of this data: kind, and for each file name, bytes and sampled
        hash.

        Raises: E-DATA-002 (a file became unreadable).
        """
        files = identify_files(self.paths)
        match self.spec:
            case ArraysSpec():
                return {"kind": "arrays", "files": files}
            case TableSpec(_, categories, columns):
                return {"kind": "table", "categories": categories, "columns": columns, "files": files}
            case LinesSpec(_, length, by):
                return {"kind": "lines", "length": length, "by": by, "files": files}


class Lines(Arrays):
    """Lines of text as arrays, with the codec between ids and text. Shapes: see `lines.read_lines`."""

    def __init__(self, spec: LinesSpec, stored: dict[str, NDArray[Any]], paths: tuple[Path, ...], codec: Codec) -> None:
        super().__init__(spec, stored, paths)
        self.codec = codec

    @property
    def vocabulary(self) -> int:
        """How many ids there are."""
        return self.codec.vocabulary

    def encode(self, text: str) -> list[int]:
        """The ids of a text. Raises: E-DATA-004 (a character that the data lacks)."""
        return self.codec.encode(text)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids. Raises: E-DATA-004 (an id outside the vocabulary)."""
        return self.codec.decode(ids)


Dataset = TokenStream | Arrays | Images


def open_dataset(spec: DataSpec, base: Path) -> Dataset:
    """Open what a description names; relative paths are resolved against `base`, then the current directory.

    Raises: E-DATA-001 (missing), E-DATA-002 (damaged, unreadable, not UTF-8), E-DATA-003 (empty),
        E-DATA-004 (an id outside the vocabulary in a sampled place, a word outside its categories), E-DATA-005 (a
        column that there is not), E-DATA-006 (arrays whose rows disagree).
    """
    match spec:
        case TextSpec(by="characters"):
            return _open_characters(spec, base)
        case TextSpec():
            return _open_bytes(spec, base)
        case TokensSpec():
            return _open_tokens(spec, base)
        case ArraysSpec():
            return _open_arrays(spec, base)
        case TableSpec():
            paths = find_files(spec.path, base)
            stored = read_table(spec, paths)
            return _with_rows(Arrays(spec, stored, paths))
        case LinesSpec():
            paths = find_files(spec.path, base)
            codec, stored = read_lines(spec, paths)
            return _with_rows(Lines(spec, stored, paths, codec))
        case ImagesSpec():
            return open_images(spec, base)


def _with_rows(arrays: Arrays) -> Arrays:
    if not len(arrays):
        _fail_empty(arrays.name, arrays.paths)
    return arrays


def python_topics() -> str:
    """The help texts of the running Python, sorted by topic, with a blank line between."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[topic] for topic in sorted(topics))


def _text_files(spec: TextSpec, base: Path) -> tuple[Path, ...]:
    if spec.path == PYTHON_TOPICS:
        return ()
    if spec.path.startswith(PYTHON_PREFIX):
        fail(MISSING, f"Python carries no text `{spec.path}`", help=(f"there is a `{PYTHON_TOPICS}`",))
    return find_files(spec.path, base)


def _open_characters(spec: TextSpec, base: Path) -> TokenStream:
    paths = _text_files(spec, base)
    codec, arrays = character_ids([read_text(path) for path in paths] if paths else [python_topics()])
    names = [path.name for path in paths] or [spec.path]
    return _stream(spec, [Shard(name, ids) for name, ids in zip(names, arrays, strict=True)], codec, paths)


def _open_bytes(spec: TextSpec, base: Path) -> TokenStream:
    paths = _text_files(spec, base)
    if not paths:
        content = np.frombuffer(python_topics().encode("utf-8"), dtype=np.uint8)
        return _stream(spec, [Shard(spec.path, content)], ByteCodec(), paths)
    shards = []
    for path in paths:
        try:
            ids = (
                np.memmap(path, dtype=np.uint8, mode="r").view(np.ndarray)
                if path.stat().st_size
                else np.empty(0, dtype=np.uint8)
            )
        except OSError as error:
            fail_unreadable(path, error)
        shards.append(Shard(path.name, ids))
    return _stream(spec, shards, ByteCodec(), paths)


def _open_tokens(spec: TokensSpec, base: Path) -> TokenStream:
    paths = find_files(spec.path, base)
    stream = _stream(spec, [open_shard(path) for path in paths], IdCodec(spec.vocabulary), paths)
    for begin in stream.ids.sampled():
        run_1L = stream.ids[begin : begin + SAMPLED_IDS][None]
        check_vocabulary(stream.ids, run_1L, np.array([begin]), spec.vocabulary)
    return stream


def _stream(
    spec: TextSpec | TokensSpec, shards: list[Shard], codec: Codec, paths: tuple[Path, ...]
) -> TokenStream:
    ids = ShardedIds(shards)
    if not len(ids):
        _fail_empty(spec.path, paths)
    return TokenStream(spec, ids, codec, paths)


def _open_arrays(spec: ArraysSpec, base: Path) -> Arrays:
    paths = find_files(spec.path, base)
    stored: dict[str, NDArray[Any]] = {}
    owner: dict[str, str] = {}
    for path in paths:
        for name, array in _arrays_of(path).items():
            if name in stored:
                fail(
                    DAMAGED,
                    f"`{owner[name]}` and `{path.name}` both hold the field `{name}`",
                    help=("name one file, or give the fields different names",),
                )
            stored[name], owner[name] = array, path.name
    if not stored:
        _fail_empty(spec.path, paths)
    _check_arrays(spec, stored)
    return Arrays(spec, stored, paths)


def _arrays_of(path: Path) -> dict[str, NDArray[Any]]:
    match path.suffix:
        case ".npy":
            return {path.stem: map_npy(path)}
        case ".npz":
            return map_npz(path)
        case _:
            fail(
                DAMAGED,
                f"`{path.name}` is neither `.npz` nor `.npy`",
                help=(
                    "write arrays with `numpy.savez`; "
                    "read text with `(text …)` and token ids with `(tokens …)`",
                ),
            )


def _check_arrays(spec: ArraysSpec, stored: dict[str, NDArray[Any]]) -> None:
    for name, array in stored.items():
        if (array.dtype.kind, array.dtype.itemsize) not in STORED_TYPES:
            fail(
                DAMAGED,
                f"the field `{name}` of `{spec.path}` has dtype {array.dtype.name}, which no program reads",
                help=("store float16, float32, float64, bool, or an integer type up to int64 or uint32",),
            )
        if array.ndim == 0:
            fail(
                ROWS_DISAGREE,
                f"the field `{name}` of `{spec.path}` is a single number and has no rows",
                help=("store an array whose first axis counts rows",),
            )
    num_rows = {name: len(array) for name, array in stored.items()}
    if len(set(num_rows.values())) > 1:
        listed = ", ".join(f"`{name}` has {count(rows, 'row')}" for name, rows in num_rows.items())
        fail(
            ROWS_DISAGREE,
            f"the fields of `{spec.path}` differ in rows: {listed}",
            help=(
                "the first axis of every field counts the same rows; "
                "store other arrays in a file of their own",
            ),
        )
    if not all(num_rows.values()):
        fail(TOO_SHORT, f"`{spec.path}` has no rows")


def _fail_empty(written: str, paths: tuple[Path, ...]) -> None:
    headline = (
        f"`{written}` is empty" if len(paths) <= 1 else f"all {len(paths)} files of `{written}` are empty"
    )
    fail(
        TOO_SHORT,
        headline,
        help=("check the step that writes it",),
        notes=tuple(f"the file is {p}" for p in paths[:3]),
    )


__all__ = [
    "Arrays", "ByteCodec", "CharacterCodec", "Dataset", "Images", "Lines", "TokenStream", "open_dataset",
    "python_topics",
]  # fmt: skip
