"""Text rules, the list of words of each dialect, and address spaces in clang."""

from __future__ import annotations

import os
import re
import subprocess

import pytest

from sexpgpu.backend.kernels.cuda import module_source
from tests.lanes import rules, strict
from tests.lanes.signatures import Dialect, Refused, kernels_of
from tests.lanes.test_engine import MSL
from tests.lanes.unit import HERE, STANDARD, compiler

PARAMETERS = "device float* y [[buffer(0)]], uint i [[thread_position_in_grid]]"


def test_texts_that_keep_the_rules() -> None:
    rules.check(module_source([]), "cuda")
    rules.check(MSL, "msl")
    rules.check("constant float table[2] = {1.0f, 2e-3f};\nstruct Pair { float a; int b; };", "msl")


@pytest.mark.parametrize(
    "text, said",
    [
        ("kernel void k(%s) { y[i] = 0.5; }", "the literal 0.5 without f"),
        ("kernel void k(%s) { y[i] = 1e-3 + .5f; }", "the literal 1e-3 without f"),
        ("kernel void k(%s) { y[i] = float(double(1)); }", "the word double"),
        ("kernel void k(%s) { long long a = 1; }", "long"),
        ("float f(float x) { return x > 1.0f ? f(x) : x; } kernel void k(%s) { y[i] = f(y[i]); }", "f calls itself"),
        ("float g(float x); float f(float x) { return g(x); } float g(float x) { return f(x); }", "f calls itself"),
        ("static int g[4]; kernel void k(%s) { y[i] = 1.0f; }", "a global that changes: static int g"),
        ("kernel void k(%s) { static int z; y[i] = 1.0f; }", "a static variable"),
    ],
)
def test_rules_of_texts(text: str, said: str) -> None:
    with pytest.raises(Refused, match=said):
        rules.check(text.replace("%s", PARAMETERS), "msl")


@pytest.mark.parametrize(
    "parameters, said",
    [
        ("device float* y [[buffer(0)]], device float* z [[buffer(0)]]", "buffer number 0 is taken"),
        ("device float* y [[buffer(31)]]", "buffer number 31"),
        ("device float* y [[buffer(0)]], uint n [[buffer(1)]]", "n is passed by value"),
        ("float* y [[buffer(0)]]", "y points into no address space"),
        ("device float* y", "a parameter without an attribute"),
        ("device float* y [[texture(0)]]", "unknown attribute texture"),
        ("uint2 lane [[thread_index_in_simdgroup]]", "thread_index_in_simdgroup as uint2"),
    ],
)
def test_signatures_of_msl(parameters: str, said: str) -> None:
    with pytest.raises(Refused, match=said):
        kernels_of(f"kernel void k({parameters}) {{ }}", "msl")


def declared(dialect: Dialect) -> set[str]:
    """Every name that a prelude gives to a text, from what the preprocessor leaves of it and from its macros."""
    prelude = HERE / f"{dialect}.h"
    command = ["g++", "-E", "-P", "-x", "c++", f"-std={STANDARD[dialect]}"]
    text = subprocess.run([*command, str(prelude)], capture_output=True, text=True, check=True).stdout
    engine = subprocess.run([*command, str(HERE / "engine.h")], capture_output=True, text=True, check=True).stdout
    text = text.replace(engine.strip(), "")
    names = set(re.findall(r"\b(?:struct|enum|enum class|namespace)\s+(?:alignas\s*\([^)]*\)\s*)?(\w+)\s*\{", text))
    names |= set(re.findall(r"typedef\s[^;{}]*?\b(\w+);", text))
    names |= set(re.findall(r"template <class T, int N> struct (\w+);", text))
    names |= set(re.findall(r"\btemplate <class T, int ROWS, int COLUMNS> struct (\w+) \{", text))
    functions = r"(?:inline|noinline\)\)|noinline,? ?\)\))\s+(?:static\s+)?[\w:<>,\s]+?[\s&*]\(?\*?(\w+)\s*\("
    names |= set(re.findall(functions, text))
    macros = re.findall(r"^#define (\w+)", prelude.read_text(encoding="utf-8"), re.M)
    names |= {name for name in macros if not name.startswith("LANES_")}
    return {name for name in names if not name.startswith(("lanes", "Exchanged", "operator", "Both", "vote_t"))}


@pytest.mark.skipif(compiler() is None, reason="needs g++")
@pytest.mark.parametrize("dialect", rules.WORDS)
def test_words_are_those_of_the_prelude(dialect: Dialect) -> None:
    found = declared(dialect)
    assert found - rules.WORDS[dialect] == set()
    assert rules.WORDS[dialect] - found == set()


SPACES = [
    ("float* p = y; p[0] = 1.0f;", "cannot initialize"),
    ("threadgroup float a[4]; device float* p = a; p[0] = 1.0f;", "cannot initialize"),
    ("int j = ulong(i) * 3ul; y[j] = 1.0f;", "loses integer precision"),
    ("float t[i]; t[0] = 1.0f; y[i] = t[0];", "variable length"),
    ("y[i] = erf(y[i]);", "undeclared identifier 'erf'"),
    ("y[i] = simd_shuffle_xor(ulong(i), 1);", "64 bits are two exchanges"),
]


@pytest.mark.skipif(os.environ.get("CI") != "true", reason="only continuous integration must have every compiler")
def test_no_check_is_left_out() -> None:
    assert compiler() is not None
    assert strict.clang() is not None


@pytest.mark.skipif(strict.clang() is None, reason="needs clang")
def test_address_spaces() -> None:
    strict.check(MSL)
    for body, said in SPACES:
        with pytest.raises(Refused, match=said):
            strict.check(f"using namespace metal;\nkernel void k({PARAMETERS}) {{ {body} }}")
