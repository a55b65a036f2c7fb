"""`include`: names resolve where they are written, mistakes point into the file, cycles are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sexpgpu.diagnostics import Diagnostic, DiagnosticError, render
from sexpgpu.lang.experiment import Experiment
from sexpgpu.lang.load import load_experiment

RUN = "(defrun go :loss loss :optimizer (sgd :rate 0.1) :steps 1)\n"


def load(folder: Path, files: dict[str, str], **options) -> Experiment:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, "utf-8")
    return load_experiment(folder / "main.sx", **options)


def faults(folder: Path, files: dict[str, str]) -> tuple[Diagnostic, ...]:
    with pytest.raises(DiagnosticError) as caught:
        load(folder, files)
    return caught.value.diagnostics


LIBRARY = """
(def width 3)
(def double (* 2 width))
(defn relu (x) (* x 0.0))
(defn half (x) (* 0.5 x))
(defmodel net () (sum (half (relu (param w (f32 double) 1.0)))))
(defn unused (x) x)
"""


def test_its_names_are_known_and_resolve_there(tmp_path: Path) -> None:
    loss = "(defmetric loss () (+ (net) (half (sum (param v (f32 width) 1.0)))))\n"
    main = f'(include "parts/lib.sx")\n(defn half (x) x)\n{loss}'
    (fault,) = faults(tmp_path, {"main.sx": main + RUN, "parts/lib.sx": LIBRARY})
    assert fault.code == "E-NAME-002" and fault.labels[0].span.source.name.endswith("lib.sx")
    main = main.replace("(defn half (x) x)\n", '(defn gelu (x) (if true (error "mine") x))\n')
    lib = LIBRARY.replace("(half (relu", "(half (gelu")
    experiment = load(tmp_path, {"main.sx": main + RUN, "parts/lib.sx": lib})
    assert experiment.parameters["net.w"].type.shape == (6,)
    assert experiment.included == {"parts/lib.sx": lib}
    assert not experiment.warnings  # what a file of functions has beyond need is no mistake


def test_constants_follow_settings_and_variants(tmp_path: Path) -> None:
    main = '(include "lib.sx")\n(def two 2)\n(defvariant big (width (* two 5)))\n(defmetric loss () (net))\n' + RUN
    files = {"main.sx": main, "lib.sx": LIBRARY}
    assert load(tmp_path, files).parameters["net.w"].type.shape == (6,)
    assert load(tmp_path, files, settings={"width": "4"}).parameters["net.w"].type.shape == (8,)
    assert load(tmp_path, files, variant="big").parameters["net.w"].type.shape == (20,)


def test_forms_of_every_kind(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.ones((4, 3), np.float32))
    (tmp_path / "lib").mkdir()
    (tmp_path / "x.npz").rename(tmp_path / "lib" / "x.npz")
    lib = """
(defdata d (arrays "x.npz"))
(def size 2)
(defloader train (rows d) :batch size)
(defn sgd (a) (error "not the optimizer"))
(defmetric loss (x) (mean (linear x 1)))
(defeval look :loader train :batches size loss)
(defgenerator show (:n size) (zeros (f32 n)))
(defaverage slow :decay 0.9)
(defdiagnostic big (p g new) (norm p))
"""
    main = '(include "lib/all.sx")\n' + RUN.replace("sgd", "adam").replace(":loss", ":diagnose big :loader train :loss")
    experiment = load(tmp_path, {"main.sx": main, "lib/all.sx": lib})
    assert experiment.loaders["train"].batches_per_epoch == 2
    assert experiment.evaluations.keys() == {"look"} and experiment.generators.keys() == {"show"}


def test_a_file_included_twice_is_read_once(tmp_path: Path) -> None:
    files = {
        "main.sx": '(include "a.sx")\n(include "b.sx")\n(defmetric loss () (+ (f) (g)))\n' + RUN,
        "a.sx": '(include "c.sx")\n(defn f () (sum (param a (f32 n) 1.0)))\n',
        "b.sx": '(include "./c.sx")\n(defn g () (sum (param b (f32 n) 1.0)))\n',
        "c.sx": "(def n 5)\n",
    }
    assert load(tmp_path, files).num_parameters == 10


def test_cycles(tmp_path: Path) -> None:
    files = {
        "main.sx": '(include "a.sx")\n(defmetric loss () (square (param w (f32) 1.0)))\n' + RUN,
        "a.sx": '(include "main.sx")\n',
    }
    (fault,) = faults(tmp_path, files)
    assert fault.code == "E-FORM-002" and "main.sx includes a.sx includes main.sx" in fault.message
    assert fault.span is not None and fault.span.source.name.endswith("a.sx")


def test_mistakes_point_into_the_file(tmp_path: Path) -> None:
    main = '(include "lib.sx")\n(defmetric loss () (square (sum (f))))\n' + RUN
    (fault,) = faults(tmp_path, {"main.sx": main, "lib.sx": "(defn f () (param w (f32 3) one))\n"})
    assert fault.code == "E-NAME-001" and fault.span is not None and fault.span.source.name.endswith("lib.sx")
    assert "lib.sx:1:29" in render([fault], "check")
    (fault,) = faults(tmp_path, {"main.sx": main, "lib.sx": "(defn f () (param w (f32 3) 1.0)\n"})
    assert fault.code.startswith("E-READ") and fault.span is not None and fault.span.source.name.endswith("lib.sx")
    (tmp_path / "lib.sx").unlink()
    (fault,) = faults(tmp_path, {"main.sx": main})
    assert fault.code == "E-READ-001" and fault.span is not None and fault.span.source.name.endswith("main.sx")
    alone = "(defmetric loss () (square (param w (f32) 1.0)))\n" + RUN
    (fault,) = faults(tmp_path, {"main.sx": "(include lib)\n" + alone})
    assert fault.code == "E-FORM-001"
