"""The C text of a group: one function that walks over a range of its rows.

    void NAME(char** a, i64 begin, i64 end, i64 piece, char* scratch)

`a` holds the operands. A row is walked in passes: a new pass begins where an operation needs the result of a reduction
over the row, or memory that an earlier one writes in another order. A value that a later pass reads waits in `scratch`.
Texts depend on strides and the length of rows, not on how many rows there are nor on addresses, so that equal layers
share kernels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from sexpgpu.backend.cpu.native.functions import HELD, STORED, Fold, expression, fold
from sexpgpu.backend.cpu.native.groups import Group, overlaps
from sexpgpu.backend.cpu.native.operations import COLUMN, MAP, PICK, ROW, Operation, Place
from sexpgpu.ir.ops.rules import attr_ints
from sexpgpu.plan.layout import Strides

WIDEST = 16
"""Elements of the widest vectors: rows that are a multiple of it have no rest on any machine."""
SUMS = 64
IN_TURN = "(c / V) % (SUMS / V)"
"""The partial sum that the elements at c go to."""

@dataclass(frozen=True, slots=True)
class Partial:
    """Partial results of a reduction of columns: `width` numbers of `dtype` for each piece of rows."""

    value: int
    fold: Fold
    width: int


@dataclass(frozen=True, slots=True)
class Watch:
    """Where a kernel notes the first index of operation `number` that is out of range: see `outside` of the prelude."""

    number: int


@dataclass(frozen=True, slots=True)
class Kernel:
    """A function: its name, a digest of the text; its text; its operands; bytes of scratch that a thread lends it."""

    name: str
    text: str
    operands: tuple[Place | Partial | Watch, ...]
    scratch_bytes: int


@dataclass(slots=True)
class _Pass:
    """Operations that walk over a row together, with what is computed of whole rows before and after."""

    elements: int = 0
    boundaries: frozenset[int] = frozenset()
    before: list[int] = field(default_factory=list)
    walked: list[int] = field(default_factory=list)
    after: list[int] = field(default_factory=list)
    reads: list[Place] = field(default_factory=list)
    writes: list[Place] = field(default_factory=list)
    late: set[int] = field(default_factory=set)


def print_group(group: Group) -> Kernel:
    """The kernel of a group."""
    return _Printer(group).kernel()


def is_spelt(operation: Operation) -> bool:
    """Whether an operation has a text."""
    return operation.kind != MAP or expression(operation.node, ("a", "b", "c")) is not None


class _Printer:
    def __init__(self, group: Group) -> None:
        self.group = group
        self.operands: list[Place | Partial | Watch] = []
        self.lines: list[str] = []
        self.scratch: dict[int, int] = {}
        self.scratch_bytes = 0
        self.row_loads: dict[Place, str] = {}
        self.lead_names: dict[tuple[int, ...], list[str]] = {}
        self.offsets: set[str] = set()
        self.passes: list[_Pass] = []
        self.sum = IN_TURN

    def kernel(self) -> Kernel:
        self.operands = list(dict.fromkeys(self._touched()))
        for i, operation in enumerate(self.group.operations):
            if operation.kind == COLUMN:
                width = operation.output.size
                self.operands.append(Partial(i, self._fold(operation), width))
            if operation.kind == PICK:
                self.operands.append(Watch(i))
        if self.group.is_flat:
            self._flat()
        else:
            self._rows()
        head = [
            f"{_pointed(o)}* const p{i} = ({_pointed(o)}*)a[{i}]"
            + (f" + piece * {o.width}" if isinstance(o, Partial) else "")
            + ";"
            for i, o in enumerate(self.operands)
        ]
        return _function("\n".join([*head, *self.lines]), tuple(self.operands), self.scratch_bytes)

    # What is read and written.

    def _touched(self) -> Iterator[Place]:
        for reads, value, operation in zip(self.group.reads, self.group.values, self.group.operations, strict=True):
            for read in reads:
                if isinstance(read, Place):
                    yield read
                elif not self.group.values[read].private:
                    yield self.group.values[read].place
            if operation.kind != COLUMN and not value.private:
                yield value.place

    def _pointer(self, place: Place) -> str:
        return f"p{self.operands.index(place)}"

    def _partial(self, number: int) -> str:
        return f"p{next(i for i, o in enumerate(self.operands) if isinstance(o, Partial) and o.value == number)}"

    @staticmethod
    def _fold(operation: Operation) -> Fold:
        return fold(operation.node.op, operation.inputs[0].dtype)

    # Groups whose rows are elements.

    def _flat(self) -> None:
        loops = []
        for whole in (True, False):
            self.row_loads = {p: n for p, n in self.row_loads.items() if not p.lead}
            loops.append("\n".join(self._flat_body(whole)))
        columns = [i for i, o in enumerate(self.group.operations) if o.kind == COLUMN]
        for i in columns:
            self.lines.append(_accumulators(i, self._fold(self.group.operations[i])))
        self.lines.append(f"i64 i = begin;\nfor (; i + V <= end; i += V) {{\nconst i64 c = i;\n{loops[0]}\n}}")
        self.lines.append(f"if (i < end) {{\nconst int n = (int)(end - i); const i64 c = i;\n{loops[1]}\n}}")
        for i in columns:
            self._leave(i)

    def _leave(self, number: int) -> None:
        """The folded accumulators of all rows so far are the partial result of the piece."""
        f = self._fold(self.group.operations[number])
        self.lines.append(f"*{self._partial(number)} = fold_{f.name}(acc{number})[0];")

    def _flat_body(self, whole: bool) -> list[str]:
        lines: list[str] = []
        loaded: dict[Place, str] = {}
        for i, operation in enumerate(self.group.operations):
            names = []
            for read in self.group.reads[i]:
                if isinstance(read, int):
                    names.append(f"v{read}")
                    continue
                if read not in loaded:
                    if not read.lead:
                        loaded[read] = self._row_load(read, read.dtype, self._pointer(read))
                    else:
                        loaded[read] = name = f"x{self.operands.index(read)}"
                        text = _load(read.dtype, self._pointer(read), "c", read.lead[0], whole)
                        lines.append(f"const {HELD[read.dtype]} {name} = {text};")
                names.append(loaded[read])
            lines += self._operation(i, operation, tuple(names), whole)
            value = self.group.values[i]
            if operation.kind == MAP and not value.private:
                lines.append(_store(value.dtype, self._pointer(value.place), "c", value.place.lead, f"v{i}", whole))
        return lines

    def _row_load(self, place: Place, dtype: str, address: str) -> str:
        """The name of a number that holds for a row, loaded where the text stands."""
        if place not in self.row_loads:
            self.row_loads[place] = name = f"o{self.operands.index(place)}"
            self.lines.append(f"const {HELD[dtype]} {name} = one_{dtype}({address});")
        return self.row_loads[place]

    def _operation(self, number: int, operation: Operation, names: tuple[str, ...], whole: bool) -> list[str]:
        """One operation at `c`: a value, or an element that enters a fold."""
        if operation.kind == MAP:
            text = expression(operation.node, names)
            assert text is not None, operation.node
            return [f"const {HELD[operation.output.dtype]} v{number} = {text};"]
        f = self._fold(operation)
        taken = names[0] if whole else f"PICK(below(n), {names[0]}, SPLAT({f.held}, {f.identity}))"
        at = f"acc{number}[{self.sum}]"
        return [f"{{ const {f.held} t = {taken}; {at} = {f.combine.format(at, 't')}; }}"]

    # Groups with rows.

    def _rows(self) -> None:
        group = self.group
        self._cut_into_passes()
        self._assign_scratch()
        columns = [i for i, o in enumerate(group.operations) if o.kind == COLUMN]
        for i in columns:
            f, width = self._fold(group.operations[i]), group.operations[i].output.size
            if width > 1:
                self.lines.append(f"for (int c = 0; c < {width}; ++c) {self._partial(i)}[c] = {f.identity};")
            else:
                self.lines.append(_accumulators(i, f))
        self.lines.append("for (i64 r = begin; r < end; ++r) {")
        for each in self.passes:
            for i in each.before:
                self._row_operation(i)
            self._walk(each)
            for i in each.walked:
                if group.operations[i].kind == ROW:
                    f = self._fold(group.operations[i])
                    self.lines.append(f"const {f.held} v{i} = fold_{f.name}(acc{i});")
                    self._keep_row(i)
            for i in each.after:
                self._row_operation(i)
        self.lines.append("}")
        for i in columns:
            if group.operations[i].output.size == 1:
                self._leave(i)

    def _cut_into_passes(self) -> None:
        group = self.group
        self.passes = [_Pass()]
        for i, operation in enumerate(group.operations):
            reads, writes = self._memory(i)
            now = self.passes[-1]
            late = any(isinstance(read, int) and read in now.late for read in group.reads[i])
            clash = _clashes(now, reads, writes)
            if operation.kind == PICK:
                # It reads its row before the pass may write over it.
                if late or clash:
                    self.passes.append(now := _Pass())
                now.before.append(i)
            elif group.row_size(operation) == 1 and operation.kind == MAP:
                if late or clash:
                    now.after.append(i)
                    now.late.add(i)
                else:
                    now.before.append(i)
            else:
                elements = group.row_size(operation)
                boundaries = frozenset(b for p in (*reads, *writes) for b in _boundaries(p))
                joined = now.boundaries | boundaries
                differs = now.walked and (elements != now.elements or not _is_chain(joined, elements))
                if differs or late or (clash and (now.walked or now.after)):
                    self.passes.append(now := _Pass())
                    joined = boundaries
                assert _is_chain(joined, elements), (operation.node, joined)
                now.elements, now.boundaries = elements, joined
                now.walked.append(i)
                if operation.kind == ROW:
                    now.late.add(i)
            now.reads += reads
            now.writes += writes

    def _memory(self, number: int) -> tuple[list[Place], list[Place]]:
        """What an operation reads and writes of memory, where values that wait elsewhere are no part of."""
        group = self.group
        reads = []
        for read in group.reads[number]:
            if isinstance(read, Place):
                reads.append(read)
            elif not group.values[read].private:
                reads.append(group.values[read].place)
        value = group.values[number]
        wrote = group.operations[number].kind != COLUMN and not value.private
        return reads, [value.place] if wrote else []

    def _assign_scratch(self) -> None:
        """Room for values that are read in another pass than they are made in, and are not in memory."""
        made_in = {i: p for p, each in enumerate(self.passes) for i in each.walked}
        for p, each in enumerate(self.passes):
            for i in each.walked:
                for read in self.group.reads[i]:
                    if isinstance(read, int) and made_in.get(read, p) != p and self.group.values[read].private:
                        if self.group.operations[read].kind == MAP and read not in self.scratch:
                            self.scratch[read] = self.scratch_bytes
                            self.scratch_bytes += -(-self.group.row_size(self.group.operations[read]) * 4 // 64) * 64

    def _row_operation(self, number: int) -> None:
        """An operation on numbers of the row."""
        operation = self.group.operations[number]
        row, *rest = self.group.reads[number]
        names = []
        for read in rest if operation.kind == PICK else (row, *rest):
            if isinstance(read, int):
                names.append(f"v{read}")
            else:
                names.append(self._row_load(read, read.dtype, self._row_address(read)))
        if operation.kind == PICK:
            assert isinstance(row, Place), operation.node
            self._pick(number, row, operation.node.inputs[0].shape[-1], names[0])
        else:
            self.lines += self._operation(number, operation, tuple(names), True)
        self._keep_row(number)

    def _pick(self, number: int, row: Place, size: int, index: str) -> None:
        """An element of row r, by an index that is cut to the range and noted where it is outside."""
        watch = f"p{self.operands.index(Watch(number))}"
        at = f"{self._row_address(row)} + {_times(f'at{number}', row.row[0] if row.row else 0)}"
        self.lines.append(
            f"i64 at{number} = {index}[0];\n"
            f"if (at{number} < 0 || at{number} >= {size}) {{\n"
            f"outside({watch}, r, at{number});\nat{number} = at{number} < 0 ? 0 : {size - 1};\n}}\n"
            f"const {HELD[row.dtype]} v{number} = one_{row.dtype}({at});"
        )

    def _keep_row(self, number: int) -> None:
        value = self.group.values[number]
        if not value.private:
            self.lines.append(f"put_one_{value.dtype}({self._row_address(value.place)}, v{number});")

    def _row_address(self, place: Place) -> str:
        """The first element of row r."""
        terms = [self._pointer(place)]
        if place.is_even:
            terms += [_times("r", stride) for stride in place.lead]
        else:
            names = self._coordinates(place.lead_shape)
            terms += [_times(name, stride) for name, stride in zip(names, place.lead, strict=True) if stride]
        return " + ".join(terms)

    def _coordinates(self, shape: tuple[int, ...]) -> list[str]:
        if shape not in self.lead_names:
            number, rest = len(self.lead_names), "r"
            names = [f"r{number}_{axis}" for axis in range(len(shape))]
            parts = []
            for name, size in zip(reversed(names[1:]), reversed(shape[1:]), strict=True):
                parts.append(f"{name} = {rest} % {size}")
                rest = f"{rest} / {size}"
            self.lines.append(f"const i64 {', '.join([*parts, f'{names[0]} = {rest}'])};")
            self.lead_names[shape] = names
        return self.lead_names[shape]

    # One pass.

    def _walk(self, each: _Pass) -> None:
        if not each.walked:
            return
        group = self.group
        # Numbers of the row, and where rows begin, come before the loops.
        for i in each.walked:
            if group.operations[i].kind == ROW:
                self.lines.append(_accumulators(i, self._fold(group.operations[i])))
            reads, writes = self._memory(i)
            for place in (*reads, *writes):
                self._prepare(place, i)
        bounds = sorted(each.boundaries | {1, each.elements}, reverse=True)
        sizes = [outer // inner for outer, inner in pairwise(bounds)]
        inner = sizes[-1] if sizes else 1
        suffixes = bounds[1:]
        loops = [f"for (i64 j{axis} = 0; j{axis} < {size}; ++j{axis}) {{" for axis, size in enumerate(sizes[:-1])]
        self.lines += loops
        start = 0
        if inner >= SUMS and any(group.operations[i].kind != MAP for i in each.walked):
            # As many vectors as there are partial sums, which then stay in registers.
            self.sum, start = "e", inner - inner % SUMS
            body = "\n".join(self._pass_body(each, suffixes, True))
            self.sum = IN_TURN
            self.lines.append(
                f"for (i64 b = 0; b < {start}; b += SUMS) {{\nEACH for (int e = 0; e < SUMS / V; ++e) {{\n"
                f"const i64 c = b + e * V;\n{body}\n}}\n}}"
            )
        if inner - start >= 4:
            body = "\n".join(self._pass_body(each, suffixes, True))
            self.lines.append(f"for (i64 c = {start}; c + V <= {inner}; c += V) {{\n{body}\n}}")
        if inner % WIDEST:
            body = "\n".join(self._pass_body(each, suffixes, False))
            self.lines.append(
                f"if ({inner} % V) {{\nconst i64 c = {inner} - {inner} % V; const int n = {inner} % V;\n{body}\n}}"
            )
        self.lines += ["}"] * len(loops)

    def _prepare(self, place: Place, number: int) -> None:
        if not place.row:
            made = [r for r in self.group.reads[number] if r == place]
            if made:
                self._row_load(place, place.dtype, self._row_address(place))
            return
        name = f"q{self.operands.index(place)}"
        if name not in self.offsets:
            self.offsets.add(name)
            self.lines.append(f"{STORED[place.dtype]}* const {name} = {self._row_address(place)};")

    def _pass_body(self, each: _Pass, suffixes: Sequence[int], whole: bool) -> list[str]:
        group = self.group
        lines: list[str] = []
        names_here: dict[int | Place, str] = {}
        for i in each.walked:
            operation = group.operations[i]
            names = []
            for position, read in enumerate(group.reads[i]):
                if len(suffixes) == 1 and each.elements == operation.shape[-1] and _counts(operation, position):
                    names.append("(LANES + (int)c)")
                    continue
                if read not in names_here:
                    names_here[read] = self._taken(read, each, suffixes, whole, lines)
                names.append(names_here[read])
            value = group.values[i]
            if operation.kind == COLUMN and operation.output.size > 1:
                lines.append(self._into_columns(i, operation, names[0], suffixes, whole))
                continue
            lines += self._operation(i, operation, tuple(names), whole)
            if operation.kind != MAP:
                continue
            names_here[i] = f"v{i}"
            if not value.private:
                address, stride = self._address(value.place, suffixes)
                lines.append(_store(value.dtype, address, "c", (stride,), f"v{i}", whole))
            elif i in self.scratch:
                at = f"({_held_type(value.dtype)}*)(scratch + {self.scratch[i]}) + {_linear(suffixes)}"
                lines.append(_store(_held_dtype(value.dtype), at, "c", (1,), f"v{i}", whole))
        return lines

    def _taken(self, read: int | Place, each: _Pass, suffixes: Sequence[int], whole: bool, lines: list[str]) -> str:
        """The name of what an operation reads; the statement that loads it is added where one is needed."""
        if isinstance(read, Place):
            return self._loaded(read, suffixes, whole, lines)
        operation, value = self.group.operations[read], self.group.values[read]
        if operation.kind == ROW or self.group.row_size(operation) == 1:
            return f"v{read}"
        if not value.private:
            return self._loaded(value.place, suffixes, whole, lines)
        at = f"({_held_type(value.dtype)}*)(scratch + {self.scratch[read]}) + {_linear(suffixes)}"
        lines.append(f"const {HELD[value.dtype]} t{read} = {_load(_held_dtype(value.dtype), at, 'c', 1, whole)};")
        return f"t{read}"

    def _loaded(self, place: Place, suffixes: Sequence[int], whole: bool, lines: list[str]) -> str:
        if not place.row:
            return self.row_loads[place]
        name = f"x{self.operands.index(place)}"
        address, stride = self._address(place, suffixes)
        lines.append(f"const {HELD[place.dtype]} {name} = {_load(place.dtype, address, 'c', stride, whole)};")
        return name

    def _address(self, place: Place, suffixes: Sequence[int]) -> tuple[str, int]:
        """Where a place stands in the loops around the innermost, and its stride along that."""
        strides = _split_strides(place, suffixes)
        terms = [f"q{self.operands.index(place)}"]
        terms += [_times(f"j{axis}", stride) for axis, stride in enumerate(strides[:-1]) if stride]
        return " + ".join(terms), strides[-1]

    def _into_columns(self, number: int, operation: Operation, name: str, suffixes: Sequence[int], whole: bool) -> str:
        f = self._fold(operation)
        at = f"{self._partial(number)} + {_linear(suffixes)}"
        old = _load(f.dtype, at, "c", 1, whole)
        combined = f.combine.format("t", name)
        return f"{{ const {f.held} t = {old}; {_store(f.dtype, at, 'c', (1,), combined, whole)} }}"


def print_fold(f: Fold, dtype: str) -> Kernel:
    """The kernel that folds partial results: a[0] the result, a[1] the partials, then their number and width."""
    held = _held_dtype(dtype)
    bodies = []
    for whole in (True, False):
        first, other = (_load(held, "parts", at, 1, whole) for at in ("c", "(k * width + c)"))
        combined, stored = f.combine.format("t", "u"), _store(dtype, "out", "c", (1,), "t", whole)
        loop = f"for (i64 k = 1; k < pieces; ++k) {{ const {f.held} u = {other}; t = {combined}; }}"
        bodies.append(f"{f.held} t = {first};\n{loop}\n{stored}")
    body = f"""{STORED[dtype]}* const out = ({STORED[dtype]}*)a[0];
{STORED[held]}* const parts = ({STORED[held]}*)a[1];
const i64 pieces = (i64)a[2], width = (i64)a[3];
i64 c = begin;
for (; c + V <= end; c += V) {{
{bodies[0]}
}}
if (c < end) {{
const int n = (int)(end - c);
{bodies[1]}
}}"""
    return _function(body, (), 0)


def _pointed(operand: Place | Partial | Watch) -> str:
    """What an operand points to."""
    if isinstance(operand, Watch):
        return "u64"
    return STORED[operand.dtype if isinstance(operand, Place) else operand.fold.dtype]


def _function(body: str, operands: tuple[Place | Partial | Watch, ...], scratch_bytes: int) -> Kernel:
    name = f"k{hashlib.sha256(body.encode()).hexdigest()[:20]}"
    text = f"void {name}(char** a, i64 begin, i64 end, i64 piece, char* scratch) {{\n{body}\n}}\n"
    return Kernel(name, text, operands, scratch_bytes)


# Spelling.


def _counts(operation: Operation, position: int) -> bool:
    """Whether an input is the number of each element along the last axis, which needs no memory."""
    if operation.kind != MAP or operation.node.op == "concat" or len(operation.inputs) != len(operation.node.inputs):
        return False
    node, rank = operation.node.inputs[position].node, len(operation.shape)
    if node.op == "broadcast" and attr_ints(node.attrs, "axes") == (rank - 1,):
        node = node.inputs[0].node
    return node.op == "iota" and node.types[0].rank == 1 and node.types[0].dtype == "i32"


def _accumulators(number: int, f: Fold) -> str:
    each = f"for (int e = 0; e < SUMS / V; ++e) acc{number}[e] = SPLAT({f.held}, {f.identity});"
    return f"{f.held} acc{number}[SUMS / V];\n{each}"


def _times(name: str, stride: int) -> str:
    return name if stride == 1 else f"{name} * {stride}"


def _linear(suffixes: Sequence[int]) -> str:
    terms = [_times(f"j{axis}", size) for axis, size in enumerate(suffixes[:-1])]
    return " + ".join(terms) or "0"


def _load(dtype: str, address: str, index: str, stride: int, whole: bool) -> str:
    if stride == 0:
        return f"one_{dtype}({address})"
    if stride != 1:
        return f"from_{dtype}(apart_{dtype}({address} + {index} * {stride}, {stride}, {'V' if whole else 'n'}))"
    at = f"{address} + {index}"
    return f"from_{dtype}({f'raw_{dtype}({at})' if whole else f'some_{dtype}({at}, n)'})"


def _store(dtype: str, address: str, index: str, strides: Strides, value: str, whole: bool) -> str:
    stride = strides[0] if strides else 1
    made = f"to_{dtype}({value})"
    if stride != 1:
        return f"put_apart_{dtype}({address} + {index} * {stride}, {stride}, {made}, {'V' if whole else 'n'});"
    at = f"{address} + {index}"
    return f"put_{dtype}({at}, {made});" if whole else f"put_some_{dtype}({at}, {made}, n);"


def _held_dtype(dtype: str) -> str:
    return "f32" if HELD[dtype] == "vf" else "i32"


def _held_type(dtype: str) -> str:
    return STORED[_held_dtype(dtype)]


# Loops of a pass.


def _boundaries(place: Place) -> list[int]:
    """How many elements lie inside each axis of a row, but for the outermost."""
    found, count = [], 1
    for size in reversed(place.row_shape[1:]):
        count *= size
        found.append(count)
    return found


def _is_chain(boundaries: frozenset[int], elements: int) -> bool:
    ordered = [*sorted(boundaries), elements]
    return all(outer % inner == 0 for inner, outer in pairwise(ordered))


def _split_strides(place: Place, suffixes: Sequence[int]) -> list[int]:
    """Strides over loops that each step over `suffixes` elements."""
    found = []
    for suffix in suffixes:
        count, stride = 1, 0
        for size, own in zip(reversed(place.row_shape), reversed(place.row), strict=True):
            if suffix < count * size or count * size == 1:
                stride = own * (suffix // count)
                break
            count *= size
        found.append(stride)
    return found or [0]


def _clashes(now: _Pass, reads: Sequence[Place], writes: Sequence[Place]) -> bool:
    """Whether a pass touches what is read or written here in another order of elements."""
    for written in writes:
        # A number of the row is read once, wherever that is in the pass.
        if not written.row and (written in now.reads or written in now.writes):
            return True
        if any(written != other and overlaps(written, other) for other in (*now.reads, *now.writes)):
            return True
    return any(read != other and overlaps(read, other) for read in reads for other in now.writes)
