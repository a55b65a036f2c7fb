"""Experiments from a few lines of text, and the values of expressions, for the tests of the language."""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sexpgpu.diagnostics import Diagnostic, DiagnosticError
from sexpgpu.ir.evaluate import evaluate
from sexpgpu.ir.graph import Graph
from sexpgpu.ir.types import NUMPY_DTYPES
from sexpgpu.ir.verify import verify
from sexpgpu.lang.experiment import Experiment, Objective
from sexpgpu.lang.load import load_experiment

TAIL = """
(defmetric loss-of-the-tail () (square (param w-of-the-tail (f32) 1.0)))
(defrun go :loss loss-of-the-tail :optimizer (sgd :rate 0.1) :steps 1)
"""
"""A run for files that are about something else."""

ROWS = {"x": np.arange(24, dtype=np.float32).reshape(8, 3) / 8, "y": np.arange(8, dtype=np.int32) % 3}
TEXT = "the quick brown fox jumps over the lazy dog. " * 40


def write_data(folder: Path, **arrays: np.ndarray) -> None:
    """The data that files of these tests may name: `rows.npz`, `words.txt` and `cells.csv`."""
    (folder / "cells.csv").write_text("a,b,word\n1,2,red\n3,,green\n", encoding="utf-8", newline="\n")
    np.savez(folder / "rows.npz", **(arrays or ROWS))
    (folder / "words.txt").write_text(TEXT, encoding="utf-8", newline="\n")


def load_text(text: str, *, data: Mapping[str, np.ndarray] | None = None, **options: Any) -> Experiment:
    """The experiment that a text declares. Raises DiagnosticError."""
    folder = tempfile.TemporaryDirectory()
    write_data(Path(folder.name), **(data or {}))
    path = Path(folder.name) / "file.sx"
    path.write_text(text, encoding="utf-8", newline="\n")
    try:
        experiment = load_experiment(path, **options)
    except DiagnosticError:
        folder.cleanup()
        raise
    weakref.finalize(experiment, folder.cleanup)  # it reads its data while it runs
    return experiment


def faults(text: str, **options: Any) -> tuple[Diagnostic, ...]:
    """The diagnostics of a text that must fail."""
    try:
        load_text(text, **options)
    except DiagnosticError as error:
        return error.diagnostics
    raise AssertionError("the text was accepted")


def codes(text: str, **options: Any) -> list[str]:
    """The codes of a text that must fail, in order of place."""
    return [d.code for d in faults(text, **options)]


def host_values(experiment: Experiment, step: float) -> dict[str, np.ndarray]:
    """What the schedule feeds at a step, in double."""
    return evaluate(experiment.schedule.graph(), {"step": np.float64(step)}, double=True)


def run_graph(
    experiment: Experiment, graph: Graph, values: Mapping[str, Any], step: float = 1, double: bool = False
) -> dict[str, np.ndarray]:
    """The outputs of a graph; slots and batch fields are given by their bare names."""
    verify(graph)
    fed: dict[str, Any] = {f"feed:{n}": v for n, v in host_values(experiment, step).items()}
    fed["feed:stream"] = np.int64(12345)
    fed["feed:trip"] = np.int32(values.get("trip", 0))
    for name, value in values.items():
        fed |= {f"slot:{name}": value, f"feed:batch.{name}": value, name: value}
    return evaluate(graph, {n: fed[n] for n in graph.input_names}, double=double)


def dtype_name(array: np.ndarray) -> str:
    """The dtype of an array as the language calls it."""
    return next(name for name, dtype in NUMPY_DTYPES.items() if dtype == array.dtype)


def elaborated(expression: str, *, before: str = "", **values: np.ndarray) -> tuple[Experiment, Graph]:
    """The graph of an expression, whose free names are the tensors `values`."""
    bound = " ".join(
        f"{name} (state {name} ({' '.join([dtype_name(v), *map(str, v.shape)])}) {'false' if v.dtype == bool else '0'})"
        for name, v in values.items()
    )
    body = f"(let [{bound}] {expression})" if bound else expression
    experiment = load_text(f"{before}\n(defgenerator expression () {body})\n{TAIL}")
    return experiment, experiment.generators["expression"].start


def value_of(expression: str, *, before: str = "", step: float = 1, double: bool = False, **values: Any) -> Any:
    """The value of an expression in which the names of `values` are tensors; a list where it is a vector of several."""
    arrays = {name: np.asarray(value) for name, value in values.items()}
    experiment, graph = elaborated(expression, before=before, **arrays)
    found = list(run_graph(experiment, graph, arrays, step, double).values())
    return found[0] if len(found) == 1 else found


def ops_of(graph: Graph) -> list[str]:
    """The operations of a graph, inputs and constants left out."""
    return [node.op for node in graph.nodes if node.op not in ("input", "constant")]


def objective(text: str, **options: Any) -> tuple[Experiment, Objective]:
    """The training objective of the first update of a text."""
    experiment = load_text(text, **options)
    return experiment, experiment.run.updates[0].objective


def initial(experiment: Experiment, name: str) -> np.ndarray:
    """The first value of a parameter or state."""
    owned = experiment.parameters.get(name) or experiment.states[name]
    return run_graph(experiment, owned.initial, {})["value"]
