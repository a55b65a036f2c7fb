"""The operations of the language, a file per family; importing this package fills the table."""

from sexpgpu.lang.builtins import (
    contraction,
    draws,
    elementwise,
    indexing,
    movement,
    pooling,
    queries,
    reductions,
    sources,
)
from sexpgpu.lang.builtins.registry import BUILTINS

__all__ = [
    "BUILTINS", "contraction", "draws", "elementwise", "indexing", "movement", "pooling", "queries", "reductions",
    "sources",
]  # fmt: skip
