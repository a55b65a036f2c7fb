"""`sexpgpu verify` as a user calls it: the report, the JSON, the exit status."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from sexpgpu.cli.main import main
from sexpgpu.ir.opdef import OPS

TEXT = """
(def width 8)
(defvariant smoke (width 4))
(defmodel net ((x (f32 _ 3)))
  (linear (tanh (linear x width :name up)) 2 :name out))
(defmetric loss () (mean (square (net (random-normal (f32 5 3))))))
(defeval look :batches 2 loss)
(defrun go :loss loss :steps 3 :seed 1 :optimizer (adam :rate 1e-2))
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("net.sx").write_text(TEXT, "utf-8")
    return "net.sx"


@pytest.fixture
def wrong_tanh(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cpu device takes the tangent for the hyperbolic one."""
    monkeypatch.setitem(OPS, "tanh", replace(OPS["tanh"], ufunc=np.tan))


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["verify", *arguments], catch_exceptions=False)


def test_a_good_device(file: str) -> None:
    result = invoke(file)
    assert result.exit_code == 0 and result.stderr == ""
    lines = result.output.splitlines()
    assert lines[0].startswith("verify: cpu ") and all(len(line) <= 80 for line in lines)
    assert lines[-1].endswith(" values: all within their bounds")
    rows = {line.split()[0]: line.split()[1:] for line in lines[1:]}
    assert {"tanh", "product", "update.go.first", "update.go.commit", "eval.look.0", "initialise"} <= rows.keys()
    assert int(rows["tanh"][0]) == 2, "one in the step, one in the evaluation"


@pytest.mark.usefixtures("wrong_tanh")
def test_a_wrong_kernel(file: str) -> None:
    result = invoke(file, "--kernels")
    assert result.exit_code == 1
    lines = result.output.splitlines()
    assert all(len(line) <= 80 for line in lines)
    marked = [line.split()[0] for line in lines if line.endswith(" BROKEN")]
    assert marked.count("tanh") >= 3, "among the samples, among the operations, among the worst"
    assert "product" not in marked and "update.go.first" in marked
    assert any("net.sx:5" in line for line in lines)
    assert "BREAK their bounds" in lines[-1]


def test_json_variants_and_settings(file: str) -> None:
    found = json.loads(invoke(file, "--variant", "smoke", "--json").output)
    assert found["device"] == "cpu" and found["file"] == file and found["broken"] == 0 and found["stopped"] is None
    assert found["samples"] == [] and found["bounds"]["operation"]["f32"] == 3e-5
    (tanh,) = [each for each in found["operations"] if each["operation"] == "tanh" and each["phase"] == "eval.look.0"]
    assert tanh["type"] == "(f32 5 4)" and tanh["place"] == "net.sx:5" and not tanh["broken"]
    found = json.loads(invoke(file, "--set", "width=6", "--json", "--kernels").output)
    assert "(f32 5 6)" in {each["type"] for each in found["operations"]}
    assert {each["operation"] for each in found["samples"]} == {name for name, op in OPS.items() if op.samples}


def test_what_is_not_finite_is_json(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPS, "tanh", replace(OPS["tanh"], ufunc=np.log))
    result = invoke(file, "--json")
    found = json.loads(result.stdout, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert result.exit_code == 1 and "not finite" in found["stopped"]
    assert "sexpgpu verify: E-RUN-001" in result.stderr
    assert found["missed"] == [], "the step is refused after all of its phases were called"
    assert None in {each["relative"] for each in found["operations"] if each["operation"] == "tanh"}


def test_kernels_alone() -> None:
    result = invoke("--kernels")
    assert result.exit_code == 0 and "operations of the file" not in result.output
    assert result.output.splitlines()[-1].endswith("all within their bounds")


def test_what_is_refused(file: str) -> None:
    assert invoke().exit_code == 2 and "--kernels" in invoke().output
    assert invoke(file, "--device", "metal").exit_code == 1
    assert "E-DEV-002" in invoke(file, "--device", "metal").stderr
    assert "E-NAME-004" in invoke(file, "--set", "depth=3").stderr


def test_phases_that_fail_are_named(file: str) -> None:
    Path(file).write_text(TEXT + "(defgenerator bad () (gather (zeros (f32 3)) (+ (iota (i32 2)) 3)))", "utf-8")
    result = invoke(file)
    assert result.exit_code == 1 and "sexpgpu verify: E-RUN-003" in result.stderr
    assert "  not compared: generate.bad.start" in result.output.splitlines()
    assert "all within their bounds" in result.output
