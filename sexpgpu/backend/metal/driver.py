"""Metal through PyObjC: every call that the device makes, spelt once. Nothing else imports `Metal` or `objc`.

The bridge leaks in two places, and both are closed here. It keeps what methods named `new…` return once too often, so
no buffer would ever be freed: `already_retained` is registered for those that are called. Command buffers and encoders
end with an autorelease pool, of which a Python process has none: every graph runs inside one.

Flow: `device` and `session` speak to this; buffers, pipelines and command buffers are the bridge's own objects, which
only come back here.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from sexpgpu.ir.opdef import Array

_ERROR: dict[str, Any] = {"type": b"^@", "type_modifier": b"o"}
NEW: dict[bytes, dict[int, dict[str, Any]]] = {
    b"newBufferWithLength:options:": {2: {"type": b"Q"}, 3: {"type": b"Q"}},
    b"newCommandQueue": {},
    b"newComputePipelineStateWithFunction:error:": {2: {"type": b"@"}, 3: _ERROR},
    b"newFunctionWithName:": {2: {"type": b"@"}},
    b"newLibraryWithSource:options:error:": {2: {"type": b"@"}, 3: {"type": b"@"}, 4: _ERROR},
}
"""Methods whose result is the caller's, with their arguments: registering a method replaces all that is known of it."""

PROBE_BYTES = 1 << 20


class MetalError(Exception):
    """What Metal refused or failed at, in its own words."""


class OutOfMemory(MetalError):
    """Metal has no memory for a buffer of so many bytes, or had none while a graph ran (0)."""

    def __init__(self, text: str, num_bytes: int = 0) -> None:
        super().__init__(text)
        self.num_bytes = num_bytes


@dataclass(frozen=True, slots=True)
class Dispatch:
    """A launch: a pipeline, the buffer and offset in bytes of each argument, threadgroups, and threads of each."""

    pipeline: Any
    arguments: Sequence[tuple[Any, int]]
    groups: tuple[int, int, int]
    threads: tuple[int, int, int]


class Driver:
    """The GPU of this machine.

    metal, objc: the modules of PyObjC, or what stands in for them in a test.
    Raises: ImportError without PyObjC, MetalError without a GPU.
    """

    def __init__(self, metal: Any = None, objc: Any = None) -> None:
        self._metal = importlib.import_module("Metal") if metal is None else metal
        self._objc = importlib.import_module("objc") if objc is None else objc
        for selector, arguments in NEW.items():
            known = {"required": True, "retval": {"type": b"@", "already_retained": True}, "arguments": arguments}
            self._objc.registerMetaDataForSelector(b"NSObject", selector, known)
        # Only a process with windows is sure to have a default.
        found = self._metal.MTLCreateSystemDefaultDevice()
        if found is None:
            found = next(iter(self._metal.MTLCopyAllDevices()), None)
        if found is None:
            raise MetalError("Metal finds no GPU")
        self._device: Any = found
        self._queue = self._device.newCommandQueue()

    # The machine.

    def name(self) -> str:
        """The GPU."""
        return str(self._device.name())

    def is_apple_gpu(self) -> bool:
        """Whether it is that of an M1 or newer, which has matrices of SIMD-groups and memory shared with the host."""
        family = self._metal.MTLGPUFamilyApple7
        return bool(self._device.supportsFamily_(family)) and bool(self._device.hasUnifiedMemory())

    def max_buffer_bytes(self) -> int:
        """The longest buffer."""
        return int(self._device.maxBufferLength())

    def working_set_bytes(self) -> int:
        """What Metal recommends to hold at most."""
        return int(self._device.recommendedMaxWorkingSetSize())

    def allocated_bytes(self) -> int:
        """What this process holds."""
        return int(self._device.currentAllocatedSize())

    def frees(self) -> bool:
        """Whether memory that nothing refers to any more is given back: an attempt with one buffer."""
        with self._objc.autorelease_pool():
            before = self.allocated_bytes()
            buffer = self.allocate(PROBE_BYTES)
            held = self.allocated_bytes() - before
            del buffer
        return self.allocated_bytes() - before < max(held, 1)

    # Memory.

    def allocate(self, num_bytes: int) -> Any:
        """A buffer that host and GPU share; it holds anything. Raises OutOfMemory."""
        buffer = self._device.newBufferWithLength_options_(num_bytes, self._metal.MTLResourceStorageModeShared)
        if buffer is None:
            raise OutOfMemory(f"no buffer of {num_bytes} bytes", num_bytes)
        return buffer

    def view(self, buffer: Any, num_bytes: int) -> Array:
        """The bytes of a buffer. The caller keeps the buffer for as long as the view."""
        return np.frombuffer(buffer.contents().as_buffer(num_bytes), np.uint8)

    def offer(self, buffer: Any) -> bool:
        """Let the system take a buffer's memory when it is short; whether this buffer can be offered at all.

        Nothing that runs may use it.
        """
        buffer.setPurgeableState_(self._metal.MTLPurgeableStateVolatile)
        state = buffer.setPurgeableState_(self._metal.MTLPurgeableStateKeepCurrent)
        return bool(state != self._metal.MTLPurgeableStateNonVolatile)

    def keep(self, buffer: Any) -> None:
        """Take an offer back; the buffer holds anything."""
        buffer.setPurgeableState_(self._metal.MTLPurgeableStateNonVolatile)

    # Kernels.

    def compile(self, source: str) -> Any:
        """A library. Raises MetalError with the compiler's log."""
        options = self._metal.MTLCompileOptions.alloc().init()
        options.setFastMathEnabled_(False)
        options.setLanguageVersion_(self._metal.MTLLanguageVersion2_4)
        library, error = self._device.newLibraryWithSource_options_error_(source, options, None)
        if library is None:
            raise MetalError(f"the kernels cannot be compiled: {_described(error)}")
        return library

    def pipeline(self, library: Any, name: str) -> Any:
        """A kernel of a library, ready to be launched. Raises MetalError."""
        function = library.newFunctionWithName_(name)
        if function is None:
            raise MetalError(f"the library has no kernel `{name}`")
        pipeline, error = self._device.newComputePipelineStateWithFunction_error_(function, None)
        if pipeline is None:
            raise MetalError(f"kernel `{name}` cannot be made ready: {_described(error)}")
        return pipeline

    def max_threads(self, pipeline: Any) -> int:
        """The most threads that a threadgroup of a kernel can have."""
        return int(pipeline.maxTotalThreadsPerThreadgroup())

    def run(self, dispatches: Iterable[Dispatch]) -> float:
        """Launch one after the other in one command buffer, and wait; the seconds that the GPU took.

        Nothing runs any more when it returns or raises, an interrupt too.
        Raises: OutOfMemory or MetalError where a launch fails.
        """
        with self._objc.autorelease_pool():
            command = self._queue.commandBuffer()
            encoder = command.computeCommandEncoder()
            try:
                for dispatch in dispatches:
                    encoder.setComputePipelineState_(dispatch.pipeline)
                    for index, (buffer, offset) in enumerate(dispatch.arguments):
                        encoder.setBuffer_offset_atIndex_(buffer, offset, index)
                    encoder.dispatchThreadgroups_threadsPerThreadgroup_(dispatch.groups, dispatch.threads)
            finally:
                encoder.endEncoding()
            try:
                command.commit()
                command.waitUntilCompleted()
            finally:
                # Memory that the GPU still uses must not go to anybody else, however often an interrupt comes.
                while self._runs(command):
                    with suppress(KeyboardInterrupt):
                        command.waitUntilCompleted()
            if command.status() == self._metal.MTLCommandBufferStatusError:
                self._raise(command.error())
            return float(command.GPUEndTime() - command.GPUStartTime())

    def _runs(self, command: Any) -> bool:
        ended = (self._metal.MTLCommandBufferStatusCompleted, self._metal.MTLCommandBufferStatusError)
        return command.status() >= self._metal.MTLCommandBufferStatusCommitted and command.status() not in ended

    def _raise(self, error: Any) -> None:
        text = _described(error)
        if error is not None and error.code() == self._metal.MTLCommandBufferErrorOutOfMemory:
            raise OutOfMemory(text)
        raise MetalError(f"the GPU failed: {text}")


def _described(error: Any) -> str:
    return "no reason is given" if error is None else str(error.localizedDescription())
