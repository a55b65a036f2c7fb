"""Diagnostics: what every stage of the flow answers with when the user's file, data or machine is at fault.

A stage builds `Diagnostic` values (data only) and either returns them or raises `DiagnosticError`; the
command line renders them. Every code stands in `CODES`. Only `sexpgpu.source` lies below this package.
"""

from sexpgpu.diagnostics.codes import CODES
from sexpgpu.diagnostics.diagnostic import Diagnostic, DiagnosticError, Label
from sexpgpu.diagnostics.nearest import nearest
from sexpgpu.diagnostics.render import hint, render, visible

__all__ = ["CODES", "Diagnostic", "DiagnosticError", "Label", "hint", "nearest", "render", "visible"]
