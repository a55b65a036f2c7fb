"""What is wrong with data, row by row as `docs/data.md` lists it: what happens, and what is said of it.

Each fault is one test, named by its row in the table of the page; a test of the page compares both lists.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sexpgpu.data import (
    Arrays,
    ArraysSpec,
    DataSpec,
    LinesSpec,
    Loader,
    Rows,
    TableSpec,
    TextSpec,
    TokensSpec,
    TokenStream,
    Windows,
    files,
    ids,
    open_dataset,
)
from sexpgpu.diagnostics import Diagnostic, DiagnosticError
from sexpgpu.lang.load import load_experiment
from tests.train.trial import Trial, write_experiment

CHECKOUT = Path(__file__).resolve().parents[2]
ROWS: dict[str, Callable[..., None]] = {}


def row(name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Enter a test under its row of the table."""

    def enter(test: Callable[..., None]) -> Callable[..., None]:
        ROWS[name] = test
        return test

    return enter


def fault(make: Callable[[], Any]) -> Diagnostic:
    with pytest.raises(DiagnosticError) as caught:
        make()
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.help, "a fault says what to do"
    return diagnostic


def opened(spec: DataSpec, base: Path) -> Diagnostic:
    return fault(lambda: open_dataset(spec, base))


def tokens_of(spec: DataSpec, base: Path) -> TokenStream:
    found = open_dataset(spec, base)
    assert isinstance(found, TokenStream)
    return found


@row("an empty file")
@pytest.mark.parametrize(
    "spec",
    [TextSpec("e"), TextSpec("e", "bytes"), LinesSpec("e", 4), TokensSpec("e", 9), ArraysSpec("e.npz"), TableSpec("e")],
    ids=lambda s: type(s).__name__,
)
def test_an_empty_file(tmp_path: Path, spec: DataSpec) -> None:
    (tmp_path / "e").touch()
    (tmp_path / "e.npz").touch()
    found = opened(spec, tmp_path)
    assert found.code == ("E-DATA-002" if isinstance(spec, ArraysSpec | TableSpec) else "E-DATA-003")
    assert "`e" in found.message


@row("an empty file among others of a text")
def test_an_empty_file_among_others_of_a_text(tmp_path: Path) -> None:
    for name, content in (("a.txt", "ab"), ("b.txt", ""), ("c.txt", "c")):
        (tmp_path / name).write_text(content)
    for by in ("characters", "bytes"):
        text = tokens_of(TextSpec("?.txt", by), tmp_path)  # type: ignore[arg-type]
        assert text.decode(text.ids[:]) == "abc" and text.document_ends.tolist() == [2, 3]


@row("a shard of no bytes")
def test_a_shard_of_no_bytes(tmp_path: Path) -> None:
    np.arange(9, dtype="<u2").tofile(tmp_path / "a.bin")
    (tmp_path / "b.bin").touch()
    found = opened(TokensSpec("?.bin", 9), tmp_path)
    assert found.code == "E-DATA-003" and found.message == "`b.bin` has no bytes"


@row("less than a window")
@pytest.mark.parametrize("spec", [TextSpec("t"), TextSpec("t", "bytes"), TokensSpec("t", 1 << 16)])
def test_less_than_a_window(tmp_path: Path, spec: DataSpec) -> None:
    (tmp_path / "t").write_bytes(b"ab" * (16 if isinstance(spec, TokensSpec) else 8))
    found = fault(lambda: Windows(open_dataset(spec, tmp_path), 16))
    assert found.code == "E-DATA-003" and "`t` has 16 tokens, and one window of length 16 needs 17" in found.message
    assert Windows(open_dataset(spec, tmp_path), 15).num_rows == 1


@row("line ends of Windows")
def test_line_ends_of_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = b"one\r\ntwo\rthree\r\n\r\r\n"
    (tmp_path / "t").write_bytes(content)
    for size in (1, 2, 3, 4, 5, 100):  # a block may end between the two
        monkeypatch.setattr(files, "READ_BYTES", size)
        text = tokens_of(TextSpec("t"), tmp_path)
        assert text.decode(text.ids[:]) == "one\ntwo\rthree\n\r\n"
    assert bytes(tokens_of(TextSpec("t", "bytes"), tmp_path).ids[:].tolist()) == content
    lines = open_dataset(LinesSpec("t", 12, "bytes"), tmp_path)
    assert isinstance(lines, Arrays) and lines.stored["length"].tolist() == [3, 9, 1]
    (tmp_path / "t.csv").write_bytes(b'a,"b\r\nc"\r\n1,2\r\n')
    table = open_dataset(TableSpec("t.csv"), tmp_path)
    assert isinstance(table, Arrays) and [*table.schema] == ["a", "b-c"]


@row("a byte order mark")
def test_a_byte_order_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t").write_bytes(b"\xef\xbb\xbfa\xef\xbb\xbfb")
    for size in (1, 2, 3, 4, 100):
        monkeypatch.setattr(files, "READ_BYTES", size)
        text = tokens_of(TextSpec("t"), tmp_path)
        assert text.decode(text.ids[:]) == "a\ufeffb"
    assert len(tokens_of(TextSpec("t", "bytes"), tmp_path)) == 8
    (tmp_path / "t.csv").write_bytes(b"\xef\xbb\xbfa,b\n1,2\n")
    table = open_dataset(TableSpec("t.csv"), tmp_path)
    assert isinstance(table, Arrays) and [*table.schema] == ["a", "b"]


@row("text that is not UTF-8")
@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
@pytest.mark.parametrize(
    ("content", "place"),
    [
        (b"\xef\xbb\xbf\nab\xffc", "byte 0xff at offset 6 (line 2)"),
        ("ä\n€\n".encode() + b"\xe2\x82", "byte 0xe2 at offset 7 (line 3)"),
        (b"a\r\n\xc3(", "byte 0xc3 at offset 3 (line 2)"),
        (b"ok\n\xed\xa0\x80", "byte 0xed at offset 3 (line 2)"),
    ],
)
def test_text_that_is_not_utf8(
    tmp_path: Path, size: int, content: bytes, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "READ_BYTES", size)
    (tmp_path / "t").write_bytes(content)
    for spec in (TextSpec("t"), LinesSpec("t", 3)):
        found = opened(spec, tmp_path)
        assert found.code == "E-DATA-002" and place in found.message, spec
    assert len(tokens_of(TextSpec("t", "bytes"), tmp_path)) == len(content)


@row("a shard of half an id")
@pytest.mark.parametrize(("bits", "num_bytes"), [(16, 31), (32, 30)])
def test_a_shard_of_half_an_id(tmp_path: Path, bits: int, num_bytes: int) -> None:
    (tmp_path / "t.bin").write_bytes(bytes(num_bytes))
    found = opened(TokensSpec("t.bin", 9, bits=bits), tmp_path)
    assert found.code == "E-DATA-002"
    assert f"{num_bytes} bytes, which is no whole number of uint{bits} ids" in found.message


@row("ids of another width")
def test_ids_of_another_width(tmp_path: Path) -> None:
    np.arange(1, 50, dtype="<u4").tofile(tmp_path / "wide.bin")
    np.arange(1, 51, dtype="<u2").tofile(tmp_path / "narrow.bin")
    assert tokens_of(TokensSpec("wide.bin", 50, bits=32), tmp_path).ids[:].tolist() == list(range(1, 50))
    found = opened(TokensSpec("wide.bin", 50), tmp_path)
    assert found.code == "E-DATA-002" and found.help == ("say `:bits 32`",)
    found = opened(TokensSpec("narrow.bin", 1 << 24, bits=32), tmp_path)
    assert found.code == "E-DATA-002" and found.help == ("leave `:bits 32` out",)


@row("a header that promises another number of ids")
def test_a_header_that_promises_another_number_of_ids(tmp_path: Path) -> None:
    header = np.zeros(256, "<i4")
    header[:3] = 20240520, 1, 100
    (tmp_path / "t.bin").write_bytes(header.tobytes() + bytes(150))
    found = opened(TokensSpec("t.bin", 9), tmp_path)
    assert found.code == "E-DATA-002" and "promises 100 ids, and 75 follow" in found.message


@row("an id beyond the vocabulary")
@pytest.mark.parametrize("large", [False, True])
def test_an_id_beyond_the_vocabulary(tmp_path: Path, large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ids, "RESIDENT_BYTES", 0 if large else 1 << 30)
    content = np.zeros(400_000, "<u2")
    content[300] = 50
    content.tofile(tmp_path / "t.bin")
    found = opened(TokensSpec("t.bin", 50), tmp_path)  # in a place that opening looks at
    assert found.code == "E-DATA-004" and "`t.bin` holds id 50 at offset 300 (byte 600)" in found.message
    content[300], content[4_200] = 0, 50
    content.tofile(tmp_path / "t.bin")
    loader = Loader("l", Windows(tokens_of(TokensSpec("t.bin", 50), tmp_path), 64), 4)
    found = fault(lambda: loader.batch(16))  # and in one that only a batch does
    assert found.code == "E-DATA-004" and "at offset 4200 (byte 8400)" in found.message


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def replace(path: Path) -> None:
    path.with_suffix(".new").write_bytes(path.read_bytes())
    path.with_suffix(".new").replace(path)


CHANGES = {"cut": cut, "grown": grow, "replaced": replace, "gone": Path.unlink}


@row("a file that changes or goes during a run")
@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", ["tokens", "text", "lines", "arrays"])
def test_a_file_that_changes_or_goes_during_a_run(
    tmp_path: Path, kind: str, change: str, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ids, "RESIDENT_BYTES", 0 if large else 1 << 30)
    np.save(tmp_path / "a.npy", np.arange(4096))
    for name in ("a.bin", "b.bin"):
        (np.arange(4096, dtype="<u2") % 10 + 2570).tofile(tmp_path / name)  # bytes that are line ends, among others
    view: Any = {
        "tokens": lambda: Windows(open_dataset(TokensSpec("?.bin", 1 << 16), tmp_path), 32),
        "text": lambda: Windows(open_dataset(TextSpec("?.bin", "bytes"), tmp_path), 64),
        "lines": lambda: Rows(open_dataset(LinesSpec("?.bin", 4, "bytes"), tmp_path)),
        "arrays": lambda: Rows(open_dataset(ArraysSpec("a.npy"), tmp_path)),
    }[kind]()
    loader = Loader("l", view, 4)
    loader.batch(0)
    changed = tmp_path / ("a.npy" if kind == "arrays" else "b.bin")
    CHANGES[change](changed)
    if kind != "arrays":
        loader.batch(1)  # of the other file
    found = fault(lambda: loader.batch(loader.batches_per_epoch - 1))
    said = "is gone" if change == "gone" else "changed"
    assert found.code == "E-DATA-007" and f"`{changed.name}` {said}" in found.message
    assert "--resume latest" in found.help[0]


def test_a_shard_that_is_cut_while_a_batch_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at the file and the read: the read is short, and nothing worse."""
    monkeypatch.setattr(ids, "RESIDENT_BYTES", 0)
    np.zeros(100_000, "<u2").tofile(tmp_path / "t.bin")
    loader = Loader("l", Windows(tokens_of(TokensSpec("t.bin", 9), tmp_path), 100), 4, shuffle=True)
    plain = files.DataFile.read_rows

    def read_rows(file: files.DataFile, *arguments: Any) -> None:
        os.truncate(file.path, 10)
        plain(file, *arguments)

    monkeypatch.setattr(files.DataFile, "read_rows", read_rows)
    assert fault(lambda: loader.batch(0)).code == "E-DATA-007"


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_disk_that_fails_while_a_batch_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shuffle: bool
) -> None:
    monkeypatch.setattr(ids, "RESIDENT_BYTES", 0)
    np.zeros(100_000, "<u2").tofile(tmp_path / "t.bin")
    loader = Loader("l", Windows(tokens_of(TokensSpec("t.bin", 9), tmp_path), 100), 4, shuffle=shuffle)

    def fails(*arguments: Any) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "preadv", fails)
    found = fault(lambda: loader.batch(0))
    assert found.code == "E-DATA-002" and "`t.bin` cannot be read: input/output error" in found.message


@row("words where a table needs numbers")
def test_words_where_a_table_needs_numbers(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,kind\n1,2\n3,red\n")
    found = opened(TableSpec("t.csv"), tmp_path)
    assert found.code == "E-DATA-002" and "`t.csv`, line 3: `red` in the column `kind` is no number" in found.message
    assert "`:categories [kind" in found.help[0] and "`:columns`" in found.help[0]


@row("a missing value in a table")
def test_a_missing_value_in_a_table(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n1,2\n,nan\n3,1\n")
    found = opened(TableSpec("t.csv"), tmp_path)
    assert found.code == "E-DATA-002" and "line 3: a value is missing: the column `a`" in found.message
    table = open_dataset(TableSpec("t.csv", missing=True), tmp_path)
    assert isinstance(table, Arrays)
    batch = Loader("l", Rows(table), 3).batch(0)
    np.testing.assert_array_equal(batch["a"], np.array([1, np.nan, 3], np.float32))
    np.testing.assert_array_equal(batch["b"], np.array([2, np.nan, 1], np.float32))
    (tmp_path / "t.csv").write_text("a\ninf\n")
    assert "holds `inf`" in opened(TableSpec("t.csv", missing=True), tmp_path).message


@row("NaN in arrays")
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f4"])
def test_nan_in_arrays(tmp_path: Path, dtype: str) -> None:
    x = np.ones((10, 2, 3), dtype)
    x[7, 1, 2] = np.nan
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(10))
    loader = Loader("l", Rows(open_dataset(ArraysSpec("a.npz"), tmp_path)), 5)
    loader.batch(0)
    assert loader.batch(1, ["y"])["y"].tolist() == [5, 6, 7, 8, 9]  # what nobody reads is nobody's fault
    found = fault(lambda: loader.batch(1))
    assert found.code == "E-DATA-009" and "field `x` holds NaN in row 7, place [1, 2]" in found.message
    meant = Loader("l", Rows(open_dataset(ArraysSpec("a.npz", missing=True), tmp_path)), 5)
    assert np.isnan(meant.batch(1)["x"]).sum() == 1 and meant.batch(1)["x"].dtype == np.float32


@row("a number beyond f32 in arrays")
def test_a_number_beyond_f32_in_arrays(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.array([1.0, np.inf, -1e39]))
    loader = Loader("l", Rows(open_dataset(ArraysSpec("a.npz"), tmp_path)), 1)
    assert loader.batch(1)["x"].tolist() == [np.inf]  # infinity is a number of f32
    found = fault(lambda: loader.batch(2))
    assert found.code == "E-DATA-009" and "holds -1e+39 in row 2, beyond what f32 holds" in found.message


def test_a_run_that_meets_a_fault_ends_with_it(tmp_path: Path) -> None:
    """The fault of a batch that is made ahead reaches the step that needs it, and the steps before are done."""
    x = np.ones((8, 3), np.float32)
    x[6] = np.nan
    path = write_experiment(tmp_path, """
        (defdata points (arrays "data.npz"))
        (defloader train (rows points) :batch 1)
        (defmetric loss ((x (f32 _ 3))) (mean (square (linear x 1))))
        (defrun go :loader train :loss loss :optimizer (sgd :rate 0.1) :steps 20)
    """, x=x)  # fmt: skip
    with Trial(load_experiment(path)) as trial:
        trial.losses(6)
        found = fault(trial.step)
        assert found.code == "E-DATA-009" and found.span is not None and found.span.text.startswith("(defloader train")


def test_the_page_lists_what_is_tested_here() -> None:
    page = (CHECKOUT / "docs" / "data.md").read_text("utf-8")
    _, _, table = page.partition("## Faults")
    assert re.findall(r"^\| ([^|]+?) \| ", table, re.MULTILINE)[2:] == list(ROWS)
