"""Opened data sets: what views cut windows and rows from.

A data set is either a stream of token ids with a codec, or named arrays of equal row count. Opening reads
headers and samples; the bulk stays on disk as memory maps. Text by characters and lines are held as ids, tables as
arrays.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any, Never

import numpy as np
from numpy.typing import NDArray

from sexpgpu.data.codec import Codec, IdCodec
from sexpgpu.data.faults import (
    DAMAGED,
    MISSING,
    NOT_A_NUMBER,
    ROWS_DISAGREE,
    TOO_SHORT,
    count,
    fail,
)
from sexpgpu.data.files import DataFile, MappedFiles, find_files, identify_bytes, identify_files
from sexpgpu.data.ids import SAMPLED_IDS, ShardedIds, check_vocabulary
from sexpgpu.data.images import Images, open_images
from sexpgpu.data.lines import line_fields
from sexpgpu.data.npy import map_npy, map_npz
from sexpgpu.data.parquet import read_parquet
from sexpgpu.data.spec import (
    ArraysSpec,
    By,
    DataSpec,
    ImagesSpec,
    LinesSpec,
    TableSpec,
    TextSpec,
    TokensSpec,
)
from sexpgpu.data.tables import read_table
from sexpgpu.data.text import Text, encode_texts, open_texts, python_topics
from sexpgpu.data.tokenizer import open_tokenizer
from sexpgpu.data.tokens import open_shard

PYTHON_PREFIX, LINE_END = "python:", "\n"
LARGEST_F32 = float(np.finfo(np.float32).max)
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

    Shapes: `ids` `[N]`, every id in 0 .. vocabulary - 1. ends: the positions after each document, where opening the
    data has found them.
    """

    def __init__(
        self,
        spec: TextSpec | TokensSpec,
        ids: ShardedIds,
        codec: Codec,
        paths: tuple[Path, ...],
        ends: NDArray[np.int64] | None = None,
    ) -> None:
        self.spec = spec
        self.ids = ids
        self.codec = codec
        self.paths = paths
        self._ends = ends

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
        if isinstance(self.spec, TokensSpec):
            check_vocabulary(self.ids, block_BL, begins_B, self.vocabulary)
        return block_BL

    def run(self, begin: int, end: int) -> NDArray[np.integer]:
        """The ids from `begin` up to `end`, checked as those of `windows`. Raises: as `windows`."""
        ids = self.ids.run(begin, end)
        if isinstance(self.spec, TokensSpec):
            check_vocabulary(self.ids, ids[None], np.array([begin]), self.vocabulary)
        return ids

    @cached_property
    def document_ends(self) -> NDArray[np.int64]:
        """The positions after each document, ascending, the last one N. Looks at all ids, once.

        Shapes: `[D]`.
        Raises: E-DATA-003 (nothing says where a document ends, or no document ends so).
        """
        files = self.ids.shard_ends
        if self._ends is not None:
            if isinstance(self.spec.ends, str) and len(self._ends) <= len(files):
                self._check_ends(self._ends, self.spec.ends)
            return self._ends
        if self.spec.ends is None:
            if isinstance(self.spec, TextSpec):
                return files
            fail(TOO_SHORT, f"`{self.name}` does not say where a document ends",
                 help=("name the id that ends one: `(tokens … :ends 50256)`",))  # fmt: skip
        sought = [self.spec.ends] if isinstance(self.spec.ends, int) else self.encode(self.spec.ends)
        found = self.ids.find(sought)
        if not len(found):
            self._fail_endless()
        borders = files if isinstance(self.spec, TextSpec) else files[-1:]
        return np.union1d(found, borders)

    def _check_ends(self, ends: NDArray[np.int64], separator: str) -> None:
        """See that one of few documents ends with the separator, and not all with their files."""
        longest = len(separator.encode())
        tails = (self.decode(self.ids[max(0, end - longest) : end]) for end in ends.tolist())
        if not any(tail.endswith(separator) for tail in tails):
            self._fail_endless()

    def _fail_endless(self) -> Never:
        fail(TOO_SHORT, f"no document of `{self.name}` ends with {self.spec.ends!r}",
             help=("say by `:ends` what stands after each document",))  # fmt: skip

    def identity(self) -> dict[str, Any]:
        """What the experiment's digest knows of this data: kind, and for each file name, bytes and sampled
        hash.

        Raises: E-DATA-002 (a file became unreadable).
        """
        match self.spec:
            case TextSpec(path, by, ends):
                files = identify_files(self.paths) if self.paths else [identify_bytes(path, python_topics().encode())]
                return {"kind": "text", "by": _known_by(by, self.codec), "files": files, **_said(ends=ends)}
            case TokensSpec(_, vocabulary, ends, bits):
                facts = _said(ends=ends, bits=None if bits == 16 else bits)
                return {"kind": "tokens", "vocabulary": vocabulary, "files": identify_files(self.paths), **facts}


def _known_by(by: By, codec: Codec) -> str:
    """What an identity says of a way to cut text."""
    return by if isinstance(by, str) else str(getattr(codec, "identity", ""))


def _said(**facts: Any) -> dict[str, Any]:
    """The facts that are not None: what a file does not say leaves no trace in its digest."""
    return {name: fact for name, fact in facts.items() if fact is not None}


class Arrays:
    """Named arrays whose leading axis counts rows.

    Shapes: every array `[num_rows, …]`. `stored` keeps the arrays as they lie on disk, or what is read like them by
    rows; `schema` names the type and the row shape that a program sees, and `take` gives rows in that type. files: the
    mapped files of the arrays.
    """

    def __init__(
        self,
        spec: ArraysSpec | TableSpec | LinesSpec,
        stored: dict[str, Any],
        paths: tuple[Path, ...],
        files: Iterable[DataFile] = (),
    ) -> None:
        self.spec = spec
        self.stored = stored
        self.paths = paths
        self._mapped = MappedFiles(files)
        self._may_lack = not isinstance(spec, ArraysSpec) or spec.missing
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

    def take(self, name: str, rows_B: NDArray[np.int64]) -> NDArray[Any]:
        """Rows of one field in the type of its schema.

        Shapes: rows_B `[B]` → a new contiguous `[B, …]`.
        Raises: E-DATA-007 (a file changed or is gone), E-DATA-009 (NaN that nobody expects, or beyond f32).
        """
        stored = self.stored[name]
        dtype = NUMPY_TYPES[self.schema[name][0]]
        row_bytes = stored.dtype.itemsize * int(np.prod(stored.shape[1:]))
        self._mapped.before(len(rows_B), len(rows_B) * row_bytes)
        rows = stored[rows_B]
        if dtype == np.float32 and not self._may_lack:
            self._check_numbers(name, rows, rows_B)
        return np.ascontiguousarray(rows, dtype=dtype)

    def _check_numbers(self, name: str, rows: NDArray[Any], rows_B: NDArray[np.int64]) -> None:
        fault = np.isnan(rows)
        if rows.dtype.itemsize > 4:
            fault |= np.isfinite(rows) & (np.abs(rows) > LARGEST_F32)
        if not fault.any():
            return
        at, *place = np.argwhere(fault)[0].tolist()
        where = f"row {int(rows_B[at])}" + (f", place {place}" if place else "")
        value = rows[(at, *place)]
        if np.isnan(value):
            fail(NOT_A_NUMBER, f"`{self.name}`: the field `{name}` holds NaN in {where}",
                 help=("say `:missing true` where NaN stands for what is missing, and let the metric choose with "
                       "`(where (is-finite x) …)`", "else write the data again without it"))  # fmt: skip
        fail(NOT_A_NUMBER, f"`{self.name}`: the field `{name}` holds {value:g} in {where}, beyond what f32 holds",
             help=("scale the data, or write it again without it",))  # fmt: skip

    def identity(self) -> dict[str, Any]:
        """What the experiment's digest knows of this data: kind, and for each file name, bytes and sampled
        hash.

        Raises: E-DATA-002 (a file became unreadable).
        """
        files = identify_files(self.paths)
        match self.spec:
            case ArraysSpec(_, missing):
                return {"kind": "arrays", "files": files, **_said(missing=missing or None)}
            case TableSpec(_, categories, columns, missing):
                facts = _said(missing=missing or None)
                return {"kind": "table", "categories": categories, "columns": columns, "files": files, **facts}
            case LinesSpec(_, length, by):
                known = _known_by(by, getattr(self, "codec", IdCodec(0)))
                return {"kind": "lines", "length": length, "by": known, "files": files}


class Lines(Arrays):
    """Lines of text as arrays, with the codec between ids and text. Shapes: see `lines.line_fields`."""

    def __init__(self, spec: LinesSpec, stored: dict[str, Any], paths: tuple[Path, ...], codec: Codec) -> None:
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
        column that there is not), E-DATA-006 (arrays whose rows disagree), E-DATA-008 (a library is not installed).
    """
    match spec:
        case TextSpec(path, by, ends):
            texts = open_texts(path, base)
            found = encode_texts(texts, by, base, ends)
            return _stream(spec, found.ids, found.codec, _paths(texts), found.ends)
        case TokensSpec():
            return _open_tokens(spec, base)
        case ArraysSpec():
            return _open_arrays(spec, base)
        case TableSpec(path):
            paths = find_files(path, base)
            kinds = {path.suffix == ".parquet" for path in paths}
            if len(kinds) > 1:
                fail(DAMAGED, f"`{path}` names Parquet and other files", help=("name the files of one kind",))
            return _with_rows(Arrays(spec, (read_parquet if kinds == {True} else read_table)(spec, paths), paths))
        case LinesSpec(path, length, by):
            if path.startswith(PYTHON_PREFIX):
                fail(MISSING, f"`{path}` is read by `text`, not by lines", help=(f'(text "{path}")',))
            texts = open_texts(path, base)
            found = encode_texts(texts, by, base, LINE_END, keep=False)
            return _with_rows(Lines(spec, line_fields(found, length), _paths(texts), found.codec))
        case ImagesSpec():
            return open_images(spec, base)


def _with_rows(arrays: Arrays) -> Arrays:
    if not len(arrays):
        _fail_empty(arrays.name, arrays.paths)
    return arrays


def _paths(texts: list[Text]) -> tuple[Path, ...]:
    return tuple(text.path for text in texts if text.path is not None)


def _open_tokens(spec: TokensSpec, base: Path) -> TokenStream:
    paths = find_files(spec.path, base)
    codec = IdCodec(spec.vocabulary) if spec.by is None else open_tokenizer(spec.by, base).widened(spec.vocabulary)
    stream = _stream(spec, ShardedIds([open_shard(path, spec.bits) for path in paths]), codec, paths)
    for begin in stream.ids.sampled():
        run_1L = stream.ids[begin : begin + SAMPLED_IDS][None]
        check_vocabulary(stream.ids, run_1L, np.array([begin]), spec.vocabulary)
    return stream


def _stream(
    spec: TextSpec | TokensSpec,
    ids: ShardedIds,
    codec: Codec,
    paths: tuple[Path, ...],
    ends: NDArray[np.int64] | None = None,
) -> TokenStream:
    if not len(ids):
        _fail_empty(spec.path, paths)
    return TokenStream(spec, ids, codec, paths, ends)


def _open_arrays(spec: ArraysSpec, base: Path) -> Arrays:
    paths = find_files(spec.path, base)
    stored: dict[str, NDArray[Any]] = {}
    owner: dict[str, str] = {}
    files = [DataFile(path) for path in paths]
    for path, file in zip(paths, files, strict=True):
        for name, array in _arrays_of(file).items():
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
    return Arrays(spec, stored, paths, files)


def _arrays_of(file: DataFile) -> dict[str, NDArray[Any]]:
    path = file.path
    match path.suffix:
        case ".npy":
            return {path.stem: map_npy(file)}
        case ".npz":
            return map_npz(file)
        case _:
            fail(
                DAMAGED,
                f"`{path.name}` is neither `.npz` nor `.npy`",
                help=("write arrays with `numpy.savez`; read text with `(text …)` and token ids with `(tokens …)`",),
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
            help=("the first axis of every field counts the same rows; store other arrays in a file of their own",),
        )
    if not all(num_rows.values()):
        fail(TOO_SHORT, f"`{spec.path}` has no rows")


def _fail_empty(written: str, paths: tuple[Path, ...]) -> None:
    headline = f"`{written}` is empty" if len(paths) <= 1 else f"all {len(paths)} files of `{written}` are empty"
    fail(
        TOO_SHORT,
        headline,
        help=("check the step that writes it",),
        notes=tuple(f"the file is {p}" for p in paths[:3]),
    )
