"""Operations that walk over the same rows, put together: the rows of a group are independent of each other.

For a number of rows R every operand is cut into R rows. An elementwise operation makes row i of its result of row i of
its operands, a reduction of trailing axes makes one number of each row, as does a pick, a reduction of leading axes
adds row i to a partial result. A group is `flat` where a row is one element and elements lie evenly: then kernels walk
over elements. Operations that do not fit are passed over, and run after the group, which leaves what they read and
write alone.

Flow: `lowering` asks for the longest group that begins at a step. What only the group itself reads is never written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod

from sexpgpu.backend.cpu.native.operations import (
    COLUMN,
    MAP,
    PICK,
    ROW,
    Operand,
    Operation,
    Place,
    Shape,
    kept_axes,
    place_of,
)
from sexpgpu.plan.layout import ARENA

MAX_OPERATIONS = 40
UNRELATED = 4
"""Operations after which one that shares nothing with them begins a group of its own: equal leaves, equal kernels."""
MAX_PASSED = 8
"""Operations that a group may pass over."""
LONG_ROW = 1 << 16
"""Elements of a row above which few rows are too few to share."""
MANY_ROWS = 16


@dataclass(slots=True)
class Value:
    """What an operation of a group makes. private: nobody but the group reads it, so it is never written."""

    place: Place
    dtype: str
    private: bool = False


@dataclass(slots=True)
class Group:
    """Operations over `num_rows` rows.

    reads: for each operation what its inputs are: numbers of values of the group, or places in memory.
    current: the value that lies at a place. loaded: places of which the group reads what others wrote. taken: positions
    of the operations, and passed: what was passed over in between. repeats: operations that others do already.
    """

    num_rows: int
    taken: list[int] = field(default_factory=list)
    passed: list[Operation] = field(default_factory=list)
    repeats: list[Operation] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    reads: list[tuple[int | Place, ...]] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    current: dict[Place, int] = field(default_factory=dict)
    loaded: set[Place] = field(default_factory=set)

    @property
    def is_flat(self) -> bool:
        """Whether every row is one element and all operands lie evenly."""
        return all(self.row_size(o) == 1 and o.kind not in (ROW, PICK) for o in self.operations) and all(
            place.is_even for place in (*self.loaded, *[value.place for value in self.values])
        )

    def row_size(self, operation: Operation) -> int:
        """Elements of a row of an operation."""
        return operation.size // self.num_rows

    @property
    def row_elements(self) -> int:
        """Elements of the longest row."""
        return max([self.row_size(o) for o in self.operations])

    def add(self, operation: Operation) -> bool:
        """Take `operation` in; False, and nothing changes, where it does not fit."""
        if self.num_rows == 1 and operation.kind == COLUMN and operation.output.size == 1:
            operation = replace(operation, kind=ROW)
        if len(self.operations) == MAX_OPERATIONS or not self._fits(operation):
            return False
        reads = [place_of(x, self.num_rows) for x in operation.inputs]
        made = self._made(operation)
        if made is None or None in reads:
            return False
        places = [place for place in reads if place is not None]
        if self._is_unrelated(places) or any(self._is_window(place) for place in places):
            return False
        if operation.kind == PICK and places[0] in self.current:
            return False  # a row is picked from where it lies
        if not self._apart([*places, made] if operation.kind != COLUMN else places, made, operation.kind):
            return False
        self._take(operation, places, made)
        return True

    def _fits(self, operation: Operation) -> bool:
        shape, num_rows = operation.shape, self.num_rows
        if kept_axes(shape, num_rows) is None:
            return False
        if self.operations and operation.size // num_rows > LONG_ROW and num_rows < MANY_ROWS:
            return False
        if operation.kind in (ROW, PICK):
            return operation.output.size == num_rows
        if operation.kind == COLUMN and operation.output.size > 1:
            return operation.size == operation.output.size * num_rows
        return True

    def _made(self, operation: Operation) -> Place | None:
        """Where the result goes. Partial results of columns go elsewhere, and are folded when all rows are done."""
        if operation.kind == COLUMN:
            return place_of(Operand(operation.output.layout, operation.output.dtype, operation.output.shape), 1)
        made = place_of(operation.output, self.num_rows)
        if made is None or self.num_rows == 1:
            return made
        low, high = made.first_row
        return made if made.is_even and high - low <= made.row_bytes else None

    def _is_window(self, place: Place) -> bool:
        """Whether a read takes what the group has written in another order than it was written."""
        if place in self.current:
            return False
        return any(not value.private and overlaps(value.place, place) for value in self.values)

    def _is_unrelated(self, reads: Sequence[Place]) -> bool:
        if len(self.operations) < UNRELATED:
            return False
        return not any(place in self.current or (place.lead and place in self.loaded) for place in reads)

    def _apart(self, places: Sequence[Place], made: Place, kind: str) -> bool:
        """Whether no row touches what another row of the group writes."""
        written = [value.place for value in self.values if not value.private]
        # A sum of columns is written when all rows are done; nothing that the group reads may lie there.
        if kind == COLUMN and any(overlaps(made, other) for other in (*self.loaded, *written)):
            return False
        pairs = [(made, other) for other in self.loaded]
        pairs += [(place, other) for other in written for place in places]
        if any(overlaps(one, other) and not self._in_rows(one, other) for one, other in pairs):
            return False
        columns = [self.values[i].place for i, o in enumerate(self.operations) if o.kind == COLUMN]
        return not any(overlaps(place, column) for place in (*places, made) for column in columns)

    def _in_rows(self, one: Place, other: Place) -> bool:
        if self.num_rows == 1:
            return True
        if not (one.is_even and other.is_even) or one.row_bytes != other.row_bytes or one.row_bytes <= 0:
            return False
        (low, high), (other_low, other_high) = one.first_row, other.first_row
        return max(high, other_high) - min(low, other_low) <= one.row_bytes

    def _take(self, operation: Operation, places: Sequence[Place], made: Place) -> None:
        reads: list[int | Place] = []
        for place in places:
            found = self.current.get(place)
            if found is None:
                self.loaded.add(place)
                reads.append(place)
            else:
                reads.append(found)
        number = len(self.values)
        if operation.kind != COLUMN:
            for place, value in list(self.current.items()):
                if overlaps(place, made):
                    # Whoever reads there now reads the new value.
                    self.values[value].private = place == made
                    del self.current[place]
            self.current[made] = number
        self.values.append(Value(made, operation.output.dtype))
        self.operations.append(operation)
        self.reads.append(tuple(reads))
        for start, num_bytes in operation.dies:
            self._end(start, start + num_bytes)

    def _end(self, start: int, stop: int) -> None:
        """A range of the arena holds nothing any more, but for what was passed over."""
        for place, value in list(self.current.items()):
            low, high = place.span
            if place.buffer == ARENA and start <= low and high <= stop:
                self.values[value].private = not any(
                    _share(place.buffer, place.span, x) for o in self.passed for x in o.inputs
                )
                del self.current[place]

    def passes(self, operation: Operation) -> bool:
        """Whether `operation` must come after one that was passed over."""
        inputs, out = operation.inputs, operation.output
        for before in self.passed:
            made = (before.output.layout.buffer, before.output.span)
            if any(_share(*made, x) for x in (*inputs, out)):
                return True
            if any(_share(out.layout.buffer, out.span, x) for x in before.inputs):
                return True
        return False


def overlaps(one: Place, other: Place) -> bool:
    """Whether two places share bytes, as far as their ends tell."""
    if one.buffer != other.buffer:
        return False
    (low, high), (other_low, other_high) = one.span, other.span
    return low < other_high and other_low < high


def _share(buffer: str, span: tuple[int, int], operand: Operand) -> bool:
    """Whether an operand has bytes in a range of a buffer, as far as its ends tell."""
    if operand.layout.buffer != buffer:
        return False
    low, high = operand.span
    return span[0] < high and low < span[1]


def longest_group(operations: Sequence[Operation]) -> Group | None:
    """The group that takes in most operations, the first among them; None where even that has no rows."""
    best: Group | None = None
    best_score: tuple[int, ...] = ()
    for num_rows in _row_counts(operations[0]):
        group = Group(num_rows)
        for position, operation in enumerate(operations):
            if not group.passes(operation) and group.add(operation):
                group.taken.append(position)
            elif not group.taken or len(group.passed) == MAX_PASSED or len(group.taken) == MAX_OPERATIONS:
                break
            else:
                group.passed.append(operation)
        if not group.operations:
            continue
        score = _score(group)
        if best is None or score > best_score:
            best, best_score = group, score
    return None if best is None else _without_repeats(best)


def _without_repeats(group: Group) -> Group:
    """The group with what is computed twice computed once, where memory gets neither result."""
    instead: dict[int, int] = {}
    first: dict[tuple[object, ...], int] = {}
    kept = Group(group.num_rows, taken=group.taken, passed=group.passed, loaded=group.loaded)
    for number, (operation, value) in enumerate(zip(group.operations, group.values, strict=True)):
        reads = tuple([instead[read] if isinstance(read, int) else read for read in group.reads[number]])
        node = operation.node
        key = (node.op, tuple(sorted(node.attrs.items())), reads, operation.shape, value.dtype)
        if operation.kind == MAP and value.private:
            if key in first:
                instead[number] = first[key]
                kept.repeats.append(operation)
                continue
            first[key] = len(kept.operations)
        instead[number] = len(kept.operations)
        kept.operations.append(operation)
        kept.reads.append(reads)
        kept.values.append(value)
    return kept


def _row_counts(operation: Operation) -> list[int]:
    counts = [1]
    for size in operation.shape:
        counts.append(counts[-1] * size)
    if operation.kind in (ROW, PICK):
        return [operation.output.size]
    if operation.kind == COLUMN and operation.output.size > 1:
        return [operation.size // operation.output.size]
    return sorted(set(counts))


def _score(group: Group) -> tuple[int, ...]:
    """Enough rows to share first; then the longest; then the least work around the elements."""
    size = group.row_elements
    shares = size <= LONG_ROW or group.num_rows >= MANY_ROWS
    flat = group.is_flat
    walkable = flat or size >= 16 or all(group.row_size(o) == prod(_own(o)) for o in group.operations)
    return (shares, walkable, len(group.operations), flat, group.num_rows if size >= 32 else 0, -group.num_rows)


def _own(operation: Operation) -> Shape:
    """The trailing axis."""
    return operation.shape[-1:]
