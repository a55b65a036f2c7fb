"""`sexpgpu fmt` as a user calls it."""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sexpgpu.cli.main import main

ROUGH, SMOOTH = "(def  a 1)\n\n\n(def b\n     2)", "(def a 1)\n\n(def b\n  2)\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files in need of it, and one that is not; the working directory."""
    (tmp_path / "rough.sx").write_text(ROUGH)
    (tmp_path / "smooth.sx").write_text(SMOOTH)
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "layers.sx").write_text(ROUGH)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def fmt(*arguments: str, given: str | bytes | None = None) -> Result:
    return CliRunner().invoke(main, ["fmt", *arguments], input=given, catch_exceptions=False)


def test_files_are_rewritten_and_named(folder: Path) -> None:
    result = fmt("rough.sx", "smooth.sx")
    assert (result.exit_code, result.output) == (0, "rough.sx: formatted\n1 of 2 files changed\n")
    assert (folder / "rough.sx").read_text() == (folder / "smooth.sx").read_text() == SMOOTH
    assert fmt("rough.sx").output == "0 of 1 file changed\n"


def test_folders_are_searched(folder: Path) -> None:
    (folder / ".hidden").mkdir()
    (folder / ".hidden" / "a.sx").write_text(ROUGH)
    (folder / "runs" / "a").mkdir(parents=True)
    (folder / "runs" / "a" / "experiment.sx").write_text(ROUGH)
    (folder / "runs" / "a" / "status.json").write_text("{}")
    result = fmt(".")
    assert result.output == "parts/layers.sx: formatted\nrough.sx: formatted\n2 of 3 files changed\n"
    assert (folder / "runs" / "a" / "experiment.sx").read_text() == ROUGH


def test_check_and_diff_write_nothing(folder: Path) -> None:
    result = fmt("--check", "rough.sx", "smooth.sx")
    assert (result.exit_code, result.output) == (1, "rough.sx: would change\n1 of 2 files would change\n")
    assert fmt("--check", "smooth.sx").exit_code == 0
    result = fmt("--diff", "rough.sx", "smooth.sx")
    assert result.exit_code == 0
    assert result.output.startswith("--- rough.sx\n+++ rough.sx, formatted\n@@ ") and "\n+(def a 1)\n" in result.output
    assert fmt("--diff", "--check", "rough.sx").exit_code == 1
    assert (folder / "rough.sx").read_text() == ROUGH


def test_standard_input(folder: Path) -> None:
    assert fmt("-", given=ROUGH).output == SMOOTH
    assert fmt("-", "--check", given=SMOOTH).exit_code == 0
    result = fmt("-", "--check", given=ROUGH)
    assert (result.exit_code, result.output) == (1, "<standard input>: would change\n")
    assert "E-READ-002" in fmt("-", given=b"\xff").stderr
    assert fmt("-", "rough.sx", given=ROUGH).exit_code == 2


def test_faults_leave_a_file_as_it_is_and_the_others_are_done(folder: Path) -> None:
    (folder / "broken.sx").write_text("(def  a (+ 1)\n")
    (folder / "latin.sx").write_bytes(b'(def a "\xe9")')
    (folder / "empty").mkdir()
    result = fmt("broken.sx", "latin.sx", "none.sx", "empty", "rough.sx")
    assert result.exit_code == 1
    heads = [line.split()[2] for line in result.stderr.splitlines() if line.startswith("sexpgpu fmt: E-")]
    assert sorted(heads) == ["E-READ-001:", "E-READ-001:", "E-READ-002:", "E-READ-003:"]
    assert (folder / "broken.sx").read_text() == "(def  a (+ 1)\n"
    assert (folder / "rough.sx").read_text() == SMOOTH


def test_links_and_permissions_stay(folder: Path) -> None:
    (folder / "rough.sx").chmod(0o640)
    (folder / "link.sx").symlink_to("rough.sx")
    assert fmt("link.sx").exit_code == 0
    assert (folder / "link.sx").is_symlink()
    assert (folder / "rough.sx").read_text() == SMOOTH
    assert (folder / "rough.sx").stat().st_mode & 0o777 == 0o640


def test_what_cannot_be_written_is_said_and_stays_whole(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("sexpgpu.train.files.os.fsync", refuse)
    result = fmt("rough.sx")
    assert result.exit_code == 1 and result.stderr.startswith("sexpgpu fmt: E-IO-001: cannot write `")
    assert (folder / "rough.sx").read_text() == ROUGH
    assert sorted(p.name for p in folder.iterdir()) == ["parts", "rough.sx", "smooth.sx"]
