"""Tokenizers of others: `tokenizers` files and `tiktoken` ranks, each in a process of its own.

A tokenizer's file is a program of sorts: expressions that may take forever, replacements that may fill the memory,
values that make native code panic. In another process the worst of these is that the file is refused.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import os
import selectors
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Never

import numpy as np
from numpy.typing import NDArray

from sexpgpu.data import tokenizer_process
from sexpgpu.data.codec import checked_ids
from sexpgpu.data.faults import DAMAGED, NOT_INSTALLED, fail
from sexpgpu.data.files import find_files, read_bytes
from sexpgpu.data.spec import TiktokenSpec, Tokenizer, TokenizerSpec
from sexpgpu.data.tokenizer_process import LENGTHS

ANSWER_S = 120.0
"""How long one answer may take; a request holds some mebibytes of text, which take seconds."""
MAX_ANSWER_BYTES = 1 << 30
MEMORY_BYTES = 4 << 30
"""What the process may fill; the largest tokenizers take one gibibyte."""


class TokenizerCodec:
    """Text to ids and back by the tokenizer of a file.

    vocabulary: how many ids there are; more than the tokenizer has where token files say so. identity: a hash of the
    file and of how it is read. key: what decides the ids of a text, the library's version too.
    """

    def __init__(self, path: Path, opening: dict[str, Any], answer_s: float = ANSWER_S) -> None:
        self.path = path
        content = read_bytes(path)
        self._process = _Process(answer_s)
        said, _ = self._ask({"do": "open", **opening}, content)
        self.vocabulary = int(said["vocabulary"])
        self.identity = hashlib.sha256(json.dumps(opening).encode() + b"\0" + content).hexdigest()
        self.key = f"{self.identity} {said['version']}"

    def widened(self, vocabulary: int) -> TokenizerCodec:
        """This codec, with the larger vocabulary that token files are read with.

        Raises: E-DATA-002 (a smaller one).
        """
        if vocabulary < self.vocabulary:
            fail(DAMAGED, f"the tokenizer `{self.path.name}` has {self.vocabulary:,} ids, and `:vocabulary` is "
                 f"{vocabulary:,}", help=(f"say `:vocabulary {self.vocabulary}` or more, or name the tokenizer that "
                                          "wrote the tokens",))  # fmt: skip
        self.vocabulary = vocabulary
        return self

    def encode(self, text: str) -> list[int]:
        """Ids of the text, CRLF read as LF as in the data. Raises: E-DATA-002 (the tokenizer fails)."""
        (ids,) = self.encode_all([text.replace("\r\n", "\n")])
        return [int(i) for i in ids]

    def encode_all(self, texts: Sequence[str]) -> list[NDArray[np.uint32]]:
        """Ids of each text. Raises: E-DATA-002 (the tokenizer fails)."""
        parts = [text.encode("utf-8", "replace") for text in texts]
        said, payload = self._ask({"do": "encode", "sizes": [len(part) for part in parts]}, b"".join(parts))
        ids = np.frombuffer(payload, "=u4")
        if len(said["counts"]) != len(texts) or sum(said["counts"]) != len(ids) or (ids >= self.vocabulary).any():
            self._fail("its answer does not fit the question")
        return np.split(ids, np.cumsum(said["counts"])[:-1])

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the ids; what the tokenizer lacks, and half a character, show as U+FFFD.

        Raises: E-DATA-004 (an id outside the vocabulary), E-DATA-002 (the tokenizer fails).
        """
        plain = checked_ids(ids, self.vocabulary)
        _, payload = self._ask({"do": "decode"}, np.array(plain, "=u4").tobytes())
        return payload.decode("utf-8", "replace")

    def _ask(self, header: dict[str, Any], payload: bytes) -> tuple[dict[str, Any], bytes]:
        try:
            said, given = self._process.ask(header, payload)
        except _Failed as error:
            self._fail(str(error))
        if "error" in said:
            self._fail(str(said["error"]).splitlines()[0][:200])
        return said, given

    def _fail(self, reason: str) -> Never:
        fail(DAMAGED, f"the tokenizer `{self.path.name}` fails: {reason}",
             help=("fetch the file again, from those who trained with it",),
             notes=(f"the file is {self.path}",))  # fmt: skip


def open_tokenizer(spec: Tokenizer, base: Path) -> TokenizerCodec:
    """The codec of a tokenizer's file.

    Raises: E-DATA-001 (no such file), E-DATA-002 (refused), E-DATA-008 (the library is not installed).
    """
    library = "tiktoken" if isinstance(spec, TiktokenSpec) else "tokenizers"
    need(library, "text", f"the tokenizer `{spec.path}`")
    path, *others = find_files(spec.path, base)
    if others:
        fail(DAMAGED, f"`{spec.path}` names {len(others) + 1} files, and a tokenizer is one",
             help=("name one of them",))  # fmt: skip
    match spec:
        case TiktokenSpec(_, pattern, special):
            return TokenizerCodec(path, {"pattern": pattern, "special": [list(pair) for pair in special]})
        case TokenizerSpec():
            return TokenizerCodec(path, {})


def need(library: str, extra: str, what: str) -> None:
    """Raises: E-DATA-008 (`library`, which the extra `extra` brings, is not installed)."""
    if importlib.util.find_spec(library) is None:
        fail(NOT_INSTALLED, f"{what} is read by {library}, which is not installed",
             help=(f"pip install 'sexpgpu[{extra}]'",))  # fmt: skip


class _Failed(Exception):
    """The process did not answer; says why."""


class _Process:
    """The other process. One question at a time; after a failure there are no more answers."""

    def __init__(self, answer_s: float) -> None:
        self._answer_s = answer_s
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-P", tokenizer_process.__file__, str(MEMORY_BYTES), str(math.ceil(2 * answer_s))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        self._finalizer = weakref.finalize(self, _end, self._process)

    def ask(self, header: dict[str, Any], payload: bytes) -> tuple[dict[str, Any], bytes]:
        """The answer to a question. Raises _Failed."""
        with self._lock:
            if not self._finalizer.alive:
                raise _Failed("it failed before")
            try:
                assert self._process.stdin is not None
                tokenizer_process.send(self._process.stdin, header, payload)
                return self._received()
            except (_Failed, OSError, ValueError) as error:
                self._finalizer()
                raise error if isinstance(error, _Failed) else _Failed("it ended") from None

    def _received(self) -> tuple[dict[str, Any], bytes]:
        until = time.monotonic() + self._answer_s
        header_bytes, payload_bytes = LENGTHS.unpack(self._read(LENGTHS.size, until))
        if header_bytes + payload_bytes > MAX_ANSWER_BYTES:
            raise _Failed("its answer is too long")
        return json.loads(self._read(header_bytes, until)), self._read(payload_bytes, until)

    def _read(self, num_bytes: int, until: float) -> bytes:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        parts: list[bytes] = []
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while num_bytes:
                if not selector.select(max(0.0, until - time.monotonic())):
                    raise _Failed(f"no answer after {self._answer_s:g} seconds")
                part = os.read(descriptor, min(num_bytes, 1 << 20))
                if not part:
                    raise _Failed("it ended, as where memory runs out")
                parts.append(part)
                num_bytes -= len(part)
        return b"".join(parts)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):  # what was not yet written is lost with the process
                pipe.close()
