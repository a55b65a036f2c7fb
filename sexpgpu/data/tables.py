"""Tables: CSV and TSV files with a header, a field for each column.

A column whose every value is an integer becomes i32, or i64 where i32 would not hold it; a column of other numbers
f32; a column of words with a vocabulary i32, the places of its words.

Flow: `dataset.open_dataset` makes `Arrays` of what this reads.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Never

import numpy as np
from numpy.typing import NDArray

from sexpgpu.data.faults import DAMAGED, OUTSIDE_VOCABULARY, UNKNOWN_FIELD, count, fail
from sexpgpu.data.files import read_text
from sexpgpu.data.spec import TableSpec
from sexpgpu.diagnostics import nearest

INTEGER = re.compile(r"[+-]?[0-9]+")
LARGEST = float(np.finfo(np.float32).max)
Cells = list[tuple[str, Path, int]]
"""The values of a column, each with its file and line."""


def read_table(spec: TableSpec, paths: Sequence[Path]) -> dict[str, NDArray[Any]]:
    """The columns of all files, one file after the other, by field name: the header's, blanks in it as `-`.

    Shapes: each `[rows]`.
    Raises: E-DATA-002 (no such table, rows of another length, a missing value, no number), E-DATA-004 (a word outside
    its vocabulary), E-DATA-005 (a column that there is not); each names file and line.
    """
    names: list[str] = []
    columns: dict[str, Cells] = {}
    for path in paths:
        rows = _rows(path)
        line, first = next(rows, (1, []))
        header = ["-".join(cell.split()) for cell in first]
        if not names:
            names = header
            _check_header(spec, path, line, header)
            columns = {name: [] for name in spec.columns or names}
        elif header != names:
            _fail_at(path, line, f"the columns are {_listed(header)}, and in `{paths[0].name}` {_listed(names)}")
        for line, row in rows:
            if len(row) != len(names):
                _fail_at(path, line, f"{count(len(row), 'value')} for {count(len(names), 'column')}",
                         "put a value that holds the separator in quotes")  # fmt: skip
            for name, cell in zip(names, row, strict=True):
                if name in columns:
                    columns[name].append((cell.strip(), path, line))
    vocabularies = dict(spec.categories)
    return {
        name: _words(name, cells, vocabularies[name]) if name in vocabularies else _numbers(name, cells)
        for name, cells in columns.items()
    }


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The rows that are not blank, each with the line on which it ends."""
    if path.suffix == ".parquet":
        fail(DAMAGED, f"`{path.name}` is Parquet, and tables are read from CSV and TSV",
             help=("write it as CSV, or its columns as arrays of an `.npz`",))  # fmt: skip
    separator = "\t" if path.suffix in (".tsv", ".tab") else ","
    reader = csv.reader(io.StringIO(read_text(path), newline=""), delimiter=separator, strict=True)
    try:
        for row in reader:
            if row:
                yield reader.line_num, row
    except csv.Error as error:
        _fail_at(path, reader.line_num, str(error))


def _check_header(spec: TableSpec, path: Path, line: int, header: list[str]) -> None:
    if not header:
        _fail_at(path, line, "there is no header: the first line names the columns")
    for name in header:
        if not name:
            _fail_at(path, line, "a column has no name")
        if header.count(name) > 1:
            _fail_at(path, line, f"two columns are called `{name}`")
    for name in (*(spec.columns or ()), *(name for name, _ in spec.categories)):
        if name not in header:
            near = nearest(name, header)
            fail(UNKNOWN_FIELD, f"`{path.name}` has no column `{name}`",
                 help=(f"`{near}` is a near name" if near else f"its columns: {_listed(header)}",))  # fmt: skip


def _words(name: str, cells: Cells, vocabulary: tuple[str, ...]) -> NDArray[Any]:
    id_of = {word: i for i, word in enumerate(vocabulary)}
    ids = []
    for cell, path, line in cells:
        if not cell:
            _fail_missing(name, path, line)
        if cell not in id_of:
            near = nearest(cell, vocabulary)
            fail(OUTSIDE_VOCABULARY,
                 f"`{path.name}`, line {line}: `{cell}` is not among the {len(vocabulary)} categories of `{name}`",
                 help=(f"`{near}` is one" if near else f"they are {_listed(vocabulary)}",),
                 notes=(f"the file is {path}",))  # fmt: skip
        ids.append(id_of[cell])
    return np.array(ids, np.int32)


def _numbers(name: str, cells: Cells) -> NDArray[Any]:
    values: list[float] = []
    whole = True
    for cell, path, line in cells:
        if not cell:
            _fail_missing(name, path, line)
        is_integer = INTEGER.fullmatch(cell) is not None
        whole = whole and is_integer
        value = int(cell) if is_integer else _float(name, cell, path, line)
        if abs(value) > LARGEST:
            _fail_at(path, line, f"`{cell}` in the column `{name}` is beyond what f32 holds")
        values.append(value)
    low, high = min(values, default=0), max(values, default=0)
    for dtype in (np.int32, np.int64) if whole else ():
        if np.iinfo(dtype).min <= low and high <= np.iinfo(dtype).max:
            return np.array(values, dtype)
    return np.array(values, np.float32)


def _float(name: str, cell: str, path: Path, line: int) -> float:
    try:
        value = float(cell) if "_" not in cell else None
    except ValueError:
        value = None
    if value is None:
        _fail_at(path, line, f"`{cell}` in the column `{name}` is no number",
                 f'name what it may hold, `:categories [{name} ["…"]]`, or leave it out with `:columns`')  # fmt: skip
    if not math.isfinite(value):
        _fail_missing(name, path, line, cell)
    return value


def _fail_missing(name: str, path: Path, line: int, cell: str = "") -> Never:
    what = f"`{cell}`" if cell else "nothing"
    _fail_at(path, line, f"a value is missing: the column `{name}` holds {what}",
             "leave the row out, or write what stands for it, beside a column that says so")  # fmt: skip


def _fail_at(path: Path, line: int, message: str, help: str = "") -> Never:
    fail(DAMAGED, f"`{path.name}`, line {line}: {message}", help=(help,) if help else (),
         notes=(f"the file is {path}",))  # fmt: skip


def _listed(names: Sequence[str]) -> str:
    return " ".join(f"`{name}`" for name in names[:12]) + (" …" if len(names) > 12 else "")
