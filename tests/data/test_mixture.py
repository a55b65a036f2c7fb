"""Streams, mixtures and zips: which rows arrive, in every order of asking."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from sexpgpu.data import Loader, Mixture, Rows, StreamLoader, Streams, Windows, Zipped
from sexpgpu.data.mixture import BLOCK
from sexpgpu.diagnostics import DiagnosticError
from tests.data.test_loader import numbers, same, tokens


def mixture(weights=lambda step: [1.0, 3.0], **options) -> Mixture:
    given = {"batch": 8, "shuffle": True, "seed": 3, **options}
    return Mixture("m", [Rows(numbers(50)), Rows(far(20))], weights, "", **given)


def far(size: int):
    data = numbers(size)
    data.stored["x"] = data.stored["x"] + 1000
    return data


class TestStreams:
    @pytest.mark.parametrize("groups", [1, 3])
    def test_rows_go_on(self, groups: int) -> None:
        loader = StreamLoader("s", Streams(tokens(205), 4), 2, groups)
        assert loader.batches_per_epoch == 51 // (2 * groups) * groups
        for m in range(2 * loader.batches_per_epoch):
            batch, after = loader.batch(m), loader.batch(m + groups)
            begins = m % loader.batches_per_epoch < groups
            assert batch["first"].tolist() == [begins] * 2
            assert batch["valid"].all()
            if not after["first"][0]:
                np.testing.assert_array_equal(after["tokens"][:, 0], batch["targets"][:, -1])

    def test_an_epoch_reads_no_window_twice(self) -> None:
        loader = StreamLoader("s", Streams(tokens(205), 4), 2, 3)
        read = [loader.batch(m)["tokens"] for m in range(loader.batches_per_epoch)]
        assert len(np.unique(np.concatenate(read))) == loader.batches_per_epoch * 8
        assert same(loader.batch(loader.batches_per_epoch), loader.batch(0))

    def test_only(self) -> None:
        assert loader_fields(StreamLoader("s", Streams(tokens(50), 4), 2, 1), ["first"]) == {"first"}

    def test_too_short(self) -> None:
        with pytest.raises(DiagnosticError, match=r"E-DATA-003.*8 streams.*5 windows"):
            StreamLoader("s", Streams(tokens(21), 4), 4, 2)


def loader_fields(loader, only: Sequence[str]) -> set[str]:
    return set(loader.batch(0, only))


class TestMixture:
    def test_pure_in_m(self) -> None:
        asked = [700, 3, 0, 699, 300, 3]
        a, b = mixture(), mixture()
        forward = {m: a.batch(m) for m in sorted(asked)}
        assert all(same(b.batch(m), forward[m]) for m in asked)

    def test_each_source_gives_its_rows_in_order(self) -> None:
        loader = mixture()
        rows = np.concatenate([loader.batch(m)["x"] for m in range(BLOCK + 20)])
        for low, size in ((0, 50), (1000, 20)):
            own = rows[(rows >= low) & (rows < low + 1000)]
            whole = own[: len(own) // size * size].reshape(-1, size)
            assert len(whole) > 5
            np.testing.assert_array_equal(np.sort(whole, axis=1), np.tile(np.arange(low, low + size), (len(whole), 1)))
            assert not np.array_equal(whole[0], whole[1])

    def test_shares(self) -> None:
        loader = mixture()
        rows = np.concatenate([loader.batch(m)["x"] for m in range(400)])
        assert abs(np.mean(rows >= 1000) - 0.75) < 0.03

    def test_weights_follow_the_step(self) -> None:
        asked = []

        def weights(step: int) -> list[float]:
            asked.append(step)
            return [1.0, 0.0] if step <= 2 else [0.0, 2.0]

        loader = mixture(weights, per_step=3)
        assert [bool((loader.batch(m)["x"] >= 1000).all()) for m in range(9)] == [False] * 6 + [True] * 3
        assert asked[0] == 1

    def test_order_depends_on_seed_and_name(self) -> None:
        a, b = mixture(), mixture(seed=4)
        assert not same(a.batch(0), b.batch(0))
        other = Mixture("n", [Rows(numbers(50)), Rows(far(20))], lambda step: [1.0, 3.0], "", 8, True, 3)
        assert not same(a.batch(0), other.batch(0))

    def test_a_step_without_weights_is_told_when_it_comes(self) -> None:
        loader = mixture(lambda step: [2.0 - step, 0.0])
        loader.batch(0)
        with pytest.raises(DiagnosticError, match=r"E-DATA-003.*at step 2"):
            loader.batch(1)
        with pytest.raises(DiagnosticError, match=r"E-DATA-003.*at step 2"):
            loader.batch(BLOCK + 1)

    def test_windows(self) -> None:
        loader = Mixture("m", [Windows(tokens(90), 4), Windows(tokens(60), 4)], lambda step: [1, 1], "", 6, True)
        batch = loader.batch(40)
        np.testing.assert_array_equal(batch["tokens"] + 1, batch["targets"])
        assert loader.tokens_per_batch == 24

    def test_fields_must_agree(self) -> None:
        with pytest.raises(DiagnosticError, match=r"E-DATA-005.*fields differ"):
            Mixture("m", [Windows(tokens(90), 4), Windows(tokens(60), 5)], lambda step: [1, 1], "", 6)


class TestZip:
    def test_parts_read_the_same_number(self) -> None:
        a, b = Loader("a", Rows(numbers(10)), 2), Loader("b", Rows(far(7)), 3, True, "pad")
        loader = Zipped("z", {"a": a, "b": b})
        assert loader.fields.keys() == {"a.x", "a.valid", "b.x", "b.valid"}
        assert loader.batches_per_epoch == 3
        assert loader.padding == {"b.": "b.valid"}
        for m in range(12):
            batch = loader.batch(m, ["a.x", "b.valid"])
            np.testing.assert_array_equal(batch.pop("a.x"), a.batch(m)["x"])
            np.testing.assert_array_equal(batch.pop("b.valid"), b.batch(m)["valid"])
            assert not batch

    def test_unknown_field(self) -> None:
        with pytest.raises(DiagnosticError, match=r"E-DATA-005.*`a\.y`"):
            Zipped("z", {"a": Loader("a", Rows(numbers(10)), 2)}).batch(0, ["a.y"])
