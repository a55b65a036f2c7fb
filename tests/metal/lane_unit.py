"""Libraries of the fake Metal: texts of MSL that the lane engine compiles and runs."""

from __future__ import annotations

from collections.abc import Sequence

from tests.lanes.unit import Buffer, Refused, Unit
from tests.metal.fake_metal import Argument


class LaneUnit:
    """One text; ValueError where it does not compile. order, checked: as `tests.lanes.unit` has them."""

    def __init__(self, text: str, order: str = "forward", checked: bool = False) -> None:
        self._order, self._checked = order, checked
        try:
            self._unit = Unit(text, "msl")
            _ = self._unit.checked if checked else self._unit.plain
        except Refused as error:
            raise ValueError(str(error)) from error

    def num_arguments(self, name: str) -> int | None:
        kernel = self._unit.kernels.get(name)
        return None if kernel is None else sum([p.is_buffer for p in kernel.parameters])

    def run(
        self, name: str, groups: Sequence[int], threads: Sequence[int], arguments: Sequence[Argument]
    ) -> None:
        types = [p.type for p in self._unit.kernels[name].parameters if p.is_buffer]
        buffers = [
            Buffer(x.address, x.begin, x.end - x.begin, item_bytes=1 if "u8" in type else 4, writable=True)
            for x, type in zip(arguments, types, strict=True)
        ]
        (gx, gy, gz), (tx, ty, tz) = groups, threads
        self._unit.run(name, buffers, (gx, gy, gz), (tx, ty, tz), self._order, self._checked)
