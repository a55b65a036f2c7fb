"""Both sides of docs/from-pytorch.md: the same weights, the same batches, the same losses.

Of each section the Python block runs statement by statement; as soon as a module is there, it gets the weights of the
model of that name. `loader` gives batches of the fields that its loop names. What is compared is what the block leaves
in `losses`, `value`, `sizes`, `accuracy` and `ema`.
"""

from __future__ import annotations

import ast
import copy
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sexpgpu.lang.load import load_experiment
from sexpgpu.train.evaluation import run_evaluation
from sexpgpu.train.generation import run_generator
from tests.docs.snippets import CHECKOUT
from tests.lang.files import value_of
from tests.train.trial import Trial, write_experiment

pytestmark = pytest.mark.torch
BLOCK = re.compile(r"^```(python|lisp) (side|value)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HEAD = """
(defdata table (arrays "data.npz"))
(defloader train (rows (part table 0.0 0.7)) :batch 16 :shuffle true)
(defloader val (rows (part table 0.7 1.0)) :batch 10)
"""
NUM_STEPS = 6
DRAW = np.random.default_rng(0)
DATA = {
    "x": DRAW.standard_normal((100, 8)).astype(np.float32),
    "label": DRAW.integers(0, 4, 100).astype(np.int32),
    "ids": DRAW.integers(0, 10, (100, 6)).astype(np.int32),
    "later": DRAW.integers(0, 10, (100, 6)).astype(np.int32),
    "image": DRAW.standard_normal((100, 6, 6, 2)).astype(np.float32),
}
KERNEL = DRAW.standard_normal((3, 3, 2, 5)).astype(np.float32)


@dataclass(frozen=True)
class Section:
    title: str
    python: str
    lisp: str
    kind: str


def sections() -> list[Section]:
    page = (CHECKOUT / "docs" / "from-pytorch.md").read_text("utf-8")
    found = []
    for part in page.split("\n## ")[1:]:
        title = part.partition("\n")[0]
        blocks = {language: (kind, text) for language, kind, text in BLOCK.findall(part)}
        if blocks:
            found.append(Section(title, blocks["python"][1], blocks["lisp"][1], blocks["lisp"][0]))
    return found


ALL = sections()
MODEL, STEP = ALL[:2]
METRIC, RUN = (STEP.lisp[i:j] for i, j in ((0, STEP.lisp.index("(defrun")), (STEP.lisp.index("(defrun"), None)))


def whole_file(section: Section) -> str:
    """The lisp side with what it leaves out."""
    text = section.lisp
    if "(defmodel" not in text:
        text = MODEL.lisp + text
    if "(defmetric loss" not in text and "-loss" not in text:
        text += METRIC
    return HEAD + text + ("" if "(defrun" in text else RUN)


def whole_code(section: Section) -> str:
    """The Python side with what it leaves out."""
    code = section.python
    if section.kind == "value":
        return code
    if "nn.Module" not in code:
        code = MODEL.python + code
    if not re.search(r"\b(losses|value|sizes)\b", code):
        step = STEP.python
        code += step.partition("\n")[2] if "optimizer =" in code else step
        if "torch.save" in section.python:
            code = MODEL.python + STEP.python + section.python
    return code


def batches(loader: Any, fields: list[str], count: int) -> Iterator[Any]:
    import torch

    for m in range(count):
        batch = loader.batch(m)
        found = [torch.tensor(batch[name]) for name in fields]
        yield tuple(t.long() if t.dtype == torch.int32 else t for t in found)


def give_weights(module: Any, ours: dict[str, np.ndarray]) -> None:
    """Parameters of both in the order in which they are made; a matrix of `nn.Linear` lies the other way round."""
    import torch

    theirs = []
    for part in module.modules():
        for name, p in part.named_parameters(recurse=False):
            theirs.append((p, isinstance(part, torch.nn.Linear) and name == "weight"))
    assert len(theirs) == len(ours), list(ours)
    with torch.no_grad():
        for (p, turned), value in zip(theirs, ours.values(), strict=True):
            found = torch.tensor(value.T if turned else value)
            assert found.shape == p.shape, (found.shape, p.shape)
            p.copy_(found)


def run_python(section: Section, experiment: Any, trial: Trial | None) -> dict[str, Any]:
    """What the Python side leaves."""
    import torch
    from torch import nn
    from torch.nn import functional

    torch.set_num_threads(1)
    code = whole_code(section)
    names: dict[str, Any] = {"torch": torch, "nn": nn, "F": functional, "math": math, "copy": copy, "einops": None}
    names |= {name: torch.tensor(value[:16]) for name, value in DATA.items()}
    names["kernel"] = torch.tensor(KERNEL)
    names["rearrange"] = lambda t, notation, h: t.reshape(len(t), h, -1)
    if experiment is not None:
        for name, number, loader in (("loader", NUM_STEPS, "train"), ("val_loader", 3, "val")):
            loop = re.search(rf"(?:for (.+) in {name}|(\w+, \w+) = next\(batches\))", code)
            fields = (loop[1] or loop[2]).split(", ") if loop else ["x", "label"]
            names[name] = list(batches(experiment.loaders[loader], fields, number))
    given: set[str] = set()
    for statement in ast.parse(code).body:
        exec(compile(ast.Module([statement], []), section.title, "exec"), names)
        for name in {n for n, v in names.items() if isinstance(v, nn.Module)} - given - {"ema"}:
            assert trial is not None
            ours = {p: trial.read(p) for p in experiment.parameters if p.startswith(f"{name}.")}
            give_weights(names[name], ours)
            given.add(name)
    return names


def close(found: Any, wanted: Any, tolerance: float) -> None:
    wanted = wanted.detach().numpy() if hasattr(wanted, "detach") else np.asarray(wanted)
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("section", ALL, ids=lambda s: s.title)
def test_both_sides_agree(section: Section, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    if section.kind == "value":
        inputs = {name: value[:16] for name, value in DATA.items()} | {"kernel": KERNEL}
        used = {n: v for n, v in inputs.items() if re.search(rf"\b{n}\b", section.lisp)}
        names = run_python(section, None, None)
        close(value_of(section.lisp, **used), names["value"], 1e-4)
        return
    experiment = load_experiment(write_experiment(tmp_path, whole_file(section), **DATA))
    with Trial(experiment) as trial:
        names = run_python(section, experiment, trial)
        tolerance = 1e-2 if "autocast" in section.python else 1e-4
        compared = 0
        if "value" in names or "sizes" in names:
            compared += 1
            compare_value(trial, names)
        if "losses" in names:
            compared += 1
            steps = [trial.step() for _ in range(experiment.run.steps)]
            ours = [result.loss for results in steps for result in results.values()]
            if section.title != "Seeds":
                close(ours, names["losses"], tolerance)
            assert ours[0] != ours[-1]
            if "accuracy" in names:
                close([next(iter(r.values())).measures["accuracy"] for r in steps], names["accuracy"], 1e-6)
        if "ema" in names:
            for name, p in zip(
                (p for p in experiment.parameters if p.startswith("net.")), names["ema"].parameters(), strict=True
            ):
                found = trial.read(f"average.slow/{name}")
                close(found.T if found.ndim == 2 else found, p, 1e-4)
        if section.title.startswith("Batch norm"):
            close(trial.read("net.bn.mean"), names["net"].bn.running_mean, 1e-4)
            close(trial.read("net.bn.variance"), names["net"].bn.running_var, 1e-4)
        assert compared


def compare_value(trial: Trial, names: dict[str, Any]) -> None:
    """Of an evaluation or a generator."""
    experiment = trial.experiment
    around = (experiment, trial.assembly.program, trial.session, trial.stepper.schedule)
    if experiment.generators:
        (generator,) = experiment.generators.values()
        close(run_generator(*around, generator, 0).emitted[0], names["value"], 0)
        return
    (evaluation,) = experiment.evaluations.values()
    found = run_evaluation(*around, evaluation, 0)
    value = found[next(k for k in found if k.count("/") == 2)]
    if "sizes" in names:
        loader = experiment.loaders[evaluation.loader]
        ours = [int(loader.batch(m)["valid"].sum()) for m in range(loader.batches_per_epoch)]
        assert ours == names["sizes"]
        close(value, np.mean(ours), 1e-6)
        return
    close(value, names["value"], 1e-4)


def test_there_are_enough_of_them() -> None:
    assert len(ALL) >= 25
    assert sum("losses" in whole_code(s) for s in ALL) >= 14
