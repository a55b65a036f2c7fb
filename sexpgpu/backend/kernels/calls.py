"""What goes into a call and comes out of it, as every session on generated kernels has it: checks, constants, faults.

Flow: a device's `session` calls it.
"""

from __future__ import annotations

import numpy as np

from sexpgpu.backend.kernels.flags import FLAG_BYTES, flag_message, read_flag
from sexpgpu.backend.kernels.lowering import DECISION_BYTES, Lowered
from sexpgpu.backend.protocol import Fault
from sexpgpu.ir.graph import Node
from sexpgpu.ir.opdef import OPS, Array, Context
from sexpgpu.ir.types import NUMPY_DTYPES, TensorType
from sexpgpu.plan.layout import constant_strides


def checked(value: Array, type: TensorType, what: str) -> Array:
    """`value`, dense. Raises ValueError where shape or dtype differ. what: for the message."""
    value = np.asarray(value)
    if value.shape != type.shape or value.dtype != NUMPY_DTYPES[type.dtype]:
        raise ValueError(f"{what} is {type}, not {value.dtype} {list(value.shape)}")
    return np.ascontiguousarray(value)


def constant(node: Node) -> Array:
    """A constant, without what its layout repeats."""
    array = OPS[node.op].meaning(Context(), node, ())
    assert isinstance(array, np.ndarray), node
    once = tuple([slice(0, 1) if stride == 0 else slice(None) for stride in constant_strides(node)])
    return np.ascontiguousarray(np.asarray(array)[once])


def decided(raw: Array) -> bool:
    """Whether the commits of a call were made. raw: the bytes of its outbox."""
    return bool(raw[:4].any())


def faults(lowered: Lowered, raw: Array) -> tuple[Fault, ...]:
    """The faults of a call, in the order of its steps. raw: the bytes of its outbox."""
    if not lowered.flags:
        return ()
    stop = DECISION_BYTES + len(lowered.flags) * FLAG_BYTES
    records = raw[DECISION_BYTES:stop].view(np.uint32).reshape(-1, 4)
    found = [(node, read_flag(record)) for node, record in zip(lowered.flags, records, strict=True)]
    return tuple([Fault(flag_message(node, flag), node.origin) for node, flag in found if flag is not None])
