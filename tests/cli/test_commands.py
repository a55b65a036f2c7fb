"""Every command as a user calls it: what it prints, how it refuses, with what status it ends."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from safetensors.numpy import load_file

from sexpgpu.backend.registry import open_device
from sexpgpu.cli import generate
from sexpgpu.cli.main import COMMANDS, main
from sexpgpu.diagnostics import DiagnosticError
from sexpgpu.ir.opdef import OPS
from sexpgpu.syntax import load_source, read
from sexpgpu.train.metrics import read_metrics

CHECKOUT = Path(__file__).resolve().parents[2]
TEXT = """
(def steps 6) (def width 8)
(defvariant smoke (steps 2) (width 4))
(defdata letters (text "letters.txt" :by characters))
(defmodel lm ((tokens (i32 _ _)))
  (let [x (embed (param wte (f32 (vocabulary letters) width) (normal 0.1)) tokens)]
    (linear (tanh (linear x width :name up)) (vocabulary letters) :name out)))
(defloader train (windows letters :length 8) :batch 4 :shuffle true)
(defmetric nll (tokens targets)
  (let [logits (lm tokens)]
    (measure accuracy (mean (cast (= (argmax logits :axis -1) targets) f32)))
    (mean (cross-entropy logits targets))))
(defeval look :loader train :batches 3 nll)
(defeval peek :loader train :batches 1 nll)
(defgenerator story (:prompt (encode letters "ab") :heat 0.8 :length 5)
  :show letters
  :trips [t length]
  :carry [last (gather prompt (- (dim prompt 0) 1))]
  (let [token (gather (gather (categorical (/ (lm (reshape last [1 1])) heat)) 0) 0)]
    (next :last token :emit token)))
(defgenerator numbers (:scale 1.0) (* scale (random-normal (f32 2))))
(defrun go :loader train :loss nll :clip 1.0 :steps steps :seed 1 :optimizer (adamw :rate 1e-2)
  :evaluate (every 2 look) :generate (every 3 story) :checkpoint (every 2))
"""
LETTERS = "".join(np.random.default_rng(0).choice(list("abcdef \n"), 600))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An experiment, and the working directory."""
    (tmp_path / "lm.sx").write_text(TEXT)
    (tmp_path / "letters.txt").write_text(LETTERS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run of the experiment."""
    made = tmp_path_factory.mktemp("trained")
    (made / "lm.sx").write_text(TEXT)
    (made / "letters.txt").write_text(LETTERS)
    before = Path.cwd()
    os.chdir(made)
    try:
        assert invoke("run", "lm.sx").exit_code == 0
    finally:
        os.chdir(before)
    return made


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, catch_exceptions=False)


def process(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sexpgpu", *arguments],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT), **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


def refused(code: str, *arguments: str) -> str:
    """The message of a command that ends with status 1 and one coded error on standard error."""
    result = invoke(*arguments)
    assert result.exit_code == 1, result.output
    head = result.stderr.splitlines()[0]
    assert head.startswith(f"sexpgpu {arguments[0]}: {code}: "), result.output
    return result.stderr


# --- the group ----------------------------------------------------------------------------------------------


def test_help_lists_every_command_within_80_columns() -> None:
    for arguments in (["--help"], ["-h"], *([name, "--help"] for name in COMMANDS)):
        result = invoke(*arguments)
        assert result.exit_code == 0
        assert all(len(line) <= 80 for line in result.output.splitlines()), result.output
    shown = invoke("--help").output
    assert all(name in shown for name in COMMANDS)


def test_the_version_and_unknown_commands() -> None:
    assert invoke("--version").output.startswith("sexpgpu, version ")
    result = invoke("trian", "x.sx")
    assert result.exit_code == 2 and "No such command 'trian'" in result.output
    assert invoke("run").exit_code == 2


# --- check --------------------------------------------------------------------------------------------------


def test_check_looks_at_every_variant(folder: Path) -> None:
    result = invoke("check", "lm.sx")
    assert result.exit_code == 0
    assert result.output == "lm.sx: good (plain, smoke): 208 parameters in 5 tensors\n"
    assert "(smoke): 92 parameters" in invoke("check", "lm.sx", "--variant", "smoke").output
    assert "536 parameters" in invoke("check", "lm.sx", "--set", "width=16").output
    (folder / "lm.sx").write_text(TEXT.replace("(width 4)", "(width -4)"))
    assert "in the variant `smoke`" in refused("E-TYPE-006", "check", "lm.sx")


def test_a_mistake_is_told_in_three_formats(folder: Path) -> None:
    (folder / "lm.sx").write_text(TEXT.replace("(tanh (linear", "(tahn (linear"))
    full = refused("E-NAME-001", "check", "lm.sx")
    assert "--> lm.sx:7:" in full and "`tanh`" in full
    concise = invoke("check", "lm.sx", "--format", "concise")
    assert concise.exit_code == 1 and concise.output.startswith("lm.sx:7:") and concise.output.count("\n") == 1
    record = json.loads(invoke("check", "lm.sx", "--format", "json").output)
    assert "E-NAME-001" in json.dumps(record)


def test_a_loss_without_a_gradient_is_found_by_every_command(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPS, "erf", replace(OPS["erf"], gradient=None))
    for name, text in (
        ("plain", TEXT.replace("(tanh (linear", "(erf (linear")),
        ("variant", TEXT.replace("(tanh (linear", "((if (= width 4) erf tanh) (linear")),
    ):
        (folder / "lm.sx").write_text(text)
        assert "`erf` has no gradient" in refused("E-TYPE-009", "check", "lm.sx")
        for command in ("run", "ir", "evaluate", "generate"):
            arguments = [command, "lm.sx"] if name == "plain" else [command, "lm.sx", "--variant", "smoke"]
            assert "--> lm.sx:7:" in refused("E-TYPE-009", *arguments)


def test_printed_forms_are_read_back(folder: Path) -> None:
    result = invoke("check", "lm.sx", "--print", "forms")
    assert result.exit_code == 0
    (folder / "again.sx").write_text(result.output)
    again = read(load_source(folder / "again.sx"))
    assert not again.diagnostics and len(again.forms) == len(read(load_source(folder / "lm.sx")).forms)
    assert invoke("check", "again.sx", "--print", "forms").output == result.output


def test_printed_graphs_are_graphs(folder: Path) -> None:
    from sexpgpu.ir.text import graph_text, parse_graph

    result = invoke("check", "lm.sx", "--print", "graph")
    assert result.exit_code == 0 and graph_text(parse_graph(result.output)) + "\n" == result.output


# --- ir -----------------------------------------------------------------------------------------------------


def test_ir_is_the_same_whatever_the_device(folder: Path) -> None:
    first = process("ir", "lm.sx", PYTHONHASHSEED="1")
    second = process("ir", "lm.sx", SEXPGPU_DEVICE="cuda", PYTHONHASHSEED="2")
    assert first.returncode == second.returncode == 0 and first.stdout == second.stdout
    assert first.stdout.startswith("(program") and str(folder) not in first.stdout
    only = invoke("ir", "lm.sx", "--phase", "update.go.commit")
    assert only.exit_code == 0 and only.output.startswith('(graph "update.go.commit"')
    message = refused("E-RUN-005", "ir", "lm.sx", "--phase", "update.go.comit")
    assert "`update.go.commit`" in message


def test_ir_into_a_closed_pipe(folder: Path) -> None:
    command = f"{sys.executable} -m sexpgpu ir lm.sx | head -n 1"
    found = subprocess.run(
        command, shell=True, env={**os.environ, "PYTHONPATH": str(CHECKOUT)}, capture_output=True, text=True
    )
    assert found.stdout.startswith("(program") and "Traceback" not in found.stderr and "Exception" not in found.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no full device")
@pytest.mark.parametrize("command", ["ir", "check", "run"])
def test_an_output_that_is_full(folder: Path, command: str) -> None:
    with open("/dev/full", "w") as full:
        found = subprocess.run(
            [sys.executable, "-m", "sexpgpu", command, "lm.sx"],
            env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert found.returncode == 1
    assert found.stderr == f"sexpgpu {command}: E-IO-001: cannot write the output: no space left on device\n"


def test_a_narrow_encoding_and_an_odd_name(folder: Path) -> None:
    (folder / "letters.txt").write_text(LETTERS.replace("a", "ä"), "utf-8")
    (folder / "lm.sx").rename(os.fsdecode(b"l\xff.sx"))
    (folder / os.fsdecode(b"l\xff.sx")).write_text(TEXT.replace('"ab"', '"äb"'), "utf-8")
    found = process("run", os.fsdecode(b"l\xff.sx"), PYTHONIOENCODING="ascii")
    assert found.returncode == 0 and "\\xe4b" in found.stdout
    found = process("generate", os.fsdecode(b"l\xff.sx"), "--only", "story", PYTHONIOENCODING="ascii")
    assert found.returncode == 0 and found.stdout.startswith("\\xe4b"), found.stderr
    found = process("check", os.fsdecode(b"n\xff.sx"))
    assert found.returncode == 1 and found.stderr.startswith("sexpgpu check: E-READ-001")


# --- run ----------------------------------------------------------------------------------------------------


def test_a_run_tells_what_it_does(folder: Path) -> None:
    result = invoke("run", "lm.sx")
    assert result.exit_code == 0 and result.stderr == ""
    lines = result.output.splitlines()
    assert lines[0] == "lm.sx: 208 parameters in 5 tensors"
    assert lines[1].startswith("lowering: cpu ")
    assert any(line.startswith("  memory ") for line in lines) and any(line.startswith("  stacking ") for line in lines)
    assert "run: runs/lm, 6 steps" in lines
    assert any(line.startswith("step 6/6  loss ") for line in lines)
    assert any("look: nll " in line for line in lines)
    assert lines[-1].startswith("memory: peak ") and " planned (" in lines[-1]
    assert invoke("run", "lm.sx").output.count("run: runs/lm-2, 6 steps") == 1
    assert sorted(p.name for p in (folder / "runs").iterdir()) == ["lm", "lm-2"]


def test_a_quiet_run_says_nothing(folder: Path) -> None:
    result = invoke("run", "lm.sx", "--variant", "smoke", "--quiet")
    assert (result.exit_code, result.output, result.stderr) == (0, "", "")


def test_steps_and_out(folder: Path) -> None:
    assert invoke("run", "lm.sx", "--steps", "3", "--out", "deep/er/here").exit_code == 0
    assert [s for s, _ in read_metrics(folder / "deep/er/here/metrics.jsonl")["train/loss"]] == [1, 2, 3]
    assert "6 steps" in invoke("run", "lm.sx", "--steps", "100").output
    assert "E-IO-002" in refused("E-IO-002", "run", "lm.sx", "--out", "deep/er/here")
    for steps in ("0", "-3", "many", "1.5"):
        result = invoke("run", "lm.sx", "--steps", steps)
        assert result.exit_code == 2 and "--steps" in result.output


def test_a_folder_without_a_checkpoint_says_what_to_do(folder: Path) -> None:
    (folder / "here").mkdir()
    (folder / "here" / "metrics.jsonl").write_text("")
    assert "remove the folder" in refused("E-IO-002", "run", "lm.sx", "--out", "here")


def test_an_out_that_cannot_be_made(folder: Path) -> None:
    refused("E-IO-001", "run", "lm.sx", "--out", "letters.txt/run")


def test_a_name_with_brackets_is_shown_as_it_is(folder: Path) -> None:
    shutil.copy("lm.sx", "a[bold]b.sx")
    result = invoke("run", "a[bold]b.sx", "--variant", "smoke")
    assert result.exit_code == 0 and "a[bold]b.sx: 92 parameters" in result.output
    assert "run: runs/a[bold]b, 2 steps" in result.output


# --- choosing a device, memory ------------------------------------------------------------------------------


def test_devices_that_are_not_here(folder: Path) -> None:
    for name in ("metal", "cuda"):
        with suppress(DiagnosticError):
            open_device(name)
            continue  # this machine has one
        message = refused("E-DEV-002", "run", "lm.sx", "--device", name)
        assert f"`{name}`" in message and "`cpu`" in message
    assert "`cuda`" in refused("E-DEV-001", "run", "lm.sx", "--device", "cudo")
    assert not (folder / "runs").exists(), "refused before there is a folder"


def test_the_flag_wins_over_the_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setenv("SEXPGPU_DEVICE", "metal")
    refused("E-DEV-002", "run", "lm.sx", "--variant", "smoke")
    assert invoke("run", "lm.sx", "--variant", "smoke", "--device", "cpu").exit_code == 0
    monkeypatch.setenv("SEXPGPU_DEVICE", "")
    assert invoke("run", "lm.sx", "--variant", "smoke").exit_code == 0


def test_memory_that_does_not_suffice(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEXPGPU_MEMORY", "1MiB")
    message = refused("E-MEM-001", "run", "lm.sx", "--set", "width=4000")
    assert "parameters" in message and "optimizer states" in message
    assert not (folder / "runs").exists(), "before any step, and before there is a folder"
    monkeypatch.setenv("SEXPGPU_MEMORY", "2GiB")
    result = invoke("run", "lm.sx", "--variant", "smoke")
    assert result.exit_code == 0 and "of 2.0 GiB free" in result.output
    monkeypatch.setenv("SEXPGPU_MEMORY", "much")
    refused("E-DEV-003", "run", "lm.sx")


@pytest.mark.parametrize("name", ["false", "true", "no-such-compiler"])
def test_a_compiler_that_is_of_no_use(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run goes on without kernels, says so in one line, and ends with the numbers of the interpreter."""
    assert invoke("run", "lm.sx", "--variant", "smoke", "--out", "plain").exit_code == 0
    monkeypatch.delenv("SEXPGPU_CPU")
    monkeypatch.setenv("SEXPGPU_CC", name)
    result = invoke("run", "lm.sx", "--variant", "smoke", "--out", "without")
    assert result.exit_code == 0
    warnings = [line for line in result.stderr.splitlines() if line.startswith("sexpgpu run: W-")]
    assert len(warnings) == 1 and warnings[0].startswith("sexpgpu run: W-DEV-001: the C compiler made no kernels: ")
    losses = [read_metrics(folder / out / "metrics.jsonl")["train/loss"] for out in ("plain", "without")]
    assert losses[0] == losses[1]


def test_a_tensor_beyond_the_machine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A budget that nothing has lets the plan through; the machine then refuses, before the first step.

    The process is given a limit, as some machines promise more memory than they have.
    """
    monkeypatch.setenv("SEXPGPU_MEMORY", "100000000GiB")
    monkeypatch.setenv("PYTHONPATH", str(CHECKOUT))
    text = "(defmetric loss () (mean (square (param x (f32 400000 400000) 1.0))))"
    (folder / "big.sx").write_text(f"{text}\n(defrun go :loss loss :optimizer (sgd :rate 0.1) :steps 3)\n")
    limited = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 33, 1 << 33)); "
        "from sexpgpu.cli.main import main; main(['run', 'big.sx', '--quiet'])"
    )
    done = subprocess.run([sys.executable, "-c", limited], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stderr.startswith("sexpgpu run: E-MEM-004: the machine refused memory")
    assert "parameters 596.0 GiB" in done.stderr and "largest graph's live set" in done.stderr
    assert not (folder / "runs/big/metrics.jsonl").exists(), "before the first step"


def test_the_annotation_of_memory_has_its_parts(trained: Path) -> None:
    records = [json.loads(line) for line in (trained / "runs/lm/metrics.jsonl").read_text().splitlines()]
    before, after = [r for r in records if r.get("annotation") == "memory"]
    assert before["parameters_bytes"] > 0 and before["planned_bytes"] >= before["parameters_bytes"]
    assert (before["step"], after["step"]) == (1, 6) and after["planned_bytes"] == before["planned_bytes"]


# --- overrides ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["check", "ir", "run", "evaluate", "generate"])
def test_overrides_of_what_is_not_there(folder: Path, command: str) -> None:
    assert "`width`" in refused("E-NAME-004", command, "lm.sx", "--set", "widht=3")
    assert "--set NAME=VALUE" in refused("E-NAME-004", command, "lm.sx", "--set", "width")
    assert "`smoke`" in refused("E-NAME-003", command, "lm.sx", "--variant", "smok")
    refused("E-RUN-005", command, "lm.sx", "--run", "went")


def test_odd_values_of_overrides(folder: Path) -> None:
    for setting in (
        "width=",
        "width=(",
        "width=)",
        "width=1 2",
        "width=-3",
        "width=1.5",
        "width=nope",
        "=3",
        "width=(+ 1",
        'width="',
    ):
        result = invoke("check", "lm.sx", "--set", setting)
        assert result.exit_code == 1 and "E-" in result.stderr, setting
    assert invoke("check", "lm.sx", "--set", "width=(* 2 8)").exit_code == 0


# --- files that are none ------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["check", "ir", "run", "evaluate", "generate"])
def test_files_that_cannot_be_read(folder: Path, command: str) -> None:
    assert "`lm.sx`" in refused("E-READ-001", command, "ml.sx")
    assert "folder" in refused("E-READ-001", command, str(folder))
    refused("E-READ-001", command, "lm.sx/more")
    (folder / "binary.sx").write_bytes(bytes(range(128, 256)) * 8)
    refused("E-READ-002", command, "binary.sx")
    (folder / "zeros.sx").write_bytes(bytes(64))
    assert invoke(command, "zeros.sx").exit_code == 1
    (folder / "empty.sx").write_text("")
    refused("E-RUN-004", command, "empty.sx")
    (folder / "open.sx").write_text("(defrun")
    assert invoke(command, "open.sx").exit_code == 1
    (folder / "deep.sx").write_text("(" * 100_000)
    assert invoke(command, "deep.sx").exit_code == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission(folder: Path) -> None:
    (folder / "lm.sx").chmod(0)
    refused("E-READ-001", "check", "lm.sx")


def test_data_that_is_missing(folder: Path) -> None:
    (folder / "letters.txt").unlink()
    for command in ("check", "run"):
        refused("E-DATA-001", command, "lm.sx")


def test_no_traceback_from_a_process(folder: Path) -> None:
    for arguments in (
        ["check", "."],
        ["run", "gone.sx"],
        ["run", "lm.sx", "--resume", "gone"],
        ["check", "lm.sx", "--set", "width=("],
    ):
        found = process(*arguments)
        assert found.returncode == 1 and found.stderr.startswith(f"sexpgpu {arguments[0]}: E-")
        assert "Traceback" not in found.stderr and found.stdout == ""


# --- evaluate -----------------------------------------------------------------------------------------------


def test_evaluate(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained)
    result = invoke("evaluate", "lm.sx")
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert lines[0] == "step 6" and [line.split()[0] for line in lines[1:]] == [
        "look/nll",
        "look/accuracy",
        "peek/nll",
        "peek/accuracy",
    ]
    assert all(len(line) <= 80 for line in lines)
    value = read_metrics(trained / "runs/lm/metrics.jsonl")["eval/look/nll"][-1][1]
    assert float(lines[1].split()[1]) == pytest.approx(value, rel=1e-5)
    only = invoke("evaluate", "lm.sx", "--only", "look", "--checkpoint", "runs/lm/checkpoints/step-00000004")
    assert only.output.splitlines()[0] == "step 4" and "peek" not in only.output
    assert "`look`" in refused("E-RUN-005", "evaluate", "lm.sx", "--only", "lok")
    refused("E-CKPT-001", "evaluate", "lm.sx", "--checkpoint", "runs/gone")
    refused("E-CKPT-003", "evaluate", "lm.sx", "--set", "width=9")
    assert invoke("evaluate", "lm.sx", "--set", "steps=9").exit_code == 0, "what it reads is the same"


def test_evaluate_without_a_run_or_an_evaluation(folder: Path) -> None:
    for command in ("evaluate", "generate"):
        message = refused("E-CKPT-001", command, "lm.sx", *(["--only", "story"] if command == "generate" else []))
        assert "train first" in message and "--checkpoint PATH" in message and "--resume" not in message
    assert "without --resume" in refused("E-CKPT-001", "run", "lm.sx", "--resume", "latest")
    text = TEXT.replace("(defeval look", "#;(defeval look").replace("(defeval peek", "#;(defeval peek")
    (folder / "lm.sx").write_text(text.replace(":evaluate (every 2 look)", ""))
    assert "no `defeval`" in refused("E-RUN-005", "evaluate", "lm.sx")


def test_first_values_stand_in_for_a_checkpoint(folder: Path) -> None:
    first = invoke("evaluate", "lm.sx", "--checkpoint", "initial", "--only", "look")
    assert first.exit_code == 0 and first.output.splitlines()[0] == "step 0"
    assert float(first.output.split()[3]) == pytest.approx(np.log(8), abs=0.2), "nothing is learned yet"
    said = invoke("generate", "lm.sx", "--checkpoint", "initial", "--only", "story", "--length", "3")
    assert said.exit_code == 0 and len(said.output) == len("ab") + 3 + 1


# --- export -------------------------------------------------------------------------------------------------


def test_export(trained: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(trained)
    file = tmp_path / "lm.safetensors"
    result = invoke("export", "runs/lm", str(file))
    assert result.exit_code == 0 and result.output.endswith("numbers in 5 arrays, of step 6\n")
    state = load_file("runs/lm/checkpoints/step-00000006/state.safetensors")
    found = load_file(file)
    assert sorted(found) == sorted(name for name in state if "/" not in name)
    for name, array in found.items():
        np.testing.assert_array_equal(array, state[name])
    invoke("export", "runs/lm/checkpoints/step-00000004", str(file))
    assert not np.array_equal(load_file(file)["lm.wte"], found["lm.wte"]), "an earlier step, and the file is replaced"


def test_export_refuses(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained)
    assert "lm.safetensors" in refused("E-IO-001", "export", "runs/lm", "lm.npz")
    refused("E-IO-001", "export", "runs/lm", "gone/lm.safetensors")
    assert "export PATH" in refused("E-CKPT-001", "export", "runs/gone", "lm.safetensors")
    assert "none" in refused("E-RUN-005", "export", "runs/lm", "lm.safetensors", "--weights", "slow")


# --- generate -----------------------------------------------------------------------------------------------


def test_generate_text(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained)
    first = invoke("generate", "lm.sx", "--only", "story")
    assert first.exit_code == 0 and first.output.startswith("ab") and len(first.output) == 2 + 5 + 1
    assert invoke("generate", "lm.sx", "--only", "story").output == first.output
    longer = invoke("generate", "lm.sx", "--only", "story", "--length", "40", "--prompt", "fed", "--heat=0.5")
    assert longer.output.startswith("fed") and len(longer.output) == 3 + 40 + 1
    others = {
        invoke("generate", "lm.sx", "--only", "story", "--length=40", "--sample", str(n)).output for n in range(4)
    }
    assert len(others) == 4
    saved = invoke("generate", "lm.sx", "--only", "story", "--save", "kept")
    assert saved.exit_code == 0 and (trained / "kept" / "story-00000006.txt").read_text() == first.output[:-1]


def test_generate_numbers(trained: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(trained)
    made = [
        invoke("generate", "lm.sx", "--only", "numbers", "--scale", s, "--save", str(tmp_path / s))
        for s in ("1.0", "2.0")
    ]
    assert all(result.exit_code == 0 and "saved as" in result.output for result in made)
    one, two = (np.load(tmp_path / s / "numbers-00000006.npz")["value-0"] for s in ("1.0", "2.0"))
    np.testing.assert_allclose(2 * one, two, rtol=1e-6)


def test_odd_keys_of_a_generator(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained)
    story = ("generate", "lm.sx", "--only", "story")
    assert "--only" in refused("E-RUN-005", "generate", "lm.sx")
    assert "`story`" in refused("E-RUN-005", "generate", "lm.sx", "--only", "storey")
    assert "`heat`" in refused("E-FORM-003", *story, "--haet", "0.7")
    refused("E-FORM-001", *story, "--heat")
    refused("E-FORM-001", *story, "heat", "0.7")
    for keys in (
        ["--heat", "warm"],
        ["--heat", ""],
        ["--length", "-1"],
        ["--length", "2.5"],
        ["--length", "many"],
        ["--prompt", ""],
        ["--prompt", "xyz"],
        ["--prompt", "ß\0"],
        ["--=3"],
        ["--", "x"],
        ["-p", "ab"],
    ):
        result = invoke(*story, *keys)
        assert result.exit_code == 1 and result.stderr.startswith("sexpgpu generate: E-"), (keys, result.output)


def test_generate_without_a_generator(folder: Path) -> None:
    text = TEXT.replace("(defgenerator", "#;(defgenerator").replace(":generate (every 3 story)", "")
    (folder / "lm.sx").write_text(text)
    assert "no `defgenerator`" in refused("E-RUN-005", "generate", "lm.sx")


# --- doctor -------------------------------------------------------------------------------------------------


def test_doctor_says_what_can_be_opened() -> None:
    result = invoke("doctor")
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert all(len(line) <= 80 for line in lines)
    rows = {
        line.split()[0]: line.split()[1]
        for line in lines
        if line.split()[:1] and line.split()[0] in ("cpu", "metal", "cuda")
    }
    assert rows.keys() == {"cpu", "metal", "cuda"} and rows["cpu"] == "yes"
    assert "numpy " in result.output and "Python " in result.output


def test_a_sample_steers_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert generate._shown("a\x1b[31m\x9bb\tc\n") == "a\x1b[31m\x9bb\tc\n", "a pipe gets all of it"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert generate._shown("a\x1b[31m\x9bb\tc\n") == "a\ufffd[31m\ufffdb\tc\n"
