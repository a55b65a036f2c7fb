"""Writes token shards for gpt2.sx: 256 int32 of header (magic, version, number of ids), then uint16 ids.

GPT-2's own tokens where tiktoken is installed and finds their table, otherwise the text's bytes. tiktoken fetches the
table the first time it is asked; nothing else here touches the network.

    python examples/make_tokens.py TEXT ... [--out FOLDER] [--bytes] [--shard-ids N]

Without a text it takes the help texts that every Python carries. Source of the format: llm.c, dev/data/data_common.py.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np

MAGIC, VERSION, HEADER_WORDS = 20240520, 1, 256


def gpt2_encoder() -> Callable[[str], list[int]] | None:
    """GPT-2's tokenizer; None where it cannot be had."""
    try:
        import tiktoken

        encoding = tiktoken.get_encoding("gpt2")
    except Exception as error:  # not installed, or its table is not there and cannot be fetched
        print(f"no GPT-2 tokens ({type(error).__name__}: {error}); taking bytes")
        return None
    return encoding.encode_ordinary


def help_texts() -> str:
    """The help topics of the running Python, sorted by name."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


def write_shard(path: Path, ids: np.ndarray) -> None:
    """One shard; every id is below 65,536."""
    header = np.zeros(HEADER_WORDS, "<i4")
    header[:3] = MAGIC, VERSION, len(ids)
    with path.open("wb") as file:
        file.write(header.tobytes())
        file.write(ids.astype("<u2").tobytes())


def main() -> None:
    """Write the shards that the command line asks for."""
    parser = argparse.ArgumentParser(description="text to token shards")
    parser.add_argument("text", nargs="*", type=Path, help="UTF-8 files, joined in the order given")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("data"), help="folder of the shards")
    parser.add_argument("--bytes", action="store_true", help="take bytes as ids, whatever is installed")
    parser.add_argument("--shard-ids", type=int, default=100_000_000, help="ids in one shard, at most")
    options = parser.parse_args()

    text = "".join(path.read_text("utf-8") for path in options.text) if options.text else help_texts()
    encode = None if options.bytes else gpt2_encoder()
    ids = np.array(encode(text)) if encode else np.frombuffer(text.encode(), np.uint8)
    options.out.mkdir(parents=True, exist_ok=True)
    starts = range(0, len(ids), options.shard_ids)
    for index, start in enumerate(starts):
        write_shard(options.out / f"train-{index:05}.bin", ids[start : start + options.shard_ids])
    print(f"{options.out}: {len(ids):,} {'tokens of GPT-2' if encode else 'bytes'} in {len(starts)} shards")


if __name__ == "__main__":
    main()
