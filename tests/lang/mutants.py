"""Slips of the hand: copies of a file in which one token is deleted, doubled, swapped, misspelt or exchanged."""

import re
from dataclasses import dataclass
from random import Random

_TOKEN = re.compile(r';[^\n]*|"(?:[^"\\]|\\.)*"|[()\[\]]|[^\s()\[\]";]+|\s+')


@dataclass(frozen=True)
class Mutant:
    """A changed text, what was done to it, and the line where."""

    text: str
    line: int
    what: str


def _misspelt(random: Random, token: str) -> str:
    if len(token) < 2:
        return token + token
    at = random.randrange(len(token) - 1)
    return random.choice(
        [
            token[:at] + token[at + 1 :],
            token[:at] + token[at] + token[at:],
            token[:at] + token[at + 1] + token[at] + token[at + 2 :],
        ]
    )


def mutant(text: str, random: Random) -> Mutant:
    """One slip in `text`."""
    tokens = _TOKEN.findall(text)
    places = [i for i, token in enumerate(tokens) if not token.isspace() and not token.startswith(";")]
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
            changed[i] = _misspelt(random, tokens[i])
        case "exchange":
            changed[i] = tokens[random.choice(places)]
    line = "".join(tokens[:i]).count("\n") + 1
    return Mutant("".join(changed), line, f"{kind} `{tokens[i]}` on line {line}")
