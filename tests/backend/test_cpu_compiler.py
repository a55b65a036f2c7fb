"""The C compiler and its cache; a machine without one; threads of the driver."""

from __future__ import annotations

import ctypes
import errno
import stat
from pathlib import Path

import numpy as np
import pytest

from sexpgpu.backend.cpu.device import CpuDevice
from sexpgpu.backend.cpu.native import compiler as module
from sexpgpu.backend.cpu.native.compiler import CompileError, Compiler, default_cache, find_compiler
from sexpgpu.backend.cpu.native.driver import ACTION, driver
from sexpgpu.backend.cuda.nvrtc import default_cache as cubins
from sexpgpu.backend.protocol import Budget, Call
from sexpgpu.backend.registry import Compiling, open_device
from sexpgpu.ir.builder import Builder
from sexpgpu.ir.program import Phase, Program
from sexpgpu.ir.types import TensorType
from tests.backend.native import compiler

TEXTS = {"answer": "int answer(void) { return NUMBER; }"}


def answer(head: str, made: Compiler) -> int:
    (address,) = made.functions(head, TEXTS).values()
    return int(ctypes.CFUNCTYPE(ctypes.c_int)(address)())


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Compiler:
    """A compiler with a cache of its own, in a process that has loaded nothing; it notes how often it is run."""
    monkeypatch.setattr(module, "_loaded", {})
    real, script = compiler().path, tmp_path / "cc"
    script.write_text(f'#!/bin/sh\necho run >> {tmp_path}/runs\nexec {real} "$@"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return Compiler(str(script), tmp_path / "cache")


def num_runs(made: Compiler) -> int:
    runs = Path(made.path).with_name("runs")
    return len(runs.read_text().splitlines()) if runs.exists() else 0


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_loaded", {})


def test_a_text_is_compiled_once(counted: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    assert answer("#define NUMBER 41", counted) == 41
    assert answer("#define NUMBER 41", counted) == 41
    assert answer("#define NUMBER 42", counted) == 42
    assert num_runs(counted) == 2
    forget(monkeypatch)
    assert answer("#define NUMBER 41", counted) == 41
    assert num_runs(counted) == 2


@pytest.mark.parametrize("damage", [b"", b"no library", None])
def test_a_damaged_library_is_compiled_again(
    damage: bytes | None, counted: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert answer("#define NUMBER 43", counted) == 43
    assert counted.cache is not None
    (kept,) = counted.cache.iterdir()
    whole = kept.read_bytes()
    kept.unlink()  # what is mapped must not change under the process
    kept.write_bytes(whole[: len(whole) // 2] if damage is None else damage)
    forget(monkeypatch)
    assert answer("#define NUMBER 43", counted) == 43
    assert num_runs(counted) == 2 and kept.read_bytes() == whole


def test_a_cache_that_cannot_be_written_is_no_fault(counted: Compiler, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert answer("#define NUMBER 44", Compiler(counted.path, tmp_path / "file" / "cache")) == 44


def test_a_disk_that_is_full_leaves_no_part(counted: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", refuse)
    assert answer("#define NUMBER 47", counted) == 47
    assert counted.cache is not None and not list(counted.cache.iterdir())


def test_a_user_without_a_home_has_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", refuse)
    assert default_cache() is None and cubins() is None
    device = open_device("cpu")
    assert isinstance(device, CpuDevice) and device.compiler is not None and device.compiler.cache is None


def test_another_compiler_shares_nothing(counted: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert answer("#define NUMBER 45", counted) == 45
    forget(monkeypatch)
    Path(counted.path).write_text(Path(counted.path).read_text() + "# another version\n")
    assert answer("#define NUMBER 45", counted) == 45
    assert num_runs(counted) == 2


@pytest.mark.parametrize(
    "script, said",
    [
        ("echo no such instruction >&2; exit 3", "failed with status 3: no such instruction"),
        ("exit 0", "failed with status 0: no message"),
        ("cp /bin/sh $(echo $* | sed 's/.*-o //; s/ .*//')", "cannot be loaded"),
        ('shift $(($# - 3)); echo "int other;" | {real} -shared -fPIC -x c -o "$1" -', "has no function `answer`"),
        (None, "no such file or directory"),
    ],
)
def test_a_compiler_that_fails(script: str | None, said: str, tmp_path: Path) -> None:
    path = tmp_path / "cc"
    if script is not None:
        path.write_text(f"#!/bin/sh\n{script}\n".replace("{real}", compiler().path))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    with pytest.raises(CompileError, match=said):
        answer("#define NUMBER 46", Compiler(str(path), None))


def test_no_room_for_what_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(module.tempfile, "TemporaryDirectory", refuse)
    with pytest.raises(CompileError, match="read-only file system"):
        answer("#define NUMBER 48", compiler())


def two_numbers() -> tuple[Program, Phase]:
    b = Builder()
    x = b.input("feed:x", TensorType("f32", (7,)))
    phase = Phase("p", b.graph("p", [("result:y", b.op("tanh", b.add(x, x)))], [x]))
    return Program((), (phase,), Builder().graph("schedule", [])), phase


def test_without_kernels_the_interpreter_runs_the_program_and_the_session_warns(tmp_path: Path) -> None:
    made, _ = two_numbers()
    x = np.linspace(-1, 1, 7).astype(np.float32)
    results = []
    for device in (CpuDevice(threads=1), CpuDevice(threads=1, compiler=Compiler(str(tmp_path / "cc"), None))):
        session = device.open(device.plan(made, Budget()))
        results.append(session.run([Call("p", {"x": x})]).result()[0].results["y"])
        warnings = session.warnings
        session.close()
    assert results[0].tobytes() == results[1].tobytes()
    assert [warning.code for warning in warnings] == ["W-DEV-001"]
    assert "no kernels" in device.lowering(device.plan(made, Budget()))[0]


def test_what_is_reported() -> None:
    device = CpuDevice(threads=1, compiler=compiler())
    row, why = device.lowering(device.plan(two_numbers()[0], Budget()))
    assert row.split() == ["p", "1", "kernels", "(1", "texts)"]
    assert why.split()[:3] == ["kernels", "×", "1"] and "elementwise work" in why
    assert "C kernels by" in device.describe()
    assert "interpreter on NumPy" in CpuDevice(threads=1).describe()


def test_the_registry_finds_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "C kernels by" in open_device("cpu").describe()
    assert "interpreter" in open_device("cpu", compiling=Compiling(interpret=True)).describe()
    assert "interpreter" in open_device("cpu", double=True).describe()
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    assert find_compiler(None) is None
    assert "interpreter" in open_device("cpu").describe()


# The driver.

MARK = (
    "void mark(char** a, long long begin, long long end, long long piece, char* scratch) { for (; begin < end; ++begin)"
)
MARK += " { volatile int* at = (volatile int*)a[0] + begin; *at = *at + 1; } }"


@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_every_piece_is_done_once(num_threads: int) -> None:
    made = compiler()
    (address,) = made.functions("", {"mark": MARK}).values()
    pool = driver(made).pool(num_threads, 64)
    counts = np.zeros(1000, np.int32)
    operands = np.array([counts.ctypes.data], np.uint64)
    steps = [1, 3, 1000, 7, 64, 999]
    alone = [(address, operands.ctypes.data, 1000, step, -(-1000 // step), 1, -(-1000 // step), 1) for step in steps]
    # Two that share their turns, of which the second is one turn; then one that nobody shares.
    later = np.array([counts[500:].ctypes.data], np.uint64)
    batch = [(address, where.ctypes.data, 500, 9, turns, 2, 57, 1) for where, turns in ((operands, 56), (later, 1))]
    actions = np.array([*alone, *batch, (address, operands.ctypes.data, 1000, 1000, 1, 1, 1, 0)], ACTION)
    for _ in range(50):
        pool.run(actions.ctypes.data, len(actions))
    pool.close()
    pool.close()
    assert (counts == 50 * (len(steps) + 2)).all()
