"""No slip of the hand ends in anything but a diagnostic: mutants of the acceptance files, and values of every kind
handed to every operation."""

import shutil
import subprocess
import sys
from random import Random

import pytest

from sexpgpu.diagnostics import DiagnosticError, render
from sexpgpu.lang.builtins import BUILTINS
from sexpgpu.lang.load import load_experiment
from sexpgpu.lang.special import SPECIALS
from tests.lang.files import write_data
from tests.lang.mutants import mutant
from tests.lang.test_errors import TAIL

EXPERIMENTS = ("01-linear", "02-char", "04-resnet", "06-vae", "13-contrastive", "14-seq2seq", "17-diagnostics")
NUM_MUTANTS = 22
"""Mutants of each file in the test command."""
MIN_ON_THE_LINE = 0.75
"""The share of errors that point at the mutated line, in their place or in a label."""


@pytest.fixture(scope="module")
def experiments(shared, tmp_path_factory):
    """A folder with the acceptance files and their data."""
    source = shared / "experiments"
    if not source.is_dir():
        pytest.skip("there are no acceptance files")
    folder = tmp_path_factory.mktemp("experiments")
    shutil.copy(source / "make_data.py", folder)
    subprocess.run([sys.executable, "make_data.py"], cwd=folder, check=True)
    for name in EXPERIMENTS:
        shutil.copy(source / f"{name}.sx", folder)
    return folder


def lines_of(error: DiagnosticError) -> set[int]:
    """The lines that an error points at."""
    spans = [d.span for d in error.diagnostics] + [label.span for d in error.diagnostics for label in d.labels]
    return {span.line for span in spans if span is not None}


def test_the_files_as_they_are(experiments):
    for name in EXPERIMENTS:
        assert load_experiment(experiments / f"{name}.sx").num_parameters


def test_mutants_end_in_diagnostics_on_their_line(experiments):
    hits = errors = 0
    for name in EXPERIMENTS:
        text = (experiments / f"{name}.sx").read_text("utf-8")
        for number in range(NUM_MUTANTS):
            slip = mutant(text, Random(f"{name} {number}"))
            path = experiments / "mutant.sx"
            path.write_text(slip.text, encoding="utf-8", newline="\n")
            try:
                load_experiment(path)
            except DiagnosticError as error:
                assert render(error.diagnostics), slip.what
                errors += 1
                hits += slip.line in lines_of(error)
    assert errors > 100
    assert hits / errors >= MIN_ON_THE_LINE, (hits, errors)


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
    head = random.choice((*SPECIALS, *LIBRARY))
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
