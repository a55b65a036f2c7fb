"""Damaged files through the reader and the elaborator: nothing but diagnostics, and no case longer than some seconds.

Each case is a number: it decides the file, and what is done to it. `SEXPGPU_FUZZ` (read in `tests/conftest.py`) says
how many there are; `python -m tests.lang.test_fuzz FIRST LAST` runs a stretch of them by hand, and prints the rate.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from sexpgpu.diagnostics import DiagnosticError, render
from sexpgpu.lang.load import load_experiment
from tests.lang.files import write_data
from tests.lang.mutants import is_code, misspelt, tokens_of
from tests.lang.test_errors import FILES, TAIL, cases

ROOT = Path(__file__).resolve().parents[2]
CASE_S = 5.0
"""Processor time that one case may take."""
NUM_STRETCHES = 40
"""Parts that a run is cut into, so that several processes share it."""
STRANGE = (
    "\x00", "\x1b[2J", "\ufeff", "\u202e", "\U0001f300", "e\u0301", "\r", "\t", "\x0b", "\x85", "\u2028",
    "'", "`", ",", "@", "#", "#(", "#|", "|#", "#;", ";", '"', "\\", ":", "::", "?", "...", "->", "_",
)  # fmt: skip
"""Text that a keyboard or a copy from elsewhere brings into a file."""
NUMBERS = (
    "0", "-1", "1", "2", "3.5", "-0.0", "1e308", "1e-320", "9" * 99, "9" * 101, "1e400", "0x10", "1_0", "1__0", "+",
    "-", "2147483648", "9223372036854775808", "1000000", "1000000000", "281474976710657", "inf", "nan",
)  # fmt: skip


def corpus() -> list[str]:
    """Small programs: those of the golden files with what they need to run, the smallest examples, the library."""
    found = [text + "\n" + TAIL for path in FILES for _, text, _ in cases(path)]
    for name in ("tiny-sgd", "tiny-adam"):
        found.append((ROOT / "examples" / f"{name}.sx").read_text("utf-8"))
    for path in sorted((ROOT / "sexpgpu" / "std").glob("*.sx")):
        found.append(path.read_text("utf-8") + TAIL + CALLER)
    return found


CALLER = """
(defmetric loss ((x (f32 _ 3)) (y (i32 _)))
  (mean (cross-entropy (linear (dropout (gelu (layer-norm (swiglu x 4))) 0.1) 3 :name out) y :smoothing 0.1)))
"""


def damaged(number: int, programs: list[str]) -> bytes:
    """The bytes of case `number`."""
    random = Random(number)
    text = random.choice(programs)
    for _ in range(random.choice((1, 1, 1, 2, 3, 8))):
        text = random.choice((_token, _token, _token, _splice, _splice, _characters, _nested, _long))(
            random, text, programs
        )
    data = text.encode("utf-8", errors="surrogatepass")
    return _bytes(random, data) if random.random() < 0.05 else data


def _pieces(text: str) -> tuple[list[str], list[int]]:
    tokens = tokens_of(text)
    return tokens, [i for i, token in enumerate(tokens) if is_code(token)] or [0]


def _token(random: Random, text: str, programs: list[str]) -> str:
    """One token deleted, doubled, misspelt, replaced or swapped with any other of the file."""
    tokens, places = _pieces(text)
    if not tokens:
        return text
    i, j = random.choice(places), random.choice(places)
    match random.randrange(7):
        case 0:
            tokens[i] = ""
        case 1:
            tokens[i] = f"{tokens[i]} {tokens[i]}"
        case 2:
            tokens[i] = misspelt(random, tokens[i])
        case 3:
            tokens[i] = tokens[j]
        case 4:
            tokens[i], tokens[j] = tokens[j], tokens[i]
        case 5:
            tokens[i] = random.choice(NUMBERS)
        case 6:
            tokens[i] = random.choice(STRANGE)
    return "".join(tokens)


def _splice(random: Random, text: str, programs: list[str]) -> str:
    """A stretch of tokens, or one form, of another program in the place of one of this."""
    (mine, places), (other, there) = _pieces(text), _pieces(random.choice(programs))
    if not mine or not other:
        return text
    i, j = random.choice(places), random.choice(there)
    mine[i : _end(random, mine, i)] = other[j : _end(random, other, j)]
    return "".join(mine)


def _end(random: Random, tokens: list[str], start: int) -> int:
    """The end of the form that begins at `start`; of a stretch of some tokens where none does."""
    depth = 0
    for index in range(start, len(tokens)):
        depth += (tokens[index] in "([") - (tokens[index] in ")]")
        if depth <= 0:
            return index + 1 if index > start else start + random.randrange(1, 6)
    return len(tokens)


def _characters(random: Random, text: str, programs: list[str]) -> str:
    """Some characters put in, taken out or changed anywhere."""
    for _ in range(random.randrange(1, 5)):
        at = random.randrange(len(text) + 1)
        put = random.choice((*STRANGE, "(", ")", "[", "]", " ", "\n", chr(random.randrange(0x3000))))
        text = text[:at] + put + text[at + random.randrange(3) :]
    return text


def _nested(random: Random, text: str, programs: list[str]) -> str:
    """A form wrapped many times in another, or in brackets."""
    tokens, places = _pieces(text)
    i = random.choice(places)
    end = _end(random, tokens, i) if tokens else 0
    depth = random.choice((2, 5, 30, 90, 250, 3000))
    head, tail = random.choice(
        (("(", ")"), ("[", "]"), ("(+ 1 ", ")"), ("(sum ", ")"), ("(let [a 1] ", ")"), ("(fn (z) ", ")"),
         ("(grad (fn (z) ", ") x)"), ("(repeat [i 9] [a 1] ", ")"), ("(for [i 9] ", ")"), ("(append [1] ", ")"))
    )  # fmt: skip
    return "".join([*tokens[:i], head * depth, *tokens[i:end], tail * depth, *tokens[end:]])


def _long(random: Random, text: str, programs: list[str]) -> str:
    """One token or line many times over."""
    tokens, places = _pieces(text)
    if not tokens:
        return text
    i = random.choice(places)
    again = random.choice((10, 200, 3000))
    tokens[i] = (tokens[i] + random.choice(("", " ", "\n"))) * again
    return "".join(tokens)


def _bytes(random: Random, data: bytes) -> bytes:
    """Bytes changed, among them such as are no UTF-8."""
    made = bytearray(data)
    for _ in range(random.randrange(1, 4)):
        at = random.randrange(len(made) + 1)
        made[at : at + random.randrange(3)] = bytes(random.choices((0x80, 0xC0, 0xED, 0xF5, 0xFF, 0x00, 0x28), k=2))
    return bytes(made)


class TookTooLong(Exception):
    """A case took more than CASE_S of processor time."""


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise TookTooLong when the block takes more processor time."""

    def stop(signum: int, frame: object) -> None:
        raise TookTooLong

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def run_case(number: int, programs: list[str], path: Path) -> None:
    """Load the file of one case. Raises whatever is not a diagnostic."""
    path.write_bytes(damaged(number, programs))
    with at_most(CASE_S):
        try:
            warnings = load_experiment(path).warnings
        except DiagnosticError as error:
            assert render(error.diagnostics)
        else:
            render(warnings)


def run_stretch(numbers: range, folder: Path) -> list[str]:
    """Run cases; what went wrong with each that failed."""
    write_data(folder)
    programs = corpus()
    failures = []
    for number in numbers:
        try:
            run_case(number, programs, folder / "file.sx")
        except Exception as error:
            failures.append(f"case {number}: {error!r}"[:500])
    return failures


@pytest.mark.slow
@pytest.mark.parametrize("stretch", range(NUM_STRETCHES))
def test_damaged_files_end_in_diagnostics(stretch: int, num_fuzz_cases: int, tmp_path: Path) -> None:
    numbers = range(stretch * num_fuzz_cases // NUM_STRETCHES, (stretch + 1) * num_fuzz_cases // NUM_STRETCHES)
    assert not run_stretch(numbers, tmp_path)


def test_some_damaged_files_end_in_diagnostics(tmp_path: Path) -> None:
    assert not run_stretch(range(1_000_000, 1_000_150), tmp_path)


def test_a_case_is_always_the_same_file() -> None:
    programs = corpus()
    assert all(damaged(number, programs) == damaged(number, programs) for number in range(50))


if __name__ == "__main__":
    first, last = int(sys.argv[1]), int(sys.argv[2])
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        for at in range(first, last, 500):
            began = time.process_time()
            numbers = range(at, min(at + 500, last))
            wrong = run_stretch(numbers, Path(name))
            rate = len(numbers) / (time.process_time() - began)
            print("\n".join([*wrong, f"up to case {numbers[-1]}: {rate:.0f} a second of processor time"]), flush=True)
