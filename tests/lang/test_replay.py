"""A call that is replayed leaves what evaluating it would have left: nodes, names, spans, storage, and mistakes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from sexpgpu.diagnostics import DiagnosticError, render
from sexpgpu.lang import elaborator as elaborators
from sexpgpu.lang import replay
from sexpgpu.lang.elaborator import Elaborator
from sexpgpu.lang.load import load_experiment
from tests.lang.described import described
from tests.lang.files import write_data
from tests.lang.long_file import long_file

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.sx"))
NUM_PROGRAMS = int(os.environ.get("SEXPGPU_REPLAY_PROGRAMS", "60"))


class Counted:
    """Elaborations of one file, with calls replayed and without, and what they found."""

    def __init__(self, path: Path, settings: Mapping[str, str] | None = None) -> None:
        self.path = path
        self.settings = settings
        self.num_replayed = 0

    def found(self, variant: str | None = None, *, replayed: bool = True) -> str:
        """The experiment or its diagnostics, and the work that it was."""
        made: list[Elaborator] = []

        def elaborator(specials: Mapping[str, Any]) -> Elaborator:
            made.append(Elaborator(specials))
            return made[0]

        with pytest.MonkeyPatch.context() as patch:
            again, holds = replay._Tape.replayed, replay._Key.holds

            def count(*arguments: Any) -> Any:
                self.num_replayed += 1
                return again(*arguments)

            patch.setattr(replay._Tape, "replayed", count)
            patch.setattr(replay._Key, "holds", holds if replayed else lambda *_: False)
            try:
                experiment = load_experiment(self.path, variant=variant, settings=self.settings, elaborator=elaborator)
                text = described(experiment)
            except DiagnosticError as error:
                text = render(error.diagnostics, "check")
        return f"{text}\nwork {made[0].work}, training read {made[0].world.training_reads} times"

    def same(self, variant: str | None = None) -> str:
        """What both elaborations found."""
        plain, replayed = self.found(variant, replayed=False), self.found(variant)
        assert replayed == plain
        return replayed


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], Counted]:
    """A file of a text, beside data."""
    write_data(tmp_path)

    def write(text: str) -> Counted:
        path = tmp_path / "a.sx"
        path.write_text(text, "utf-8")
        return Counted(path)

    return write


def net(body: str, before: str = "", tail: str = "") -> str:
    """A file whose model is `body` over `x` and `y`, of equal types."""
    return f"""{before}
(defmodel net (x y) {body})
(defmetric loss () (* (param own (f32) 1.0) (mean (square (net (ones (f32 4 3)) (full (f32 4 3) 2.0))))))
(defrun go :loss loss :optimizer (sgd :rate 0.1) :steps 10) {tail}
"""


# Programs.


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples(path: Path, tmp_path: Path) -> None:
    digits = tmp_path / "digits.npz"
    np.savez(digits, image=np.zeros((600, 64), np.float32), label=np.arange(600, dtype=np.int32) % 10)
    file = Counted(path, {"digits": str(digits)} if "digits.npz" in path.read_text("utf-8") else None)
    settings = load_experiment(path, settings=file.settings)
    for variant in (None, *settings.variants):
        file.same(variant)


def test_a_long_file(program: Callable[[str], Counted]) -> None:
    file = program(long_file(300))
    file.same()
    assert file.num_replayed > 100


# Conditions.

LAYER = '(defn layer (x :width 3 :init lecun) (product "b i, i o -> b o" x (param w (f32 (dim x 1) width) init)))'

BY = "(defn by (n) (fn (a) (* a n)))"
KINDS = {
    "two equal layers": (2, "(layer (layer x :name a) :name b)", LAYER),
    "draws of one path": (1, "(+ (noisy x) (noisy y))", "(defn noisy (x) (+ x (random-normal x)))"),
    "draws of two paths": (1, "(let [a (noisy x) b (noisy y)] (- a b))", "(defn noisy (x) (+ x (random-normal x)))"),
    "one tensor twice and two": (2, "(+ (f x x) (f x y) (f y x) (f y y))", "(defn f (a c) (* (exp a) (+ c a)))"),
    "what is asked for is an argument": (0, "(+ (f x (exp x)) (f y (exp x)) (f x (exp y)))",
                                         "(defn f (a c) (- (tanh (exp a)) c))"),
    "numbers of other kinds": (0, "(+ (f x 1) (f x 1.0) (f x 0.0) (f x -0.0) (f x 2))", "(defn f (a n) (* a n))"),
    "booleans and numbers": (0, "(+ (f x true) (f x 1))", "(defn f (a n) (if (= n 1) (exp a) (tanh a)))"),
    "closures over numbers": (1, "(+ (f x (by 2)) (f y (by 2)) (f x (by 3)))", BY + "(defn f (a g) (g (exp a)))"),
    "closures over tensors": (3, "(+ (f x (by y)) (f y (by x)) (f x (by x)) (f y (by y)))",
                              BY + "(defn f (a g) (g (exp a)))"),
    "a closure that is returned": (0, "(+ ((f x) y) ((f y) x))", "(defn f (a) (let [c (exp a)] (fn (d) (* c 2))))"),
    "vectors": (1, "(+ (f [x [y 1]]) (f [y [x 1]]) (f [x [y 2]]))", "(defn f (v) (let [[a [c n]] v] (* a c n)))"),
    "vectors out": (1, "(let [[a [c d]] (f x) [e [g h]] (f y)] (+ a c d e g h))", "(defn f (a) [a [(exp a) 3.0]])"),
    "an argument out": (1, "(+ (f x) (f y))", "(defn f (a) (let [_c (exp a)] a))"),
    "numbers of the step": (1, "(+ (f x (/ step 10)) (f y (/ step 10)) (f x step))", "(defn f (a n) (* a n))"),
    "tuples of tensors compared": (0, "(+ (f x x) (f y x) (f x y))",
                                   "(defn f (a c) (if (= [a] [c]) (exp a) (tanh c)))"),
    "closures compared": (0, "(+ (f x (by 1) (by 1)) (let [g (by 1)] (f x g g)))",
                          BY + "(defn f (a g h) (if (= g h) (exp a) (tanh a)))"),
    "with compute": (1, "(+ (with :compute bf16 (f x)) (with :compute bf16 (f y)) (f x))",
                     '(defn f (a) (sum (product "i j, k j -> i k" a a)))'),
    "with scope": (2, "(+ (with :scope one (layer x)) (with :scope two (layer y)))", LAYER),
    "training asked for": (2, "(+ (f x) (f y) (with :training false (f x)) (with :training false (f y)))",
                           "(defn f (a) (if training (exp a) (tanh a)))"),
    "training not asked for": (3, "(+ (f x) (f y) (with :training false (f x)) (with :training false (f y)))",
                               "(defn f (a) (exp a))"),
    "a gradient": (1, "(+ (f x) (f y))", "(defn f (a) (grad (fn (c) (sum (exp c))) a))"),
    "a loop": (0, "(+ (f x) (f y))", "(defn f (a) (scan [s (sum a :axis 0)] [r a] (* s r)))"),
    "recompute": (0, "(+ (f x) (f y))", "(defn f (a) (recompute (exp (tanh a))))"),
    "within a body": (1, "(recompute (+ (f x) (f y)))", "(defn f (a) (exp (tanh a)))"),
    "within and around a body": (2, "(+ (f x) (recompute (* (exp x) (f (exp y)) (f (tanh x)))))",
                                 "(defn f (a) (exp (tanh a)))"),
    "within two bodies": (1, "(recompute (* (exp y) (recompute (- (f x y :name a) (recompute (f y x :name c))))))",
                          "(defn f (a c) (* (exp c) (tanh a) step (random-normal a) (param w (f32 3) 1.0)))"),
    "within a loop": (2, "(scan [s x] [i 2] (* (f s) (f y) (f (exp s)) (f x) (cast i f32)))",
                      "(defn f (a) (* (exp a) step (random-normal a)))"),
    "measures": (0, "(+ (f x) (f y))", "(defn f (a) (let [c (exp a)] (measure size (mean c)) c))"),
    "states": (0, "(+ (f x :name one) (f y :name two))",
               "(defn f (a) (let [s (state seen (f32 3) 0.0)] (set-state s (mean a :axis 0)) (* a s)))"),
    "models within": (1, "(+ (f x) (f y))", "(defmodel other (a) (* a (param w (f32) 1.0))) (defn f (a) (other a))"),
    "warnings": (0, "(+ (f x) (f y))", '(defn f (a) (warning "look") (exp a))'),
}  # fmt: skip
"""How many calls are replayed; a model; what stands before it."""

MISTAKES = {
    "a name twice": ("(layer (layer x :name a) :name a)", LAYER),
    "a name twice within": ("(+ (f x :name a) (f y :name b) (f x :name a))",
                            "(defn f (a) (* a (param v (f32 3) 1.0)))"),
    "the root of another": ("(+ (f x :name a) (f y :name b) (* (param c.v (f32) 1.0) (f y :name (c v w))))",
                            "(defn f (a) (* a (param v (f32 3) 1.0)))"),
    "a parameter that is a state": ("(+ (f x :name a) (* (state b.v (f32 3) 0.0) (f y :name b)))",
                                    "(defn f (a) (* a (param v (f32 3) 1.0)))"),
    "another type elsewhere": ("(+ (other 2) (f x :name a) (f y :name b))",
        "(defmodel net (a) a) (defmodel other (n) (* 1.0 (sum (param b.v (f32 n) 0.0)))) "
        "(defn f (a) (* a (param v (f32 3) 1.0)))"),
    "two weights": ("(+ (g x (sum x)) (g y (sum x)))",
                    "(defn f (a c w) (let [_s (+ (weighted (mean a) w) (weighted (mean c) (sum c)))] a)) "
                    "(defn g (a w) (f a a w))"),
    "an error in the second": ("(+ (f x 3) (f y 3) (f x 2))", "(defn f (a n) (reshape a [4 n]))"),
    "a recursion": ("(f x 500)", "(defn f (a n) (if (= n 0) a (f (exp a) (- n 1))))"),
    "several": ("(let [a (f x) b (f a 1) c (f y 2) d (f q)] d)", "(defn f (a n) (* a n))"),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_what_may_be_replayed(kind: str, program: Callable[[str], Counted]) -> None:
    count, body, before = KINDS[kind]
    file = program(net(body, before))
    found = file.same()
    assert found.startswith("experiment."), found[:400]
    assert file.num_replayed == count, file.num_replayed


@pytest.mark.parametrize("kind", MISTAKES)
def test_mistakes_are_the_same(kind: str, program: Callable[[str], Counted]) -> None:
    assert program(net(*MISTAKES[kind])).same().startswith("sexpgpu check: E-")


def test_limits_are_the_same(program: Callable[[str], Counted], monkeypatch: pytest.MonkeyPatch) -> None:
    layers = net("(repeat [i 40] [x x] (layer x :name (layer i)))", LAYER)
    for limit in range(100, 900, 37):
        monkeypatch.setattr(elaborators, "MAX_WORK", limit)
        program(layers).same()
    monkeypatch.setattr(elaborators, "MAX_WORK", 10_000)
    down = net("(+ (f x 20) (g x 15))", "(defn f (a n) (if (= n 0) a (f a (- n 1)))) (defn g (a n) (f (f a n) n))")
    for depth in range(10, 30):
        monkeypatch.setattr(elaborators, "MAX_DEPTH", depth)
        program(down).same()


def test_averages_and_evaluations(program: Callable[[str], Counted]) -> None:
    text = net("(dropout (layer (layer x :name a) :name b) 0.5)", LAYER, """
(defaverage slow :over "net.a.*" :decay 0.9)
(defeval plain :batches 1 loss)
(defeval averaged :batches 1 :weights slow loss)""")  # fmt: skip
    file = program(text)
    assert "average" in file.same() or file.num_replayed
    assert file.num_replayed >= 5


def test_twelve_layers_evaluate_as_many_forms_as_two(
    program: Callable[[str], Counted], monkeypatch: pytest.MonkeyPatch
) -> None:
    count, evaluate = 0, Elaborator.eval

    def counted(*arguments: Any) -> Any:
        nonlocal count
        count += 1
        return evaluate(*arguments)

    monkeypatch.setattr(Elaborator, "eval", counted)
    text = (ROOT / "examples" / "gpt2.sx").read_text("utf-8")
    counts = []
    for layers in (2, 12):
        count = 0
        load_experiment(program(text.replace("(def layers 12)", f"(def layers {layers})")).path)
        counts.append(count)
    assert counts[1] - counts[0] < 10 * 20, counts  # a layer is some 500


def test_calls_that_all_differ_are_not_recorded_for_ever(program: Callable[[str], Counted]) -> None:
    made: list[Elaborator] = []
    text = net("(repeat [i 300] [x x] (f x (* 1.0 i)))", "(defn f (a n) (* (exp a) n))")
    load_experiment(program(text).path, elaborator=lambda specials: made.append(Elaborator(specials)) or made[0])
    assert len(made[0].replays._known) < replay.MAX_IN_VAIN + 20


# Random programs.


class Maker:
    """Programs of functions that call one another, with numbers, tensors and closures, storage and draws."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.functions: list[tuple[str, int, bool]] = []
        self.count = 0

    def text(self) -> str:
        before = "\n".join(self.function() for _ in range(self.random.randrange(2, 6)))
        body = self.expression(["x", "y"], [], 4)
        tail = "(defeval again :batches 1 loss)" if self.random.random() < 0.7 else ""
        return net(body, before, tail)

    def function(self) -> str:
        random, name = self.random, f"f{len(self.functions)}"
        tensors = ["a", "c"][: random.randrange(1, 3)]
        closure = random.random() < 0.3
        body = self.expression(tensors, ["n"], 3, "g" if closure else None)
        self.functions.append((name, len(tensors), closure))
        return f"(defn {name} ({' '.join(tensors)}{' g' if closure else ''} :n {self.number([])}) {body})"

    def number(self, names: list[str]) -> str:
        random = self.random
        if names and random.random() < 0.5:
            return random.choice(names)
        return random.choice(("0", "1", "2", "1.0", "-0.0", "0.5", "(+ 1 1)", "step"))

    def name(self) -> str:
        self.count += 1
        return self.random.choice((f"p{self.count}", "same", f"(block {self.random.randrange(3)})"))

    def expression(self, tensors: list[str], numbers: list[str], depth: int, closure: str | None = None) -> str:
        random = self.random
        if depth == 0 or random.random() < 0.1:
            return random.choice(tensors)

        def inner(more: tuple[str, ...] = ()) -> str:
            return self.expression([*tensors, *more], numbers, depth - 1, closure)

        match random.randrange(17):
            case 0 | 1:
                return f"({random.choice(('exp', 'tanh', 'square', 'relu'))} {inner()})"
            case 2:
                return f"({random.choice(('+', '*', '-', 'maximum'))} {inner()} {inner()})"
            case 3:
                return f"(* {inner()} {self.number(numbers)})"
            case 4 | 5:
                local = f"t{depth}"
                return f"(let [{local} {inner()}] {inner((local,))})"
            case 6:
                return f"(* {inner()} (param {random.choice(('w', f'w{self.count}'))} (f32 3) {self.initial()}))"
            case 7:
                return f"(+ {inner()} (random-normal {inner()}))"
            case 8:
                return f"(if training {inner()} {inner()})"
            case 9:
                return f"(repeat [i {random.randrange(1, 4)}] [r {inner()}] {inner(('r',))})"
            case 10:
                form = f"(with :training false {inner()})", f"(with :scope s{depth} {inner()})"
                return random.choice((*form, f"(recompute {inner()})"))
            case 12:
                return f"(scan [s {inner()}] [i 2] {inner(('s',))})"
            case 11 if closure is not None:
                return f"({closure} {inner()})"
            case 11:
                return f"(dropout {inner()} 0.5)"
        if not self.functions:
            return inner()
        name, count, takes = random.choice(self.functions)
        given = " ".join(inner() for _ in range(count))
        function = f" (fn (z) {inner(('z',))})" if takes else ""
        key = f" :n {self.number(numbers)}" if random.random() < 0.5 else ""
        path = f" :name {self.name()}" if random.random() < 0.7 else ""
        return f"({name} {given}{function}{key}{path})"

    def initial(self) -> str:
        return self.random.choice(("1.0", "(normal 0.02)", "(normal 0.1)", "zeros", "(fn (t) (random-uniform t))"))


@pytest.mark.parametrize("stretch", range(4))
def test_random_programs(stretch: int, program: Callable[[str], Counted]) -> None:
    good = num_replayed = 0
    for seed in range(stretch * NUM_PROGRAMS, (stretch + 1) * NUM_PROGRAMS):
        file = program(Maker(seed).text())
        good += file.same().startswith("experiment.")
        num_replayed += file.num_replayed
    assert good > 0.2 * NUM_PROGRAMS, good
    assert num_replayed > NUM_PROGRAMS, num_replayed
