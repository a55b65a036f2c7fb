"""The only home of operations, a file per family of work."""

from sexpgpu.ir.ops import arithmetic as arithmetic
from sexpgpu.ir.ops import composite as composite
from sexpgpu.ir.ops import contract, convolution, fill, functions, index, logic, move, random, reduce, select
from sexpgpu.ir.ops import recompute as recompute
from sexpgpu.ir.ops import region as region
from sexpgpu.ir.ops import scan as scan

__all__ = [
    "arithmetic", "composite", "contract", "convolution", "fill", "functions", "index", "logic", "move", "random",
    "recompute", "reduce", "region", "scan", "select",
]  # fmt: skip
