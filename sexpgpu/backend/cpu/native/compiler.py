"""The system's C compiler: texts to functions, several at a time, kept on disk by content.

Flow: a session asks for the functions of all its kernels at once when it opens a plan. Equal functions are loaded once
in a process. A kept library is used only if its digest fits, so a damaged one is compiled again.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

TARGET = {
    "x86_64": ("-march=native",),
    "AMD64": ("-march=native",),
    "arm64": ("-mcpu=native",),
    "aarch64": ("-mcpu=native",),
}
"""How the processor at hand is asked for, by machine."""
OPTIONS = (
    "-O1", *TARGET.get(platform.machine(), ()), "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math",
    "-fno-semantic-interposition", "-std=gnu11", "-shared", "-fPIC", "-w", "-pthread", "-x", "c",
)  # fmt: skip
"""No contraction of products and sums, no fast math: the same bits on every machine."""
DIGEST_BYTES = 32
MAX_SECONDS = 300


class CompileError(Exception):
    """There is no compiler, or it failed. The text says how."""


_loaded: dict[tuple[str, str], int] = {}
"""Addresses of functions in this process, by compiler and name; libraries stay for as long as the process does."""
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C compiler. cache: the folder of compiled libraries; None keeps none."""

    path: str
    cache: Path | None

    def identity(self) -> str:
        """What a compiled library depends on beside its text: the compiler's file, options, the processor."""
        real = Path(self.path).resolve()
        try:
            about = real.stat()
        except OSError as error:
            raise CompileError(f"{self.path}: {(error.strerror or str(error)).lower()}") from error
        return "\0".join((str(real), str(about.st_size), str(about.st_mtime_ns), processor_flags(), *OPTIONS))

    def functions(self, head: str, texts: Mapping[str, str], num_units: int = 1) -> dict[str, int]:
        """Addresses of the functions `texts`, by name, each behind the text `head`. Raises CompileError.

        Texts that this process has not loaded are compiled as up to `num_units` libraries at once.
        """
        key = hashlib.sha256("\0".join((self.identity(), head)).encode()).hexdigest()
        with _lock:
            missing = sorted([name for name in texts if (key, name) not in _loaded])
            units = [missing[i::num_units] for i in range(num_units)]
            units = [unit for unit in units if unit]
            if units:
                with ThreadPoolExecutor(len(units)) as pool:
                    sources = ["\n".join([head, *[texts[name] for name in unit]]) for unit in units]
                    for unit, library in zip(units, pool.map(self._library, sources), strict=True):
                        _loaded.update({(key, name): _address(library, name) for name in unit})
            return {name: _loaded[key, name] for name in texts}

    def _library(self, source: str) -> ctypes.CDLL:
        digest = hashlib.sha256("\0".join((self.identity(), source)).encode()).hexdigest()
        if self.cache is not None:
            kept = _kept(self.cache / f"{digest}.so")
            if kept is not None:
                return kept
        try:
            with tempfile.TemporaryDirectory() as name:
                made = Path(name) / f"{digest}.so"
                self._compile(source, made)
                library = _open(made)
                if self.cache is not None:
                    _keep(made.read_bytes(), self.cache / f"{digest}.so")
                return library
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise CompileError(f"there is no place for what {self.path} makes: {reason}") from error

    def _compile(self, source: str, target: Path) -> None:
        command = [self.path, *OPTIONS, "-o", str(target), "-", "-lm"]
        try:
            done = subprocess.run(command, input=source.encode(), capture_output=True, timeout=MAX_SECONDS, check=False)
        except OSError as error:
            raise CompileError(f"{self.path}: {(error.strerror or str(error)).lower()}") from error
        except subprocess.TimeoutExpired as error:
            raise CompileError(f"{self.path} has not ended after {MAX_SECONDS} s") from error
        if done.returncode or not target.is_file():
            said = done.stderr.decode(errors="replace").strip().splitlines()
            raise CompileError(f"{self.path} failed with status {done.returncode}: {said[0] if said else 'no message'}")


def find_compiler(cache: Path | None, name: str | None = None) -> Compiler | None:
    """The compiler called `name`, there or not; else `cc`, `gcc` or `clang`, if there is one."""
    if name is not None:
        return Compiler(shutil.which(name) or name, cache)
    for name in ("cc", "gcc", "clang"):
        found = shutil.which(name)
        if found is not None:
            return Compiler(found, cache)
    return None


def default_cache() -> Path | None:
    """Where libraries are kept for the next run; safe to delete. None for a user who has no home."""
    try:
        return Path.home() / ".cache" / "sexpgpu" / "cpu"
    except RuntimeError:
        return None


def processor_flags() -> str:
    """What the processor can do, as far as the system tells it."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as file:
            lines = [line for line, _ in zip(file, range(64), strict=False)]
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    wanted = ("flags", "Features", "model name", "CPU part")
    return "\n".join(dict.fromkeys([line.strip() for line in lines if line.startswith(wanted)]))


def _address(library: ctypes.CDLL, name: str) -> int:
    try:
        found = ctypes.cast(library[name], ctypes.c_void_p).value
    except AttributeError as error:
        raise CompileError(f"what the compiler made has no function `{name}`") from error
    assert found is not None, name
    return found


def _open(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path), mode=os.RTLD_LOCAL | os.RTLD_NOW)
    except OSError as error:
        raise CompileError(f"what the compiler made cannot be loaded: {error}") from error


def _kept(path: Path) -> ctypes.CDLL | None:
    """A kept library; None if there is none, or it is not what was written."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    body, digest = data[:-DIGEST_BYTES], data[-DIGEST_BYTES:]
    if hashlib.sha256(body).digest() != digest:
        return None
    # A loader reads the file later, and bytes behind the sections of an ELF or Mach-O file are nobody's.
    with suppress(CompileError):
        return _open(path)
    return None


def _keep(image: bytes, path: Path) -> None:
    """Another process sees all of it or nothing; a folder that cannot be written is no fault."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as name:
            part = Path(name) / path.name
            part.write_bytes(image + hashlib.sha256(image).digest())
            part.replace(path)


def unit_count(texts: Sequence[str], num_threads: int) -> int:
    """Into how many libraries texts are best cut: as many as threads, if each has enough to do."""
    return max(1, min(num_threads, len(texts) // 4))
