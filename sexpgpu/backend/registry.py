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


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of device: how to open it, or why this version cannot."""

    open: Callable[[bool, int | None, Compiling], Device] | None
    missing: str = ""
    probe: Callable[[], str] | None = None

    def why_not(self) -> str:
        """Why it cannot be opened here; empty where it can, as far as a look can tell."""
        return self.missing if self.probe is None else self.probe()


def _open_cpu(double: bool, threads: int | None, compiling: Compiling) -> Device:
    from sexpgpu.backend.cpu.device import CpuDevice
    from sexpgpu.backend.cpu.native.compiler import default_cache, find_compiler

    compiler = None if compiling.interpret or double else find_compiler(default_cache(), compiling.compiler)
    return CpuDevice(double, threads, compiler=compiler)


def _open_cuda(double: bool, threads: int | None, compiling: Compiling) -> Device:
    from sexpgpu.backend.cuda.device import open_cuda

    return open_cuda(_others("cuda"))


def _missing_for_cuda() -> str:
    from sexpgpu.backend.cuda.device import Missing, check_driver

    try:
        check_driver()
    except Missing as missing:
        return missing.what
    return ""


SYSTEM = Compiling()
_KINDS = {
    "cpu": _Kind(_open_cpu),
    "metal": _Kind(None, "this version has no Metal device"),
    "cuda": _Kind(_open_cuda, probe=_missing_for_cuda),
}


def open_device(
    name: str, *, double: bool = False, threads: int | None = None, compiling: Compiling = SYSTEM
) -> Device:
    """The device called `name`.

    double: the f64 mode, for tests of gradients. threads: of the cpu; None: one a core.
    Raises: E-DEV-001 for an unknown name, E-DEV-002 for a device that cannot be opened here.
    """
    kind = _KINDS.get(name)
    if kind is None:
        near = nearest(name, _KINDS)
        near = f"; `{near}` is a near name" if near is not None else ""
        message = f"there is no device `{name}`{near}"
        raise DiagnosticError(Diagnostic("E-DEV-001", message, notes=(_available(),)))
    if kind.open is None:
        message = f"`{name}` cannot be opened: {kind.missing}"
        raise DiagnosticError(Diagnostic("E-DEV-002", message, help=("use `--device cpu`",), notes=(_others(name),)))
    return kind.open(double, threads, compiling)


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
