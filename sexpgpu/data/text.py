"""Texts as ids: read a block at a time, cut into documents and pieces, encoded, and kept where they are large.

What a tokenizer makes of a file, and characters of a large one, is kept as arrays in `~/.cache/sexpgpu/tokens`, under
a name that hashes the content and the codec; what lies there is safe to delete.

Flow: `dataset.open_dataset` makes `TokenStream` and `Lines` of what this opens.
"""

from __future__ import annotations

import hashlib
import os
import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from sexpgpu.data.codec import ByteCodec, CharacterCodec, Codec, Encoder, characters_of
from sexpgpu.data.faults import DAMAGED, MISSING, fail
from sexpgpu.data.files import DataFile, find_files, read_blocks, read_text
from sexpgpu.data.ids import FileShard, HeldShard, Shard, ShardedIds
from sexpgpu.data.npy import map_npy, npy_layout
from sexpgpu.data.spec import PYTHON_TOPICS, By
from sexpgpu.data.tokenizer import open_tokenizer
from sexpgpu.diagnostics import DiagnosticError

PYTHON_PREFIX = "python:"
FORMAT = "1"
"""Part of the names of kept arrays: another way of cutting pieces needs another."""
IN_MEMORY_BYTES = 64 << 20
"""Text by characters of so many bytes is encoded at each opening and held; more is kept on the disk and mapped."""
PIECE_CHARACTERS, LARGEST_PIECE = 1 << 20, 1 << 23
"""A tokenizer sees a long document in pieces: after so many characters the next cut is taken, or one is made."""
ENCODED_AT_ONCE = 1 << 22
CUT = re.compile(r"(?<=\S)\n(?=\S)")
"""Where tokens end whatever the tokenizer: after a line end between two characters that are not blank."""


@dataclass(frozen=True)
class Text:
    """A text of a data set: a file, or what Python carries."""

    name: str
    path: Path | None

    def blocks(self) -> Iterator[str]:
        """The text, a block at a time. Raises: E-DATA-002 (unreadable, not UTF-8)."""
        return iter((python_topics(),)) if self.path is None else read_text(self.path)

    def digest(self) -> str:
        """A hash of the whole content. Raises: E-DATA-002 (unreadable)."""
        digest = hashlib.blake2b(digest_size=32)
        for block in (python_topics().encode(),) if self.path is None else read_blocks(self.path):
            digest.update(block)
        return digest.hexdigest()

    def bytes_shard(self) -> Shard:
        """The bytes of the text. Raises: E-DATA-002 (unreadable)."""
        if self.path is None:
            return HeldShard(self.name, np.frombuffer(python_topics().encode(), np.uint8))
        file = DataFile(self.path)
        return FileShard(self.name, file, np.dtype(np.uint8), 0, file.num_bytes)


@dataclass(frozen=True, eq=False)
class Encoded:
    """All texts of a data set as one sequence of ids.

    ends: the positions after each document, `[D]`, where cutting the text has found them; None: nobody has looked.
    """

    ids: ShardedIds
    codec: Codec
    ends: NDArray[np.int64] | None


def open_texts(written: str, base: Path) -> list[Text]:
    """The texts that a path names. Raises: E-DATA-001 (there is none)."""
    if written == PYTHON_TOPICS:
        return [Text(written, None)]
    if written.startswith(PYTHON_PREFIX):
        fail(MISSING, f"Python carries no text `{written}`", help=(f"there is a `{PYTHON_TOPICS}`",))
    return [Text(path.name, path) for path in find_files(written, base)]


def python_topics() -> str:
    """The help texts of the running Python, sorted by topic, with a blank line between."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[topic] for topic in sorted(topics))


def encode_texts(texts: Sequence[Text], by: By, base: Path, separator: str | None = None, keep: bool = True) -> Encoded:
    """The texts as ids. separator: where a tokenizer's documents end; keep: whether it belongs to the document.

    Raises: E-DATA-001, E-DATA-002 (unreadable, not UTF-8, a tokenizer that fails), E-DATA-008.
    """
    if by == "bytes":
        return Encoded(ShardedIds([text.bytes_shard() for text in texts]), ByteCodec(), None)
    if by == "characters":
        also = separator if separator is not None and not keep else ""
        codec = characters_of(chain([also], *(text.blocks() for text in texts)))
        return Encoded(ShardedIds(_character_shards(texts, codec)), codec, None)
    tokenizer = open_tokenizer(by, base)
    found = [_kept(text, tokenizer, separator, keep) for text in texts]
    begins = np.cumsum([0, *(len(shard) for shard, _ in found)])
    ends = np.concatenate([ends + begin for (_, ends), begin in zip(found, begins, strict=False)])
    return Encoded(ShardedIds([shard for shard, _ in found]), tokenizer, ends.astype(np.int64))


def _character_shards(texts: Sequence[Text], codec: CharacterCodec) -> list[Shard]:
    size = sum(text.path.stat().st_size for text in texts if text.path is not None)
    if size > IN_MEMORY_BYTES:
        return [_kept(text, codec, None, True)[0] for text in texts]
    empty = codec.encode_all([""])
    return [HeldShard(text.name, np.concatenate([*empty, *codec.encode_all([*text.blocks()])])) for text in texts]


def _kept(text: Text, codec: Encoder, separator: str | None, keep: bool) -> tuple[Shard, NDArray[np.int64]]:
    """The ids of a text, and the ends of its documents; encoded where nobody has kept them."""
    source = None if text.path is None else DataFile(text.path)
    facts = "\0".join((FORMAT, codec.key, repr(separator), repr(keep), text.digest()))
    folder = Path.home() / ".cache" / "sexpgpu" / "tokens"
    stem = folder / hashlib.sha256(facts.encode("utf-8", "surrogatepass")).hexdigest()
    ids_path, ends_path = stem.with_suffix(".ids.npy"), stem.with_suffix(".ends.npy")
    with suppress(DiagnosticError):
        return _opened(text, ids_path, ends_path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _replacing(ids_path) as ids_file, _replacing(ends_path) as ends_file:
            np.save(ends_file, _encode_into(ids_file, codec, pieces(text.blocks(), separator, keep)))
            if source is not None:
                source.check()  # else the name would lie
    except OSError as error:
        fail(DAMAGED, f"the tokens of `{text.name}` cannot be kept: {(error.strerror or str(error)).lower()}",
             help=("make room, or let `HOME` name a folder that can be written to",),
             notes=(f"they go into {folder}",))  # fmt: skip
    return _opened(text, ids_path, ends_path)


def _opened(text: Text, ids_path: Path, ends_path: Path) -> tuple[Shard, NDArray[np.int64]]:
    file = DataFile(ids_path, watched=False)
    layout = npy_layout(file)
    ends = map_npy(DataFile(ends_path, watched=False))
    return FileShard(text.name, file, layout.dtype, layout.offset, layout.shape[0]), np.array(ends, np.int64)


def _encode_into(file: BinaryIO, codec: Encoder, texts: Iterable[tuple[str, bool]]) -> NDArray[np.int64]:
    """Write the ids of all pieces as an `.npy`. The positions after each document, `[D]`."""
    dtype = np.dtype(np.uint16 if codec.vocabulary <= 1 << 16 else np.uint32)
    ends: list[int] = []
    num_ids = 0
    _write_header(file, dtype, num_ids)
    for batch in _batches(texts):
        for ids, (_, is_end) in zip(codec.encode_all([piece for piece, _ in batch]), batch, strict=True):
            file.write(ids.astype(dtype).tobytes())
            num_ids += len(ids)
            if is_end:
                ends.append(num_ids)
    file.seek(0)
    _write_header(file, dtype, num_ids)  # as long as the first: NumPy leaves room for the count
    return np.array(ends, np.int64)


def _write_header(file: BinaryIO, dtype: np.dtype[Any], num_ids: int) -> None:
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (num_ids,)}
    np.lib.format.write_array_header_1_0(file, header)


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """A file beside `path` that takes its place when all is written; of two, the first takes it last."""
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with beside.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _batches(texts: Iterable[tuple[str, bool]]) -> Iterator[list[tuple[str, bool]]]:
    batch: list[tuple[str, bool]] = []
    size = 0
    for piece, is_end in texts:
        batch.append((piece, is_end))
        size += len(piece)
        if size >= ENCODED_AT_ONCE or len(batch) >= ENCODED_AT_ONCE >> 6:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def pieces(blocks: Iterable[str], separator: str | None, keep: bool) -> Iterator[tuple[str, bool]]:
    """The pieces that a tokenizer sees one by one, and of each whether a document ends with it.

    The end of the text ends a document too, unless nothing stands between it and the separator before.
    """
    held = ""
    for fragment, is_end in _fragments(blocks, separator, keep):
        held += fragment
        while cut := _cut(held):
            yield held[:cut], False
            held = held[cut:]
        if is_end:
            yield held, True
            held = ""
    if held:
        yield held, True


def _fragments(blocks: Iterable[str], separator: str | None, keep: bool) -> Iterator[tuple[str, bool]]:
    if separator is None:
        yield from ((block, False) for block in blocks)
        return
    rest = ""
    for block in blocks:
        *whole, rest = (rest + block).split(separator)
        for part in whole:
            yield part + separator if keep else part, True
        # What may be the beginning of a separator waits for the next block.
        held = max(0, len(rest) - len(separator) + 1)
        yield rest[:held], False
        rest = rest[held:]
    yield rest, False


def _cut(text: str) -> int:
    """Where to cut a piece from a long text; 0: not yet."""
    if len(text) < PIECE_CHARACTERS:
        return 0
    found = CUT.search(text, PIECE_CHARACTERS - 2)
    if found is not None:
        return found.end()
    return LARGEST_PIECE if len(text) >= LARGEST_PIECE else 0
