"""Loops at run time: values against NumPy, gradients against differences, what is captured, what is refused."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from sexpgpu.ir.text import graph_text, parse_graph
from sexpgpu.ir.verify import verify
from tests.lang.files import codes, elaborated, faults, load_text, objective, run_graph, value_of

F = np.float32
R = np.random.default_rng(3)
X = R.standard_normal((2, 5, 3)).astype(F)
H = R.standard_normal((2, 3)).astype(F)
W = (R.standard_normal((3, 3)) / 2).astype(F)
TABLE = R.standard_normal((2, 4, 3)).astype(F)
IDS = np.array([[0, 3, 0, 0, 2], [1, 1, 3, 1, 0]], np.int32)

CELL = '(tanh (+ x (product "b i, i j -> b j" h w)))'


def cells(order: range) -> tuple[np.ndarray, np.ndarray]:
    emitted, h = np.zeros_like(X), H
    for t in order:
        h = np.tanh(X[:, t] + h @ W)
        emitted[:, t] = h
    return h, emitted


FORWARD, BACKWARD = range(5), range(4, -1, -1)
OPTIONS = {"": FORWARD, ":reverse true": BACKWARD, ":order any": FORWARD, ":save 5": FORWARD}


@pytest.mark.parametrize("options, order", OPTIONS.items())
def test_a_recurrence(options: str, order: range) -> None:
    text = f"(scan [h h] [x x] :axis 1 {options} (let [h {CELL}] (next :h h :emit h)))"
    final, emitted = value_of(text, x=X, h=H, w=W)
    wanted = cells(order=order)
    assert_allclose(final, wanted[0], rtol=1e-5)
    assert_allclose(emitted, wanted[1], rtol=1e-5)


def test_the_axis_holds_for_sequences_and_for_what_is_emitted() -> None:
    for axis in (0, 1, 2, -1):
        total, doubled = value_of(f"(scan [s 0.0] [x x] :axis {axis} (next :s (+ s (sum x)) :emit (* 2 x)))", x=X)
        assert_allclose(total, X.sum(), rtol=1e-5)
        assert_array_equal(doubled, 2 * X)


def test_numbers_vectors_and_carries_that_stay() -> None:
    n, s, kept, places = value_of(
        "(let [[n [a b] kept p] (scan [n 0 pair [x 1.0] kept 7] [t 4] (next :n (+ n t) :emit t "
        ":pair (let [[a b] pair] [(* a 2) (* b a)])))] [n (+ (sum a) 0.0) kept p])",
        x=F(1.0),
    )
    assert n == 6 and s == 16 and kept == 7 and n.dtype == np.int32
    assert_array_equal(places, [0, 1, 2, 3])


def test_a_lone_carry_needs_no_next() -> None:
    assert_allclose(value_of("(scan [s 1.0] [x x] (* s x))", x=X[0, :, 0]), X[0, :, 0].prod(), rtol=1e-5)


def test_a_vector_of_numbers_is_walked_and_one_of_tensors_is_walked_together() -> None:
    assert value_of("(scan [s 0] [n [1 2 3]] (+ s n))") == 6
    x = X[0, :, 0]
    assert_allclose(value_of("(scan [s 0.0] [[a b] [x (* 2 x)]] (+ s (* a b)))", x=x), (2 * x**2).sum(), rtol=1e-5)
    assert value_of("(scan [s 5] [t 0] :save 4 (+ s t))") == 5


def test_several_emits_and_a_vector_of_them() -> None:
    found = value_of("(let [[s a [b c]] (scan [s 0.0] [x x] (next :s (+ s x) :emit s :emit [x (* x x)]))] [s a b c])",
                     x=X[0, :, 0])  # fmt: skip
    x = X[0, :, 0]
    for value, wanted in zip(found, (x.sum(), np.cumsum(x) - x, x, x * x), strict=True):
        assert_allclose(value, wanted, rtol=1e-5, atol=1e-6)


def test_a_loop_in_a_loop_captures_from_both_sides() -> None:
    text = """(let [k (* 2 w)]
      (scan [h h] [x x] :axis 1
        (let [[h _] (scan [h h] [row k] (next :h (tanh (+ h (* x row) (sum w))) :emit (* x h)))]
          (next :h h :emit h))))"""
    final, emitted = value_of(text, x=X, h=H, w=W)
    h = H
    for t in range(5):
        for row in 2 * W:
            h = np.tanh(h + X[:, t] * row + W.sum())
        assert_allclose(emitted[:, t], h, rtol=1e-4, atol=1e-5)
    assert_allclose(final, h, rtol=1e-4, atol=1e-5)


def table_loop(table: np.ndarray, ids: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    table, read = table.copy(), np.zeros_like(x)
    for t in range(ids.shape[1]):
        for row, i in enumerate(ids[:, t]):
            read[row, t] = table[row, i]
            table[row, i] = np.tanh(table[row, i] + x[row, t])
    return table, read


@pytest.mark.parametrize("save", ["", ":save 5"])
def test_rows_of_a_table_are_written_before_the_next_is_read(save: str) -> None:
    text = f"(table-scan [row t] [i ids x x] :axis 1 :index i {save} (next :row (tanh (+ row x)) :emit row))"
    for found, wanted in zip(value_of(text, t=TABLE, ids=IDS, x=X), table_loop(TABLE, IDS, X), strict=True):
        assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_a_table_index_out_of_range_clamps() -> None:
    text = "(table-scan [row t] [i ids x x] :axis 1 :index i (next :row (tanh (+ row x)) :emit row))"
    outside = np.where(IDS == 0, -7, np.where(IDS == 3, 9, IDS))
    for found, wanted in zip(value_of(text, t=TABLE, ids=outside, x=X), table_loop(TABLE, IDS, X), strict=True):
        assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


SCAN_LOSS = """(let [[h y] (scan [h h] [x x] :axis 1 {options} (let [h {cell}] (next :h h :emit (* h x))))]
  (+ (sum (square h)) (sum (* y (exp y)))))"""
LOSSES = {
    "scan": SCAN_LOSS.format(options="", cell=CELL),
    "reverse": SCAN_LOSS.format(options=":reverse true", cell=CELL),
    "save": SCAN_LOSS.format(options=":save 2", cell=CELL).replace("[x x]", "[x (slice x 0 4 :axis 1)]"),
    "nested": """(sum (square (scan [h h] [x x] :axis 1
        (let [[h y] (scan [h h] [r w] :save 3 (next :h (tanh (+ h (* x r))) :emit (* h (sum w))))]
          (+ h (sum y :axis 0))))))""",
    "table": """(let [[t y] (table-scan [row (stack [h (* 2 h) x0 h] :axis 1)] [i ids x x] :axis 1 :index i
        (next :row (tanh (+ row (product "b i, i j -> b j" x w))) :emit (* row x)))]
        (+ (sum (square t)) (sum (exp y))))""",
}  # fmt: skip


AT = {"x": X.astype(float), "h": H.astype(float), "w": W.astype(float)}
NAMES = "[x0 (slice x 0 1 :axis 1) x0 (reshape x0 [2 3])]"


def check_slopes(loss: str, leaf: str) -> None:
    """The gradient of a loss along a direction, against central differences."""
    given = {"x": X, "h": H, "w": W, "ids": IDS}
    fixed = {**AT, "ids": IDS}
    experiment, graph = elaborated(loss, **given)
    _, differentiated = elaborated(f"(grad (fn ({leaf}) {loss}) {leaf})", **given)
    verify(differentiated)
    (gradient,) = run_graph(experiment, differentiated, fixed, double=True).values()
    direction = np.random.default_rng(0).standard_normal(AT[leaf].shape)
    values = []
    for step in (1e-5, -1e-5):
        (value,) = run_graph(experiment, graph, {**fixed, leaf: AT[leaf] + step * direction}, double=True).values()
        values.append(float(value))
    assert_allclose((gradient * direction).sum(), (values[0] - values[1]) / 2e-5, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("leaf", AT)
@pytest.mark.parametrize("name", LOSSES)
def test_gradients_are_slopes(name: str, leaf: str) -> None:
    check_slopes(f"(let {NAMES} {LOSSES[name]})", leaf)


@pytest.mark.parametrize("name", LOSSES)
def test_second_derivatives(name: str) -> None:
    check_slopes(f"(let {NAMES} (sum (square (grad (fn (w) {LOSSES[name]}) w))))", "w")


def test_text_round_trip() -> None:
    _, graph = elaborated(f"(grad (fn (w) {LOSSES['nested']}) w)", x=X, h=H, w=W)
    text = graph_text(graph)
    again = parse_graph(text)
    verify(again)
    assert graph_text(again) == text


# What belongs to the path around a loop.

MODEL = """
(defn cell (x h) (tanh (+ (linear x 4 :name x) (linear h 4 :name h))))
(defmodel net ((x (f32 _ _ _)))
  (let [[h _] (scan [h (zeros (f32 (dim x 0) 4))] [x x] :axis 1
                (let [h (cell x h :name cell)] (next :h h :emit (* h (param gain (f32 4) 1.0)))))]
    h))
(defmetric loss () (sum (net (ones (f32 2 5 3)))))
(defrun go :loss loss :optimizer (sgd :rate 0.1) :steps 1)
"""


def test_parameters_of_a_body_are_made_once_in_the_path_around_it() -> None:
    experiment, found = objective(MODEL)
    assert set(experiment.parameters) == {"net.cell.x.w", "net.cell.x.b", "net.cell.h.w", "net.cell.h.b", "net.gain"}
    (loop,) = [node for node in found.graph.nodes if node.op == "scan"]
    assert len(loop.inputs) == 1 + 1 + 5


def test_a_parameter_twice_in_one_body_clashes() -> None:
    assert codes(MODEL.replace("(linear h 4 :name h)", "(linear h 4 :name x)")) == ["E-PARAM-001"]


@pytest.mark.parametrize("options", ["", ":save 2"])
def test_draws_differ_from_place_to_place_and_loop_to_loop(options: str) -> None:
    text = f"""(let [[_ y] (scan [a 0.0] [x x]
      (let [[_ z] (scan [c 0.0] [r 4] {options} (next :emit (random-uniform (f32 2))))] (next :emit z)))] y)"""
    drawn = value_of(text, x=np.zeros(4, F))
    assert drawn.shape == (4, 4, 2) and len(np.unique(drawn)) == drawn.size
    if options:
        assert_array_equal(drawn, value_of(text.replace(options, ""), x=np.zeros(4, F)))


def test_a_schedule_reaches_the_body() -> None:
    assert value_of("(scan [s 0.0] [x x] (+ s (* x step)))", step=3.0, x=np.ones(4, F)) == 12


# What is refused.

REFUSED = [
    ("(scan [h 0.0] [x x] (let [] (measure a h) (next :h h)))", "E-STATE-001"),
    ("(scan [h 0.0] [x x] (let [s (state s (f32) 0.0)] (set-state s h) (next :h h)))", "E-STATE-001"),
    ("(scan [h 0.0] [x x] (next :h x :emit h))", "E-TYPE-003"),
    ("(scan [h 0.0] [x x] (next :g h))", "E-FORM-003"),
    ("(scan [h 0.0 g 1.0] [x x] (+ h g))", "E-FORM-001"),
    ("(scan [h 0.0] [x x y (zeros (f32 3))] (next :h h))", "E-TYPE-005"),
    ("(scan [h 0.0] [[a b] [x (zeros (f32 3))]] (next :h h))", "E-TYPE-005"),
    ("(scan [h 0.0] [] (next :h h))", "E-FORM-001"),
    ("(scan [h 0.0] [x x])", "E-FORM-001"),
    ("(scan [h 0.0] [x x] :axis 2 (next :h h))", "E-TYPE-005"),
    ("(scan [h 0.0] [x x] :order none (next :h h))", "E-FORM-003"),
    ("(scan [h 0.0] [x x] :axis 1 :save 3 (next :h h))", "E-TYPE-005"),
    ("(scan [h 0.0] [x x] :backwards true (next :h h))", "E-FORM-003"),
    ("(table-scan [row x] [i (iota (i32 2))] (next :row row))", "E-FORM-004"),
    ("(table-scan [row x] [i (iota (i32 2))] :index j (next :row row))", "E-FORM-003"),
    ("(table-scan [row x] [i (ones (f32 2))] :index i (next :row row))", "E-TYPE-001"),
    ("(table-scan [row x] [i (iota (i32 2))] :index i (next :row x))", "E-TYPE-003"),
]


@pytest.mark.parametrize("text, code", REFUSED, ids=[text for text, _ in REFUSED])
def test_refused(text: str, code: str) -> None:
    used = f"(let [x (ones (f32 2 4))] {text})"
    body = f"(defmetric m () (let [r {used}] (square (param w (f32) 1.0))))"
    found = faults(f"{body}\n(defrun go :loss m :optimizer (sgd :rate 0.1) :steps 1)")
    assert [d.code for d in found] == [code], found
    assert found[0].span is not None


def test_a_tensor_of_another_graph_is_not_captured() -> None:
    text = """
(defoptimizer odd (p g :rate _ :noise _) (propose :p (- p (* rate (scan [a g] [n 3] (* a noise))))))
(defmetric loss () (sum (param w (f32 3) 1.0)))
(defrun go :loss loss :optimizer (odd :rate 0.1 :noise 0.5) :steps 1)
"""
    rule = load_text(text).run.updates[0].rules["w"]
    assert any(node.op == "scan" for node in rule.graph.nodes)
