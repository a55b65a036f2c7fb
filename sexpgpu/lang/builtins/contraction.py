"""`product` and `conv`: the operations that `(with :compute bf16 …)` touches.

Types: operands agree in dtype. Under `(with :compute bf16 …)` float operands are cast to bf16, the sum is kept in f32,
    and the result is cast to the dtype of the first operand.
Stacked: microbatches are one more letter, or one more factor of the batch; a shared weight is read once for all of
    them, and its gradient is one contraction.
"""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_letters
from typing import Any

from sexpgpu.ir.graph import Value
from sexpgpu.ir.types import TypeFault
from sexpgpu.lang.builtins.registry import builtin
from sexpgpu.lang.elaborator import Elaborator
from sexpgpu.lang.notation import parse_product
from sexpgpu.lang.values import kind_of


def _operands(el: Elaborator, op: str, values: Sequence[Value]) -> list[Value]:
    """Operands in the dtype of the computation: cast under `:compute`, else equal."""
    trace = el.require_trace()
    compute = trace.ambient.compute
    if compute is not None and all(v.type.is_float for v in values):
        return [trace.builder.cast(v, compute) for v in values]
    for other in values[1:]:
        if other.dtype != values[0].dtype:
            raise TypeFault(f"`{op}` of {values[0].type} and {other.type}: dtypes differ", "E-TYPE-001",
                            "(with :compute bf16 …) casts the operands of products, or (cast x f32)")  # fmt: skip
    return list(values)


@builtin("product")
def product(el: Elaborator, notation: Any, *operands: Any) -> Value:
    """`(product "b t w, w o -> b t o" x w)`: its operands multiplied, and summed over
    the axes that the result lacks.

    Form: (product "NOTATION" x …)
    Takes: a notation and operands: a name for each axis, `...` for any number of leading axes. A name that stands in
        several operands is one axis; one that the result lacks is summed.
    Shape: as the result of the notation says. With more than two operands it goes from left to right.
    Gradient: that of each operand is the product of g with the other operands, summed to the operand's axes.
    Example:
        (product "b i, i o -> b o" x w)  ; is (f32 8 4)
        (product "b i, b i -> b" x y)  ; is (f32 8)
        (product "b i -> i" x)  ; is (f32 16)
        (product "... i, i o -> ... o" x w)  ; is (f32 8 4)
    """
    if not isinstance(notation, str):
        el.fail(
            "E-TYPE-006",
            f'`product` takes its notation first: (product "a b, b c -> a c" x y), not {kind_of(notation)}',
        )
    given = [el.tensor(v) for v in operands]
    axes = parse_product(notation, [v.shape for v in given])
    b = el.require_trace().builder
    values = _operands(el, "product", given)
    distinct = dict.fromkeys(name for names in axes.operands for name in names)
    if len(distinct) > len(ascii_letters):
        el.fail("E-TYPE-004", f"a product has at most {len(ascii_letters)} axes, not {len(distinct)}")
    letters = dict(zip(distinct, ascii_letters, strict=False))
    result, names = values[0], axes.operands[0]
    if len(values) == 1:
        spare = [i for i, n in enumerate(names) if n not in axes.result]
        kept = [n for n in names if n in axes.result]
        summed = b.sum(b.cast(result, "f32") if result.dtype == "bf16" else result, spare)
        result = b.transpose(summed, [kept.index(n) for n in axes.result])
        return b.cast(result, given[0].dtype)
    for index in range(1, len(values)):
        later = {n for more in axes.operands[index + 1 :] for n in more} | set(axes.result)
        right = axes.operands[index]
        joint = dict.fromkeys((*names, *right))
        out = axes.result if index == len(values) - 1 else tuple(n for n in joint if n in later)
        spec = "".join(letters[n] for n in names) + "," + "".join(letters[n] for n in right)
        left = b.cast(result, values[index].dtype)
        result = b.product(spec + "->" + "".join(letters[n] for n in out), left, values[index])
        names = out
    return b.cast(result, given[0].dtype) if given[0].type.is_float else result


def per_axis(el: Elaborator, value: Any, rank: int) -> tuple[int, ...]:
    """One size for each spatial axis, from a number or a vector."""
    if isinstance(value, tuple):
        if len(value) != rank:
            el.fail("E-TYPE-005", f"{len(value)} values for {rank} spatial axes")
        return tuple(el.size(v) for v in value)
    return (el.size(value),) * rank


def pads(el: Elaborator, pad: Any, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """How much is added before and after each spatial axis."""
    if isinstance(pad, tuple) and all(isinstance(p, tuple) and len(p) == 2 for p in pad):
        if len(pad) != rank:
            el.fail("E-TYPE-005", f"{len(pad)} pairs for {rank} spatial axes")
        return tuple(el.size(low) for low, _ in pad), tuple(el.size(high) for _, high in pad)
    both = per_axis(el, pad, rank)
    return both, both


@builtin("conv")
def conv(
    el: Elaborator,
    x: Any,
    kernel: Any,
    *,
    stride: Any = 1,
    pad: Any = 0,
    dilation: Any = 1,
    groups: Any = 1,
    transposed: Any = False,
) -> Value:
    """`(conv x kernel)`: a convolution, cross-correlated, over one to three spatial axes.

    Transposed, each element of x adds the kernel, as it is, to the result, `stride` apart; `pad` is cut off it.

    Takes: x and a kernel; `:stride`, `:dilation` and `:pad`, each a number or one for every spatial axis; `:pad` also
        pairs `[[low high] …]`; `:groups` of channels that do not meet; `:transposed true`.
    Shape: x (b s… c), kernel (k… c/groups o) → (b p… o), with one to three spatial axes and
        p = ⌊(s + 2·pad − dilation·(k − 1) − 1) / stride⌋ + 1; transposed
        p = (s − 1)·stride + dilation·(k − 1) + 1 − 2·pad.
    Gradient: dx is the convolution of g with the kernel the other way round, dkernel that of x with g.
    Example:
        (conv image (param k1 (f32 3 3 3 16) he) :pad 1 :stride 2)  ; is (f32 4 4 4 16)
        (conv image (param k2 (f32 3 3 1 6) he) :groups 3)  ; is (f32 4 6 6 6)
        (conv image (param k3 (f32 2 2 3 5) he) :transposed true :stride 2)  ; is (f32 4 16 16 5)
    """
    x, kernel = el.tensor(x), el.tensor(kernel)
    rank = x.rank - 2
    if rank < 1 or rank > 3 or kernel.rank != x.rank:
        el.fail(
            "E-TYPE-002",
            f"`conv` takes x (batch spatial… channels) and a kernel (spatial… in out), not {x.type} and {kernel.type}",
        )
    if not isinstance(transposed, bool):
        el.fail("E-TYPE-006", f"`:transposed` is true or false, not {kind_of(transposed)}")
    lows, highs = pads(el, pad, rank)
    steps, spread, ones = per_axis(el, stride, rank), per_axis(el, dilation, rank), (1,) * rank
    b = el.require_trace().builder
    left, right = _operands(el, "conv", [x, kernel])
    if transposed:
        right = b.op("reverse", right, axes=tuple(range(rank)))
        reach = [gap * (taps - 1) for gap, taps in zip(spread, kernel.shape[:-2], strict=True)]
        lows, highs = (tuple(r - p for r, p in zip(reach, cut, strict=True)) for cut in (lows, highs))
    result = b.op(
        "conv", left, right,
        stride=ones if transposed else steps, low=lows, high=highs, dilation=spread,
        input_dilation=steps if transposed else ones, groups=el.size(groups),
    )  # fmt: skip
    return b.cast(result, x.dtype)
