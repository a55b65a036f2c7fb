"""Kernels run on this processor, from the very text that a GPU gets: one unit of text, compiled once, run often.

    unit = Unit(text, "msl")                     # or "cuda"; any number of kernels and helpers, with their prelude
    unit.run("add", [Buffer.of(x), Buffer.of(y, writable=True)], grid=(4, 1, 1), group=(256, 1, 1))

`buffers` is a sequence, or a mapping from buffer numbers of MSL (`[[buffer(n)]]`); in CUDA the place among the
parameters counts. Scalars of MSL are references into buffers as well. Numbers from 128 on are of memory that a kernel
reaches through a table of pointers. `grid` counts groups (blocks, threadgroups), `group` counts lanes (threads).
`order` is one of `ORDERS`: how lanes of a group and groups follow each other. With `checked` every access is watched:
races, accesses outside the extents of `Buffer`, reads of what nothing wrote, writes to what is only read; it is some
five times slower, and its library is compiled at the first such run.

Raises `Refused` for texts that do not compile, and `Fault` for what a run meets, with the kernel, the line of the text,
the lanes and the argument. Runs are one at a time. Needs g++ (`compiler()` is None without, and off Linux); lines of
accesses need addr2line, which comes with it.

Flow: tests make units of printed kernels; a stand-in for a device's library makes one of each source that it gets.
"""

from __future__ import annotations

import atexit
import ctypes
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from tests.lanes.signatures import NUMBERS, POSITIONS, Dialect, Kernel, Refused, kernels_of

__all__ = ["ORDERS", "Buffer", "Dialect", "Fault", "Refused", "Unit", "compiler"]

HERE = Path(__file__).parent
ORDERS = ("forward", "reverse", "shuffled")
SHARED_BYTES = {"cuda": 48 * 1024, "msl": 32 * 1024}
"""Most shared memory of a kernel: static, of a card; of a threadgroup, of every Mac."""
STANDARD = {"cuda": "c++17", "msl": "c++14"}
GAP = 64
"""Bytes between two shared arrays that belong to neither."""
COMMON = ("-O1", "-fPIC", "-fno-exceptions", "-fno-rtti", "-ffp-contract=off", "-fwrapv", "-fno-strict-aliasing",
          "-fno-math-errno", "-w")  # fmt: skip
CHECKED = ("-fsanitize=thread", "--param=tsan-instrument-func-entry-exit=0", "-g1")
HEADERS = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<metal_\w+>", re.M)
"""What a text of MSL begins with, and our prelude stands for."""
_lock = threading.Lock()


def compiler() -> str | None:
    """g++ on Linux, whose libraries the engine is written for."""
    return shutil.which("g++") if sys.platform == "linux" else None


class Fault(Exception):
    """What a run met. faults: one line each."""

    def __init__(self, kernel: str, faults: Sequence[str]) -> None:
        super().__init__(f"{kernel}: " + "; ".join(faults))
        self.kernel = kernel
        self.faults = tuple(faults)


@dataclass(frozen=True, slots=True)
class Buffer:
    """What a kernel gets as one argument: a pointer, and the bytes [begin, begin + num_bytes) that it may touch.

    item_bytes: of an element. initialised: whether it holds values before. writable: whether it may be written to.
    """

    pointer: int
    begin: int
    num_bytes: int
    item_bytes: int = 4
    initialised: bool = True
    writable: bool = False

    @classmethod
    def of(cls, array: np.ndarray, writable: bool = False, initialised: bool = True) -> Buffer:
        """A contiguous array, from its first element."""
        assert array.flags.c_contiguous
        return cls(array.ctypes.data, array.ctypes.data, array.nbytes, array.itemsize, initialised, writable)


class _Three(ctypes.Structure):
    _fields_ = [(c, ctypes.c_uint32) for c in "xyz"]


class _Argument(ctypes.Structure):
    _fields_ = [("address", ctypes.c_void_p), ("begin", ctypes.c_void_p), ("bytes", ctypes.c_size_t),
                ("item_bytes", ctypes.c_uint32), ("initialised", ctypes.c_uint32),
                ("writable", ctypes.c_uint32)]  # fmt: skip


class _Request(ctypes.Structure):
    _fields_ = [("body", ctypes.c_void_p), ("num_groups", _Three), ("group_size", _Three), ("order", ctypes.c_uint32),
                ("seed", ctypes.c_uint32), ("checked", ctypes.c_uint32), ("shared_bytes", ctypes.c_uint32),
                ("num_arguments", ctypes.c_uint32), ("arguments", ctypes.c_void_p), ("arrays", ctypes.c_void_p),
                ("module_begin", ctypes.c_void_p), ("module_end", ctypes.c_void_p)]  # fmt: skip


class _Found(ctypes.Structure):
    _fields_ = [("what", ctypes.c_char_p), ("file", ctypes.c_char_p), ("line", ctypes.c_int), ("pc", ctypes.c_void_p),
                ("argument", ctypes.c_int), ("element", ctypes.c_long), ("lane", ctypes.c_uint32),
                ("other", ctypes.c_uint32), ("other_line", ctypes.c_int)]  # fmt: skip


@cache
def _engine() -> Any:
    """The engine, compiled once for this process."""
    folder = Path(tempfile.mkdtemp(prefix="lanes-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    library = folder / "liblanes.so"
    sources = [str(HERE / name) for name in ("engine.cpp", "checker.cpp")]
    run_compiler(["g++", "-O2", "-std=c++17", "-shared", "-fPIC", "-o", str(library), *sources])
    engine = ctypes.CDLL(str(library))
    engine.lanes_run.argtypes = [ctypes.POINTER(_Request), ctypes.POINTER(ctypes.POINTER(_Found))]
    engine.folder = folder
    return engine


def run_compiler(command: Sequence[str], text: str | None = None) -> None:
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
        raise Refused("\n".join(errors[:20]))


def kernels_text(text: str, dialect: Dialect, kernels: Sequence[Kernel]) -> str:
    """The text with the prelude before it and its shared arrays in the arena; lines stay where they are."""
    edits: dict[int, tuple[int, str]] = {}
    for kernel in kernels:
        if not kernel.arrays:
            continue
        members = " ".join(
            f"{a.type} {a.name}{a.sizes}; char lanes_gap{i}[{GAP}];" for i, a in enumerate(kernel.arrays)
        )
        total = " + ".join(f"sizeof(lanes_{kernel.name}::{a.name})" for a in kernel.arrays)
        limit = SHARED_BYTES[dialect]
        before = f'struct lanes_{kernel.name} {{ {members} }}; static_assert({total} <= {limit}, "shared memory"); '
        edits[kernel.start] = (kernel.start, before)
        for start in {a.start for a in kernel.arrays}:
            same = [a for a in kernel.arrays if a.start == start]
            placed = " ".join(_placed(kernel.name, a.name) for a in same)
            lines = "\n" * text.count("\n", start, same[0].stop)
            edits[start] = (same[0].stop, placed + lines)
    parts, place = [], 0
    for start in sorted(edits):
        stop, new = edits[start]
        parts += [text[place:start], new]
        place = stop
    parts.append(text[place:])
    header = f'#include "{HERE / dialect}.h"\n#line 1 "kernels"\n'
    return f"{header}{''.join(parts)}\n"


CALLS = """#line 1 "calls"
inline lanes::Three lanes_position_in_grid() {
  const lanes::Three &group = lanes_state.group, &size = lanes_state.group_size, &own = lanes_state.current->in_group;
  return {group.x * size.x + own.x, group.y * size.y + own.y, group.z * size.z + own.z};
}
extern "C" char __ehdr_start __attribute__((visibility("hidden"))), _end __attribute__((visibility("hidden")));
extern "C" void lanes_module(char** begin, char** end) { *begin = &__ehdr_start, *end = &_end; }
"""


def _placed(kernel: str, name: str) -> str:
    type = f"lanes_{kernel}_{name}"
    return (
        f"typedef decltype(lanes_{kernel}::{name}) {type}; LANES_SHARED_SPACE {type}& {name} = "
        f"*(LANES_SHARED_SPACE {type}*)(lanes_state.arena + __builtin_offsetof(lanes_{kernel}, {name}));"
    )


def _call(kernel: Kernel) -> str:
    given = []
    for p in kernel.parameters:
        address = f"lanes_state.arguments[{p.number}]"
        if p.is_buffer:
            kind = re.sub(r"\b__restrict__\b", "", p.type).strip()
            pointer = f"{kind[:-1]}*" if kind.endswith("&") else kind if kind.endswith("*") else f"{kind}*"
            given.append(f"({pointer}){address}" if kind.endswith("*") else f"*({pointer}){address}")
        elif p.attribute in NUMBERS:
            given.append(f"({p.type})({NUMBERS[p.attribute]})")
        elif p.type[-1].isdigit():
            base = p.type[:-1]
            axes = ", ".join(f"({base})({POSITIONS[p.attribute]}).{c}" for c in "xyz"[: int(p.type[-1])])
            given.append(f"{p.type}({axes})")
        else:
            given.append(f"({p.type})({POSITIONS[p.attribute]}).x")
    shared = f"lanes_{kernel.name}"
    arrays = "".join(
        f"{{__builtin_offsetof({shared}, {a.name}), sizeof({shared}::{a.name}), "
        f"sizeof(lanes::Element<decltype({shared}::{a.name})>::type)}}, "
        for a in kernel.arrays
    )
    size = f"sizeof({shared})" if kernel.arrays else "0"
    return (
        f'extern "C" void lanes_run_{kernel.name}() {{ {kernel.name}({", ".join(given)}); }}\n'
        f'extern "C" const lanes::SharedArray lanes_arrays_{kernel.name}[] = {{{arrays}{{0, 0, 0}}}};\n'
        f'extern "C" const unsigned lanes_shared_{kernel.name} = {size};'
    )


class Unit:
    """One text of kernels and helpers. kernels: by name, as read from the text."""

    def __init__(self, text: str, dialect: Dialect) -> None:
        self.text = text
        self.dialect: Dialect = dialect
        text = HEADERS.sub("", text)
        found = kernels_of(text, dialect)
        self.kernels = {kernel.name: kernel for kernel in found}
        if len(self.kernels) < len(found):
            raise Refused("two kernels have one name")
        calls = "\n".join(_call(kernel) for kernel in found)
        self._source = f"{kernels_text(text, dialect, found)}{CALLS}{calls}\n"

    @cached_property
    def plain(self) -> _Library:
        """The library for runs without the checker, compiled at its first use."""
        return _library(self._source, self.dialect, ())

    @cached_property
    def checked(self) -> _Library:
        """The library for runs with the checker, compiled at its first use."""
        return _library(self._source, self.dialect, CHECKED)

    def run(
        self,
        name: str,
        buffers: Sequence[Buffer] | Mapping[int, Buffer],
        grid: tuple[int, int, int],
        group: tuple[int, int, int],
        order: str = "forward",
        checked: bool = False,
        seed: int = 1,
    ) -> None:
        """Run one kernel. seed: of the order "shuffled"."""
        kernel = self.kernels[name]
        given = dict(buffers) if isinstance(buffers, Mapping) else dict(enumerate(buffers))
        wanted = {p.number for p in kernel.parameters if p.is_buffer}
        assert wanted <= given.keys(), f"{name} takes buffers {sorted(wanted)}, got {sorted(given)}"
        if not all(grid):
            return
        library = self.checked if checked else self.plain
        arguments = (_Argument * (max(given, default=-1) + 1))()
        for number, b in given.items():
            arguments[number] = _Argument(b.pointer, b.begin, b.num_bytes, b.item_bytes, b.initialised, b.writable)
        symbols, begin, end = library.symbols, library.begin, library.end
        body = ctypes.cast(symbols[f"lanes_run_{name}"], ctypes.c_void_p)
        shared = ctypes.c_uint32.in_dll(symbols, f"lanes_shared_{name}").value
        arrays = ctypes.addressof(ctypes.c_uint32.in_dll(symbols, f"lanes_arrays_{name}"))
        request = _Request(
            body, _Three(*grid), _Three(*group), ORDERS.index(order), seed, checked, shared, len(arguments),
            ctypes.addressof(arguments), arrays, begin, end,
        )  # fmt: skip
        found = ctypes.POINTER(_Found)()
        with _lock:
            count = _engine().lanes_run(ctypes.byref(request), ctypes.byref(found))
            faults = [self._describe(kernel, library, found[i]) for i in range(count)]
        if faults:
            raise Fault(name, faults)

    def _describe(self, kernel: Kernel, library: _Library, fault: _Found) -> str:
        line = fault.line if fault.pc is None else library.line(fault.pc)
        texts = self.text.splitlines()
        said = fault.what.decode()
        if fault.file and fault.file != b"kernels":
            line = 0
        if 0 < line <= len(texts):
            said += f" at line {line}, `{texts[line - 1].strip()}`"
        if fault.other_line and fault.other_line != fault.line:
            said += f" and line {fault.other_line}"
        said += f", lane {fault.lane}" + (f" and lane {fault.other}" if fault.other < 1024 else "")
        if fault.argument <= -2:
            said += f", {kernel.arrays[-2 - fault.argument].name} cell {fault.element}"
        elif fault.argument >= 0:
            names = {p.number: p.name for p in kernel.parameters if p.is_buffer}
            said += f", {names.get(fault.argument, fault.argument)} cell {fault.element}"
        return said


class _Library:
    """A compiled unit."""

    def __init__(self, source: str, dialect: Dialect, flags: Sequence[str]) -> None:
        folder = Path(tempfile.mkdtemp(dir=_engine().folder))
        self.path = folder / "unit.so"
        standard = f"-std={STANDARD[dialect]}"
        run_compiler(["g++", "-x", "c++", *COMMON, standard, *flags, "-c", "-o", str(folder / "unit.o"), "-"], source)
        # Without the flags, so that no runtime of a sanitizer comes along.
        link = ["-L", str(folder.parent), "-llanes", f"-Wl,-rpath,{folder.parent}", "-lm"]
        run_compiler(["g++", "-shared", "-Wl,-z,defs", "-o", str(self.path), str(folder / "unit.o"), *link])
        self.symbols = ctypes.CDLL(str(self.path))
        begin, end = ctypes.c_void_p(), ctypes.c_void_p()
        self.symbols.lanes_module(ctypes.byref(begin), ctypes.byref(end))
        self.begin, self.end = begin.value or 0, end.value or 0

    def line(self, pc: int) -> int:
        """The line of the kernels' text where an access is, whatever it was inlined into; 0 if there is none."""
        place = hex(pc - 1 - self.begin)
        done = subprocess.run(
            ["addr2line", "-i", "-e", str(self.path), place], capture_output=True, text=True, check=True
        )
        found = re.findall(r"kernels:(\d+)", done.stdout)
        return int(found[0]) if found else 0


@lru_cache(maxsize=64)
def _library(source: str, dialect: Dialect, flags: tuple[str, ...]) -> _Library:
    """Equal texts are compiled once."""
    return _Library(source, dialect, flags)
