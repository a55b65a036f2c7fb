"""Slips of the hand: copies of a file in which one token is deleted, doubled, swapped, misspelt or exchanged."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from random import Random

_TOKEN = re.compile(r';[^\n]*|"(?:[^"\\]|\\.)*"|[()\[\]]|[^\s()\[\]";]+|\s+')


@dataclass(frozen=True)
class Mutant:
    """A changed text, what was done to it, and the line where."""

    text: str
    line: int
    what: str


def tokens_of(text: str) -> list[str]:
    """The text in pieces: brackets, words, strings, comments and the gaps between them; joined they are the text."""
    return _TOKEN.findall(text)


def is_code(token: str) -> bool:
    """Whether a piece is neither gap nor comment."""
    return not token.isspace() and not token.startswith(";")


def misspelt(random: Random, token: str) -> str:
    """A word with a letter dropped, doubled or swapped with the next; never the word itself."""
    if len(token) < 2:
        return token + token
    found = token
    while found == token:
        at = random.randrange(len(token) - 1)
        found = random.choice(
            [
                token[:at] + token[at + 1 :],
                token[:at] + token[at] + token[at:],
                token[:at] + token[at + 1] + token[at] + token[at + 2 :],
            ]
        )
        if len(set(token)) == 1:
            return token + token[0]
    return found


def mutant(text: str, random: Random) -> Mutant:
    """One slip in `text`."""
    tokens = tokens_of(text)
    places = [i for i, token in enumerate(tokens) if is_code(token)]
    n = random.randrange(len(places) - 1)
    i, j = places[n], places[n + 1]
    changed = list(tokens)
    match kind := random.choice(("delete", "double", "swap", "misspell", "exchange")):
        case "delete":
            changed[i] = ""
        case "double":
            changed[i] = f"{tokens[i]} {tokens[i]}"
        case "swap":
            changed[i], changed[j] = tokens[j], tokens[i]
        case "misspell":
            changed[i] = misspelt(random, tokens[i])
        case "exchange":
            changed[i] = tokens[random.choice(places)]
    line = "".join(tokens[:i]).count("\n") + 1
    return Mutant("".join(changed), line, f"{kind} `{tokens[i]}` on line {line}")


def line_mutants(name: str, text: str) -> Iterator[Mutant]:
    """Two slips for every line of code: of three, a token deleted, two neighbours swapped, a word misspelt, two.

    name: of the text, which decides together with the line what is done.
    """
    tokens = tokens_of(text)
    lines: dict[int, list[int]] = {}
    line = 1
    for index, token in enumerate(tokens):
        if is_code(token):
            lines.setdefault(line, []).append(index)
        line += token.count("\n")
    for line, places in lines.items():
        random = Random(f"{name} {line}")
        words = [i for i in places if re.fullmatch(r":?[a-z][\w.?-]*", tokens[i])]
        pairs = [(i, j) for i, j in pairwise(places) if tokens[i] != tokens[j]]
        kinds = ["delete", *(["swap"] if pairs else []), *(["misspell"] if words else [])]
        for kind in random.sample(kinds, min(2, len(kinds))):
            changed = list(tokens)
            match kind:
                case "delete":
                    i = random.choice(places)
                    changed[i], what = "", f"`{tokens[i]}` deleted"
                case "swap":
                    i, j = random.choice(pairs)
                    changed[i], changed[j], what = tokens[j], tokens[i], f"`{tokens[i]}` and `{tokens[j]}` swapped"
                case "misspell":
                    i = random.choice(words)
                    changed[i] = misspelt(random, tokens[i])
                    what = f"`{tokens[i]}` misspelt `{changed[i]}`"
            yield Mutant("".join(changed), line, f"{name}:{line}: {what}")
