"""`:checkpoint`: when a run is saved, and which of its checkpoints stay.

Flow: `lang.load` asks for the rule of a `defrun`, and checks it once the run's evaluations are known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sexpgpu.diagnostics import nearest
from sexpgpu.lang.elaborator import Elaborator
from sexpgpu.lang.experiment import CheckpointRule, Evaluation, Run
from sexpgpu.lang.stopping import series_of
from sexpgpu.lang.values import Due, kind_of
from sexpgpu.source import Span


def checkpoint_rule(el: Elaborator, value: Any, span: Span) -> CheckpointRule:
    """What `(every n :keep k :keep-best SERIES :better lower)` says. Raises E-TYPE-005, E-TYPE-006, E-FORM-004."""
    if not isinstance(value, Due) or value.what is not None:
        el.fail("E-TYPE-006", f"`:checkpoint` is (every n :keep k), not {kind_of(value)}", span)
    keep = el.size(value.options.get("keep", 3), span)
    if keep < 1:
        el.fail("E-TYPE-005", "`:keep` counts from 1: the newest checkpoint always stays", span)
    best, better = value.options.get("keep-best"), value.options.get("better")
    if best is not None and not isinstance(best, str):
        el.fail("E-TYPE-006", f"`:keep-best` is the name of a series, not {kind_of(best)}", span,
                help=':keep-best "eval/EVALUATION/METRIC"')  # fmt: skip
    if best is None and better is not None:
        el.fail("E-FORM-004", "`:better` says which value of `:keep-best` is the best, and that is not there",
                span, help=':keep-best "eval/EVALUATION/METRIC"')  # fmt: skip
    return CheckpointRule(value.every, keep, best, better == "higher")


def check_best(el: Elaborator, span: Span, run: Run, evaluations: Mapping[str, Evaluation]) -> None:
    """That the series of `:keep-best` has a number at every checkpoint. Raises E-NAME-001, E-TYPE-005."""
    rule = run.checkpoint
    if rule.best is None:
        return
    every = {name: n for name, n in series_of(run, evaluations).items() if name.startswith("eval/")}
    if rule.best not in every:
        near = nearest(rule.best, list(every))
        known = f"`{near}` is a near name" if near else f"its evaluations give: {', '.join(every) or 'nothing'}"
        el.fail("E-NAME-001", f"no evaluation of this run gives the number `{rule.best}`", span, help=known)
    assert rule.every is not None
    if rule.every % every[rule.best]:
        el.fail("E-TYPE-005", f"a checkpoint every {rule.every} steps, and `{rule.best}` every "
                f"{every[rule.best]}: most would have no value", span,
                help=f"save at a multiple of {every[rule.best]} steps")  # fmt: skip
