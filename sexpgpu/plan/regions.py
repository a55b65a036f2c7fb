"""Regions: the work of a phase that runs as one, decided before anything has a place in memory.

Elementwise work joins what it reads or, ahead of a row program, what reads it; what only a region reads of its own lies
nowhere. Cheap values are made again by every region that reads them, so that what lives on between two regions is the
narrower value that they are made of: a bf16 tensor and not its f32 copy, a vector and not its broadcast.

Two pieces of work may be one where no path leads from one to the other through a third.

Flow: `plan.phase` calls `form_regions` on the flat list of a device that has `Rules`, then orders and places what is
left.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sexpgpu.ir.graph import Graph, Node
from sexpgpu.ir.opdef import OPS, Work
from sexpgpu.ir.ops.region import shares
from sexpgpu.ir.ops.rules import attr_int, attr_ints, without
from sexpgpu.ir.types import ITEM_BYTES
from sexpgpu.plan.bodies import Body, Likeness, graph_of, is_map, pruned, widens
from sexpgpu.plan.copies import MAX_STEPS_AGAIN, with_copies
from sexpgpu.plan.flatten import Flat, Item
from sexpgpu.plan.layout import VIEWS

MAPS, ROWS, LEAVES, PRODUCT, SUM, ATTENTION = "maps", "rows", "leaves", "product", "sum", "attention"
SCAN = "scan"
"""What leads a region: elementwise work alone; a row program; elementwise work on dense tensors with folds of all their
elements, for many tensors side by side; a product that is rounded; a sum of what is widened; attention with bf16 at its
edge."""

FOLDS = {"sum": "f32", "all": "bool", "any": "bool"}
"""Reductions of all elements that go with the work that makes these, and the dtype of what they fold."""

MAX_STEPS = 48
MAX_OPERANDS = 20
"""Of an elementwise region, read or written: enough for an optimizer's rule, few enough for a thread's registers."""
SMALL = 16
"""How many times smaller than what reads it a value is that costs nothing to make for each element again."""
ADDITIVE = frozenset({"add", "sub"})
MAX_ADDITIONS = 4
"""What a running fold makes of its input by itself."""
REPEATED = frozenset({"cast", "add", "sub", "mul", "neg"})
"""Work on small values that is repeated for each element."""
EVERYBODY = -1
"""Who reads an output of the phase."""


@dataclass(frozen=True)
class Rules:
    """What a device does as one piece of work.

    rows: whether a body is one row program. narrows: whether a product can be written as bf16. attends: whether an
    attention composite is taken whole, with bf16 operands and results. scans: whether a running fold makes its input.
    """

    rows: Callable[[Graph], bool]
    narrows: Callable[[Node], bool]
    attends: Callable[[Node], bool]
    scans: Callable[[Node], bool]


def added_axis(shape: Sequence[int], longer: Sequence[int]) -> int:
    """Where `longer` has an axis of size 1 more than `shape`; -1: that is not their difference."""
    places = [axis for axis, size in enumerate(longer) if size == 1 and without(longer, (axis,)) == tuple(shape)]
    return places[0] if places else -1


def may_overwrite(node: Node, output: int, reads: Sequence[int]) -> bool:
    """Whether a node writes an output element by element, in step with its inputs `reads`, of the same size."""
    if node.op != "region":
        return OPS[node.op].work is Work.MAP
    kind = node.attrs["kind"]
    if kind == MAPS:
        return True
    if kind == LEAVES:
        (own,) = [read for _, read, made in shares(node) if made.start <= output < made.stop]
        return node.types[output].rank > 0 and all(own.start <= i < own.stop for i in reads)
    # What is picked of a row may be read when its place is written already.
    picks = any(member.op == "pick" for member in node.bodies[0].nodes)
    return kind == ROWS and not picks and node.types[output].size == max([v.type.size for v in node.inputs])


def writes_any_strides(node: Node) -> bool:
    """Whether a node leaves its results in any order of axes at no cost."""
    return node.op == "region" and node.attrs["kind"] == ATTENTION


def form_regions(
    flat: Flat, orders: Sequence[Sequence[Item]], rules: Rules, at_once: bool = False,
    item_bytes: Mapping[str, int] = ITEM_BYTES,
) -> tuple[Flat, list[list[Item]]]:
    """`flat` with regions in the places of their members, and the same orders of what is left.

    orders: topological orders of the items; the second is the one in which they were made. at_once: whether all that is
    alike may run at once, since all of it is kept to the end; else only what reads nothing that the phase makes.
    item_bytes: storage of an element by IR dtype.
    """
    return _Former(flat, orders, rules, at_once, item_bytes).form()


@dataclass(eq=False, slots=True)
class _Cluster:
    """Items, by their positions in the order in which they were made, that are one piece of work.

    parts: clusters that are alike, side by side in this one.
    """

    kind: str
    shape: tuple[int, ...]
    members: list[int] = field(default_factory=list)
    parts: list[_Cluster] = field(default_factory=list)


class _Former:
    """The tables of one phase while its regions are formed; items are numbered as they were made."""

    def __init__(
        self, flat: Flat, orders: Sequence[Sequence[Item]], rules: Rules, at_once: bool, item_bytes: Mapping[str, int]
    ) -> None:
        self.flat = flat
        self.orders = orders
        self.rules = rules
        self.at_once = at_once
        self.num_bytes = [type.size * item_bytes[type.dtype] for type in flat.types]
        self.items, self.copies = with_copies(flat, orders[1], self._is_head, self.num_bytes)
        self.num_bytes += [type.size * item_bytes[type.dtype] for type in flat.types[len(self.num_bytes) :]]
        self.copied = {i for copy in self.copies for i in copy.places}
        self.dropped: set[int] = set()
        self.maker = {value: i for i, item in enumerate(self.items) for value in item.outputs}
        self.readers: dict[int, list[int]] = {}
        for i, item in enumerate(self.items):
            for value in dict.fromkeys(item.inputs):
                self.readers.setdefault(value, []).append(i)
        self.shown = {value for _, value in flat.outputs}
        self.maps = [is_map(item.node) for item in self.items]
        self.heads = [self._is_head(item.node) for item in self.items]
        self.cheap = self._cheap()
        self.sources = [self._sources(i) for i in range(len(self.items))]
        self.makers = [tuple([self.maker[v] for v in sources if v in self.maker]) for sources in self.sources]
        self.final: dict[int, frozenset[int]] = {}
        self.left_out: set[int] = set()
        self.instead: dict[int, int] = {}
        self.cluster: list[_Cluster] = []

    def form(self) -> tuple[Flat, list[list[Item]]]:
        for i in range(len(self.items)):
            self._join(i)
        for cluster in dict.fromkeys(self.cluster):
            if cluster.kind in (MAPS, ROWS, LEAVES):
                for value in reversed(self._writes(cluster)):
                    self._leave_out(cluster, value)
        self._give_copies_a_host()
        self._put_side_by_side()
        made = self._emit()
        formed = Flat(
            [item for item, _ in made], self.flat.types, self.flat.inputs, self.flat.outputs, {}, self.flat.numbers
        )
        orders = []
        for order in self.orders:
            position = {item.outputs: n for n, item in enumerate(order)}
            # A copy is made where its host is.
            at = [position.get(item.outputs, -1) for item in self.items]
            orders.append(_ordered([(item, max([at[i] for i in members])) for item, members in made]))
        formed.items = orders[0]
        return formed, orders

    # What is made again by each reader.

    def _cheap(self) -> list[bool]:
        """Per item, whether regions that read it make it again: constants, repeats, widened values, small ones."""
        cheap = [False] * len(self.items)
        small = [False] * len(self.items)
        for i in reversed(range(len(self.items))):
            node = self.items[i].node
            if node.op == "constant":
                cheap[i] = not isinstance(node.attrs["value"], tuple)
            elif node.op == "broadcast":
                axes, rank = attr_ints(node.attrs, "axes"), len(node.types[0].shape)
                cheap[i] = axes in ((), (rank - 1,), tuple(range(rank - 1)))
                small[i] = cheap[i] and node.types[0].size >= SMALL * node.inputs[0].type.size
            elif self.maps[i]:
                small[i] = node.op in REPEATED and self._is_read_by_all(i, small)
                cheap[i] = small[i] or widens(node)
        return cheap

    def _is_read_by_all(self, i: int, small: Sequence[bool]) -> bool:
        """Whether nothing but small values, or what repeats them, is made of what an item makes."""
        (value,) = self.items[i].outputs
        readers = self.readers.get(value, ())
        return bool(readers) and value not in self.shown and all(small[reader] for reader in readers)

    def _repeats(self, i: int, cheap: int) -> bool:
        """Whether item `i` makes a cheap value that it reads itself."""
        if not self.cheap[cheap]:
            return False
        node, read = self.items[i].node, self.items[cheap].node
        if self.maps[i] or self.heads[i] or (self.cheap[i] and node.op == "broadcast"):
            return True
        return widens(read) and (node.op == "sum" or self.rules.attends(node))

    def _is_head(self, node: Node) -> bool:
        return node.op == "composite" and self.rules.rows(node.bodies[0])

    def _sources(self, i: int) -> tuple[int, ...]:
        """The values that an item depends on, cheap ones replaced by what they are made of."""
        found: dict[int, None] = {}
        stack = [(value, i) for value in self.items[i].inputs]
        while stack:
            value, reader = stack.pop()
            maker = self.maker.get(value)
            if maker is not None and self._repeats(reader, maker):
                stack += [(each, maker) for each in self.items[maker].inputs]
            else:
                found[value] = None
        return tuple(found)

    def _final_readers(self, value: int) -> frozenset[int]:
        """Items that read a value, by themselves or through cheap ones."""
        known = self.final.get(value)
        if known is None:
            found: set[int] = {EVERYBODY} if value in self.shown else set()
            for reader in self.readers.get(value, ()):
                if self.cheap[reader]:
                    for made in self.items[reader].outputs:
                        found |= self._final_readers(made)
                else:
                    found.add(reader)
            known = self.final[value] = frozenset(found)
        return known

    # Which items are one.

    def _join(self, i: int) -> None:
        """Find the cluster of item `i`; all before it have theirs."""
        node = self.items[i].node
        shape = node.types[0].shape if node.types else ()
        own = _Cluster(self._kind(i), shape, [i])
        self.cluster.append(own)
        if self.cheap[i]:
            return
        if own.kind == MAPS and self._rounds(i):
            return
        if self.items[i].node.op == "concat":
            self._gathers(i)
        if own.kind == SCAN:
            self._takes_additions(i)
        if own.kind in (MAPS, ROWS, SUM):
            for other in self._neighbours(i):
                merged = self._merged(other, self.cluster[i])
                if merged is not None:
                    for member in merged.members:
                        self.cluster[member] = merged

    def _kind(self, i: int) -> str:
        node = self.items[i].node
        if self.cheap[i]:
            return ""
        if self.maps[i]:
            return MAPS
        if self.heads[i]:
            return ROWS
        if node.op == "product" and node.types[0].dtype == "f32" and self.rules.narrows(node):
            return PRODUCT
        if node.op in FOLDS and node.types[0].dtype == FOLDS[node.op]:
            return SUM
        if OPS[node.op].work is Work.SCAN and not node.bodies and self.rules.scans(node):
            return SCAN
        return ATTENTION if self.rules.attends(node) else ""

    def _rounds(self, i: int) -> bool:
        """Put a cast to bf16 with the product or the attention that it alone reads."""
        item = self.items[i]
        maker = self.maker.get(item.inputs[0])
        if item.node.op != "cast" or item.node.types[0].dtype != "bf16" or maker is None:
            return False
        cluster = self.cluster[maker]
        if cluster.kind not in (PRODUCT, ATTENTION) or self._final_readers(item.inputs[0]) != {i}:
            return False
        cluster.members.append(i)
        self.cluster[i] = cluster
        return True

    def _takes_additions(self, i: int) -> None:
        """Put a running fold with the few additions that make its input, if nothing else reads what they make."""
        (value,) = self.items[i].inputs
        maker = self.maker.get(value)
        if maker is None or self.cluster[maker].kind != MAPS or maker in self.copied:
            return
        cluster = self.cluster[maker]
        nodes = [self.items[member].node for member in cluster.members]
        if any(node.op not in ADDITIVE or node.types[0] != self.flat.types[value] for node in nodes):
            return
        if len(nodes) <= MAX_ADDITIONS and self._writes(cluster) == [value] and self._final_readers(value) == {i}:
            cluster.kind = SCAN
            cluster.members.append(i)
            self.cluster[i] = cluster

    def _gathers(self, i: int) -> None:
        """Put a concat with the attention whose results, each with one more axis, are all that it joins."""
        axis = attr_int(self.items[i].node.attrs, "axis")
        parts = []
        for value in self.items[i].inputs:
            part = self.maker.get(value)
            if part is None or self.items[part].node.op != "reshape" or self._final_readers(value) != {i}:
                return
            (source,) = self.items[part].inputs
            maker, shape = self.maker.get(source), self.flat.types[value].shape
            added = added_axis(self.flat.types[source].shape, shape)
            if maker is None or self._final_readers(source) != {part} or shape[axis] != 1 or added < 0:
                return
            if without(shape, (axis,)) != self.flat.types[source].shape:
                return
            parts.append((part, self.cluster[maker]))
        clusters = {cluster for _, cluster in parts}
        if len({part for part, _ in parts}) == len(parts) and [each.kind for each in clusters] == [ATTENTION]:
            (cluster,) = clusters
            cluster.members = sorted({*cluster.members, *[part for part, _ in parts], i})
            for member in cluster.members:
                self.cluster[member] = cluster

    def _neighbours(self, i: int) -> list[_Cluster]:
        """Clusters that item `i` reads from, the latest first."""
        found: dict[_Cluster, None] = {}
        for value in self.sources[i]:
            maker = self.maker.get(value)
            if maker is not None and self.cluster[maker].kind in (MAPS, ROWS, LEAVES):
                found[self.cluster[maker]] = None
        return sorted(found, key=lambda cluster: -cluster.members[-1])

    def _merged(self, one: _Cluster, two: _Cluster, hosts: bool = False) -> _Cluster | None:
        """Both as one cluster, if a device can do that and no path leads out of it and back.

        hosts: whether the second is a copy, which the first makes beside its own work.
        """
        kinds = {one.kind, two.kind}
        if one is two or kinds == {ROWS, LEAVES} or (kinds == {ROWS} and not hosts):
            return None
        if not hosts and (one.members[0] in self.copied) != (two.members[0] in self.copied):
            return None
        members = sorted([*one.members, *two.members])
        if len(members) > MAX_STEPS:
            return None
        if two.kind == SUM:
            node = self.items[two.members[0]].node
            (operand,), axes = node.inputs, attr_ints(node.attrs, "axes")
            down = node.op == "sum" and bool(axes) and axes == tuple(range(operand.rank - 1))
            over_all = bool(operand.rank) and axes == tuple(range(operand.rank)) and one.kind != ROWS
            if operand.shape != one.shape or not (down or over_all) or (down and one.kind == LEAVES):
                return None
            merged = _Cluster(LEAVES if over_all else ROWS, one.shape, members)
        else:
            kind = ROWS if ROWS in kinds else LEAVES if LEAVES in kinds else MAPS
            shape = self._full_shape(one)
            if shape != self._full_shape(two):
                return None
            merged = _Cluster(kind, shape, members)
        if self._leads_outside(one, two) or self._leads_outside(two, one):
            return None
        return merged if self._is_possible(merged) else None

    def _full_shape(self, cluster: _Cluster) -> tuple[int, ...]:
        """The shape whose elements or rows a cluster walks over."""
        if cluster.kind != ROWS:
            return cluster.shape
        heads = [self.items[i].node for i in cluster.members if self.items[i].node.op == "composite"]
        return max([v.shape for v in heads[0].inputs], key=len) if heads else cluster.shape

    def _leads_outside(self, one: _Cluster, two: _Cluster) -> bool:
        """Whether a path leads from `one` to `two` through a third."""
        first = one.members[0]
        stack = [each for each in self._before(two) if each is not one]
        seen: set[int] = set()
        while stack:
            each = stack.pop()
            if each is one:
                return True
            if id(each) in seen or each.members[-1] < first:
                continue
            seen.add(id(each))
            stack += self._before(each)
        return False

    def _before(self, cluster: _Cluster) -> list[_Cluster]:
        found = dict.fromkeys([self.cluster[maker] for i in cluster.members for maker in self.makers[i]])
        found.pop(cluster, None)
        return list(found)

    # What is made again instead of being kept.

    def _give_copies_a_host(self) -> None:
        """Put each copy with a region that reads the same then; without one, its reader takes the original."""
        for copy in self.copies:
            clusters = list(dict.fromkeys([self.cluster[i] for i in copy.places if not self.cheap[i]]))
            if len(clusters) != 1 or not self._has_host(clusters[0], copy.late):
                self.dropped |= set(copy.places)
                self.instead[copy.value] = copy.original

    def _has_host(self, copy: _Cluster, late: int) -> bool:
        """Put a copy with a region that begins at `late` or later and reads the tensor that it reads."""
        tensors = {value for value in self._body(copy).reads if self.flat.types[value].size == math.prod(copy.shape)}
        for host in dict.fromkeys(self.cluster[late:]):
            if host.kind not in (MAPS, ROWS) or host.members[0] < late or host.members[0] in self.copied:
                continue
            if self._full_shape(host) == self._full_shape(copy) and tensors & set(self._body(host).reads):
                merged = self._merged(host, copy, hosts=True)
                if merged is not None:
                    for member in merged.members:
                        self.cluster[member] = merged
                    return True
        return False

    def _leave_out(self, cluster: _Cluster, value: int) -> None:
        """Have the readers of a value make it again, if what they need for that is kept anyway, or is smaller."""
        readers = self._final_readers(value) - set(cluster.members)
        if (
            not readers
            or EVERYBODY in readers
            or any(self.cluster[i].kind not in (MAPS, ROWS, LEAVES) for i in readers)
        ):
            return
        leaves: set[int] = set()
        steps: set[int] = set()
        stack, written = [value], set(self._writes(cluster))
        while stack:
            each = stack.pop()
            maker = self.maker.get(each)
            inside = maker is not None and self.cluster[maker] is cluster and (each is value or each not in written)
            if maker is not None and (inside or self.cheap[maker]):
                if maker not in steps and not self.cheap[maker] and not self.maps[maker]:
                    return
                if maker not in steps:
                    steps.add(maker)
                    stack += self.items[maker].inputs
            else:
                leaves.add(each)
        last = max(readers)
        extra = [leaf for leaf in leaves if leaf in self.maker and max(self._lasts(leaf)) < last]
        if len(steps) > MAX_STEPS_AGAIN or self._num_bytes(extra) >= self._num_bytes([value]):
            return
        self.left_out.add(value)
        if not all(self._is_possible(each) for each in {cluster, *[self.cluster[i] for i in readers]}):
            self.left_out.remove(value)

    def _lasts(self, value: int) -> list[int]:
        """The items that read a value last; one beyond all of them for what outlives the phase."""
        return [len(self.items) if i == EVERYBODY else i for i in self._final_readers(value)] or [-1]

    def _num_bytes(self, values: Sequence[int]) -> int:
        return sum([self.num_bytes[value] for value in values])

    def _is_possible(self, cluster: _Cluster) -> bool:
        body = self._body(cluster)
        if len(body.reads) + len(self._writes(cluster)) > MAX_OPERANDS:
            return False
        if cluster.kind == ROWS:
            return self.rules.rows(self._graph(cluster, body))
        return cluster.kind != LEAVES or self._is_dense(cluster, body)

    # What is alike and runs at once.

    def _is_dense(self, cluster: _Cluster, body: Body) -> bool:
        """Whether all that a cluster reads is a number, or a tensor of its shape that lies as it was made."""
        if not cluster.shape:
            return False
        for value in body.reads:
            type, maker = self.flat.types[value], self.maker.get(value)
            if type.shape and type.shape != cluster.shape:
                return False
            if maker is not None and type.shape:
                node = self.items[maker].node
                # What repeats in a constant is stored once.
                is_constant = not node.inputs and OPS[node.op].work is Work.FILL
                if node.op in VIEWS or is_constant or self.cluster[maker].kind == ATTENTION:
                    return False
        return any(self.flat.types[value].shape for value in body.reads)

    def _put_side_by_side(self) -> None:
        """Make one cluster of those that do the same to tensors of any size, as long as none waits for another."""
        alike: dict[object, list[_Cluster]] = {}
        for cluster in dict.fromkeys(self.cluster):
            if cluster.kind not in (MAPS, LEAVES):
                continue
            body = self._body(cluster)
            early = all(value not in self.maker for value in body.reads)
            if (self.at_once or early) and self._is_dense(cluster, body):
                alike.setdefault(self._likeness(cluster, body), []).append(cluster)
        for clusters in alike.values():
            together: _Cluster | None = None
            for cluster in clusters:
                if together is None:
                    together = _Cluster(LEAVES, (), list(cluster.members), [cluster])
                elif not self._waits(together, cluster):
                    together.members = sorted([*together.members, *cluster.members])
                    together.parts.append(cluster)
                else:
                    continue
                for member in cluster.members:
                    self.cluster[member] = together

    def _waits(self, one: _Cluster, two: _Cluster) -> bool:
        """Whether one of two clusters needs the other."""
        before = [self._before(one), self._before(two)]
        return one in before[1] or two in before[0] or self._leads_outside(one, two) or self._leads_outside(two, one)

    def _likeness(self, cluster: _Cluster, body: Body) -> object:
        """Equal for clusters that do the same, whatever their shapes."""
        lines = []
        for node, operands in body.lines:
            attrs = [item for item in sorted(node.attrs.items()) if item[0] not in ("axes", "shape")]
            lines.append((node.op, repr(attrs), node.types[0].dtype, operands))
        reads = [(self.flat.types[value].dtype, bool(self.flat.types[value].shape)) for value in body.reads]
        return tuple(lines), tuple(reads), tuple([body.known[value] for value in self._writes(cluster)])

    # What is left.

    def _writes(self, cluster: _Cluster) -> list[int]:
        """Values that a cluster makes and others read."""
        members = set(cluster.members)
        made = [value for i in cluster.members for value in self.items[i].outputs]
        # A library writes what nobody reads, too.
        all_of_it = cluster.kind == ATTENTION
        found = []
        for value in made:
            readers = self._final_readers(value)
            if value not in self.left_out and (readers - members or (all_of_it and not readers)):
                found.append(value)
        return found

    def _body(self, cluster: _Cluster) -> Body:
        body = Body()
        for i in cluster.members:
            self._append(i, body, cluster)
        return pruned(body, [body.known[value] for value in self._writes(cluster)])

    def _append(self, i: int, body: Body, cluster: _Cluster) -> None:
        item = self.items[i]
        operands = []
        for value in item.inputs:
            if value not in body.known:
                maker = self.maker.get(value)
                if maker is not None and (self._repeats(i, maker) or self._is_hidden(value, maker, cluster)):
                    body.pulled |= self.maps[maker]
                    self._append(maker, body, cluster)
                else:
                    body.known[value] = (len(body.reads), -1)
                    body.reads.append(value)
            operands.append(body.known[value])
        for n, value in enumerate(item.outputs):
            body.known[value] = (len(body.lines), n)
        body.lines.append((item.node, tuple(operands)))

    def _is_hidden(self, value: int, maker: int, cluster: _Cluster) -> bool:
        """Whether another region makes a value and keeps it to itself."""
        other = self.cluster[maker]
        if maker in cluster.members or other.kind not in (MAPS, ROWS, LEAVES):
            return False
        return value in self.left_out or not self._final_readers(value) - set(other.members)

    def _graph(self, cluster: _Cluster, body: Body) -> Graph:
        """The body as a graph, the same object for regions that are alike."""
        types = tuple([self.flat.types[value] for value in body.reads])
        lines = tuple([(Likeness(node), operands) for node, operands in body.lines])
        writes = tuple([body.known[value] for value in self._writes(cluster)])
        return graph_of(types, lines, writes)

    def _emit(self) -> list[tuple[Item, list[int]]]:
        """What is left to run, each with the members that it stands for."""
        found: list[tuple[Item, list[int]]] = []
        wanted: set[int] = set()
        for cluster in dict.fromkeys(self.cluster):
            if (not cluster.kind and self.cheap[cluster.members[0]]) or cluster.members[0] in self.dropped:
                continue
            item = self._item(cluster)
            if self.instead.keys() & set(item.inputs):
                item = replace(item, inputs=tuple([self.instead.get(value, value) for value in item.inputs]))
            found.append((item, cluster.members))
            wanted |= set(item.inputs)
        # Cheap values that are read as they are, or shown.
        stack = list(wanted | self.shown)
        added: set[int] = set()
        while stack:
            maker = self.maker.get(stack.pop())
            if maker is not None and self.cheap[maker] and maker not in added:
                added.add(maker)
                found.append((self.items[maker], [maker]))
                stack += self.items[maker].inputs
        return found

    def _item(self, cluster: _Cluster) -> Item:
        first = self.items[cluster.members[0]]
        parts = cluster.parts or [cluster]
        if len(cluster.members) == 1 and cluster.kind in ("", PRODUCT, SCAN):
            return first
        found = [self._body(part) for part in parts]
        plain = len(cluster.members) == 1 and cluster.kind not in (ROWS, LEAVES) and not found[0].pulled
        if plain or (cluster.kind == SUM and [node.op for node, _ in found[0].lines] != ["cast", "sum"]):
            return first
        reads = [value for body in found for value in body.reads]
        writes = [value for part in parts for value in self._writes(part)]
        graphs = [self._graph(part, body) for part, body in zip(parts, found, strict=True)]
        heads = [i for i in cluster.members if not self.maps[i]]
        origin = self.items[heads[0] if heads else cluster.members[-1]].node.origin
        types = tuple([self.flat.types[value] for value in writes])
        inputs = tuple([value for graph in graphs for value in graph.inputs])
        node = Node(first.node.id, "region", inputs, {"kind": cluster.kind}, types, tuple(graphs), origin)
        return Item(node, tuple(reads), tuple(writes))


def _ordered(items: Sequence[tuple[Item, int]]) -> list[Item]:
    """Items in an order that they can run in, as near as that goes to the numbers beside them."""
    maker = {value: n for n, (item, _) in enumerate(items) for value in item.outputs}
    waiting = [0] * len(items)
    users: list[list[int]] = [[] for _ in items]
    for n, (item, _) in enumerate(items):
        for before in {maker[value] for value in item.inputs if value in maker}:
            users[before].append(n)
            waiting[n] += 1
    ready = [(at, n) for n, (_, at) in enumerate(items) if not waiting[n]]
    heapq.heapify(ready)
    found = []
    while ready:
        _, n = heapq.heappop(ready)
        found.append(items[n][0])
        for user in users[n]:
            waiting[user] -= 1
            if not waiting[user]:
                heapq.heappush(ready, (items[user][1], user))
    assert len(found) == len(items), "regions wait for one another"
    return found
