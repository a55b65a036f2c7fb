"""The constants of a program, stored once for all of its phases, outside the arena.

Flow: `plan.phase` asks for their layouts; a device computes `nodes` when it opens a plan.
"""

from __future__ import annotations

from collections.abc import Mapping

from sexpgpu.ir.graph import Node
from sexpgpu.plan.arena import aligned
from sexpgpu.plan.layout import Layout, constant_strides


class Constants:
    """The constants of a program, each once. `layouts` are theirs, `nodes` make them."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.num_bytes = 0
        self._found: dict[str, Layout] = {}

    def layout(self, node: Node, item_bytes: Mapping[str, int]) -> Layout:
        """Where the constant that `node` makes lies; equal constants share memory."""
        key = f"{node.op} {sorted(node.attrs.items())!r}"
        found = self._found.get(key)
        if found is None:
            strides = constant_strides(node)
            found = self._found[key] = Layout(f"constant:{len(self.nodes)}", 0, strides)
            self.nodes.append(node)
            (type,) = node.types
            size = 1
            for length, stride in zip(type.shape, strides, strict=True):
                size *= length if stride else 1
            self.num_bytes += aligned(size * item_bytes[type.dtype])
        return found
