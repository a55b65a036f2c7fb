"""A second interpreter of graphs, in PyTorch and double precision: its autograd is the oracle of our gradient rules.

`MEANINGS` has one entry for each operation; draws are ours, since no other package makes the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F

from sexpgpu.ir.graph import Graph, Node
from sexpgpu.ir.opdef import OPS, Array, Context
from sexpgpu.ir.ops.region import shares
from sexpgpu.ir.types import ORACLE_DTYPES

Tensor = torch.Tensor
DTYPES = {"f32": torch.float64, "bf16": torch.float64, "f64": torch.float64, "i32": torch.int32, "i64": torch.int64,
          "bool": torch.bool}  # fmt: skip


def run_torch(graph: Graph, inputs: Sequence[Tensor]) -> list[Tensor]:
    """The values of a graph's outputs, given one tensor for each of its inputs."""
    known = dict(zip(graph.inputs, inputs, strict=True))
    for node in graph.nodes:
        if node.op != "input":
            made = MEANINGS[node.op](node, *(known[v] for v in node.inputs))
            known |= zip(node.outputs, made if isinstance(made, list) else [made], strict=True)
    return [known[v] for v in graph.output_values]


def tensor(array: Array, dtype: str) -> Tensor:
    """An array as the tensor that stands for it here; floats ask for their gradient."""
    made = torch.tensor(array.astype("f8") if DTYPES[dtype].is_floating_point else array, dtype=DTYPES[dtype])
    return made.requires_grad_(made.is_floating_point())


def _constant(node: Node) -> Tensor:
    shape, value = node.attrs["shape"], node.attrs["value"]
    dtype = DTYPES[str(node.attrs["dtype"])]
    if isinstance(value, tuple):
        return torch.tensor(value, dtype=dtype).reshape(shape)
    return torch.full(shape, value, dtype=dtype)


def _iota(node: Node) -> Tensor:
    shape, axis = node.attrs["shape"], node.attrs["axis"]
    line = torch.arange(shape[axis], dtype=DTYPES[str(node.attrs["dtype"])])
    return line.reshape([-1 if i == axis else 1 for i in range(len(shape))]).expand(shape)


def _cast(node: Node, x: Tensor) -> Tensor:
    return x.to(DTYPES[str(node.attrs["dtype"])])


def _broadcast(node: Node, x: Tensor) -> Tensor:
    shape, axes = node.attrs["shape"], node.attrs["axes"]
    sizes = dict(zip(axes, x.shape, strict=True))
    return x.reshape([sizes.get(i, 1) for i in range(len(shape))]).expand(shape)


def _slice(node: Node, x: Tensor) -> Tensor:
    bounds = zip(node.attrs["starts"], node.attrs["stops"], node.attrs["steps"], strict=True)
    return x[tuple(slice(*b) for b in bounds)] if x.ndim else x


def _pad(node: Node, x: Tensor) -> Tensor:
    places = []
    for low, between, size in zip(node.attrs["low"], node.attrs["interior"], x.shape, strict=True):
        places.append(slice(low, low + (size - 1) * (between + 1) + 1 if size else low, between + 1))
    made = torch.zeros(node.types[0].shape, dtype=x.dtype)
    if not x.ndim:
        return x
    return made.index_put([g for g in torch.meshgrid(*[torch.arange(n)[p] for n, p in zip(made.shape, places,
                          strict=True)], indexing="ij")], x) if x.numel() else made  # fmt: skip


def _gather(node: Node, x: Tensor, i: Tensor) -> Tensor:
    axis, batch = node.attrs["axis"], node.attrs["batch"]
    i = i.long().clamp(0, x.shape[axis] - 1)
    if batch:
        rows = [_gathered(a, b, axis - batch) for a, b in zip(_rows(x, batch), _rows(i, batch), strict=True)]
        return torch.stack(rows).reshape(node.types[0].shape) if rows else torch.zeros(node.types[0].shape)
    return _gathered(x, i, axis)


def _rows(x: Tensor, batch: int) -> list[Tensor]:
    return list(x.reshape((math.prod(x.shape[:batch]), *x.shape[batch:])))


def _gathered(x: Tensor, i: Tensor, axis: int) -> Tensor:
    return x.index_select(axis, i.reshape(-1)).reshape((*x.shape[:axis], *i.shape, *x.shape[axis + 1 :]))


def _pick(node: Node, x: Tensor, i: Tensor) -> Tensor:
    axis = node.attrs["axis"]
    return x.gather(axis, i.long().clamp(0, x.shape[axis] - 1).unsqueeze(axis)).squeeze(axis)


def _scatter(node: Node, x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    axis, batch, fold = (node.attrs[name] for name in ("axis", "batch", "fold"))
    if not batch:
        return _scattered(x, i, v, axis, fold)
    rows = [
        _scattered(*parts, axis - batch, fold)
        for parts in zip(_rows(x, batch), _rows(i, batch), _rows(v, batch), strict=True)
    ]
    return torch.stack(rows).reshape(x.shape) if rows else x


def _scattered(x: Tensor, i: Tensor, v: Tensor, axis: int, fold: str) -> Tensor:
    """One index after the other, in the order of the input."""
    slices = list(x.unbind(axis))
    new = v.reshape((*x.shape[:axis], i.numel(), *x.shape[axis + 1 :])).unbind(axis)
    for at, value in zip(i.reshape(-1).tolist(), new, strict=True):
        if 0 <= at < len(slices):
            old = slices[at]
            slices[at] = {
                "set": lambda a, b: b, "add": lambda a, b: a + b,
                "max": lambda a, b: torch.where(b > a, b, a), "min": lambda a, b: torch.where(b < a, b, a),
            }[fold](old, value)  # fmt: skip
    return torch.stack(slices, axis)


def _conv(node: Node, x: Tensor, kernel: Tensor) -> Tensor:
    """Zeros are put between and around the elements of x first; a negative pad crops."""
    spatial = x.ndim - 2
    for axis in range(spatial):
        at, between = axis + 1, node.attrs["input_dilation"][axis] - 1
        if between and x.shape[at]:
            spread = torch.stack([x, *[torch.zeros_like(x)] * between], at + 1).flatten(at, at + 1)
            x = spread.narrow(at, 0, spread.shape[at] - between)
    pads = [n for low, high in zip(reversed(node.attrs["low"]), reversed(node.attrs["high"]), strict=True)
            for n in (low, high)]  # fmt: skip
    x = F.pad(x.movedim(-1, 1), pads)
    weight = kernel.permute(-1, -2, *range(spatial))
    function = (F.conv1d, F.conv2d, F.conv3d)[spatial - 1]
    made = function(x, weight, None, node.attrs["stride"], 0, node.attrs["dilation"], node.attrs["groups"])
    return made.movedim(1, -1)


def _folded(function: Callable[[Tensor, int], Tensor]) -> Callable[[Node, Tensor], Tensor]:
    def meaning(node: Node, x: Tensor) -> Tensor:
        for axis in sorted(node.attrs["axes"], reverse=True):
            x = function(x, axis)
        return x

    return meaning


def _extreme(sign: int) -> Callable[[Node, Tensor], Tensor]:
    """The first that attains it: PyTorch's argmax takes the first, and its gradient goes there alone."""

    def meaning(node: Node, x: Tensor) -> Tensor:
        axes = node.attrs["axes"]
        if not axes:
            return x
        kept = [i for i in range(x.ndim) if i not in axes]
        rows = x.permute(*kept, *axes).reshape(*[x.shape[i] for i in kept], -1)
        return rows.gather(-1, (sign * rows).argmax(-1, keepdim=True)).squeeze(-1)

    return meaning


def _sort(node: Node, x: Tensor) -> list[Tensor]:
    values, places = torch.sort(x, dim=node.attrs["axis"], descending=node.attrs["descending"], stable=True)
    return [values, places.int()]


def _top_k(node: Node, x: Tensor) -> list[Tensor]:
    axis, k = node.attrs["axis"], node.attrs["k"]
    values, places = torch.sort(x, dim=axis, descending=True, stable=True)
    return [values.narrow(axis, 0, k), places.narrow(axis, 0, k).int()]


def _scan(node: Node, *inputs: Tensor) -> list[Tensor]:
    carries, length = node.attrs["num_carries"], node.attrs["length"]
    first = carries + node.attrs["num_sequences"]
    held, emitted = list(inputs[:carries]), [[None] * length for _ in node.types[carries:]]
    for place in reversed(range(length)) if node.attrs["reverse"] else range(length):
        made = run_torch(node.bodies[0], [*held, *(x[place] for x in inputs[carries:first]), *inputs[first:]])
        held = made[:carries]
        for line, value in zip(emitted, made[carries:], strict=True):
            line[place] = value
    stacked = [
        torch.stack(line) if length else torch.zeros(t.shape, dtype=DTYPES[t.dtype])  # type: ignore[arg-type]
        for line, t in zip(emitted, node.types[carries:], strict=True)
    ]
    return [*held, *stacked]


def _drawn(node: Node, *inputs: Tensor) -> Tensor:
    made = OPS[node.op].meaning(Context(ORACLE_DTYPES), node, [x.numpy() for x in inputs])
    return torch.tensor(made)


def _quotient(node: Node, x: Tensor, y: Tensor) -> Tensor:
    return torch.floor(x / y) if x.is_floating_point() else torch.div(x, y, rounding_mode="floor")


def _plain(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda node, *operands: function(*operands)


ELEMENTWISE: dict[str, Callable[..., Tensor]] = {
    "abs": torch.abs, "add": torch.add, "and": torch.logical_and, "atan": torch.atan, "ceil": torch.ceil,
    "cos": torch.cos,
    "div": torch.div, "eq": torch.eq, "erf": torch.erf, "exp": torch.exp, "expm1": torch.expm1,
    "floor": torch.floor, "ge": torch.ge, "gt": torch.gt, "is-finite": torch.isfinite, "le": torch.le,
    "log": torch.log, "log1p": torch.log1p, "lt": torch.lt, "maximum": torch.maximum, "minimum": torch.minimum,
    "mul": torch.mul, "mul-or-zero": torch.mul, "ne": torch.ne, "neg": torch.neg, "not": torch.logical_not,
    "or": torch.logical_or, "pow": torch.pow, "rem": torch.remainder, "round": torch.round, "rsqrt": torch.rsqrt,
    "sigmoid": torch.sigmoid, "sign": torch.sign, "sin": torch.sin, "sqrt": torch.sqrt,
    "stop-gradient": torch.detach, "sub": torch.sub, "tanh": torch.tanh, "where": torch.where,
}  # fmt: skip

MEANINGS: Mapping[str, Callable[..., Tensor | list[Tensor]]] = {
    **{name: _plain(function) for name, function in ELEMENTWISE.items()},
    "quotient": _quotient,
    "cast": _cast,
    "constant": _constant,
    "iota": _iota,
    "reshape": lambda node, x: x.reshape(node.attrs["shape"]),
    "transpose": lambda node, x: x.permute(node.attrs["perm"]),
    "broadcast": _broadcast,
    "slice": _slice,
    "pad": _pad,
    "concat": lambda node, *xs: torch.cat(xs, node.attrs["axis"]),
    "reverse": lambda node, x: x.flip(node.attrs["axes"]),
    "sum": _folded(lambda x, axis: x.sum(axis, dtype=x.dtype)),
    "prod": _folded(lambda x, axis: x.prod(axis, dtype=x.dtype)),
    "any": _folded(torch.any),
    "all": _folded(torch.all),
    "max": _extreme(1),
    "min": _extreme(-1),
    "argmax": lambda node, x: x.argmax(node.attrs["axis"]).int(),
    "argmin": lambda node, x: x.argmin(node.attrs["axis"]).int(),
    "cumsum": lambda node, x: x.cumsum(node.attrs["axis"], dtype=x.dtype),
    "cumprod": lambda node, x: x.cumprod(node.attrs["axis"], dtype=x.dtype),
    "cummax": lambda node, x: x.cummax(node.attrs["axis"]).values,
    "product": lambda node, x, y: torch.einsum(str(node.attrs["spec"]), x, y),
    "conv": _conv,
    "gather": _gather,
    "pick": _pick,
    "scatter": _scatter,
    "sort": _sort,
    "top-k": _top_k,
    "scan": _scan,
    "random-uniform": _drawn,
    "random-normal": _drawn,
    "composite": lambda node, *inputs: run_torch(node.bodies[0], inputs),
    "recompute": lambda node, *inputs: run_torch(node.bodies[0], inputs),
    "region": lambda node, *inputs: [y for body, read, _ in shares(node) for y in run_torch(body, inputs[read])],
}
