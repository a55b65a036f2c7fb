"""Every example checks in every variant, trains, and says what it needs."""

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from sexpgpu.cli.main import main
from sexpgpu.data import TokensSpec, open_dataset
from sexpgpu.lang.experiment import Experiment
from sexpgpu.lang.load import load_experiment
from sexpgpu.train.metrics import read_metrics
from sexpgpu.train.phases import assemble

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
FILES = {path.stem: path for path in sorted(EXAMPLES.glob("*.sx"))}
TINY = {"tiny-sgd"}
"""Files that are small enough to need no `smoke` variant."""
RISES = {"reinforce": "train/turns"}
"""Files whose loss says nothing of what is learned, and a series that does."""


def script(name: str):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, str]]:
    """What each example needs beside itself: those of digits read a file that make_digits.py writes."""
    digits = tmp_path_factory.mktemp("digits") / "digits.npz"
    images, labels = script("make_digits").drawn(600)
    np.savez(digits, image=images.astype(np.float32), label=labels.astype(np.int32))
    return lambda name: {"digits": str(digits)} if "digits.npz" in FILES[name].read_text("utf-8") else {}


def variants(name: str) -> list[str | None]:
    return [None, *re.findall(r"^\(defvariant (\S+)", FILES[name].read_text("utf-8"), re.MULTILINE)]


def load(name: str, settings: Callable[[str], dict[str, str]], variant: str | None, **more: str) -> Experiment:
    return load_experiment(FILES[name], variant=variant, settings={**settings(name), **more})


def train(name: str, tmp_path: Path, *arguments: str) -> dict[str, list]:
    folder = tmp_path / "run"
    result = CliRunner().invoke(main, ["run", str(FILES[name]), "--out", str(folder), *arguments])
    assert result.exit_code == 0, result.output
    return read_metrics(folder / "metrics.jsonl")


@pytest.mark.parametrize("name, variant", [(name, v) for name in FILES for v in variants(name)])
def test_each_variant_elaborates_without_a_warning(name: str, variant: str | None, settings) -> None:
    experiment = load(name, settings, variant)
    told = [w.message for w in experiment.warnings if variant is None or w.code != "W-PARAM-001"]
    assert not told, told  # what a variant leaves out may leave its parameters unreached
    assert assemble(experiment).program.phases


@pytest.mark.parametrize("name", [name for name in FILES if name not in TINY])
def test_larger_examples_declare_smoke(name: str) -> None:
    assert "smoke" in variants(name)


@pytest.mark.parametrize("name", FILES)
def test_begins_with_what_it_is(name: str) -> None:
    assert FILES[name].read_text("utf-8").startswith(f";; {name}.sx: ")


@pytest.mark.parametrize("name", FILES)
def test_smoke_trains(name: str, settings, tmp_path: Path) -> None:
    arguments = [f"--set={k}={v}" for k, v in settings(name).items()]
    if name not in TINY:
        arguments += ["--variant", "smoke"]
    series = train(name, tmp_path, *arguments)
    losses = np.array([[value for _, value in series[key]] for key in series if re.fullmatch("train/(.+/)?loss", key)])
    assert np.all(np.isfinite(losses))
    if name in RISES:
        losses = -np.array([[value for _, value in series[RISES[name]]]])
    # Of several updates that work against each other, one loss may rise.
    assert np.any(losses[:, -3:].mean(1) < losses[:, :3].mean(1) - 0.1)


def read_losses(series: dict[str, list]) -> list:
    return series["train/loss"]


def test_sgd_finds_the_plane(tmp_path: Path) -> None:
    assert read_losses(train("tiny-sgd", tmp_path))[-1][1] < 1e-6


def test_bigrams_reach_what_counting_gives(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    names = "\n".join("".join(draw.choice(list("aeinrst"), size=draw.integers(2, 7))) for _ in range(4000))
    path = tmp_path / "names.txt"
    path.write_text(names, "utf-8")
    series = train("names-bigram", tmp_path, f"--set=names={path}", "--set=batch=4096", "--set=steps=200")
    ids = np.unique(list(names), return_inverse=True)[1]
    counts = np.zeros((8, 8))
    np.add.at(counts, (ids[:-1], ids[1:]), 1)
    with np.errstate(all="ignore"):
        chances = counts / counts.sum(1, keepdims=True)
        entropy = -np.nansum(counts * np.log(chances)) / counts.sum()
    assert series["eval/everything/nll"][-1][1] == pytest.approx(entropy, abs=2e-3)


def test_topics_gpt_writes_samples_and_speaks(tmp_path: Path) -> None:
    train("topics-gpt", tmp_path, "--variant", "smoke", "--steps", "2")
    sample = (tmp_path / "run" / "samples" / "story-00000002.txt").read_text("utf-8")
    assert sample.startswith("The ") and len(sample) == len("The ") + 240
    asked = ["generate", str(FILES["topics-gpt"]), "--variant", "smoke", "--out", str(tmp_path / "run"),
             "--prompt", "A class ", "--temperature", "0.5", "--length", "90"]  # fmt: skip
    result = CliRunner().invoke(main, asked)
    assert result.exit_code == 0, result.output
    assert result.output.startswith("A class ") and len(result.output) == len("A class ") + 90 + 1


def test_gpt2_is_gpt2(settings) -> None:
    experiment = load("gpt2", settings, None)
    assert experiment.num_parameters == 124_475_904  # 124,439,808 with 50,257 tokens; 47 more rows here
    assert experiment.run.microbatches == 32
    trial = load("gpt2", settings, None, batch="1")
    assert trial.run.microbatches == 1


def test_precision_changes_no_shape(settings) -> None:
    wide, narrow = (load("gpt2", settings, "smoke", precision=p) for p in ("f32", "bf16"))
    types = [{n.types[0].dtype for n in e.run.updates[0].objective.graph.nodes} for e in (wide, narrow)]
    assert "bf16" not in types[0] and "bf16" in types[1]
    assert {n: p.type for n, p in wide.parameters.items()} == {n: p.type for n, p in narrow.parameters.items()}


def test_char_gpt_follows_nanogpt(settings) -> None:
    experiment = load("char-gpt", settings, None)
    vectors = [name for name, p in experiment.parameters.items() if len(p.type.shape) == 1]
    assert len(vectors) == 2 * 4 + 1 and all(name.endswith(".scale") for name in vectors)  # no biases
    assert (experiment.run.steps, experiment.run.updates[0].clip) == (2000, 1.0)


def test_tokens_are_written_as_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = tmp_path / "text.txt"
    text.write_text("tokens of a text, " * 500, "utf-8")
    arguments = [str(text), "--bytes", "--out", str(tmp_path), "--shard-ids", "5000"]
    monkeypatch.setattr("sys.argv", ["make_tokens.py", *arguments])
    script("make_tokens").main()
    stream = open_dataset(TokensSpec(str(tmp_path / "train-*.bin"), 256), tmp_path)
    assert len(stream) == 9000
    assert bytes(stream.windows(np.array([0]), 9000)[0].astype(np.uint8)).decode() == text.read_text("utf-8")
    series = train("gpt2", tmp_path, "--variant", "smoke", "--steps", "2", f"--set=shards={tmp_path}/train-*.bin")
    assert len(read_losses(series)) == 2


def test_drawn_digits_are_told_apart() -> None:
    images, labels = script("make_digits").drawn(500)
    assert images.shape == (500, 64) and images.min() >= 0 and images.max() <= 1
    means = np.stack([images[labels == k].mean(0) for k in range(10)])
    distances = np.linalg.norm(means[:, None] - means[None], axis=-1)
    assert distances[~np.eye(10, dtype=bool)].min() > 0.5


@pytest.mark.slow
def test_scanned_digits_are_read(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    path = tmp_path / "digits.npz"
    images, labels = script("make_digits").scanned()
    np.savez(path, image=images.astype(np.float32), label=labels.astype(np.int32))
    series = train("digits-schedule", tmp_path, f"--set=digits={path}")
    assert series["eval/test-set/accuracy"][-1][1] == pytest.approx(0.95, abs=0.01)
