"""NVRTC: source text to cubins, several at a time, kept on disk by content.

Flow: `session` compiles the kernels of a plan here when it opens one.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sexpgpu.backend.kernels.cuda import NVRTC_OPTIONS

OPTIONS = NVRTC_OPTIONS
"""No contraction of products and sums: a kernel rounds where the IR rounds."""

Image = bytes


class CompileError(Exception):
    """NVRTC refused a text of ours. `log` is what it said."""

    def __init__(self, log: str) -> None:
        super().__init__(log)
        self.log = log


@dataclass(frozen=True, slots=True)
class Compiler:
    """NVRTC for one kind of card.

    arch: `sm_90`. cache: the folder of compiled images; None keeps none. bindings: `cuda.bindings.nvrtc`, or what
    stands in for it in a test.
    """

    arch: str
    cache: Path | None
    bindings: Any

    def version(self) -> str:
        """`13.0`."""
        _, major, minor = self.bindings.nvrtcVersion()
        return f"{int(major)}.{int(minor)}"

    def compile(self, sources: Sequence[str], num_threads: int | None = None) -> list[Image]:
        """An image of each text, from the cache or compiled by several threads. Raises CompileError."""
        version = self.version()
        paths = [self._path(source, version) for source in sources]
        images = [_read(path) for path in paths]
        missing = [i for i, image in enumerate(images) if image is None]
        threads = min(len(missing), num_threads or os.cpu_count() or 1)
        if missing:
            with ThreadPoolExecutor(threads) as pool:
                for i, made in zip(missing, pool.map(lambda i: self._compile(sources[i]), missing), strict=True):
                    images[i] = made
                    _write(paths[i], made)
        return [image for image in images if image is not None]

    def _path(self, source: str, version: str) -> Path | None:
        if self.cache is None:
            return None
        key = "\0".join((source, self.arch, version, *OPTIONS))
        return self.cache / f"{hashlib.sha256(key.encode()).hexdigest()}.cubin"

    def _compile(self, source: str) -> Image:
        nvrtc = self.bindings
        status, program = nvrtc.nvrtcCreateProgram(source.encode(), b"kernels.cu", 0, None, None)
        _check(nvrtc, "nvrtcCreateProgram", status)
        try:
            options = [option.encode() for option in (f"--gpu-architecture={self.arch}", *OPTIONS)]
            (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
            if int(status) != 0:
                raise CompileError(self._log(program))
            status, size = nvrtc.nvrtcGetCUBINSize(program)
            _check(nvrtc, "nvrtcGetCUBINSize", status)
            image = b" " * size
            (status,) = nvrtc.nvrtcGetCUBIN(program, image)
            _check(nvrtc, "nvrtcGetCUBIN", status)
            return image
        finally:
            nvrtc.nvrtcDestroyProgram(program)

    def _log(self, program: Any) -> str:
        status, size = self.bindings.nvrtcGetProgramLogSize(program)
        _check(self.bindings, "nvrtcGetProgramLogSize", status)
        log = b" " * size
        (status,) = self.bindings.nvrtcGetProgramLog(program, log)
        _check(self.bindings, "nvrtcGetProgramLog", status)
        return log.decode(errors="replace").rstrip("\0 \n")


def default_cache() -> Path | None:
    """Where images are kept for the next run; safe to delete. None for a user who has no home."""
    try:
        return Path.home() / ".cache" / "sexpgpu" / "cubins"
    except RuntimeError:
        return None


def _check(nvrtc: Any, call: str, status: Any) -> None:
    if int(status) != 0:
        raise CompileError(f"{call}: {nvrtc.nvrtcGetErrorString(status)[1]!r}")


def _read(path: Path | None) -> Image | None:
    """A kept image; None if there is none, or what is there is no ELF file."""
    if path is None:
        return None
    try:
        image = path.read_bytes()
    except OSError:
        return None
    return image if image.startswith(b"\x7fELF") else None


def _write(path: Path | None, image: Image) -> None:
    """Keep an image. Another process sees all of it or nothing; a folder that cannot be written is no fault."""
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(image)
        Path(file.name).replace(path)
    except OSError:
        return
