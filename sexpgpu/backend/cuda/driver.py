"""The CUDA driver: every call that the device makes, its status checked, its result converted once. No logic.

Flow: `device` and `session` speak to this; addresses, streams, events, graphs and functions are plain integers
or the binding's own handles, which only come back here.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Sequence
from typing import Any

OUT_OF_MEMORY = 2
NO_DEVICE = 100
CAPTURE_THREAD_LOCAL = 1
CAPABILITY_MAJOR, CAPABILITY_MINOR, MULTIPROCESSORS = 75, 76, 16
CLOCK_KHZ, MEMORY_CLOCK_KHZ, MEMORY_BITS = 13, 36, 37
MAX_SHARED_BYTES_ATTRIBUTE = 8
DEFAULT_SHARED_BYTES = 48 << 10
EVENT_PLAIN, EVENT_WITHOUT_TIMING = 0, 2
STREAM_NON_BLOCKING = 1


class DriverError(Exception):
    """A call of the driver, or of a library on it, that failed: its name, status number and text."""

    def __init__(self, call: str, status: int, text: str) -> None:
        super().__init__(f"{call} failed: {text} ({status})")
        self.call = call
        self.status = status
        self.text = text


class OutOfMemory(DriverError):
    """The device or the host refused memory."""


class Arguments:
    """Pointers as a kernel takes them: an array of values, and one of their addresses, both kept alive."""

    __slots__ = ("_values", "address", "pointers")

    def __init__(self, pointers: Sequence[int]) -> None:
        self.pointers = tuple(pointers)
        values = (ctypes.c_uint64 * max(1, len(pointers)))(*pointers)
        start = ctypes.addressof(values)
        addresses = (ctypes.c_void_p * max(1, len(pointers)))(*[start + 8 * i for i in range(len(pointers))])
        self._values = (values, addresses)
        self.address = ctypes.addressof(addresses)


class Driver:
    """One device of this machine, by ordinal.

    bindings: `cuda.bindings.driver`, or what stands in for it in a test.
    Raises: ImportError without the bindings, RuntimeError without a driver, DriverError where a call fails.
    """

    def __init__(self, bindings: Any = None, ordinal: int = 0) -> None:
        self._cuda = importlib.import_module("cuda.bindings.driver") if bindings is None else bindings
        self._call("cuInit", 0)
        self.num_devices = int(self._call("cuDeviceGetCount"))
        if self.num_devices <= ordinal:
            raise DriverError("cuDeviceGet", NO_DEVICE, f"no device {ordinal} among {self.num_devices}")
        self.device = self._call("cuDeviceGet", ordinal)
        self._context: Any = None

    def _call(self, name: str, *args: Any) -> Any:
        status, *rest = getattr(self._cuda, name)(*args)
        if int(status) != 0:
            text = self._cuda.cuGetErrorString(status)[1]
            kind = OutOfMemory if int(status) == OUT_OF_MEMORY else DriverError
            raise kind(name, int(status), text.decode() if isinstance(text, bytes) else str(status))
        return rest[0] if len(rest) == 1 else rest

    # The machine.

    def version(self) -> int:
        """The CUDA version that the driver speaks: 13000 is 13.0."""
        return int(self._call("cuDriverGetVersion"))

    def name(self) -> str:
        """The card."""
        text: bytes = self._call("cuDeviceGetName", 256, self.device)
        return text.split(b"\0", 1)[0].decode().strip()

    def _attribute(self, number: int) -> int:
        return int(self._call("cuDeviceGetAttribute", self._cuda.CUdevice_attribute(number), self.device))

    def capability(self) -> tuple[int, int]:
        """Compute capability: (9, 0)."""
        return self._attribute(CAPABILITY_MAJOR), self._attribute(CAPABILITY_MINOR)

    def num_multiprocessors(self) -> int:
        """How many the card has."""
        return self._attribute(MULTIPROCESSORS)

    def clock_hz(self) -> float:
        """The fastest clock of a multiprocessor."""
        return 1e3 * self._attribute(CLOCK_KHZ)

    def bytes_per_s(self) -> float:
        """What the card's memory moves at best: two transfers a clock, over all of its lines."""
        return 2e3 * self._attribute(MEMORY_CLOCK_KHZ) * self._attribute(MEMORY_BITS) / 8

    def use(self) -> None:
        """Make the device's primary context current in this thread."""
        if self._context is None:
            self._context = self._call("cuDevicePrimaryCtxRetain", self.device)
        self._call("cuCtxSetCurrent", self._context)

    def memory(self) -> tuple[int, int]:
        """Free and total bytes of the device."""
        free, total = self._call("cuMemGetInfo")
        return int(free), int(total)

    # Memory.

    def allocate(self, num_bytes: int) -> int:
        """The address of new device memory. Raises OutOfMemory."""
        return int(self._call("cuMemAlloc", num_bytes))

    def free(self, address: int) -> None:
        """Give device memory back."""
        self._call("cuMemFree", address)

    def allocate_host(self, num_bytes: int) -> int:
        """The address of new pinned host memory. Raises OutOfMemory."""
        return int(self._call("cuMemAllocHost", num_bytes))

    def free_host(self, address: int) -> None:
        """Give pinned memory back."""
        self._call("cuMemFreeHost", address)

    def copy_in(self, target: int, source: int, num_bytes: int, stream: Any) -> None:
        """Host to device."""
        self._call("cuMemcpyHtoDAsync", target, source, num_bytes, stream)

    def copy_out(self, target: int, source: int, num_bytes: int, stream: Any) -> None:
        """Device to host."""
        self._call("cuMemcpyDtoHAsync", target, source, num_bytes, stream)

    def copy(self, target: int, source: int, num_bytes: int, stream: Any) -> None:
        """Device to device."""
        self._call("cuMemcpyDtoDAsync", target, source, num_bytes, stream)

    def fill(self, target: int, byte: int, num_bytes: int, stream: Any) -> None:
        """Set every byte."""
        self._call("cuMemsetD8Async", target, byte, num_bytes, stream)

    # Streams and events.

    def stream(self) -> int:
        """A new stream, as an address."""
        return int(self._call("cuStreamCreate", STREAM_NON_BLOCKING))

    def synchronize(self, stream: Any) -> None:
        """Wait until all that was enqueued is done."""
        self._call("cuStreamSynchronize", stream)

    def end_stream(self, stream: Any) -> None:
        """Give a stream back."""
        self._call("cuStreamDestroy", stream)

    def event(self, timed: bool = False) -> Any:
        """A new event."""
        return self._call("cuEventCreate", EVENT_PLAIN if timed else EVENT_WITHOUT_TIMING)

    def record(self, event: Any, stream: Any) -> None:
        """Put `event` behind all that `stream` holds."""
        self._call("cuEventRecord", event, stream)

    def wait(self, event: Any) -> None:
        """Wait for `event`."""
        self._call("cuEventSynchronize", event)

    def elapsed_ms(self, first: Any, last: Any) -> float:
        """Milliseconds between two timed events that have passed."""
        return float(self._call("cuEventElapsedTime", first, last))

    def end_event(self, event: Any) -> None:
        """Give an event back."""
        self._call("cuEventDestroy", event)

    # Kernels.

    def load(self, image: bytes) -> Any:
        """A module from a cubin."""
        return self._call("cuModuleLoadData", image)

    def unload(self, module: Any) -> None:
        """Give a module back."""
        self._call("cuModuleUnload", module)

    def function(self, module: Any, name: str, shared_bytes: int = 0) -> Any:
        """A kernel of a module, allowed `shared_bytes` of dynamic shared memory."""
        found = self._call("cuModuleGetFunction", module, name.encode())
        if shared_bytes > DEFAULT_SHARED_BYTES:
            attribute = self._cuda.CUfunction_attribute(MAX_SHARED_BYTES_ATTRIBUTE)
            self._call("cuFuncSetAttribute", found, attribute, shared_bytes)
        return found

    def launch(
        self,
        function: Any,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        arguments: Arguments,
        stream: Any,
    ) -> None:
        """Enqueue a kernel."""
        self._call("cuLaunchKernel", function, *grid, *block, shared_bytes, stream, arguments.address, 0)

    # Graphs.

    def begin_capture(self, stream: Any) -> None:
        """What is enqueued from now on is recorded, not run."""
        mode = self._cuda.CUstreamCaptureMode(CAPTURE_THREAD_LOCAL)
        self._call("cuStreamBeginCapture", stream, mode)

    def end_capture(self, stream: Any) -> Any:
        """An executable graph of what was recorded. Raises OutOfMemory."""
        graph = self._call("cuStreamEndCapture", stream)
        try:
            return self._call("cuGraphInstantiate", graph, 0)
        finally:
            self._call("cuGraphDestroy", graph)

    def replay(self, graph: Any, stream: Any) -> None:
        """Enqueue a graph."""
        self._call("cuGraphLaunch", graph, stream)

    def end_graph(self, graph: Any) -> None:
        """Give a graph back."""
        self._call("cuGraphExecDestroy", graph)
