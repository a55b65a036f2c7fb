"""The files of published models check without any weights, and say how to get some."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from sexpgpu.lang.load import load_experiment
from sexpgpu.train.phases import assemble
from tests.published.looking import FILES, FOLDER

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


@pytest.mark.parametrize("name", FILES)
def test_smoke_elaborates_without_a_warning(name: str, tmp_path: Path) -> None:
    settings = {}
    if name in DATA:
        constant, arrays = DATA[name]
        settings[constant] = str(tmp_path / "data.npz")
        np.savez(settings[constant], **arrays)
    experiment = load_experiment(FILES[name], variant="smoke", settings=settings)
    assert not experiment.warnings, [w.message for w in experiment.warnings]
    assert assemble(experiment).program.phases and not experiment.weights
    assert experiment.num_parameters < 100_000


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
