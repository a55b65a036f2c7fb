"""SmolLM2-135M-Instruct takes on a text by low-rank changes: what is trained, what stays, what it gains."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file

from sexpgpu.cli.main import main
from sexpgpu.ir.program import Program
from sexpgpu.lang.load import load_experiment
from sexpgpu.train.metrics import read_metrics
from sexpgpu.train.phases import assemble
from tests.published.looking import FILES, evaluate, script

FILE = FILES["smollm2-lora"]


def program_of(precision: str) -> Program:
    return assemble(load_experiment(FILE, variant="smoke", settings={"precision": precision})).program


@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_what_is_frozen_has_no_gradient_and_no_state(precision: str) -> None:
    program = program_of(precision)
    learning = [slot.name for slot in program.slots if slot.role in ("optimizer", "gradient")]
    moving = {step for name in learning for step in name.split("/") if step.startswith("llama.")}
    parameters = {slot.name: slot.type.dtype for slot in program.slots if slot.role == "parameter"}
    assert {name.rpartition(".")[2] for name in moving} == {"lora-down", "lora-up"}
    assert moving < set(parameters) and {parameters[name] for name in moving} == {"f32"}
    assert {dtype for name, dtype in parameters.items() if name.endswith((".w", ".table"))} == {precision}
    assert set(program.phase("update.tune.commit").writes) >= moving
    assert not {name for name in program.phase("update.tune.commit").writes if name.endswith((".w", ".table"))}


@pytest.mark.published
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_the_unseen_text_becomes_likelier(shared: Path, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("gguf")
    prepare = script("prepare_smollm2")
    text = (shared / "data" / "tinyshakespeare.txt").read_text("utf-8")
    learn, held = script("prepare_smollm2_lora", needs="prepare_smollm2").shards(text, tmp_path)
    settings = {"weights": str(prepare.prepare(tmp_path)), "learn": str(learn), "held": str(held)}
    assert len(np.fromfile(held, "<u2")) == 512
    before = float(evaluate(FILE, "unseen-text", settings)["nll"])
    assert before == pytest.approx(3.617, abs=2e-3)
    folder = tmp_path / "run"
    arguments = [f"--set={name}={value}" for name, value in settings.items()]
    result = CliRunner().invoke(main, ["run", str(FILE), "--out", str(folder), *arguments])
    assert result.exit_code == 0, result.output
    after = read_metrics(folder / "metrics.jsonl")["eval/unseen-text/nll"][-1][1]
    print(f"{before:.3f}, then {after:.3f}")
    assert after < before - 0.15
    saved = load_file(next((folder / "checkpoints").glob("*/state.safetensors")))
    theirs = load_file(settings["weights"])["blk.7.ffn_up.weight"]
    np.testing.assert_array_equal(saved["llama.block.7.mlp.up.w"], theirs.T)
