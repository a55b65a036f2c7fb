"""What the sequence examples say of themselves, on their small variants."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file

from sexpgpu.cli.main import main
from sexpgpu.lang.load import load_experiment
from sexpgpu.train.evaluation import run_evaluation
from sexpgpu.train.metrics import read_metrics
from tests.examples.test_examples import FILES
from tests.train.trial import Trial, write_experiment

CACHED = """
(include "{path}")
(defmetric apart (tokens)
  (let [[whole _] (llama tokens)
        n  (dim tokens 0)
        blank (for [i layers] (for [j 2] (zeros (f32 n groups seq head))))
        [_ logits] (scan [caches blank] [token tokens t seq] :axis 1
                     (let [[logits caches] (advance (rearrange "b -> b 1" token) (rearrange "-> 1" t) caches)]
                       (next :caches caches :emit logits)))]
    (measure spread (max (abs whole)) :reduce max)
    (max (abs (- whole logits)))))
(defeval cached :loader val :batches 2 apart)
"""


def run(name: str, out: Path, *arguments: str) -> dict[str, list]:
    result = CliRunner().invoke(main, ["run", str(FILES[name]), "--out", str(out), *arguments])
    assert result.exit_code == 0, result.output
    return read_metrics(out / "metrics.jsonl")


def look(folder: Path, text: str, variant: str | None, name: str, num_steps: int = 0) -> dict[str, np.ndarray]:
    """What the evaluation `name` of a file finds after some steps."""
    with Trial(load_experiment(write_experiment(folder, text), variant=variant)) as trial:
        trial.losses(num_steps)
        program, schedule = trial.assembly.program, trial.stepper.schedule
        evaluation = trial.experiment.evaluations[name]
        return run_evaluation(trial.experiment, program, trial.session, schedule, evaluation, 1)


def test_llama_gives_the_same_logits_from_its_cache(tmp_path: Path) -> None:
    found = look(tmp_path, CACHED.format(path=FILES["llama"].as_posix()), "smoke", "cached", 3)
    assert found["eval/cached/spread"] > 0.1
    assert found["eval/cached/apart"] < 1e-5 * found["eval/cached/spread"]


def test_lora_moves_nothing_but_its_changes(tmp_path: Path) -> None:
    run("lora", tmp_path / "base", "--variant", "smoke")
    base = tmp_path / "base" / "checkpoints" / "step-00000040" / "state.safetensors"
    series = run("lora", tmp_path / "tuned", "--variant", "smoke", f"--set=base={base}")
    losses = [value for _, value in series["train/loss"]]
    assert np.mean(losses[-3:]) < np.mean(losses[:3]) - 0.3
    before = load_file(base)
    after = load_file(next((tmp_path / "tuned" / "checkpoints").glob("step-00000040")) / "state.safetensors")
    frozen = [name for name in before if "/" not in name]
    assert frozen and all(np.array_equal(before[name], after[name]) for name in frozen)
    changes = {name for name in after if "/" not in name} - set(frozen)
    assert changes and all(".lora-" in name for name in changes)
    assert all(np.any(after[name]) for name in changes)


def test_the_pole_falls_later(tmp_path: Path) -> None:
    turns = [value for _, value in run("reinforce", tmp_path / "run", "--variant", "smoke")["train/turns"]]
    assert np.mean(turns[-3:]) > np.mean(turns[:3]) + 5


@pytest.mark.parametrize("name, option", [("llama", "--prompt=A class "), ("names-lstm", "--prompt=The ")])
def test_a_prompt_is_gone_on_with(name: str, option: str, tmp_path: Path) -> None:
    run(name, tmp_path / "run", "--variant", "smoke", "--steps", "2")
    asked = ["generate", str(FILES[name]), "--variant", "smoke", "--out", str(tmp_path / "run"), option]
    result = CliRunner().invoke(main, asked)
    assert result.exit_code == 0, result.output
    assert result.output.startswith(option.partition("=")[2])


def test_the_pole_obeys_the_laws_of_motion(tmp_path: Path) -> None:
    """A step of the cart against the equations of Barto, Sutton and Anderson in their own form."""
    text = """
    (include "PATH")
    (defmetric moved ()
      (let [s    (stack [(+ (zeros (f32 4)) [0.1 -0.2 0.05 0.3]) (+ (zeros (f32 4)) [-1.0 0.5 -0.1 -0.7])])
            next (move s (iota (i32 2)))]
        (measure left (gather next 0) :reduce last)
        (measure right (gather next 1) :reduce last)
        0.0))
    (defeval law :batches 1 moved)
    """.replace("PATH", FILES["reinforce"].as_posix())
    found = look(tmp_path, text, "smoke", "law")
    gravity, cart, pole, half, seconds = 9.8, 1.0, 0.1, 0.5, 0.02
    for push, side, s in ((-10, "left", (0.1, -0.2, 0.05, 0.3)), (10, "right", (-1.0, 0.5, -0.1, -0.7))):
        _, speed, angle, spin = s
        force = (push + pole * half * spin**2 * math.sin(angle)) / (cart + pole)
        lever = half * (4 / 3 - pole * math.cos(angle) ** 2 / (cart + pole))
        turn = (gravity * math.sin(angle) - math.cos(angle) * force) / lever
        pull = force - pole * half * turn * math.cos(angle) / (cart + pole)
        expected = np.array(s) + seconds * np.array([speed, pull, spin, turn])
        assert found[f"eval/law/{side}"] == pytest.approx(expected, rel=1e-5)


def drawn(name: str) -> str:
    """A metric that shows four of the sequences that an example draws."""
    rows = " ".join(
        f"(measure ids-{i} (gather ids {i}) :reduce last) (measure answer-{i} (gather answer {i}) :reduce last)"
        for i in range(4)
    )
    return f"""
    (include "{FILES[name].as_posix()}")
    (defmetric drawn () (let [[ids answer] (draw 4)] {rows} 0.0))
    (defeval look :batches 1 drawn)
    """


@pytest.mark.parametrize("name", ["ssm", "memory-table"])
def test_what_is_asked_was_told(name: str, tmp_path: Path) -> None:
    """The drawn sequences by their definition."""
    found = look(tmp_path, drawn(name), None, "look")
    for i in range(4):
        ids, answer = found[f"eval/look/ids-{i}"], found[f"eval/look/answer-{i}"]
        if name == "ssm":
            told = ids[: -len(answer)]
            assert list(told[told > 0] - 1) == list(answer) and set(ids[len(told) :]) == {9}
        else:
            pairs = dict(zip(ids[:16:2], ids[1:16:2], strict=True))
            assert len(pairs) == 8 and [pairs[key] - 16 for key in ids[16:]] == list(answer)


def test_moe_asks_every_expert(tmp_path: Path) -> None:
    series = run("moe", tmp_path / "run", "--variant", "smoke")
    layers = [name for name in series if name.startswith("eval/") and name.endswith("/idlest")]
    assert len(layers) == 2
    assert all(series[name][-1][1] > 0.1 for name in layers)
