"""Rules of printed texts that no compiler on this machine enforces: what a GPU lacks, and what we do not write.

Flow: tests give each unit of printed kernels to `check`. What signatures must be is with `signatures`; that a text has
no word beside its own and `WORDS` is what compiling it over a prelude shows, since the prelude has just these.
"""

from __future__ import annotations

import re
from itertools import accumulate

from tests.lanes.signatures import Dialect, Refused, closing, without_comments

VECTORS = frozenset(
    f"{base}{size}"
    for base in ("float", "int", "uint", "long", "ulong", "short", "ushort", "char", "uchar")
    for size in (2, 3, 4)
)
WORDS = {
    "cuda": frozenset((
        "float4", "uint4", "size_t", "threadIdx", "blockIdx", "blockDim", "gridDim", "__global__", "__device__",
        "__host__", "__forceinline__", "__launch_bounds__", "__restrict__", "__syncthreads", "__syncthreads_or",
        "__syncwarp", "__shfl_sync", "__shfl_xor_sync", "__shfl_up_sync", "__shfl_down_sync", "__ballot_sync",
        "__match_any_sync", "atomicAdd", "atomicMax", "__popc", "__float_as_uint", "__uint_as_float",
        "__longlong_as_double", "expf", "exp", "expm1f", "expm1", "logf", "log", "log1pf", "log1p", "sqrtf",
        "sqrt", "tanhf", "tanh", "erff", "erf", "sinf", "sin", "cosf", "cos", "atanf", "atan", "floorf",
        "floor", "ceilf", "ceil", "rintf", "rint", "fabsf", "fabs", "powf", "pow", "cospif", "sinpif",
    )),
    "msl": VECTORS | frozenset((
        "uint", "ulong", "ushort", "uchar", "size_t", "exp", "log", "sqrt", "tanh", "sin", "cos", "atan",
        "floor", "ceil", "rint", "fabs", "pow", "ptrdiff_t", "int8_t", "int16_t", "int32_t", "int64_t",
        "uint8_t", "uint16_t", "uint32_t", "uint64_t", "half", "vec", "as_type", "kernel", "device", "constant",
        "threadgroup", "thread", "metal", "precise", "mem_flags", "threadgroup_barrier", "simdgroup_barrier",
        "simd_shuffle", "simd_shuffle_xor", "simd_shuffle_up", "simd_shuffle_down", "simd_broadcast",
        "simd_broadcast_first", "simd_sum", "simd_product", "simd_max", "simd_min", "simd_and", "simd_or",
        "simd_xor", "simd_prefix_inclusive_sum", "simd_prefix_exclusive_sum", "simd_vote", "simd_ballot",
        "simd_any", "simd_all", "simdgroup_matrix", "simdgroup_float8x8", "make_filled_simdgroup_matrix",
        "simdgroup_load", "simdgroup_store", "simdgroup_multiply_accumulate", "simdgroup_multiply",
        "memory_order", "atomic_int", "atomic_uint", "atomic_load_explicit", "atomic_store_explicit",
        "atomic_compare_exchange_weak_explicit", "atomic_exchange_explicit", "atomic_fetch_add_explicit",
        "atomic_fetch_sub_explicit", "atomic_fetch_max_explicit", "atomic_fetch_min_explicit",
        "atomic_fetch_and_explicit", "atomic_fetch_or_explicit", "atomic_fetch_xor_explicit", "exp2", "log2",
        "log10", "tan", "asin", "acos", "sinh", "cosh", "sinpi", "cospi", "trunc", "round", "rsqrt", "atan2",
        "fmod", "fmin", "fmax", "divide", "fma", "copysign", "abs", "sign", "min", "max", "clamp", "select",
        "isnan", "isinf", "isfinite", "signbit", "popcount", "clz", "ctz", "mulhi",
    )),
}  # fmt: skip
"""What a text may use beside its own names and the keywords of C++; the names that our prelude of the dialect has."""

_NEVER = ("new", "delete", "throw", "try", "catch", "virtual", "dynamic_cast", "typeid", "goto", "thread_local", "asm")
FORBIDDEN = {"cuda": _NEVER, "msl": (*_NEVER, "double", r"long\s+long")}
"""Words of C++ that a dialect lacks, or that we do not write; other words fail over the prelude."""
_LITERAL = re.compile(r"(?<![\w.])(?:\d+\.\d*|\.\d+|\d+(?=[eE][-+]?\d))(?:[eE][-+]?\d+)?(?![\w.])")
_FUNCTION = re.compile(r"\b(\w+)\s*\([^(){};]*(?:\([^()]*\)[^(){};]*)*\)\s*(?:const\s*)?\{")
_NO_FUNCTION = frozenset(("if", "for", "while", "switch", "catch", "sizeof", "alignas", "return"))
_GLOBAL = re.compile(
    r"^(?!\s*(?:\[\[[^\]]*\]\]\s*)?(?:static\s+|inline\s+|device\s+)*"
    r"(?:const|constexpr|constant|typedef|using|struct|template|enum|union|namespace|static_assert)\b)"
    r"[\w\s:<>,*&]*?\b\w+\s*(?:\[[^\]]*\]\s*)*(?:=.*)?$",
    re.S,
)


def code(text: str) -> str:
    """A text without comments and preprocessor lines, and without what only a real compiler of CUDA reads."""
    text = re.sub(r"#ifdef __CUDA_ARCH__\n.*?\n#else\n", "\n", without_comments(text), flags=re.S)
    return re.sub(r"^[ \t]*#.*?(?<!\\)$", "", text, flags=re.M | re.S)


def check(text: str, dialect: Dialect) -> None:
    """Raises Refused with every rule that a text breaks."""
    plain = code(text)
    found = [f"the word {word}" for word in FORBIDDEN[dialect] if re.search(rf"\b{word}\b", plain)]
    found += [f"the literal {m[0]} without f" for m in _LITERAL.finditer(plain) if _is_double(plain, m, dialect)]
    bodies = functions(plain)
    found += [f"{name} calls itself" for name in bodies if name in _reached(name, bodies)]
    found += [f"a global that changes: {text}" for text in _globals(plain)]
    found += ["a static variable" for body in bodies.values() if re.search(r"\bstatic\b(?!\s+const\b)", body)]
    if found:
        raise Refused("; ".join(found))


def _is_double(text: str, literal: re.Match[str], dialect: Dialect) -> bool:
    # CUDA has double: a cast right before says what the number is.
    before = text[: literal.start()].rstrip().removesuffix("-").rstrip()
    return dialect == "msl" or not re.search(r"\((?:F|T|float|double)\)$", before)


def functions(text: str) -> dict[str, str]:
    """Bodies by name; overloads and templates of one name together."""
    found: dict[str, str] = {}
    depths = list(accumulate((c == "{") - (c == "}") for c in text))
    for m in _FUNCTION.finditer(text):
        if m[1] not in _NO_FUNCTION and not depths[m.start()]:
            found[m[1]] = found.get(m[1], "") + text[m.end() : closing(text, m.end() - 1)]
    return found


def _calls(body: str, names: frozenset[str]) -> set[str]:
    return set(re.findall(r"\b(\w+)\s*(?:<[^<>;]*>)?\s*\(", body)) & names


def _reached(name: str, bodies: dict[str, str]) -> set[str]:
    names, seen, waiting = frozenset(bodies), set[str](), [name]
    while waiting:
        new = _calls(bodies[waiting.pop()], names) - seen
        seen |= new
        waiting += new
    return seen


def _globals(text: str) -> list[str]:
    """Statements outside of all braces that make a variable which may change."""
    outside, depth = [], 0
    for c in text:
        depth -= c == "}"
        outside.append(";" if c == "}" and depth == 0 else c if depth == 0 else "")
        depth += c == "{"
    statements = re.sub(r"\{", ";", "".join(outside)).split(";")
    found = [" ".join(s.split()) for s in statements if s.strip()]
    return [s for s in found if "(" not in s.split("=")[0] and " " in s and _GLOBAL.match(s)]
