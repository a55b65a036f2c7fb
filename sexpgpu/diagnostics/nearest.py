"""The nearest known name to a misspelt one, for the help line of diagnostics about names."""

from __future__ import annotations

from collections.abc import Iterable

MAX_LETTERS = 200
"""Of a longer word nobody misspelt a name, and comparing two takes the product of their lengths."""


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate that a slip of the hand separates from `name`, if there is one.

    A candidate is near when it differs in case only, or by one edit for each three characters, at most two.
    An edit inserts, drops or replaces a character or swaps two neighbours. Of equally near candidates the
    first in alphabetical order is taken.
    """
    if len(name) > MAX_LETTERS:
        return None
    best: tuple[int, str] | None = None
    for candidate in candidates:
        if candidate == name:
            continue
        limit = min(2, max(len(name), len(candidate)) // 3)
        if candidate.casefold() == name.casefold():
            num_edits = 0
        elif abs(len(candidate) - len(name)) > limit:
            continue
        else:
            num_edits = edit_distance(name, candidate)
        if num_edits <= limit or num_edits == 0:
            best = min(best, (num_edits, candidate)) if best is not None else (num_edits, candidate)
    return best[1] if best is not None else None


def edit_distance(a: str, b: str) -> int:
    """The number of edits between two words, where swapping two neighbours is one edit.

    Source: optimal string alignment, the restricted form of Damerau's distance.
    """
    before: list[int] = []
    above = list(range(len(b) + 1))
    for i, x in enumerate(a, start=1):
        row = [i]
        for j, y in enumerate(b, start=1):
            edits = min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (x != y))
            if i > 1 and j > 1 and x == b[j - 2] and a[i - 2] == y:
                edits = min(edits, before[j - 2] + 1)
            row.append(edits)
        before, above = above, row
    return above[-1]
