"""Enough of PyObjC's `Metal` and `objc` to run the metal device anywhere: the same spellings, stricter than a Mac.

Fresh memory is rubbish; what becomes purgeable is lost at once; what is encoded runs only when it is waited for. Wrong
order, unbound arguments and touching what is purgeable are assertions. Buffers leak unless the driver has told the
bridge whose they are, and command buffers may only be made inside an autorelease pool, since a Mac would leak them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import numpy as np

SHARED = 0
KEEP_CURRENT, NON_VOLATILE, VOLATILE, EMPTY = 1, 2, 3, 4
COMMITTED, COMPLETED, ERROR = 2, 4, 5
ERROR_OUT_OF_MEMORY = 8
FAMILY_APPLE7 = 1007
SMALLEST_PURGEABLE = 1 << 15
MAX_THREADS = 1024
RUBBISH, LOST = 0xA5, 0xEE


class Argument(NamedTuple):
    """Where an argument begins, and the buffer that it lies in: a kernel may reach before that place too."""

    address: int
    begin: int
    end: int


class Unit(Protocol):
    """Kernels that were compiled together."""

    def num_arguments(self, name: str) -> int | None:
        """How many buffers a kernel takes; None: there is no such kernel."""

    def run(
        self, name: str, groups: Sequence[int], threads: Sequence[int], arguments: Sequence[Argument]
    ) -> None:
        """Run a kernel."""


Build = Callable[[str], Unit]


class NSError:
    def __init__(self, text: str, code: int = 1) -> None:
        self._text, self._code = text, code

    def localizedDescription(self) -> str:
        return self._text

    def code(self) -> int:
        return self._code


class Varlist:
    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def as_buffer(self, count: int) -> memoryview:
        assert 0 < count <= self._array.nbytes
        return memoryview(self._array)[:count]


class Buffer:
    def __init__(self, length: int) -> None:
        raw = np.full(length + 256, RUBBISH, np.uint8)
        first = -raw.ctypes.data % 256
        self.array = raw[first : first + length]
        self.state = NON_VOLATILE
        self.num_pending = 0

    def length(self) -> int:
        return self.array.nbytes

    def contents(self) -> Varlist:
        assert self.state == NON_VOLATILE, "touched while it is purgeable"
        return Varlist(self.array)

    def setPurgeableState_(self, state: int) -> int:
        before = self.state
        if state == VOLATILE:
            assert not self.num_pending, "made purgeable while a command buffer uses it"
            if self.array.nbytes >= SMALLEST_PURGEABLE:
                self.array[:] = LOST
                self.state = VOLATILE
        elif state == NON_VOLATILE:
            self.state = NON_VOLATILE
            return EMPTY if before == VOLATILE else before
        else:
            assert state == KEEP_CURRENT, state
        return before


class Options:
    """`MTLCompileOptions`."""

    fast = True
    version = 0

    @classmethod
    def alloc(cls) -> type[Options]:
        return cls

    @classmethod
    def init(cls) -> Options:
        return cls()

    def setFastMathEnabled_(self, fast: bool) -> None:
        self.fast = fast

    def setLanguageVersion_(self, version: int) -> None:
        self.version = version


class Function:
    def __init__(self, unit: Unit, name: str) -> None:
        self.unit, self.name = unit, name


class Library:
    def __init__(self, unit: Unit) -> None:
        self._unit = unit

    def newFunctionWithName_(self, name: str) -> Function | None:
        return None if self._unit.num_arguments(name) is None else Function(self._unit, name)


class Pipeline:
    def __init__(self, function: Function, max_threads: int) -> None:
        self.unit, self.name, self._max_threads = function.unit, function.name, max_threads

    def maxTotalThreadsPerThreadgroup(self) -> int:
        return self._max_threads


class Encoder:
    def __init__(self, command: CommandBuffer) -> None:
        self._command = command
        self._arguments: dict[int, tuple[Buffer, int]] = {}
        self._pipeline: Pipeline | None = None
        self.open = True

    def setComputePipelineState_(self, pipeline: Pipeline) -> None:
        assert self.open
        self._pipeline = pipeline

    def setBuffer_offset_atIndex_(self, buffer: Buffer, offset: int, index: int) -> None:
        assert self.open and 0 <= index < 31
        assert isinstance(buffer, Buffer) and 0 <= offset < buffer.length(), (offset, index)
        self._arguments[index] = (buffer, offset)

    def dispatchThreadgroups_threadsPerThreadgroup_(self, groups: Sequence[int], threads: Sequence[int]) -> None:
        pipeline = self._pipeline
        assert self.open and pipeline is not None
        assert len(groups) == len(threads) == 3 and min(*groups, *threads) > 0
        assert np.prod(threads) <= pipeline.maxTotalThreadsPerThreadgroup()
        wanted = pipeline.unit.num_arguments(pipeline.name)
        assert wanted is not None and all(i in self._arguments for i in range(wanted)), "an argument is not bound"
        arguments = [self._arguments[i] for i in range(wanted)]
        self._command.work.append((pipeline, arguments, tuple(groups), tuple(threads)))

    def endEncoding(self) -> None:
        assert self.open
        self.open = False


class CommandBuffer:
    def __init__(self, device: Device) -> None:
        self._device = device
        self.work: list[tuple[Pipeline, list[tuple[Buffer, int]], tuple[int, ...], tuple[int, ...]]] = []
        self._encoders: list[Encoder] = []
        self._status = 0
        self._error: NSError | None = None

    def computeCommandEncoder(self) -> Encoder:
        assert all(not encoder.open for encoder in self._encoders), "an encoder is still open"
        self._encoders.append(Encoder(self))
        return self._encoders[-1]

    def commit(self) -> None:
        assert self._status == 0 and all(not encoder.open for encoder in self._encoders)
        self._status = COMMITTED
        for _, arguments, _, _ in self.work:
            for buffer, _ in arguments:
                assert buffer.state == NON_VOLATILE, "committed while it is purgeable"
                buffer.num_pending += 1

    def waitUntilCompleted(self) -> None:
        """What was encoded runs here, so that a wait that is missing shows as output that is not written."""
        assert self._status >= COMMITTED, "waited for without a commit"
        if self._status != COMMITTED:
            return
        self._device.before_work()
        for pipeline, arguments, groups, threads in self.work:
            begins = [buffer.array.ctypes.data for buffer, _ in arguments]
            given = [
                Argument(begin + offset, begin, begin + buffer.length())
                for begin, (buffer, offset) in zip(begins, arguments, strict=True)
            ]
            if self._device.error is None:
                pipeline.unit.run(pipeline.name, groups, threads, given)
                self._device.num_dispatches += 1
            for buffer, _ in arguments:
                buffer.num_pending -= 1
        self._error, self._device.error = self._device.error, None
        self._status = COMPLETED if self._error is None else ERROR

    def status(self) -> int:
        return self._status

    def error(self) -> NSError | None:
        return self._error

    def GPUStartTime(self) -> float:
        return 1.0

    def GPUEndTime(self) -> float:
        return 1.5


class Queue:
    def __init__(self, device: Device) -> None:
        self._device = device

    def commandBuffer(self) -> CommandBuffer:
        assert self._device.bridge.depth, "a command buffer outside an autorelease pool is never freed"
        self._device.num_command_buffers += 1
        return CommandBuffer(self._device)


class Device:
    """A GPU. refuse_above: bytes that all buffers together may have. error: what the next command buffer fails with."""

    def __init__(self, bridge: Bridge, build: Build, **facts: Any) -> None:
        self.bridge = bridge
        self._build = build
        self.facts = {
            "name": "Lane engine", "families": {FAMILY_APPLE7}, "unified": True, "max_buffer": 1 << 28,
            "working_set": 1 << 30, "refuse_above": 1 << 40, "max_threads": MAX_THREADS, **facts,
        }  # fmt: skip
        self._buffers: weakref.WeakSet[Buffer] = weakref.WeakSet()
        self._leaked: list[Buffer] = []
        self.num_allocations = self.num_libraries = self.num_command_buffers = self.num_dispatches = 0
        self.error: NSError | None = None
        self.before_work: Callable[[], None] = lambda: None

    def name(self) -> str:
        return str(self.facts["name"])

    def supportsFamily_(self, family: int) -> bool:
        return family in self.facts["families"]

    def hasUnifiedMemory(self) -> bool:
        return bool(self.facts["unified"])

    def maxBufferLength(self) -> int:
        return int(self.facts["max_buffer"])

    def recommendedMaxWorkingSetSize(self) -> int:
        return int(self.facts["working_set"])

    def currentAllocatedSize(self) -> int:
        return sum([buffer.length() for buffer in self._buffers])

    def newCommandQueue(self) -> Queue:
        return Queue(self)

    def newBufferWithLength_options_(self, length: int, options: int) -> Buffer | None:
        assert options == SHARED
        held = self.currentAllocatedSize()
        if not 0 < length <= self.maxBufferLength() or held + length > self.facts["refuse_above"]:
            return None
        self.num_allocations += 1
        buffer = Buffer(length)
        self._buffers.add(buffer)
        if not self.bridge.owned(b"newBufferWithLength:options:"):
            self._leaked.append(buffer)
        return buffer

    def newLibraryWithSource_options_error_(
        self, source: str, options: Options, error: None
    ) -> tuple[Library | None, NSError | None]:
        assert error is None and not options.fast and options.version == 0x20004
        self.num_libraries += 1
        try:
            return Library(self._build(source)), None
        except ValueError as failure:
            return None, NSError(str(failure))

    def newComputePipelineStateWithFunction_error_(self, function: Function, error: None) -> tuple[Pipeline, None]:
        assert error is None
        return Pipeline(function, int(self.facts["max_threads"])), None


class Bridge:
    """The module `objc`."""

    def __init__(self) -> None:
        self.depth = 0
        self.registered: dict[bytes, dict[str, Any]] = {}

    def registerMetaDataForSelector(self, owner: bytes, selector: bytes, metadata: dict[str, Any]) -> None:
        assert owner == b"NSObject"
        self.registered[selector] = metadata

    def owned(self, selector: bytes) -> bool:
        return bool(self.registered.get(selector, {}).get("retval", {}).get("already_retained"))

    @contextmanager
    def autorelease_pool(self):  # type: ignore[no-untyped-def]
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1


class FakeMetal:
    """The module `Metal`, with one GPU, or none. build: compiles a text; what it raises as ValueError is the log."""

    MTLResourceStorageModeShared = SHARED
    MTLPurgeableStateKeepCurrent = KEEP_CURRENT
    MTLPurgeableStateNonVolatile = NON_VOLATILE
    MTLPurgeableStateVolatile = VOLATILE
    MTLCommandBufferStatusCommitted = COMMITTED
    MTLCommandBufferStatusCompleted = COMPLETED
    MTLCommandBufferStatusError = ERROR
    MTLCommandBufferErrorOutOfMemory = ERROR_OUT_OF_MEMORY
    MTLGPUFamilyApple7 = FAMILY_APPLE7
    MTLLanguageVersion2_4 = 0x20004
    MTLCompileOptions = Options

    def __init__(self, build: Build, *, num_devices: int = 1, has_default: bool = True, **facts: Any) -> None:
        self.bridge = Bridge()
        self.devices = [Device(self.bridge, build, **facts) for _ in range(num_devices)]
        self._has_default = has_default

    def MTLCreateSystemDefaultDevice(self) -> Device | None:
        return self.devices[0] if self.devices and self._has_default else None

    def MTLCopyAllDevices(self) -> list[Device]:
        return self.devices
