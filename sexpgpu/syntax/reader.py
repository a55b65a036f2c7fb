"""The reader: from a source text to forms, with a diagnostic for everything it cannot make sense of.

It reads in one pass over a token pattern and a stack of open brackets, never recurses, and never raises on
any text. After a fault it goes on, so that one pass finds the faults of several forms. Three rules carry the
recovery: a bracket in column 0 begins a top-level form, whatever is still open; a closing bracket that closes
a form further out also closes what is open inside; and of a form whose brackets are wrong only the first
fault that explains the rest is told. Which bracket is blamed is judged by indentation.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from sexpgpu.diagnostics import Diagnostic, Label
from sexpgpu.source import Source, Span
from sexpgpu.syntax.forms import Boolean, Float, Form, Integer, Keyword, List, String, Symbol, Vector

MAX_DEPTH = 200
MAX_DIGITS = 100
MAX_FAULTS = 100
"""Diagnostics of one text: whoever has so many mends the first ones and reads again."""

_CLOSERS = {"(": ")", "[": "]"}
_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\", '"': '"'}

# A byte order mark counts as a space wherever a text was joined or pasted.
_TOKEN_PARTS = r"""
    (?P<gap> (?: [\s\ufeff]+ | ;[^\n]* )++ )
  | (?P<open> [(\[] )
  | (?P<close> [)\]] )
  | (?P<string> {string} )
  | (?P<quote> " )
  | (?P<comment> \#\| )
  | (?P<skip> \#; )
  | (?P<atom> [^\s\ufeff()\[\]";]+ )
"""
_TOKEN = re.compile(_TOKEN_PARTS.replace("{string}", r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'), re.VERBOSE | re.DOTALL)
# A string that swallows a bracket in column 0 is not taken for one: used once some string proved unended.
_CAUTIOUS_TOKEN = re.compile(
    _TOKEN_PARTS.replace("{string}", r'"(?:[^"\\\n]++|\\.|\n(?![(\[]))*+"'), re.VERBOSE | re.DOTALL
)
_COMMENT_EDGE = re.compile(r"#\||\|#")
_TOP_LEVEL_OPENER = re.compile(r"^[(\[]", re.MULTILINE)
_HEAD = re.compile(r"""[^\s\ufeff()\[\]";]{1,40}""")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_INTEGER = re.compile(r"[+-]?[0-9]+(?:_[0-9]+)*")
_FLOAT = re.compile(
    r"[+-]?(?:[0-9]+(?:_[0-9]+)*(?:\.(?:[0-9]+(?:_[0-9]+)*)?)?|\.[0-9]+(?:_[0-9]+)*)(?:[eE][+-]?[0-9]+)?"
)
_NUMBER_LIKE = re.compile(r"[+-]?\.?[0-9]")


@dataclass(frozen=True)
class ReadResult:
    """The top-level forms of a text, and what was wrong with it, in the order of the text.

    Where there are diagnostics, the forms are a best guess.
    """

    forms: tuple[Form, ...]
    diagnostics: tuple[Diagnostic, ...]


def read(source: Source, start: int = 0, end: int | None = None) -> ReadResult:
    """Read a whole text, or the top-level forms from one beginning of a line to another.

    Never raises: every fault is a diagnostic, and reading goes on after it.
    """
    stretch = start, len(source.text) if end is None else end
    reader = _Reader(source, _TOKEN, *stretch)
    if not reader.read_all():
        reader = _Reader(source, _CAUTIOUS_TOKEN, *stretch)
        reader.read_all()
    diagnostics = sorted(reader.diagnostics, key=lambda d: d.span.start if d.span is not None else 0)
    return ReadResult(tuple(reader.forms), tuple(diagnostics))


def tokens(source: Source) -> Iterator[tuple[str, int, int]]:
    """The tokens of a text that reads without a diagnostic: kind, start and end, comments and spaces among them.

    The kinds are `gap` (spaces and line comments), `open`, `close`, `string`, `comment` (a block), `skip` (`#;`) and
    `atom`; one begins where the one before it ends.
    """
    at = 0
    while at < len(source.text):
        found = _TOKEN.match(source.text, at)
        assert found is not None and found.lastgroup is not None, (source.name, at)
        start, at, kind = at, found.end(), found.lastgroup
        if kind == "comment":
            at, depth = _comment_end(source.text, start)
            assert not depth, (source.name, start)
        yield kind, start, at


def _comment_end(text: str, start: int) -> tuple[int, int]:
    """Where the block comment that begins at `start` ends, and how many `|#` are missing there."""
    depth, at = 1, start + 2
    while depth:
        edge = _COMMENT_EDGE.search(text, at)
        if edge is None:
            return len(text), depth
        depth += 1 if edge[0] == "#|" else -1
        at = edge.end()
    return at, 0


@dataclass(slots=True)
class _Frame:
    """An open bracket and what was read inside it so far; `skips` are the `#;` that wait for a datum.

    Of the line read last it keeps what judges the next one: the word that began the line, with its column, and the
    leftmost form that ended on it.
    """

    opener: str
    start: int
    column: int
    items: list[Form] = field(default_factory=list)
    skips: list[int] = field(default_factory=list)
    leading_word: tuple[int, int, int] | None = None  # its column, start and end
    ended: tuple[int, int, int] | None = None  # its column, start and end


@dataclass(frozen=True, slots=True)
class _Suspicion:
    """A line that is indented as if `frame` had been closed before it, at `text_end`."""

    frame: _Frame
    span: Span
    text_end: int


@dataclass(frozen=True, slots=True)
class _Surplus:
    """Why a closing bracket may be one too many: a form that ended before lines which are indented as its parts, or
    a word whose opening bracket may be missing.

    span: the bracket that ended the form, or the word. word: what stands there, if it is a word.
    """

    span: Span
    form_start: int
    line: int
    word: str = ""


class _Reader:
    """The state of one pass over one text, or a stretch of it."""

    def __init__(self, source: Source, token: re.Pattern[str], start: int, end: int) -> None:
        self.source = source
        self.text = source.text
        self.token = token
        self.diagnostics: list[Diagnostic] = []
        self.top = _Frame("", 0, -1)
        self.frames: list[_Frame] = []
        self.position = self.line_start = start
        self.end = end
        self.fresh_line = True
        self.token_end = 0  # the end of the last token that was not a gap
        self.suspicion: _Suspicion | None = None
        self.surplus: _Surplus | None = None
        self.last_closed: tuple[int, int] | None = None  # the last top-level form: its start and end
        self.told = False  # whether a bracket fault of this top-level form is told already

    @property
    def forms(self) -> list[Form]:
        """The top-level forms read so far."""
        return self.top.items

    def read_all(self) -> bool:
        """Read to the end; false if a string proved unended while strings are still taken at their word."""
        match_token, text, num_characters = self.token.match, self.text, self.end
        while self.position < num_characters:
            start = self.position
            found = match_token(text, start)
            assert found is not None, (self.source.name, start)
            kind, end = found.lastgroup, found.end()
            self.position = end
            if kind == "gap":
                self.note_line(start, end)
                continue
            if self.fresh_line:
                self.judge_indentation(start, end, kind)
                self.fresh_line = False
            if kind == "atom":
                self.add(self.atom(start, end))
            elif kind == "open":
                self.open(start)
            elif kind == "close":
                self.close(start)
            elif kind == "string":
                self.add(self.string(start, end))
                self.note_line(start, end, fresh=False)
            elif kind == "skip":
                (self.frames[-1] if self.frames else self.top).skips.append(start)
            elif kind == "comment":
                self.block_comment(start)
                continue
            elif self.token is _TOKEN:
                return False
            else:
                self.unended_string(start)
            self.token_end = self.position
        self.end_top_level(None)
        self.drop_skips(self.top)
        return True

    # --- lines --------------------------------------------------------------------------------------------

    def note_line(self, start: int, end: int, fresh: bool = True) -> None:
        """Remember where the line begins after a token that may hold line breaks."""
        at = self.text.rfind("\n", start, end)
        if at >= 0:
            self.line_start = at + 1
            self.fresh_line = fresh

    def judge_indentation(self, start: int, end: int, kind: str | None) -> None:
        """Look at the first token of a line: does its column contradict what is open?"""
        if kind == "close":
            return
        column = start - self.line_start
        if column == 0 and kind == "open":
            self.end_top_level(start)
        elif self.frames and self.suspicion is None and column <= self.frames[-1].column:
            self.suspicion = _Suspicion(self.frames[-1], self.span(start, end), self.token_end)
        self.judge_openers(start, end, column, kind)

    def judge_openers(self, start: int, end: int, column: int, kind: str | None) -> None:
        """Remember the first sign of this top-level form that an opening bracket is missing."""
        frame = self.frames[-1] if self.frames else self.top
        if self.surplus is None:
            word, ended = frame.leading_word, frame.ended
            line = self.source.line_column(start)[0]
            if word is not None and column > word[0]:
                self.surplus = _Surplus(self.span(*word[1:]), start, line, self.text[word[1] : word[2]])
            elif ended is not None and column > ended[0]:
                self.surplus = _Surplus(self.span(ended[2] - 1, ended[2]), ended[1], line)
        frame.leading_word = (column, start, end) if kind == "atom" else None
        frame.ended = None

    # --- brackets -----------------------------------------------------------------------------------------

    def add(self, form: Form) -> None:
        """Give a finished datum to the innermost open bracket, unless a `#;` waits for it."""
        frame = self.frames[-1] if self.frames else self.top
        if frame.skips:
            frame.skips.pop()
        else:
            frame.items.append(form)

    def open(self, start: int) -> None:
        """Open a bracket."""
        column = start - self.line_start
        if not self.frames and (column == 0 or not self.told):
            self.told = False
            self.suspicion = None
            if column == 0:
                self.surplus = None
                self.top.leading_word = self.top.ended = None
        if len(self.frames) >= MAX_DEPTH:
            self.too_deep(start)
            return
        self.frames.append(_Frame(self.text[start], start, column))

    def close(self, start: int) -> None:
        """Close a bracket: the innermost one, or one further out if only that has the right kind."""
        closer = self.text[start]
        if not self.frames:
            self.stray_closer(start)
            return
        if _CLOSERS[self.frames[-1].opener] != closer:
            if any(_CLOSERS[frame.opener] == closer for frame in self.frames):
                self.closed_over(start)
            elif not self.told:
                self.wrong_closer(start)
            else:
                return
        self.finish_frame(start + 1)

    def finish_frame(self, end: int) -> None:
        """Make a form of the innermost open bracket and what it holds."""
        frame = self.frames.pop()
        self.drop_skips(frame)
        kind = List if frame.opener == "(" else Vector
        self.add(kind(tuple(frame.items), self.span(frame.start, end)))
        around = self.frames[-1] if self.frames else self.top
        if around.ended is None or frame.column < around.ended[0]:
            around.ended = (frame.column, frame.start, end)
        if not self.frames:
            self.last_closed = (frame.start, end)

    def drop_skips(self, frame: _Frame) -> None:
        """Report the `#;` that found no datum."""
        for start in frame.skips:
            self.report(
                "E-READ-005",
                "`#;` has no datum to skip",
                self.span(start, start + 2),
                help="put the datum to skip after it, or remove it",
            )
        frame.skips.clear()

    # --- bracket faults -----------------------------------------------------------------------------------

    def end_top_level(self, next_start: int | None) -> None:
        """End what is open at a bracket in column 0, or at the end of the text."""
        if not self.frames:
            return
        if not self.told:
            self.never_closed(next_start)
        while self.frames:
            self.finish_frame(self.token_end)
        self.told = False
        self.suspicion = None

    def never_closed(self, next_start: int | None) -> None:
        """Report a form that is not closed: blame indentation, else the innermost."""
        missing = "".join(_CLOSERS[frame.opener] for frame in reversed(self.frames))
        doubt = self.suspicion
        if doubt is not None:
            frame, text_end = doubt.frame, doubt.text_end
            missing = _CLOSERS[frame.opener] if len(missing) == 1 else missing
            far_end = Label(doubt.span, "this line is indented as if it were closed")
        else:
            frame, text_end = self.frames[-1], self.token_end
            far_end = (
                Label(self.span(len(self.text), len(self.text)), "the text ends here")
                if next_start is None
                else Label(self.span(next_start, next_start + 1), "a bracket in column 0 begins a new form")
            )
        opener = self.span(frame.start, frame.start + 1)
        line = self.source.line_column(text_end)[0]
        remedy = (
            f"add `{missing}` at the end of line {line}"
            if doubt is None or len(missing) == 1
            else f"{len(missing)} brackets are missing, the first likely at the end of line {line}"
        )
        self.report(
            "E-READ-003",
            f"{self.named(frame)} is never closed",
            opener,
            Label(opener, f"this `{frame.opener}` has no `{_CLOSERS[frame.opener]}`"),
            self.missing_here(text_end, _CLOSERS[frame.opener]),
            far_end,
            help=remedy,
        )
        self.told = True

    def missing_here(self, text_end: int, closer: str) -> Label:
        """A label where the closing bracket of a form is likely missing: after the last token of a line."""
        return Label(self.span(text_end, text_end), f"`{closer}` is missing here, or earlier")

    def closed_over(self, start: int) -> None:
        """Report what is open inside the form that a closing bracket ends, and close it."""
        closer = self.text[start]
        frame = self.frames[-1]
        missing = ""
        while _CLOSERS[self.frames[-1].opener] != closer:
            missing += _CLOSERS[self.frames[-1].opener]
            self.finish_frame(self.token_end)
        outer = self.frames[-1]
        line = self.source.line_column(outer.start)[0]
        here = Label(self.span(start, start + 1), f"this closes {self.named(outer)} of line {line}")
        remedy = f"add `{missing}` before the `{closer}`, or earlier"
        doubt, surplus = self.suspicion, self.surplus
        if doubt is not None and (surplus is None or doubt.text_end < surplus.span.start):
            # The bracket of this kind that a line belies may have been closed since, in the place of the one left open.
            if doubt.frame.opener == frame.opener:
                frame = doubt.frame
            place = self.source.line_column(doubt.text_end)[0]
            labels = [self.missing_here(doubt.text_end, _CLOSERS[frame.opener]), here]
            remedy = f"add `{missing}` at the end of line {place}, or before the `{closer}`"
        elif surplus is not None:
            labels, remedy = [self.surplus_label(surplus), here], self.surplus_remedy(surplus)
        else:
            labels = [here]
        opener = self.span(frame.start, frame.start + 1)
        self.report(
            "E-READ-003",
            f"{self.named(frame)} is not closed before `{closer}`",
            opener,
            Label(opener, f"this `{frame.opener}` has no `{_CLOSERS[frame.opener]}`"),
            *labels,
            help=remedy,
        )
        self.told = True
        self.suspicion = None

    def surplus_label(self, surplus: _Surplus) -> Label:
        """A label where an opening bracket is likely missing."""
        told = (
            f"line {surplus.line} is indented as if `{surplus.word}` began a form"
            if surplus.word
            else f"{self.named_at(surplus.form_start)} ends here, but line {surplus.line} is indented as if it went on"
        )
        return Label(surplus.span, told)

    def surplus_remedy(self, surplus: _Surplus) -> str:
        """What to do about an opening bracket that is missing."""
        if surplus.word:
            return f"put an opening bracket before `{surplus.word}`"
        first, last = surplus.form_start, surplus.span.start
        lines = sorted({self.source.line_column(at)[0] for at in (first, last)})
        where = " to ".join(map(str, lines))
        return f"an opening bracket is likely missing on line{'s' * (len(lines) > 1)} {where}"

    def wrong_closer(self, start: int) -> None:
        """Report a closing bracket of the wrong kind, which closes the innermost bracket all the same."""
        frame = self.frames[-1]
        closer, wanted = self.text[start], _CLOSERS[frame.opener]
        here = self.span(start, start + 1)
        labels = [Label(here, f"expected `{wanted}`")]
        remedy = f"write `{wanted}` here"
        if self.surplus is not None:
            labels.append(self.surplus_label(self.surplus))
            remedy = self.surplus_remedy(self.surplus)
        self.report(
            "E-READ-004",
            f"{self.named(frame)} is closed by `{closer}`",
            here,
            *labels,
            Label(self.span(frame.start, frame.start + 1), f"`{frame.opener}` is opened here"),
            help=remedy,
        )
        self.told = True

    def stray_closer(self, start: int) -> None:
        """Report a closing bracket outside all brackets, the first of a row."""
        if self.told:
            return
        self.told = True
        here = self.span(start, start + 1)
        labels = [Label(here, "nothing is open here")]
        remedy = "remove it, or move it to the form that it should close"
        if self.surplus is not None:
            labels.append(self.surplus_label(self.surplus))
            remedy = self.surplus_remedy(self.surplus)
        elif self.last_closed is not None:
            form_start, form_end = self.last_closed
            line = self.source.line_column(form_start)[0]
            head = self.named_at(form_start)
            labels.append(Label(self.span(form_end - 1, form_end), f"{head} of line {line} ended here"))
        self.report("E-READ-004", f"`{self.text[start]}` closes nothing", here, *labels, help=remedy)

    def too_deep(self, start: int) -> None:
        """Report brackets nested beyond the limit, forget the form, and go on at the next in column 0."""
        self.report(
            "E-READ-008",
            f"more than {MAX_DEPTH} brackets are open at once",
            self.span(start, start + 1),
            Label(self.span(self.frames[0].start, self.frames[0].start + 1), "the outermost is opened here"),
            help="give the inner parts names with `let`, `def` or `defn`",
        )
        self.frames.clear()
        following = _TOP_LEVEL_OPENER.search(self.text, start + 1)
        self.position = following.start() if following is not None else len(self.text)
        self.line_start = self.position
        self.fresh_line = True
        self.told = True

    # --- strings and comments -----------------------------------------------------------------------------

    def string(self, start: int, end: int) -> String:
        """The string between two quotes, its escapes resolved."""
        body = self.text[start + 1 : end - 1]
        if "\\" in body:
            for found in _ESCAPE.finditer(body):
                if found[1] not in _ESCAPES:
                    at = start + 1 + found.start()
                    self.report(
                        "E-READ-005",
                        f"`{found[0]}` is not an escape",
                        self.span(at, at + 2),
                        help='a string knows `\\n`, `\\t`, `\\\\` and `\\"`; write `\\\\` for a backslash',
                    )
            body = _ESCAPE.sub(lambda found: _ESCAPES.get(found[1], found[1]), body)
        return String(body, self.span(start, end))

    def unended_string(self, start: int) -> None:
        """Report a quote that nothing ends, and take the rest of its line, brackets at its end aside."""
        line_end = self.text.find("\n", start)
        line_end = len(self.text) if line_end < 0 else line_end
        end = start + max(1, len(self.text[start:line_end].rstrip(" \t\r)]")))
        quote = self.span(start, start + 1)
        self.report(
            "E-READ-006",
            "this string is never ended",
            quote,
            Label(quote, "the string begins here"),
            help='add the closing `"`; a quote inside a string is written `\\"`',
        )
        self.add(String(self.text[start + 1 : end], self.span(start, end)))
        self.position = end
        self.told = True

    def block_comment(self, start: int) -> None:
        """Pass over a block comment and the ones inside it."""
        at, depth = _comment_end(self.text, start)
        if depth:
            opener = self.span(start, start + 2)
            self.report(
                "E-READ-007",
                "this block comment is never ended",
                opener,
                Label(opener, f"{depth} `|#` missing from here to the end of the text"),
                help="add `|#` where the comment should end",
            )
            self.told = True
        self.position = at
        self.note_line(start, at)

    # --- atoms --------------------------------------------------------------------------------------------

    def atom(self, start: int, end: int) -> Form:
        """The keyword, boolean, number or symbol that a word is."""
        text = self.text[start:end]
        span = Span(self.source, start, end)
        first = text[0]
        if first == ":":
            if len(text) == 1:
                self.report(
                    "E-READ-005", "`:` is not a keyword", span, help="put its name right after the colon"
                )
            return Keyword(text[1:], span)
        if (first in "+-." or first.isdigit()) and _NUMBER_LIKE.match(text):
            return self.number(text, span)
        if text == "true" or text == "false":
            return Boolean(text == "true", span)
        return Symbol(text, span)

    def number(self, text: str, span: Span) -> Form:
        """The number that a word is which begins like one."""
        if len(text) > MAX_DIGITS:
            self.report(
                "E-READ-005",
                f"a number has at most {MAX_DIGITS} characters",
                span,
                help="write large and small numbers with an exponent, as in `6e-4`",
            )
            return Integer(0, span)
        if _INTEGER.fullmatch(text):
            return Integer(int(text), span)
        if not _FLOAT.fullmatch(text):
            self.report(
                "E-READ-005",
                f"`{text}` is not a number",
                span,
                help="write `3`, `1_000`, `-0.5` or `6e-4`; a name begins with another character",
            )
            return Symbol(text, span)
        value = float(text)
        if math.isinf(value):
            self.report(
                "E-READ-005",
                f"`{text}` is too large for a float",
                span,
                help="the largest float is about 1.8e308",
            )
        return Float(value, span)

    # --- small help ---------------------------------------------------------------------------------------

    def span(self, start: int, end: int) -> Span:
        """A span of this text."""
        return Span(self.source, start, end)

    def named(self, frame: _Frame) -> str:
        """An opening bracket as people name it, with its head: `(let`."""
        return self.named_at(frame.start)

    def named_at(self, start: int) -> str:
        """The opening bracket at `start`, with its head."""
        opener, head = self.text[start], _HEAD.match(self.text, start + 1)
        return f"`{opener}{head[0] if head is not None and opener == '(' else ''}`"

    def report(self, code: str, message: str, span: Span, *labels: Label, help: str) -> None:
        """Keep a diagnostic, unless there are enough of them."""
        if len(self.diagnostics) < MAX_FAULTS:
            self.diagnostics.append(Diagnostic(code, message, span, labels, (help,)))
