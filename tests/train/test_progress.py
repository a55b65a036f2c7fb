"""Progress: a bar on a terminal, a few plain lines elsewhere, never wider than the console."""

import io
import re

import pytest
from rich.console import Console

from sexpgpu.train.progress import Progress, _format_count, _format_duration, _format_rate
from tests.effort import calls


class Clock:
    def __init__(self) -> None:
        self.now_s = 50.0

    def __call__(self) -> float:
        return self.now_s


def console_of(*, terminal: bool, width: int = 80, encoding: str = "utf-8") -> tuple[Console, io.BytesIO]:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding, write_through=True)
    environment = {"TERM": "xterm-256color"} if terminal else {}
    return Console(file=stream, force_terminal=terminal, width=width, _environ=environment), raw


def screen_lines(raw: io.BytesIO, encoding: str = "utf-8") -> list[str]:
    """What was printed, without colours and cursor movements, one entry per drawn line."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", raw.getvalue().decode(encoding))
    return [line for line in re.split(r"[\r\n]+", text) if line]


def run(console: Console, num_steps: int, *, start: int = 0, step_s: float = 0.0125, quiet: bool = False) -> None:
    clock = Clock()
    with Progress(console, num_steps, start, quiet, clock) as progress:
        for step in range(start + 1, num_steps + 1):
            clock.now_s += step_s
            progress.step(step, 3.25, 8192)
            if step == num_steps // 2:
                progress.line("validation/loss 3.1")


def test_elsewhere_a_plain_line_about_every_tenth() -> None:
    console, raw = console_of(terminal=False)
    run(console, 1000)
    lines = screen_lines(raw)
    assert lines[0] == "step 1/1000  loss 3.2500"
    assert "step 500/1000  loss 3.2500  ETA 0:06  12.5 ms/step  655k tokens/s" in lines
    assert lines[-1].startswith("step 1000/1000")
    assert "validation/loss 3.1" in lines
    assert len(lines) == 12
    assert b"\x1b" not in raw.getvalue()


@pytest.mark.parametrize("start, num_steps", [(0, 1), (0, 3), (7, 10), (90, 1000), (0, 11), (5, 5)])
def test_every_length_of_run_ends_with_its_last_step_once(start: int, num_steps: int) -> None:
    console, raw = console_of(terminal=False)
    run(console, num_steps, start=start)
    steps = [line.split()[1] for line in screen_lines(raw) if line.startswith("step")]
    assert len(steps) == len(set(steps)) <= 11
    if num_steps > start:
        assert steps[-1] == f"{num_steps}/{num_steps}"


def test_steps_that_come_in_chunks_give_a_line_for_each_tenth_at_most() -> None:
    console, raw = console_of(terminal=False)
    clock = Clock()
    with Progress(console, 100, 0, False, clock) as progress:
        for step in (25, 50, 75, 100):
            clock.now_s += 1
            progress.step(step, None, None)
    assert [line.split()[1] for line in screen_lines(raw)] == ["25/100", "50/100", "75/100", "100/100"]


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120])
@pytest.mark.parametrize("num_steps", [1000, 10_000_000])
def test_the_bar_is_one_line_that_fits(width: int, num_steps: int) -> None:
    console, raw = console_of(terminal=True, width=width)
    clock = Clock()
    with Progress(console, num_steps, 0, False, clock) as progress:
        for step in range(1, 40):
            clock.now_s += 123.0
            progress.step(step * num_steps // 40, 12345.678, 10**9)
    lines = screen_lines(raw)
    assert lines and all(len(line) < width for line in lines)


def test_on_a_terminal_the_bar_shows_everything_at_80_columns() -> None:
    console, raw = console_of(terminal=True)
    run(console, 1000)
    lines = screen_lines(raw)
    assert "validation/loss 3.1" in lines
    pattern = r"step 9\d\d/1000  ━+─+  loss 3.2500  ETA 0:00  12.5 ms/step  655k tokens/s"
    assert any(re.fullmatch(pattern, line) for line in lines)
    assert 100 < len(lines) < 300, "12.5 s of ten redraws a second, and the lines printed above"
    assert raw.getvalue().decode().count("\x1b[?25l") == raw.getvalue().decode().count("\x1b[?25h"), "cursor"


def test_quiet_is_silent() -> None:
    for terminal in (True, False):
        console, raw = console_of(terminal=terminal)
        run(console, 100, quiet=True)
        assert raw.getvalue() == b""


def test_samples_are_printed_as_they_are_and_cannot_spoil_the_terminal() -> None:
    console, raw = console_of(terminal=False)
    with Progress(console, 10, 0, False) as progress:
        progress.line("[red]brackets[/red] :smile: \x1b[2Jcleared\x07\n" + "x" * 200)
    assert screen_lines(raw) == ["[red]brackets[/red] :smile: ␛[2Jcleared␇", "x" * 200]


def test_a_narrow_encoding_loses_nothing() -> None:
    for terminal in (True, False):
        console, raw = console_of(terminal=terminal, encoding="ascii")
        with Progress(console, 10, 0, False) as progress:
            progress.step(5, 1.0, 10)
            progress.line("größer \udc80")
        assert "gr\\xf6\\xdfer \\udc80" in screen_lines(raw, "ascii")


def test_the_cursor_comes_back_after_an_error() -> None:
    console, raw = console_of(terminal=True)
    with pytest.raises(KeyboardInterrupt), Progress(console, 10, 0, False):
        raise KeyboardInterrupt
    assert raw.getvalue().rindex(b"\x1b[?25h") > raw.getvalue().rindex(b"\x1b[?25l")


def test_a_call_costs_little() -> None:
    console, _ = console_of(terminal=True)
    with Progress(console, 1_000_000, 0, False) as progress:
        steps = range(1, 20_001)
        per_step = calls(lambda: [progress.step(step, 1.0, 10) for step in steps]) / len(steps)
        assert per_step < 20


def test_quantities_are_short() -> None:
    assert [_format_rate(s) for s in (250.0, 2.346, 0.2345, 0.0123456, 0.0001)] == [
        "250 s/step",
        "2.35 s/step",
        "234 ms/step",
        "12.3 ms/step",
        "10k steps/s",
    ]
    assert [_format_count(n) for n in (12, 999.6, 655_360, 999_900, 1_234_567, 2.5e9)] == [
        "12",
        "1k",
        "655k",
        "1M",
        "1.23M",
        "2.5G",
    ]
    assert [_format_duration(s) for s in (0, 59.6, 3600, 86400 * 3)] == ["0:00", "1:00", "1:00:00", "3d 0h"]
