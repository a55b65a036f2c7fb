"""The files of published models check without any weights, and say how to get some."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from sexpgpu.lang.load import load_experiment
from sexpgpu.train.evaluation import run_evaluation
from sexpgpu.train.generation import run_generator
from sexpgpu.train.phases import assemble
from tests.published.looking import FILES, FOLDER, opened

DATA = {
    "silero-vad": ("sound", {"samples": np.zeros((1, 1600), np.float32)}),
    "minilm": ("sentences", {"tokens": np.zeros((4, 6), np.int32), "mask": np.ones((4, 6), np.bool_)}),
    "minilm-classify": (
        "sentences",
        {
            "tokens": np.arange(240, dtype=np.int32).reshape(40, 6) % 100,
            "mask": np.ones((40, 6), np.bool_),
            "label": np.arange(40, dtype=np.int32) % 3,
        },
    ),
    "crepe": ("sound", {"samples": np.zeros((1, 1184), np.float32)}),
}
"""What a file reads beside its weights: a constant, and the arrays of the file that it names."""


@pytest.fixture
def settings(name: str, tmp_path: Path) -> dict[str, str]:
    """What a file needs beside its weights, which `smoke` does without."""
    if name not in DATA:
        return {}
    constant, arrays = DATA[name]
    np.savez(tmp_path / "data.npz", **arrays)
    return {constant: str(tmp_path / "data.npz")}


@pytest.mark.parametrize("name", FILES)
def test_smoke_elaborates_without_a_warning(name: str, settings: dict[str, str]) -> None:
    experiment = load_experiment(FILES[name], variant="smoke", settings=settings)
    assert not experiment.warnings, [w.message for w in experiment.warnings]
    assert assemble(experiment).program.phases and not experiment.weights
    assert experiment.num_parameters < 100_000


@pytest.mark.parametrize("name", FILES)
def test_smoke_shows_something(name: str, settings: dict[str, str]) -> None:
    with opened(FILES[name], settings, {}, "smoke") as (experiment, program, session, schedule):
        for generator in experiment.generators.values():
            sample = run_generator(experiment, program, session, schedule, generator, 0)
            assert all(np.all(np.isfinite(value)) for value in (*sample.carries, *sample.emitted))
        for evaluation in experiment.evaluations.values():
            found = run_evaluation(experiment, program, session, schedule, evaluation, 1)
            assert found and all(np.all(np.isfinite(value)) for value in found.values())


@pytest.mark.parametrize("name", FILES)
def test_begins_with_what_it_is_and_whose(name: str) -> None:
    text = FILES[name].read_text("utf-8")
    script = f"prepare_{name.replace('-', '_')}"
    assert text.startswith(f";; {name}.sx: ") and f"examples/published/{script}.py" in text and ";; Source: " in text
    spec = importlib.util.spec_from_file_location(script, FOLDER / f"{script}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert callable(module.prepare)
