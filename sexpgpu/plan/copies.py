"""Work that is done twice so that its result need not be kept: for gradients of weights, long after the forward pass.

Flow: `plan.regions` takes the copies as items of their own, and finds each a region that reads the same then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sexpgpu.ir.graph import Node
from sexpgpu.plan.bodies import is_map, widens
from sexpgpu.plan.flatten import Flat, Item

FAR = 60
"""Items between what makes a value and a reader that is so late that the value is better made again."""
MIN_BYTES_AGAIN = 1 << 20
MAX_STEPS_AGAIN = 40
"""Of elementwise work that is repeated so that its result need not be kept."""


@dataclass(frozen=True, slots=True)
class Copy:
    """Items that make a value again, by their places; the value, and the original. late: when that is long gone."""

    places: tuple[int, ...]
    value: int
    original: int
    late: int


def with_copies(
    flat: Flat, items: Sequence[Item], is_head: Callable[[Node], bool], num_bytes: Sequence[int]
) -> tuple[list[Item], list[Copy]]:
    """Items, and before each product that reads a value long after it was made, work that makes it again.

    Only where all that this work reads is kept that long anyway. num_bytes: of each value.
    """
    maker = {value: i for i, item in enumerate(items) for value in item.outputs}
    readers: dict[int, list[int]] = {}
    for i, item in enumerate(items):
        for value in dict.fromkeys(item.inputs):
            readers.setdefault(value, []).append(i)

    def last_reader(value: int) -> int:
        """The last item that reads a value, as it is or widened."""
        found = readers.get(value, [-1])
        return max([last_reader(items[i].outputs[0]) if widens(items[i].node) else i for i in found])

    def work_behind(value: int, late: int) -> list[int] | None:
        """The items that make a value of what is kept until `late`; None: there is none such."""
        limit, found, stack = num_bytes[value], set[int](), [value]
        while stack:
            each = stack.pop()
            i = maker.get(each)
            is_kept = last_reader(each) >= late and num_bytes[each] <= limit
            if i is None or i in found or (each != value and is_kept):
                continue
            node = items[i].node
            if not (is_map(node) or is_head(node) or node.op in ("broadcast", "constant")):
                return None
            found.add(i)
            stack += items[i].inputs
        return sorted(found) if 1 < len(found) <= MAX_STEPS_AGAIN else None

    made: list[Item] = []
    copies: list[Copy] = []
    moved: list[int] = []
    for i, item in enumerate(items):
        for value in dict.fromkeys(item.inputs if item.node.op == "product" else ()):
            if value not in maker:
                continue
            far = [reader for reader in readers[value] if reader - maker[value] > FAR]
            if far != [i] or len(readers[value]) == 1 or num_bytes[value] < MIN_BYTES_AGAIN:
                continue
            known: dict[int, int] = {}
            start = len(made)
            late = maker[value] + FAR
            for source in work_behind(value, late) or ():
                node = items[source].node
                known |= {each: flat.value(flat.types[each]) for each in items[source].outputs}
                inputs = tuple([known.get(each, each) for each in items[source].inputs])
                made.append(Item(node, inputs, tuple([known[each] for each in items[source].outputs])))
            if known:
                inputs = tuple([known[value] if each == value else each for each in item.inputs])
                item = replace(item, inputs=inputs)
                copies.append(Copy(tuple(range(start, len(made))), known[value], value, moved[maker[value]] + FAR))
        moved.append(len(made))
        made.append(item)
    return made, copies
