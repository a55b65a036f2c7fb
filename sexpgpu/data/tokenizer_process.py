"""The process in which a tokenizer of others runs: whatever its file makes it do, it does it here.

It is started by `sexpgpu.data.tokenizer` as a program of its own, and imports nothing of the package. A message is two
lengths, a JSON header and a payload; each request has one answer, and a header with `error` is the answer to a request
that failed.
"""

from __future__ import annotations

import base64
import json
import os
import resource
import signal
import struct
import sys
from array import array
from collections.abc import Callable
from typing import IO, Any, BinaryIO

LENGTHS = struct.Struct("<QQ")
LARGEST_ID = (1 << 31) - 1
UNKNOWN = "\ufffd"


class Opened:
    """A tokenizer that is ready.

    encode: ids of each text. decode: the text of known ids. known: whether there is such an id.
    """

    def __init__(
        self,
        version: str,
        vocabulary: int,
        encode: Callable[[list[str]], list[list[int]]],
        decode: Callable[[list[int]], str],
        known: Callable[[int], bool],
    ) -> None:
        if not 0 < vocabulary <= LARGEST_ID + 1:
            raise ValueError(f"its ids end at {vocabulary - 1}, and they go from 0 to {LARGEST_ID}")
        self.version = version
        self.vocabulary = vocabulary
        self.encode = encode
        self._decode = decode
        self._known = known

    def decode(self, ids: list[int]) -> str:
        """The text of ids; one that the tokenizer lacks shows as U+FFFD."""
        parts: list[str] = []
        run: list[int] = []
        for i in ids:
            if self._known(i):
                run.append(i)
                continue
            parts += [self._decode(run), UNKNOWN]
            run = []
        return "".join([*parts, self._decode(run)])


def open_tokenizers(content: bytes) -> Opened:
    """A file of the library `tokenizers`. What it says of cutting and filling texts does not hold here."""
    import tokenizers

    made = tokenizers.Tokenizer.from_str(content.decode("utf-8"))
    made.no_truncation()
    made.no_padding()

    def encode(texts: list[str]) -> list[list[int]]:
        return [each.ids for each in made.encode_batch_fast(texts, add_special_tokens=False)]

    vocabulary = max(made.get_vocab(with_added_tokens=True).values(), default=-1) + 1
    return Opened(
        f"tokenizers {tokenizers.__version__}",
        vocabulary,
        encode,
        lambda ids: made.decode(ids, skip_special_tokens=False),
        lambda i: made.id_to_token(i) is not None,
    )


def open_tiktoken(content: bytes, pattern: str, special: dict[str, int]) -> Opened:
    """A file of ranks, as the library `tiktoken` reads it."""
    import tiktoken

    ranks: dict[bytes, int] = {}
    for number, line in enumerate(content.splitlines(), 1):
        words = line.split()
        if not words:
            continue
        if len(words) != 2 or not words[1].isdigit():
            raise ValueError(f"line {number} is not a token in base 64 and its id")
        try:
            token = base64.b64decode(words[0], validate=True)
        except ValueError:
            raise ValueError(f"line {number} does not begin with base 64") from None
        if not token or token in ranks:
            raise ValueError(f"the token of line {number} is {'there twice' if token else 'empty'}")
        ranks[token] = int(words[1])
    ids = [*ranks.values(), *special.values()]
    known = set(ids)
    if len(known) < len(ids):
        raise ValueError("two tokens have one id")
    if not all(0 <= i <= LARGEST_ID for i in known):
        raise ValueError(f"an id is above {LARGEST_ID}")
    lacking = next((byte for byte in range(256) if bytes([byte]) not in ranks), None)
    if lacking is not None:
        raise ValueError(f"the byte 0x{lacking:02x} has no token of its own")
    made = tiktoken.Encoding("file", pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)
    return Opened(
        f"tiktoken {tiktoken.__version__}",
        max(known) + 1,
        lambda texts: made.encode_batch(texts, num_threads=os.cpu_count() or 1, allowed_special="all"),
        lambda ids: made.decode_bytes(ids).decode("utf-8", "replace"),
        known.__contains__,
    )


def answer(opened: Opened | None, header: dict[str, Any], payload: bytes) -> tuple[Opened, dict[str, Any], bytes]:
    """What one request gives: the tokenizer from now on, the header and the payload of the answer."""
    match header["do"]:
        case "open":
            special = dict(header.get("special", ()))
            opened = (
                open_tiktoken(payload, header["pattern"], special) if "pattern" in header else open_tokenizers(payload)
            )
            return opened, {"vocabulary": opened.vocabulary, "version": opened.version}, b""
        case "encode":
            assert opened is not None
            texts, at = [], 0
            for size in header["sizes"]:
                texts.append(payload[at : at + size].decode("utf-8"))
                at += size
            found = opened.encode(texts)
            return opened, {"counts": [len(ids) for ids in found]}, b"".join(array("I", ids).tobytes() for ids in found)
    assert opened is not None
    ids = array("I")
    ids.frombytes(payload)
    return opened, {}, opened.decode(ids.tolist()).encode("utf-8", "replace")


def main() -> None:
    """Answer requests until there are no more. Arguments of the program: how many bytes it may fill, and after how many
    seconds of one answer it ends, were there nobody left to end it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the business of the process that asks
    resource.setrlimit(resource.RLIMIT_DATA, (int(sys.argv[1]), resource.getrlimit(resource.RLIMIT_DATA)[1]))
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    opened: Opened | None = None
    while (request := receive(source)) is not None:
        signal.alarm(int(sys.argv[2]))
        try:
            opened, header, payload = answer(opened, *request)
        except BaseException as error:  # a panic of native code is none of Exception
            header, payload = {"error": str(error).strip() or type(error).__name__}, b""
        signal.alarm(0)
        send(sink, header, payload)


def receive(source: BinaryIO) -> tuple[dict[str, Any], bytes] | None:
    """The next message; None at the end."""
    lengths = source.read(LENGTHS.size)
    if len(lengths) < LENGTHS.size:
        return None
    header_bytes, payload_bytes = LENGTHS.unpack(lengths)
    return json.loads(source.read(header_bytes)), source.read(payload_bytes)


def send(sink: IO[bytes], header: dict[str, Any], payload: bytes) -> None:
    """Write a message."""
    said = json.dumps(header).encode()
    sink.write(LENGTHS.pack(len(said), len(payload)) + said)
    sink.write(payload)
    sink.flush()


if __name__ == "__main__":
    main()
