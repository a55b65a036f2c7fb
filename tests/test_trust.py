"""What a file, a checkpoint or a recording of a stranger can do: be refused, and nothing else. See `docs/trust.md`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sexpgpu.diagnostics import DiagnosticError
from sexpgpu.look.page import report
from sexpgpu.look.record import read_run
from sexpgpu.train.checkpoint import load
from sexpgpu.train.folder import RunFolder, sample_name
from sexpgpu.train.store import FolderStore
from tests.train.test_resume import CHECKOUT, invoke
from tests.train.trial import write_experiment

RUN = """
(defmetric loss () (square (param w (f32) 1.0)))
(defrun go :loss loss :optimizer (sgd :rate 0.1) :steps 1)
"""
DOUBLING = "(def v0 [1 2])" + "".join(f"(def v{i + 1} (append v{i} v{i}))" for i in range(60))

HOSTILE = {
    "open brackets": ("(" * 200_000, "E-READ-008"),
    "nested brackets": ("[" * 200_000 + "]" * 200_000, "E-READ-008"),
    "nested sums": ("(def x " + "(+ 1 " * 20_000 + "1" + ")" * 20_000 + ")" + RUN, "E-READ-008"),
    "an endless comment": ("#|" * 200_000, "E-READ-007"),
    "a long loop": ("(def x (repeat [i 1000000000] [x 0] (+ x 1)))" + RUN, "E-TYPE-005"),
    "a long vector": ("(def x (range 0 1000000000))" + RUN, "E-TYPE-005"),
    "a vector that doubles": (DOUBLING + RUN, "E-TYPE-005"),
    "calls that double": (
        "(defn f (n) (if (< n 2) n (+ (f (- n 1)) (f (- n 2))))) (def x (f 200))" + RUN, "E-CALL-005",
    ),
    "calls without end": ("(defn f (n) (f (+ n 1))) (def x (f 0))" + RUN, "E-CALL-004"),
    "a long number": ("(def x (pow 10 1000000000))" + RUN, "E-TYPE-005"),
    "a shape that no machine holds": (RUN.replace("(f32)", "(f32 100000000000 100000000000)"), "E-TYPE-005"),
    "microbatches without end": (RUN.replace(":steps", ":microbatches 1000000000000 :steps"), "E-TYPE-005"),
    "steps without end": (RUN.replace(":steps 1", ":steps 99999999999999999999999"), "E-TYPE-005"),
    "patterns that try everything": (
        '(defdiagnostic d (p g new) :group "' + "*" * 40 + '" (sum p))' + RUN.replace(":steps", ":diagnose [d] :steps"),
        "E-FORM-001",
    ),
    "a cycle of files": ('(include "file.sx")' + RUN, "E-FORM-002"),
    "a device": ('(include "/dev/zero")' + RUN, "E-READ-001"),
    "a pipe": ('(include "pipe")' + RUN, "E-READ-001"),
    "a folder": ('(include "..")' + RUN, "E-READ-001"),
    "a file of others": ('(include "/etc/passwd")' + RUN, "E-FORM-002"),
    "data from a device": ('(defdata d (text "/dev/zero")) (def n (vocabulary d))' + RUN, "E-DATA-001"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused(name: str, tmp_path: Path) -> None:
    text, code = HOSTILE[name]
    os.mkfifo(tmp_path / "pipe")
    write_experiment(tmp_path, text)
    result = invoke(tmp_path, "check", "file.sx")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"sexpgpu check: {code}: "), result.stderr[:300]
    assert len(result.stderr) < 20_000


def test_a_file_without_end_is_not_read_to_its_end(tmp_path: Path) -> None:
    result = invoke(tmp_path, "check", "/dev/zero")
    assert result.exit_code == 1 and "E-READ-001: `/dev/zero` has more than 64 MiB" in result.stderr


def test_what_does_not_fit_is_refused_before_memory_is_asked_for(tmp_path: Path) -> None:
    write_experiment(tmp_path, RUN.replace("(f32)", "(f32 400000 400000)").replace("(square (", "(sum (square ("))
    text = (tmp_path / "file.sx").read_text().replace("1.0)))", "1.0))))", 1)
    write_experiment(tmp_path, text)
    result = invoke(tmp_path, "run", "file.sx", "--quiet")
    assert result.exit_code == 1 and "E-MEM-001" in result.stderr
    assert not (tmp_path / "runs").exists()


def test_no_name_of_a_file_leads_out_of_the_run_folder(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b" / "c"
    generator = "(defgenerator ../../../../out () :trips [t 2] :carry [s 0.0] (next :emit (+ s 1.0)))"
    text = generator + RUN.replace(":steps 1", ":steps 1 :generate (every 1 ../../../../out)")
    write_experiment(inner, text.replace("defrun go", "defrun ../../../../go"))
    assert invoke(inner, "run", "file.sx", "--quiet").exit_code == 0
    files = {p.relative_to(tmp_path).parts[:5] for p in tmp_path.rglob("*") if p.is_file()}
    assert files - {("a", "b", "c", "file.sx")} == {("a", "b", "c", "runs", "file")}
    assert [p.name for p in (inner / "runs" / "file" / "samples").iterdir()] == ["..%2F..%2F..%2F..%2Fout-00000001.npz"]
    assert sample_name("a%2Fb", 1) != sample_name("a/b", 1)


def test_a_recording_shows_no_picture_from_elsewhere(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "runs" / "x")
    run.samples.mkdir(parents=True)
    (tmp_path / "secret-00000001.png").write_bytes(b"secret")
    note = '{"step": 1, "annotation": "sample", "text": "<script>alert(1)</script>", "generator": "../../../secret"}\n'
    run.metrics.write_text(note)
    page = report(read_run(run), [])
    assert "<script>alert" not in page and "&lt;script&gt;" in page and "base64" not in page


def test_texts_of_strangers_move_no_cursor(tmp_path: Path) -> None:
    """Control characters of a file reach a terminal as visible signs."""
    write_experiment(tmp_path, '(defn f (x) x)\n(def "\x1b[31m\x9b0m\x07" 1)\n' + RUN)
    result = invoke(tmp_path, "check", "file.sx")
    assert result.exit_code == 1
    assert not any(sign in result.output for sign in ("\x1b", "\x9b", "\x07"))


def test_a_checkpoint_is_only_read(tmp_path: Path) -> None:
    """Neither a pickle in place of the state nor a record that names other files is followed."""
    write_experiment(tmp_path, RUN)
    assert invoke(tmp_path, "run", "file.sx", "--quiet").exit_code == 0
    folder = tmp_path / "runs" / "file" / "checkpoints" / "step-00000001"
    record = (folder / "checkpoint.json").read_text()
    (folder / "state.safetensors").write_bytes(b"cos\nsystem\n(S'touch owned'\ntR.")
    with pytest.raises(DiagnosticError, match="E-CKPT-002"):
        load(FolderStore(folder.parent), folder.name)
    (folder / "checkpoint.json").write_text(record.replace('"state.safetensors"', '"../../../../file.sx"'))
    with pytest.raises(DiagnosticError, match="E-CKPT-002"):
        load(FolderStore(folder.parent), folder.name)


def test_arrays_with_objects_are_refused(tmp_path: Path) -> None:
    class Owned:
        def __reduce__(self) -> tuple[object, ...]:
            return os.mkdir, (str(tmp_path / "owned"),)

    np.savez(tmp_path / "data.npz", x=np.array([Owned()], dtype=object))
    write_experiment(tmp_path, '(defdata d (arrays "data.npz")) (defloader l (rows d) :batch 1)' + RUN)
    result = invoke(tmp_path, "check", "file.sx")
    assert result.exit_code == 1 and "E-DATA-" in result.stderr
    assert not (tmp_path / "owned").exists()


def test_nothing_is_executed_and_no_process_begun(tmp_path: Path) -> None:
    """Python's own hooks see every process, evaluated text and connection of a whole run."""
    write_experiment(tmp_path, RUN)
    program = """
import sys
seen = []
def hook(event, arguments):
    if event.startswith(("os.exec", "os.fork", "os.posix", "os.system", "subprocess", "socket.connect", "pickle")):
        seen.append(event)
sys.addaudithook(hook)
from sexpgpu.cli.main import main
try:
    main(["run", "file.sx", "--quiet"])
except SystemExit as error:
    assert not error.code, error.code
print(seen)
"""
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().splitlines()[-1] == "[]"
