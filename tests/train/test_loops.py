"""Recurrent models: the interpreter against PyTorch's cells, stacked against one by one, memory as planned."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sexpgpu.backend.protocol import Call
from sexpgpu.ir.evaluate import evaluate
from sexpgpu.ir.opdef import Array
from sexpgpu.ir.program import FEED, RESULT, SLOT
from sexpgpu.ir.verify import verify_program
from sexpgpu.train.phases import assemble
from tests.train.trial import open_trial

BATCH, TIME, WIDTH, NUM_STEPS = 4, 6, 5, 8
R = np.random.default_rng(0)
DATA = {
    "x": R.standard_normal((16, TIME, 3)).astype(np.float32),
    "y": R.standard_normal((16, WIDTH)).astype(np.float32),
    "ids": R.integers(0, 3, (16, TIME)).astype(np.int32),
}
FILE = """
(def width 5)
(defn gru (x h)
  (let [[r z] (split (sigmoid (+ (linear x (* 2 width) :name xg) (linear h (* 2 width) :name hg))) 2 :axis -1)
        n     (tanh (+ (linear x width :name xn) (* r (linear h width :name hn))))]
    (+ (* (- 1 z) n) (* z h))))
(defn lstm (x h c)
  (let [[i f g o] (split (+ (linear x (* 4 width) :name x) (linear h (* 4 width) :name h)) 4 :axis -1)
        c         (+ (* (sigmoid f) c) (* (sigmoid i) (tanh g)))]
    [(* (sigmoid o) (tanh c)) c]))
(defn blank (x) (zeros (f32 (dim x 0) width)))
(defmodel net ((x (f32 _ _ _)) (ids (i32 _ _))) BODY)
(defdata rows-of (arrays "data.npz"))
(defloader train (rows rows-of) :batch 4)
(defmetric loss (x y ids) (mean (square (- (net x ids) y))))
(defrun go :loss loss :loader train :optimizer (sgd :rate 0.5) :microbatches 4 :steps 50 :seed 3)
"""
BODIES = {
    "gru": "(let [[h _] (scan [h (blank x)] [x x] :axis 1 (let [h (gru x h :name cell)] (next :h h :emit h)))] h)",
    "lstm": "(let [[h _] (scan [h (blank x) c (blank x)] [x x] :axis 1"
    " (let [[h c] (lstm x h c :name cell)] (next :h h :c c)))] h)",
    "last": "(let [[_ y] (scan [h (blank x)] [x x] :axis 1 :reverse true"
    " (let [h (gru x h :name cell)] (next :h h :emit (dropout h 0.5))))] (mean y :axis 1))",
    "table": "(let [[t y] (table-scan [row (zeros (f32 (dim x 0) 3 width))] [i ids x x] :axis 1 :index i"
    " (let [row (gru x row :name cell)] (next :row row :emit row)))] (+ (mean t :axis 1) (mean y :axis 1)))",
    "bf16": "(with :compute bf16 (scan [h (blank x)] [x x] :axis 1 :save 3 (gru x h :name cell)))",
}


def text_of(name: str) -> str:
    return FILE.replace("BODY", BODIES[name])


@pytest.mark.torch
@pytest.mark.parametrize("name", ["gru", "lstm"])
def test_training_is_pytorchs(tmp_path: Path, name: str) -> None:
    torch = pytest.importorskip("torch")
    text = text_of(name).replace(":microbatches 4", "").replace(":batch 4", ":batch 16")
    with open_trial(tmp_path, text, DATA) as trial:
        p = trial.read_all("parameter")
        cell = (torch.nn.GRU if name == "gru" else torch.nn.LSTM)(3, WIDTH, batch_first=True)

        def joined(side: str, part: str) -> Array:
            if name == "lstm":
                return p[f"net.cell.{side}.{part}"].T.copy()
            return np.concatenate([p[f"net.cell.{side}{g}.{part}"].T for g in "gn"], axis=0)

        with torch.no_grad():
            cell.weight_ih_l0.copy_(torch.from_numpy(joined("x", "w")))
            cell.weight_hh_l0.copy_(torch.from_numpy(joined("h", "w")))
            cell.bias_ih_l0.copy_(torch.from_numpy(joined("x", "b")))
            cell.bias_hh_l0.copy_(torch.from_numpy(joined("h", "b")))
        optimizer = torch.optim.SGD(cell.parameters(), 0.5)
        wanted = []
        for _ in range(NUM_STEPS):
            optimizer.zero_grad()
            y = cell(torch.from_numpy(DATA["x"]))[0][:, -1]
            loss = (y - torch.from_numpy(DATA["y"])).square().mean()
            loss.backward()
            optimizer.step()
            wanted.append(loss.item())
        np.testing.assert_allclose(trial.losses(NUM_STEPS), wanted, rtol=2e-5)


@pytest.mark.parametrize("name", BODIES)
def test_stacked_is_one_by_one(tmp_path: Path, name: str) -> None:
    with open_trial(tmp_path / "a", text_of(name), DATA) as one, \
         open_trial(tmp_path / "b", text_of(name), DATA, stacking=4) as four:  # fmt: skip
        verify_program(one.assembly.program)
        verify_program(four.assembly.program)
        first, second = one.losses(NUM_STEPS), four.losses(NUM_STEPS)
        assert first[-1] < first[0]
        np.testing.assert_allclose(first, second, rtol=1e-3 if name == "bf16" else 1e-4)


@pytest.mark.parametrize("poison", [False, True])
@pytest.mark.parametrize("name", BODIES)
def test_a_prepared_body_is_the_plain_one(tmp_path: Path, name: str, poison: bool) -> None:
    with open_trial(tmp_path, text_of(name), DATA, poison=poison) as trial:
        phase = trial.assembly.program.phase("update.go.first")
        feeds: dict[str, Array] = {}
        for feed, type in phase.feeds.items():
            source = DATA.get(feed.removeprefix("batch."))
            feeds[feed] = np.array(7, np.int64) if source is None else source[: type.shape[0]]
        slots = {SLOT + s: trial.read(s) for s in phase.reads}
        expected = evaluate(phase.graph, {**{FEED + f: a for f, a in feeds.items()}, **slots})
        trial.session.run([Call(phase.name, feeds)]).result()
        for slot in phase.writes:
            np.testing.assert_allclose(trial.read(slot), expected[SLOT + slot], 1e-4, 1e-6, err_msg=slot)
        assert any(name.startswith(RESULT) for name in expected)


def test_what_is_not_read_is_not_kept(tmp_path: Path) -> None:
    with open_trial(tmp_path, text_of("lstm"), DATA) as trial:
        graph = trial.assembly.program.phase("update.go.first").graph
        forward, backward = (node for node in graph.nodes if node.op == "scan")
        # Saved carries alone are emitted forward; backward nothing is, as x and the first carries are constants.
        assert [t.shape for t in forward.types] == [(4, WIDTH)] * 2 + [(TIME, 4, WIDTH)] * 2
        assert len(backward.types) == 2 + 4


@pytest.mark.parametrize("stacking", [1, 4])
def test_a_table_is_not_kept_for_its_rows(tmp_path: Path, stacking: int) -> None:
    with open_trial(tmp_path, text_of("table"), DATA, stacking=stacking) as trial:
        graph = trial.assembly.program.phase("update.go.first").graph
        forward, backward = (node for node in graph.nodes if node.op == "scan")
        # Rows that were read, which are emitted anyway; tables are carried and not stacked.
        assert TIME not in (t.shape[0] for t in forward.types if 3 in t.shape[1:-1])
        assert not any(3 in v.shape[1:-1] and v.shape[0] == TIME and v.rank > 3 for v in backward.inputs)


def test_a_plan_counts_the_body(tmp_path: Path) -> None:
    with open_trial(tmp_path, text_of("gru"), DATA) as trial:
        plan = trial.session.plan
        assert plan.workspace_bytes > plan.loop_bytes > 5 * 4 * BATCH * WIDTH
        assert plan.peak_bytes >= plan.arena_bytes + plan.loop_bytes


def test_saving_fewer_carries_takes_less_memory(tmp_path: Path) -> None:
    data = {**DATA, "x": R.standard_normal((16, 64, 3)).astype(np.float32)}
    text = text_of("gru").replace("(def width 5)", "(def width 16)").replace("(- (net x ids) y)", "(net x ids)")
    text = text.replace(":batch 4", ":batch 16").replace(":microbatches 4", "")
    found = []
    for number, options in enumerate(("", ":save 8")):
        with open_trial(tmp_path / str(number), text.replace(":axis 1", f":axis 1 {options}"), data) as trial:
            found.append((trial.losses(3), trial.session.plan.arena_bytes + trial.session.plan.workspace_bytes))
    # A captured value's gradient is summed stretch by stretch.
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-5)
    assert found[1][1] < 0.75 * found[0][1]


def test_an_index_of_a_table_out_of_range_names_its_line(tmp_path: Path) -> None:
    outside = {**DATA, "ids": np.where(DATA["ids"] == 0, 9, DATA["ids"]).astype(np.int32)}
    with open_trial(tmp_path, text_of("table"), outside) as trial, pytest.raises(Exception) as error:
        trial.step()
    assert "outside 0 to 2" in str(error.value)
    assert "file.sx" in str(error.value)


def test_evaluations_keep_nothing(tmp_path: Path) -> None:
    text = text_of("gru").replace("(defrun", "(defeval check :loader train :batches 1 loss)\n(defrun")
    text = text.replace(":steps 50", ":steps 50 :evaluate (every 10 check)")
    with open_trial(tmp_path, text, DATA) as trial:
        graph = assemble(trial.experiment).program.phase("eval.check.0").graph
        (loop,) = [node for node in graph.nodes if node.op == "scan"]
        assert [t.shape for t in loop.types] == [(4, WIDTH)]
