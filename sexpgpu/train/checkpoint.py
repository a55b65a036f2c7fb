"""Checkpoints: the whole state of a run at one step, published whole or not at all.

Sits between the training loop, which hands over named arrays and a record of the run, and the disk. A
checkpoint is a folder

    RUN/checkpoints/step-00000100/state.safetensors    every tensor
    RUN/checkpoints/step-00000100/checkpoint.json      the record, with size and sha256 of the state

made under a hidden name and renamed once. Equal state gives equal bytes: no times, no facts of the host,
keys in order. Hidden folders beside the checkpoints belong to a writer and never count as checkpoints, with
one exception:

    .saving-…      being written; its writer holds a lock on it, so one without a lock is a dead writer's
    .old-step-…    a checkpoint set aside while its successor of the same step is renamed into place; if a
                   crash falls between the two renames this is the checkpoint of that step: `find_latest`
                   takes it as such, `clean` renames it back
    .removing-…    on its way out
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file

from sexpgpu.diagnostics import Diagnostic, DiagnosticError
from sexpgpu.train import files

FORMAT = "sexpgpu-checkpoint"
VERSION = 1
STATE_FILE = "state.safetensors"
RECORD_FILE = "checkpoint.json"
DTYPES = tuple(np.dtype(kind) for kind in (np.float32, ml_dtypes.bfloat16, np.int32, np.int64, np.bool_))
META_KEYS = ("experiment_digest", "cursor", "seed", "file_text", "overrides", "roles")
"""What `meta` must hold; further keys (product choices, library versions, rank counts) are kept too."""

_OWN_KEYS = ("format", "version", "step", "state")
_MAX_RECORD_BYTES = 256 * 2**20
_STEP = re.compile(r"step-([0-9]{8,18})")
_SAVING, _OLD, _REMOVING = ".saving-", ".old-", ".removing-"


@dataclass(frozen=True)
class Checkpoint:
    """A run's state after `step` steps: named arrays, and the record that was saved with them."""

    step: int
    tensors: dict[str, np.ndarray[Any, Any]]
    meta: dict[str, Any]


# --- writing --------------------------------------------------------------------------------------


def save(
    folder: str | os.PathLike[str],
    step: int,
    tensors: Mapping[str, np.ndarray[Any, Any]],
    meta: Mapping[str, Any],
) -> Path:
    """Write the checkpoint of `step` into `folder`, in place of an earlier one of that step; return its path.

    `meta` is plain JSON data that holds `META_KEYS`; `meta["roles"]` names the role of every tensor.
    Tensors that are contiguous are written from where they are, without a copy.

    Raises: E-IO-001
    """
    folder = Path(folder)
    assert step >= 0, f"step {step}"
    _assert_saveable(tensors, meta)
    target = folder / f"step-{step:08d}"
    with files.explaining("write", target):
        folder.mkdir(parents=True, exist_ok=True)
        with _saving_folder(folder) as temporary:
            state = temporary / STATE_FILE
            _write_tensors(state, tensors)
            record = dict(meta) | {
                "format": FORMAT,
                "version": VERSION,
                "step": step,
                "state": {"file": STATE_FILE, "sha256": _sha256(state), "bytes": state.stat().st_size},
            }
            (temporary / RECORD_FILE).write_bytes(_record_bytes(record))
            files.sync_file(temporary / RECORD_FILE)
            _publish(temporary, target)
    return target


def prune(folder: str | os.PathLike[str], keep: int) -> list[Path]:
    """Remove all but the newest `keep` checkpoints; return what was removed.

    One that is plainly incomplete is not counted, so that damage never costs the last good checkpoint.

    Raises: E-IO-001
    """
    assert keep >= 1, f"keep {keep}"
    removed, num_kept = [], 0
    for path in _published(Path(folder)):
        if num_kept == keep:
            with files.explaining("remove", path):
                _remove(path)
            removed.append(path)
        elif _looks_whole(path):
            num_kept += 1
    return removed


def clean(folder: str | os.PathLike[str]) -> list[Path]:
    """Finish what dead writers left half done: remove their hidden folders, put a set-aside checkpoint back.

    Called once at the start of a run. A folder whose writer is alive is left alone. Returns the hidden
    folders dealt with.

    Raises: E-IO-001
    """
    folder = Path(folder)
    if not folder.is_dir():
        return []
    done = []
    with files.explaining("clean up", folder):
        for path in sorted(folder.iterdir()):
            if path.name.startswith(_OLD) and _STEP.fullmatch(path.name.removeprefix(_OLD)):
                target = folder / path.name.removeprefix(_OLD)
                if target.exists():
                    _remove(path)
                else:
                    path.rename(target)
            elif path.name.startswith(_REMOVING) or (path.name.startswith(_SAVING) and _writer_is_dead(path)):
                shutil.rmtree(path, ignore_errors=True)  # a writer that is alive may be removing the same
            else:
                continue
            done.append(path)
    return done


def supersede(folder: str | os.PathLike[str], step: int) -> list[Path]:
    """Rename the checkpoints past `step` to `superseded-…`: a run resumed at `step` makes its own.

    Without it `find_latest` and `prune` would prefer the abandoned checkpoints to the new ones. Returns the
    new paths.

    Raises: E-IO-001
    """
    renamed = []
    for path in _published(Path(folder)):
        if _step_of(path) > step:
            name, number = f"superseded-{_visible_name(path)}", 1
            while path.with_name(name).exists():
                number += 1
                name = f"superseded-{_visible_name(path)}-{number}"
            with files.explaining("rename", path):
                renamed.append(path.rename(path.with_name(name)))
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


def _write_tensors(path: Path, tensors: Mapping[str, np.ndarray[Any, Any]]) -> None:
    # The library reads each tensor through its address and trusts us about the layout. Not
    # np.ascontiguousarray: it turns a scalar into a vector.
    contiguous = {name: np.asarray(tensor, order="C") for name, tensor in tensors.items()}
    try:
        save_file(contiguous, path)
    except SafetensorError as error:
        # The library knows the system's error only as text.
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from error
    # The library makes the file readable by its owner only; the umask decides, as for the record beside it.
    path.chmod(0o666 & path.parent.stat().st_mode)
    files.sync_file(path)


@contextlib.contextmanager
def _saving_folder(folder: Path) -> Iterator[Path]:
    """A new hidden folder, locked for as long as its writer lives; gone at the end unless it was renamed."""
    path = folder / f"{_SAVING}{secrets.token_hex(4)}"
    path.mkdir()
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # without locks here, `clean` leaves the folder alone
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)


def _writer_is_dead(path: Path) -> bool:
    """Whether nobody holds the lock of a hidden folder; the system drops it with the process."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:  # published meanwhile
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # held, or no locks on this file system: then nobody can tell
        return False
    finally:
        os.close(descriptor)
    return True


def _publish(temporary: Path, target: Path) -> None:
    """Give a finished folder its name; at every moment it or its set-aside predecessor is there, whole."""
    files.sync_file(temporary)
    aside = target.with_name(_OLD + target.name)
    if target.exists():
        if aside.exists():  # an earlier crash, after the renames
            _remove(aside)
        target.rename(aside)
        try:
            temporary.rename(target)
        except OSError:
            aside.rename(target)
            raise
    else:
        temporary.rename(target)
    files.sync_file(target.parent)
    if aside.exists():
        _remove(aside)


def _remove(path: Path) -> None:
    # Renamed first: a crash must not leave half a checkpoint under a name that counts.
    doomed = path.with_name(f"{_REMOVING}{secrets.token_hex(4)}")
    path.rename(doomed)
    shutil.rmtree(doomed)


# --- reading --------------------------------------------------------------------------------------


def load(path: str | os.PathLike[str]) -> Checkpoint:
    """Read and verify a checkpoint; nothing in it is ever executed.

    Raises: E-CKPT-001 (there is none), E-CKPT-002 (damaged), E-IO-001 (the system refuses to read it)
    """
    path = Path(path)
    if not path.is_dir():
        siblings = ", ".join(f"`{found.name}`" for found in reversed(_published(path.parent)[:5]))
        notes = (f"`{path.parent}` holds {siblings}",) if siblings else ()
        raise DiagnosticError(
            Diagnostic(
                "E-CKPT-001",
                f"there is no checkpoint `{path}`",
                help=("name a checkpoint folder, or use `--resume latest` for the newest one of the run",),
                notes=notes,
            )
        )
    with files.explaining("read", path):
        try:
            record = _verified_record(path)
            tensors = _read_tensors(path / STATE_FILE)
        except _Damage as damage:
            raise _damaged(path, damage) from damage
    meta = {key: value for key, value in record.items() if key not in _OWN_KEYS}
    return Checkpoint(record["step"], tensors, meta)


def find_latest(folder: str | os.PathLike[str]) -> tuple[Path | None, list[tuple[Path, str]]]:
    """The newest undamaged checkpoint in `folder`, and the damaged newer ones passed over, with reasons.

    Raises: E-IO-001
    """
    skipped: list[tuple[Path, str]] = []
    for path in _published(Path(folder)):
        try:
            with files.explaining("read", path):
                _verified_record(path)
        except _Damage as damage:
            skipped.append((path, str(damage)))
        else:
            return path, skipped
    return None, skipped


def damage(path: Path, verify: bool) -> str | None:
    """What is wrong with a checkpoint; None for one that is whole.

    verify: compare the digest and the tensors too, which reads the whole state; else only files and sizes.
    Raises: E-IO-001
    """
    try:
        with files.explaining("read", path):
            if verify:
                _verified_record(path)
            else:
                _sized_record(path)
    except _Damage as found:
        return str(found)
    return None


def state_digest(path: Path) -> str:
    """The sha256 of a checkpoint's state, as its record has it.

    Raises: E-CKPT-002, E-IO-001
    """
    with files.explaining("read", path):
        try:
            return str(_read_record(path)["state"]["sha256"])
        except _Damage as found:
            raise _damaged(path, found) from found


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


_TAKE_ANOTHER = "resume from an earlier checkpoint; `--resume latest` takes the newest undamaged one"


class _Damage(Exception):
    """Why a checkpoint cannot be used, in words for the user."""

    def __init__(self, reason: str, remedy: str = _TAKE_ANOTHER) -> None:
        super().__init__(reason)
        self.remedy = remedy


def _damaged(path: Path, damage: _Damage) -> DiagnosticError:
    return DiagnosticError(
        Diagnostic("E-CKPT-002", f"cannot use the checkpoint `{path}`: {damage}", help=(damage.remedy,))
    )


def _verified_record(path: Path) -> dict[str, Any]:
    """The record of a checkpoint whose state has the size, digest and tensors that the record says."""
    record, state = _sized_record(path), path / STATE_FILE
    if _sha256(state) != record["state"]["sha256"]:
        raise _Damage(f"the content of `{STATE_FILE}` is not what was written (its sha256 differs)")
    with _judging_tensors(), safe_open(state, framework="np", backend="pread") as opened:
        stored = set(opened.keys())
    only_one = stored ^ record["roles"].keys()
    if only_one:
        raise _Damage(f"tensor `{min(only_one)}` is in only one of `{STATE_FILE}` and `{RECORD_FILE}`")
    return record


def _sized_record(path: Path) -> dict[str, Any]:
    """The record of a checkpoint whose state has the size that the record says."""
    record, state = _read_record(path), path / STATE_FILE
    if not state.is_file():
        raise _Damage(f"`{STATE_FILE}` is missing")
    num_bytes, expected = state.stat().st_size, record["state"]["bytes"]
    if num_bytes != expected:
        raise _Damage(f"`{STATE_FILE}` has {num_bytes} bytes where {expected} were written")
    return record


def _read_record(path: Path) -> dict[str, Any]:
    """The record, with every field that this module relies on checked; the state is not looked at."""
    file = path / RECORD_FILE
    if not file.is_file():
        raise _Damage(f"`{RECORD_FILE}` is missing")
    if file.stat().st_size > _MAX_RECORD_BYTES:
        raise _Damage(f"`{RECORD_FILE}` has more than {_MAX_RECORD_BYTES} bytes")
    try:
        record = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise _Damage(f"`{RECORD_FILE}` is not valid JSON") from error
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise _Damage(f"`{RECORD_FILE}` is not the record of a sexpgpu checkpoint")
    if record.get("version") != VERSION:
        raise _Damage(
            f"its format has version {record.get('version')!r} where this sexpgpu reads {VERSION}",
            "resume with the version of sexpgpu that wrote it",
        )
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
    if not isinstance(state, dict) or state.get("file") != STATE_FILE:
        raise _Damage(f"`{RECORD_FILE}` does not name `{STATE_FILE}`")
    if type(state.get("bytes")) is not int or not isinstance(state.get("sha256"), str):
        raise _Damage(f"`{RECORD_FILE}` has no valid size and sha256")
    expected = _STEP.fullmatch(_visible_name(path))
    if expected and int(expected[1]) != step:
        raise _Damage(f"`{RECORD_FILE}` is of step {step}")
    return record


def _read_tensors(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    with _judging_tensors():
        # pread: a file that shrinks under a memory map would kill the process instead of raising.
        tensors: dict[str, np.ndarray[Any, Any]] = load_file(path, backend="pread")
    for name, tensor in tensors.items():
        if tensor.dtype not in DTYPES:
            raise _Damage(f"tensor `{name}` has dtype {tensor.dtype}")
    return {name: tensors[name] for name in sorted(tensors)}


@contextlib.contextmanager
def _judging_tensors() -> Iterator[None]:
    """Turn the library's complaints about a file into damage."""
    try:
        yield
    # An element type that it does not know comes as any of these.
    except (SafetensorError, ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        raise _Damage(f"`{STATE_FILE}` is not a valid safetensors file ({error})") from error


def _published(folder: Path) -> list[Path]:
    """The checkpoints in a folder, newest first; a set-aside one counts where its successor is missing."""
    if not folder.is_dir():
        return []
    with files.explaining("read", folder):
        found = [path for path in folder.iterdir() if _STEP.fullmatch(_visible_name(path))]
    by_name = {_visible_name(path): path for path in found if path.name.startswith(_OLD)}
    by_name |= {path.name: path for path in found if not path.name.startswith(_OLD)}
    return sorted(by_name.values(), key=_step_of, reverse=True)


def _visible_name(path: Path) -> str:
    return path.name.removeprefix(_OLD)


def _step_of(path: Path) -> int:
    return int(_visible_name(path).removeprefix("step-"))


def _looks_whole(path: Path) -> bool:
    try:
        _sized_record(path)
    except (_Damage, OSError):
        return False
    return True


def _sha256(path: Path) -> str:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _record_bytes(record: Mapping[str, Any]) -> bytes:
    return (json.dumps(record, sort_keys=True, indent=1, allow_nan=False) + "\n").encode()


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
