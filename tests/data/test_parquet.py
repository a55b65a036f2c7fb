"""Parquet: columns as fields, and where it says that something is wrong."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from sexpgpu.data import Arrays, Loader, Part, Rows, TableSpec, open_dataset
from sexpgpu.diagnostics import Diagnostic, DiagnosticError


def write(path: Path, **columns: Any) -> None:
    pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=3)


def table(spec: TableSpec, base: Path) -> Arrays:
    opened = open_dataset(spec, base)
    assert isinstance(opened, Arrays)
    return opened


def fault(spec: TableSpec, base: Path) -> Diagnostic:
    with pytest.raises(DiagnosticError) as caught:
        open_dataset(spec, base)
    (diagnostic,) = caught.value.diagnostics
    return diagnostic


def test_types_follow_the_columns(tmp_path: Path) -> None:
    n = np.arange(7)
    write(
        tmp_path / "t.parquet", small=n.astype("i1"), wide=n, far=n + 2**40, unsigned=n.astype("u8"),
        ratio=n / 4, half=n.astype("f2"), yes=n % 2 == 0, **{"petal length": n * 1.5},
        kind=pyarrow.array(["red", "blue"] * 3 + ["red"]).dictionary_encode(),
        pair=pyarrow.array([[i, -i] for i in range(7)]),
        fixed=pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(np.arange(21.0)), 3),
    )  # fmt: skip
    spec = TableSpec("t.parquet", (("kind", ("blue", "red")),))
    found = table(spec, tmp_path)
    assert {name: type for name, (type, _) in found.schema.items()} == {
        "small": "i32", "wide": "i32", "far": "i64", "unsigned": "i32", "ratio": "f32", "half": "f32", "yes": "bool",
        "petal-length": "f32", "kind": "i32", "pair": "i32", "fixed": "f32",
    }  # fmt: skip
    batch = Loader("l", Rows(Part(found, 0.0, 1.0)), 7).batch(0)
    assert batch["far"].tolist() == (n + 2**40).tolist() and batch["kind"].tolist() == [1, 0] * 3 + [1]
    assert batch["pair"].tolist() == [[i, -i] for i in range(7)] and batch["fixed"].shape == (7, 3)
    assert batch["petal-length"].tolist() == (n * 1.5).tolist() and batch["yes"].tolist() == [i % 2 == 0 for i in n]


def test_several_files_and_some_columns(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", x=[1, 2], note=["any", "thing"])
    write(tmp_path / "b.parquet", note=["else"], x=[3])
    found = table(TableSpec("?.parquet", columns=("x",)), tmp_path)
    assert list(found.schema) == ["x"] and found.stored["x"].tolist() == [1, 2, 3]
    (tmp_path / "c.csv").write_text("x\n1\n")
    assert "Parquet and other files" in fault(TableSpec("*", columns=("x",)), tmp_path).message


def test_missing_values(tmp_path: Path) -> None:
    write(tmp_path / "t.parquet", a=[1, None, 3], b=[1.0, 2.0, float("nan")])
    for column, words in (("a", "row 1: a value is missing: the column `a` holds nothing"), ("b", "row 2: ")):
        found = fault(TableSpec("t.parquet", columns=(column,)), tmp_path)
        assert found.code == "E-DATA-002" and words in found.message and ":missing true" in found.help[0]
    found = table(TableSpec("t.parquet", missing=True), tmp_path)
    np.testing.assert_array_equal(found.stored["a"], np.array([1, np.nan, 3], "f4"))
    np.testing.assert_array_equal(found.stored["b"], np.array([1, 2, np.nan], "f4"))


@pytest.mark.parametrize(
    ("column", "code", "words"),
    [
        (["x", "y"], "E-DATA-002", "the column `c` holds string, which are no numbers"),
        ([[1, 2], [3]], "E-DATA-002", "the lists of the column `c` have from 1 to 2 values"),
        ([[1], None], "E-DATA-002", "row 1: a value is missing"),
        ([[1.0, 2.0], [3.0, None]], "E-DATA-002", "row 1: a value is missing"),
        ([1.0, 1e39], "E-DATA-002", "row 1: 1e+39 in the column `c` is beyond what f32 holds"),
        ([1.0, float("inf")], "E-DATA-002", "row 1: a value is missing: the column `c` holds `inf`"),
        (pyarrow.array([1, 2**63], pyarrow.uint64()), "E-DATA-002", "holds integers beyond i64"),
        ([], "E-DATA-003", "`t.parquet` is empty"),
    ],
)
def test_faults(tmp_path: Path, column: Any, code: str, words: str) -> None:
    typed = column if not isinstance(column, list) or column else pyarrow.array(column, pyarrow.int32())
    write(tmp_path / "t.parquet", c=typed)
    found = fault(TableSpec("t.parquet"), tmp_path)
    assert found.code == code and words in found.message


def test_words_and_columns_that_there_are_not(tmp_path: Path) -> None:
    write(tmp_path / "t.parquet", kind=["red", "bleu", None])
    found = fault(TableSpec("t.parquet", (("kind", ("red", "blue")),)), tmp_path)
    assert found.code == "E-DATA-004" and "row 1: `bleu` is not among the 2 categories" in found.message
    found = fault(TableSpec("t.parquet", (("kind", ("red", "bleu")),)), tmp_path)
    assert found.code == "E-DATA-002" and "row 2: a value is missing" in found.message
    found = fault(TableSpec("t.parquet", columns=("kynd",)), tmp_path)
    assert found.code == "E-DATA-005" and "`kind`" in found.help[0]


@pytest.mark.parametrize("damage", [lambda b: b"", lambda b: b"PAR1", lambda b: b[:-8], lambda b: b[:4] + b[40:]])
def test_damaged(tmp_path: Path, damage: Any) -> None:
    write(tmp_path / "t.parquet", a=list(range(100)))
    (tmp_path / "t.parquet").write_bytes(damage((tmp_path / "t.parquet").read_bytes()))
    found = fault(TableSpec("t.parquet"), tmp_path)
    assert found.code == "E-DATA-002" and "`t.parquet` is not a whole Parquet file" in found.message


def test_pyarrow_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "t.parquet", a=[1])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    found = fault(TableSpec("t.parquet"), tmp_path)
    assert found.code == "E-DATA-008" and found.help == ("pip install 'sexpgpu[parquet]'",)
