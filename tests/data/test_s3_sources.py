"""Data sources and published weights that lie on S3: read as from a disk, and copied once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sexpgpu.data import ArraysSpec, TextSpec, open_dataset
from sexpgpu.diagnostics import Diagnostic, DiagnosticError
from sexpgpu.s3 import open_s3
from tests.s3_server import S3Server


@pytest.fixture
def lab(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    monkeypatch.setenv("HOME", str(tmp_path))
    return s3


def put(key: str, content: bytes) -> None:
    open_s3().pipe_file(f"lab/{key}", content)


def fault(spec: TextSpec) -> Diagnostic:
    with pytest.raises(DiagnosticError) as caught:
        open_dataset(spec, Path())
    (diagnostic,) = caught.value.diagnostics
    return diagnostic


def test_the_same_data_as_on_a_disk(lab: S3Server, tmp_path: Path) -> None:
    for name, text in (("b.txt", "so it goes\n"), ("a.txt", "and on\n")):
        put(f"texts/{name}", text.encode())
        (tmp_path / name).write_text(text)
    far, near = (open_dataset(TextSpec(f"{place}*.txt"), tmp_path) for place in ("s3://lab/texts/", ""))
    assert far.identity() == near.identity()
    np.savez(tmp_path / "rows.npz", x=np.arange(6.0, dtype=np.float32).reshape(3, 2))
    put("rows.npz", (tmp_path / "rows.npz").read_bytes())
    far, near = (open_dataset(ArraysSpec(path), tmp_path) for path in ("s3://lab/rows.npz", "rows.npz"))
    assert far.identity() == near.identity()
    np.testing.assert_array_equal(far.take("x", np.arange(3)), near.take("x", np.arange(3)))  # type: ignore[union-attr]


def test_an_object_is_fetched_once_until_it_changes(lab: S3Server, tmp_path: Path) -> None:
    def opened() -> str:
        (path,) = open_dataset(TextSpec("s3://lab/once.txt"), tmp_path).paths  # type: ignore[union-attr]
        assert path.name == "once.txt" and path.is_relative_to(tmp_path / ".cache" / "sexpgpu" / "s3")
        return path.read_text()

    def num_fetched() -> int:
        return sum(request.method == "GET" and "/lab/once.txt" in request.path for request in lab.requests)

    with lab.failing(lambda request: None):
        put("once.txt", b"first")
        assert (opened(), opened(), num_fetched()) == ("first", "first", 1)
        put("once.txt", b"other")
        assert (opened(), num_fetched()) == ("other", 2)
    assert not [p for p in (tmp_path / ".cache").rglob("*.tmp")]


def test_what_is_not_there_or_not_permitted(lab: S3Server) -> None:
    for written in ("s3://lab/missing.txt", "s3://nowhere/a.txt", "s3://lab/missing/*.txt"):
        diagnostic = fault(TextSpec(written))
        assert diagnostic.code == "E-DATA-001" and written in diagnostic.message, written
    put("closed.txt", b"text")
    with lab.failing(lambda request: "denied"):
        diagnostic = fault(TextSpec("s3://lab/closed.txt"))
    assert diagnostic.code == "E-DATA-002" and "denies" in diagnostic.message and "AWS_PROFILE" in diagnostic.help[0]
    with lab.failing(lambda request: "denied" if request.method == "GET" and "closed" in request.path else None):
        assert fault(TextSpec("s3://lab/closed.txt")).code == "E-DATA-002"


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    open_s3.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "s3fs", None)
    diagnostic = fault(TextSpec("s3://lab/a.txt"))
    assert diagnostic.code == "E-IO-005" and diagnostic.help == ("pip install 'sexpgpu[s3]'",)
