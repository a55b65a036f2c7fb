"""Tables: CSV and TSV files with a header, a field for each column.

A column whose every value is an integer becomes i32, or i64 where i32 would not hold it; a column of other numbers
f32; a column of words with a vocabulary i32, the places of its words. A value that may be missing is NaN.

Flow: `dataset.open_dataset` makes `Arrays` of what this reads; `parquet` reads the same of other files.
"""

from __future__ import annotations

import csv
import math
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
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


def read_table(spec: TableSpec, paths: Sequence[Path]) -> dict[str, NDArray[Any]]:
    """The columns of all files, one file after the other, by field name: the header's, blanks in it as `-`.

    Shapes: each `[rows]`.
    Raises: E-DATA-002 (no such table, rows of another length, a missing value, no number), E-DATA-004 (a word outside
    its vocabulary), E-DATA-005 (a column that there is not); each names file and line.
    """
    names: list[str] = []
    columns: dict[str, Words | Numbers] = {}
    for path in paths:
        rows = _rows(path)
        line, first = next(rows, (1, []))
        header = [field_name(cell) for cell in first]
        if not names:
            names = header
            _check_header(path, line, header)
            vocabularies = dict(spec.categories)
            columns = {
                name: Words(name, vocabularies[name]) if name in vocabularies else Numbers(name, spec.missing)
                for name in check_columns(spec, path, names)
            }
        elif header != names:
            _fail_at(path, line, f"the columns are {listed(header)}, and in `{paths[0].name}` {listed(names)}")
        for line, row in rows:
            if len(row) != len(names):
                _fail_at(path, line, f"{count(len(row), 'value')} for {count(len(names), 'column')}",
                         "put a value that holds the separator in quotes")  # fmt: skip
            for name, cell in zip(names, row, strict=True):
                if name in columns:
                    columns[name].add(cell.strip(), path, line)
    return {name: column.values() for name, column in columns.items()}


def check_columns(spec: TableSpec, path: Path, names: Sequence[str]) -> Sequence[str]:
    """The fields that `spec` reads of a table with columns `names`. Raises: E-DATA-005 (a column that there is not)."""
    for name in (*(spec.columns or ()), *(name for name, _ in spec.categories)):
        if name not in names:
            near = nearest(name, names)
            fail(UNKNOWN_FIELD, f"`{path.name}` has no column `{name}`",
                 help=(f"`{near}` is a near name" if near else f"its columns: {listed(names)}",))  # fmt: skip
    return spec.columns or names


def field_name(cell: str) -> str:
    """The field of a column: its name with `-` for blanks."""
    return "-".join(cell.split())


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The rows that are not blank, each with the line on which it ends."""
    separator = "\t" if path.suffix in (".tsv", ".tab") else ","
    reader = csv.reader(_lines(read_text(path)), delimiter=separator, strict=True)
    try:
        for row in reader:
            if row:
                yield reader.line_num, row
    except csv.Error as error:
        _fail_at(path, reader.line_num, str(error))


def _lines(blocks: Iterable[str]) -> Iterator[str]:
    rest = ""
    for block in blocks:
        *whole, rest = (rest + block).split("\n")
        for line in whole:
            yield line + "\n"
    if rest:
        yield rest


def _check_header(path: Path, line: int, header: list[str]) -> None:
    if not header:
        _fail_at(path, line, "there is no header: the first line names the columns", "write one above the values")
    for name in header:
        if not name:
            _fail_at(path, line, "a column has no name")
        if header.count(name) > 1:
            _fail_at(path, line, f"two columns are called `{name}`")


@dataclass
class Words:
    """A column of words: the place of each in the vocabulary."""

    name: str
    vocabulary: tuple[str, ...]
    ids: array[int] = field(default_factory=lambda: array("i"))

    def __post_init__(self) -> None:
        self._id_of = {word: i for i, word in enumerate(self.vocabulary)}

    def add(self, cell: str, path: Path, line: int) -> None:
        """Take a word. Raises: E-DATA-002 (none), E-DATA-004 (outside the vocabulary)."""
        if not cell:
            _fail_missing(self.name, path, line)
        if cell not in self._id_of:
            near = nearest(cell, self.vocabulary)
            fail(OUTSIDE_VOCABULARY,
                 f"`{path.name}`, line {line}: `{cell}` is not among the {len(self.vocabulary)} categories of "
                 f"`{self.name}`",
                 help=(f"`{near}` is one" if near else f"they are {listed(self.vocabulary)}",),
                 notes=(f"the file is {path}",))  # fmt: skip
        self.ids.append(self._id_of[cell])

    def values(self) -> NDArray[Any]:
        """i32."""
        return np.array(self.ids, np.int32)


@dataclass
class Numbers:
    """A column of numbers: whole ones exactly as long as there is no other."""

    name: str
    may_lack: bool
    whole: array[int] | None = field(default_factory=lambda: array("q"))
    others: array[float] = field(default_factory=lambda: array("d"))

    def add(self, cell: str, path: Path, line: int) -> None:
        """Take a number. Raises: E-DATA-002 (none, or beyond f32)."""
        if self.whole is not None and INTEGER.fullmatch(cell):
            try:
                self.whole.append(int(cell))
                return
            except (OverflowError, ValueError):
                pass  # beyond i64, so the column is one of f32
        value = self._float(cell, path, line)
        if abs(value) > LARGEST:
            _fail_at(path, line, f"`{cell}` in the column `{self.name}` is beyond what f32 holds")
        if self.whole is not None:
            self.others.extend(map(float, self.whole))
            self.whole = None
        self.others.append(value)

    def values(self) -> NDArray[Any]:
        """i32, i64 or f32."""
        if self.whole is None:
            return np.array(self.others, np.float32)
        low, high = min(self.whole, default=0), max(self.whole, default=0)
        fits = np.iinfo(np.int32).min <= low and high <= np.iinfo(np.int32).max
        return np.array(self.whole, np.int32 if fits else np.int64)

    def _float(self, cell: str, path: Path, line: int) -> float:
        if not cell and self.may_lack:
            return math.nan
        if not cell:
            _fail_missing(self.name, path, line)
        try:
            value = float(cell) if "_" not in cell else None
        except ValueError:
            value = None
        if value is None:
            _fail_at(path, line, f"`{cell}` in the column `{self.name}` is no number",
                     f'name what it may hold, `:categories [{self.name} ["…"]]`, or leave it out '
                     "with `:columns`")  # fmt: skip
        if not math.isfinite(value) and not (self.may_lack and math.isnan(value)):
            if INTEGER.fullmatch(cell):
                _fail_at(path, line, f"`{cell}` in the column `{self.name}` is beyond what f32 holds")
            _fail_missing(self.name, path, line, cell)
        return value


def _fail_missing(name: str, path: Path, line: int, cell: str = "") -> Never:
    what = f"`{cell}`" if cell else "nothing"
    _fail_at(path, line, f"a value is missing: the column `{name}` holds {what}",
             "leave the row out, write what stands for it, or say `:missing true` and read NaN")  # fmt: skip


def _fail_at(path: Path, line: int, message: str, help: str = "") -> Never:
    fail(DAMAGED, f"`{path.name}`, line {line}: {message}", help=(help,) if help else (),
         notes=(f"the file is {path}",))  # fmt: skip


def listed(names: Sequence[str]) -> str:
    """The first of these names, as a message lists them."""
    return " ".join(f"`{name}`" for name in names[:12]) + (" …" if len(names) > 12 else "")
