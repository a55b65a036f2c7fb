"""Text to token ids and back: one small frozen object for each way of cutting."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sexpgpu.data.faults import OUTSIDE_VOCABULARY, fail

NUM_CODE_POINTS = 0x110000
# Characters become 4-byte code points on the way to ids; a slice at a time keeps that copy small.
CHARACTERS_AT_ONCE = 1 << 24


@dataclass(frozen=True)
class CharacterCodec:
    """Ids are positions among the sorted distinct characters of the text."""

    characters: str
    _id_of: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_id_of", {character: i for i, character in enumerate(self.characters)})

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


Codec = CharacterCodec | ByteCodec | IdCodec


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


def character_ids(texts: Iterable[str]) -> tuple[CharacterCodec, list[NDArray[np.integer]]]:
    """The codec of all texts together, and each text's ids in the smallest unsigned type that holds them.

    Shapes: one array `[len(text)]` for each text.
    """
    texts = list(texts)
    seen = np.zeros(NUM_CODE_POINTS, dtype=np.bool_)
    for text in texts:
        for begin in range(0, len(text), CHARACTERS_AT_ONCE):
            seen[_code_points(text[begin : begin + CHARACTERS_AT_ONCE])] = True
    present = np.flatnonzero(seen)
    codec = CharacterCodec("".join(map(chr, present.tolist())))
    dtype = np.min_scalar_type(max(0, len(present) - 1))
    id_of = np.zeros(NUM_CODE_POINTS, dtype=dtype)
    id_of[present] = np.arange(len(present), dtype=dtype)
    arrays: list[NDArray[np.integer]] = []
    for text in texts:
        ids = np.empty(len(text), dtype=dtype)
        for begin in range(0, len(text), CHARACTERS_AT_ONCE):
            points = _code_points(text[begin : begin + CHARACTERS_AT_ONCE])
            ids[begin : begin + len(points)] = id_of[points]
        arrays.append(ids)
    return codec, arrays


def _code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
