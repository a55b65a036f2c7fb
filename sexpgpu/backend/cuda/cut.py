"""The pieces of a lowered phase on a card: why libraries take what they take, and what the card does at best.

Flow: `report` counts pieces, and a session that is profiled times them.
"""

from __future__ import annotations

from sexpgpu.backend.cuda.driver import Driver
from sexpgpu.backend.kernels import cut as common
from sexpgpu.backend.kernels.lowering import Lowered
from sexpgpu.backend.pieces import Rates
from sexpgpu.ir.types import ITEM_BYTES

REASONS = {
    **common.REASONS,
    "product": "a product by cuBLASLt",
    "product kernel": "a product that cuBLASLt does not take",
    "attention": "attention by cuDNN",
}
FLOPS_A_CLOCK = {(8, 0): (128, 2048), (8, 6): (256, 1024), (8, 9): (256, 1024), (9, 0): (256, 4096)}
"""Of a multiprocessor by compute capability: of f32 without tensor cores, and of bf16 with them. Newer cards: at least
as much as the last."""
LAUNCH_S = 2e-6


def cut(lowered: Lowered) -> common.Cut:
    """The pieces of a phase, in order; of its first pass, where it has two."""
    return common.cut(lowered, REASONS, ITEM_BYTES)


def rates_of(driver: Driver) -> Rates:
    """What the card does at best, as its driver describes it."""
    capability = driver.capability()
    known = FLOPS_A_CLOCK.get(capability) or FLOPS_A_CLOCK[max([each for each in FLOPS_A_CLOCK if each <= capability])]
    f32, bf16 = (each * driver.num_multiprocessors() * driver.clock_hz() for each in known)
    return Rates({"f32": f32, "bf16": bf16}, driver.bytes_per_s(), LAUNCH_S)
