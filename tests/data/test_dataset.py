"""Opening data: formats, codecs, identities, and every fault that a file can have."""

from __future__ import annotations

import json
import os
import resource
import zipfile
from itertools import chain
from mmap import mmap
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sexpgpu.data import (
    Arrays,
    ArraysSpec,
    DataSpec,
    Loader,
    Rows,
    TextSpec,
    TokensSpec,
    TokenStream,
    Windows,
    ids,
    open_dataset,
)
from sexpgpu.data.ids import FileShard, HeldShard, ShardedIds
from sexpgpu.diagnostics import Diagnostic, DiagnosticError


def write_llmc(path: Path, ids: list[int], magic: int = 20240520, version: int = 1, count: int | None = None) -> None:
    header = np.zeros(256, dtype="<i4")
    header[:3] = magic, version, len(ids) if count is None else count
    path.write_bytes(header.tobytes() + np.array(ids, dtype="<u2" if magic == 20240520 else "<u4").tobytes())


def fault(spec: DataSpec, base: Path) -> Diagnostic:
    with pytest.raises(DiagnosticError) as caught:
        open_dataset(spec, base)
    (diagnostic,) = caught.value.diagnostics
    return diagnostic


def stream(spec: TextSpec | TokensSpec, base: Path) -> TokenStream:
    opened = open_dataset(spec, base)
    assert isinstance(opened, TokenStream)
    return opened


def arrays(spec: ArraysSpec, base: Path) -> Arrays:
    opened = open_dataset(spec, base)
    assert isinstance(opened, Arrays)
    return opened


class TestText:
    def test_characters_are_sorted_and_distinct(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_text("héllo wörld", encoding="utf-8")
        text = stream(TextSpec("a.txt"), tmp_path)
        assert text.vocabulary == len(set("héllo wörld"))
        assert text.ids[:].tolist() == [sorted(set("héllo wörld")).index(c) for c in "héllo wörld"]
        assert text.decode(text.ids[:]) == "héllo wörld"

    @given(st.text(min_size=1))
    def test_encode_and_decode_are_inverse(self, content: str) -> None:
        from sexpgpu.data.codec import ByteCodec, characters_of

        content = content.replace("\r\n", "\n")
        codec = characters_of([content[:3], content[3:]])
        (ids,) = codec.encode_all([content])
        assert codec.encode(content) == ids.tolist() and codec.decode(ids) == content
        assert ByteCodec().decode(ByteCodec().encode(content)) == content

    def test_line_ends_and_byte_order_mark(self, tmp_path: Path) -> None:
        (tmp_path / "unix.txt").write_bytes(b"one\ntwo\n")
        (tmp_path / "dos.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
        unix, dos = (stream(TextSpec(name), tmp_path) for name in ("unix.txt", "dos.txt"))
        assert dos.vocabulary == unix.vocabulary and dos.ids[:].tolist() == unix.ids[:].tolist()
        assert dos.encode("o\r\nt") == dos.encode("o\nt")
        by_bytes = stream(TextSpec("dos.txt", by="bytes"), tmp_path)
        assert bytes(by_bytes.ids[:].tolist()) == b"\xef\xbb\xbfone\r\ntwo\r\n" and by_bytes.vocabulary == 256

    def test_bytes_need_not_be_utf8(self, tmp_path: Path) -> None:
        (tmp_path / "raw").write_bytes(b"\xff\x00abc")
        raw = stream(TextSpec("raw", by="bytes"), tmp_path)
        assert raw.ids[0] == 255 and raw.decode(raw.ids[:]) == "\ufffd\0abc" and raw.encode("é") == [0xC3, 0xA9]

    @pytest.mark.parametrize(
        ("content", "place", "help"),
        [
            (b"good\nba\xffd", "byte 0xff at offset 7 (line 2)", "UTF-8"),
            (b"\xef\xbb\xbfgood\nba\xffd", "byte 0xff at offset 10 (line 2)", "UTF-8"),
            ("text".encode("utf-16"), "byte 0xff at offset 0 (line 1)", "UTF-16"),
        ],
    )
    def test_not_utf8(self, tmp_path: Path, content: bytes, place: str, help: str) -> None:
        (tmp_path / "latin.txt").write_bytes(content)
        found = fault(TextSpec("latin.txt"), tmp_path)
        assert found.code == "E-DATA-002" and place in found.message and help in found.help[0]

    def test_unknown_character(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_text("abc")
        with pytest.raises(DiagnosticError, match=r"E-DATA-004.*'z'.*character 2"):
            stream(TextSpec("a.txt"), tmp_path).encode("abz")

    @pytest.mark.parametrize("bad", [-1, 3])
    def test_decode_outside_the_vocabulary(self, tmp_path: Path, bad: int) -> None:
        (tmp_path / "a.txt").write_text("abc")
        with pytest.raises(DiagnosticError, match=rf"E-DATA-004.*id {bad} at position 1"):
            stream(TextSpec("a.txt"), tmp_path).decode([0, bad])

    @pytest.mark.parametrize("by", ["characters", "bytes"])
    def test_empty(self, tmp_path: Path, by: str) -> None:
        (tmp_path / "empty.txt").touch()
        assert fault(TextSpec("empty.txt", by=by), tmp_path).code == "E-DATA-003"  # type: ignore[arg-type]

    def test_glob_joins_in_sorted_order(self, tmp_path: Path) -> None:
        for name, content in (("b.txt", "ba"), ("a.txt", "ab"), ("c.txt", "")):
            (tmp_path / name).write_text(content)
        for by in ("characters", "bytes"):
            text = stream(TextSpec("*.txt", by=by), tmp_path)  # type: ignore[arg-type]
            assert text.decode(text.ids[:]) == "abba"

    def test_python_topics(self, tmp_path: Path) -> None:
        whole = "\n\n".join(topics[k] for k in sorted(topics))
        text = stream(TextSpec("python:topics"), tmp_path)
        assert text.decode(text.ids[:]) == whole and text.vocabulary == len(set(whole))
        assert stream(TextSpec("python:topics", by="bytes"), tmp_path).ids[:].tolist() == list(whole.encode())
        assert text.identity()["files"][0]["bytes"] == len(whole.encode())
        assert "python:topics" in fault(TextSpec("python:topic"), tmp_path).help[0]


class TestPaths:
    def test_missing_names_the_nearest(self, tmp_path: Path) -> None:
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "topics.txt").write_text("x")
        found = fault(TextSpec("data/topic.txt"), tmp_path)
        assert found.code == "E-DATA-001" and "`data/topics.txt`" in found.help[0]

    def test_missing_folder_and_glob(self, tmp_path: Path) -> None:
        assert "no folder `nowhere`" in fault(TextSpec("nowhere/a.txt"), tmp_path).help[0]
        assert "no file matches" in fault(TokensSpec("train-*.bin", 10), tmp_path).message
        assert fault(TextSpec("."), tmp_path).code == "E-DATA-002"

    def test_base_before_current_directory(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "base").mkdir()
        (tmp_path / "here").mkdir()
        (tmp_path / "here" / "a.txt").write_text("here")
        monkeypatch.chdir(tmp_path / "here")
        assert len(stream(TextSpec("a.txt"), tmp_path / "base")) == 4
        (tmp_path / "base" / "a.txt").write_text("at base")
        assert len(stream(TextSpec("a.txt"), tmp_path / "base")) == 7
        assert len(stream(TextSpec(str(tmp_path / "here" / "a.txt")), tmp_path / "base")) == 4

    def test_names_with_glob_characters(self, tmp_path: Path) -> None:
        folder = tmp_path / "odd[1]"
        folder.mkdir()
        (folder / "a[b].txt").write_text("xyz")
        assert len(stream(TextSpec("a[b].txt"), folder)) == 3
        assert len(stream(TextSpec("*.txt"), folder)) == 3


class TestTokens:
    def test_formats_join_across_shards(self, tmp_path: Path) -> None:
        np.array([1, 2, 3], dtype="<u2").tofile(tmp_path / "t-0.bin")
        write_llmc(tmp_path / "t-1.bin", [4, 5])
        write_llmc(tmp_path / "t-2.bin", [6, 70000, 8], 20240801, 7)
        np.save(tmp_path / "t-3.npy", np.array([9, 10], dtype=np.uint16))
        tokens = stream(TokensSpec("t-*", 70001), tmp_path)
        assert len(tokens) == 10 and tokens.vocabulary == 70001
        assert np.asarray(tokens.ids).tolist() == [1, 2, 3, 4, 5, 6, 70000, 8, 9, 10]
        assert tokens.encode("15 70000") == [15, 70000] and tokens.decode([15, 70000]) == "15 70000"
        with pytest.raises(DiagnosticError, match=r"E-DATA-004.*`hello`"):
            tokens.encode("hello")
        first, second = (Loader("l", Windows(tokens, 3), 3).batch(0)[f] for f in ("tokens", "targets"))
        assert first.tolist() == [[1, 2, 3], [4, 5, 6], [70000, 8, 9]]
        assert second.tolist() == [[2, 3, 4], [5, 6, 70000], [8, 9, 10]]

    def test_shards_stay_on_disk(self, tmp_path: Path) -> None:
        write_llmc(tmp_path / "t.bin", list(range(100)))
        (shard,) = stream(TokensSpec("t.bin", 100), tmp_path).ids.shards
        assert isinstance(shard, FileShard) and shard.header_bytes == 1024

    @given(st.lists(st.lists(st.integers(0, 9), max_size=5), min_size=1, max_size=6), st.data())
    def test_sharded_ids_read_like_one_array(self, pieces: list[list[int]], data: st.DataObject) -> None:
        ids = ShardedIds([HeldShard(str(i), np.array(piece, dtype=np.uint8)) for i, piece in enumerate(pieces)])
        whole = np.array(list(chain.from_iterable(pieces)), dtype=np.uint8)
        assert len(ids) == len(whole) and ids[:].tolist() == whole.tolist()
        cut = data.draw(st.slices(len(whole)))
        assert ids[cut].tolist() == whole[cut].tolist()
        if len(whole):
            at = data.draw(st.lists(st.integers(-len(whole), len(whole) - 1)))
            assert ids[np.array(at, dtype=np.int64)].tolist() == whole[np.array(at, dtype=np.int64)].tolist()
            assert ids[-1] == whole[-1]
            length = data.draw(st.integers(1, len(whole)))
            begins = np.arange(len(whole) - length + 1)
            assert ids.windows(begins, length).tolist() == [whole[b : b + length].tolist() for b in begins]
        with pytest.raises(IndexError):
            ids[len(whole)]

    def test_shards_that_are_too_large_to_hold_read_the_same(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        draw = np.random.default_rng(0)
        whole = draw.integers(0, 60_000, 3000)
        whole[:1000].astype("<u2").tofile(tmp_path / "t-0.bin")
        write_llmc(tmp_path / "t-1.bin", whole[1000:1700].tolist(), 20240801, 7)
        np.save(tmp_path / "t-2.npy", whole[1700:2500].astype(">i4"))
        whole[2500:].astype("<u2").tofile(tmp_path / "t-3.bin")
        held = stream(TokensSpec("t-*", 60_000), tmp_path)
        assert held.ids[:].tolist() == whole.tolist()
        monkeypatch.setattr(ids, "RESIDENT_BYTES", 0)
        monkeypatch.setattr(ids, "FOUND_AT_ONCE", 100)
        read = stream(TokensSpec("t-*", 60_000), tmp_path)
        for length in (1, 7, 900):
            for begins in (draw.integers(0, 3001 - length, 20), np.arange(0, 3001 - length, length)[:50]):
                expected = np.stack([whole[b : b + length] for b in begins.tolist()])
                for each in (held, read):
                    np.testing.assert_array_equal(each.windows(begins, length), expected)
        begins, lengths = draw.integers(0, 2900, 30), draw.integers(0, 100, 30)
        rows = [each.ids.rows(begins, lengths, 100, 5) for each in (held, read)]
        np.testing.assert_array_equal(*rows)
        assert read.ids[990:1710].tolist() == whole[990:1710].tolist() and read.ids[-1] == whole[-1]
        assert read.ids.find([int(whole[1234])]).tolist() == held.ids.find([int(whole[1234])]).tolist()

    def test_outside_the_vocabulary_at_opening(self, tmp_path: Path) -> None:
        write_llmc(tmp_path / "t.bin", [1, 2, 99, 3])
        found = fault(TokensSpec("t.bin", 50), tmp_path)
        assert found.code == "E-DATA-004"
        assert "`t.bin` holds id 99 at offset 2 (byte 1028), outside the vocabulary of 50" in found.message

    def test_outside_the_vocabulary_in_a_batch(self, tmp_path: Path) -> None:
        ids = np.zeros(1_000_000, dtype="<u2")
        ids[4_500] = 300  # in no place that opening samples
        np.zeros(10_000, dtype="<u2").tofile(tmp_path / "t-0.bin")
        ids.tofile(tmp_path / "t-1.bin")
        loader = Loader("l", Windows(stream(TokensSpec("t-*.bin", 256), tmp_path), 100), 10)
        loader.batch(13)
        with pytest.raises(DiagnosticError, match=r"E-DATA-004.*`t-1.bin` holds id 300 at offset 4500 \(byte 9000\)"):
            loader.batch(14)

    def test_negative_ids(self, tmp_path: Path) -> None:
        np.save(tmp_path / "t.npy", np.array([1, -1], dtype=np.int32))
        assert "id -1 at offset 1 (byte 132)" in fault(TokensSpec("t.npy", 50), tmp_path).message

    def test_damaged(self, tmp_path: Path) -> None:
        (tmp_path / "odd.bin").write_bytes(b"abc")
        write_llmc(tmp_path / "short.bin", [1, 2, 3], count=9)
        write_llmc(tmp_path / "version.bin", [1, 2, 3], version=2)
        np.save(tmp_path / "float.npy", np.ones(3))
        for name, words in (
            ("odd.bin", "3 bytes"),
            ("short.bin", "promises 9 ids, and 3 follow"),
            ("version.bin", "version 2"),
            ("float.npy", "float64"),
        ):
            found = fault(TokensSpec(name, 50), tmp_path)
            assert found.code == "E-DATA-002" and words in found.message

    def test_empty(self, tmp_path: Path) -> None:
        write_llmc(tmp_path / "a.bin", [])
        (tmp_path / "b.bin").touch()
        assert fault(TokensSpec("*.bin", 50), tmp_path).code == "E-DATA-003"

    def test_more_shards_than_files_may_be_open_at_first(self, tmp_path: Path) -> None:
        for i in range(60):
            np.full(7, i, dtype="<u2").tofile(tmp_path / f"t-{i:03}.bin")
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/dev/fd")) + 20, before[1]))
        try:
            assert len(stream(TokensSpec("t-*.bin", 200), tmp_path)) == 420
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)

    def test_many_shards(self, tmp_path: Path) -> None:
        for i in range(200):
            np.full(7, i, dtype="<u2").tofile(tmp_path / f"t-{i:03}.bin")
        tokens = stream(TokensSpec("t-*.bin", 200), tmp_path)
        batch = Loader("l", Windows(tokens, 10), 139).batch(0)
        assert batch["tokens"].reshape(-1).tolist() == (np.arange(1390) // 7).tolist()


class TestArrays:
    def test_types(self, tmp_path: Path) -> None:
        stored = {
            name: np.ones((4, 2), dtype=name)
            for name in ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "?", ">f4", ">i8")
        }
        np.savez(tmp_path / "a.npz", allow_pickle=False, **stored)
        opened = arrays(ArraysSpec("a.npz"), tmp_path)
        expected = ["f32"] * 3 + ["i32"] * 3 + ["i64"] + ["i32"] * 2 + ["i64", "bool", "f32", "i64"]
        numpy_names = {"f32": "float32", "i32": "int32", "i64": "int64", "bool": "bool"}
        assert opened.schema == {name: (dtype, (2,)) for name, dtype in zip(stored, expected, strict=True)}
        batch = Loader("l", Rows(opened), 4).batch(0)
        for name, dtype in zip(stored, expected, strict=True):
            assert batch[name].dtype == np.dtype(numpy_names[dtype])
            assert batch[name].tolist() == stored[name].tolist()
            assert batch[name].flags.c_contiguous and batch[name].flags.writeable

    @pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
    def test_npz(self, tmp_path: Path, save: object) -> None:
        x, y = np.random.default_rng(0).normal(size=(5, 3, 2)).astype("f4"), np.arange(5)
        save(tmp_path / "a.npz", x=np.asfortranarray(x), y=y)  # type: ignore[operator]
        opened = arrays(ArraysSpec("a.npz"), tmp_path)
        assert len(opened) == 5
        assert (opened.stored["x"] == x).all() and (opened.stored["y"] == y).all()
        assert isinstance(opened.stored["x"].base, mmap) == (save is np.savez)

    def test_npy(self, tmp_path: Path) -> None:
        np.save(tmp_path / "x.npy", np.ones((3, 2), dtype="f4"))
        np.save(tmp_path / "y.npy", np.ones(3, dtype="i8"))
        assert list(arrays(ArraysSpec("x.npy"), tmp_path).schema) == ["x"]
        assert list(arrays(ArraysSpec("*.npy"), tmp_path).schema) == ["x", "y"]

    def test_rows_disagree(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "a.npz", x=np.ones((3, 2)), y=np.ones(4))
        found = fault(ArraysSpec("a.npz"), tmp_path)
        assert found.code == "E-DATA-006" and "`x` has 3 rows, `y` has 4 rows" in found.message
        np.savez(tmp_path / "b.npz", x=np.ones((3, 2)), y=np.float32(1))
        assert fault(ArraysSpec("b.npz"), tmp_path).code == "E-DATA-006"

    def test_empty(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "none.npz")
        np.savez(tmp_path / "rows.npz", x=np.ones((0, 2)))
        for name in ("none.npz", "rows.npz"):
            assert fault(ArraysSpec(name), tmp_path).code == "E-DATA-003"

    def test_damaged(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "good.npz", x=np.arange(100.0))
        good = (tmp_path / "good.npz").read_bytes()
        (tmp_path / "cut.npz").write_bytes(good[:-40])
        at = good.index(np.float64(50).tobytes())
        (tmp_path / "flipped.npz").write_bytes(good[:at] + b"\x01" + good[at + 1 :])
        np.save(tmp_path / "whole.npy", np.arange(100.0))
        (tmp_path / "cut.npy").write_bytes((tmp_path / "whole.npy").read_bytes()[:-1])
        (tmp_path / "empty.npy").touch()
        np.save(tmp_path / "objects.npy", np.array([{}]), allow_pickle=True)
        np.savez_compressed(tmp_path / "objects.npz", x=np.array([{}]))
        np.save(tmp_path / "complex.npy", np.ones(3, dtype="c8"))
        (tmp_path / "text.csv").write_text("1,2")
        with zipfile.ZipFile(tmp_path / "other.npz", "w") as archive:
            archive.writestr("readme.txt", "hello")
        for name in (
            "cut.npz", "flipped.npz", "cut.npy", "empty.npy", "objects.npy", "objects.npz", "complex.npy",
            "text.csv", "other.npz",
        ):  # fmt: skip
            found = fault(ArraysSpec(name), tmp_path)
            assert found.code == "E-DATA-002" and found.help, name

    def test_a_field_twice(self, tmp_path: Path) -> None:
        for name in ("a.npz", "b.npz"):
            np.savez(tmp_path / name, x=np.ones(3))
        assert "both hold the field `x`" in fault(ArraysSpec("*.npz"), tmp_path).message


class TestIdentity:
    def test_names_sizes_and_samples(self, tmp_path: Path) -> None:
        ids = np.arange(2_000_000, dtype="<u2")
        ids.tofile(tmp_path / "a.bin")
        spec = TokensSpec("a.bin", 65536)
        before = open_dataset(spec, tmp_path).identity()
        assert json.loads(json.dumps(before)) == before
        assert before["kind"] == "tokens" and before["files"][0]["name"] == "a.bin"
        assert before["files"][0]["bytes"] == 4_000_000
        (tmp_path / "moved").mkdir()
        (tmp_path / "a.bin").rename(tmp_path / "moved" / "a.bin")
        assert open_dataset(spec, tmp_path / "moved").identity() == before
        for changed in (0, len(ids) - 1):
            ids[changed] ^= 1
            ids.tofile(tmp_path / "a.bin")
            assert open_dataset(spec, tmp_path).identity() != before
            ids[changed] ^= 1

    def test_kinds(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_text("abc")
        np.save(tmp_path / "x.npy", np.ones(3))
        by_characters = open_dataset(TextSpec("a.txt"), tmp_path).identity()
        by_bytes = open_dataset(TextSpec("a.txt", by="bytes"), tmp_path).identity()
        assert by_characters != by_bytes and by_characters["files"] == by_bytes["files"]
        assert open_dataset(ArraysSpec("x.npy"), tmp_path).identity()["kind"] == "arrays"
