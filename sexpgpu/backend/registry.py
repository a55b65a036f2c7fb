"""Devices by name, imported only when asked for.

Flow: `cli` opens the device that flag, environment or default names, and passes it down.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sexpgpu.backend.protocol import Device
from sexpgpu.diagnostics import Diagnostic, DiagnosticError, nearest


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of device: how to open it, or why this version cannot."""

    open: Callable[[bool, int | None], Device] | None
    missing: str = ""


def _open_cpu(double: bool, threads: int | None) -> Device:
    from sexpgpu.backend.cpu.device import CpuDevice

    return CpuDevice(double, threads)


_KINDS = {
    "cpu": _Kind(_open_cpu),
    "metal": _Kind(None, "this version has no Metal device"),
    "cuda": _Kind(None, "this version has no CUDA device"),
}


def open_device(name: str, *, double: bool = False, threads: int | None = None) -> Device:
    """The device called `name`.

    double: the f64 mode, for tests of gradients. threads: for elementwise work on the cpu; None: one a core.
    Raises: E-DEV-001 for an unknown name, E-DEV-002 for a device that cannot be opened here.
    """
    kind = _KINDS.get(name)
    if kind is None:
        near = nearest(name, _KINDS)
        hint = (f"there is `{near}`",) if near is not None else ()
        raise DiagnosticError(
            Diagnostic("E-DEV-001", f"there is no device `{name}`; {_available()}", help=hint)
        )
    if kind.open is None:
        message = f"`{name}` cannot be opened: {kind.missing}; {_available()}"
        raise DiagnosticError(Diagnostic("E-DEV-002", message, help=("use `--device cpu`",)))
    return kind.open(double, threads)


def device_kinds() -> tuple[str, ...]:
    """Every kind of device that there is, here or elsewhere."""
    return tuple(_KINDS)


def _available() -> str:
    """What can be opened here, and why the others cannot."""
    open_here = ", ".join(f"`{name}`" for name, kind in _KINDS.items() if kind.open is not None)
    others = "; ".join(
        f"`{name}` cannot: {kind.missing}" for name, kind in _KINDS.items() if kind.open is None
    )
    return f"{open_here} can be opened here; {others}"
