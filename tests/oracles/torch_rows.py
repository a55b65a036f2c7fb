"""How PyTorch's softmax, norms, losses and attention are written in our language."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from tests.oracles.cases import Adapter, Skip, vector
from tests.oracles.opinfo import TorchWriter
from tests.oracles.torch_elementwise import options
from tests.oracles.torch_reduce import norm

W = TorchWriter


def softmax(name: str, sign: str = "") -> Adapter:
    def adapter(w: W, x: Any, dim: int, dtype: Any = None, _stacklevel: int = 3) -> str:
        if x.ndim == 0:
            return f"(reshape ({name} (reshape {w(x)} [1])) [])"
        if x.shape[dim] == 0:
            raise Skip("rows of nothing")
        text = f"(- {w(x)})" if sign else w(x)
        return f"({name} {text} :axis {dim})"

    return adapter


def reduced(text: str, reduction: str) -> str:
    """A loss an element, reduced as PyTorch's keyword says."""
    return {"none": text, "mean": f"(mean {text})", "sum": f"(sum {text})"}[reduction]


def _legacy(reduction: str, size_average: Any, reduce: Any) -> str:
    if size_average is None and reduce is None:
        return reduction
    raise Skip("a reduction in old words")


def pairwise(form: str) -> Adapter:
    """A loss of two tensors, elementwise."""

    def adapter(w: W, x: Any, y: Any, size_average: Any = None, reduce: Any = None, reduction: str = "mean",
                weight: Any = None, **settings: float) -> str:  # fmt: skip
        a, b = w.stretched(x, y)
        bound = " ".join(f"{k} {float(v)!r}" for k, v in settings.items())
        text = f"(let [x {a} y {b} {bound}] {form})"
        if weight is not None:
            raise Skip("weights of elements")
        return reduced(text, _legacy(reduction, size_average, reduce))

    return adapter


def huber(w: W, x: Any, y: Any, reduction: str = "mean", delta: float = 1.0, weight: Any = None) -> str:
    a, b = w.stretched(x, y)
    return reduced(f"(huber {a} {b} :delta {float(delta)!r})", reduction)


def smooth_l1(w: W, x: Any, y: Any, size_average: Any = None, reduce: Any = None, reduction: str = "mean",
              beta: float = 1.0) -> str:  # fmt: skip
    a, b = w.stretched(x, y)
    if beta == 0:
        return reduced(f"(abs (- {a} {b}))", reduction)
    return reduced(f"(/ (huber {a} {b} :delta {float(beta)!r}) {float(beta)!r})", reduction)


def bce_with_logits(w: W, x: Any, y: Any, weight: Any = None, size_average: Any = None, reduce: Any = None,
                    reduction: str = "mean", pos_weight: Any = None) -> str:  # fmt: skip
    text = f"(binary-cross-entropy {w(x)} {w(y)})"
    if pos_weight is not None:
        p = f"(broadcast {w(pos_weight)} {vector(x.shape)})"
        text = f"(let [x {w(x)} t {w(y)}] (+ (* (- 1.0 t) x) (* (+ 1.0 (* (- {p} 1.0) t)) (softplus (- x)))))"
    if weight is not None:
        text = f"(* {text} (broadcast {w(weight)} {vector(x.shape)}))"
    return reduced(text, _legacy(reduction, size_average, reduce))


def bce(w: W, x: Any, y: Any, weight: Any = None, size_average: Any = None, reduce: Any = None,
        reduction: str = "mean") -> str:  # fmt: skip
    logs = "(- (+ (* t (maximum (log x) -100.0)) (* (- 1.0 t) (maximum (log1p (- x)) -100.0))))"
    text = f"(let [x {w(x)} t {w(y)}] {logs})"
    if weight is not None:
        text = f"(* {text} (broadcast {w(weight)} {vector(x.shape)}))"
    return reduced(text, _legacy(reduction, size_average, reduce))


def kl_div(w: W, x: Any, y: Any, size_average: Any = None, reduce: Any = None, reduction: str = "mean",
           log_target: bool = False) -> str:  # fmt: skip
    form = "(* (exp y) (- y x))" if log_target else "(- (where (> y 0) (* y (log y)) 0.0) (* y x))"
    text = f"(let [x {w(x)} y {w(y)}] {form})"
    if reduction == "batchmean":
        return f"(/ (sum {text}) {float(x.shape[0])!r})"
    return reduced(text, reduction)


def poisson(w: W, x: Any, y: Any, log_input: bool = True, full: bool = False, size_average: Any = None,
            eps: float = 1e-8, reduce: Any = None, reduction: str = "mean") -> str:  # fmt: skip
    form = "(- (exp x) (* y x))" if log_input else f"(- x (* y (log (+ x {eps!r}))))"
    if full:
        more = f"(+ (- (* y (log y)) y) (* 0.5 (log (* y {2 * math.pi!r}))))"
        form = f"(+ {form} (where (> y 1.0) {more} 0.0))"
    return reduced(f"(let [x {w(x)} y {w(y)}] {form})", reduction)


def gaussian(w: W, x: Any, y: Any, var: Any, full: bool = False, eps: float = 1e-6, reduction: str = "mean") -> str:
    if isinstance(var, torch.Tensor) and var.ndim == x.ndim - 1 and x.ndim:
        a, b = w.stretched(x, y)
        v = f"(reshape {w(var)} {vector([*var.shape, 1])})"
    else:
        a, b, v = w.stretched(x, y, var)
    text = (f"(let [x {a} y {b} u {v} v (+ u (stop-gradient (- (maximum u {eps!r}) u)))] "
            f"(* 0.5 (+ (log v) (/ (square (- x y)) v))))")  # fmt: skip
    if full:
        text = f"(+ {text} {0.5 * math.log(2 * math.pi)!r})"
    return reduced(text, reduction)


def cross_entropy(w: W, x: Any, target: Any, weight: Any = None, size_average: Any = None, ignore_index: int = -100,
                  reduce: Any = None, reduction: str = "mean", label_smoothing: float = 0.0) -> str:  # fmt: skip
    _legacy(reduction, size_average, reduce)
    if target.is_floating_point():
        return _soft(w, x, target, weight, reduction, label_smoothing)
    axis = 0 if x.ndim == 1 else 1
    names = [f"a{i}" for i in range(x.ndim)]
    moved = [*(n for i, n in enumerate(names) if i != axis), names[axis]]
    logits = f'(rearrange "{" ".join(names)} -> {" ".join(moved)}" {w(x)})'
    if weight is None and not (target == ignore_index).any():
        return reduced(f"(cross-entropy {logits} {w(target)} :smoothing {float(label_smoothing)!r})", reduction)
    if label_smoothing and weight is not None:
        raise Skip("smoothing and weights of classes together")
    seen = f"(!= {w(target)} {ignore_index})"
    ids = f"(where {seen} {w(target)} 0)"
    share = f"(* (cast {seen} f32) {f'(gather {w(weight)} {ids})' if weight is not None else '1.0'})"
    text = f"(* {share} (cross-entropy {logits} {ids} :smoothing {float(label_smoothing)!r}))"
    return _weighed(text, share, reduction)


def _weighed(text: str, share: str, reduction: str) -> str:
    return f"(/ (sum {text}) (sum {share}))" if reduction == "mean" else reduced(text, reduction)


def _soft(w: W, x: Any, target: Any, weight: Any, reduction: str, smoothing: float) -> str:
    axis = 0 if x.ndim == 1 else 1
    classes = x.shape[axis]
    t = f"(+ (* {1 - smoothing!r} {w(target)}) {smoothing / classes!r})" if smoothing else w(target)
    if weight is not None:
        shape = [classes if i == axis else 1 for i in range(x.ndim)]
        t = f"(* {t} (reshape {w(weight)} {vector(shape)}))"
    text = f"(- (sum (* {t} (log-softmax {w(x)} :axis {axis})) :axis {axis}))"
    rows = x.numel() / classes
    return f"(/ (sum {text}) {rows!r})" if reduction == "mean" else reduced(text, reduction)


def nll_loss(w: W, x: Any, target: Any, weight: Any = None, size_average: Any = None, ignore_index: int = -100,
             reduce: Any = None, reduction: str = "mean") -> str:  # fmt: skip
    axis = 0 if x.ndim == 1 else 1
    seen = f"(!= {w(target)} {ignore_index})"
    ids = f"(where {seen} {w(target)} 0)"
    share = f"(* (cast {seen} f32) {f'(gather {w(weight)} {ids})' if weight is not None else '1.0'})"
    return _weighed(f"(* {share} (- (pick {w(x)} {ids} :axis {axis})))", share, reduction)


def _rows(w: W, x: Any, shape: Any) -> str:
    """x with the axes that are normalised made one."""
    kept = x.shape[: x.ndim - len(shape)]
    return f"(reshape {w(x)} {vector([*kept, math.prod(shape)])})"


def _own(w: W, layer: str, x: Any, scale: Any, bias: Any, size: int) -> None:
    for name, value, default in (("scale", scale, torch.ones), ("bias", bias, torch.zeros)):
        w.own_tensor(f"n.{name}", value if value is not None else default(size))


def layer_norm(w: W, x: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> str:
    if math.prod(shape) == 0:
        raise Skip("rows of nothing")
    _own(w, "layer-norm", x, weight, bias, math.prod(shape))
    return f"(reshape (layer-norm {_rows(w, x, shape)} :eps {eps!r} :name n) {vector(x.shape)})"


def rms_norm(w: W, x: Any, shape: Any, weight: Any = None, eps: float | None = None) -> str:
    if math.prod(shape) == 0:
        raise Skip("rows of nothing")
    w.own_tensor("n.scale", weight if weight is not None else torch.ones(math.prod(shape)))
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    return f"(reshape (rms-norm {_rows(w, x, shape)} :eps {eps!r} :name n) {vector(x.shape)})"


def group_norm(w: W, x: Any, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> str:
    if x.numel() == 0:
        raise Skip("rows of nothing")
    _own(w, "group-norm", x, weight, bias, x.shape[1])
    made = f'(group-norm (rearrange "b c ... -> b ... c" {w(x)}) {groups} :eps {eps!r} :name n)'
    return f'(rearrange "b ... c -> b c ..." {made})'


def instance_norm(w: W, x: Any, running_mean: Any = None, running_var: Any = None, weight: Any = None,
                  bias: Any = None, use_input_stats: bool = True, momentum: float = 0.1,
                  eps: float = 1e-5) -> str:  # fmt: skip
    if not use_input_stats:
        raise Skip("running values of an instance norm")
    return group_norm(w, x, x.shape[1], weight, bias, eps)


def batch_norm(w: W, x: Any, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None,
               training: bool = False, momentum: float = 0.1, eps: float = 1e-5) -> str:  # fmt: skip
    """Outside training the layer; in training its formula, since the states of a layer move in losses only."""
    if x.numel() == 0:
        raise Skip("rows of nothing")
    c = x.shape[1]
    if not training:
        _own(w, "batch-norm", x, weight, bias, c)
        w.own_tensor("n.mean", running_mean)
        w.own_tensor("n.variance", running_var)
        made = f'(batch-norm (rearrange "b c ... -> b ... c" {w(x)}) :eps {eps!r} :name n)'
        return f'(rearrange "b ... c -> b c ..." {made})'
    axes = vector([0, *range(2, x.ndim)])
    wide = vector([c if i == 1 else 1 for i in range(x.ndim)])
    scale = f"(reshape {w(weight)} {wide})" if weight is not None else "1.0"
    shift = f"(reshape {w(bias)} {wide})" if bias is not None else "0.0"
    return (f"(let [x {w(x)} c (- x (mean x :axis {axes} :keep true)) v (mean (square c) :axis {axes} :keep true)] "
            f"(+ (* (* c (rsqrt (+ v {eps!r}))) {scale}) {shift}))")  # fmt: skip


def normalize(w: W, x: Any, p: float = 2.0, dim: Any = 1, eps: float = 1e-12, out: Any = None) -> str:
    if x.ndim == 0:
        return f"(let [x {w(x)}] (/ x (maximum (abs x) {eps!r})))"
    size = norm(w, x, p, dim, True)
    return f"(/ {w(x)} (maximum {size} {eps!r}))"


def cosine(w: W, x: Any, y: Any, dim: int = 1, eps: float = 1e-8) -> str:
    if x.ndim and x.shape[dim] != y.shape[dim]:
        raise Skip("lengths of rows before they are stretched")
    a, b = w.stretched(x, y)
    total: Callable[[str], str] = lambda t: f"(sum {t} :axis {dim})" if max(x.ndim, y.ndim) else t  # noqa: E731
    return (f"(let [x {a} y {b}] (/ {total('(* x y)')} (* (maximum (sqrt {total('(square x)')}) {eps!r}) "
            f"(maximum (sqrt {total('(square y)')}) {eps!r}))))")  # fmt: skip


def distance(w: W, x: Any, y: Any, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> str:
    a, b = w.stretched(x, y)
    keep = " :keep true" if keepdim else ""
    d = f"(+ (- {a} {b}) {eps!r})"
    if p == 2:
        return f"(sqrt (sum (square {d}) :axis -1{keep}))"
    return f"(pow (sum (pow (abs {d}) {float(p)!r}) :axis -1{keep}) {1 / p!r})"


def attention(w: W, q: Any, k: Any, v: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
              scale: float | None = None, enable_gqa: bool = False) -> str:  # fmt: skip
    """PyTorch counts what a query may see from the first key on, we from the last; a mask says it for both."""
    if dropout_p:
        raise Skip("random draws")
    if enable_gqa or {q.ndim, k.ndim, v.ndim} not in ({3}, {4}):
        raise Skip("attention whose operands differ in rank")
    lead = [1] if q.ndim == 3 else []
    parts = [f"(reshape {w(t)} {vector([*lead, *t.shape])})" for t in (q, k, v)]
    t, s = q.shape[-2], k.shape[-2]
    mask = ""
    if is_causal:
        mask = f":mask (>= (iota (i32 {t} {s}) :axis 0) (iota (i32 {t} {s}) :axis 1))"
    elif attn_mask is not None:
        if attn_mask.dtype != torch.bool:
            raise Skip("a mask of numbers that are added")
        mask = f":mask {w(attn_mask)}"
    scale_text = f":scale {float(scale)!r}" if scale is not None else ""
    made = f"(attention {' '.join(parts)} {mask} {scale_text})"
    return f"(gather {made} 0)" if lead else made


def local_response(w: W, x: Any, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> str:
    if x.numel() == 0:
        raise Skip("rows of nothing")
    square = f"(pad (square {w(x)}) {size // 2} {(size - 1) // 2} :axis 1)"
    taps = " ".join(f"(slice s {i} {i + x.shape[1]} :axis 1)" for i in range(size))
    total = f"(+ {taps})" if size > 1 else f"(let [s s] {taps})"
    return (f"(let [s {square} m (* {alpha / size!r} {total})] "
            f"(/ {w(x)} (pow (+ {float(k)!r} m) {beta!r})))")  # fmt: skip


def triplet(w: W, a: Any, p: Any, n: Any, margin: float = 1.0, p_: float = 2, eps: float = 1e-6, swap: bool = False,
            size_average: Any = None, reduce: Any = None, reduction: str = "mean") -> str:  # fmt: skip
    near, far = distance(w, a, p, eps=eps), distance(w, a, n, eps=eps)
    if swap:
        far = f"(minimum {far} {distance(w, p, n, eps=eps)})"
    return reduced(f"(maximum (+ {margin!r} (- {near} {far})) 0.0)", reduction)


def margin_ranking(w: W, x: Any, y: Any, target: Any, margin: float = 0.0, size_average: Any = None,
                   reduce: Any = None, reduction: str = "mean") -> str:  # fmt: skip
    a, b, t = w.stretched(x, y, target)
    return reduced(f"(maximum (+ (* (- {t}) (- {a} {b})) {margin!r}) 0.0)", reduction)


def hinge_embedding(w: W, x: Any, y: Any, margin: float = 1.0, size_average: Any = None, reduce: Any = None,
                    reduction: str = "mean") -> str:  # fmt: skip
    a, b = w.stretched(x, y)
    return reduced(f"(let [x {a} y {b}] (+ (where (!= y 1) (maximum (- {margin!r} x) 0.0) (* 0.0 x)) "
                   f"(where (!= y -1) x (* 0.0 x))))", reduction)  # fmt: skip


def native(adapter: Any) -> Adapter:
    """The same with the saved mean and deviation as further outputs, which are not compared."""
    return options(adapter, compared=1)


ROWS: dict[str, Adapter] = {
    "softmax": softmax("softmax"), "softmax.with_dtype": softmax("softmax"), "log_softmax": softmax("log-softmax"),
    "log_softmax.with_dtype": softmax("log-softmax"), "nn.functional.softmin": softmax("softmax", "-"),
    "nn.functional.softmin.with_dtype": softmax("softmax", "-"),
    "nn.functional.mse_loss": pairwise("(square (- x y))"), "nn.functional.l1_loss": pairwise("(abs (- x y))"),
    "nn.functional.smooth_l1_loss": smooth_l1, "nn.functional.huber_loss": huber,
    "nn.functional.soft_margin_loss": pairwise("(softplus (- (* y x)))"),
    "nn.functional.binary_cross_entropy_with_logits": bce_with_logits, "nn.functional.binary_cross_entropy": bce,
    "nn.functional.kl_div": kl_div, "nn.functional.poisson_nll_loss": poisson,
    "nn.functional.gaussian_nll_loss": gaussian, "nn.functional.cross_entropy": cross_entropy,
    "nn.functional.nll_loss": nll_loss, "nn.functional.layer_norm": layer_norm, "nn.functional.rms_norm": rms_norm,
    "nn.functional.group_norm": group_norm, "nn.functional.instance_norm": instance_norm,
    "nn.functional.batch_norm": batch_norm, "native_layer_norm": native(layer_norm),
    "native_group_norm": native(lambda w, x, weight, bias, n, c, hw, groups, eps: group_norm(
        w, x, groups, weight, bias, eps)),
    "native_batch_norm": native(lambda w, x, weight, bias, mean, var, training, momentum, eps: batch_norm(
        w, x, mean, var, weight, bias, training, momentum, eps)),
    "nn.functional.normalize": normalize, "nn.functional.cosine_similarity": cosine,
    "nn.functional.pairwise_distance": distance, "nn.functional.scaled_dot_product_attention": attention,
    "nn.functional.local_response_norm": local_response, "nn.functional.triplet_margin_loss": triplet,
    "nn.functional.margin_ranking_loss": margin_ranking, "nn.functional.hinge_embedding_loss": hinge_embedding,
    "nn.functional.logsigmoid": lambda w, x: f"(- (softplus (- {w(x)})))",
}  # fmt: skip
