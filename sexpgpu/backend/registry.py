"""Devices by name, imported only when asked for.

Flow: `cli` opens the device that flag, environment or default names, and passes it down.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sexpgpu.backend.protocol import Device
from sexpgpu.diagnostics import Diagnostic, DiagnosticError, nearest


@dataclass(frozen=True, slots=True)
class Compiling:
    """How the cpu device compiles. interpret: not at all. compiler: the C compiler's name; None: the system's."""

    interpret: bool = False
    compiler: str | None = None


SYSTEM = Compiling()


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked of a device when it is opened.

    double: the f64 mode of the cpu, for tests of gradients. threads: of the cpu; None: one a core. devices: which of
    the kind, as `SEXPGPU_DEVICES` has it; empty: not said.
    """

    double: bool = False
    threads: int | None = None
    compiling: Compiling = SYSTEM
    devices: str = ""


def _nothing() -> str:
    return ""


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of device: how to open it. why_not: why that cannot be done here; empty where a look finds no reason."""

    open: Callable[[Wanted], Device]
    why_not: Callable[[], str] = _nothing


def _open_cpu(wanted: Wanted) -> Device:
    from sexpgpu.backend.cpu.device import CpuDevice
    from sexpgpu.backend.cpu.native.compiler import default_cache, find_compiler

    interprets = wanted.compiling.interpret or wanted.double
    compiler = None if interprets else find_compiler(default_cache(), wanted.compiling.compiler)
    return CpuDevice(wanted.double, wanted.threads, compiler=compiler)


def _open_cuda(wanted: Wanted) -> Device:
    from sexpgpu.backend.cuda.device import open_cuda

    return open_cuda(_others("cuda"))


def _missing_for_cuda() -> str:
    from sexpgpu.backend.cuda.device import Missing, check_driver

    try:
        check_driver()
    except Missing as missing:
        return missing.what
    return ""


def _open_metal(wanted: Wanted) -> Device:
    from sexpgpu.backend.metal.device import open_metal

    return open_metal(_others("metal"), wanted.devices)


def _missing_for_metal() -> str:
    from sexpgpu.backend.metal.device import Missing, check_machine

    try:
        check_machine()
    except Missing as missing:
        return missing.what
    return ""


_KINDS = {
    "cpu": _Kind(_open_cpu),
    "metal": _Kind(_open_metal, _missing_for_metal),
    "cuda": _Kind(_open_cuda, _missing_for_cuda),
}


def open_device(
    name: str, *, double: bool = False, threads: int | None = None, compiling: Compiling = SYSTEM, devices: str = ""
) -> Device:
    """The device called `name`; the rest as in `Wanted`.

    Raises: E-DEV-001 for an unknown name, E-DEV-002 for a device that cannot be opened here, E-DP-001 for `devices`
    that it does not have.
    """
    kind = _KINDS.get(name)
    if kind is None:
        near = nearest(name, _KINDS)
        near = f"; `{near}` is a near name" if near is not None else ""
        message = f"there is no device `{name}`{near}"
        raise DiagnosticError(Diagnostic("E-DEV-001", message, notes=(_available(),)))
    return kind.open(Wanted(double, threads, compiling, devices))


def device_kinds() -> tuple[str, ...]:
    """Every kind of device that there is, here or elsewhere."""
    return tuple(_KINDS)


def missing(name: str) -> str:
    """Why the device called `name` cannot be opened here; empty where a look finds no reason."""
    return _KINDS[name].why_not()


def _available() -> str:
    """What can be opened here, and why the others cannot."""
    return _described(_KINDS)


def _others(name: str) -> str:
    """The same for all kinds but one."""
    return _described({other: kind for other, kind in _KINDS.items() if other != name})


def _described(kinds: Mapping[str, _Kind]) -> str:
    reasons = {name: kind.why_not() for name, kind in kinds.items()}
    open_here = ", ".join(f"`{name}`" for name, why in reasons.items() if not why)
    others = "; ".join(f"`{name}` cannot: {why}" for name, why in reasons.items() if why)
    return f"{open_here} can be opened here; {others}" if others else f"{open_here} can be opened here"
