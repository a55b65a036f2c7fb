"""A metric that never reads `training` is elaborated once for a loss and for evaluations; one that does is not."""

from pathlib import Path
from typing import Any

import pytest

from sexpgpu.ir.text import graph_text
from sexpgpu.lang.experiment import Objective
from sexpgpu.lang.load import load_experiment
from sexpgpu.lang.tracing import trace_objective

FILE = """(defdata corpus (text "python:topics" :by bytes))
(defloader train (windows (part corpus 0.0 0.5) :length 8) :batch 4)
(defloader val (windows (part corpus 0.5 1.0) :length 8) :batch 4)
(defloader wide (windows (part corpus 0.5 1.0) :length 16) :batch 4)
(defn body (tokens targets)
  (let [h (repeat [i 12] [h (one-hot tokens 256)] (tanh (linear h 256 :name (layer i))))]
    (mean (cross-entropy (linear h 256 :name head) targets))))
(defmetric nll (tokens targets) BODY)
(defeval same :loader val nll)
(defeval other :loader wide nll)
(defrun go :loader train :loss nll :optimizer (sgd :rate 0.1) :steps 3)
"""
PLAIN = "(body tokens targets)"
ASKS = "(if training (body tokens targets) (body tokens targets))"


def load(folder: Path, body: str):
    path = folder / "a.sx"
    path.write_text(FILE.replace("BODY", body), "utf-8")
    return load_experiment(path)


def test_the_graphs_are_those_of_a_metric_that_asks(tmp_path: Path) -> None:
    plain, asks = load(tmp_path, PLAIN), load(tmp_path, ASKS)
    for name in ("same", "other"):
        (a,), (b,) = plain.evaluations[name].objectives, asks.evaluations[name].objectives
        assert graph_text(a.graph) == graph_text(b.graph)
        assert (a.name, a.fields, a.graph.name) == (b.name, b.fields, b.graph.name)


def test_a_metric_that_asks_has_two_graphs(tmp_path: Path) -> None:
    made = load(tmp_path, "(if training (square (body tokens targets)) (body tokens targets))")
    (evaluated,) = made.evaluations["same"].objectives
    assert len(evaluated.graph.nodes) < len(made.run.updates[0].objective.graph.nodes)


def test_one_elaboration_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def counted(*arguments: Any, name: str, **options: Any) -> Objective:
        made.append(name)
        return trace_objective(*arguments, name=name, **options)

    monkeypatch.setattr("sexpgpu.lang.load.trace_objective", counted)
    load(tmp_path, PLAIN)
    assert made == ["go", "other.0"]
    load(tmp_path, ASKS)
    assert made[2:] == ["go", "same.0", "other.0"]
