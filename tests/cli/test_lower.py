"""`sexpgpu lower`: the report of the cpu and of a card, and the plan and the kernels as text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import sexpgpu.ir.ops  # noqa: F401
from sexpgpu.backend import registry
from sexpgpu.backend.cpu.cut import why_interpreted
from sexpgpu.backend.cpu.device import CpuDevice
from sexpgpu.backend.cuda.device import CudaDevice
from sexpgpu.backend.pieces import Printing
from sexpgpu.backend.protocol import Budget
from sexpgpu.backend.report import WIDTH, row
from sexpgpu.cli.main import main
from sexpgpu.lang.load import load_experiment
from sexpgpu.plan.remaining import remaining_copies
from sexpgpu.plan.text import plan_text
from sexpgpu.source import Source
from sexpgpu.syntax import Integer, List, String, Symbol, Vector, read
from sexpgpu.train.phases import assemble
from tests.backend.native import compiler
from tests.cuda.fake import PRINTED, FakeDriver, toolbox

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TEXT = """
(defdata letters (text "letters.txt" :by characters))
(defloader train (windows letters :length 8) :batch 4)
(defmodel lm ((tokens (i32 _ _)))
  (let [x (embed (param wte (f32 27 8) (normal 0.1)) tokens)
        y (concat [x (tanh x)] :axis -1)]
    (linear (tanh (linear y 16 :name up)) 27 :name out)))
(defmetric nll (tokens targets) (mean (cross-entropy (lm tokens) targets)))
(defrun go :loader train :loss nll :clip 1.0 :steps 3 :seed 1 :optimizer (adamw :rate 1e-2))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "lm.sx").write_text(TEXT)
    (tmp_path / "letters.txt").write_text("the quick brown fox jumps over a lazy dog " * 20)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def a_card(patch: pytest.MonkeyPatch) -> None:
    tools = toolbox(FakeDriver())
    for name, printed in PRINTED.items():
        object.__setattr__(tools, name, printed)
    kind = registry._Kind(lambda *_: CudaDevice(tools))
    patch.setattr(registry, "_KINDS", {**registry._KINDS, "cuda": kind})


def invoke(*arguments: str) -> Result:
    result = CliRunner().invoke(main, ["lower", *arguments], catch_exceptions=False)
    return result


def rows(output: str) -> dict[str, list[str]]:
    """Texts of rows by their titles; lines that go on are joined."""
    found: dict[str, list[str]] = {}
    joined = re.sub(r"\n {26}(?=\S)", " ", output)
    for line in joined.splitlines()[1:]:
        title, text = re.split(r"(?<=\S)  +|(?<=\S) (?=\d+\.\d )", line.strip(), maxsplit=1)
        found.setdefault(title, []).append(text)
    return found


def test_a_row_goes_on_below_itself() -> None:
    text = row("phase", "words " * 30)
    lines = text.splitlines()
    assert len(lines) > 1 and max(map(len, lines)) <= WIDTH and all(line.startswith(" " * 26) for line in lines[1:])
    assert row("a title that is longer than its column", "x") == "  a title that is longer than its column x"


@pytest.mark.parametrize("kernels", [False, True])
def test_the_report_of_the_cpu(folder: Path, kernels: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if kernels:
        monkeypatch.delenv("SEXPGPU_CPU")
    output = invoke("lm.sx").output
    first, *lines = output.splitlines()
    assert first.startswith("lowering: cpu ") and max(map(len, lines)) <= WIDTH
    found = rows(output)
    (update,) = found["update.go.first"]
    if kernels:
        assert re.search(r"\d+ kernels \(\d+ texts\)", update) and "products" in update
        assert any("folds of rows" in text for title in found if title.startswith("kernels ×") for text in found[title])
        others = [text for title in found if title.startswith("interpreted ×") for text in found[title]]
        assert any(text.startswith("it draws numbers; the largest: random-normal at ") for text in others)
    else:
        assert re.fullmatch(r"\d+ interpreted", update)
    assert any(text.startswith("concat × 1 at lm.sx:6: ") for text in found["copied"])
    assert found["memory"] and found["parameters"] and found["optimizer states"] and found["workspace"]
    assert re.fullmatch(r"in update\.go\.(first|commit)( at lm\.sx:\d+)?", found["fullest"][0])
    assert found["stacking"] == ["1: this device runs one microbatch a call"]


def test_the_report_of_a_card(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_card(monkeypatch)
    output = invoke("lm.sx", "--device", "cuda").output
    assert max(map(len, output.splitlines()[1:])) <= WIDTH
    found = rows(output)
    assert any("by cuBLASLt" in text for title in found if title.startswith("product ×") for text in found[title])
    assert any("in one launch" in text for title in found if title.startswith("leaves ×") for text in found[title])
    assert found["fullest"] and found["bytes moved"]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_plan_is_read_back(folder: Path, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    a_card(monkeypatch)
    chosen = registry.open_device(device)
    plan = chosen.plan(assemble(load_experiment(folder / "lm.sx")).program, Budget())
    read_back = read(Source("<plan>", plan_text(plan)))
    assert not read_back.diagnostics
    (whole,) = read_back.forms
    assert isinstance(whole, List) and whole.items[0] == Symbol("plan")
    phases = {form.items[1].value: form.items for form in whole.items if isinstance(form, List)}
    assert list(phases) == list(plan.phases)
    for name, phase in plan.phases.items():
        steps = [form for form in phases[name] if isinstance(form, List) and form.items[0] == Symbol("step")]
        assert len(steps) == len(phase.steps)
        for form, step in zip(steps, phase.steps, strict=True):
            (reads,) = [part for part in form.items if isinstance(part, List) and part.items[0] == Symbol("reads")]
            assert len(reads.items) == 1 + len(step.inputs)
            for place, layout in zip(reads.items[1:], step.inputs, strict=True):
                assert isinstance(place, List)
                buffer, offset, strides, _ = place.items
                assert isinstance(buffer, String) and isinstance(offset, Integer) and isinstance(strides, Vector)
                assert (buffer.value, offset.value) == (layout.buffer, layout.offset_bytes)
                assert [each.value for each in strides.items] == list(layout.strides)
    assert invoke("lm.sx", "--device", device, "--print", "plan").output.startswith(f'(plan "{device}" :arena ')


def test_kernels_are_printed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_card(monkeypatch)
    output = invoke("lm.sx", "--device", "cuda", "--print", "kernels").output
    assert 'extern "C" __global__' in output
    plan = CpuDevice(threads=1).plan(assemble(load_experiment(folder / "lm.sx")).program, Budget())
    device = CpuDevice(threads=1, compiler=compiler())
    assert isinstance(device, Printing)
    texts = device.kernels(plan)
    assert texts and all(f"void {name}(" in text for name, text in texts.items())
    result = invoke("lm.sx", "--print", "kernels")
    assert result.exit_code == 1 and "E-DEV-005" in result.stderr


def test_copies_that_remain(folder: Path) -> None:
    plan = CpuDevice(threads=1).plan(assemble(load_experiment(folder / "lm.sx")).program, Budget())
    found = remaining_copies(plan)
    (joined,) = [copy for copy in found if copy.what == "concat" and copy.phase == "update.go.first"]
    assert joined.num_bytes == 4 * 8 * 16 * 4
    commit = plan.phases["update.go.commit"]
    (into,) = [copy for copy in found if copy.what == "into slots" and copy.phase == "update.go.commit"]
    assert into.num_bytes == sum([copy.type.num_bytes for copy in commit.commits]) > 0


def test_every_reason_why_not(folder: Path) -> None:
    program = assemble(load_experiment(folder / "lm.sx")).program
    reasons = {node.op: why_interpreted(node) for phase in program.phases for node in phase.graph.walk()}
    assert reasons["gather"] == "it reads where indices say" and reasons["random-normal"] == "it draws numbers"
