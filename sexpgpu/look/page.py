"""A run as one HTML page that needs nothing else: headline, curves, samples, memory, checkpoints, configuration."""

from __future__ import annotations

import base64
import datetime
import html
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sexpgpu.look.chart import NUM_COLOURS, Line, Mark, Scale, chart, spark
from sexpgpu.look.record import RunRecord, Saved, heartbeat_s, why_kept
from sexpgpu.look.series import Series, best_evaluation, duration, rises, short
from sexpgpu.plan.memory import shown_size
from sexpgpu.train import files
from sexpgpu.train.folder import sample_name

MAX_SAMPLES = 12
"""Of each generator; more are spread evenly over the run, the first and the last among them."""
_MAX_TEXT = 4000
_MAX_PICTURE_BYTES = 4 << 20
_MAX_NOTES = 40
_MAX_MARKS = 60
_HERE = Path(__file__).parent
_TOLD = {
    "done": "finished",
    "running": "is running",
    "interrupted": "was interrupted",
    "failed": "failed",
    "killed": "ended without a word, killed or with its machine,",
    "empty": "has made no step",
}


def report(run: RunRecord, checkpoints: Sequence[Saved]) -> str:
    """The page. Raises E-IO-001 where samples or texts cannot be read."""
    name = run.folder.path.resolve().name
    sections = [
        _header(run, name),
        _trouble(run),
        f'<main><h2>Curves</h2><div class="charts">{_curves(run)}</div>',
        _many(run),
        _samples(run),
        _memory(run),
        _notes(run),
        _checkpoints(run, checkpoints),
        _configuration(run),
        "</main>",
    ]
    style, script = ((_HERE / f"report.{kind}").read_text("utf-8") for kind in ("css", "js"))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_e(name)}: {_e(str(run.state))}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        + "\n".join(section for section in sections if section)
        + f"\n<footer>{_written()}</footer>\n<script>\n{script}</script>\n</body>\n</html>\n"
    )


# --- the headline -------------------------------------------------------------------------------------------


def headline(run: RunRecord) -> str:
    """How the run went, in two or three sentences."""
    step, steps = int(run.status.get("step") or 0), run.steps
    reached = f"{step:,} of {steps:,} steps" if steps else f"{step:,} steps"
    others = {"done": f": {reached}", "running": f": {reached} so far", "empty": ""}
    when = others.get(run.state.kind, f" after {reached}")
    code = f" with {run.state.code}" if run.state.code else ""
    sentences = [f"The run {_TOLD[run.state.kind]}{code}{when}{_in_time(run)}."]
    if run.status.get("stopped"):
        sentences.append(f"It stopped early: {run.status['stopped']}.")
    if run.state.kind in ("interrupted", "killed") and run.status.get("last_checkpoint"):
        sentences.append("`--resume` goes on from its newest checkpoint.")
    loss = main_loss(run)
    if loss is not None and len(loss.steps) > 1:
        first, last = float(loss.values[0]), settled(loss)
        whose = f" of {_train(loss.name)}" if _train(loss.name) != "train" else ""
        sentences.append(f"The training loss{whose} went from {short(first)} to {short(last)}.")
    found = best_evaluation(run.stream.series, run.losses)
    if found is not None:
        name, (word, at, value) = found
        sentences.append(f"The {word} {name.removeprefix('eval/')} was {short(value)}, at step {at:,}.")
    return " ".join(sentences)


def main_loss(run: RunRecord) -> Series | None:
    """The loss of the first update, without what is not finite; None where there is none."""
    for name, series in run.stream.series.items():
        if name.startswith("train/") and name.endswith("/loss"):
            good = series.finite()
            return good if len(good.steps) else None
    return None


def settled(series: Series) -> float:
    """Where a noisy series ends: the mean of its last hundredth, at least ten points of a hundred or more."""
    return float(series.values[-_num_settled(series) :].mean())


def _num_settled(series: Series) -> int:
    num = len(series.steps)
    return max(10, num // 100) if num >= 100 else 1


def _in_time(run: RunRecord) -> str:
    seconds = _step_seconds(run)
    return f", which took {duration(seconds)}" if seconds else ""


def _step_seconds(run: RunRecord) -> float:
    times = run.stream.series.get("runtime/step_ms")
    return float(times.finite().values.sum() / 1e3) if times is not None else 0.0


def _header(run: RunRecord, name: str) -> str:
    cards = []
    step = int(run.status.get("step") or 0)
    cards.append((f"{step:,}", f"of {run.steps:,} steps" if run.steps else "steps"))
    loss = main_loss(run)
    if loss is not None:
        noisy = len(loss.steps) >= 100
        mean = f", mean of {_num_settled(loss):,} steps" if noisy else ""
        cards.append((short(settled(loss)), f"{'final' if run.state.kind == 'done' else 'last'} training loss{mean}"))
    found = best_evaluation(run.stream.series, run.losses)
    if found is not None:
        series, (word, at, value) = found
        cards.append((short(value), f"{word} {series.removeprefix('eval/')}, step {at:,}"))
        cards.append((short(run.stream.series[series].last), f"last {series.removeprefix('eval/')}"))
    times = run.stream.series.get("runtime/step_ms")
    if times is not None:
        middle = float(np.median(times.finite().values)) if len(times.finite().values) else 0.0
        cards.append((_milliseconds(middle), f"a step (median); {duration(_step_seconds(run))} in all"))
    rates = run.stream.series.get("runtime/tokens_per_s")
    if rates is not None and len(rates.finite().values):
        cards.append((_rate(float(np.median(rates.finite().values))), "tokens a second (median)"))
    peak = run.stream.series.get("runtime/peak_bytes")
    planned = run.facts.get("planned_bytes")
    if peak is not None:
        beside = f"; {shown_size(planned)} planned" if planned else ""
        cards.append((shown_size(int(peak.last)), f"memory, peak{beside}"))
    shown = "".join(f'<div class="card"><b>{_e(value)}</b><span>{_e(what)}</span></div>' for value, what in cards)
    return (
        f'<header><h1>{_e(name)}<span class="state {run.state.kind}">{_e(str(run.state))}</span></h1>'
        f'<p class="lead">{_code(headline(run))}</p><div class="cards">{shown}</div></header>'
    )


def _trouble(run: RunRecord) -> str:
    """What stopped the run, and what was left out on the way."""
    parts = []
    if run.state.kind == "failed":
        notes = [n for n in run.annotations.get("failed", []) if n.get("code") == run.state.code]
        told = str(notes[-1]["text"]) if notes else "its message was not recorded"
        remedies = "".join(f"<p>{_code(str(h))}</p>" for h in (notes[-1].get("help", []) if notes else []))
        more = f'<p class="quiet">More: <code>sexpgpu explain {_e(run.state.code or "")}</code></p>'
        parts.append(f'<div class="box"><p><b>{_e(run.state.code or "")}</b>: {_code(told)}</p>{remedies}{more}</div>')
    skipped = run.annotations.get("skipped", [])
    if skipped:
        steps = sorted({int(each["step"]) for each in skipped})
        shown = ", ".join(f"{s:,}" for s in steps[:12]) + (f" and {len(steps) - 12} more" if len(steps) > 12 else "")
        parts.append(
            f'<div class="box soft"><p>Updates were skipped at {len(steps)} '
            f"{'step' if len(steps) == 1 else 'steps'}, since their proposals were not finite: {shown}.</p></div>"
        )
    broken = [(n, int((~np.isfinite(s.values)).sum())) for n, s in run.stream.series.items()]
    broken = [(name, count) for name, count in broken if count]
    if broken:
        listed = ", ".join(f"{_e(name)} ({count:,})" for name, count in broken[:3])
        listed += f" and {len(broken) - 3} more series" if len(broken) > 3 else ""
        parts.append(f'<div class="box soft"><p>Values that were not finite are not drawn: {listed}.</p></div>')
    return "\n".join(parts)


# --- curves -------------------------------------------------------------------------------------------------


def _curves(run: RunRecord) -> str:
    series, last = run.stream.series, _last_step(run)
    marks = _marks(run)
    losses = {name: s for name, s in series.items() if name.startswith("train/") and name.endswith("/loss")}
    with_losses = {
        name: s for name, s in series.items() if name.startswith("eval/") and name.rpartition("/")[2] in run.losses
    }
    lines = [Line(_train(name), s, smooth=True) for name, s in losses.items()]
    lines += [Line(name.removeprefix("eval/"), s) for name, s in with_losses.items()]
    parts = [chart("Loss", lines, last, marks)]
    taken = {*losses, *with_losses}
    norms = {name: s for name, s in series.items() if name.startswith("train/") and name.endswith("/gradient-norm")}
    taken |= norms.keys()
    for title, group in _evaluations(series, taken).items():
        scale: Scale = "plain" if rises(title.partition(",")[0]) else "any"
        parts.append(chart(title, [Line(label, s) for label, s in group], last, marks, scale=scale))
    shown = [Line(_train(name), s, smooth=True) for name, s in norms.items()]
    parts.append(chart("Gradient norm, before clipping", shown, last, marks))
    for title, group in _measures(run, taken).items():
        if len(group) <= NUM_COLOURS:
            parts.append(chart(title, [Line(label, s, len(group) == 1) for label, s in group], last, marks))
    if (times := series.get("runtime/step_ms")) is not None:
        parts.append(chart("Time of a step", [Line("step", times, True)], last, marks, _milliseconds))
    if (rates := series.get("runtime/tokens_per_s")) is not None:
        parts.append(chart("Tokens a second", [Line("tokens", rates, True)], last, marks, _rate, scale="amount"))
    parts.append(_held(run, last, marks))
    known = ("train/", "eval/", "runtime/")
    others = [Line(name, s, True) for name, s in series.items() if not name.startswith(known)]
    parts += [chart(line.label, [line], last, marks) for line in others]
    drawn = "".join(part for part in parts if part)
    return drawn or '<p class="quiet">No step was recorded.</p>'


def _held(run: RunRecord, last: int, marks: Sequence[Mark]) -> str:
    """Memory at every step, beside the plan."""
    series, planned = run.stream.series, run.facts.get("planned_bytes") or 0
    kept = [(name, series[f"runtime/{name}_bytes"]) for name in ("peak", "held") if f"runtime/{name}_bytes" in series]
    most = max([planned, *(float(s.values.max()) for _, s in kept)])
    unit, size = ("GiB", 1 << 30) if most >= 1 << 29 else ("MiB", 1 << 20)
    lines = [Line(name, Series(name, s.steps, s.values / size)) for name, s in kept]
    limit = ("planned", planned / size) if planned else None
    return chart("Memory", lines, last, marks, lambda value: f"{value:.4g} {unit}", limit, "amount")


def _evaluations(series: Mapping[str, Series], taken: set[str]) -> dict[str, list[tuple[str, Series]]]:
    """Evaluated metrics and measures by what they are called, those of several evaluations together."""
    groups: dict[str, list[tuple[str, Series]]] = {}
    for name, each in series.items():
        if name.startswith("eval/") and name not in taken:
            groups.setdefault(name.rpartition("/")[2], []).append((name.removeprefix("eval/"), each))
    return {f"{title}, evaluated": group for title, group in groups.items()}


def _measures(run: RunRecord, taken: set[str]) -> dict[str, list[tuple[str, Series]]]:
    """What training recorded beside the losses: diagnostics by their name, measures by the last part of theirs."""
    diagnostics = set(run.facts.get("diagnostics", []))
    groups: dict[str, list[tuple[str, Series]]] = {}
    for name, each in run.stream.series.items():
        if not name.startswith("train/") or name in taken:
            continue
        parts = name.split("/")[1:]
        at = next((i for i, part in enumerate(parts) if part in diagnostics), None)
        title = parts[-1].partition("[")[0] if at is None else "/".join(parts[: at + 1])
        label = "/".join(parts if at is None else parts[at + 1 :])
        groups.setdefault(title, []).append((label, each))
    return groups


def _many(run: RunRecord) -> str:
    """Groups with more series than a chart has colours, as tables of small curves."""
    taken = {n for n in run.stream.series if n.endswith(("/loss", "/gradient-norm"))}
    parts = []
    for title, group in _measures(run, taken).items():
        if len(group) <= NUM_COLOURS:
            continue
        rows = []
        for label, series in group:
            good = series.finite().values
            least, most = (short(float(v)) for v in (good.min(), good.max())) if len(good) else ("", "")
            cells = "".join(f'<td class="number">{v}</td>' for v in (short(series.last), least, most))
            rows.append(f'<tr><td>{_e(label)}</td><td class="curve">{spark(series)}</td>{cells}</tr>')
        head = "".join(f'<th class="number">{word}</th>' for word in ("last", "least", "most"))
        head = f"<tr><th>group</th><th>over the run</th>{head}</tr>"
        table = f'<table class="full">{head}{"".join(rows)}</table>'
        parts.append(f'<h2>{_e(title)}</h2><div class="wide">{table}</div>')
    return "\n".join(parts)


def _marks(run: RunRecord) -> list[Mark]:
    """What is drawn across every curve: skipped updates, resumes and the failure."""
    found = [Mark(int(n["step"]), str(n["text"])) for n in run.annotations.get("skipped", [])][:_MAX_MARKS]
    for session in run.facts.get("sessions", [])[1:]:
        found.append(Mark(int(session["after"]), f"resumed after step {session['after']:,}"))
    if run.state.kind == "failed":
        found += [Mark(int(n["step"]), str(n["text"]), bad=True) for n in run.annotations.get("failed", [])[-1:]]
    return found


def _last_step(run: RunRecord) -> int:
    steps = [int(series.steps[-1]) for series in run.stream.series.values()]
    return max([1, *steps, *(int(n["step"]) for n in run.annotations.get("failed", []))])


def _train(name: str) -> str:
    """`train/loss` is `train`, `train/UPDATE/loss` is `UPDATE`."""
    return "/".join(name.split("/")[1:-1]) or "train"


# --- samples ------------------------------------------------------------------------------------------------


def _samples(run: RunRecord) -> str:
    by_generator: dict[str, list[Mapping[str, Any]]] = {}
    for note in run.annotations.get("sample", []):
        by_generator.setdefault(str(note.get("generator", "sample")), []).append(note)
    parts = []
    for name, notes in by_generator.items():
        chosen = _spread(notes, MAX_SAMPLES)
        count = f", {len(chosen)} of {len(notes)}" if len(chosen) < len(notes) else ""
        shown = "".join(_sample(run, name, note) for note in reversed(chosen))
        parts.append(f'<h2>Samples: {_e(name)}<span class="quiet">, newest first{count}</span></h2>')
        parts.append(f'<div class="samples">{shown}</div>')
    return "\n".join(parts)


def _sample(run: RunRecord, generator: str, note: Mapping[str, Any]) -> str:
    step = int(note["step"])
    picture = run.folder.samples / f"{sample_name(generator, step)}.png"
    if picture.exists():
        with files.explaining("read", picture):
            data = picture.read_bytes()
        if len(data) <= _MAX_PICTURE_BYTES:
            source = f"data:image/png;base64,{base64.b64encode(data).decode()}"
            shown = f'<img alt="sample of {_e(generator)} at step {step}" src="{source}">'
        else:
            shown = f"<p>{shown_size(len(data))}, too large to show here: {_e(picture.name)}</p>"
    else:
        text = str(note["text"])
        shown = f"<pre>{_e(text[:_MAX_TEXT])}{'…' if len(text) > _MAX_TEXT else ''}</pre>"
    return f'<figure class="sample"><figcaption class="quiet">step {step:,}</figcaption>{shown}</figure>'


def _spread(items: Sequence[Any], most: int) -> list[Any]:
    """At most `most` items, evenly spread, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


# --- tables -------------------------------------------------------------------------------------------------


def _memory(run: RunRecord) -> str:
    parts, planned = run.facts.get("parts", {}), run.facts.get("planned_bytes")
    if not parts or not planned:
        return ""
    rows = "".join(
        f'<tr><td>{_e(name)}</td><td class="number">{shown_size(size)}</td>'
        f'<td class="curve"><div class="bar"><i style="width:{size / planned:.1%}"></i></div></td></tr>'
        for name, size in parts.items()
    )
    notes = run.annotations.get("memory", [])
    told = f"<p>{_e(str(notes[-1]['text']))}</p>" if notes else ""
    table = f'<div class="wide"><table class="full">{rows}</table></div>'
    return f"<h2>Memory as planned: {shown_size(planned)}</h2>{told}{table}"


def _notes(run: RunRecord) -> str:
    notes = [n for n in run.stream.annotations if n["annotation"] not in ("sample", "memory", "stacking", "failed")]
    if not notes:
        return ""
    rows = "".join(
        f'<tr><td class="number">{int(n["step"]):,}</td><td>{_e(str(n["text"]))}</td></tr>' for n in notes[:_MAX_NOTES]
    )
    rest = f'<p class="quiet">and {len(notes) - _MAX_NOTES:,} more</p>' if len(notes) > _MAX_NOTES else ""
    return f'<h2>Notes</h2><div class="wide"><table>{rows}</table></div>{rest}'


def _checkpoints(run: RunRecord, checkpoints: Sequence[Saved]) -> str:
    if not checkpoints:
        return ""
    step = run.status.get("step")
    rows = "".join(
        f'<tr><td>{_e(each.name)}</td><td class="number">{shown_size(each.num_bytes)}</td>'
        f"<td>{_e(each.damage or 'whole')}</td><td>{_e(why_kept(each, checkpoints, run.facts, step))}</td></tr>"
        for each in checkpoints
    )
    head = "<tr><th>checkpoint</th><th>size</th><th>state</th><th>kept as</th></tr>"
    return f'<h2>Checkpoints</h2><div class="wide"><table>{head}{rows}</table></div>'


def _configuration(run: RunRecord) -> str:
    facts = run.facts
    overrides = dict(facts.get("overrides", {}))
    variant = overrides.pop("variant", "")
    sessions = facts.get("sessions", [])
    beat = heartbeat_s(run.status)
    rows: list[tuple[str, Any]] = [
        ("file", facts.get("file")),
        ("variant", variant),
        ("set on the command line", ", ".join(f"{k}={v}" for k, v in overrides.items())),
        ("seed", facts.get("seed")),
        ("microbatches a step", facts.get("microbatches")),
        ("parameters", f"{facts['parameters']:,} in {facts['tensors']} tensors" if "parameters" in facts else None),
        ("device", f"{facts['device']}: {facts.get('machine', '')}" if "device" in facts else None),
        ("sexpgpu", facts.get("version")),
        ("began", _when(sessions[0]["began"]) if sessions else None),
        ("resumed", ", ".join(f"after step {s['after']:,}, {_when(s['began'])}" for s in sessions[1:])),
        ("last sign of life", None if beat is None else _when(str(run.status["heartbeat"]))),
        ("folder", str(run.folder.path)),
    ]
    told = [(name, str(value)) for name, value in rows if value not in (None, "")]
    shown = "".join(f"<tr><th>{_e(name)}</th><td>{_e(value)}</td></tr>" for name, value in told)
    text = ""
    if run.folder.text.exists():
        with files.explaining("read", run.folder.text):
            written = run.folder.text.read_text("utf-8", errors="replace")
        text = f"<details open><summary>The file as it was run</summary><pre>{_e(written)}</pre></details>"
    for name, included in facts.get("included", {}).items():
        text += f"<details><summary>Included: {_e(name)}</summary><pre>{_e(str(included))}</pre></details>"
    return f'<h2>Configuration</h2><div class="wide"><table>{shown}</table></div>{text}'


# --- words --------------------------------------------------------------------------------------------------


def _e(text: str) -> str:
    """Text as HTML: controls become visible signs, and what no encoding holds is written out."""
    shown = "".join(c if c >= " " or c in "\n\t" else chr(0x2400 + ord(c)) for c in text)
    return html.escape(shown.encode("utf-8", "backslashreplace").decode("utf-8"))


def _code(text: str) -> str:
    """A message as HTML, with what stands between backticks as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", _e(text))


def _when(moment: str) -> str:
    try:
        return datetime.datetime.fromisoformat(moment).strftime("%Y-%m-%d %H:%M UTC")
    except ValueError:
        return moment


def _written() -> str:
    return f"Written by sexpgpu report, {datetime.datetime.now(datetime.UTC).strftime('%Y-%m-%d %H:%M UTC')}."


def _milliseconds(value: float) -> str:
    return f"{value:.3g} ms" if value < 1000 else f"{value / 1e3:.3g} s"


def _rate(value: float) -> str:
    return f"{value / 1e6:.3g}M" if value >= 1e6 else f"{value / 1e3:.3g}k" if value >= 1e3 else f"{value:.3g}"
