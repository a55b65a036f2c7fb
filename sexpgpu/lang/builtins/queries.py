"""Questions about values, answered while a file is elaborated."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

from sexpgpu.data import TokenStream
from sexpgpu.ir.graph import Value
from sexpgpu.ir.types import TensorType
from sexpgpu.lang.builtins.registry import builtin
from sexpgpu.lang.elaborator import Elaborator
from sexpgpu.lang.values import DataHandle, DType, kind_of


def _type_of(el: Elaborator, x: Any) -> TensorType:
    return x if isinstance(x, TensorType) else el.tensor(x).type


@builtin("shape")
def shape(el: Elaborator, x: Any) -> tuple[int, ...]:
    return _type_of(el, x).shape


@builtin("dim")
def dim(el: Elaborator, x: Any, axis: Any) -> int:
    if isinstance(x, tuple) and axis == 0:
        return len(x)
    sizes = _type_of(el, x).shape
    return sizes[el.axis(axis, len(sizes))]


@builtin("rank")
def rank(el: Elaborator, x: Any) -> int:
    return _type_of(el, x).rank


@builtin("size")
def size(el: Elaborator, x: Any) -> int:
    return _type_of(el, x).size


@builtin("dtype")
def dtype(el: Elaborator, x: Any) -> DType:
    return DType(_type_of(el, x).dtype)


@builtin("type-of")
def type_of(el: Elaborator, x: Any) -> TensorType:
    return _type_of(el, x)


@builtin("type")
def make_type(el: Elaborator, dtype: Any, sizes: Any) -> TensorType:
    if not isinstance(dtype, DType) or not isinstance(sizes, tuple):
        el.fail("E-TYPE-006", "this form is (type DTYPE [sizes])")
    return TensorType(dtype.name, tuple(el.size(s) for s in sizes))


@builtin("length")
def length(el: Elaborator, x: Any) -> int:
    if isinstance(x, Value):
        return dim(el, x, 0)
    if not isinstance(x, tuple | str):
        el.fail("E-TYPE-006", f"`length` of {kind_of(x)}")
    return len(x)


@builtin("nth")
def nth(el: Elaborator, x: Any, i: Any) -> Any:
    if not isinstance(x, tuple):
        el.fail("E-TYPE-006", f"`nth` takes a vector, not {kind_of(x)}", help="(gather x i) reads a tensor")
    index = el.integer(i)
    if not -len(x) <= index < len(x):
        el.fail("E-TYPE-005", f"index {index} is outside a vector of {len(x)}")
    return x[index]


@builtin("range")
def range_(el: Elaborator, start: Any, stop: Any = None, step: Any = 1) -> tuple[int, ...]:
    first, last = (0, start) if stop is None else (start, stop)
    stride = el.integer(step)
    if stride == 0:
        el.fail("E-TYPE-005", "a range has no step of 0")
    return tuple(range(el.integer(first), el.integer(last), stride))


@builtin("append")
def append(el: Elaborator, x: Any, *more: Any) -> tuple[Any, ...]:
    if not isinstance(x, tuple):
        el.fail("E-TYPE-006", f"`append` takes a vector, not {kind_of(x)}")
    return (*x, *more)


@builtin("matches")
def matches(el: Elaborator, text: Any, pattern: Any) -> bool:
    if not isinstance(text, str) or not isinstance(pattern, str):
        el.fail("E-TYPE-006", "`matches` takes a string and a pattern such as \"*.w\"")
    return fnmatchcase(text, pattern)


@builtin("none?")
def is_none(el: Elaborator, x: Any) -> bool:
    return x is None


def _tokens(el: Elaborator, data: Any, op: str) -> TokenStream:
    if not isinstance(data, DataHandle) or not isinstance(data.dataset, TokenStream):
        el.fail("E-TYPE-006", f"`{op}` asks text or tokens of a `defdata`, not {kind_of(data)}")
    return data.dataset


@builtin("vocabulary")
def vocabulary(el: Elaborator, data: Any) -> int:
    return _tokens(el, data, "vocabulary").vocabulary


@builtin("encode")
def encode(el: Elaborator, data: Any, text: Any) -> tuple[int, ...]:
    if not isinstance(text, str):
        el.fail("E-TYPE-006", f"`encode` takes a string, not {kind_of(text)}")
    return tuple(_tokens(el, data, "encode").encode(text))


