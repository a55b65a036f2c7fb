"""Checkpoints: the whole state of a run at one step, published whole or not at all.

Sits between the training loop, which hands over named arrays and a record of the run, and a `store`, which knows where
bytes lie. A checkpoint is a state, every tensor in the format safetensors, and a record in JSON. The record begins with
the sha256 of all that follows it and holds size and sha256 of the state, so no byte of either can change unnoticed:

    {
     "sha256": "…",
     "cursor": …

Equal state gives equal bytes: no times, no facts of the host, keys in order. A record of version 1 has no such first
line.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from sexpgpu.diagnostics import Diagnostic, DiagnosticError
from sexpgpu.train import files
from sexpgpu.train.store import IS_STATE, RECORD_FILE, Store, Stored

FORMAT = "sexpgpu-checkpoint"
VERSION = 2
DTYPES = {
    np.dtype(np.int64): "I64",
    np.dtype(np.float32): "F32",
    np.dtype(np.int32): "I32",
    np.dtype(ml_dtypes.bfloat16): "BF16",
    np.dtype(np.bool_): "BOOL",
}
"""What a tensor may be, as safetensors calls it and in the order in which it lays tensors out."""
META_KEYS = ("experiment_digest", "cursor", "seed", "file_text", "overrides", "roles")
"""What `meta` must hold; further keys (product choices, library versions, rank counts) are kept too."""

_OWN_KEYS = ("format", "version", "step", "state", "sha256")
_MAX_RECORD_BYTES = 256 * 2**20
_STEP = re.compile(r"step-([0-9]{8,18})")
_SEAL = re.compile(rb'\{\n "sha256": "([0-9a-f]{64})",\n')


@dataclass(frozen=True)
class Checkpoint:
    """A run's state after `step` steps: named arrays, and the record that was saved with them."""

    step: int
    tensors: dict[str, np.ndarray[Any, Any]]
    meta: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Best:
    """By what the best checkpoint is known: the series, and whether higher is better."""

    series: str
    higher: bool = False

    def order(self, score: float) -> float:
        """A key that is least for the best."""
        return -score if self.higher else score


# --- writing --------------------------------------------------------------------------------------


def save(
    store: Store,
    step: int,
    tensors: Mapping[str, np.ndarray[Any, Any]],
    meta: Mapping[str, Any],
    paced: Callable[[Iterator[memoryview]], Iterator[memoryview]] | None = None,
) -> str:
    """Write the checkpoint of `step`, in place of an earlier one of that step; its name.

    `meta` is plain JSON data that holds `META_KEYS`; `meta["roles"]` names the role of every tensor, and
    `meta["scores"]`, where it is, the value of evaluated series at this step.
    Tensors that are contiguous are written from where they are, without a copy.
    paced: hands on the bytes in its own time.

    Raises: E-IO-001, E-IO-003 (another run took the store over)
    """
    assert step >= 0, f"step {step}"
    _assert_saveable(tensors, meta)
    name = name_of(step)

    def seal(stored: Stored) -> bytes:
        state = {"file": stored.file, "sha256": stored.sha256, "bytes": stored.num_bytes}
        return _sealed(dict(meta) | {"format": FORMAT, "version": VERSION, "step": step, "state": state})

    with files.explaining("write", store.path(name)):
        pieces = _pieces(tensors)
        store.publish(name, pieces if paced is None else paced(pieces), seal)
    return name


def name_of(step: int) -> str:
    """What the checkpoint of a step is called."""
    return f"step-{step:08d}"


def prune(store: Store, keep: int, best: Best | None = None) -> list[str]:
    """Remove all but the newest `keep` checkpoints and the best one; names of what was removed.

    One that is plainly incomplete is not counted, so that damage never costs the last good checkpoint. Of equal scores
    the earliest is the best.

    Raises: E-IO-001
    """
    assert keep >= 1, f"keep {keep}"
    with files.explaining("read", store.place):
        names = _published(store)
    if len(names) <= keep:
        return []
    spared = _best(store, names, best) if best is not None else None
    removed, num_kept = [], 0
    for name in names:
        if num_kept == keep and name != spared:
            with files.explaining("remove", store.path(name)):
                store.remove(name)
            removed.append(name)
        elif num_kept < keep and _looks_whole(store, name):
            num_kept += 1
    return removed


def supersede(store: Store, step: int) -> list[str]:
    """Rename the checkpoints past `step` to `superseded-…`: a run resumed at `step` makes its own.

    Without it `latest` and `prune` would prefer the abandoned checkpoints to the new ones. Gives the new names.

    Raises: E-IO-001
    """
    renamed = []
    with files.explaining("rename checkpoints in", store.place):
        taken = set(store.names())
        for name in _published(store):
            if _step_of(name) > step:
                new, number = f"superseded-{name}", 1
                while new in taken:
                    number += 1
                    new = f"superseded-{name}-{number}"
                store.rename(name, new)
                taken.add(new)
                renamed.append(new)
    return renamed


def _assert_saveable(tensors: Mapping[str, np.ndarray[Any, Any]], meta: Mapping[str, Any]) -> None:
    for name, tensor in tensors.items():
        assert tensor.dtype in DTYPES, f"tensor {name} has dtype {tensor.dtype}"
    missing = [key for key in META_KEYS if key not in meta]
    assert not missing, f"checkpoint meta lacks {missing}"
    reserved = [key for key in _OWN_KEYS if key in meta]
    assert not reserved, f"checkpoint meta uses {reserved}"
    only_one = meta["roles"].keys() ^ tensors.keys()
    assert not only_one, f"only in tensors or only in roles: {sorted(only_one)}"


def _pieces(tensors: Mapping[str, np.ndarray[Any, Any]]) -> Iterator[memoryview]:
    """The bytes of a safetensors file, as its library lays them out; it can only write whole files, to a disk.

    Source: safetensors 0.8, `serialize_to_file`: eight bytes of length, a header in JSON padded to eight bytes, then
    the tensors, by dtype and name.
    """
    ranks = {dtype: rank for rank, dtype in enumerate(DTYPES)}
    order = sorted(tensors, key=lambda name: (ranks[tensors[name].dtype], name))
    header, end = {}, 0
    for name in order:
        start, end = end, end + tensors[name].nbytes
        dtype, shape = DTYPES[tensors[name].dtype], list(tensors[name].shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    yield memoryview(len(text).to_bytes(8, "little") + text)
    for name in order:
        # Not np.ascontiguousarray: it turns a scalar into a vector.
        contiguous = np.asarray(tensors[name], order="C")
        if contiguous.nbytes:
            yield contiguous.reshape(-1).view(np.uint8).data


def _sealed(record: Mapping[str, Any]) -> bytes:
    body = json.dumps(record, sort_keys=True, indent=1, allow_nan=False).encode().removeprefix(b"{\n") + b"\n"
    return b'{\n "sha256": "' + hashlib.sha256(body).hexdigest().encode() + b'",\n' + body


# --- reading --------------------------------------------------------------------------------------


def load(store: Store, name: str) -> Checkpoint:
    """Read and verify a checkpoint; nothing in it is ever executed.

    Raises: E-CKPT-001 (there is none), E-CKPT-002 (damaged), E-CKPT-004 (of a newer version), E-IO-001 (the system
    refuses to read it)
    """
    with files.explaining("read", store.path(name)):
        names = store.names()
        if name not in names:
            siblings = ", ".join(f"`{found}`" for found in _published(store)[:5])
            raise DiagnosticError(
                Diagnostic(
                    "E-CKPT-001",
                    f"there is no checkpoint `{store.path(name)}`",
                    help=("name a checkpoint folder, or use `--resume latest` for the newest one of the run",),
                    notes=(f"`{store.place}` holds {siblings}",) if siblings else (),
                )
            )
        try:
            return _loaded(store, name)
        except _Damage as damage:
            raise _damaged(store.path(name), damage) from damage


def latest(store: Store) -> tuple[Checkpoint | None, list[tuple[str, str]]]:
    """The newest undamaged checkpoint, and the damaged newer ones passed over: names with reasons.

    Raises: E-CKPT-004 where the newest is of a newer version, E-IO-001
    """
    skipped: list[tuple[str, str]] = []
    with files.explaining("read", store.place):
        for name in _published(store):
            try:
                return _loaded(store, name), skipped
            except _Damage as damage:
                skipped.append((name, str(damage)))
    return None, skipped


def holds_any(store: Store) -> bool:
    """Whether a run has saved here.

    Raises: E-IO-001
    """
    with files.explaining("read", store.place):
        return bool(_published(store))


@dataclass(frozen=True, slots=True)
class Outline:
    """A checkpoint as its record and sizes tell it. num_bytes: of state and record. damage: what is wrong with it.
    scores: of evaluated series at its step, those that are finite."""

    num_bytes: int
    damage: str | None
    scores: Mapping[str, float]


def outline(store: Store, name: str, verify: bool) -> Outline:
    """What there is of a checkpoint.

    verify: compare the digest and the tensors too, which reads the whole state; else only the record and sizes.
    Raises: E-IO-001
    """
    with files.explaining("read", store.path(name)):
        num_bytes = store.size(name, RECORD_FILE) or 0
        try:
            record = _sized_record(store, name)
            num_bytes += record["state"]["bytes"]
            if verify:
                _loaded(store, name)
        except _Damage as found:
            return Outline(num_bytes, str(found), {})
        except DiagnosticError as error:
            if error.diagnostics[0].code != NEWER:
                raise
            return Outline(num_bytes, error.diagnostics[0].message, {})
    return Outline(num_bytes, None, _scores(record))


def state_digest(store: Store, name: str) -> str:
    """The sha256 of a checkpoint's state, as its record has it.

    Raises: E-CKPT-002, E-CKPT-004, E-IO-001
    """
    with files.explaining("read", store.path(name)):
        try:
            return str(_read_record(store, name)["state"]["sha256"])
        except _Damage as found:
            raise _damaged(store.path(name), found) from found


NEWER = "E-CKPT-004"
DIGEST_SHOWN = 16
"""Characters of a digest that a message shows."""


def same_experiment(
    meta: Mapping[str, Any],
    digest: str,
    file_text: str | None = None,
    overrides: object = None,
) -> None:
    """Refuse a checkpoint of another experiment; with equal digests the file's text may differ.

    The current `file_text` and `overrides`, where given, only serve to say what differs.

    Raises: E-CKPT-003
    """
    saved = meta["experiment_digest"]
    if saved == digest:
        return
    text_differs = file_text is not None and file_text != meta["file_text"]
    overrides_differ = overrides is not None and _plain_json(overrides) != _plain_json(meta["overrides"])
    differences = []
    if overrides_differ:
        differences.append(_other_overrides(meta["overrides"], overrides))
    if text_differs:
        differences.append(_first_difference(meta["file_text"], file_text or ""))
    notes = differences[1:]
    if not differences:
        if file_text is not None and overrides is not None:
            differences.append("file and overrides are the same: the data or the version of sexpgpu changed")
        notes.append(f"its digest was {saved[:DIGEST_SHOWN]} then and is {digest[:DIGEST_SHOWN]} now")
    first = f": {differences[0]}" if differences else ""
    raise DiagnosticError(
        Diagnostic(
            "E-CKPT-003",
            f"the checkpoint belongs to another experiment{first}",
            help=(
                "resume with the file, overrides and data that the checkpoint was made with (its "
                "`checkpoint.json` keeps the text), or start a new run without `--resume`",
            ),
            notes=tuple(notes),
        )
    )


class _Damage(Exception):
    """Why a checkpoint cannot be used, in words for the user."""


def _damaged(path: str, damage: _Damage) -> DiagnosticError:
    help = ("resume from an earlier checkpoint; `--resume latest` takes the newest undamaged one",)
    return DiagnosticError(Diagnostic("E-CKPT-002", f"cannot use the checkpoint `{path}`: {damage}", help=help))


def _loaded(store: Store, name: str) -> Checkpoint:
    """A checkpoint whose state has the size, digest and tensors that the record says."""
    record = _sized_record(store, name)
    file = record["state"]["file"]
    with store.state(name, file) as path:
        with open(path, "rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        if digest != record["state"]["sha256"]:
            raise _Damage(f"the content of `{file}` is not what was written (its sha256 differs)")
        tensors = _read_tensors(path)
    only_one = tensors.keys() ^ record["roles"].keys()
    if only_one:
        raise _Damage(f"tensor `{min(only_one)}` is in only one of `{file}` and `{RECORD_FILE}`")
    meta = {key: value for key, value in record.items() if key not in _OWN_KEYS}
    return Checkpoint(record["step"], tensors, meta)


def _sized_record(store: Store, name: str) -> dict[str, Any]:
    """The record of a checkpoint whose state has the size that the record says."""
    record = _read_record(store, name)
    file, expected = record["state"]["file"], record["state"]["bytes"]
    num_bytes = store.size(name, file)
    if num_bytes is None:
        raise _Damage(f"`{file}` is missing")
    if num_bytes != expected:
        raise _Damage(f"`{file}` has {num_bytes} bytes where {expected} were written")
    return record


def _read_record(store: Store, name: str) -> dict[str, Any]:
    """The record, with every field that this module relies on checked; the state is not looked at."""
    num_bytes = store.size(name, RECORD_FILE)
    if num_bytes is None:
        raise _Damage(f"`{RECORD_FILE}` is missing")
    if num_bytes > _MAX_RECORD_BYTES:
        raise _Damage(f"`{RECORD_FILE}` has more than {_MAX_RECORD_BYTES} bytes")
    data = store.read_record(name)
    seal = _SEAL.match(data)
    if seal is not None and hashlib.sha256(data[seal.end() :]).hexdigest().encode() != seal[1]:
        raise _Damage(f"the content of `{RECORD_FILE}` is not what was written (its sha256 differs)")
    try:
        record = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _Damage(f"`{RECORD_FILE}` is not valid JSON") from error
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise _Damage(f"`{RECORD_FILE}` is not the record of a sexpgpu checkpoint")
    version = record.get("version")
    if type(version) is int and version > VERSION:
        raise _newer(store.path(name), version)
    if version != (1 if seal is None else VERSION):
        raise _Damage(f"`{RECORD_FILE}` has version {version!r}, and {'no' if seal is None else 'a'} sha256")
    missing = [key for key in META_KEYS if key not in record]
    if missing:
        raise _Damage(f"`{RECORD_FILE}` lacks `{missing[0]}`")
    step, roles, state = record.get("step"), record["roles"], record.get("state")
    if type(step) is not int or step < 0:
        raise _Damage(f"`{RECORD_FILE}` has no valid step")
    if not isinstance(roles, dict) or not all(isinstance(role, str) for role in roles.values()):
        raise _Damage(f"`{RECORD_FILE}` has no valid roles")
    if not isinstance(record["experiment_digest"], str) or not isinstance(record["file_text"], str):
        raise _Damage(f"`{RECORD_FILE}` has no valid experiment")
    if not isinstance(state, dict) or not IS_STATE.fullmatch(str(state.get("file"))):
        raise _Damage(f"`{RECORD_FILE}` names no state")
    if type(state.get("bytes")) is not int or not isinstance(state.get("sha256"), str):
        raise _Damage(f"`{RECORD_FILE}` has no valid size and sha256")
    expected = _STEP.fullmatch(name)
    if expected and int(expected[1]) != step:
        raise _Damage(f"`{RECORD_FILE}` is of step {step}")
    return record


def _newer(path: str, version: int) -> DiagnosticError:
    message = f"the checkpoint `{path}` has the format {version}, and this sexpgpu reads up to {VERSION}"
    return DiagnosticError(Diagnostic(NEWER, message, help=("resume with the version of sexpgpu that wrote it",)))


def _read_tensors(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    try:
        # pread: a file that shrinks under a memory map would kill the process instead of raising.
        tensors: dict[str, np.ndarray[Any, Any]] = load_file(path, backend="pread")
    # An element type that it does not know comes as any of these.
    except (SafetensorError, ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        raise _Damage(f"`{path.name}` is not a valid safetensors file ({error})") from error
    for name, tensor in tensors.items():
        if tensor.dtype not in DTYPES:
            raise _Damage(f"tensor `{name}` has dtype {tensor.dtype}")
    return {name: tensors[name] for name in sorted(tensors)}


def _published(store: Store) -> list[str]:
    """The checkpoints of a store that count, newest first."""
    return sorted((name for name in store.names() if _STEP.fullmatch(name)), key=_step_of, reverse=True)


def _best(store: Store, names: Sequence[str], best: Best) -> str | None:
    """The name of the checkpoint with the best score, of equal ones the earliest; None where none has any."""
    found = []
    for name in names:
        with files.explaining("read", store.path(name)), suppress(_Damage, DiagnosticError):  # of a newer version
            score = _scores(_read_record(store, name)).get(best.series)
            if score is not None:
                found.append((best.order(score), _step_of(name), name))
    return min(found)[2] if found else None


def _scores(record: Mapping[str, Any]) -> dict[str, float]:
    scores = record.get("scores")
    found = scores.items() if isinstance(scores, dict) else ()
    return {series: score for series, score in found if isinstance(score, int | float) and math.isfinite(score)}


def _step_of(name: str) -> int:
    return int(name.removeprefix("step-"))


def _looks_whole(store: Store, name: str) -> bool:
    try:
        _sized_record(store, name)
    except (_Damage, OSError):
        return False
    except DiagnosticError:  # of a newer version
        return True
    return True


def _plain_json(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def _other_overrides(then: object, now: object) -> str:
    """Names the constants, and the variant, that were overridden otherwise."""
    old, new = (dict(each) if isinstance(each, Mapping) else {} for each in (then, now))
    shown = []
    for name in sorted({*old, *new}):
        before, after = old.get(name) or "nothing", new.get(name) or "nothing"
        if before != after:
            shown.append(f"`{name}` was set to {before} then, to {after} now")
    return "; ".join(shown)


def _first_difference(then: str, now: str) -> str:
    """Names the first line in which two texts of a file differ."""
    lines = then.splitlines(), now.splitlines()
    num_common = min(map(len, lines))
    number = next((i for i in range(num_common) if lines[0][i] != lines[1][i]), num_common)
    old, new = (repr(text[number].strip()) if number < len(text) else "nothing" for text in lines)
    return f"the file changed, first in line {number + 1}: {old} then, {new} now"
