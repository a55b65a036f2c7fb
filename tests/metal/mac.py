"""A Mac of paper: the metal device over the fake Metal, whose kernels the lane engine runs."""

from __future__ import annotations

from functools import partial
from typing import Any

from sexpgpu.backend.metal.device import MetalDevice, open_metal
from tests.metal.fake_metal import Device, FakeMetal
from tests.metal.lane_unit import LaneUnit


def mac(devices: str = "", order: str = "forward", checked: bool = False, **facts: Any) -> tuple[MetalDevice, Device]:
    """The device, and the GPU below it. order, checked: of the lane engine; facts: of the GPU."""
    metal = FakeMetal(partial(LaneUnit, order=order, checked=checked))
    card, gpu = open_metal("", devices, metal, metal.bridge), metal.devices[0]
    gpu.facts.update(facts)
    return card, gpu
