"""Row programs: a body whose work goes along rows as one kernel, a block to a row.

Flow: a device asks whether a body is one when it plans; its lowering prints it. The body decides: elementwise
work, reductions along the last axis, one number picked from a row, and sums down the columns as outputs. Each
reduction is a walk along the row. What a later walk needs of one stays in registers, where a row is short enough for
that; else it is made again from the inputs, which are in the cache by then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from sexpgpu.backend.kernels.dialects import Dialect
from sexpgpu.backend.kernels.flags import flag_pointers, flagged, print_tell
from sexpgpu.backend.kernels.launch import MULTIPROCESSORS, Launch, kernel
from sexpgpu.backend.kernels.nest import Nest
from sexpgpu.backend.kernels.operands import Argument, workspace_pointer
from sexpgpu.ir.graph import Graph, Node, Value
from sexpgpu.ir.opdef import OPS, Work
from sexpgpu.ir.ops.rules import attr_ints
from sexpgpu.plan.arena import aligned

MIN_COLUMNS = 64
"""Shorter rows leave a block idle; their bodies run step by step."""
MAX_COLUMN_SUMS = 16
"""Sums down columns that one thread keeps, of each such output."""
MAX_THREADS = 1024
MAX_KEPT = 32
"""Numbers that a thread keeps between two walks."""
PACK = 4
MAX_BLOCKS = 8 * MULTIPROCESSORS
THREADS_IN_FLIGHT = 1536
"""Of a multiprocessor, where columns are summed: so many blocks share the rows, and leave a partial sum each."""

FULL, ROW, COLUMN, SAME = "full", "row", "column", "same"
"""What a value of a body is: an element of its own everywhere, one a row, one a column, one for all."""


@dataclass(slots=True)
class Program:
    """A body understood. levels: how many reductions must be done before a value is known."""

    body: Graph
    shape: tuple[int, ...]
    kinds: dict[Value, str] = field(default_factory=dict)
    levels: dict[Value, int] = field(default_factory=dict)
    reductions: list[Node] = field(default_factory=list)
    picks: list[Node] = field(default_factory=list)
    column_sums: list[Node] = field(default_factory=list)

    @property
    def num_rows(self) -> int:
        return math.prod(self.shape[:-1])

    @property
    def num_columns(self) -> int:
        return self.shape[-1]

    @property
    def pack(self) -> int:
        """Neighbours that a thread takes, if the layouts allow."""
        return PACK if self.num_columns % PACK == 0 else 1

    @property
    def num_threads(self) -> int:
        return min(MAX_THREADS, -(-self.num_columns // self.pack // 32) * 32)

    @property
    def num_blocks(self) -> int:
        at_once = min(MAX_BLOCKS, MULTIPROCESSORS * max(1, THREADS_IN_FLIGHT // self.num_threads))
        return min(self.num_rows, at_once) if self.column_sums else self.num_rows


@lru_cache(maxsize=4096)
def program_of(body: Graph) -> Program | None:
    """The body of a composite or a region as a row program; None if it is none, or is elementwise only."""
    if not body.inputs:
        return None
    shape = max((v.shape for v in body.inputs), key=len)
    if len(shape) < 2 or shape[-1] < MIN_COLUMNS or 0 in shape:
        return None
    program = Program(body, shape)
    columns = _columns(body, len(shape))
    for value in body.inputs:
        kind = FULL if value.shape == shape else COLUMN if value in columns else ROW
        if value.shape != {COLUMN: shape[-1:], FULL: shape, ROW: shape[:-1]}[kind]:
            return None
        program.kinds[value], program.levels[value] = kind, 0
    for member in body.nodes:
        if member.op != "input" and not _understand(program, member):
            return None
    summed = {member.outputs[0] for member in program.column_sums}
    used = {v for member in body.nodes for v in member.inputs}
    columns_held = -(-program.num_columns // (program.num_threads * program.pack)) * program.pack
    if summed & used or (summed and columns_held > MAX_COLUMN_SUMS):
        return None
    outputs = body.output_values
    if len(set(outputs)) < len(outputs) or any(
        v not in summed and program.kinds[v] not in (FULL, ROW) for v in outputs
    ):
        return None
    if len(program.picks) > 1 or not (program.reductions or program.column_sums or ROW in program.kinds.values()):
        return None
    return program


def _columns(body: Graph, rank: int) -> set[Value]:
    """Inputs that have a number for each column: they are repeated down the rows, some after elementwise work."""
    found: set[Value] = set()
    for node in reversed(body.nodes):
        if node.op == "broadcast" and attr_ints(node.attrs, "axes") == (rank - 1,):
            found.add(node.inputs[0])
        elif OPS[node.op].work is Work.MAP and node.outputs[0] in found:
            found |= set(node.inputs)
    return found


def _understand(program: Program, member: Node) -> bool:
    """Add what a node of the body makes; False if a row program cannot make it."""
    if len(member.outputs) != 1 or any(v not in program.kinds for v in member.inputs):
        return False
    (made,) = member.outputs
    work, rank = OPS[member.op].work, len(program.shape)
    level = max([program.levels[v] for v in member.inputs], default=0)
    kinds = {program.kinds[v] for v in member.inputs} - {SAME}
    kind: str | None = None
    if work is Work.FILL:
        if member.op == "iota" and made.shape == program.shape[-1:]:
            kind = COLUMN
        elif not isinstance(member.attrs.get("value", ()), tuple):
            kind = SAME
    elif member.op == "broadcast":
        kind = _broadcast_kind(program, member)
    elif work is Work.MAP and not flagged(member):
        kind = next(iter(kinds)) if len(kinds) == 1 else None
    elif work is Work.REDUCE and kinds == {FULL} and member.op in ("sum", "max", "min"):
        axes = attr_ints(member.attrs, "axes")
        if axes == (rank - 1,):
            kind, level = ROW, level + 1
            program.reductions.append(member)
        elif axes == tuple(range(rank - 1)) and member.op == "sum" and made.dtype == "f32":
            kind = COLUMN
            program.column_sums.append(member)
    elif member.op == "pick" and [program.kinds[v] for v in member.inputs] == [FULL, ROW]:
        if member.attrs["axis"] == rank - 1:
            kind = ROW
            program.picks.append(member)
    if kind is None:
        return False
    program.kinds[made], program.levels[made] = kind, level
    return True


def _broadcast_kind(program: Program, member: Node) -> str | None:
    kind, rank = program.kinds[member.inputs[0]], len(program.shape)
    axes, shape = attr_ints(member.attrs, "axes"), member.types[0].shape
    if kind == SAME:
        return SAME
    if shape != program.shape:
        return None
    wanted = {ROW: tuple(range(rank - 1)), COLUMN: (rank - 1,)}.get(kind)
    # Along the row, a number of the row is a number like any other: an element of its own.
    return FULL if axes == wanted else None


# The kernel.


def workspace_bytes(d: Dialect, program: Program) -> list[int]:
    """The workspaces: partial sums of columns, and what faults note of their values."""
    partial = [aligned(4 * program.num_blocks * program.num_columns) for _ in program.column_sums]
    return [*partial, *([] if d.has_wide_atomics or not program.picks else [aligned(4 * program.num_rows)])]


def print_rows(program: Program, inputs: Sequence[Argument], outputs: Sequence[Argument]) -> tuple[Launch, ...]:
    """The kernels: of the rows, and of the sums down the columns, if there are any.

    Operands are the inputs, the outputs, workspaces, and a flag if any.
    """
    printer = _Printer(program, inputs, outputs)
    launches = [printer.launch()]
    if program.picks and not printer.d.has_wide_atomics:
        launches.append(print_tell(printer.d, len(program.column_sums)))
    if not program.column_sums:
        return tuple(launches)
    positions = [program.body.output_values.index(member.outputs[0]) for member in program.column_sums]
    return (*launches, _print_sums(program, [outputs[i] for i in positions]))


def _print_sums(program: Program, outputs: Sequence[Argument]) -> Launch:
    """Partial sums added up, in the order of the blocks that left them: 32 columns a block, 32 threads a column."""
    d = outputs[0].dialect
    count, num_columns = len(outputs), program.num_columns
    pointers = [workspace_pointer(i, f"partial{i}", "float") for i in range(count)]
    pointers += [x.pointer(f"y{i}") for i, x in enumerate(outputs)]
    partial = " : ".join([*[f"{d.block}.y == {i}u ? partial{i}" for i in range(count - 1)], f"partial{count - 1}"])
    targets = [f"y{i}[(i64)c * {x.strides[0]}]" for i, x in enumerate(outputs)]
    stores = "\n".join([f"if ({d.block}.y == {i}u) {target} = total;" for i, target in enumerate(targets)])
    text = f"""{d.shared("float", "parts[32][33]")}
{d.pointer("float")} from = {partial};
const u32 x = {d.thread}.x & 31u, g = {d.thread}.x >> 5, c = {d.block}.x * 32u + x;
float total = 0;
if (c < {num_columns}u) {{
for (u32 r = g; r < {program.num_blocks}u; r += 32u) total += from[r * {num_columns}u + c];
}}
parts[g][x] = total;
{d.barrier()}
if (g == 0 && c < {num_columns}u) {{
for (int k = 1; k < 32; ++k) total += parts[k][x];
{stores}
}}"""
    return kernel(d, "columns", pointers, text, (-(-num_columns // 32), count, 1), (1024, 1, 1))


Body = Callable[[dict[Value, str], list[str]], None]
"""Given the names of values at a column, adds what is done with them to the statements of a walk."""


class _Printer:
    """The text of one row program, part by part."""

    def __init__(self, program: Program, inputs: Sequence[Argument], outputs: Sequence[Argument]) -> None:
        self.program = program
        self.d = (*inputs, *outputs)[0].dialect
        body = program.body
        self.inputs = dict(zip(body.inputs, inputs, strict=True))
        summed = {member.outputs[0] for member in program.column_sums}
        pairs = zip(body.output_values, outputs, strict=True)
        self.outputs = {value: x for value, x in pairs if value not in summed}
        self.operands: dict[Value, Argument] = {**self.inputs}
        self.names = {value: f"x{i}" for i, value in enumerate(body.inputs)}
        self.targets = {value: f"y{i}" for i, value in enumerate(self.outputs)}
        self.known: dict[Value, str] = {}
        self.kept: dict[Value, str] = {}
        self.pack = program.pack if self._packs() else 1
        count = -(-program.num_columns // (program.num_threads * self.pack))
        self.num_walks = count
        self.unrolled = count * self.pack <= MAX_COLUMN_SUMS

    def _wide(self) -> list[Argument]:
        """Operands that a thread reads or writes several neighbours of."""
        kinds = self.program.kinds
        read = [x for value, x in self.inputs.items() if kinds[value] in (FULL, COLUMN)]
        return read + [x for value, x in self.outputs.items() if kinds[value] == FULL]

    def _packs(self) -> bool:
        return all(
            x.strides[-1] == 1 and x.aligned and all(stride % self.program.pack == 0 for stride in x.strides[:-1])
            for x in self._wide()
        )

    def launch(self) -> Launch:
        d, program, kinds = self.d, self.program, self.program.kinds
        pointers = [x.pointer(self.names[value]) for value, x in self.inputs.items()]
        pointers += [x.pointer(self.targets[value]) for value, x in self.outputs.items()]
        pointers += [workspace_pointer(i, f"partial{i}", "float") for i in range(len(program.column_sums))]
        pointers += flag_pointers(d, len(program.column_sums)) if program.picks else []
        strided: dict[str, tuple[int, ...]] = {}
        for named, table in ((self.names, self.inputs), (self.targets, self.outputs)):
            for value, x in table.items():
                if kinds[value] == FULL:
                    strided[named[value]] = x.strides[:-1]
                elif kinds[value] == ROW:
                    strided[named[value]] = x.strides
        nest = Nest(program.shape[:-1], strided)
        start, coordinates = nest.start("r")
        lines = [start] + [f"const i64 o_{name} = {nest.at(name, coordinates)};" for name in strided]
        for level in range(max(program.levels.values()) + 1):
            lines += self._row_values(level)
            lines += self._reductions(level)
        lines += self._writes()
        held = [f"float columns{i}[{self.num_walks}][{self.pack}] = {{}};" for i in range(len(program.column_sums))]
        shared = [
            d.shared(self._state(member), f"shared{i}[{program.num_threads // 32}]")
            for i, member in enumerate(program.reductions)
        ]
        kept = [
            f"{d.registers[value.dtype]} {name}[{self.num_walks}][{self.pack}];" for value, name in self.kept.items()
        ]
        newline = "\n"
        text = f"""{newline.join([*shared, *held])}
for (u32 r = {d.block}.x; r < {program.num_rows}u; r += {d.grid}.x) {{
{newline.join([*kept, *lines])}
}}
{newline.join([self._leave(i) for i in range(len(program.column_sums))])}"""
        return kernel(d, "rows", pointers, text, (program.num_blocks, 1, 1), (program.num_threads, 1, 1))

    def _state(self, member: Node) -> str:
        return self.d.fold(member.op, member.inputs[0].dtype).state

    # Numbers of a row.

    def _row_values(self, level: int) -> list[str]:
        """Values that are one a row and known once `level` reductions are done; every thread computes them."""
        d, program, lines = self.d, self.program, []
        for value, kind in program.kinds.items():
            if kind != ROW or program.levels[value] != level or value in self.known:
                continue
            name = f"s{len(self.known)}"
            if value in self.inputs:
                text = d.load(value.dtype, f"{self.names[value]}[o_{self.names[value]}]")
            elif value.node.op == "pick":
                more, text = self._pick(value.node)
                lines += more
            else:
                text = self._computed(value.node, [self._row_name(v) for v in value.node.inputs])
            lines.append(f"const {d.registers[value.dtype]} {name} = {text};")
            self.known[value] = name
        return lines

    def _row_name(self, value: Value) -> str:
        return self.known[value] if value in self.known else self.d.literal(_origin(value))

    def _pick(self, member: Node) -> tuple[list[str], str]:
        """One element of the row; out of range it is the nearest, and flagged."""
        d = self.d
        x, index = member.inputs
        last, at = self.program.num_columns - 1, f"at{member.id}"
        chosen = self.known[index]
        lines = [
            f"if ({d.thread}.x == 0 && ({chosen} < 0 || {chosen} > {last})) {d.raise_flag('r', chosen)}",
            f"const u32 {at} = (u32)({chosen} < 0 ? 0 : {chosen} > {last} ? {last} : {chosen});",
        ]
        made: dict[Value, str] = {}
        name = self._element(x, at, made, lines, lambda value: self._address(value, at))
        return lines, name

    # Walks along the row.

    def _address(self, value: Value, column: str) -> str:
        x, name = self.inputs[value], self.names[value]
        row = f"o_{name} + " if self.program.kinds[value] == FULL else ""
        return x.load(f"{name}[{row}(i64){column} * {x.strides[-1]}]")

    def _walk(
        self, wanted: Sequence[Value], body: Body, before: str = "", after: str = "", later: Sequence[Value] = ()
    ) -> str:
        """A loop along the row that makes the values `wanted` at every column, and keeps what `later` ones need."""
        d, program, pack = self.d, self.program, self.pack
        read = [v for v in self._needed(wanted) if v in self.inputs and program.kinds[v] in (FULL, COLUMN)]
        lines = []
        for value in read:
            if pack > 1:
                name, stored = self.names[value], d.storage[value.dtype]
                row = f"o_{name} + " if program.kinds[value] == FULL else ""
                lines.append(f"const auto p_{name} = read_pack<{stored}, {pack}>({name} + ({row}c0));")
        inner: list[str] = []
        made: dict[Value, str] = {}

        def load(value: Value) -> str:
            if pack > 1:
                return d.load(value.dtype, f"p_{self.names[value]}.at[e]")
            return self._address(value, "c")

        for value in wanted:
            self._element(value, "c", made, inner, load)
        body(made, inner)
        for value in self._worth_keeping(made, later):
            self.kept[value] = f"kept{len(self.kept)}"
            inner.append(f"{self.kept[value]}[k][e] = {made[value]};")
        newline = "\n"
        unroll = "#pragma unroll\n" if self.unrolled else ""
        return f"""{unroll}for (int k = 0; k < {self.num_walks}; ++k) {{
const u32 c0 = ((u32)k * {program.num_threads}u + {d.thread}.x) * {pack}u;
if (c0 < {program.num_columns}u) {{
{newline.join(lines)}
{before}
#pragma unroll
for (int e = 0; e < {pack}; ++e) {{
const u32 c = c0 + e;
{newline.join(inner)}
}}
{after}
}}
}}"""

    def _worth_keeping(self, made: Mapping[Value, str], later: Sequence[Value]) -> list[Value]:
        """Elements of the row that `later` is made of directly; none where there are too many for registers."""
        found: dict[Value, None] = {}
        stack = list(later)
        while stack:
            value = stack.pop()
            if value in found or value in self.known or value in self.kept:
                continue
            if value in made and self.program.kinds[value] == FULL:
                found[value] = None
            elif value not in self.inputs:
                stack += value.node.inputs
        room = MAX_KEPT // (self.num_walks * self.pack) - len(self.kept) if self.unrolled else 0
        return list(found) if len(found) <= room else []

    def _needed(self, wanted: Sequence[Value]) -> list[Value]:
        """What the values `wanted` are made of, without numbers of the row, which are known by then."""
        found: dict[Value, None] = {}
        stack = list(wanted)
        while stack:
            value = stack.pop()
            if value in found or value in self.known or value in self.kept:
                continue
            found[value] = None
            stack += value.node.inputs if value not in self.inputs else ()
        return list(found)

    def _element(
        self, value: Value, column: str, made: dict[Value, str], lines: list[str], load: Callable[[Value], str]
    ) -> str:
        """The name of a value at one column; statements that make it are added to `lines`."""
        if value in self.known:
            return self.known[value]
        if value in made:
            return made[value]
        node = value.node
        if column == "c" and value in self.kept:
            text = f"{self.kept[value]}[k][e]"
        elif value in self.inputs:
            text = load(value)
        elif OPS[node.op].work is Work.FILL:
            text = f"({self.d.registers[value.dtype]}){column}" if node.op == "iota" else self.d.literal(node)
        elif node.op == "broadcast":
            made[value] = self._element(node.inputs[0], column, made, lines, load)
            return made[value]
        else:
            text = self._computed(node, [self._element(v, column, made, lines, load) for v in node.inputs])
        made[value] = f"e{len(made)}_{column}"
        lines.append(f"const {self.d.registers[value.dtype]} {made[value]} = {text};")
        return made[value]

    def _computed(self, node: Node, names: Sequence[str]) -> str:
        d = self.d
        text = d.expression(node, tuple(names))
        dtype = node.types[0].dtype
        return d.load(dtype, d.store(dtype, text)) if dtype == "bf16" else text

    def _reductions(self, level: int) -> list[str]:
        """One walk for all reductions of values of a level, and their results in every thread."""
        d, program = self.d, self.program
        members = [m for m in program.reductions if program.levels[m.inputs[0]] == level]
        if not members:
            return []
        folds = [d.fold(m.op, m.inputs[0].dtype) for m in members]
        lines = [f"{f.state} a{m.id} = {f.identity};" for m, f in zip(members, folds, strict=True)]

        def fold_in(made: dict[Value, str], inner: list[str]) -> None:
            for m, f in zip(members, folds, strict=True):
                inner.append(f"{{ const {f.state} v = {f.lift(made[m.inputs[0]], 'c')}; ")
                inner.append(f"a{m.id} = {f.combine(f'a{m.id}', 'v')}; }}")

        later = [m.inputs[0] for m in (*program.reductions, *program.column_sums) if m not in members]
        later += [value for value in self.outputs if program.kinds[value] == FULL]
        lines.append(self._walk([m.inputs[0] for m in members], fold_in, later=later))
        for m, f in zip(members, folds, strict=True):
            number = program.reductions.index(m)
            lines.append(
                f"for (int mask = 16; mask; mask >>= 1) {{ const {f.state} v = shuffle_xor(a{m.id}, mask); "
                f"a{m.id} = {f.combine(f'a{m.id}', 'v')}; }}\n"
                f"if (({d.thread}.x & 31u) == 0) {d.put(f'shared{number}[{d.thread}.x >> 5]', f'a{m.id}', shared=True)}"
            )
        lines.append(d.barrier())
        for m, f in zip(members, folds, strict=True):
            number, name = program.reductions.index(m), f"s{len(self.known)}"
            first, each = (d.get(f"shared{number}[{place}]", shared=True) for place in ("0", "w"))
            lines.append(
                f"a{m.id} = {first};\nfor (int w = 1; w < {program.num_threads // 32}; ++w) "
                f"{{ const {f.state} v = {each}; a{m.id} = {f.combine(f'a{m.id}', 'v')}; }}\n"
                f"const {d.registers[m.types[0].dtype]} {name} = {f.result(f'a{m.id}')};"
            )
            self.known[m.outputs[0]] = name
        return [*lines, d.barrier()]

    # What is kept.

    def _writes(self) -> list[str]:
        d, program, kinds = self.d, self.program, self.program.kinds
        lines = []
        for value, x in self.outputs.items():
            if kinds[value] == ROW:
                name = self.targets[value]
                stored = d.store(x.dtype, self.known[value])
                lines.append(f"if ({d.thread}.x == 0) {name}[o_{name}] = {stored};")
        full = [value for value in self.outputs if kinds[value] == FULL]
        summed = [member.inputs[0] for member in program.column_sums]
        if not full and not summed:
            return lines

        def keep(made: dict[Value, str], inner: list[str]) -> None:
            for value in full:
                name, x = self.targets[value], self.outputs[value]
                place = f"m_{name}.at[e]" if self.pack > 1 else f"{name}[o_{name} + (i64)c * {x.strides[-1]}]"
                inner.append(f"{place} = {d.store(x.dtype, made[value])};")
            inner += [f"columns{i}[k][e] += {made[value]};" for i, value in enumerate(summed)]

        before = after = ""
        if self.pack > 1:
            named = [(self.targets[value], d.storage[self.outputs[value].dtype]) for value in full]
            before = " ".join([f"Pack<{stored}, {self.pack}> m_{name};" for name, stored in named])
            after = " ".join([f"write_pack({name} + (o_{name} + c0), m_{name});" for name, _ in named])
        lines.append(self._walk([*full, *summed], keep, before, after))
        return lines

    def _leave(self, number: int) -> str:
        """The sums of this block's rows, for every column."""
        d, program = self.d, self.program
        return f"""#pragma unroll
for (int k = 0; k < {self.num_walks}; ++k) {{
#pragma unroll
for (int e = 0; e < {self.pack}; ++e) {{
const u32 c = ((u32)k * {program.num_threads}u + {d.thread}.x) * {self.pack}u + e;
if (c < {program.num_columns}u) partial{number}[{d.block}.x * {program.num_columns}u + c] = columns{number}[k][e];
}}
}}"""


def _origin(value: Value) -> Node:
    """The constant behind a value that is one for all."""
    while value.node.op == "broadcast":
        value = value.node.inputs[0]
    return value.node
