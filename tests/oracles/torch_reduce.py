"""How PyTorch's reductions, running folds and orders are written in our language."""

from __future__ import annotations

import math
from typing import Any

import torch

from tests.oracles.cases import Adapter, Skip, number, vector
from tests.oracles.opinfo import TorchWriter
from tests.oracles.torch_elementwise import options

W = TorchWriter


def _axes(x: Any, dim: Any) -> list[int]:
    """The axes that PyTorch means; an empty tuple is all of them, and a scalar has none."""
    if dim is None or (isinstance(dim, list | tuple) and not dim):
        return list(range(x.ndim))
    dims = [dim] if isinstance(dim, int) else list(dim)
    return sorted(d % x.ndim for d in dims) if x.ndim else []


def _opts(x: Any, dim: Any, keepdim: bool) -> str:
    return f":axis {vector(_axes(x, dim))}" + (" :keep true" if keepdim and x.ndim else "")


def _dtype(dtype: Any) -> None:
    if dtype not in (None, torch.float32, torch.float64):
        raise Skip(f"a reduction in {dtype}")


def fold(name: str, *, of_nothing: bool = True) -> Adapter:
    def adapter(w: W, x: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> str:
        _dtype(dtype)
        if not of_nothing and any(x.shape[a] == 0 for a in _axes(x, dim)):
            raise Skip(f"`{name}` of nothing, which we refuse")
        return f"({name} {w.f(x)} {_opts(x, dim, keepdim)})"

    return adapter


def single(name: str) -> Adapter:
    """The value and the place along one axis."""

    def adapter(w: W, x: Any, dim: int, keepdim: bool = False) -> str:
        if x.ndim == 0:
            return f"[{w(x)} (reshape (iota (i32 1)) [])]"
        keep = " :keep true" if keepdim else ""
        return f"(let [x {w(x)}] [({name} x :axis {dim}{keep}) (arg{name} x :axis {dim}{keep})])"

    return adapter


def logical(name: str) -> Adapter:
    def adapter(w: W, x: Any, dim: Any = None, keepdim: bool = False) -> str:
        test = w(x) if x.dtype == torch.bool else f"(!= {w.f(x)} 0)"
        if not _axes(x, dim) and not x.ndim:
            return test
        return f"({name} {test} {_opts(x, dim, keepdim)})"

    return adapter


def place(name: str) -> Adapter:
    def adapter(w: W, x: Any, dim: Any = None, keepdim: bool = False) -> str:
        if x.ndim == 0:
            return "(reshape (iota (i32 1)) [])"
        if dim is None:
            shape = f" {vector([1] * x.ndim)}" if keepdim else ""
            made = f"({name} (reshape {w(x)} [_]))"
            return f"(reshape {made}{shape})" if keepdim else made
        return f"({name} {w(x)} :axis {dim}{' :keep true' if keepdim else ''})"

    return adapter


def count_nonzero(w: W, x: Any, dim: Any = None) -> str:
    if x.ndim == 0:
        return f"(cast (!= {w.f(x)} 0) i32)"
    return f"(sum (cast (!= {w.f(x)} 0) i32) :axis {vector(_axes(x, dim))})"


def _moments(w: W, x: Any, dim: Any, unbiased: Any, keepdim: bool, correction: Any) -> tuple[str, str, str]:
    axes = _axes(x, dim)
    n = math.prod(x.shape[a] for a in axes)
    less = correction if correction is not None else (1 if unbiased is None or unbiased else 0)
    if n == 0 or n - less <= 0:
        raise Skip("a variance over no degrees of freedom")
    opts = _opts(x, dim, keepdim)
    centred = f"(- x (mean x :axis {vector(axes)} :keep true))" if x.ndim else "(- x x)"
    return f"(let [x {w(x)} v (/ (sum (square {centred}) {opts}) {float(n - less)!r})]", opts, "v"


def _dims(dim: Any, unbiased: Any) -> tuple[Any, Any]:
    return (None, dim) if isinstance(dim, bool) else (dim, unbiased)


def var(w: W, x: Any, dim: Any = None, unbiased: Any = None, keepdim: bool = False, correction: Any = None) -> str:
    dim, unbiased = _dims(dim, unbiased)
    before, _, v = _moments(w, x, dim, unbiased, keepdim, correction)
    return f"{before} {v})"


def std(w: W, x: Any, dim: Any = None, unbiased: Any = None, keepdim: bool = False, correction: Any = None) -> str:
    dim, unbiased = _dims(dim, unbiased)
    before, _, v = _moments(w, x, dim, unbiased, keepdim, correction)
    return f"{before} (sqrt {v}))"


def with_mean(root: bool) -> Adapter:
    def adapter(w: W, x: Any, dim: Any = None, unbiased: Any = None, keepdim: bool = False,
                correction: Any = None) -> str:  # fmt: skip
        dim, unbiased = _dims(dim, unbiased)
        before, opts, v = _moments(w, x, dim, unbiased, keepdim, correction)
        return f"{before} [{f'(sqrt {v})' if root else v} (mean x {opts})])"

    return adapter


def logsumexp(w: W, x: Any, dim: Any, keepdim: bool = False) -> str:
    axes = _axes(x, dim)
    if x.ndim == 0:
        return f"{w.f(x)}"
    if any(x.shape[a] == 0 for a in axes):
        raise Skip("`logsumexp` of nothing, which we refuse")
    return f"(logsumexp {w.f(x)} :axis {vector(axes)}{' :keep true' if keepdim else ''})"


def norm(w: W, x: Any, p: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> str:
    _dtype(dtype)
    if p == "nuc":
        raise Skip("singular values")
    p = 2 if p in ("fro", None) else p
    opts = _opts(x, dim, keepdim)
    if any(x.shape[a] == 0 for a in _axes(x, dim)) and math.isinf(p):
        raise Skip("an extreme of nothing, which we refuse")
    a = f"(abs {w.f(x)})"
    if p == 0:
        return f"(sum (cast (!= {w.f(x)} 0) f32) {opts})"
    if p == 1:
        return f"(sum {a} {opts})"
    if p == 2:
        return f"(sqrt (sum (square {w.f(x)}) {opts}))"
    if math.isinf(p):
        return f"({'max' if p > 0 else 'min'} {a} {opts})"
    return f"(pow (sum (pow {a} {float(p)!r}) {opts}) {1 / p!r})"


def nansum(w: W, x: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> str:
    _dtype(dtype)
    return f"(let [x {w(x)}] (sum (where (!= x x) 0.0 x) {_opts(x, dim, keepdim)}))"


def nanmean(w: W, x: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> str:
    _dtype(dtype)
    if torch.isnan(x).any() and torch.isnan(x).all():
        raise Skip("a mean of nothing, which is 0 in our files")
    return f"(let [x {w(x)}] (mean x {_opts(x, dim, keepdim)} :where (= x x)))"


def aminmax(w: W, x: Any, dim: Any = None, keepdim: bool = False) -> str:
    opts = _opts(x, dim, keepdim)
    return f"(let [x {w(x)}] [(min x {opts}) (max x {opts})])"


def dist(w: W, x: Any, y: Any, p: float = 2) -> str:
    a, b = w.stretched(x, y)
    return norm_of(f"(- {a} {b})", p)


def norm_of(text: str, p: float) -> str:
    """The p-norm of all elements of an expression."""
    if p == 2:
        return f"(norm {text})"
    return f"(pow (sum (pow (abs {text}) {float(p)!r})) {1 / p!r})"


def trace(w: W, x: Any) -> str:
    n, m = x.shape
    return f"(sum (where (= (iota (i32 {n} {m}) :axis 0) (iota (i32 {n} {m}) :axis 1)) {w(x)} 0.0))"


# Running folds and orders.


def running(name: str) -> Adapter:
    def adapter(w: W, x: Any, dim: int, dtype: Any = None) -> str:
        _dtype(dtype)
        return w(x) if x.ndim == 0 else f"({name} {w(x)} :axis {dim})"

    return adapter


def running_extreme(text: str) -> Adapter:
    def adapter(w: W, x: Any, dim: int) -> str:
        return w(x) if x.ndim == 0 else text.format(x=w(x), dim=dim)

    return options(adapter, compared=1)


def topk(w: W, x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> str:
    if x.ndim == 0:
        raise Skip("an order of a scalar")
    if not largest:
        return f"(let [[v i] (top-k (- {w(x)}) {k} :axis {dim})] [(- v) i])"
    return f"(top-k {w(x)} {k} :axis {dim})"


def sort(w: W, x: Any, dim: int = -1, descending: bool = False, stable: bool = False) -> str:
    if x.ndim == 0:
        raise Skip("an order of a scalar")
    return f"(sort {w.f(x)} :axis {dim} :descending {number(descending)})"


def argsort(w: W, x: Any, dim: int = -1, descending: bool = False, stable: bool = False) -> str:
    return f"(nth {sort(w, x, dim, descending)} 1)"


def kthvalue(w: W, x: Any, k: int, dim: int = -1, keepdim: bool = False) -> str:
    if x.ndim == 0:
        raise Skip("an order of a scalar")
    read = f"(slice v {k - 1} {k} :axis {dim})" if keepdim else f"(gather v {k - 1} :axis {dim})"
    read_i = read.replace("slice v", "slice i").replace("gather v", "gather i")
    return f"(let [[v i] (sort {w(x)} :axis {dim})] [{read} {read_i}])"


def median(w: W, x: Any, dim: int | None = None, keepdim: bool = False) -> str:
    if x.ndim == 0:
        raise Skip("an order of a scalar")
    if dim is None:
        if x.numel() == 0:
            raise Skip("a median of nothing")
        return f"(gather (nth (sort (reshape {w(x)} [_])) 0) {(x.numel() - 1) // 2})"
    return kthvalue(w, x, (x.shape[dim] - 1) // 2 + 1, dim, keepdim)


def diff(w: W, x: Any, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> str:
    text, size = w(x), x.shape[dim]
    if x.ndim == 0:
        raise Skip("a scalar along an axis")
    if n == 0:
        return text
    parts = [w(p) for p in (prepend,) if p is not None] + [text] + [w(p) for p in (append,) if p is not None]
    if len(parts) > 1:
        text = f"(concat {vector(parts)} :axis {dim})"
        size += sum(p.shape[dim] if p.ndim else 1 for p in (prepend, append) if p is not None)
    if size < n:
        raise Skip("more differences than elements")
    for _ in range(n):
        text = f"(let [d {text}] (- (slice d 1 :axis {dim}) (slice d 0 {size - 1} :axis {dim})))"
        size -= 1
    return text


def logcumsumexp(w: W, x: Any, dim: int) -> str:
    if x.ndim == 0:
        return w(x)
    if not bool(torch.isfinite(x).all()):
        raise Skip("a running logsumexp of infinities")
    return (f"(let [x {w(x)} m (stop-gradient (max x :axis {dim} :keep true))] "
            f"(+ m (log (cumsum (exp (- x m)) :axis {dim}))))")  # fmt: skip


REDUCE: dict[str, Adapter] = {
    "sum": fold("sum"), "mean": fold("mean", of_nothing=False), "prod": fold("prod"),
    "amax": fold("max", of_nothing=False), "amin": fold("min", of_nothing=False),
    "max.reduction_with_dim": single("max"), "min.reduction_with_dim": single("min"),
    "max.reduction_no_dim": fold("max"), "min.reduction_no_dim": fold("min"),
    "argmax": place("argmax"), "argmin": place("argmin"), "any": logical("any"), "all": logical("all"),
    "count_nonzero": count_nonzero, "var": var, "var.unbiased": var, "std": std, "std.unbiased": std,
    "var_mean": with_mean(False), "var_mean.unbiased": with_mean(False), "std_mean": with_mean(True),
    "std_mean.unbiased": with_mean(True), "logsumexp": logsumexp, "norm": norm, "norm.fro": norm, "norm.inf": norm,
    "norm.nuc": norm,
    "linalg.vector_norm": lambda w, x, ord=2, dim=None, keepdim=False, dtype=None: norm(w, x, ord, dim, keepdim, dtype),
    "nansum": nansum, "nanmean": nanmean, "aminmax": aminmax, "dist": dist, "trace": trace,
}  # fmt: skip

ORDER: dict[str, Adapter] = {
    "cumsum": running("cumsum"), "cumprod": running("cumprod"),
    "cummax": running_extreme("(cummax {x} :axis {dim})"),
    "cummin": running_extreme("(- (cummax (- {x}) :axis {dim}))"), "logcumsumexp": logcumsumexp,
    "topk": topk, "sort": sort, "msort": lambda w, x: f"(nth (sort {w(x)} :axis 0) 0)", "argsort": argsort,
    "kthvalue": kthvalue, "median": median, "diff": diff,
}  # fmt: skip
