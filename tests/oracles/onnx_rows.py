"""How ONNX's norms, softmax, losses and attention are written in our language."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.oracles.cases import Skip, vector
from tests.oracles.onnx_nodes import OnnxWriter

W = OnnxWriter
Adapter = Callable[..., str]


def softmax(name: str) -> Adapter:
    def adapter(w: W, x: Any, axis: int | None = None) -> str:
        axis = axis if axis is not None else (-1 if w.opset >= 13 else 1)
        if w.opset >= 13:
            return f"({name} {w(x)} :axis {axis})"
        flat = [math.prod(x.shape[:axis]), math.prod(x.shape[axis:])]
        return f"(reshape ({name} (reshape {w(x)} {vector(flat)})) {vector(x.shape)})"

    return adapter


def hardmax(w: W, x: Any, axis: int = -1) -> str:
    a, names = axis % x.ndim, [f"a{i}" for i in range(x.ndim)]
    rest = [n for i, n in enumerate(names) if i != a]
    made = f"(one-hot (argmax {w(x)} :axis {a}) {x.shape[a]})"
    return f'(rearrange "{" ".join([*rest, names[a]])} -> {" ".join(names)}" {made})'


def _row(w: W, x: Any, axis: int) -> tuple[str, int, list[int]]:
    a = axis % x.ndim
    size = math.prod(x.shape[a:])
    return f"(reshape {w(x)} {vector([*x.shape[:a], size])})", size, [*x.shape[:a], *[1] * (x.ndim - a)]


def layer_norm(w: W, x: Any, scale: Any, bias: Any = None, axis: int = -1, epsilon: float = 1e-5,
               stash_type: int = 1) -> str:  # fmt: skip
    row, _, kept = _row(w, x, axis)
    w.own("n.scale", scale.reshape(-1).astype(np.float32))
    if bias is not None:
        w.own("n.bias", bias.reshape(-1).astype(np.float32))
    plain = "" if bias is not None else " :bias false"
    made = f"(reshape (layer-norm {row} :eps {epsilon!r}{plain} :name n) {vector(x.shape)})"
    if len(w.outputs) == 1:
        return made
    return (f"(let [y {made} x {row} m (mean x :axis -1 :keep true) v (mean (square (- x m)) :axis -1 :keep true)] "
            f"[y (reshape m {vector(kept)}) (reshape (rsqrt (+ v {epsilon!r})) {vector(kept)})])")  # fmt: skip


def rms_norm(w: W, x: Any, scale: Any, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1) -> str:
    row, size, _ = _row(w, x, axis)
    if scale.size != size:
        raise Skip("a scale that is stretched")
    w.own("n.scale", scale.reshape(-1).astype(np.float32))
    return f"(reshape (rms-norm {row} :eps {epsilon!r} :name n) {vector(x.shape)})"


def group_norm(w: W, x: Any, scale: Any, bias: Any, num_groups: int, epsilon: float = 1e-5, stash_type: int = 1) -> str:
    w.own("n.scale", scale)
    w.own("n.bias", bias)
    made = f'(group-norm (rearrange "b c ... -> b ... c" {w(x)}) {num_groups} :eps {epsilon!r} :name n)'
    return f'(rearrange "b ... c -> b c ..." {made})'


def instance_norm(w: W, x: Any, scale: Any, bias: Any, epsilon: float = 1e-5) -> str:
    return group_norm(w, x, scale, bias, x.shape[1], epsilon)


def batch_norm(w: W, x: Any, scale: Any, bias: Any, mean: Any, var: Any, epsilon: float = 1e-5, momentum: float = 0.9,
               training_mode: int = 0) -> str:  # fmt: skip
    if not training_mode:
        for name, value in (("scale", scale), ("bias", bias), ("mean", mean), ("variance", var)):
            w.own(f"n.{name}", value)
        made = f'(batch-norm (rearrange "b c ... -> b ... c" {w(x)}) :eps {epsilon!r} :name n)'
        return f'(rearrange "b ... c -> b c ..." {made})'
    axes, wide = vector([0, *range(2, x.ndim)]), vector([-1 if i == 1 else 1 for i in range(x.ndim)]).replace("-1", "_")
    less = f"(* {1 - momentum!r} "
    return (f"(let [x {w(x)} m (mean x :axis {axes} :keep true) c (- x m) v (mean (square c) :axis {axes} :keep true)] "
            f"[(+ (* (* c (rsqrt (+ v {epsilon!r}))) (reshape {w(scale)} {wide})) (reshape {w(bias)} {wide})) "
            f"(+ (* {momentum!r} {w(mean)}) {less}(reshape m [_]))) "
            f"(+ (* {momentum!r} {w(var)}) {less}(reshape v [_])))])")  # fmt: skip


def lp_norm(w: W, x: Any, axis: int = -1, p: int = 2) -> str:
    size = "(sum (abs x) {o})" if p == 1 else "(sqrt (sum (square x) {o}))"
    total = size.format(o=f":axis {axis} :keep true")
    return f"(let [x {w(x)} n {total}] (where (= n 0) 0.0 (/ x (where (= n 0) 1.0 n))))"


def mvn(w: W, x: Any, axes: Any = (0, 2, 3)) -> str:
    a = vector(list(axes))
    return (f"(let [x {w(x)} c (- x (mean x :axis {a} :keep true))] "
            f"(/ c (+ (sqrt (mean (square c) :axis {a} :keep true)) 1e-9)))")  # fmt: skip


def lrn(w: W, x: Any, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> str:
    low, high = (size - 1) // 2, size - 1 - (size - 1) // 2
    taps = " ".join(f"(slice s {i} {i + x.shape[1]} :axis 1)" for i in range(size))
    return (f"(let [x {w(x)} s (pad (square x) {low} {high} :axis 1) t (+ {taps})] "
            f"(/ x (pow (+ {bias!r} (* {alpha / size!r} t)) {beta!r})))")  # fmt: skip


def nll(w: W, x: Any, target: Any, weight: Any = None, reduction: str = "mean", ignore_index: int | None = None) -> str:
    text, share = _nll("x", w, target, weight, ignore_index)
    return f"(let [x {w(x)}] {_reduced(text, share, reduction)})"


def _nll(x: str, w: W, target: Any, weight: Any, ignore: int | None) -> tuple[str, str]:
    ids, seen = w(target), "1.0"
    if ignore is not None:
        seen = f"(cast (!= {ids} {ignore}) f32)"
        ids = f"(where (!= {ids} {ignore}) {ids} 0)"
    each = f"(gather {w(weight)} {ids})" if weight is not None else f"(ones (type f32 (shape {ids})))"
    share = f"(* {seen} {each})"
    return f"(* {share} (- (pick {x} {ids} :axis 1)))", share


def _reduced(text: str, share: str, reduction: str) -> str:
    if reduction == "mean":
        return f"(/ (sum {text}) (sum {share}))"
    return text if reduction == "none" else f"(sum {text})"


def cross_entropy(w: W, x: Any, target: Any, weight: Any = None, reduction: str = "mean",
                  ignore_index: int | None = None) -> str:  # fmt: skip
    text, share = _nll("l", w, target, weight, ignore_index)
    names = [f"a{i}" for i in range(x.ndim)]
    moved = [names[0], *names[2:], names[1]]
    if weight is None and ignore_index is None:
        logits = f'(rearrange "{" ".join(names)} -> {" ".join(moved)}" {w(x)})'
        text = f"(cross-entropy {logits} {w(target)})"
    made = _reduced(text, share, reduction)
    return f"(let [l (log-softmax {w(x)} :axis 1)] {made if len(w.outputs) == 1 else f'[{made} l]'})"


def rotary(w: W, x: Any, cos: Any, sin: Any, ids: Any = None, interleaved: int = 0, num_heads: int = 0,
           rotary_embedding_dim: int = 0) -> str:  # fmt: skip
    """By tables of cosines and sines, which `rope` makes itself."""
    text, flat = w(x), x.ndim == 3
    if flat:
        d = x.shape[2] // num_heads
        text = f'(rearrange "b t (h d) -> b h t d" {text} :h {num_heads})'
    else:
        d = x.shape[3]
    turned = rotary_embedding_dim or d
    tables = [f"(gather {w(t)} {w(ids)})" if ids is not None else w(t) for t in (cos, sin)]
    tables = [f'(rearrange "b t f -> b 1 t f" (slice {t} 0 {turned // 2} :axis -1))' for t in tables]
    if interleaved:
        halves = f"[a e] (unstack (reshape y [_ {text_dims(x, num_heads)} {turned // 2} 2]) :axis -1)"
        joined = f"(reshape (stack [p q] :axis -1) (shape y))"  # noqa: F541
    else:
        halves, joined = "[a e] (split y 2 :axis -1)", "(concat [p q] :axis -1)"
    made = (f"(let [z {text} y (slice z 0 {turned} :axis -1) {halves} c {tables[0]} s {tables[1]} "
            f"p (- (* a c) (* e s)) q (+ (* a s) (* e c)) y2 {joined}] "
            f"{'y2' if turned == d else f'(concat [y2 (slice z {turned} :axis -1)] :axis -1)'})")  # fmt: skip
    return f'(rearrange "b h t d -> b t (h d)" {made})' if flat else made


def text_dims(x: Any, heads: int) -> str:
    """The sizes (h t) of x, whichever way it is laid out."""
    return f"{heads} {x.shape[1]}" if x.ndim == 3 else f"{x.shape[1]} {x.shape[2]}"


def attention(w: W, q: Any, k: Any, v: Any, mask: Any = None, past_k: Any = None, past_v: Any = None,
              lengths: Any = None, is_causal: int = 0, kv_num_heads: int = 0, q_num_heads: int = 0,
              qk_matmul_output_mode: int = 0, scale: float | None = None, softcap: float = 0.0,
              softmax_precision: int = 1, left_window_size: int = -1, right_window_size: int = -1) -> str:  # fmt: skip
    """By `attention` where it has the words, else by the products and the softmax that it is made of."""
    if q.dtype.name == "bfloat16" or lengths is not None:
        raise Skip("attention over a cache of several lengths" if lengths is not None else "a bf16 rounding inside")
    flat = q.ndim == 3
    texts, sizes = [], []
    for x, heads in ((q, q_num_heads), (k, kv_num_heads), (v, kv_num_heads)):
        texts.append(f'(rearrange "b t (h d) -> b h t d" {w(x)} :h {heads})' if flat else w(x))
        sizes.append((x.shape[0], heads, x.shape[1], x.shape[2] // heads) if flat else x.shape)
    past = 0
    if past_k is not None:
        past = past_k.shape[2]
        texts[1:] = [f"(concat [{w(p)} {t}] :axis 2)" for p, t in zip((past_k, past_v), texts[1:], strict=True)]
    t, s = sizes[0][2], sizes[1][2] + past
    tests = []
    rows, columns = f"(+ (iota (i32 {t} {s}) :axis 0) {past})", f"(iota (i32 {t} {s}) :axis 1)"
    if is_causal:
        tests.append(f"(>= {rows} {columns})")
    if left_window_size >= 0:
        tests.append(f"(<= (- {rows} {columns}) {left_window_size})")
    if right_window_size >= 0:
        tests.append(f"(<= (- {columns} {rows}) {right_window_size})")
    added = None
    if mask is not None:
        short = mask.shape[-1] < s
        if mask.ndim == 1 or short:
            raise Skip("a mask that is stretched or shorter than the keys")
        if mask.dtype == bool:
            tests.append(w(mask))
        else:
            added = w(mask)
    scale = scale if scale is not None else 1 / math.sqrt(sizes[0][3])
    seen = tests[0] if len(tests) == 1 else f"(and {' '.join(tests)})" if tests else None
    if seen and len(tests) > 1 and mask is not None and mask.dtype == bool and mask.ndim > 2:
        wide = vector([*[1] * (mask.ndim - 2), t, s])
        seen = f"(and {w(mask)} (reshape (and {' '.join(tests[:-1])}) {wide}))" if len(tests) > 2 else \
            f"(and {w(mask)} (reshape {tests[0]} {wide}))"  # fmt: skip
    if added is None and not softcap and len(w.outputs) in (1, 3):
        made = f"(attention q k v {f':mask {seen}' if seen else ''} :scale {scale!r})"
        scores = ""
    else:
        scores, made = _scores(sizes, scale, softcap, added, mask, seen, t, s)
    made = f'(rearrange "b h t d -> b t (h d)" {made})' if flat else made
    parts = [made]
    if past_k is not None and len(w.outputs) >= 3:
        parts += ["k", "v"]
    if len(w.outputs) in (2, 4):
        parts.append({0: "raw", 1: _mode(1, w.opset), 2: _mode(2, w.opset), 3: "p"}[qk_matmul_output_mode])
    bound = f"q {texts[0]} k {texts[1]} v {texts[2]} {scores}"
    return f"(let [{bound}] {parts[0] if len(parts) == 1 else vector(parts)})"


def _mode(mode: int, opset: int) -> str:
    """Scores after the cap and after the mask; which comes first has changed."""
    return {1: "capped", 2: "masked"}[mode]


def _scores(sizes: Any, scale: float, softcap: float, added: str | None, mask: Any, seen: str | None, t: int,
            s: int) -> tuple[str, str]:  # fmt: skip
    groups = sizes[0][1] // sizes[1][1]
    keys, values = ("(repeat-heads k {0})", "(repeat-heads v {0})") if groups > 1 else ("k", "v")
    shape = [sizes[0][0], sizes[0][1], t, s]
    bound = [f'raw (* {scale!r} (product "b h t d, b h s d -> b h t s" q {keys.format(groups)}))',
             f"capped {f'(* {softcap!r} (tanh (/ raw {softcap!r})))' if softcap else 'raw'}"]  # fmt: skip
    text = f"(+ capped (broadcast {added} {vector(shape)}))" if added else "capped"
    if seen:
        text = f"(where (broadcast {seen} {vector(shape)}) {text} (- inf))"
    bound.append(f"masked {text}")
    bound.append("top (maximum (max masked :axis -1 :keep true) -1e30) e (exp (- masked top)) "
                 "p (/ e (maximum (sum e :axis -1 :keep true) 1e-30))")  # fmt: skip
    return " ".join(bound), f'(product "b h t s, b h s d -> b h t d" p {values.format(groups)})'


ROWS: dict[str, dict[str, Adapter]] = {
    "softmax, norms, losses, attention": {
        "Softmax": softmax("softmax"), "LogSoftmax": softmax("log-softmax"), "Hardmax": hardmax,
        "LayerNormalization": layer_norm, "RMSNormalization": rms_norm, "GroupNormalization": group_norm,
        "InstanceNormalization": instance_norm, "BatchNormalization": batch_norm, "LpNormalization": lp_norm,
        "MeanVarianceNormalization": mvn, "LRN": lrn, "NegativeLogLikelihoodLoss": nll,
        "SoftmaxCrossEntropyLoss": cross_entropy, "RotaryEmbedding": rotary, "Attention": attention,
    }
}  # fmt: skip
