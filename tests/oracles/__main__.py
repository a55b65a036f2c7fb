"""Drives the suites of three peers: `python -m tests.oracles` prints the tables, `--write` keeps them.

`--suite NAME` drives one of them. Written are `docs/oracles.md`, between its marks, and `counts.json`.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from pathlib import Path

from tests.oracles.suites import COUNTS, SUITES, Counts, counts_of, handled_less, table
from tests.oracles.tally import Tally

PAGE = Path(__file__).resolve().parents[2] / "docs" / "oracles.md"


def main(arguments: list[str]) -> int:
    """The exit status: 1 where a case is wrong or fewer are handled than the kept counts say."""
    parser = argparse.ArgumentParser(prog="python -m tests.oracles")
    parser.add_argument("--write", action="store_true", help="keep the tables and the counts")
    parser.add_argument("--suite", choices=SUITES, action="append", help="one suite; several times for more")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    tallies: dict[str, Tally] = {}
    for name in options.suite or SUITES:
        tallies[name] = SUITES[name].run()
        print(table(name, tallies[name]), flush=True)
    kept: Counts = json.loads(COUNTS.read_text("utf-8")) if COUNTS.exists() else {}
    found = {name: counts_of(tally) for name, tally in tallies.items()}
    wrong = [f"{group}: {line}" for t in tallies.values() for group in t.groups for line in t.wrong[group]]
    less = handled_less(found, kept)
    print(*wrong, *less, sep="\n")
    if options.write:
        COUNTS.write_text(json.dumps({**kept, **found}, indent=2) + "\n", encoding="utf-8", newline="\n")
        text = PAGE.read_text("utf-8")
        for name, tally in tallies.items():
            begin, end = f"<!-- {name} begin -->", f"<!-- {name} end -->"
            head, rest = text.split(begin)
            text = head + begin + "\n\n" + table(name, tally) + "\n" + end + rest.split(end)[1]
        PAGE.write_text(text, encoding="utf-8", newline="\n")
    return 1 if wrong or less else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
