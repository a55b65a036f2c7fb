"""Documents packed into rows: every place once, nothing between documents, and a cursor that seeks for free."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sexpgpu.data import ArraysSpec, Loader, Packed, Part, TextSpec, TokensSpec, TokenStream, open_dataset
from sexpgpu.data.blank import blank
from sexpgpu.data.codec import IdCodec
from sexpgpu.data.ids import HeldShard, ShardedIds
from sexpgpu.diagnostics import DiagnosticError
from sexpgpu.lang.load import load_experiment
from tests.train.trial import Trial, write_experiment

END = 9
FIELDS = ("tokens", "targets", "document", "position", "mask")
documents = st.lists(st.lists(st.integers(0, 8), max_size=9), min_size=1, max_size=12)


def stream(found: list[list[int]], shard: int = 5) -> TokenStream:
    """Token shards that hold these documents, each with its end; the last may lack one."""
    ids = np.array([i for document in found for i in [*document, END]], np.uint16)
    shards = [HeldShard(f"{at}.bin", ids[at : at + shard]) for at in range(0, len(ids), shard)]
    return TokenStream(TokensSpec("t.bin", END + 1, END), ShardedIds(shards), IdCodec(END + 1), ())


def expected(found: list[list[int]], length: int, cut: bool) -> list[list[tuple[int, int, int]]]:
    """The rows, place by place: token, target, document. Written the slow way."""
    rows: list[list[tuple[int, int, int]]] = [[]]
    for number, document in enumerate(found):
        whole = [*document, END]
        places = [(a, b, number) for a, b in pairwise(whole)]
        if cut:
            for place in places:
                if len(rows[-1]) == length:
                    rows.append([])
                rows[-1].append(place)
            continue
        for at in range(0, len(places), length):
            piece = places[at : at + length]
            if len(rows[-1]) + len(piece) > length:
                rows.append([])
            rows[-1] += piece
    return rows if rows[-1] else rows[:-1]


@given(documents, st.integers(1, 7), st.booleans())
def test_rows_are_what_they_should_be(found: list[list[int]], length: int, cut: bool) -> None:
    if not any(found):
        with pytest.raises(DiagnosticError, match="E-DATA-003"):
            Packed(stream(found), length, cut)
        return
    view = Packed(stream(found), length, cut)
    rows = expected(found, length, cut)
    assert view.num_rows == view.num_shuffled_rows == len(rows)
    assert view.filled == pytest.approx(sum(map(len, rows)) / (len(rows) * length))
    taken = view.take(np.arange(len(rows)), 0, FIELDS)
    assert {n: ("bool" if a.dtype == bool else "i32", a.shape[1:]) for n, a in taken.items()} == view.fields
    for r, row in enumerate(rows):
        n = len(row)
        assert taken["mask"][r].tolist() == [i < n for i in range(length)]
        assert list(zip(taken["tokens"][r, :n], taken["targets"][r, :n], strict=True)) == [place[:2] for place in row]
        numbers = [place[2] for place in row]
        firsts = sorted(set(numbers))
        assert taken["document"][r].tolist() == [firsts.index(i) for i in numbers] + [-1] * (length - n)
        assert taken["position"][r, :n].tolist() == [i - numbers.index(d) for i, d in enumerate(numbers)]
        for name in ("tokens", "targets", "position"):
            assert not taken[name][r, n:].any()


@given(documents, st.integers(1, 7), st.integers(1, 3), st.data())
def test_a_batch_is_a_function_of_its_number(
    found: list[list[int]], length: int, batch: int, data: st.DataObject
) -> None:
    found = [*found, [1, 2]]
    a, b = (Loader("l", Packed(stream(found), length), batch, True, "pad", 7) for _ in range(2))
    forward = [a.batch(m) for m in range(2 * a.batches_per_epoch)]
    m = data.draw(st.integers(0, len(forward) - 1))
    assert all((b.batch(m)[n] == forward[m][n]).all() for n in forward[m])
    epoch = forward[: a.batches_per_epoch]
    places = [(t, u) for f in epoch for t, u in
              zip(f["tokens"][f["valid"]][f["mask"][f["valid"]]], f["targets"][f["valid"]][f["mask"][f["valid"]]],
                  strict=True)]  # fmt: skip
    assert sorted(places) == sorted(place[:2] for row in expected(found, length, False) for place in row)


def test_fields_alone_are_those_of_all() -> None:
    view = Packed(stream([[1, 2, 3], [4], [5, 6]]), 4)
    whole = view.take(np.arange(view.num_rows), 0, FIELDS)
    for name in FIELDS:
        (alone,) = view.take(np.arange(view.num_rows), 0, [name]).values()
        np.testing.assert_array_equal(alone, whole[name])


def test_a_part_cuts_documents_at_its_ends() -> None:
    whole = stream([[1, 2, 3, 4, 5], [6, 7, 8]])
    first, second = Packed(Part(whole, 0.0, 0.4), 8), Packed(Part(whole, 0.4, 1.0), 8)
    a, b = (view.take(np.arange(1), 0, FIELDS) for view in (first, second))
    assert a["tokens"][0].tolist() == [1, 2, 3, 0, 0, 0, 0, 0]
    assert b["tokens"][0].tolist() == [5, 6, 7, 8, 0, 0, 0, 0] and b["document"][0].tolist() == [0, 1, 1, 1, *[-1] * 4]


@pytest.mark.parametrize("by", ["characters", "bytes"])
def test_documents_of_a_text(tmp_path: Path, by: str) -> None:
    (tmp_path / "a.txt").write_text("one\n\ntwo\n\nthree\n\n\n\n")
    (tmp_path / "b.txt").write_text("four")
    for ends, parts in ((None, ["one\n\ntwo\n\nthree\n\n\n\n", "four"]),
                        ("\n\n", ["one\n\n", "two\n\n", "three\n\n", "\n\n", "four"])):  # fmt: skip
        text = open_dataset(TextSpec("?.txt", by, ends), tmp_path)  # type: ignore[arg-type]
        assert isinstance(text, TokenStream)
        stops = text.document_ends.tolist()
        assert [text.decode(text.ids[a:b]) for a, b in zip([0, *stops], stops, strict=False)] == parts


@given(st.lists(st.integers(0, 2), max_size=30), st.lists(st.integers(0, 2), min_size=1, max_size=3))
def test_what_is_sought_is_found_as_in_a_string(ids: list[int], sought: list[int]) -> None:
    found = ShardedIds([HeldShard("a", np.array(ids[:7], np.uint8)), HeldShard("b", np.array(ids[7:], np.uint8))])
    text, word = "".join(map(str, ids)), "".join(map(str, sought))
    places, at = [], text.find(word)
    while at >= 0:
        places.append(at + len(word))
        at = text.find(word, at + len(word))
    assert found.find(sought).tolist() == places


def test_faults(tmp_path: Path) -> None:
    np.array([1, 2, 3, 4], "<u2").tofile(tmp_path / "t.bin")
    np.savez(tmp_path / "a.npz", x=np.ones(3))
    for spec, code, words in (
        (TokensSpec("t.bin", 9), "E-DATA-003", "does not say where a document ends"),
        (TokensSpec("t.bin", 9, 7), "E-DATA-003", "no document of `t.bin` ends with 7"),
        (ArraysSpec("a.npz"), "E-DATA-005", "holds rows"),
    ):
        with pytest.raises(DiagnosticError) as caught:
            Packed(open_dataset(spec, tmp_path), 4)
        (found,) = caught.value.diagnostics
        assert found.code == code and words in found.message
    with pytest.raises(DiagnosticError, match="E-DATA-003"):
        Packed(stream([[1, 2]]), 0)


def test_blank_data_is_packed_too() -> None:
    """An editor checks a file whose data is missing; a source that does not say where documents end is at fault."""
    for spec in (TextSpec("t"), TokensSpec("t", 9, 3)):
        found = blank(spec, {})
        assert found is not None and Packed(found, 8).num_rows == 2**21
    nothing = blank(TokensSpec("t", 9), {})
    assert nothing is not None
    with pytest.raises(DiagnosticError, match="does not say where"):
        Packed(nothing, 8)


def test_the_digest_knows_whether_documents_are_cut() -> None:
    whole, cut = (Loader("l", Packed(stream([[1, 2], [3, 4]]), 4, cut), 1).identity() for cut in (False, True))
    assert whole != cut


MODEL = """
(defdata stories (text "stories.txt" :by bytes :ends "\\n"))
(defloader packed-rows (packed stories :length {length}) :batch {batch})
(defmetric nll (tokens targets document position mask)
  (let [x       (+ (embed (param table (f32 256 8) (normal 0.3)) tokens)
                   (embed (param places (f32 64 8) (normal 0.3)) position))
        [q k v] (unstack (rearrange "b t (n w) -> n b 1 t w" (linear x 24) :n 3))
        same    (= (rearrange "b t -> b 1 t 1" document) (rearrange "b s -> b 1 1 s" document))
        y       (rearrange "b h t w -> b t (h w)" (attention q k v :causal true :mask same))]
    (mean-over (cross-entropy (linear y 256 :name head) targets) mask)))
(defrun go :loader packed-rows :loss nll :optimizer (sgd :rate 0.1) :steps 2)
"""


def losses_of(folder: Path, length: int, batch: int, mask: str = ":mask same") -> list[float]:
    text = MODEL.format(length=length, batch=batch).replace(":mask same", mask)
    with Trial(load_experiment(write_experiment(folder, text))) as trial:
        batch_of_all = trial.experiment.loaders["packed-rows"]
        assert batch_of_all.batches_per_epoch == 1
        return trial.losses(2)


def test_packed_documents_train_as_if_each_stood_alone(tmp_path: Path) -> None:
    """One batch of three packed rows has the loss and the gradient of one with a row for each of six documents."""
    stories = ["the cat sat", "on a mat", "and slept", "an hour or", "then it went", "and then"]
    (tmp_path / "stories.txt").write_text("".join(story + "\n" for story in stories))
    alone, packed = losses_of(tmp_path, 12, 6), losses_of(tmp_path, 26, 3)
    np.testing.assert_allclose(packed, alone, rtol=2e-6)
    across = losses_of(tmp_path, 26, 3, ":mask (= same same)")
    assert abs(across[0] - alone[0]) > 1e-4
