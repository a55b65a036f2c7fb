"""Checkpoints: exact, published whole or not at all, and distrusted until verified."""

import errno
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

import sexpgpu
from sexpgpu.diagnostics import Diagnostic, DiagnosticError
from sexpgpu.train import checkpoint, files, store
from sexpgpu.train.checkpoint import Best
from sexpgpu.train.store import RECORD_FILE, STATE_FILE, FolderStore

PACKAGE_PARENT = Path(sexpgpu.__file__).parents[1]


def tensors_of(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "model/w": rng.standard_normal((3, 4)).astype(np.float32),
        "model/h": rng.standard_normal((2, 5)).astype(ml_dtypes.bfloat16),
        "count": np.array(7, np.int64),
        "ids": np.arange(6, dtype=np.int32).reshape(2, 3),
        "mask": np.array([True, False, True]),
        "none": np.zeros((0, 3), np.float32),
    }


def meta_of(tensors: dict[str, np.ndarray], **more: Any) -> dict[str, Any]:
    return {
        "experiment_digest": "sha256:aa",
        "cursor": {"epoch": 1, "position": 96},
        "seed": 17,
        "file_text": "(defrun r)\n; größer\n",
        "overrides": {"steps": 5},
        "roles": {name: "parameter" for name in tensors},
    } | more


def save(folder: Path, step: int, seed: int = 0) -> Path:
    tensors = tensors_of(seed)
    return save_tensors(folder, step, tensors, meta_of(tensors))


def save_tensors(folder: Path, step: int, tensors: dict[str, np.ndarray], meta: dict[str, Any]) -> Path:
    return folder / checkpoint.save(FolderStore(folder), step, tensors, meta)


def latest(folder: Path) -> tuple[str | None, list[tuple[str, str]]]:
    found, skipped = checkpoint.latest(FolderStore(folder))
    return None if found is None else checkpoint.name_of(found.step), skipped


def load(path: Path) -> checkpoint.Checkpoint:
    return checkpoint.load(FolderStore(path.parent), path.name)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def diagnostic_of(call: Callable[[], object]) -> Diagnostic:
    with pytest.raises(DiagnosticError) as caught:
        call()
    (diagnostic,) = caught.value.diagnostics
    return diagnostic


def rewrite(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the record of a checkpoint and its seal, as a hostile hand would."""
    file = path / RECORD_FILE
    record = json.loads(file.read_text())
    del record["sha256"]
    change(record)
    file.write_bytes(checkpoint._sealed(record))


def replace_state(path: Path, content: bytes) -> None:
    """Put other bytes in the place of the state, and a record that vouches for them."""
    state = path / STATE_FILE
    state.write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    rewrite(path, lambda record: record["state"].update(bytes=len(content), sha256=digest))


# --- round trip ---------------------------------------------------------------------------------


def test_load_gives_back_every_dtype_bit_for_bit(tmp_path: Path) -> None:
    tensors = tensors_of()
    patterns = np.arange(2**16, dtype=np.uint16)
    tensors["every bf16"] = patterns.view(ml_dtypes.bfloat16)  # NaN payloads and subnormals included
    tensors["nan"] = np.array([np.nan, -0.0, np.inf, 1e-45], np.float32)
    meta = meta_of(tensors, library_versions={"blas": "1.2"})
    path = save_tensors(tmp_path / "run" / "checkpoints", 100, tensors, meta)
    assert path == tmp_path / "run" / "checkpoints" / "step-00000100"

    loaded = load(path)
    assert loaded.step == 100
    assert loaded.meta == meta
    assert loaded.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        found = loaded.tensors[name]
        assert (found.dtype, found.shape, found.tobytes()) == (tensor.dtype, tensor.shape, tensor.tobytes())
        assert found.flags.writeable


def test_a_checkpoint_without_tensors_loads(tmp_path: Path) -> None:
    assert load(save_tensors(tmp_path, 0, {}, meta_of({}))).tensors == {}


def test_tensors_that_are_not_contiguous_are_saved_in_their_order(tmp_path: Path) -> None:
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    tensors = {"transposed": base.T, "strided": base[::2, 1::2], "reversed": base[::-1], "one": base[1:2, 2]}
    loaded = load(save_tensors(tmp_path, 1, tensors, meta_of(tensors))).tensors
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(loaded[name], tensor)


def test_equal_state_gives_equal_bytes(tmp_path: Path) -> None:
    tensors = tensors_of()
    backwards = dict(reversed(tensors.items()))
    first = save_tensors(tmp_path / "a", 3, tensors, meta_of(tensors))
    meta = dict(reversed(meta_of(backwards).items()))
    second = save_tensors(tmp_path / "b", 3, backwards, meta)
    for name in (STATE_FILE, RECORD_FILE):
        assert (first / name).read_bytes() == (second / name).read_bytes()
        assert (first / name).stat().st_mode & 0o777 == (second / name).stat().st_mode & 0o777
    modes = {(first / name).stat().st_mode for name in (STATE_FILE, RECORD_FILE)}
    assert len(modes) == 1


def test_the_record_names_and_measures_the_state(tmp_path: Path) -> None:
    path = save(tmp_path, 12)
    record = json.loads((path / RECORD_FILE).read_text())
    assert (record["format"], record["version"], record["step"]) == ("sexpgpu-checkpoint", 2, 12)
    assert record["state"]["file"] == "state.safetensors"
    assert record["state"]["bytes"] == (path / "state.safetensors").stat().st_size
    assert len(record["state"]["sha256"]) == 64
    sealed, *rest = record
    assert sealed == "sha256" and rest == sorted(rest)


def test_our_own_mistakes_are_caught_before_anything_is_written(tmp_path: Path) -> None:
    wide = {"w": np.zeros(2, np.float64)}
    with pytest.raises(AssertionError, match="float64"):
        save_tensors(tmp_path, 1, wide, meta_of(wide))
    with pytest.raises(AssertionError, match="only in tensors or only in roles"):
        save_tensors(tmp_path, 1, tensors_of(), meta_of({}))
    with pytest.raises(AssertionError, match="lacks"):
        save_tensors(tmp_path, 1, {}, {"roles": {}})
    assert names(tmp_path) == []


# --- replacing, pruning, cleaning ---------------------------------------------------------------


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    save(tmp_path, 5, seed=1)
    path = save(tmp_path, 5, seed=2)
    np.testing.assert_array_equal(load(path).tensors["model/w"], tensors_of(2)["model/w"])
    assert names(tmp_path) == ["step-00000005"]


def test_a_crash_between_the_two_renames_loses_nothing(tmp_path: Path) -> None:
    path = save(tmp_path, 5, seed=1)
    aside = path.rename(tmp_path / ".old-step-00000005")
    assert latest(tmp_path) == ("step-00000005", [])
    assert load(path).step == 5
    assert FolderStore(tmp_path).clean() == [aside.name]
    assert latest(tmp_path) == ("step-00000005", []) and path.is_dir()


def test_a_crash_after_the_two_renames_leaves_the_new_one(tmp_path: Path) -> None:
    shutil.copytree(save(tmp_path, 5, seed=1), tmp_path / ".old-step-00000005")
    path = save(tmp_path, 5, seed=2)
    assert names(tmp_path) == ["step-00000005"]
    shutil.copytree(path, tmp_path / ".old-step-00000005")
    FolderStore(tmp_path).clean()
    assert names(tmp_path) == ["step-00000005"]


def test_a_failed_rename_puts_the_earlier_one_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path, 5, seed=1)
    rename = os.rename

    def refuse(source: Path, target: Path) -> None:
        if source.name.startswith(".saving-"):
            raise OSError(errno.EIO, "Input/output error")
        rename(source, target)

    monkeypatch.setattr(os, "rename", refuse)
    assert diagnostic_of(lambda: save(tmp_path, 5, seed=2)).code == "E-IO-001"
    np.testing.assert_array_equal(load(path).tensors["model/w"], tensors_of(1)["model/w"])
    assert names(tmp_path) == ["step-00000005"]


def test_prune_keeps_the_newest(tmp_path: Path) -> None:
    for step in (1, 20, 3, 100_000_000):
        save(tmp_path, step)
    removed = checkpoint.prune(FolderStore(tmp_path), 2)
    assert removed == ["step-00000003", "step-00000001"]
    assert names(tmp_path) == ["step-00000020", "step-100000000"]
    assert checkpoint.prune(FolderStore(tmp_path), 2) == []


def test_prune_spares_the_best(tmp_path: Path) -> None:
    scores = {1: 3.0, 2: 1.0, 3: 2.0, 4: 1.0, 5: None, 6: 9.0}
    tensors = tensors_of()

    def left(best: Best) -> list[str]:
        shutil.rmtree(tmp_path, ignore_errors=True)
        for step, score in scores.items():
            more = {} if score is None else {"scores": {"eval/e/m": score, "eval/e/other": step}}
            save_tensors(tmp_path, step, tensors, meta_of(tensors, **more))
            checkpoint.prune(FolderStore(tmp_path), 1, best)
        return [name.removeprefix("step-0000000") for name in names(tmp_path)]

    assert left(Best("eval/e/m")) == ["2", "6"], "of equal ones the earliest"
    assert left(Best("eval/e/m", higher=True)) == ["6"]
    assert left(Best("eval/e/other")) == ["1", "6"]
    assert left(Best("eval/e/none")) == ["6"]


def test_prune_does_not_count_incomplete_ones(tmp_path: Path) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)
    (save(tmp_path, 3) / STATE_FILE).unlink()
    checkpoint.prune(FolderStore(tmp_path), 1)
    assert names(tmp_path) == ["step-00000002", "step-00000003"]


def test_supersede_takes_later_steps_out_of_the_way(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(tmp_path, step)
    checkpoint.supersede(FolderStore(tmp_path), 1)
    save(tmp_path, 2)
    checkpoint.supersede(FolderStore(tmp_path), 1)
    assert latest(tmp_path) == ("step-00000001", [])
    assert names(tmp_path) == [
        "step-00000001",
        "superseded-step-00000002",
        "superseded-step-00000002-2",
        "superseded-step-00000003",
    ]
    assert load(tmp_path / "superseded-step-00000003").step == 3


def test_clean_removes_what_dead_writers_left_and_nothing_else(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    shutil.copytree(path, tmp_path / ".saving-0123")
    shutil.copytree(path, tmp_path / ".removing-0123")
    (tmp_path / "notes.txt").write_text("mine")
    with store._saving_folder(tmp_path) as alive:
        done = FolderStore(tmp_path).clean()
        assert alive.is_dir()
    assert sorted(done) == [".removing-0123", ".saving-0123"]
    assert names(tmp_path) == ["notes.txt", "step-00000001"]


def test_a_folder_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "none"
    assert FolderStore(folder).clean() == []
    assert latest(folder) == (None, [])
    assert checkpoint.prune(FolderStore(folder), 1) == []
    assert checkpoint.supersede(FolderStore(folder), 1) == []


# --- damage -------------------------------------------------------------------------------------


def test_a_missing_checkpoint_names_those_that_exist(tmp_path: Path) -> None:
    save(tmp_path, 1)
    diagnostic = diagnostic_of(lambda: load(tmp_path / "step-00000002"))
    assert diagnostic.code == "E-CKPT-001"
    assert "step-00000002" in diagnostic.message
    assert "`step-00000001`" in diagnostic.notes[0]
    assert diagnostic.help


def test_every_flipped_byte_is_found(tmp_path: Path) -> None:
    """Each byte of both files, and every bit of those that say what the rest is."""
    path, num_flips = save(tmp_path, 1), 0
    for name in (STATE_FILE, RECORD_FILE):
        file = path / name
        content = file.read_bytes()
        for at in range(len(content)):
            for mask in (1, 2, 4, 8, 16, 32, 64, 128) if at < 100 else (1 << at % 8,):
                file.write_bytes(content[:at] + bytes([content[at] ^ mask]) + content[at + 1 :])
                assert diagnostic_of(lambda: load(path)).code == "E-CKPT-002", (name, at, mask)
                num_flips += 1
        file.write_bytes(content)
    assert num_flips > 2000
    assert load(path).step == 1


def test_the_state_is_laid_out_as_by_its_library(tmp_path: Path) -> None:
    tensors = tensors_of() | {'"größer"/\n\t\x01é': np.zeros((2, 1), np.int32), "": np.zeros(1, np.bool_)}
    path = save_tensors(tmp_path, 1, tensors, meta_of(tensors))
    save_file(tensors, tmp_path / "theirs")
    assert (path / STATE_FILE).read_bytes() == (tmp_path / "theirs").read_bytes()


KEPT = Path(__file__).parent / "kept"


@pytest.mark.parametrize("version", [1, 2])
def test_a_kept_checkpoint_of_each_version_is_read(version: int) -> None:
    found = load(KEPT / f"version-{version}" / "step-00000007")
    assert found.step == 7 and found.meta == meta_of(tensors_of(5))
    for name, tensor in tensors_of(5).items():
        assert found.tensors[name].dtype == tensor.dtype
        np.testing.assert_array_equal(found.tensors[name], tensor)


def test_this_version_writes_what_is_kept_of_it(tmp_path: Path) -> None:
    path, kept = save(tmp_path, 7, seed=5), KEPT / f"version-{checkpoint.VERSION}" / "step-00000007"
    for name in (STATE_FILE, RECORD_FILE):
        assert (path / name).read_bytes() == (kept / name).read_bytes()


def test_a_newer_version_is_refused_and_not_passed_over(tmp_path: Path) -> None:
    save(tmp_path, 1)
    newer = save(tmp_path, 2)
    rewrite(newer, lambda record: record.update(version=3, a_field_of_later=1))
    for call in (lambda: load(newer), lambda: latest(tmp_path)):
        diagnostic = diagnostic_of(call)
        assert diagnostic.code == "E-CKPT-004" and "step-00000002" in diagnostic.message
    assert checkpoint.prune(FolderStore(tmp_path), 1) == ["step-00000001"], "it counts as whole"


def test_latest_passes_over_damaged_ones_and_says_why(tmp_path: Path) -> None:
    good = save(tmp_path, 1)
    flipped, short, bare = (save(tmp_path, step) for step in (2, 3, 4))
    state = flipped / STATE_FILE
    state.write_bytes(state.read_bytes()[:-1] + b"\x55")
    os.truncate(short / STATE_FILE, 40)
    (bare / RECORD_FILE).unlink()
    found, skipped = latest(tmp_path)
    assert found == good.name
    assert [name for name, _ in skipped] == [bare.name, short.name, flipped.name]
    reasons = [reason for _, reason in skipped]
    assert "missing" in reasons[0] and "40 bytes" in reasons[1] and "sha256" in reasons[2]


HEADERS = {
    "nothing": b"",
    "header longer than the file": (10**12).to_bytes(8, "little") + b"{}",
    "not JSON": (4).to_bytes(8, "little") + b"\x80\x04K\x01",
    "pickle": b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x94.",
}
ENTRIES = {
    "offsets past the end": {"dtype": "F32", "shape": [4], "data_offsets": [0, 1600]},
    "offsets backwards": {"dtype": "F32", "shape": [4], "data_offsets": [16, 0]},
    "shape that overflows": {"dtype": "F32", "shape": [2**62, 2**62], "data_offsets": [0, 16]},
    "shape larger than its data": {"dtype": "F32", "shape": [5], "data_offsets": [0, 16]},
    "negative shape": {"dtype": "F32", "shape": [-4], "data_offsets": [0, 16]},
    "unknown dtype": {"dtype": "O", "shape": [2], "data_offsets": [0, 16]},
    "dtype we never write": {"dtype": "F64", "shape": [2], "data_offsets": [0, 16]},
    "eight-bit float": {"dtype": "F8_E4M3", "shape": [16], "data_offsets": [0, 16]},
    "complex": {"dtype": "C64", "shape": [2], "data_offsets": [0, 16]},
    "no offsets": {"dtype": "F32", "shape": [4]},
}
for title, entry in ENTRIES.items():
    text = json.dumps({"w": entry}).encode()
    HEADERS[title] = len(text).to_bytes(8, "little") + text + bytes(16)


@pytest.mark.parametrize("title", HEADERS)
def test_a_hostile_state_that_its_record_vouches_for_is_refused(tmp_path: Path, title: str) -> None:
    tensors = {"w": np.zeros(4, np.float32)}
    path = save_tensors(tmp_path, 1, tensors, meta_of(tensors))
    replace_state(path, HEADERS[title])
    assert diagnostic_of(lambda: load(path)).code == "E-CKPT-002"


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record.clear(),
        lambda record: record.pop("roles"),
        lambda record: record.update(version=1),
        lambda record: record.update(version="3"),
        lambda record: record.update(step=2),
        lambda record: record.update(step=True),
        lambda record: record.update(step="1"),
        lambda record: record.update(roles=[]),
        lambda record: record["roles"].update(ghost="parameter"),
        lambda record: record["roles"].pop("mask"),
        lambda record: record.update(experiment_digest=None),
        lambda record: record.update(state=None),
        lambda record: record["state"].update(file="../../../etc/passwd"),
        lambda record: record["state"].update(bytes="many"),
        lambda record: record["state"].update(sha256=None),
    ],
)
def test_a_wrong_record_is_refused(tmp_path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = save(tmp_path, 1)
    rewrite(path, change)
    diagnostic = diagnostic_of(lambda: load(path))
    assert diagnostic.code == "E-CKPT-002" and diagnostic.help
    assert latest(tmp_path)[0] is None


@pytest.mark.parametrize("content", [b"", b"\xff", b"[" * 100_000, b'{"step": ' + b"9" * 10_000 + b"}", b"[]"])
def test_a_record_that_is_no_object_is_refused(tmp_path: Path, content: bytes) -> None:
    path = save(tmp_path, 1)
    (path / RECORD_FILE).write_bytes(content)
    assert diagnostic_of(lambda: load(path)).code == "E-CKPT-002"


ODD = [None, True, -1, 2**70, 1e308, "", "x", "../../x", [], [[]], {}, {"x": None}, {"": [1]}]


def test_whatever_a_sealed_record_says_it_is_read_or_refused(tmp_path: Path) -> None:
    """Every field, and every field of a field, replaced by things of any kind."""
    tensors = tensors_of()
    path = save_tensors(tmp_path, 1, tensors, meta_of(tensors, scores={"eval/e/m": 1.0}))
    whole = (path / RECORD_FILE).read_bytes()
    record = json.loads(whole)
    places = [(key,) for key in record if key != "sha256"]
    places += [(key, inner) for (key,) in places if isinstance(record[key], dict) for inner in [*record[key], "more"]]
    num_refused = 0
    for place in places:
        for value in ODD:
            changed = json.loads(whole)
            del changed["sha256"]
            owner = changed if len(place) == 1 else changed[place[0]]
            owner[place[-1]] = value
            (path / RECORD_FILE).write_bytes(checkpoint._sealed(changed))
            checkpoint.outline(FolderStore(tmp_path), path.name, verify=False)
            checkpoint.prune(FolderStore(tmp_path), 1, Best("eval/e/m"))
            try:
                checkpoint.same_experiment(load(path).meta, "sha256:bb", "(defrun r)", {"steps": 6})
            except DiagnosticError as error:
                num_refused += error.diagnostics[0].code == "E-CKPT-002"
    assert num_refused > 100


# --- another experiment -------------------------------------------------------------------------


def test_an_equal_digest_passes_whatever_the_text() -> None:
    checkpoint.same_experiment(meta_of({}), "sha256:aa", file_text="; only a comment", overrides={})


def test_another_experiment_is_refused_with_both_digests_and_what_differs() -> None:
    meta = meta_of({})
    text = meta["file_text"]
    plain = diagnostic_of(lambda: checkpoint.same_experiment(meta, "sha256:bb"))
    assert plain.code == "E-CKPT-003" and plain.help
    assert "sha256:aa" in plain.notes[0] and "sha256:bb" in plain.notes[0]

    changed = diagnostic_of(lambda: checkpoint.same_experiment(meta, "sha256:bb", "(defrun r)\n(x)\n", {"steps": 5}))
    assert "line 2" in changed.message and "größer" in changed.message and not changed.notes
    longer = diagnostic_of(lambda: checkpoint.same_experiment(meta, "sha256:bb", text + "(more)\n"))
    assert "line 3" in longer.message and "nothing then" in longer.message
    overridden = diagnostic_of(lambda: checkpoint.same_experiment(meta, "sha256:bb", text, {"steps": 6}))
    assert overridden.message.endswith("`steps` was set to 5 then, to 6 now")
    both = diagnostic_of(lambda: checkpoint.same_experiment(meta, "sha256:bb", text + "(more)\n", {"seed": 2}))
    assert both.message.endswith("`seed` was set to nothing then, to 2 now; `steps` was set to 5 then, to nothing now")
    assert "line 3" in both.notes[0]
    data = diagnostic_of(lambda: checkpoint.same_experiment(meta, "sha256:bb", text, {"steps": 5}))
    assert "the data" in data.message and "sha256:bb" in data.notes[0]


# --- a system that refuses ----------------------------------------------------------------------


def no_space(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    "module, name, fake",
    [
        (store, "sync_file", no_space),
        (os, "fsync", no_space),
        (os, "write", no_space),
        (Path, "mkdir", no_space),
    ],
)
def test_a_full_disk_is_explained_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: object, name: str, fake: Callable[..., object]
) -> None:
    path = save(tmp_path, 1, seed=1)
    with monkeypatch.context() as patch:
        patch.setattr(module, name, fake)
        for step in (1, 2):
            diagnostic = diagnostic_of(lambda step=step: save(tmp_path, step, seed=2))  # type: ignore[misc]
            assert diagnostic.code == "E-IO-001"
            assert "no space is left" in diagnostic.message and f"step-0000000{step}" in diagnostic.message
            assert diagnostic.help
    assert names(tmp_path) == ["step-00000001"]
    np.testing.assert_array_equal(load(path).tensors["model/w"], tensors_of(1)["model/w"])


def test_a_folder_that_cannot_be_made_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    diagnostic = diagnostic_of(lambda: save(tmp_path / "file" / "checkpoints", 1))
    assert diagnostic.code == "E-IO-001" and "is a file" in diagnostic.message


@pytest.mark.parametrize("write", [files.write_atomic, files.replace_atomic])
def test_atomic_writes_replace_or_leave_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path, bytes], None]
) -> None:
    path = tmp_path / "f"
    write(path, b"one")
    write(path, b"two")
    assert path.read_bytes() == b"two"
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", no_space)
        diagnostic = diagnostic_of(lambda: write(path, b"three"))
    assert str(path) in diagnostic.message
    assert path.read_bytes() == b"two" and names(tmp_path) == ["f"]
    (tmp_path / ".f.0011.tmp").write_bytes(b"left by a killed writer")
    (tmp_path / ".g.0011.tmp").write_bytes(b"not ours")
    files.remove_leftovers(path)
    assert names(tmp_path) == [".g.0011.tmp", "f"]


# --- killed while saving ------------------------------------------------------------------------

WRITER = """
import sys
from pathlib import Path
import numpy as np
from sexpgpu.train import checkpoint
from sexpgpu.train.store import FolderStore

store, start = FolderStore(Path(sys.argv[1])), int(sys.argv[2])
store.clean()
roles = {name: "parameter" for name in "abcd"}
step = start
while True:
    tensors = {name: np.full(50_000, step, np.float32) for name in roles}
    meta = {"experiment_digest": "d", "cursor": step, "seed": 0, "file_text": "", "overrides": {}}
    meta["roles"] = roles
    for _ in range(2):  # the second save replaces the first
        checkpoint.save(store, step, tensors, meta)
    checkpoint.prune(store, 1)
    print(step, flush=True)
    step += 1
"""


def kill_while_saving(folder: Path, start: int, delay_s: float) -> int:
    """Run the writer, kill it `delay_s` after its first checkpoint; return the last step it said it saved."""
    command = [sys.executable, "-c", WRITER, str(folder), str(start)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=PACKAGE_PARENT) as writer:
        assert writer.stdout is not None
        first = writer.stdout.readline()
        time.sleep(delay_s)
        writer.send_signal(signal.SIGKILL)
        rest = writer.stdout.read()
    steps = (first + rest).splitlines()
    assert steps, "the writer died by itself"
    return int(steps[-1])


def test_a_writer_killed_at_any_moment_leaves_a_loadable_checkpoint(tmp_path: Path) -> None:
    rng = random.Random(3)
    start = 1
    for _ in range(12):
        said = kill_while_saving(tmp_path, start, rng.uniform(0, 0.05))
        loaded, skipped = checkpoint.latest(FolderStore(tmp_path))
        assert loaded is not None and skipped == []
        assert loaded.step in (said, said + 1) and loaded.meta["cursor"] == loaded.step
        assert all((tensor == loaded.step).all() for tensor in loaded.tensors.values())
        start = loaded.step
    FolderStore(tmp_path).clean()
    assert all(name.startswith("step-") for name in names(tmp_path))


@pytest.mark.slow
def test_saving_does_not_copy_the_tensors(tmp_path: Path) -> None:
    script = """
import resource, sys
import numpy as np
from pathlib import Path
from sexpgpu.train import checkpoint
from sexpgpu.train.store import FolderStore
tensors = {f"t{i}": np.ones(32 * 2**20, np.float32) for i in range(4)}
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
roles = {name: "parameter" for name in tensors}
meta = {"experiment_digest": "d", "cursor": 0, "seed": 0, "file_text": "", "overrides": {}, "roles": roles}
checkpoint.save(FolderStore(Path(sys.argv[1])), 1, tensors, meta)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=PACKAGE_PARENT)
    grown_kib = int(done.stdout) // (1024 if sys.platform == "darwin" else 1)
    assert grown_kib < 64 * 1024, "512 MiB of tensors"
