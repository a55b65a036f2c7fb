"""A run with everything that has a memory, resumed after each of its steps: the same end, bit for bit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from sexpgpu.backend.cpu.device import CpuDevice
from sexpgpu.backend.protocol import Budget
from sexpgpu.lang.load import load_experiment
from sexpgpu.train.checkpoint import load, same_experiment
from sexpgpu.train.folder import RunFolder
from sexpgpu.train.identity import experiment_digest
from sexpgpu.train.loop import Training
from sexpgpu.train.metrics import read_annotations, read_metrics
from sexpgpu.train.phases import assemble
from sexpgpu.train.progress import Progress
from sexpgpu.train.store import FolderStore
from sexpgpu.train.writer import CheckpointWriter
from tests.train.trial import write_experiment

NUM_STEPS = 30
TEXT = """
(def steps 30)
(defdata some (arrays "data.npz"))
(defdata words (text "words.txt" :by bytes))
(defloader mixed (mix [(rows (part some 0.0 0.5)) (linear-schedule 1.0 0.1 :total steps)
                       (rows (part some 0.5 1.0)) 0.4])
  :batch 3 :shuffle true)
(defloader stream (streams words :length 4) :batch 3)
(defloader plain (rows some) :batch 5 :shuffle true)
(defloader both (zip [m mixed s stream]))
(defmodel net ((x (f32 _ ?n)))
  (linear (dropout (tanh (batch-norm (linear x 5 :name up) :name bn)) 0.3) ?n :name out))
(defaverage slow :over "net.*" :decay (minimum 0.9 (/ step (+ step 3))))
(defgenerator walk (x)
  :trips [t 2] :carry [at x]
  (next :at (+ at (* 0.1 (net at)) (* 0.01 (random-normal (type-of at)))) :emit (mean at)))
(defmetric learn ((m.x (f32 _ _)) s.tokens)
  (let [[at seen] (walk m.x)
        kept   (state kept (i32 3) -1 :lane true)
        count  (state count (i32) 0)
        target (with :weights slow :training false (net m.x))
        jitter (* 0.1 (random-uniform (type-of m.x)))]
    (set-state kept (gather s.tokens -1 :axis 1))
    (set-state count (sum s.tokens) :reduce sum)
    (measure walked (sum seen) :every 4)
    (measure last-kept (sum (cast (- kept count) f32)) :reduce last)
    (+ (mean (square (- (net (+ m.x jitter)) (* 0.5 (stop-gradient (+ at target))))))
       (* 1e-6 (mean (cast (- s.tokens (rearrange "b -> b 1" kept)) f32))))))
(defmetric shrink ((x (f32 _ _)))
  (let [w (param own (f32 6) 1.0) s (state turns (f32) 0.0)]
    (set-state s (+ s 1) :reduce last)
    (mean (square (- w (+ (mean (tanh x) :axis 0) (* s (random-normal (f32 6)))))))))
(defdiagnostic moved (p g new) :over "net.*" :every 3 (norm (- new p)))
(defeval look :loader mixed :batches 2 :weights slow again)
(defmetric again ((x (f32 _ _))) (mean (square (net x))))
(defgenerator draw () :trips [t 2] :carry [s 0.0] (next :s (+ s (random-normal (f32))) :emit s))
(defupdate fit :loader both :loss learn :clip 1.0 :optimizer (adamw :rate (warmup-cosine 0.05 :warmup 5 :total steps)))
(defupdate side :loader plain :loss shrink :times 2 :every 3 :optimizer (momentum :rate 0.05))
(defrun go :updates [fit side] :microbatches 2 :steps steps :seed 7 :on-nonfinite skip
  :diagnose [moved] :evaluate (every 10 look) :generate (every 10 draw) :checkpoint (every 1 :keep 100))
"""
X = np.random.default_rng(3).standard_normal((36, 6)).astype(np.float32)
X[4, 2] = X[22, 0] = 1e30  # the squares overflow: updates that see these rows are skipped
LAST = f"step-{NUM_STEPS:08d}"


def train(folder: Path, run: Path, after_step: int, last_step: int = NUM_STEPS) -> None:
    """From a checkpoint of the run (0: from first values) to `last_step`, all opened anew, as a process would."""
    experiment = load_experiment(folder / "file.sx")
    assembly = assemble(experiment)
    device = CpuDevice(threads=1)
    plan = device.plan(assembly.program, Budget())
    digest = experiment_digest(experiment, assembly.program)
    session = device.open(plan)
    run.mkdir(exist_ok=True)
    try:
        training = Training(
            experiment, assembly, session, RunFolder(run), Progress(Console(), last_step, after_step, quiet=True),
            CheckpointWriter(FolderStore(run / "checkpoints"), 100, None),
            plan=plan, digest=digest, start_step=after_step, last_step=last_step, stop=lambda: False,
        )  # fmt: skip
        if after_step:
            saved = load(FolderStore(run / "checkpoints"), f"step-{after_step:08d}")
            same_experiment(saved.meta, digest, experiment.text, {})
            training.restore(saved.tensors, saved.meta)
        training.run()
    finally:
        session.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the experiment, with a run that nothing disturbed in `whole`."""
    folder = tmp_path_factory.mktemp("every")
    (folder / "words.txt").write_bytes(bytes(range(240)))
    write_experiment(folder, TEXT, x=X)
    train(folder, folder / "whole", 0)
    return folder


def test_the_run_has_everything_that_could_be_forgotten(whole: Path) -> None:
    saved = load(FolderStore(whole / "whole" / "checkpoints"), LAST)
    assert {"parameter", "optimizer", "state", "average"} == set(saved.meta["roles"].values())
    skipped = [a["step"] for a in read_annotations(whole / "whole" / "metrics.jsonl") if a["annotation"] == "skipped"]
    assert 2 <= len(skipped) <= NUM_STEPS // 2, skipped
    series = read_metrics(whole / "whole" / "metrics.jsonl")
    assert len(series["train/side/loss"]) == 11
    assert [s for s, _ in series["eval/look/again"]] == [1, 10, 20, 30]


ALL = range(1, NUM_STEPS)
SOME = (1, 2, 3, 8, 13, 20, 28, 29)
"""Those of the test command: steps before and after skipped updates, the update of every third step, and events."""


@pytest.mark.parametrize("step", [pytest.param(s, marks=[] if s in SOME else [pytest.mark.slow]) for s in ALL])
def test_a_resume_after_any_step_ends_with_the_same_bits(whole: Path, tmp_path: Path, step: int) -> None:
    run, expected = tmp_path / "run", whole / "whole"
    shutil.copytree(expected, run)
    for later in range(step + 1, NUM_STEPS + 1):
        shutil.rmtree(run / "checkpoints" / f"step-{later:08d}")
    train(whole, run, step)
    for name in ("state.safetensors", "checkpoint.json"):
        wanted = (expected / "checkpoints" / LAST / name).read_bytes()
        assert (run / "checkpoints" / LAST / name).read_bytes() == wanted, name
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    keys = [(line["step"], line["series"]) for line in lines if "series" in line]
    assert len(keys) == len(set(keys)), "one value a step"
    found, wanted_series = read_metrics(run / "metrics.jsonl"), read_metrics(expected / "metrics.jsonl")
    assert found.keys() == wanted_series.keys()
    for name, points in wanted_series.items():
        if name.startswith("runtime/"):
            assert [s for s, _ in found[name]] == [s for s, _ in points], name
        else:
            assert found[name] == points, name
    assert annotations(run) == annotations(expected)


def annotations(run: Path) -> list[dict[str, object]]:
    """What a stream says, but for memory and for the words about skipped updates, of which a process explains one."""
    said = (a for a in read_annotations(run / "metrics.jsonl") if a["annotation"] not in ("memory", "stacking"))
    return [{k: v for k, v in a.items() if k != "text" or a["annotation"] != "skipped"} for a in said]
