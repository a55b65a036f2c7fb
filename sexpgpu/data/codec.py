"""Text to token ids and back: one small object for each way of cutting; `tokenizer` has those of others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sexpgpu.data.faults import OUTSIDE_VOCABULARY, fail

NUM_CODE_POINTS = 0x110000


@dataclass(frozen=True)
class CharacterCodec:
    """Ids are positions among the sorted distinct characters of the text."""

    characters: str
    _id_of: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_id_of", {character: i for i, character in enumerate(self.characters)})

    @cached_property
    def _ids(self) -> NDArray[np.integer]:
        """The id of each code point, in the smallest unsigned type that holds them."""
        ids = np.zeros(NUM_CODE_POINTS, np.min_scalar_type(max(0, self.vocabulary - 1)))
        ids[_code_points(self.characters)] = np.arange(self.vocabulary, dtype=ids.dtype)
        return ids

    @property
    def key(self) -> str:
        """What decides the ids of a text."""
        return f"characters {self.characters}"

    def encode_all(self, texts: Sequence[str]) -> list[NDArray[np.integer]]:
        """Ids of texts whose every character is among those of the data. Shapes: `[len(text)]` each."""
        return [self._ids[_code_points(text)] for text in texts]

    @property
    def vocabulary(self) -> int:
        """The number of distinct characters."""
        return len(self.characters)

    def encode(self, text: str) -> list[int]:
        """Ids of the text, CRLF read as LF as in the data.

        Raises: E-DATA-004 (a character that the data lacks).
        """
        text = text.replace("\r\n", "\n")
        try:
            return [self._id_of[character] for character in text]
        except KeyError:
            at = next(i for i, character in enumerate(text) if character not in self._id_of)
            fail(
                OUTSIDE_VOCABULARY,
                f"{text[at]!r} (U+{ord(text[at]):04X}), character {at} of the text, is not among the "
                f"{self.vocabulary} characters of the data",
                help=("leave it out, or read the data `:by bytes`, which knows every text",),
            )

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the ids.

        Raises: E-DATA-004 (an id outside the vocabulary).
        """
        return "".join([self.characters[i] for i in checked_ids(ids, self.vocabulary)])


@dataclass(frozen=True)
class ByteCodec:
    """Ids are the bytes of UTF-8."""

    @property
    def vocabulary(self) -> int:
        """256."""
        return 256

    def encode(self, text: str) -> list[int]:
        """The UTF-8 bytes of the text."""
        return list(text.encode("utf-8", errors="surrogatepass"))

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the bytes; what is not UTF-8 shows as U+FFFD, since a model may emit anything.

        Raises: E-DATA-004 (an id outside the vocabulary).
        """
        return bytes(checked_ids(ids, self.vocabulary)).decode("utf-8", errors="replace")


@dataclass(frozen=True)
class IdCodec:
    """Token files carry no tokenizer, so their text form is the ids in decimal with spaces between."""

    vocabulary: int

    def encode(self, text: str) -> list[int]:
        """The ids that a text such as `15496 995` lists.

        Raises: E-DATA-004 (not an id of the vocabulary).
        """
        words = text.split()
        for word in words:
            if not (word.isascii() and word.isdigit()):
                fail(
                    OUTSIDE_VOCABULARY,
                    f"`{word}` is not a token id",
                    help=(
                        "token files carry no tokenizer: write a prompt as ids with spaces between, "
                        "such as `15496 995`",
                    ),
                )
        return checked_ids(map(int, words), self.vocabulary)

    def decode(self, ids: Iterable[int]) -> str:
        """The ids in decimal with spaces between.

        Raises: E-DATA-004 (an id outside the vocabulary).
        """
        return " ".join(map(str, checked_ids(ids, self.vocabulary)))


class Codec(Protocol):
    """What is between texts and ids."""

    @property
    def vocabulary(self) -> int:
        """How many ids there are."""

    def encode(self, text: str) -> list[int]:
        """The ids of a text. Raises: E-DATA-004 (something that the vocabulary lacks)."""

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids. Raises: E-DATA-004 (an id outside the vocabulary)."""


class Encoder(Codec, Protocol):
    """A codec for whole files of text. key: what decides the ids of a text."""

    @property
    def key(self) -> str:
        """See above."""

    def encode_all(self, texts: Sequence[str]) -> list[NDArray[Any]]:
        """Ids of each text, an unsigned array."""


def checked_ids(ids: Iterable[int], vocabulary: int) -> list[int]:
    """The ids as Python integers.

    Raises: E-DATA-004 (an id outside 0 to vocabulary - 1).
    """
    plain = [int(i) for i in ids]
    for at, i in enumerate(plain):
        if not 0 <= i < vocabulary:
            fail(
                OUTSIDE_VOCABULARY,
                f"id {i} at position {at} is outside the vocabulary of {vocabulary}",
                help=(f"ids go from 0 to {vocabulary - 1}",),
            )
    return plain


def characters_of(blocks: Iterable[str]) -> CharacterCodec:
    """The codec of all characters that stand in these blocks of text."""
    seen = np.zeros(NUM_CODE_POINTS, dtype=np.bool_)
    for block in blocks:
        seen[_code_points(block)] = True
    return CharacterCodec("".join(map(chr, np.flatnonzero(seen).tolist())))


def _code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
