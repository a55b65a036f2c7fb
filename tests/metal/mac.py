"""A Mac of paper: the metal device over the fake Metal, whose kernels the lane engine runs.

Flow: `mac` compiles the texts that the device makes as they come; `watched` runs each kernel that it meets for the
first time in every order and checked. Those are `KERNELS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from sexpgpu.backend.kernels import msl
from sexpgpu.backend.metal.device import MetalDevice, open_metal
from tests.lanes.unit import Buffer
from tests.lanes.watched import Kernels, Printers
from tests.metal.fake_metal import Argument, Device, FakeMetal
from tests.metal.lane_unit import LaneUnit

KERNELS = Kernels(msl.PRINTER, "msl")


def mac(devices: str = "", order: str = "forward", checked: bool = False, **facts: Any) -> tuple[MetalDevice, Device]:
    """The device, and the GPU below it. order, checked: of the lane engine; facts: of the GPU."""
    metal = FakeMetal(partial(LaneUnit, order=order, checked=checked))
    card, gpu = open_metal("", devices, metal, metal.bridge), metal.devices[0]
    gpu.facts.update(facts)
    return card, gpu


class WatchedUnit:
    """Kernels that were noted when they were printed. text: their names, as `Printers.module_source` has them."""

    def __init__(self, text: str) -> None:
        self._text = text

    def num_arguments(self, name: str) -> int | None:
        return len(KERNELS.launches[name].operands) if f" {name}(" in self._text else None

    def run(
        self, name: str, groups: Sequence[int], threads: Sequence[int], arguments: Sequence[Argument]
    ) -> None:
        def reached() -> dict[int, Buffer]:
            return {i: Buffer(x.address, x.begin, x.end - x.begin, 1, True, True) for i, x in enumerate(arguments)}

        (gx, gy, gz), (tx, ty, tz) = groups, threads
        KERNELS.run(name, (gx, gy, gz), (tx, ty, tz), [x.address for x in arguments], reached)


def watched() -> MetalDevice:
    """The device, on a GPU that has memory for every example."""
    metal = FakeMetal(WatchedUnit, max_buffer=1 << 32, working_set=1 << 34)
    card = open_metal("", "", metal, metal.bridge)
    return replace(card, tools=replace(card.tools, printers=Printers(KERNELS)))
