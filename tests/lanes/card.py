"""A card whose kernels run on the lane engine: the cuda device's own path, with libraries done by NumPy.

Flow: `device()` is a `CudaDevice` over it; its kernels are `KERNELS`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sexpgpu.backend.cuda.device import CudaDevice
from sexpgpu.backend.cuda.driver import Arguments
from sexpgpu.backend.kernels import cuda
from tests.cuda.fake import FakeDriver, toolbox
from tests.lanes.unit import Buffer
from tests.lanes.watched import Kernels, Printers

BEHIND = 128
"""The number from which buffers are no parameters."""
KERNELS = Kernels(cuda.PRINTER, "cuda")


class LanesDriver(FakeDriver):
    def function(self, module: str, name: str, shared_bytes: int = 0) -> Any:
        assert f" {name}(" in module
        return name

    def launch(
        self, function: Any, grid: Any, block: Any, shared_bytes: int, arguments: Arguments, stream: Any
    ) -> None:
        assert shared_bytes == 0
        pointers, groups, threads = tuple(arguments.pointers), tuple(grid), tuple(block)

        def reached() -> dict[int, Buffer]:
            everything = [Buffer(a, a, raw.nbytes - 512, 1, True, True) for a, raw in self.memory_of.items()]
            found = {i: Buffer(p, p, 0) for i, p in enumerate(pointers)}
            return found | {BEHIND + i: each for i, each in enumerate(everything)}

        self._do(function, lambda: KERNELS.run(function, groups, threads, pointers, reached))


def device() -> CudaDevice:
    """The cuda device over such a card."""
    return CudaDevice(replace(toolbox(LanesDriver()), printers=Printers(KERNELS)))
