"""Map and Fill: one value an element. Each thread takes packs of neighbours and reads them all before it writes.

An output may lie exactly over an input, element for element, so nothing here is `__restrict__`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from sexpgpu.backend.kernels.dialects import BITS
from sexpgpu.backend.kernels.launch import BLOCK, MULTIPROCESSORS, Launch, Pointer, kernel
from sexpgpu.backend.kernels.nest import Nest, unsigned
from sexpgpu.backend.kernels.operands import Argument, flag_pointer
from sexpgpu.ir.graph import Node
from sexpgpu.ir.types import NUMPY_DTYPES

MAX_RUNS = 4
"""Packs that one thread has in flight where there is work for all."""
MAX_TABLE = 4096
"""Elements of a constant that a text may hold."""

Compute = Callable[[tuple[str, ...], str], tuple[str, str]]
"""Names of the operands at an element, and its index: statements, and what to store."""


def print_map(node: Node, inputs: Sequence[Argument], out: Argument) -> tuple[Launch, ...]:
    """The kernel of an elementwise node."""
    d = out.dialect
    guard = d.fault(node, tuple(f"a{i}" for i in range(len(inputs))))

    def compute(names: tuple[str, ...], index: str) -> tuple[str, str]:
        lines = [
            f"{x.register} a{i} = {x.load(name)};"
            for i, (x, name) in enumerate(zip(inputs, names, strict=True))
        ]
        if guard is not None:
            lines.append(f"if ({guard}) {d.raise_flag(index, None)}")
        value = d.expression(node, tuple(f"a{i}" for i in range(len(inputs))))
        lines.append(f"{out.register} value = {value};")
        return " ".join(lines), out.store("value")

    return elementwise("map", inputs, out, compute, bits=False, flagged=guard is not None)


def print_copy(source: Argument, target: Argument) -> tuple[Launch, ...]:
    """The kernel that moves elements of one shape from layout to layout, as they come."""
    return elementwise("copy", (source,), target, lambda names, _: ("", names[0]), bits=True)


def elementwise(
    kind: str,
    inputs: Sequence[Argument],
    out: Argument,
    compute: Compute,
    *,
    bits: bool,
    flagged: bool = False,
) -> tuple[Launch, ...]:
    """A kernel over the elements of `out`, whose shape all operands have. bits: elements are carried as they are."""
    if out.size == 0:
        return ()
    operands = {f"x{i}": x for i, x in enumerate(inputs)} | {"y": out}
    whole = Nest(out.shape, {name: x.strides for name, x in operands.items()})
    pack = whole.packs(
        {name: x.item_bytes for name, x in operands.items()}, {name: x.aligned for name, x in operands.items()}, ["y"]
    )
    nest = whole.widen(pack)
    wide, count = nest.wide, nest.count
    rest = whole.count - count * pack
    runs = MAX_RUNS if count >= MULTIPROCESSORS * BLOCK * 8 * MAX_RUNS else 1
    types = {name: BITS[x.item_bytes] if bits else x.stored for name, x in operands.items()}
    pointers = [x.pointer(name, bits=bits, alone=False) for name, x in operands.items()]
    pointers += [flag_pointer()] if flagged else []

    def element(place: dict[str, str], index: str, target: str) -> str:
        lines, value = compute(tuple(place[f"x{i}"] for i in range(len(inputs))), index)
        return f"{{ {lines} {target} = {value}; }}"

    start, coordinates = nest.start("i")
    reads, places = [], {}
    for name in operands:
        if name == "y":
            continue
        at = nest.at(name, coordinates, operands[name].first)
        if pack > 1 and whole.inner(name) == 1:
            reads.append(f"p_{name}[k] = read_pack<{types[name]}, {pack}>({name} + ({at}));")
            places[name] = f"p_{name}[k].at[e]"
        else:
            reads.append(f"p_{name}[k] = {name}[{at}];")
            places[name] = f"p_{name}[k]"
    held = [
        f"{f'Pack<{types[name]}, {pack}>' if pack > 1 and whole.inner(name) == 1 else types[name]} p_{name}[{runs}];"
        for name in operands
        if name != "y"
    ]
    target = nest.at("y", coordinates, out.first)
    if pack > 1:
        body = element(places, f"(i * {pack}u + e)", "made.at[e]")
        write = (
            f"Pack<{types['y']}, {pack}> made;\n#pragma unroll\nfor (int e = 0; e < {pack}; ++e) {body}\n"
            f"write_pack(y + ({target}), made);"
        )
    else:
        write = element(places, "i", f"y[{target}]")
    number = unsigned(wide)
    d = out.dialect
    index = f"const {number} i = (({number}){d.block}.x * {runs}u + k) * {BLOCK}u + {d.thread}.x;"
    unroll = "#pragma unroll\n" if runs > 1 else ""
    loop = f"{unroll}for (int k = 0; k < {runs}; ++k) {{\n{index}\nif (i < {count}u) {{\n{start}\n"
    reading = f"{loop}{chr(10).join(reads)}\n}}\n}}\n" if reads else ""
    tail = ""
    if rest:
        # The walk has one axis here, so that every operand moves by its only stride.
        each = {n: f"{n}[{whole.at(n, ['j'], x.first)}]" for n, x in operands.items()}
        tail = f"else if (i < {count + rest}u) {{ const {number} j = i - {count}u + {count * pack}u;\n"
        tail += element(each, "j", each["y"]) + "\n}"
    text = f"{chr(10).join(held)}\n{reading}{loop}{write}\n}}\n{tail}\n}}"
    grid = (-(-(count + rest) // (BLOCK * runs)), 1, 1)
    return (kernel(out.dialect, kind, pointers, text, grid),)


def print_fill(node: Node, out: Argument) -> tuple[Launch, ...]:
    """The kernel that writes a constant or a counter; axes of stride 0 are written once."""
    shape = tuple(1 if stride == 0 else size for size, stride in zip(out.shape, out.strides, strict=True))
    if out.size == 0:
        return ()
    d = out.dialect
    value = node.attrs.get("value")
    axis = node.attrs.get("axis")
    spelt = BITS[out.item_bytes]
    nest = Nest(shape, {"y": out.strides, "place": _counting(out.shape, axis if isinstance(axis, int) else None)})
    start, coordinates = nest.start("i")
    table = ""
    if isinstance(axis, int):
        spelt = out.stored
        place = f"(i64)({nest.at('place', coordinates)})"
        stored = out.store(d.convert(place, "i64", out.dtype))
    elif isinstance(value, tuple):
        assert out.size <= MAX_TABLE, node
        numbers = np.array(value, NUMPY_DTYPES[out.dtype]).reshape(-1)
        table = d.table(spelt, [d.number(n, out.dtype) for n in numbers])
        stored = f"table[{nest.at('place', coordinates)}]"
    else:
        stored = d.number(value, out.dtype)
    number = unsigned(nest.wide)
    text = f"""const {number} i = ({number}){d.block}.x * {BLOCK}u + {d.thread}.x;
if (i >= {nest.count}u) return;
{start}
y[{nest.at("y", coordinates)}] = {stored};"""
    pointer = Pointer(out.operand, "y", spelt)
    return (kernel(d, "fill", [pointer], text, (-(-nest.count // BLOCK), 1, 1), table=table),)


def _counting(shape: Sequence[int], axis: int | None) -> tuple[int, ...]:
    """Strides whose offset is the index along `axis`, or in row-major order."""
    if axis is not None:
        return tuple(int(i == axis) for i in range(len(shape)))
    steps, step = [], 1
    for size in reversed(shape):
        steps.append(step)
        step *= size
    return tuple(reversed(steps))


def table_fits(node: Node) -> bool:
    """Whether a constant is one value, or few enough to be written in a text."""
    return not isinstance(node.attrs.get("value"), tuple) or node.types[0].size <= MAX_TABLE
