"""A card made of host memory: it executes what a session asks for with NumPy, and can refuse it."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from sexpgpu.backend.cuda.attention import Attention, Built
from sexpgpu.backend.cuda.driver import OUT_OF_MEMORY, Arguments, OutOfMemory
from sexpgpu.backend.cuda.gemm import Gemm, Matrix
from sexpgpu.backend.cuda.session import Toolbox
from sexpgpu.backend.kernels import leaves
from sexpgpu.backend.kernels.cuda import CUDA, PRINTER
from sexpgpu.backend.kernels.flags import flagged
from sexpgpu.backend.kernels.fusion import Group
from sexpgpu.backend.kernels.launch import Launch, Operand
from sexpgpu.backend.kernels.operands import Argument
from sexpgpu.backend.kernels.rows import Program
from sexpgpu.ir.evaluate import run_graph
from sexpgpu.ir.graph import Node, Value
from sexpgpu.ir.opdef import OPS, Array, Context, Work
from sexpgpu.ir.types import NUMPY_DTYPES, TensorType
from sexpgpu.plan.layout import Layout, contiguous
from sexpgpu.plan.phase import Copy, Step

GIB = 1 << 30
Run = Callable[[tuple[int, ...]], None]


def view(address: int, shape: Sequence[int], strides: Sequence[int], dtype: np.dtype[Any]) -> Array:
    """Memory at an address; strides count elements."""
    byte_strides = [stride * dtype.itemsize for stride in strides]
    low = sum((n - 1) * s for n, s in zip(shape, byte_strides, strict=True) if s < 0 and n)
    high = sum((n - 1) * s for n, s in zip(shape, byte_strides, strict=True) if s > 0 and n) + dtype.itemsize
    raw = (ctypes.c_uint8 * (high - low)).from_address(address + low)
    return np.ndarray(tuple(shape), dtype, raw, -low, byte_strides)


def typed(address: int, type: TensorType, layout: Layout) -> Array:
    return view(address, type.shape, layout.strides, NUMPY_DTYPES[type.dtype])


class FakeDriver:
    """The surface of `driver.Driver`. refuse_above: bytes from which an allocation is refused."""

    def __init__(self, free_bytes: int = 8 * GIB, refuse_above: int | None = None) -> None:
        self.free_bytes = free_bytes
        self.refuse_above = refuse_above
        self.calls: list[str] = []
        self.memory_of: dict[int, Array] = {}
        self.recording: list[Callable[[], None]] | None = None
        self.kernels: dict[str, Run] = {}
        self.num_devices = 1
        self.streams: list[int] = []
        self.num_records = 0

    def _do(self, name: str, action: Callable[[], None]) -> None:
        self.calls.append(name)
        if self.recording is None:
            action()
        else:
            self.recording.append(action)

    def version(self) -> int:
        return 13000

    def name(self) -> str:
        return "Paper GPU"

    def capability(self) -> tuple[int, int]:
        return (9, 0)

    def num_multiprocessors(self) -> int:
        return 132

    def clock_hz(self) -> float:
        return 1.98e9

    def bytes_per_s(self) -> float:
        return 4.8e12

    def use(self) -> None:
        pass

    def memory(self) -> tuple[int, int]:
        return self.free_bytes, 80 * GIB

    def allocate(self, num_bytes: int) -> int:
        self.calls.append("allocate")
        if self.refuse_above is not None and num_bytes > self.refuse_above:
            raise OutOfMemory("cuMemAlloc", OUT_OF_MEMORY, "out of memory")
        raw = np.full(num_bytes + 512, 0xFF, np.uint8)
        address = -(-raw.ctypes.data // 256) * 256
        self.memory_of[address] = raw
        return address

    allocate_host = allocate

    def free(self, address: int) -> None:
        self.calls.append("free")
        del self.memory_of[address]

    free_host = free

    def _move(self, name: str, target: int, source: int, num_bytes: int) -> None:
        self._do(name, lambda: void(ctypes.memmove(target, source, num_bytes)))

    def copy_in(self, target: int, source: int, num_bytes: int, stream: Any) -> None:
        self._move("copy_in", target, source, num_bytes)

    def copy_out(self, target: int, source: int, num_bytes: int, stream: Any) -> None:
        self._move("copy_out", target, source, num_bytes)

    def copy(self, target: int, source: int, num_bytes: int, stream: Any) -> None:
        self._move("copy", target, source, num_bytes)

    def fill(self, target: int, byte: int, num_bytes: int, stream: Any) -> None:
        self._do("fill", lambda: void(ctypes.memset(target, byte, num_bytes)))

    def stream(self) -> int:
        self.streams.append(7 + len(self.streams))
        return self.streams[-1]

    def synchronize(self, stream: Any) -> None:
        assert self.recording is None, "waiting inside a capture"

    def end_stream(self, stream: Any) -> None:
        self.streams[self.streams.index(stream)] = 0

    def event(self, timed: bool = False) -> list[int]:
        return []

    def record(self, event: Any, stream: Any) -> None:
        """Every event is a millisecond after the one before."""
        self.num_records += 1
        event[:] = [self.num_records]

    def wait(self, event: Any) -> None:
        self.calls.append("wait")

    def elapsed_ms(self, first: Any, last: Any) -> float:
        return float(last[0] - first[0])

    def end_event(self, event: Any) -> None:
        pass

    def load(self, image: bytes) -> str:
        return image.decode()

    def unload(self, module: Any) -> None:
        self.calls.append("unload")

    def function(self, module: str, name: str, shared_bytes: int = 0) -> tuple[str, str]:
        assert f" {name}(" in module
        return name, module

    def launch(
        self, function: tuple[str, str], grid: Any, block: Any, shared_bytes: int, arguments: Arguments, stream: Any
    ) -> None:
        name, text = function
        pointers = arguments.pointers
        source = text[text.index(f" {name}(") :].split("__global__")[0]
        match name.rsplit("_", 1)[0]:
            case "decide":
                num_flags = int(re.findall(r"i < (\d+)u", source)[0])
                self._do(name, lambda: _decide(num_flags, *pointers))
            case "join":
                count = int(re.findall(r"i < (\d+)u", source)[0])
                item_bytes = int(re.findall(r"const u(\d+)\*\)table", source)[0]) // 8
                self._do(name, lambda: _join(count, item_bytes, *pointers))
            case "commit":
                self._do(name, lambda: _commit(grid[1], *pointers))
            case "commit_window":
                self._do(name, lambda: _commit_window(source, *pointers))
            case _:
                self._do(name, lambda: self.kernels[name](pointers))

    def begin_capture(self, stream: Any) -> None:
        assert self.recording is None
        self.recording = []

    def end_capture(self, stream: Any) -> Any:
        made, self.recording = self.recording, None
        return made

    def replay(self, graph: Any, stream: Any) -> None:
        self.calls.append("replay")
        for action in graph:
            action()

    def end_graph(self, graph: Any) -> None:
        self.calls.append("end_graph")


def void(_: object) -> None:
    pass


def _words(address: int, count: int) -> Array:
    return view(address, (count,), (1,), np.dtype(np.uint32))


def _decide(num_flags: int, guard: int, flags: int, decision: int, halt: int) -> None:
    if num_flags and _words(flags, 4 * num_flags)[::4].any():
        _words(halt, 1)[0] = 1
    held = guard == 0 or view(guard, (1,), (1,), np.dtype(np.uint8))[0] != 0
    _words(decision, 1)[0] = int(held and not _words(halt, 1)[0])


def _join(count: int, item_bytes: int, table: int, target: int) -> None:
    for i, source in enumerate(view(table, (count,), (1,), np.dtype(np.uint64)).tolist()):
        ctypes.memmove(target + i * item_bytes, source, item_bytes)


def _commit(num_tensors: int, table: int, decision: int) -> None:
    if decision and not _words(decision, 1)[0]:
        return
    for source, target, num_bytes in view(table, (num_tensors, 3), (3, 1), np.dtype(np.uint64)).tolist():
        assert source % 16 == 0 and target % 16 == 0
        ctypes.memmove(target, source, num_bytes)


def _commit_window(text: str, source: int, target: int, decision: int) -> None:
    if decision and not _words(decision, 1)[0]:
        return
    axes = re.findall(r"rest % (\d+)ull.*i \* (-?\d+)ll.*i \* (-?\d+)ll", text)[::-1]
    shape, read, written = ([int(axis[i]) for axis in axes] for i in range(3))
    bits = re.findall(r"const u(\d+)\* __restrict__ from", text)[0]
    dtype = np.dtype(f"u{int(bits) // 8}")
    view(target, shape, written, dtype)[...] = view(source, shape, read, dtype).copy()


class FakePrinters:
    """Kernels that are the interpreter's own meanings, run on the fake card's memory."""

    dialect = CUDA

    def __init__(self, driver: FakeDriver, num_workspace_bytes: int = 48) -> None:
        self.driver = driver
        self.num_workspace_bytes = num_workspace_bytes

    def _launch(self, operands: tuple[Operand, ...], run: Run) -> Launch:
        name = f"fake_{len(self.driver.kernels)}"
        self.driver.kernels[name] = run
        return Launch(name, f"void {name}()", (1, 1, 1), (1, 1, 1), 0, operands)

    def print_step(self, step: Step) -> tuple[Launch, ...]:
        node, num_inputs, num_outputs = step.node, len(step.inputs), len(step.outputs)
        operands: list[Operand] = [("input", i) for i in range(num_inputs)]
        operands += [("output", i) for i in range(num_outputs)]
        operands += [("workspace", 0)] if self.workspace_bytes(step) else []
        operands += [("flag", 0)] if flagged(node) else []

        def run(pointers: tuple[int, ...]) -> None:
            values = zip(pointers, (*node.inputs, *node.outputs), (*step.inputs, *step.outputs), strict=False)
            arrays = [typed(address, value.type, layout) for address, value, layout in values]
            if self.workspace_bytes(step):
                ctypes.memset(pointers[num_inputs + num_outputs], 0xFF, self.num_workspace_bytes)
            ctx = Context(flag=lambda node, message: _raise_flag(pointers[-1], message, node))
            given = [a.copy() for a in arrays[:num_inputs]]
            if OPS[node.op].work is Work.REDUCE and node.inputs[0].dtype == "bf16" and node.op == "sum":
                given = [given[0].astype(np.float32)]
            with np.errstate(all="ignore"):
                found = OPS[node.op].meaning(ctx, node, given)
            for made, out in zip(found if isinstance(found, tuple) else (found,), arrays[num_inputs:], strict=True):
                out[...] = made

        return (self._launch(tuple(operands), run),)

    def print_copy(self, copy: Copy) -> tuple[Launch, ...]:
        def run(pointers: tuple[int, ...]) -> None:
            source, target = pointers
            typed(target, copy.type, copy.target)[...] = typed(source, copy.type, copy.source).copy()

        return (self._launch((("input", 0), ("output", 0)), run),)

    def print_group(self, group: Group) -> Launch:
        reads, writes = list(group.reads.items()), list(group.writes.items())

        def run(pointers: tuple[int, ...]) -> None:
            values = {}
            for (value, name), address in zip(reads, pointers, strict=False):
                values[name] = typed(address, value.type, value.layout).copy()
            with np.errstate(all="ignore"):
                for node, names, made in group.lines:
                    values[made] = OPS[node.op].meaning(Context(), node, [values[name] for name in names])
            for (value, name), address in zip(writes, pointers[len(reads) :], strict=True):
                typed(address, value.type, value.layout)[...] = values[name]

        operands: list[Operand] = [("input", i) for i in range(len(reads))]
        return self._launch((*operands, *[("output", i) for i in range(len(writes))]), run)  # type: ignore[arg-type]

    def print_rows(
        self, program: Program, inputs: Sequence[Argument], outputs: Sequence[Argument]
    ) -> tuple[Launch, ...]:
        body, num_blocks = program.body, program.num_blocks
        summed = [body.output_values.index(member.outputs[0]) for member in program.column_sums]
        kept = [i for i in range(len(outputs)) if i not in summed]
        partials: list[Operand] = [("workspace", i) for i in range(len(summed))]
        operands = [x.operand for x in inputs] + [outputs[i].operand for i in kept] + partials
        operands += [("flag", 0)] if program.picks else []
        shape = (num_blocks, program.num_columns)

        def run(pointers: tuple[int, ...]) -> None:
            arrays = [typed(p, x.type, x.layout).copy() for p, x in zip(pointers, inputs, strict=False)]
            ctx = Context(flag=lambda _, message: _raise_flag(pointers[-1], message, program.picks[0]))
            with np.errstate(all="ignore"):
                found = run_graph(ctx, body, arrays)
            for p, i in zip(pointers[len(inputs) :], kept, strict=False):
                typed(p, outputs[i].type, outputs[i].layout)[...] = found[i]
            for p, i in zip(pointers[len(inputs) + len(kept) :], summed, strict=False):
                left = view(p, shape, (program.num_columns, 1), np.dtype(np.float32))
                left[...] = 0
                left[num_blocks // 2] = found[i]

        def add(pointers: tuple[int, ...]) -> None:
            for p, target, i in zip(pointers, pointers[len(summed) :], summed, strict=False):
                left = view(p, shape, (program.num_columns, 1), np.dtype(np.float32))
                typed(target, outputs[i].type, outputs[i].layout)[...] = left.sum(0)

        rows = self._launch(tuple(operands), run)
        if not summed:
            return (rows,)
        return rows, self._launch((*partials, *[outputs[i].operand for i in summed]), add)

    def print_leaves(self, node: Node, packs: bool, num_buffers: int = 1) -> tuple[Launch, ...]:
        starts, folds = leaves.first_blocks(CUDA, node), leaves.folds_of(node.bodies[0])
        width = 2 + len(node.bodies[0].inputs) + len(node.bodies[0].outputs)
        # Results of folds wait for the second kernel where the first block of a leaf leaves its own.
        partials: list[Operand] = [("workspace", r) for r in range(len(folds))]

        def rows(table: int) -> list[list[int]]:
            return view(table, (len(node.bodies), width), (width, 1), np.dtype(np.uint64)).tolist()

        def dense(address: int, value: Value) -> Array:
            assert not packs or not value.rank or address % 16 == 0
            return typed(address, value.type, Layout("", 0, contiguous(value.shape)))

        def run(pointers: tuple[int, ...]) -> None:
            for (first, count, *places), body in zip(rows(pointers[0]), node.bodies, strict=True):
                assert first in starts and count == leaves.num_elements(body)
                given = [dense(p, value).copy() for p, value in zip(places, body.inputs, strict=False)]
                with np.errstate(all="ignore"):
                    found = run_graph(Context(), body, given)
                for p, value, array in zip(places[len(given) :], body.output_values, found, strict=True):
                    if leaves.is_fold(value.node):
                        r = [fold.id for fold in leaves.folds_of(body)].index(value.node.id)
                        _words(pointers[1 + r], first + 1)[first] = np.asarray(array, np.float32).view(np.uint32)
                    else:
                        dense(p, value)[...] = array

        def fold(pointers: tuple[int, ...]) -> None:
            for (first, _, *places), body in zip(rows(pointers[0]), node.bodies, strict=True):
                ids = [each.id for each in leaves.folds_of(body)]
                for p, value in zip(places[len(body.inputs) :], body.output_values, strict=True):
                    if leaves.is_fold(value.node):
                        left = _words(pointers[1 + ids.index(value.node.id)], first + 1)[first:]
                        dense(p, value)[...] = left.view(np.float32)[0]

        walk = self._launch((("input", 0), *partials), run)
        return (walk, self._launch((("input", 0), *partials), fold)) if folds else (walk,)

    def workspace_bytes(self, step: Step) -> tuple[int, ...]:
        return () if OPS[step.node.op].work is Work.MAP else (self.num_workspace_bytes,)

    def workspace_bound(self, node: Node) -> int:
        return self.num_workspace_bytes

    def module_source(self, launches: Iterable[Launch]) -> str:
        return "\n".join([launch.source for launch in launches])


def _raise_flag(record: int, message: str, node: Node) -> None:
    words = _words(record, 4)
    words[0] += 1
    found = re.match(r"index (-?\d+)(?: at \[(.*)\])?", message)
    if found is not None:
        place = tuple(map(int, found[2].split(", "))) if found[2] else ()
        flat = int(np.ravel_multi_index(place, node.inputs[1].shape)) if place else 0
        words[2], words[3] = int(found[1]) & 0xFFFFFFFF, 0xFFFFFFFF - flat


class FakeCompiler:
    def version(self) -> str:
        return "13.0"

    def compile(self, sources: Sequence[str]) -> list[bytes]:
        return [source.encode() for source in sources]


def stored(address: int, matrix: Matrix, batch: int, dtype: np.dtype[Any]) -> Array:
    """A column-major operand, as cuBLASLt reads it: [batch, rows, columns] before it is transposed."""
    shape = (batch, matrix.rows, matrix.columns)
    return view(address, shape, (matrix.batch_stride, 1, matrix.leading), dtype)


def multiply(gemm: Gemm, a: int, b: int, c: int) -> None:
    """C = op(A)·op(B) at addresses, checked as the library checks it."""
    dtype, out_dtype = NUMPY_DTYPES[gemm.dtype], NUMPY_DTYPES[gemm.out_dtype]
    operands = []
    for address, matrix in ((a, gemm.a), (b, gemm.b)):
        assert matrix.leading >= matrix.rows, matrix
        x = stored(address, matrix, gemm.batch, dtype).astype(np.float32)
        operands.append(x.swapaxes(1, 2) if matrix.transposed else x)
    assert not gemm.c.transposed and gemm.c.leading >= gemm.c.rows
    assert (gemm.c.rows, gemm.c.columns) == (gemm.m, gemm.n)
    assert operands[0].shape[1:] == (gemm.m, gemm.k) and operands[1].shape[1:] == (gemm.k, gemm.n)
    with np.errstate(all="ignore"):
        stored(c, gemm.c, gemm.batch, out_dtype)[...] = (operands[0] @ operands[1]).astype(out_dtype)


class FakeBlas:
    """refuses: products that the library has no algorithm for."""

    def __init__(self, driver: FakeDriver, refuses: bool = False) -> None:
        self.driver = driver
        self.refuses = refuses
        self.products: list[tuple[Gemm, tuple[int, int, int]]] = []

    def version(self) -> str:
        return "13.1.0"

    def prepare(self, gemm: Gemm, alignment_bytes: tuple[int, int, int]) -> Any:
        self.products.append((gemm, alignment_bytes))
        return None if self.refuses else (gemm, alignment_bytes)

    def enqueue(self, product: Any, a: int, b: int, c: int, workspace: int, stream: int) -> None:
        gemm, alignment_bytes = product
        assert all(x % n == 0 for x, n in zip((a, b, c), alignment_bytes, strict=True))
        assert workspace % 256 == 0 or workspace % 64 == 0
        self.driver._do("product", lambda: multiply(gemm, a, b, c))


class FakeCudnn:
    """Attention by the composites' own meaning. refuses_windows: takes only operands that were packed."""

    def __init__(self, driver: FakeDriver, refuses_windows: bool = False) -> None:
        self.driver = driver
        self.refuses_windows = refuses_windows
        self.built: list[Attention] = []
        self.stream = 0
        self.used: list[int] = []

    def version(self) -> int:
        return 91900

    def use(self, stream: int) -> None:
        self.stream = stream

    def build(self, attention: Attention) -> Built | str:
        dense = all(t.shape[-1] * t.shape[-2] >= max(t.strides) // max(t.shape[:-2]) for t in attention.tensors[:3])
        if self.refuses_windows and not dense:
            return "not dense"
        self.built.append(attention)
        return Built(attention, (), 128)

    def enqueue(self, built: Built, addresses: Sequence[int], workspace: int) -> None:
        assert self.stream in self.driver.streams, "a stream that was given back"
        self.used.append(self.stream)
        self.driver._do("attention", lambda: _attend(built.graph, addresses))


def _attend(attention: Attention, addresses: Sequence[int]) -> None:
    from sexpgpu.ir.builder import Builder
    from sexpgpu.ir.composites import make
    from sexpgpu.ir.evaluate import evaluate

    arrays = [
        view(address, t.shape, t.strides, NUMPY_DTYPES[t.dtype])
        for address, t in zip(addresses, attention.tensors, strict=True)
    ]
    num_inputs = 6 if attention.backward else 3
    b = Builder()
    inputs = []
    for i, t in enumerate(attention.tensors[:num_inputs]):
        # cuDNN reads bf16 where the composite has f32.
        inputs.append(b.input(f"x{i}", TensorType("f32" if i > 2 else "bf16", t.shape)))
    name = "attention-gradient" if attention.backward else "attention"
    node = make(b, name, inputs, causal=attention.causal, scale=attention.scale)
    graph = b.graph("g", [(f"y{i}", v) for i, v in enumerate(node.outputs)], inputs)
    feeds = {f"x{i}": a.astype(NUMPY_DTYPES[v.dtype]) for i, (a, v) in enumerate(zip(arrays, inputs, strict=False))}
    found = evaluate(graph, feeds)
    for i, out in enumerate(arrays[num_inputs:]):
        out[...] = found[f"y{i}"]


def toolbox(driver: FakeDriver, **options: Any) -> Toolbox:
    """A session's tools, all fakes."""
    blas = FakeBlas(driver, options.pop("refuses", False))
    cudnn = FakeCudnn(driver, options.pop("refuses_windows", False)) if options.pop("cudnn", True) else None
    assert not options, options
    printers = FakePrinters(driver)
    return Toolbox(driver, FakeCompiler(), printers, blas, cudnn)  # type: ignore[arg-type]


PRINTED = {"printers": PRINTER}
"""What prints kernels for a real card, to put into a toolbox whose driver is not one."""
