"""The suites by name, their tables, and the counts that are kept of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.oracles.tally import Tally

COUNTS = Path(__file__).with_name("counts.json")
Counts = dict[str, dict[str, dict[str, int]]]
"""By suite and group: how many cases are handled and skipped."""


@dataclass(frozen=True)
class Suite:
    """packages: what must be there. drive: every so manieth case judged. sample: how manieth the fast part takes."""

    packages: tuple[str, ...]
    drive: Callable[[int], Tally]
    sample: int

    def run(self, every: int = 1) -> Tally:
        """The whole, or every so manieth case."""
        return self.drive(every)


def _opinfo(every: int) -> Tally:
    from tests.oracles import opinfo

    return opinfo.run(every=every)


def _refused(every: int) -> Tally:
    from tests.oracles import opinfo

    return opinfo.refused(every=every)


def _onnx(every: int) -> Tally:
    from tests.oracles import onnx_nodes

    return onnx_nodes.run(every=every)


def _jax(every: int) -> Tally:
    from tests.oracles import jax_harnesses

    return jax_harnesses.run(every=every)


SUITES: dict[str, Suite] = {
    "opinfo": Suite(("torch", "expecttest"), _opinfo, 97),
    "errors": Suite(("torch", "expecttest"), _refused, 48),
    "onnx": Suite(("onnx", "torch"), _onnx, 23),
    "jax": Suite(("jax", "absl", "torch"), _jax, 67),
}
"""The drivers import their peers when they run."""


def counts_of(tally: Tally) -> dict[str, dict[str, int]]:
    """Handled and skipped cases by group."""
    return {g: {"handled": tally.row(g)[0], "skipped": tally.row(g)[1]} for g in sorted(tally.groups)}


def handled_less(found: Mapping[str, Mapping[str, Mapping[str, int]]], kept: Counts) -> list[str]:
    """Groups of which fewer cases are handled than the kept counts say."""
    lines = []
    for suite, groups in found.items():
        for group, before in kept.get(suite, {}).items():
            now = groups.get(group, {}).get("handled", 0)
            if now < before["handled"]:
                lines.append(f"{suite}, {group}: {now} cases are handled, {before['handled']} were before")
    return lines


def table(name: str, tally: Tally) -> str:
    """A suite as a table in Markdown, and the reasons for what is skipped."""
    lines = ["| group | handled | skipped | wrong |", "| --- | ---: | ---: | ---: |"]
    rows = [(g, *tally.row(g)) for g in tally.groups]
    rows.append((f"all of {name}", *tally.total()))
    lines += [f"| {g} | {h:,} | {s:,} | {w:,} |" for g, h, s, w in rows]
    reasons: dict[str, int] = {}
    for skipped in tally.skipped.values():
        for reason, count in skipped.items():
            reasons[reason] = reasons.get(reason, 0) + count
    if reasons:
        lines += ["", "Skipped:", ""]
        lines += [f"- {count}: {reason}" for reason, count in sorted(reasons.items(), key=lambda r: (-r[1], r[0]))]
    return "\n".join(lines) + "\n"
