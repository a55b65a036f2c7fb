"""Questions about values, answered while a file is elaborated."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

from sexpgpu.data import Images, Lines, TokenStream
from sexpgpu.ir.graph import Value
from sexpgpu.ir.types import TensorType, admit
from sexpgpu.lang.arithmetic import is_number
from sexpgpu.lang.builtins.registry import builtin
from sexpgpu.lang.elaborator import ELEMENTS_PER_CALL, MAX_ELEMENTS, Elaborator
from sexpgpu.lang.values import DataHandle, DType, kind_of


def _type_of(el: Elaborator, x: Any) -> TensorType:
    return x if isinstance(x, TensorType) else el.tensor(x).type


@builtin("shape")
def shape(el: Elaborator, x: Any) -> tuple[int, ...]:
    """`(shape x)`: the sizes of a tensor or type.

    Value: a vector of integers.
    Example:
        (shape x)  ; => [8 16]
    """
    return _type_of(el, x).shape


@builtin("dim")
def dim(el: Elaborator, x: Any, axis: Any) -> int:
    """`(dim x a)`: the size of one axis.

    Value: an integer; the axis may be negative, from the end. `(dim v 0)` of a vector is its length.
    Example:
        (dim x -1)  ; => 16
    """
    if isinstance(x, tuple) and axis == 0:
        return len(x)
    sizes = _type_of(el, x).shape
    return sizes[el.axis(axis, len(sizes))]


@builtin("rank")
def rank(el: Elaborator, x: Any) -> int:
    """`(rank x)`: the number of axes.

    Value: an integer, 0 for a scalar.
    Example:
        (rank x)  ; => 2
    """
    return _type_of(el, x).rank


@builtin("size")
def size(el: Elaborator, x: Any) -> int:
    """`(size x)`: the number of elements.

    Value: an integer, the product of the shape; 1 for a scalar.
    Example:
        (size x)  ; => 128
    """
    return _type_of(el, x).size


@builtin("dtype")
def dtype(el: Elaborator, x: Any) -> DType:
    """`(dtype x)`: the dtype of a tensor or type.

    Value: one of `f32 bf16 i32 i64 bool`, which `=` compares and `cast` takes.
    Example:
        (= (dtype x) f32)  ; => true
        (dtype (cast x (dtype ids)))  ; => i32
    """
    return DType(_type_of(el, x).dtype)


@builtin("type-of")
def type_of(el: Elaborator, x: Any) -> TensorType:
    """`(type-of x)`: the type of a tensor.

    Value: a type, as `(f32 8 16)` is one.
    Example:
        (= (type-of x) (f32 8 16))  ; => true
    """
    return _type_of(el, x)


@builtin("type")
def make_type(el: Elaborator, dtype: Any, sizes: Any) -> TensorType:
    """`(type DTYPE [sizes])`: a type from a vector of sizes.

    Value: a type; `(f32 8 16)` is the same with sizes written out.
    Example:
        (type f32 [8 16])  ; => (f32 8 16)
        (zeros (type f32 (shape x)))  ; is (f32 8 16)
    """
    if not isinstance(dtype, DType) or not isinstance(sizes, tuple):
        el.fail("E-TYPE-006", "this form is (type DTYPE [sizes])")
    return admit(TensorType(dtype.name, tuple(el.size(s) for s in sizes)))


@builtin("length")
def length(el: Elaborator, x: Any) -> int:
    """`(length v)`: the number of elements of a vector or string, or the size of a tensor's first axis.

    Value: an integer.
    Example:
        (length [1 2 3])  ; => 3
        (length "text")  ; => 4
        (length x)  ; => 8
    """
    if isinstance(x, Value):
        return dim(el, x, 0)
    if not isinstance(x, tuple | str):
        el.fail("E-TYPE-006", f"`length` of {kind_of(x)}")
    return len(x)


@builtin("nth")
def nth(el: Elaborator, x: Any, i: Any) -> Any:
    """`(nth v i)`: one element of a vector, from 0, negative from the end.

    Value: the element; an index outside the vector is an error (`E-TYPE-005`). `gather` reads tensors.
    Example:
        (nth [1 2 3] -1)  ; => 3
    """
    if not isinstance(x, tuple):
        el.fail("E-TYPE-006", f"`nth` takes a vector, not {kind_of(x)}", help="(gather x i) reads a tensor")
    index = el.integer(i)
    if not -len(x) <= index < len(x):
        el.fail("E-TYPE-005", f"index {index} is outside a vector of {len(x)}")
    return x[index]


@builtin("range")
def range_(el: Elaborator, start: Any, stop: Any = None, step: Any = 1) -> tuple[int, ...]:
    """`(range n)` or `(range a b step)`: a vector of integers.

    Value: a vector of integers from the first up to, without, the last; `(range n)` begins at 0.
    Form: (range n) or (range a b [step])
    Example:
        (range 4)  ; => [0 1 2 3]
        (range 2 5)  ; => [2 3 4]
        (range 6 0 -2)  ; => [6 4 2]
    """
    first, last = (0, start) if stop is None else (start, stop)
    stride = el.integer(step)
    if stride == 0:
        el.fail("E-TYPE-005", "a range has no step of 0")
    low, high = el.integer(first), el.integer(last)
    if abs(high - low) > MAX_ELEMENTS * abs(stride):
        el.fail(
            "E-TYPE-005",
            f"a range from {kind_of(low)} to {kind_of(high)}; at most {MAX_ELEMENTS:,} numbers are written out",
        )
    numbers = range(low, high, stride)
    el.spend(len(numbers) // ELEMENTS_PER_CALL)
    return tuple(numbers)


@builtin("append")
def append(el: Elaborator, x: Any, *more: Any) -> tuple[Any, ...]:
    """`(append v x …)`: a vector with more at its end.

    Value: a new vector; the old one stays as it is.
    Example:
        (append [1 2] 3)  ; => [1 2 3]
        (append [] 1 2)  ; => [1 2]
    """
    if not isinstance(x, tuple):
        el.fail("E-TYPE-006", f"`append` takes a vector, not {kind_of(x)}")
    el.spend(len(x) // ELEMENTS_PER_CALL)
    return el.vector((*x, *more))


@builtin("matches")
def matches(el: Elaborator, text: Any, pattern: Any) -> bool:
    """`(matches text "*.w")`: whether a string fits a pattern of `*` and `?`.

    Value: true or false. `*` stands for any characters, dots included, `?` for one.
    Example:
        (matches "net.block.3.up.w" "*.up.w")  ; => true
        (matches "net.b" "*.w")  ; => false
    """
    if not isinstance(text, str) or not isinstance(pattern, str):
        el.fail("E-TYPE-006", '`matches` takes a string and a pattern such as "*.w"')
    return fnmatchcase(text, pattern)


@builtin("number?")
def is_known_number(el: Elaborator, x: Any) -> bool:
    """`(number? x)`: whether x is a number while the file is read, not a tensor and not made of `step`.

    Value: true or false; false for tensors and for what depends on `step`.
    Example:
        (number? 3)  ; => true
        (number? x)  ; => false
    """
    return is_number(x)


@builtin("none?")
def is_none(el: Elaborator, x: Any) -> bool:
    """`(none? x)`: whether x is `none`.

    Value: true or false.
    Example:
        (none? none)  ; => true
        (none? 0)  ; => false
    """
    return x is None


def _text(el: Elaborator, data: Any, op: str) -> TokenStream | Lines:
    if not isinstance(data, DataHandle) or not isinstance(data.dataset, TokenStream | Lines):
        el.fail("E-TYPE-006", f"`{op}` asks text or tokens of a `defdata`, not {kind_of(data)}")
    return data.dataset


@builtin("vocabulary")
def vocabulary(el: Elaborator, data: Any) -> int:
    """`(vocabulary DATA)`: the number of distinct ids of a text, lines or tokens, or of classes of images.

    Value: an integer: of a text or lines by characters how many occur, by bytes 256, by a tokenizer its largest id plus
        1; of tokens what `:vocabulary` says; of images how many folders hold them.
    Example:
        (defdata corpus (text "python:topics" :by bytes))
        (def vocab (vocabulary corpus))
        (defmodel lm ((tokens (i32 _ _))) (embed (param table (f32 vocab 8) (normal 0.02)) tokens))
        (defloader train (windows corpus :length 16) :batch 4)
        (defmetric nll (tokens) (mean (square (lm tokens))))
        (defrun go :loader train :loss nll :optimizer (sgd :rate 0.1) :steps 1)
    """
    if isinstance(data, DataHandle) and isinstance(data.dataset, Images):
        return data.dataset.vocabulary
    return _text(el, data, "vocabulary").vocabulary


@builtin("encode")
def encode(el: Elaborator, data: Any, text: Any) -> tuple[int, ...]:
    """`(encode DATA "text")`: the ids of a text, a vector.

    Value: a vector of integers; a character that the text lacks is an error.
    Example:
        (defdata corpus (text "python:topics" :by bytes))
        (defgenerator show (:prompt (encode corpus "The ")) (cast (stack prompt) f32))
        (defmetric small () (square (param w (f32) (* 1.0 (length (encode corpus "abc"))))))
        (defrun go :loss small :optimizer (sgd :rate 0.1) :steps 1)
    """
    if not isinstance(text, str):
        el.fail("E-TYPE-006", f"`encode` takes a string, not {kind_of(text)}")
    stream = _text(el, data, "encode")
    return tuple(el.located(lambda: stream.encode(text)))
