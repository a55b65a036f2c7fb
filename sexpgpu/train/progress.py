"""What a person sees while a run trains: a bar on a terminal, a line now and then elsewhere.

The loop calls `step` after every chunk of steps and `line` for whatever deserves a line of its own
(evaluations, samples, checkpoints). Nothing here touches the run folder.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

_REFRESH_INTERVAL_S = 0.1
_NUM_RATE_SAMPLES = 64  # the rate is over the last 64 refreshes: 6 s of quick steps, 64 slow ones
_NUM_PLAIN_LINES = 10
_MAX_WIDTH = 100
_MIN_BAR_WIDTH = 4
_CONTROLS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"} | {0x7F: 0x2421}


class Progress:
    """Shows step, loss, rate and remaining time of a run of `total_steps` that begins after `start_step`.

    On a terminal: one bar at the bottom, redrawn at most ten times a second. Elsewhere: a plain line about
    every tenth of the steps. `quiet` shows nothing, lines included. `clock` gives seconds from any origin.
    """

    def __init__(
        self,
        console: Console,
        total_steps: int,
        start_step: int,
        quiet: bool,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._console = console
        self._total_steps = total_steps
        self._start_step = start_step
        self._quiet = quiet
        self._clock = clock
        self._step = start_step
        self._loss: float | None = None
        self._num_tokens: int | None = None
        # (time, step, tokens so far); the first is of the first call of `step`: compiling counts for nothing
        self._samples: deque[tuple[float, int, int | None]] = deque(maxlen=_NUM_RATE_SAMPLES)
        self._next_refresh_s = float("-inf")
        self._next_plain_step = start_step + 1
        self._live: Live | None = None

    def __enter__(self) -> Progress:
        if self._console.is_terminal and not self._console.is_dumb_terminal and not self._quiet:
            self._live = Live(self._bar_line(), console=self._console, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.update(self._bar_line(), refresh=True)
            self._live.stop()
            self._live = None

    def step(self, step: int, loss: float | None = None, tokens: int | None = None) -> None:
        """Report that `step` steps are done: the newest loss, the number of tokens since the last call.

        Cheap: most calls only store their arguments.
        """
        self._step = step
        if loss is not None:
            self._loss = loss
        if tokens is not None:
            self._num_tokens = (self._num_tokens or 0) + tokens
        now_s = self._clock()
        if now_s < self._next_refresh_s and step < self._next_plain_step and step < self._total_steps:
            return
        if now_s >= self._next_refresh_s or step >= self._total_steps:
            self._samples.append((now_s, step, self._num_tokens))
            self._next_refresh_s = now_s + _REFRESH_INTERVAL_S
            if self._live is not None:
                self._live.update(self._bar_line(), refresh=True)
        if step >= self._next_plain_step:
            self._next_plain_step = self._plain_step_after(step)
            if self._live is None:
                self.line("  ".join(self._facts()))

    def line(self, text: str) -> None:
        """Print a line (or several) above the bar as it is; control characters become visible signs."""
        if self._quiet:
            return
        # Samples of a model may hold anything: neither markup nor escape sequences nor a narrow encoding
        # may spoil the screen.
        encoding = self._console.encoding
        shown = text.translate(_CONTROLS).encode(encoding, "backslashreplace").decode(encoding)
        self._console.print(Text(shown), soft_wrap=True, highlight=False)

    def _plain_step_after(self, step: int) -> int:
        """The step of the next plain line: the next tenth of the way, or the last step."""
        num_steps = max(self._total_steps - self._start_step, 1)
        tenth = (step - self._start_step) * _NUM_PLAIN_LINES // num_steps + 1
        due = self._start_step + -(-tenth * num_steps // _NUM_PLAIN_LINES)
        return due if step < self._total_steps else step + num_steps

    def _facts(self) -> list[str]:
        """The parts of the line, what matters most first."""
        facts = [f"step {self._step}/{self._total_steps}"]
        if self._loss is not None:
            facts.append(f"loss {self._loss:.4f}" if abs(self._loss) < 1e4 else f"loss {self._loss:.3e}")
        if len(self._samples) < 2:
            return facts
        (then_s, then_step, then_tokens), (now_s, now_step, now_tokens) = self._samples[0], self._samples[-1]
        if now_step <= then_step or now_s <= then_s:
            return facts
        step_s = (now_s - then_s) / (now_step - then_step)
        facts.append(f"ETA {_format_duration(step_s * max(self._total_steps - self._step, 0))}")
        facts.append(_format_rate(step_s))
        if now_tokens is not None and now_tokens > (then_tokens or 0):
            facts.append(f"{_format_count((now_tokens - (then_tokens or 0)) / (now_s - then_s))} tokens/s")
        return facts

    def _bar_line(self) -> Text:
        """One line: as many facts as there is room for, and a bar in the rest."""
        width = min(self._console.width, _MAX_WIDTH) - 1  # a full last column wraps on some terminals
        facts = self._facts()
        while len(facts) > 1 and len("  ".join(facts)) > width:
            facts.pop()
        text = Text(facts[0], style="bold", no_wrap=True, end="")
        bar_width = width - len("  ".join(facts)) - 2
        if bar_width >= _MIN_BAR_WIDTH:
            full, empty = "━─" if self._console.encoding.startswith("utf") else "#-"
            num_steps = max(self._total_steps, 1)
            num_full = min(bar_width * self._step // num_steps, bar_width)
            text.append("  ").append(full * num_full, style="cyan")
            text.append(empty * (bar_width - num_full), style="bright_black")
        for fact in facts[1:]:
            text.append("  ").append(fact, style="not bold")
        text.truncate(width)
        return text


def _format_rate(step_s: float) -> str:
    if step_s >= 1:
        return f"{step_s:.2f} s/step" if step_s < 100 else f"{step_s:.0f} s/step"
    if step_s >= 1e-3:
        return f"{step_s * 1e3:.3g} ms/step" if step_s < 0.1 else f"{step_s * 1e3:.0f} ms/step"
    return f"{_format_count(1 / step_s)} steps/s"


def _format_count(value: float) -> str:
    for unit, scale in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= 0.9995 * scale:
            return f"{value / scale:.3g}{unit}" if value < 999.5 * scale else f"{value / scale:.0f}{unit}"
    return f"{value:.0f}"


def _format_duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24}d {hours % 24}h"
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
