"""How PyTorch's products are written in our language."""

from __future__ import annotations

from string import ascii_lowercase
from typing import Any

from tests.oracles.cases import Adapter, Skip, number
from tests.oracles.opinfo import TorchWriter

W = TorchWriter


def product(spec: str) -> Adapter:
    """A notation for operands of fixed ranks."""
    return lambda w, *xs: f'(product "{spec}" {" ".join(map(w, xs))})'


def matmul(w: W, x: Any, y: Any) -> str:
    if 0 in (x.ndim, y.ndim):
        raise Skip("a product of scalars")
    left = "i k"[(x.ndim == 1) * 2 :]
    right = "k j" if y.ndim > 1 else "k"
    lead_x, lead_y = x.shape[:-2], y.shape[:-2]
    rank = max(len(lead_x), len(lead_y))
    letters = [f"b{i}" for i in range(rank)]
    a, b, names_x, names_y = w(x), w(y), letters[rank - len(lead_x) :], letters[rank - len(lead_y) :]
    sizes = dict(zip(names_x, lead_x, strict=True))
    for name, n in zip(names_y, lead_y, strict=True):
        sizes[name] = n if sizes.get(name, 1) == 1 else sizes[name]
    a, names_x = _without_ones(a, names_x, lead_x, x.shape, sizes)
    b, names_y = _without_ones(b, names_y, lead_y, y.shape, sizes)
    out = [*letters, *("i" if x.ndim > 1 else "").split(), *("j" if y.ndim > 1 else "").split()]
    missing = [n for n in letters if n not in names_x and n not in names_y]
    if missing:
        raise Skip("a product with batch axes of size 1 on both sides")
    return f'(product "{" ".join([*names_x, left])}, {" ".join([*names_y, right])} -> {" ".join(out)}" {a} {b})'


def _without_ones(text: str, names: list[str], lead: Any, shape: Any, sizes: dict[str, int]) -> tuple[str, list[str]]:
    """Batch axes of size 1 that the other side stretches, taken away."""
    kept = [i for i, (n, size) in enumerate(zip(names, lead, strict=True)) if size == sizes[n]]
    if len(kept) == len(names):
        return text, names
    sizes_kept = [*(lead[i] for i in kept), *shape[len(lead) :]]
    return f"(reshape {text} [{' '.join(map(str, sizes_kept))}])", [names[i] for i in kept]


def plus(spec: str, shape: Any) -> Adapter:
    """`beta·x + alpha·product`, x stretched to the product's shape."""

    def adapter(w: W, x: Any, a: Any, b: Any, beta: float = 1, alpha: float = 1) -> str:
        made = f'(product "{spec}" {w(a)} {w(b)})'
        wide = f"(broadcast {w(x)} [{' '.join(map(str, shape(a, b)))}])"
        return f"(+ (* {number(float(beta))} {wide}) (* {number(float(alpha))} {made}))"

    return adapter


def einsum(w: W, operands: Any, equation: str) -> str:
    if "..." in equation:
        raise Skip("an ellipsis of einsum over several operands")
    left, right = equation.replace(" ", "").split("->")
    named = {c: f"{c}{c}" if c.isupper() else c for c in left if c.isalpha()}
    terms = left.split(",")
    if any(len(set(t)) < len(t) for t in terms):
        raise Skip("a diagonal in einsum")
    spec = ", ".join(" ".join(named[c] for c in t) for t in terms) + " -> " + " ".join(named[c] for c in right)
    sizes: dict[str, int] = {}
    texts = []
    for term, x in zip(terms, operands, strict=True):
        for c, n in zip(term, x.shape, strict=True):
            sizes[c] = max(sizes.get(c, n), n) if n != 1 or c not in sizes else sizes[c]
    for term, x in zip(terms, operands, strict=True):
        wanted = [sizes[c] for c in term]
        texts.append(w(x) if wanted == list(x.shape) else f"(broadcast {w(x)} [{' '.join(map(str, wanted))}])")
    return f'(product "{spec}" {" ".join(texts)})'


def linear(w: W, x: Any, weight: Any, bias: Any = None) -> str:
    made = f'(product "... i, o i -> ... o" {w(x)} {w(weight)})'
    if weight.ndim == 1:
        raise Skip("a weight that is a vector")
    return made if bias is None else f"(+ {made} {w(bias)})"


def bilinear(w: W, x: Any, y: Any, weight: Any, bias: Any = None) -> str:
    lead = " ".join(ascii_lowercase[: x.ndim - 1])
    made = f'(product "{lead} x, {lead} y, z x y -> {lead} z" {w(x)} {w(y)} {w(weight)})'
    return made if bias is None else f"(+ {made} {w(bias)})"


def tensordot(w: W, x: Any, y: Any, dims: Any = 2) -> str:
    if isinstance(dims, int):
        dims = (list(range(x.ndim - dims, x.ndim)), list(range(dims)))
    left = [f"a{i}" for i in range(x.ndim)]
    right = [f"b{i}" for i in range(y.ndim)]
    for i, j in zip(*dims, strict=True):
        if x.shape[i] != y.shape[j]:
            raise Skip("a summed axis of size 1 beside a longer one")
        right[j] = left[i]
    out = [n for n in (*left, *right) if (n in left) != (n in right)]
    return f'(product "{" ".join(left)}, {" ".join(right)} -> {" ".join(out)}" {w(x)} {w(y)})'


def inner(w: W, x: Any, y: Any) -> str:
    if 0 in (x.ndim, y.ndim):
        return f"(* {w(x)} {w(y)})"
    left, right = [f"a{i}" for i in range(x.ndim - 1)], [f"b{i}" for i in range(y.ndim - 1)]
    return f'(product "{" ".join([*left, "k"])}, {" ".join([*right, "k"])} -> {" ".join(left + right)}" {w(x)} {w(y)})'


def kron(w: W, x: Any, y: Any) -> str:
    rank = x.ndim
    a, b = [f"a{i}" for i in range(rank)], [f"b{i}" for i in range(rank)]
    mixed = " ".join(f"a{i} b{i}" for i in range(rank))
    joined = " ".join(f"(a{i} b{i})" for i in range(rank))
    made = f'(product "{" ".join(a)}, {" ".join(b)} -> {mixed}" {w(x)} {w(y)})'
    return f'(rearrange "{mixed} -> {joined}" {made})'


def vecdot(w: W, x: Any, y: Any, dim: int = -1) -> str:
    a, b = w.stretched(x, y)
    return f"(sum (* {a} {b}) :axis {dim})"


def multi_dot(w: W, matrices: Any) -> str:
    names = "abcdefghijkl"
    count = len(matrices)
    terms = [f"{names[i]} {names[i + 1]}" for i in range(count)]
    out = [names[0], names[count]]
    if matrices[0].ndim == 1:
        terms[0], out = names[1], out[1:]
    if matrices[-1].ndim == 1:
        terms[-1], out = names[count - 1], out[:-1]
    return f'(product "{", ".join(terms)} -> {" ".join(out)}" {" ".join(map(w, matrices))})'


def cross(w: W, x: Any, y: Any, dim: int | None = None) -> str:
    a, b = w.stretched(x, y)
    axis = dim if dim is not None else next(i for i, n in enumerate(x.shape) if n == 3)
    return (f"(let [[a b c] (unstack {a} :axis {axis}) [d e f] (unstack {b} :axis {axis})] "
            f"(stack [(- (* b f) (* c e)) (- (* c d) (* a f)) (- (* a e) (* b d))] :axis {axis}))")  # fmt: skip


PRODUCTS: dict[str, Adapter] = {
    "mm": product("i k, k j -> i j"), "bmm": product("b i k, b k j -> b i j"), "mv": product("i k, k -> i"),
    "bmm.triton_optimized": product("b i k, b k j -> b i j"),
    "dot": product("k, k ->"), "vdot": product("k, k ->"), "outer": product("i, j -> i j"),
    "matmul": matmul, "__rmatmul__": lambda w, x, y: matmul(w, y, x),
    "addmm": plus("i k, k j -> i j", lambda a, b: (a.shape[0], b.shape[1])),
    "addmm.decomposed": plus("i k, k j -> i j", lambda a, b: (a.shape[0], b.shape[1])),
    "addmv": plus("i k, k -> i", lambda a, b: (a.shape[0],)),
    "addbmm": plus("b i k, b k j -> i j", lambda a, b: (a.shape[1], b.shape[2])),
    "baddbmm": plus("b i k, b k j -> b i j", lambda a, b: (a.shape[0], a.shape[1], b.shape[2])),
    "addr": plus("i, j -> i j", lambda a, b: (a.shape[0], b.shape[0])),
    "einsum": einsum, "nn.functional.linear": linear, "nn.functional.bilinear": bilinear, "tensordot": tensordot,
    "inner": inner, "kron": kron, "linalg.vecdot": vecdot, "linalg.multi_dot": multi_dot, "cross": cross,
    "linalg.cross": lambda w, x, y, dim=-1: cross(w, x, y, dim),
}  # fmt: skip
