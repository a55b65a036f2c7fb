"""From a keystroke to its diagnostics: `pytest tests/lsp/test_latency.py -m slow -s` prints a table.

`burst` is the time after the last of several keys that are not waited for, `cpu` the server's processor time for a key.
"""

import asyncio
import os
import statistics
import time
from pathlib import Path

import pytest

from tests.lsp.session import Session, session

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PLACES = [
    ("gpt2.sx", "(gelu (linear x", " wdith"),
    ("gpt2.sx", "(def width 7", "0"),
    ("gpt2.sx", ";; gpt2.sx", " a comment"),
    ("gpt2.sx", "(attention q k v", " :cuasal false"),
    ("char-gpt.sx", "(gelu (project x", " wdith"),
]


def cpu_ms(pid: int) -> float:
    """Processor time that a process has had; not a number where the system does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    except OSError:
        return float("nan")
    return 1e3 * (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def typed(editor: Session, uri: str, text: str, at: int, word: str) -> list[float]:
    """Milliseconds for each key of `word`, typed at `at` and taken back; each is waited for."""
    found = []
    for length in [*range(1, len(word) + 1), *range(len(word) - 1, -1, -1)]:
        start = time.perf_counter()
        editor.change(uri, text[:at] + word[:length] + text[at:])
        await editor.settled(uri)
        found.append(1e3 * (time.perf_counter() - start))
        await asyncio.sleep(0.15)
    return found


async def burst(editor: Session, uri: str, text: str, at: int, word: str) -> float:
    """Milliseconds from the last key of `word` on, where nothing is waited for between keys."""
    for length in range(1, len(word) + 1):
        editor.change(uri, text[:at] + word[:length] + text[at:])
        start = time.perf_counter()
        await asyncio.sleep(0.06)
    await editor.settled(uri)
    return 1e3 * (time.perf_counter() - start)


@pytest.mark.slow
def test_how_soon_diagnostics_follow_a_key(tmp_path: Path) -> None:
    rows: list[str] = []

    async def script() -> None:
        async with session(tmp_path) as editor:
            assert editor.client._server is not None
            pid = editor.client._server.pid
            for name, place, word in PLACES:
                text = (EXAMPLES / name).read_text("utf-8")
                uri = (tmp_path / name).as_uri()
                if uri not in editor.texts:
                    editor.open(uri, text)
                    assert await editor.codes(uri) == []
                at = text.index(place) + len(place)
                before = cpu_ms(pid)
                times = await typed(editor, uri, text, at, word)
                each = (cpu_ms(pid) - before) / len(times)
                last = await burst(editor, uri, text, at, word)
                shown = f"{place}…{word.strip()}"
                middle = statistics.median(times)
                rows.append(f"{name:<12} {shown:<36} {middle:8.0f} {max(times):6.0f} {last:7.0f} {each:6.0f}")
                editor.change(uri, text)
                assert await editor.codes(uri) == []

    asyncio.run(script())
    head = f"{'file':<12} {'what is typed':<36} {'median':>8} {'max':>6} {'burst':>7} {'cpu':>6}"
    print(f"\nms from a change to its diagnostics; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print("\n".join([head, *rows]))
    assert len(rows) == len(PLACES)
