"""No slip of the hand ends in anything but a diagnostic: mutants of every example and acceptance file, and values of
every kind handed to every operation.

A mutant that is a program still, such as one with another constant, is no mistake; how many there are is bounded, so
that a check which goes missing is noticed.
"""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from random import Random

import numpy as np
import pytest

from sexpgpu.cli.common import load
from sexpgpu.diagnostics import Diagnostic, DiagnosticError, render
from sexpgpu.lang.builtins import BUILTINS
from sexpgpu.lang.forms import EXPRESSIONS
from sexpgpu.lang.load import load_experiment
from tests.lang.files import write_data
from tests.lang.mutants import Mutant, line_mutants
from tests.lang.test_errors import TAIL

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SAMPLE = 8
"""One mutant of so many is in the test command; all of them in the longer one."""
MIN_ON_THE_LINE = 0.9
"""The share of errors that point at the mutated line, in their place or in a label."""
MAX_ACCEPTED = 0.15
"""The share of mutants that are accepted without a word: names of runs and paths, and other programs that are good."""
NUM_PARTS = 8
"""Parts that the longer test is cut into, so that several processes share it."""


@pytest.fixture(scope="module")
def examples(tmp_path_factory) -> Path:
    """A folder with the examples and the data of those that need a file."""
    folder = tmp_path_factory.mktemp("examples")
    for path in EXAMPLES.glob("*.sx"):
        shutil.copy(path, folder)
    spec = importlib.util.spec_from_file_location("make_digits", EXAMPLES / "make_digits.py")
    assert spec is not None and spec.loader is not None
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    images, labels = maker.drawn(600)
    np.savez(folder / "digits.npz", image=images.astype(np.float32), label=labels.astype(np.int32))
    return folder


@pytest.fixture(scope="module")
def experiments(shared, tmp_path_factory) -> Path:
    """A folder with the acceptance files and their data."""
    source = shared / "experiments"
    if not source.is_dir():
        pytest.skip("there are no acceptance files")
    folder = tmp_path_factory.mktemp("experiments")
    for path in source.iterdir():
        shutil.copy(path, folder)
    subprocess.run([sys.executable, "make_data.py"], cwd=folder, check=True)
    return folder


def mutants(folder: Path) -> list[Mutant]:
    """Two for each line of code of every file of the folder."""
    return [m for path in sorted(folder.glob("*.sx")) for m in line_mutants(path.stem, path.read_text("utf-8"))]


def lines_of(diagnostics: tuple[Diagnostic, ...]) -> set[int]:
    """The lines that diagnostics point at."""
    spans = [d.span for d in diagnostics] + [label.span for d in diagnostics for label in d.labels]
    return {span.line for span in spans if span is not None}


def check(text: str, folder: Path) -> tuple[Diagnostic, ...]:
    """What `sexpgpu check` says of a text, every variant included."""
    path = folder / "mutant.sx.tmp"
    path.write_text(text, encoding="utf-8", newline="\n")
    try:
        experiment = load(path, None, (), None)
        for variant in experiment.variants:
            load(path, variant, (), None)
    except DiagnosticError as error:
        return error.diagnostics
    return experiment.warnings


def judge(slips: list[Mutant], folder: Path) -> None:
    """Check mutants, and hold what they are answered with to the two shares above."""
    answered: list[tuple[Mutant, tuple[Diagnostic, ...]]] = []
    accepted: list[str] = []
    for slip in slips:
        found = check(slip.text, folder)
        if found:
            assert render(found), slip.what
            answered.append((slip, found))
        else:
            accepted.append(slip.what)
    elsewhere = [slip.what for slip, found in answered if slip.line not in lines_of(found)]
    print(f"{len(slips)} mutants: {len(accepted)} accepted, {len(answered)} answered, {len(elsewhere)} elsewhere")
    assert len(elsewhere) <= (1 - MIN_ON_THE_LINE) * len(answered), elsewhere
    assert len(accepted) <= MAX_ACCEPTED * len(slips), accepted


def test_the_files_as_they_are(examples, experiments):
    for folder in (examples, experiments):
        for path in sorted(folder.glob("*.sx")):
            assert check(path.read_text("utf-8"), folder) == (), path


def test_there_are_as_many_mutants_as_promised(examples, experiments):
    assert len(mutants(examples)) + len(mutants(experiments)) > 1600


def test_some_mutants_of_the_examples_are_answered_on_their_line(examples):
    judge(mutants(examples)[::SAMPLE], examples)


def test_some_mutants_of_the_experiments_are_answered_on_their_line(experiments):
    judge(mutants(experiments)[::SAMPLE], experiments)


@pytest.mark.slow
def test_every_mutant_of_the_examples_is_answered_on_its_line(examples):
    judge(mutants(examples), examples)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_every_mutant_of_the_experiments_is_answered_on_its_line(experiments, part):
    judge(mutants(experiments)[part::NUM_PARTS], experiments)


VALUES = (
    "none",
    "true",
    "0",
    "3",
    "-1",
    "2.5",
    "1e30",
    "inf",
    "nan",
    "9_223_372_036_854_775_807",
    '"text"',
    '"a b -> b a"',
    '"... a, a b -> b"',
    "[]",
    "[1 2]",
    "[x x]",
    "[[1] 2]",
    "x",
    "y",
    "(> x 0)",
    "(cast x bf16)",
    "(mean x)",
    "step",
    "(> step 3)",
    "(weighted (mean x) 1)",
    "f32",
    "(f32 4 3)",
    "(i32 2)",
    "(fn (a) a)",
    "(fn (a b) (+ a b))",
    "(fn (a) (mean a))",
    "square",
    "+",
    "sgd",
    "(sgd :rate 1)",
    "loss",
    "train",
    "points",
    "words",
    "_",
    "(next :a 1)",
    "(propose :p x)",
    "(every 3)",
    "(every 3 x x)",
    "(part words 0.0 0.5)",
    "(rows points)",
    "(param w (f32 3) 1.0)",
    "(state s (f32) 0.0)",
    "[a b]",
    "[i 3]",
    "(a b)",
    "name",
    ":axis 1",
    ":keep true",
    ":where (> x 0)",
    ":name n",
    ":fold add",
    ":reduce max",
    ":scope here",
    ":compute bf16",
    ":training false",
    ":using (fn (a b) a)",
    ":weight (mean x)",
    ":every 2",
    ":after exp",
    ":stride 0",
    ":pad [1 2]",
    ":groups 2",
    ":step 2",
    ":emit 3",
)
PLAIN = tuple(
    value for value in VALUES if not value.startswith(":") and value not in ("[a b]", "[i 3]", "(a b)", "name")
)
LIBRARY = (
    "relu",
    "softmax",
    "norm",
    "lerp",
    "linear",
    "embed",
    "layer-norm",
    "batch-norm",
    "dropout",
    "attention",
    "cross-entropy",
    "mean-over",
    "normal",
    "lecun",
    "warmup-cosine",
    "linear-schedule",
    "adamw",
    "f32",
    "type",
    "loss",
    "x",
    "3",
)


def argument(random: Random, depth: int) -> str:
    """A value of any kind, at times a call."""
    return expression(random, depth + 1) if depth < 2 and random.random() < 0.15 else random.choice(PLAIN)


def expression(random: Random, depth: int = 0) -> str:
    """A call of something: of an operation with as many values as it takes, or of anything with anything."""
    if random.random() < 0.6:
        operation = random.choice(list(BUILTINS.values()))
        count = operation.num_required + random.choice((0, 0, 0, 1))
        parts = [argument(random, depth) for _ in range(count)]
        for key in operation.keywords:
            if random.random() < 0.3:
                parts.append(f":{key} {argument(random, depth)}")
        return f"({' '.join([operation.name, *parts])})"
    head = random.choice((*EXPRESSIONS, *LIBRARY))
    return f"({' '.join([head, *(random.choice(VALUES) for _ in range(random.randrange(5)))])})"


@pytest.mark.parametrize("seed", range(4))
def test_values_of_every_kind_handed_to_everything(seed, tmp_path):
    write_data(tmp_path)
    path = tmp_path / "file.sx"
    random = Random(seed)
    for _ in range(60):
        text = (
            f"(defmetric loss (x y) (+ (mean x) {expression(random)})) (defgenerator g () {expression(random)}){TAIL}"
        )
        if random.random() < 0.2:
            text += f"(def constant {expression(random)})"
        path.write_text(text, encoding="utf-8", newline="\n")
        try:
            load_experiment(path)
        except DiagnosticError as error:
            assert render(error.diagnostics), text
