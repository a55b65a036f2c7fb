"""Attention by cuDNN: which composites it takes, how their values lie in its terms, and the graphs themselves.

Flow: `device` asks for the reason against a composite when it plans; `lowering` describes the operands; `session`
builds and enqueues. cuDNN wants bf16 operands, and gives a bf16 output: it is the caller that casts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sexpgpu.ir.graph import Graph, Node, Value
from sexpgpu.ir.ops.rules import attr_int, without
from sexpgpu.ir.types import ITEM_BYTES, TensorType
from sexpgpu.plan.arena import aligned
from sexpgpu.plan.layout import Layout, Strides, contiguous
from sexpgpu.plan.phase import Step
from sexpgpu.plan.regions import added_axis

FORWARD, BACKWARD = "attention", "attention-gradient"
FORWARD_ROLES = ("q", "k", "v", "out", "row_lse")
BACKWARD_ROLES = ("q", "k", "v", "out", "row_lse", "d_out", "dq", "dk", "dv")
MIN_VERSION = 91300
MAX_DEPTH = 128
"""Of a head; both passes take it on every card from compute capability 8.0 on."""
DEPTH_MULTIPLE = 8
OPERAND_ALIGNMENT_BYTES = 16
KEY_BLOCK = 128
"""Keys that the deterministic backward pass takes at a time, for the estimate of its workspace."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """An operand as cuDNN is told of it: dtype, shape and strides of the value's own axes."""

    dtype: str
    shape: tuple[int, ...]
    strides: Strides

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Attention:
    """One attention graph. tensors: q, k, v, out, row_lse; backward: q, k, v, out, row_lse, d_out, dq, dk, dv."""

    backward: bool
    causal: bool
    scale: float
    tensors: tuple[Tensor, ...]


def reason_against(node: Node) -> str | None:
    """Why cuDNN does not take a composite, whatever its version; None: it does, or it is no attention."""
    q, k, v, *rest = (value.type for value in node.inputs)
    num_beside = 3 if node.attrs["name"] == BACKWARD else 0
    if (q.dtype, k.dtype, v.dtype) != ("bf16", "bf16", "bf16"):
        return f"{q.dtype} operands, cuDNN takes bf16"
    if len(rest) != num_beside:
        return "it has a mask"
    depths = {q.shape[-1], v.shape[-1]}
    if any(depth % DEPTH_MULTIPLE or depth > MAX_DEPTH for depth in depths):
        return f"head size {max(depths)}, cuDNN takes multiples of {DEPTH_MULTIPLE} up to {MAX_DEPTH}"
    if node.attrs["causal"] and q.shape[-2] != k.shape[-2]:
        return "causal with other keys than queries"
    if 0 in (*q.shape, *k.shape):
        return "it is empty"
    return None


def is_attention(node: Node) -> bool:
    """Whether a node is one of the two composites."""
    return node.op == "composite" and node.attrs["name"] in (FORWARD, BACKWARD)


def rounded_edges(node: Node) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The inputs and outputs, by number, that the library takes and gives as bf16."""
    return ((3, 5), (0, 1, 2)) if node.attrs["name"] == BACKWARD else ((), (0,))


def attention_within(step: Step) -> Step:
    """The composite of a region as a step of its own, between the region's operands; or the step itself.

    Casts at its edges are left out, since the library rounds; results that are joined lie in the joined value.
    """
    if step.node.op != "region":
        return step
    body = step.node.bodies[0]
    (node,) = [member for member in body.nodes if is_attention(member)]
    known = dict(zip(body.inputs, step.inputs, strict=True))
    inputs = [value if value in known else value.node.inputs[0] for value in node.inputs]
    shown = dict(zip(body.output_values, step.outputs, strict=True))
    landed = [_landing(value, body, shown) for value in node.outputs]
    types = tuple([type for type, _ in landed])
    narrow = Node(node.id, node.op, tuple(inputs), node.attrs, types, node.bodies, step.node.origin)
    return Step(narrow, tuple([known[v] for v in inputs]), tuple([layout for _, layout in landed]))


def _landing(value: Value, body: Graph, shown: Mapping[Value, Layout]) -> tuple[TensorType, Layout]:
    """The type and layout with which a value of the body reaches an output of it."""
    if value in shown:
        return value.type, shown[value]
    (reader,) = [member for member in body.nodes if value in member.inputs]
    (made,) = reader.outputs
    if reader.op == "concat":
        axis, whole = attr_int(reader.attrs, "axis"), shown[made]
        before = sum([v.shape[axis] for v in reader.inputs[: reader.inputs.index(value)]])
        offset_bytes = before * whole.strides[axis] * ITEM_BYTES[value.dtype]
        return value.type, replace(whole, offset_bytes=whole.offset_bytes + offset_bytes)
    type, layout = _landing(made, body, shown)
    if reader.op == "reshape":
        axis = added_axis(value.shape, made.shape)
        return type.with_shape(value.shape), replace(layout, strides=without(layout.strides, (axis,)))
    return type, layout


def attention_of(step: Step, packed: bool = False) -> Attention:
    """The graph for a step. packed: as if no operand could be taken as it lies."""
    node = step.node
    backward = node.attrs["name"] == BACKWARD
    values = zip((*node.inputs, *node.outputs), (*step.inputs, *step.outputs), strict=True)
    tensors = []
    for role, (value, layout) in zip(BACKWARD_ROLES if backward else FORWARD_ROLES, values, strict=True):
        if role == "row_lse":
            tensors.append(Tensor("f32", value.shape, contiguous(value.shape)))
            continue
        own = Tensor("bf16", value.shape, layout.strides)
        if packed or value.dtype != "bf16" or not _takes(own, layout.offset_bytes):
            own = Tensor("bf16", value.shape, _compact(value.shape, layout.strides))
        tensors.append(own)
    scale = node.attrs["scale"]
    assert isinstance(scale, (int, float)), scale
    return Attention(backward, bool(node.attrs["causal"]), float(scale), tuple(tensors))


def _compact(shape: tuple[int, ...], strides: Strides) -> Strides:
    """Dense strides that keep the order of `strides`, but for the last axis, which is dense.

    Leading axes beyond two are one axis to cuDNN, so a value with that many is packed as it stands.
    """
    if len(shape) > 4:
        return contiguous(shape)
    result = [1] * len(shape)
    step = shape[-1]
    for axis in sorted(range(len(shape) - 1), key=lambda axis: strides[axis]):
        result[axis] = step
        step *= shape[axis]
    return tuple(result)


def _takes(tensor: Tensor, offset_bytes: int) -> bool:
    """Whether cuDNN can address a value where it lies."""
    if offset_bytes % OPERAND_ALIGNMENT_BYTES or tensor.strides[-1] != 1:
        return False
    outer = tensor.strides[:-1]
    if any(stride <= 0 or stride * ITEM_BYTES[tensor.dtype] % OPERAND_ALIGNMENT_BYTES for stride in outer):
        return False
    merged = zip(tensor.strides[:-4], tensor.strides[1:-3], tensor.shape[1:-3], strict=True)
    return all(stride == inner * size for stride, inner, size in merged)


def four_axes(tensor: Tensor) -> tuple[list[int], list[int]]:
    """Shape and strides as batch, heads, rows, columns; a value without columns (row_lse) has one."""
    shape, strides = list(tensor.shape), list(tensor.strides)
    if tensor.dtype == "f32":
        shape, strides = [*shape, 1], [*strides, 1]
    while len(shape) < 4:
        shape, strides = [1, *shape], [shape[0] * strides[0], *strides]
    while len(shape) > 4:
        shape, strides = [shape[0] * shape[1], *shape[2:]], strides[1:]
    return shape, strides


def workspace_estimate(node: Node) -> int:
    """What a step of the composite takes beside its operands: casts, and the library's own."""
    q, k = node.inputs[0].type, node.inputs[1].type
    casts = [*node.inputs, *node.outputs]
    own = sum([aligned(v.type.size * 2) for v in casts if v.dtype == "f32"])
    if node.attrs["name"] != BACKWARD:
        return own + aligned(1)
    blocks = -(-k.shape[-2] // KEY_BLOCK)
    return own + aligned(4 * q.size * blocks + 8 * q.size // q.shape[-1] + (1 << 20))


@dataclass(frozen=True, eq=False)
class Built:
    """A graph that cuDNN has planned. tensors: its own handles, in the order of the operands."""

    graph: Any
    tensors: tuple[Any, ...]
    workspace_bytes: int


class Cudnn:
    """The library, opened on a stream.

    module: `cudnn`, or what stands in for it in a test. Raises ImportError or RuntimeError where it cannot be loaded.
    """

    def __init__(self, module: Any) -> None:
        self._cudnn = module
        self._handle = module.create_handle()
        self._built: dict[Attention, Built | str] = {}

    def version(self) -> int:
        """91900 is 9.19.0."""
        return int(self._cudnn.backend_version())

    def use(self, stream: int) -> None:
        """Enqueue on `stream` from now on: the handle has one stream, and sessions each have their own."""
        self._cudnn.set_stream(handle=self._handle, stream=stream)

    def build(self, attention: Attention) -> Built | str:
        """The planned graph, made once; or, as text, why the library refuses it."""
        if attention not in self._built:
            try:
                self._built[attention] = self._backward(attention) if attention.backward else self._forward(attention)
            except (RuntimeError, ValueError, TypeError, self._refusal()) as error:
                self._built[attention] = " ".join(str(error).split())[:200] or type(error).__name__
        return self._built[attention]

    def _refusal(self) -> type[Exception]:
        refusal = getattr(self._cudnn, "cudnnGraphNotSupportedError", RuntimeError)
        assert issubclass(refusal, Exception)
        return refusal

    def _graph(self) -> Any:
        kinds = self._cudnn.data_type
        return self._cudnn.pygraph(
            io_data_type=kinds.BFLOAT16,
            intermediate_data_type=kinds.FLOAT,
            compute_data_type=kinds.FLOAT,
            handle=self._handle,
        )

    def _operand(self, graph: Any, tensor: Tensor, name: str) -> Any:
        dim, stride = four_axes(tensor)
        return graph.tensor(dim=dim, stride=stride, data_type=self._data_type(tensor), name=name)

    def _data_type(self, tensor: Tensor) -> Any:
        return self._cudnn.data_type.BFLOAT16 if tensor.dtype == "bf16" else self._cudnn.data_type.FLOAT

    def _output(self, handle: Any, tensor: Tensor) -> Any:
        dim, stride = four_axes(tensor)
        return handle.set_output(True).set_dim(dim).set_stride(stride).set_data_type(self._data_type(tensor))

    def _planned(self, graph: Any, tensors: Sequence[Any]) -> Built:
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([self._cudnn.heur_mode.A, self._cudnn.heur_mode.FALLBACK])
        graph.check_support()
        graph.build_plans()
        return Built(graph, tuple(tensors), int(graph.get_workspace_size()))

    def _forward(self, attention: Attention) -> Built:
        graph = self._graph()
        q, k, v = (self._operand(graph, t, n) for t, n in zip(attention.tensors, "qkv", strict=False))
        out, sums = graph.sdpa(
            name="attention", q=q, k=k, v=v, generate_stats=True, attn_scale=attention.scale,
            use_causal_mask=attention.causal,
        )  # fmt: skip
        self._output(out, attention.tensors[3])
        self._output(sums, attention.tensors[4])
        return self._planned(graph, (q, k, v, out, sums))

    def _backward(self, attention: Attention) -> Built:
        graph = self._graph()
        inputs = [self._operand(graph, t, n) for t, n in zip(attention.tensors, BACKWARD_ROLES, strict=True)][:6]
        q, k, v, out, sums, d_out = inputs
        outputs = graph.sdpa_backward(
            name="attention_gradient", q=q, k=k, v=v, o=out, dO=d_out, stats=sums, attn_scale=attention.scale,
            use_causal_mask=attention.causal, use_deterministic_algorithm=True,
        )  # fmt: skip
        for handle, tensor in zip(outputs, attention.tensors[6:], strict=True):
            self._output(handle, tensor)
        return self._planned(graph, (*inputs, *outputs))

    def enqueue(self, built: Built, addresses: Sequence[int], workspace: int) -> None:
        """Run a graph with its operands at these addresses, on the stream of `use`."""
        pack = dict(zip(built.tensors, addresses, strict=True))
        built.graph.execute(pack, workspace, handle=self._handle)

    def close(self) -> None:
        """Give the library's own memory back."""
        self._built.clear()
        self._cudnn.destroy_handle(self._handle)
