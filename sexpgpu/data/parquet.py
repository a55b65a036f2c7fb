"""Tables in Parquet files, read by pyarrow: a field for each column of numbers, booleans or named words.

Flow: `dataset.open_dataset` makes `Arrays` of what this reads, as of `tables`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Never

import numpy as np
from numpy.typing import NDArray

from sexpgpu.data.faults import DAMAGED, OUTSIDE_VOCABULARY, fail
from sexpgpu.data.files import open_file
from sexpgpu.data.spec import TableSpec
from sexpgpu.data.tables import LARGEST, check_columns, field_name, listed
from sexpgpu.data.tokenizer import need


def read_parquet(spec: TableSpec, paths: Sequence[Path]) -> dict[str, NDArray[Any]]:
    """The columns of all files, one file after the other, by field name: the column's, blanks in it as `-`.

    Integers of 64 bits become i32 where that holds them all. A column of lists of one length gives a field of so many
    numbers a row.

    Shapes: each `[rows]`, or `[rows, n]` of lists.
    Raises: E-DATA-002 (damaged, a missing value, a column of another kind), E-DATA-004 (a word outside its
    vocabulary), E-DATA-005 (a column that there is not), E-DATA-008 (pyarrow is not installed).
    """
    need("pyarrow", "parquet", f"`{paths[0].name}`")
    parts = [_read_file(spec, path) for path in paths]
    for path, part in zip(paths, parts, strict=True):
        if part.keys() != parts[0].keys():
            fail(DAMAGED, f"`{path.name}` has the columns {listed([*part])}, and `{paths[0].name}` has "
                 f"{listed([*parts[0]])}", help=("name the ones to read by `:columns`",))  # fmt: skip
    joined: dict[str, NDArray[Any]] = {}
    for name in parts[0]:
        arrays = [part[name] for part in parts]
        if len({array.shape[1:] for array in arrays}) > 1:
            fail(DAMAGED, f"the lists of the column `{name}` are not equally long in all files")
        joined[name] = _narrowed(np.concatenate(arrays))
    return joined


def _read_file(spec: TableSpec, path: Path) -> dict[str, NDArray[Any]]:
    import pyarrow  # type: ignore[import-untyped]
    import pyarrow.parquet  # type: ignore[import-untyped]

    vocabularies = dict(spec.categories)
    try:
        with open_file(path) as stream, pyarrow.parquet.ParquetFile(stream) as file:
            of_field = {field_name(name): name for name in file.schema_arrow.names}
            if len(of_field) < len(file.schema_arrow.names):
                _fail(path, "two columns have one name", "give each its own; a blank is read as `-`")
            wanted = check_columns(spec, path, [*of_field])
            table = file.read(columns=[of_field[name] for name in wanted])
            return {
                name: _array(spec, path, name, table.column(of_field[name]).combine_chunks(), vocabularies.get(name))
                for name in wanted
            }
    except (pyarrow.ArrowException, OSError) as error:
        fail(DAMAGED, f"`{path.name}` is not a whole Parquet file: {_first_line(error)}",
             help=("write or fetch it again",), notes=(f"the file is {path}",))  # fmt: skip


def _first_line(error: Exception) -> str:
    said = str(error).strip().splitlines()
    return said[0][:200].rstrip(".").lower() if said else "it ends early"


def _array(
    spec: TableSpec, path: Path, name: str, column: Any, vocabulary: tuple[str, ...] | None, per_row: int = 1
) -> NDArray[Any]:
    """The values of a column as an array; `per_row` of them are one row of the file."""
    import pyarrow
    import pyarrow.compute  # type: ignore[import-untyped]
    from pyarrow import types

    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if types.is_list(column.type) or types.is_large_list(column.type) or types.is_fixed_size_list(column.type):
        _check_missing(None, path, name, column)
        lengths = {column.type.list_size} if types.is_fixed_size_list(column.type) else {
            n.as_py() for n in pyarrow.compute.unique(pyarrow.compute.list_value_length(column))
        }  # fmt: skip
        if len(lengths) > 1:
            _fail(path, f"the lists of the column `{name}` have from {min(lengths)} to {max(lengths)} values",
                  "write lists of one length, or token ids as shards")  # fmt: skip
        length = min(lengths, default=0)
        inner = _array(spec, path, name, column.flatten(), vocabulary, max(1, length))
        return inner.reshape(len(column), length)
    if vocabulary is not None:
        return _words(path, name, column, vocabulary, per_row)
    known = types.is_integer(column.type) or types.is_floating(column.type) or types.is_boolean(column.type)
    if not known:
        _fail(path, f"the column `{name}` holds {column.type}, which are no numbers",
              f'name what it may hold, `:categories [{name} ["…"]]`, or leave it out with `:columns`')  # fmt: skip
    _check_missing(spec, path, name, column, per_row)
    if column.null_count:
        column = column.cast(pyarrow.float64())
    values = np.asarray(column.to_numpy(zero_copy_only=False))
    if values.dtype.kind == "u" and values.dtype.itemsize == 8:
        if (values > np.iinfo(np.int64).max).any():
            _fail(path, f"the column `{name}` holds integers beyond i64", "write them as they fit, or as floats")
        values = values.astype(np.int64)
    if values.dtype.kind == "f":
        if values.dtype.itemsize == 2:
            values = values.astype(np.float32)
        _check_floats(spec, path, name, values, per_row)
        values = values.astype(np.float32)
    return values


def _words(path: Path, name: str, column: Any, vocabulary: tuple[str, ...], per_row: int) -> NDArray[Any]:
    import pyarrow
    import pyarrow.compute

    words = column.cast(pyarrow.string())
    ids = pyarrow.compute.index_in(words, value_set=pyarrow.array(vocabulary, pyarrow.string()))
    if ids.null_count:
        at = int(np.flatnonzero(np.asarray(ids.is_null()))[0])
        row, word = at // per_row, words[at].as_py()
        if word is None:
            _fail_missing(path, name, row, "nothing")
        fail(OUTSIDE_VOCABULARY,
             f"`{path.name}`, row {row}: `{word}` is not among the {len(vocabulary)} categories of `{name}`",
             help=(f"they are {listed(vocabulary)}",), notes=(f"the file is {path}",))  # fmt: skip
    return np.asarray(ids, np.int32)


def _check_missing(spec: TableSpec | None, path: Path, name: str, column: Any, per_row: int = 1) -> None:
    if column.null_count and not (spec is not None and spec.missing):
        _fail_missing(path, name, int(np.flatnonzero(np.asarray(column.is_null()))[0]) // per_row, "nothing")


def _check_floats(spec: TableSpec, path: Path, name: str, values: NDArray[Any], per_row: int) -> None:
    fault = np.isinf(values) | (np.abs(values) > LARGEST) | (np.isnan(values) & (not spec.missing))
    if fault.any():
        at = int(np.flatnonzero(fault)[0])
        if np.isfinite(values[at]):
            _fail(path, f"row {at // per_row}: {values[at]:g} in the column `{name}` is beyond what f32 holds")
        _fail_missing(path, name, at // per_row, f"`{values[at]}`")


def _fail_missing(path: Path, name: str, row: int, what: str) -> Never:
    _fail(path, f"row {row}: a value is missing: the column `{name}` holds {what}",
          "leave the row out, write what stands for it, or say `:missing true` and read NaN")  # fmt: skip


def _fail(path: Path, message: str, help: str = "") -> Never:
    fail(DAMAGED, f"`{path.name}`, {message}" if message.startswith("row") else f"`{path.name}`: {message}",
         help=(help,) if help else (), notes=(f"the file is {path}",))  # fmt: skip


def _narrowed(values: NDArray[Any]) -> NDArray[Any]:
    """Integers of 64 bits as i32 where that holds them all, as of CSV."""
    info = np.iinfo(np.int32)
    if values.dtype == np.int64 and (not values.size or (info.min <= values.min() and values.max() <= info.max)):
        return values.astype(np.int32)
    return values
