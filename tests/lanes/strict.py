"""Texts of MSL before a compiler that knows address spaces as part of types, as Metal's does.

clang reads the text with the prelude's macros as attributes: a pointer into one space is none into another, and none
into no space. Conversions that lose bits, arithmetic in double, and arrays of a length known at run time are errors
too. It is stricter than Metal in one point: a struct is copied between spaces member by member.

Flow: tests give each unit of printed kernels to `check`.
"""

from __future__ import annotations

import shutil

from tests.lanes.signatures import Dialect, kernels_of
from tests.lanes.unit import HEADERS, STANDARD, kernels_text, run_compiler

DIALECT: Dialect = "msl"
WARNINGS = (
    "-Wall", "-Wextra", "-Werror", "-Wconversion", "-Wdouble-promotion", "-Wvla",
    # Metal knows these attributes, and takes a whole number for a float.
    "-Wno-unknown-attributes", "-Wno-ignored-attributes", "-Wno-implicit-int-float-conversion", "-Wno-sign-conversion",
    "-Wno-sign-compare", "-Wno-unused-parameter", "-Wno-unused-function", "-Wno-unused-variable",
    "-Wno-unused-const-variable", "-Wno-unused-but-set-variable", "-Wno-missing-braces", "-Wno-parentheses",
    "-Wno-tautological-overlap-compare",
)  # fmt: skip


def clang() -> str | None:
    """The compiler, under the name that it has here."""
    return next((path for name in ("clang++-19", "clang++") if (path := shutil.which(name))), None)


def check(text: str) -> None:
    """Raises Refused with the compiler's errors."""
    compiler = clang()
    assert compiler is not None, "needs clang"
    text = HEADERS.sub("", text)
    source = kernels_text(text, DIALECT, kernels_of(text, DIALECT))
    options = (f"-std={STANDARD[DIALECT]}", "-DLANES_STRICT", "-fno-exceptions", "-fsyntax-only", *WARNINGS)
    run_compiler([compiler, "-x", "c++", *options, "-"], source)
