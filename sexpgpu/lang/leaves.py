"""The tensors of a structured value, such as a carry: vectors keep their structure, numbers become scalars."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sexpgpu.ir.graph import Value
from sexpgpu.lang.elaborator import Elaborator
from sexpgpu.lang.values import HostScalar


def leaves_of(el: Elaborator, value: Any, like: Sequence[Value] = ()) -> list[Value]:
    """The tensors of a carry. like: what it was before, whose dtype a lone number takes."""
    if isinstance(value, tuple):
        if like and len(like) == len(value):
            return [leaf for part, old in zip(value, like, strict=True) for leaf in leaves_of(el, part, [old])]
        return [leaf for part in value for leaf in leaves_of(el, part)]
    if len(like) == 1 and isinstance(value, int | float | HostScalar):
        return [el.tensor(value, like[0].dtype)]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return [el.tensor(value, "f32" if isinstance(value, float) else "i32")]
    return [el.tensor(value)]


def rebuilt(template: Any, leaves: Iterator[Any]) -> Any:
    """`leaves` in the structure of `template`."""
    if isinstance(template, tuple):
        return tuple(rebuilt(part, leaves) for part in template)
    return next(leaves)


def types_of(values: Sequence[Value]) -> str:
    """The types, for a message."""
    return " ".join(str(v.type) for v in values)
