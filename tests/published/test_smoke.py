"""The files of published models check without any weights, and say how to get some."""

import importlib.util

import pytest

from sexpgpu.lang.load import load_experiment
from sexpgpu.train.phases import assemble
from tests.published.looking import FILES, FOLDER


@pytest.mark.parametrize("name", FILES)
def test_smoke_elaborates_without_a_warning(name: str) -> None:
    experiment = load_experiment(FILES[name], variant="smoke")
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
    assert callable(module.prepare) and callable(module.package)
