"""`:stop`: which series of a run there are, how often each has a value, and the rule that waits for one of them."""

from __future__ import annotations

import math
from collections.abc import Mapping

from sexpgpu.diagnostics import nearest
from sexpgpu.lang.elaborator import Elaborator
from sexpgpu.lang.experiment import Evaluation, MeasureInfo, Objective, Run, StopRule
from sexpgpu.lang.values import Patience

MAX_LISTED = 6


def stop_rule(el: Elaborator, patience: Patience, run: Run, evaluations: Mapping[str, Evaluation]) -> StopRule:
    """The rule of a run. Raises E-NAME-001 where the run has no such series."""
    known = series_of(run, evaluations)
    every = known.get(patience.series)
    if every is None:
        near = nearest(patience.series, known)
        shown = ", ".join(known) if len(known) <= MAX_LISTED else ", ".join([*list(known)[:MAX_LISTED], "…"])
        el.fail("E-NAME-001", f"this run has no series of numbers \"{patience.series}\"", patience.span,
                help=f"`{near}` is a near name" if near else f"its series: {shown}")  # fmt: skip
    return StopRule(patience.series, every, patience.num, patience.by, patience.rising)


def series_of(run: Run, evaluations: Mapping[str, Evaluation]) -> dict[str, int]:
    """Every series of single numbers that a run writes of its training, and the n of the steps that are due: 1 and
    multiples of n."""
    found: dict[str, int] = {}
    for event in run.evaluate:
        for objective in evaluations[event.name].objectives:
            names = [objective.name, *(m.path for m in objective.measures if _is_number(objective, m))]
            found |= {f"eval/{event.name}/{name}": event.every for name in names}
    for update in run.updates:
        prefix = run.prefix(update)
        found[f"{prefix}/loss"] = update.every
        if update.clip is not None and update.rules:
            found[f"{prefix}/gradient-norm"] = update.every
        for measure in update.objective.measures:
            if _is_number(update.objective, measure):
                found[f"{prefix}/{measure.path}"] = math.lcm(update.every, measure.every)
        for rule in run.diagnose:
            groups = {rule.groups[name] for name in rule.graphs if name in update.rules}
            found |= {f"{prefix}/{rule.name}/{group}": math.lcm(update.every, rule.every) for group in sorted(groups)}
    return found


def _is_number(objective: Objective, measure: MeasureInfo) -> bool:
    return objective.graph.output(f"measure:{measure.path}").type.rank == 0
