"""Views and loaders: which rows arrive, in every epoch and in every order of asking."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sexpgpu.data import Arrays, ArraysSpec, Loader, Part, Rows, TextSpec, TokenStream, Windows, open_dataset
from sexpgpu.data.codec import IdCodec
from sexpgpu.data.ids import HeldShard, ShardedIds
from sexpgpu.data.permutation import FeistelOrder, StoredOrder, draw_order, epoch_generator
from sexpgpu.data.spec import TokensSpec
from sexpgpu.data.views import resolve
from sexpgpu.diagnostics import DiagnosticError

Last = Literal["drop", "pad", "error"]


def numbers(size: int) -> Arrays:
    return Arrays(ArraysSpec("numbers.npz"), {"x": np.arange(size, dtype=np.int64)}, ())


def tokens(size: int, shard: int = 1 << 30) -> TokenStream:
    ids = np.arange(size, dtype=np.uint32)
    shards = [HeldShard(f"t-{at}.bin", ids[at : at + shard]) for at in range(0, size, shard)]
    return TokenStream(TokensSpec("t.bin", max(1, size)), ShardedIds(shards), IdCodec(max(1, size)), ())


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[k], b[k]) and a[k].dtype == b[k].dtype for k in a)


class TestParts:
    @given(st.integers(2, 10_000), st.floats(0.01, 0.99))
    def test_neighbours_share_nothing_and_lose_nothing(self, size: int, at: float) -> None:
        cut = int(size * at)
        if 0 < cut < size:
            left, right = Part(numbers(size), 0.0, at), Part(numbers(size), at, 1.0)
            assert resolve(left)[1:] == (0, cut) and resolve(right)[1:] == (cut, size)

    def test_nested(self) -> None:
        assert resolve(Part(Part(numbers(1000), 0.5, 1.0), 0.1, 0.9))[1:] == (550, 950)

    @pytest.mark.parametrize(("start", "stop"), [(0.5, 0.5), (0.9, 0.1), (-0.1, 0.5), (0.5, 1.1), (0.0, 0.01)])
    def test_empty(self, start: float, stop: float) -> None:
        with pytest.raises(DiagnosticError, match=r"E-DATA-003.*holds nothing"):
            Part(numbers(10), start, stop)

    def test_views_stay_inside(self) -> None:
        batch = Loader("l", Rows(Part(numbers(100), 0.9, 1.0)), 10).batch(0)
        assert batch["x"].tolist() == list(range(90, 100))
        windows = Windows(Part(tokens(100), 0.5, 0.75), 8)
        for shuffle in (False, True):
            loader = Loader("l", windows, 2, shuffle=shuffle)
            seen = np.concatenate([loader.batch(m)["targets"] for m in range(50)])
            assert seen.min() > 50 and seen.max() < 75


class TestExact:
    def test_rows_in_order(self) -> None:
        loader = Loader("l", Rows(numbers(7)), 3)
        assert loader.batches_per_epoch == 2
        assert [loader.batch(m)["x"].tolist() for m in range(4)] == [[0, 1, 2], [3, 4, 5]] * 2

    def test_windows_in_order(self) -> None:
        loader = Loader("l", Windows(tokens(13), 3), 2)
        assert loader.batches_per_epoch == 2
        assert loader.fields == {
            "tokens": ("i32", (2, 3)),
            "targets": ("i32", (2, 3)),
            "valid": ("bool", (2,)),
        }
        batch = loader.batch(3)
        assert batch["tokens"].tolist() == [[6, 7, 8], [9, 10, 11]]
        assert batch["targets"].tolist() == [[7, 8, 9], [10, 11, 12]]
        for array in (batch["tokens"], batch["targets"]):
            assert array.dtype == np.int32 and array.flags.c_contiguous and array.flags.writeable

    def test_shuffled_golden(self) -> None:
        """The meaning of a seed: a change here breaks the resume of every run."""
        loader = Loader("train", Rows(numbers(8)), 4, shuffle=True, seed=1337)
        assert [loader.batch(m)["x"].tolist() for m in range(4)] == GOLDEN_ROWS
        windows = Loader("train", Windows(tokens(40), 8), 2, shuffle=True, seed=1337)
        assert [windows.batch(m)["tokens"][:, 0].tolist() for m in range(4)] == GOLDEN_WINDOWS

    def test_key_holds_seed_name_and_epoch(self) -> None:
        def order(name: str, seed: int, epoch: int) -> list[int]:
            loader = Loader(name, Rows(numbers(50)), 50, shuffle=True, seed=seed)
            return loader.batch(epoch)["x"].tolist()

        orders = [order(n, s, e) for n in ("a", "b") for s in (0, 1, -1, 1 << 70) for e in (0, 1)]
        assert len({tuple(o) for o in orders}) == len(orders)

    def test_only(self) -> None:
        loader = Loader("l", Windows(tokens(40), 8), 2, shuffle=True)
        whole = loader.batch(5)
        assert set(whole) == set(loader.fields)
        for name in whole:
            assert same(loader.batch(5, only=[name]), {name: whole[name]})
        assert loader.batch(5, only=()) == {}
        with pytest.raises(DiagnosticError, match=r"E-DATA-005.*`token`"):
            loader.batch(0, only={"token"})


@st.composite
def loaders(draw: st.DrawFn) -> Callable[[], Loader]:
    size, batch, seed = draw(st.integers(30, 300)), draw(st.integers(1, 5)), draw(st.integers(0, 9))
    shuffle, last = draw(st.booleans()), draw(st.sampled_from(["drop", "pad"]))
    length, shard = draw(st.integers(1, 5)), draw(st.integers(3, 400))
    if draw(st.booleans()):
        return lambda: Loader("l", Rows(numbers(size)), batch, shuffle, last, seed)
    return lambda: Loader("l", Windows(tokens(size, shard), length), batch, shuffle, last, seed)


class TestLaws:
    @settings(deadline=None)
    @given(loaders(), st.lists(st.integers(0, 400), min_size=1, max_size=20))
    def test_pure_in_m(self, make: Callable[[], Loader], asked: list[int]) -> None:
        loader, fresh = make(), {m: make().batch(m) for m in asked}
        assert all(same(loader.batch(m), fresh[m]) for m in [*asked, *reversed(asked)])

    @settings(deadline=None)
    @given(loaders(), st.integers(0, 5))
    def test_no_repetition_in_an_epoch(self, make: Callable[[], Loader], epoch: int) -> None:
        loader = make()
        num = loader.batches_per_epoch
        batches = [loader.batch(epoch * num + i) for i in range(num)]
        field = "x" if "x" in loader.fields else "tokens"
        valid = np.concatenate([b["valid"] for b in batches])
        seen = np.concatenate([b[field] for b in batches])[valid]
        for name, (dtype, shape) in loader.fields.items():
            assert all(b[name].shape == shape for b in batches), (name, dtype)
        assert len(np.unique(seen)) == seen.size
        assert len(seen) == (loader.num_rows if loader.last == "pad" else num * loader.batch_size)
        if not loader.shuffle:
            assert (np.sort(seen.reshape(-1)) == np.arange(seen.size)).all()

    @given(st.integers(2, 200), st.integers(1, 50))
    def test_every_offset_fits_as_many_windows(self, size: int, length: int) -> None:
        if size <= length:
            return
        windows = Windows(tokens(size), length)
        num, offsets = windows.num_shuffled_rows, windows.num_offsets
        assert 1 <= offsets <= length and windows.num_rows == (size - 1) // length
        last = windows.take(np.array([num - 1]), offsets - 1, windows.fields)
        assert last["targets"][0, -1] < size
        assert offsets == length or (num == 1 and last["targets"][0, -1] == size - 1)

    def test_boundaries_differ_between_epochs(self) -> None:
        loader = Loader("l", Windows(tokens(1000), 16), 4, shuffle=True)
        offsets = {int(loader.batch(e * loader.batches_per_epoch)["tokens"][0, 0]) % 16 for e in range(200)}
        assert offsets == set(range(16))

    def test_threads_agree(self) -> None:
        loader = Loader("l", Rows(numbers(1000)), 10, shuffle=True)
        expected = [Loader("l", Rows(numbers(1000)), 10, shuffle=True).batch(m) for m in range(0, 3000, 37)]
        with ThreadPoolExecutor(8) as pool:
            got = list(pool.map(loader.batch, range(0, 3000, 37)))
        assert all(map(same, got, expected))


class TestLast:
    def test_pad(self) -> None:
        loader = Loader("l", Rows(numbers(7)), 3, last="pad")
        assert loader.batches_per_epoch == 3
        batch = loader.batch(2)
        assert batch["x"].tolist() == [6, 0, 0] and batch["valid"].tolist() == [True, False, False]
        assert loader.batch(1)["valid"].all()

    def test_pad_below_one_batch(self) -> None:
        batch = Loader("l", Windows(tokens(9), 8), 3, last="pad").batch(4)
        assert batch["tokens"].tolist() == [list(range(8))] * 3 and batch["valid"].tolist() == [
            True,
            False,
            False,
        ]

    def test_error(self) -> None:
        assert Loader("l", Rows(numbers(6)), 3, last="error").batches_per_epoch == 2
        with pytest.raises(DiagnosticError, match=r"E-DATA-003.*7 rows.*batches of 3.*1 are left"):
            Loader("l", Rows(numbers(7)), 3, last="error")

    @pytest.mark.parametrize("last", ["drop", "error"])
    def test_fewer_rows_than_a_batch(self, last: Last) -> None:
        with pytest.raises(DiagnosticError) as caught:
            Loader("l", Rows(numbers(7)), 8, last=last)
        (found,) = caught.value.diagnostics
        assert found.code == "E-DATA-003" and "8 rows" in found.message and "7 rows" in found.message
        assert "at most 7" in found.help[0]

    def test_shorter_than_a_window(self) -> None:
        with pytest.raises(DiagnosticError) as caught:
            Windows(Part(tokens(100), 0.9, 1.0), 64)
        (found,) = caught.value.diagnostics
        assert found.code == "E-DATA-003" and "10 tokens" in found.message and "needs 65" in found.message
        assert "`:length` at most 9" in found.help[0]
        with pytest.raises(DiagnosticError, match=r"E-DATA-003"):
            Windows(tokens(1), 1)

    def test_wrong_kind(self) -> None:
        with pytest.raises(DiagnosticError, match=r"E-DATA-005.*no rows"):
            Rows(tokens(10))
        with pytest.raises(DiagnosticError, match=r"E-DATA-005.*no windows"):
            Windows(numbers(10), 2)
        with pytest.raises(DiagnosticError, match=r"E-DATA-002.*`valid`"):
            Rows(Arrays(ArraysSpec("a.npz"), {"valid": np.ones(3)}, ()))
        for make in (lambda: Windows(tokens(10), 0), lambda: Loader("l", Rows(numbers(3)), 0)):
            with pytest.raises(DiagnosticError, match=r"E-DATA-003"):
                make()


class TestOrders:
    @settings(deadline=None)
    @given(st.integers(1, 3000), st.integers(0, 1 << 62))
    def test_feistel_is_a_bijection(self, size: int, seed: int) -> None:
        order = draw_order(size, np.random.default_rng(seed), largest_stored=0)
        assert isinstance(order, FeistelOrder)
        assert np.array_equal(np.sort(order(np.arange(size))), np.arange(size))

    def test_feistel_of_a_huge_source(self) -> None:
        size = 3 * 10**12 + 7
        order = draw_order(size, epoch_generator(0, "l", 0))
        assert isinstance(order, FeistelOrder)
        rows = order(np.arange(100_000))
        assert rows.min() >= 0 and rows.max() < size and len(np.unique(rows)) == len(rows)
        deciles = np.histogram(rows, bins=10, range=(0, size))[0]
        assert (abs(deciles - 10_000) < 600).all()
        assert abs(np.corrcoef(rows[:-1].astype(float), rows[1:].astype(float))[0, 1]) < 0.02
        assert (order(np.arange(50_000, 50_010)) == rows[50_000:50_010]).all()

    def test_stored_below_the_limit(self) -> None:
        order = draw_order(1000, epoch_generator(0, "l", 0))
        assert isinstance(order, StoredOrder)
        assert np.array_equal(np.sort(order(np.arange(1000))), np.arange(1000))


def test_nanogpt_split(tmp_path: Path) -> None:
    """Part of a text: nanoGPT's `int(n * 0.9)`."""
    (tmp_path / "a.txt").write_text("abcdefghij" * 111)
    text: Any = open_dataset(TextSpec("a.txt"), tmp_path)
    batch = Loader("l", Windows(Part(text, 0.9, 1.0), 4), 1).batch(0)
    assert text.decode(batch["tokens"][0]) == ("abcdefghij" * 111)[int(1110 * 0.9) :][:4]


GOLDEN_ROWS = [[5, 6, 4, 7], [3, 1, 2, 0], [3, 2, 4, 1], [5, 0, 6, 7]]
GOLDEN_WINDOWS = [[2, 26], [10, 18], [30, 14], [6, 22]]
