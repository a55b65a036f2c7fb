"""The node cases of ONNX's backend tests: models of one node with inputs and outputs; forward only."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from tests.oracles.cases import ArrayWriter, Case, Skip, judge
from tests.oracles.tally import Tally

KNOWN = ("float32", "float64", "float16", "bfloat16", "bool", "int8", "int16", "int32", "int64", "uint8", "uint16",
         "uint32", "uint64")  # fmt: skip
BOUNDS = {"float16": (2e-3, 2e-3), "bfloat16": (1.6e-2, 1.6e-2)}


class OnnxWriter(ArrayWriter):
    """Also knows the outputs that the case has, and the version of the operations."""

    def __init__(self, outputs: Sequence[np.ndarray], opset: int) -> None:
        super().__init__()
        self.outputs = outputs
        self.opset = opset


def attributes(node: Any) -> dict[str, Any]:
    """The attributes of a node as keywords; texts as `str`."""
    found = {}
    for a in node.attribute:
        value = onnx.helper.get_attribute_value(a)
        found[a.name] = value.decode() if isinstance(value, bytes) else value
    return found


def array(value: Any) -> np.ndarray | None:
    """A value of a data set as an array. Raises Skip for sequences, optionals and dtypes that we lack."""
    if isinstance(value, onnx.TensorProto):
        value = numpy_helper.to_array(value)
    if not isinstance(value, np.ndarray | np.generic):
        raise Skip("a sequence or an optional value")
    if value.dtype.name not in KNOWN:
        raise Skip(f"the dtype {value.dtype.name if value.dtype.kind not in 'OUST' else 'string'}")
    return np.asarray(value)


def case_of(group: str, adapter: Any, case: Any) -> Case:
    """The case of a model. Raises Skip."""
    node = case.model.graph.node[0]
    given, wanted = case.data_sets[0]
    values = iter([array(v) for v in given])
    inputs = [next(values) if name else None for name in node.input]
    outputs = [array(v) for v in wanted]
    opset = next((o.version for o in case.model.opset_import if o.domain == node.domain), 1)
    writer = OnnxWriter([o for o in outputs if o is not None], opset)
    try:
        bound = inspect.signature(adapter).bind(writer, *inputs, **attributes(node))
    except TypeError as error:
        raise Skip(f"an option without a spelling: {str(error).split(chr(39))[1::2] or error}") from None
    text = adapter(*bound.args, **bound.kwargs)
    dtypes = {a.dtype.name for a in [*inputs, *outputs] if a is not None}
    single = max([(1e-4, 1e-5), *[BOUNDS[d] for d in dtypes if d in BOUNDS]])
    expected = [None if o is None else o for o in outputs]
    return Case(group, case.name, text, writer.arrays, expected, single=single, owned=tuple(writer.owned))


def groups() -> dict[str, dict[str, Any]]:
    """The adapters of each group, by the name of the operation."""
    from tests.oracles.onnx_math import MATH
    from tests.oracles.onnx_rows import ROWS
    from tests.oracles.onnx_shape import SHAPE

    return {**MATH, **ROWS, **SHAPE}


def cases() -> Iterator[Any]:
    """The models of one node, the same each time."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        np.random.seed(0)
        yield from (c for c in collect_testcases(None) if len(c.model.graph.node) == 1)


def run(wanted: str = "", every: int = 1, device_every: int = 5) -> Tally:
    """Every so manieth case, judged; every so manieth of those on the cpu device too."""
    tally, count = Tally(), 0
    adapters = {op: (group, adapter) for group, ops in groups().items() for op, adapter in ops.items()}
    for case in cases():
        op = case.model.graph.node[0].op_type
        if op not in adapters or wanted not in ("", op, adapters[op][0]) or case.name.endswith("_expanded"):
            continue
        group, adapter = adapters[op]
        count += 1
        if (count - 1) % every:
            continue
        try:
            made = case_of(group, adapter, case)
        except Skip as skip:
            tally.skip(group, str(skip))
            continue
        fault = judge(made, made.owned, device=not count % device_every)
        if fault:
            tally.fault(group, case.name, fault)
        else:
            tally.right(group)
    return tally
