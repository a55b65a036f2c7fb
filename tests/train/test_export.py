"""What `export` writes, others read: the safetensors package, PyTorch, and a `defweights` of another file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors import safe_open
from safetensors.numpy import load_file

from sexpgpu.cli.main import main
from sexpgpu.lang.load import load_experiment
from tests.train.trial import Trial, write_experiment

TEXT = """
(defmodel net ((x (f32 _ 3)))
  (linear (relu (batch-norm (linear x 4 :name up) :name norm)) 2 :name head))
{more}
(defmetric loss () (mean (square (- (net (random-normal (f32 8 3))) 1.0))))
(defrun go :loss loss :optimizer (adam :rate 0.1) :steps 3)
"""
AVERAGE = '(defaverage slow :over "net.head.*" :decay 0.9)'


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, and beside it `net.safetensors` and `slow.safetensors`."""
    folder = tmp_path_factory.mktemp("exported")
    file = write_experiment(folder, TEXT.format(more=AVERAGE))
    run = str(folder / "run")
    for arguments in (
        ["run", str(file), "--out", run, "--quiet"],
        ["export", run, str(folder / "net.safetensors")],
        ["export", run, str(folder / "slow.safetensors"), "--weights", "slow"],
    ):
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 0, result.output
    return folder


def test_names_are_paths(exported: Path) -> None:
    kinds = ("head.b", "head.w", "norm.bias", "norm.mean", "norm.scale", "norm.variance", "up.b", "up.w")
    assert sorted(load_file(exported / "net.safetensors")) == [f"net.{kind}" for kind in kinds]
    with safe_open(exported / "net.safetensors", framework="np") as file:
        assert file.metadata() == {"format": "pt"}


def test_an_average_stands_for_what_it_covers(exported: Path) -> None:
    (state,) = exported.glob("run/checkpoints/*3/state.safetensors")
    state, slow = load_file(state), load_file(exported / "slow.safetensors")
    np.testing.assert_array_equal(slow["net.head.w"], state["average.slow/net.head.w"])
    assert not np.array_equal(slow["net.head.w"], state["net.head.w"])
    np.testing.assert_array_equal(slow["net.up.w"], state["net.up.w"])


def test_another_experiment_begins_with_it(exported: Path) -> None:
    text = TEXT.format(more='(defweights net "net.safetensors" ("{*}" "net.{*}"))')
    arrays = load_file(exported / "net.safetensors")
    with Trial(load_experiment(write_experiment(exported, text, "next.sx"))) as trial:
        for name, array in arrays.items():
            np.testing.assert_array_equal(trial.read(name), array)


@pytest.mark.torch
def test_pytorch_computes_the_same(exported: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file as load_tensors

    arrays = load_tensors(exported / "net.safetensors")
    net = torch.nn.Sequential(
        torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.ReLU(), torch.nn.Linear(4, 2)
    ).eval()
    net.load_state_dict(
        {
            "0.weight": arrays["net.up.w"].T, "0.bias": arrays["net.up.b"],
            "1.weight": arrays["net.norm.scale"], "1.bias": arrays["net.norm.bias"],
            "1.running_mean": arrays["net.norm.mean"], "1.running_var": arrays["net.norm.variance"],
            "1.num_batches_tracked": torch.tensor(3),
            "3.weight": arrays["net.head.w"].T, "3.bias": arrays["net.head.b"],
        }
    )  # fmt: skip
    x = np.linspace(-1, 1, 15, dtype=np.float32).reshape(5, 3)
    show = "(defgenerator show () (net (reshape (- (/ (iota (f32 15)) 7.0) 1.0) [5 3])))"
    text = TEXT.format(more=f'(defweights net "net.safetensors" ("{{*}}" "net.{{*}}")){show}')
    file = write_experiment(exported, text, "shown.sx")
    result = CliRunner().invoke(
        main, ["generate", str(file), "--checkpoint", "initial", "--save", str(exported / "samples")]
    )
    assert result.exit_code == 0, result.output
    (sample,) = (exported / "samples").glob("*.npz")
    np.testing.assert_allclose(np.load(sample)["value-0"], net(torch.from_numpy(x)).detach().numpy(), atol=1e-5)
