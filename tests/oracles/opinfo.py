"""PyTorch's `op_db`: samples of its operations, values and gradients, and calls that must be refused."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from tests.oracles.cases import Adapter, Case, Skip, Writer, accepted, judge, number, vector
from tests.oracles.tally import Tally

TORCH_NAMES = {torch.float32: "f32", torch.float64: "f32", torch.bfloat16: "bf16", torch.int32: "i32",
               torch.int64: "i64", torch.bool: "bool"}  # fmt: skip
NARROW = {torch.uint8: torch.int32, torch.int8: torch.int32, torch.int16: torch.int32}


class TorchWriter(Writer):
    """Names for tensors; what is no tensor is written as it is."""

    def __init__(self) -> None:
        super().__init__()
        self._tensors: list[torch.Tensor] = []

    def __call__(self, value: Any) -> str:
        """A tensor's name, a number, a vector of either."""
        if isinstance(value, torch.Tensor):
            self._tensors.append(value)
            return self.name(array_of(value), id(value))
        if isinstance(value, list | tuple):
            return vector([self(v) for v in value])
        return number(value)

    def f(self, value: Any) -> str:
        """The same, integers and booleans as f32."""
        if isinstance(value, torch.Tensor) and not value.is_floating_point():
            return f"(cast {self(value)} f32)"
        if isinstance(value, bool | int):
            return number(float(value))
        return self(value)

    def own_tensor(self, path: str, tensor: torch.Tensor) -> None:
        """A tensor in place of a vector that a layer makes."""
        self._names[id(tensor)] = self.own(path, array_of(tensor).reshape(-1))
        self._tensors.append(tensor)

    def stretched(self, *values: Any, floats: bool = True) -> list[str]:
        """The operands of an elementwise call, repeated by hand where our rule of shapes wants it so."""
        write = self.f if floats else self
        shapes = [tuple(v.shape) for v in values if isinstance(v, torch.Tensor)]
        try:
            joint = torch.broadcast_shapes(*shapes) if shapes else ()
        except RuntimeError:  # a wrong call, which our own rule has to refuse
            return [write(v) for v in values]
        return [
            f"(broadcast {write(v)} {vector(joint)})" if _needs_help(v, joint, shapes) else write(v) for v in values
        ]


def _needs_help(value: Any, joint: Sequence[int], shapes: Sequence[Sequence[int]]) -> bool:
    if not isinstance(value, torch.Tensor) or tuple(value.shape) in ((), tuple(joint)):
        return False
    return any(len(s) != len(joint) for s in shapes if tuple(s) != ())


def array_of(tensor: torch.Tensor) -> np.ndarray:
    """A tensor as an array in one of our dtypes; doubles are f32, as the samples were before they were widened."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.is_complex() or tensor.is_sparse:
        raise Skip("complex numbers" if tensor.is_complex() else "sparse tensors")
    tensor = tensor.to(NARROW.get(tensor.dtype, tensor.dtype))
    if tensor.dtype == torch.float64:
        tensor = tensor.float()
    if tensor.dtype not in TORCH_NAMES:
        raise Skip(f"the dtype {tensor.dtype}")
    return np.array(tensor.contiguous().numpy())


def mapped(value: Any, function: Callable[[torch.Tensor], Any]) -> Any:
    """A structure of arguments with its tensors replaced; f32 as an argument becomes f64."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, list | tuple):
        return type(value)(mapped(v, function) for v in value) if not hasattr(value, "_fields") else value
    if isinstance(value, dict):
        return {k: mapped(v, function) for k, v in value.items()}
    return torch.float64 if value is torch.float32 else value


def written(adapter: Adapter, writer: TorchWriter, sample: Any) -> str:
    """The expression of a sample. Raises Skip."""
    try:
        bound = inspect.signature(adapter).bind(writer, sample.input, *sample.args, **sample.kwargs)
    except TypeError as error:
        raise Skip(f"an option without a spelling: {str(error).split(chr(39))[1::2] or error}") from None
    return adapter(*bound.args, **bound.kwargs)


def wide(sample: Any, differentiable: bool) -> tuple[Any, list[torch.Tensor]]:
    """The sample in double, and its leaves that want gradients."""
    leaves: dict[int, torch.Tensor] = {}
    wanted: list[torch.Tensor] = []

    def widen(t: torch.Tensor) -> torch.Tensor:
        if t.dtype != torch.float32:
            return t
        if id(t) not in leaves:
            leaves[id(t)] = t.detach().double()
            if differentiable and t.requires_grad:
                wanted.append(leaves[id(t)].requires_grad_())
        return leaves[id(t)]

    made = type(sample)(mapped(sample.input, widen), args=mapped(tuple(sample.args), widen),
                        kwargs=mapped(sample.kwargs, widen))  # fmt: skip
    return made, wanted


def outputs_of(value: Any) -> list[torch.Tensor]:
    """The tensors that an operation gave, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, bool | int | float):
        return [torch.tensor(value)]
    return [t for v in value for t in outputs_of(v)]


def case_of(group: str, op: Any, adapter: Any, sample: Any, name: str) -> tuple[Case, tuple[str, ...]]:
    """The case of a sample, and the names of what its layers own. Raises Skip."""
    sample, leaves = wide(sample, op.supports_autograd)
    writer = TorchWriter()
    options = getattr(adapter, "options", {})
    text = written(adapter, writer, sample)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = outputs_of(op.op(sample.input, *sample.args, **sample.kwargs))
    compared = options.get("compared")
    if compared is not None:
        found = found[:compared]
    generator = torch.Generator().manual_seed(1)
    cotangents: dict[int, torch.Tensor] = {}
    for i, t in enumerate(found):
        if t.requires_grad and t.is_floating_point():
            cotangents[i] = (torch.rand(t.shape, generator=generator, dtype=torch.float32) + 0.5).double()
    gradients = {}
    known = {writer._names[id(t)]: t for t in leaves if id(t) in writer._names}
    if cotangents and known and not options.get("forward"):
        seeds = [seed.to(found[i].dtype) for i, seed in cotangents.items()]
        made = torch.autograd.grad([found[i] for i in cotangents], list(known.values()), seeds, allow_unused=True)
        gradients = {
            n: (np.zeros(known[n].shape) if g is None else g.numpy(force=True)).reshape(writer.arrays[n].shape)
            for n, g in zip(known, made, strict=True)
        }
    else:
        cotangents = {}
    expected = [_array(t) for t in found]
    bounds = {k: options[k] for k in ("single", "double") if k in options}
    case = Case(group, name, text, writer.arrays, expected, gradients,
                {i: c.float().numpy() for i, c in cotangents.items()}, **bounds)  # fmt: skip
    return case, tuple(writer.owned)


def _array(tensor: torch.Tensor) -> np.ndarray:
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.is_complex():
        raise Skip("complex numbers")
    return np.array(tensor.float().numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy())


def samples(op: Any) -> Iterator[Any]:
    """The samples of an entry, the same each time."""
    torch.manual_seed(0)
    np.random.seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield from op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd)


def full_name(op: Any) -> str:
    """The name of an entry with its variant: `norm.fro`."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def refused(wanted: str = "", every: int = 1) -> Tally:
    """Every wrong call of PyTorch's: handled if we refuse it with a diagnostic, or report it when it runs."""
    tally, count = Tally(), 0
    stride, every = max(1, every // 12), min(every, 12)  # of a thin sample whole entries are left out: they take time
    for group, op, adapter in list(entries(wanted))[::stride]:
        if op.error_inputs_func is None:
            continue
        torch.manual_seed(0)
        for number_, wrong in enumerate(op.error_inputs("cpu")):
            count += 1
            if (count - 1) % every:
                continue
            try:
                fault = _accepted(adapter, wrong.sample_input)
            except Skip as skip:
                tally.skip(group, str(skip))
                continue
            reason = _meant(wrong) if fault.startswith("accepted") else ""
            if reason:
                tally.skip(group, reason)
            elif fault:
                tally.fault(group, f"{full_name(op)}/{number_}", f"{wrong.error_regex[:60]}: {fault}")
            else:
                tally.right(group)
    return tally


MEANT = {
    r"at most half": "padding up to the window's size is meant so",
    r"[Ii]nput.*dimension|\dD|\d-D|at least|total dims|<= 2|same number of dim|0-dimensional|scalar or":
        "any number of axes is meant so",
    r"repeated|out of range|identical|rotation dims|non-negative|exceeds|0-dim integral|strided conv|margin|"
    r"approximate|rtol|atol": "the adapter works it out, our files do not say it",
    r"dtype|bool tensor": "the adapter casts",
}  # fmt: skip
"""Wrong calls of PyTorch's that are right in our language: what the message says, and why."""


def _meant(wrong: Any) -> str:
    """Why a call that PyTorch refuses is right in our language; empty if it should be refused."""
    given = [wrong.sample_input.input, *wrong.sample_input.args]
    if not wrong.error_regex and any(isinstance(v, int | float) for v in given):
        return "a number may stand where PyTorch wants a tensor"
    return next((reason for text, reason in MEANT.items() if re.search(text, wrong.error_regex)), "")


def _accepted(adapter: Adapter, sample: Any) -> str:
    """How a wrong call was accepted; empty if it was not. Raises Skip where it cannot be written down."""
    writer = TorchWriter()
    try:
        text = written(adapter, writer, sample)
    except Skip:
        raise
    except Exception:  # a sample so wrong that the adapter finds no words for it
        raise Skip("a call that cannot be written down") from None
    return accepted(text, writer.arrays, tuple(writer.owned))


def groups() -> dict[str, dict[str, Adapter]]:
    """The adapters of each group; every entry named here is a part of the whole, whether we can write it or not."""
    from tests.oracles.torch_elementwise import ELEMENTWISE
    from tests.oracles.torch_index import INDEX
    from tests.oracles.torch_products import PRODUCTS
    from tests.oracles.torch_reduce import ORDER, REDUCE
    from tests.oracles.torch_rows import ROWS
    from tests.oracles.torch_shape import SHAPE
    from tests.oracles.torch_windows import WINDOWS

    return {
        "elementwise": ELEMENTWISE, "reductions": REDUCE, "products": PRODUCTS, "gather and scatter": INDEX,
        "convolutions, pools, pads": WINDOWS, "running folds and orders": ORDER,
        "softmax, norms, losses, attention": ROWS, "shape": SHAPE,
    }  # fmt: skip


THINNED = {"nn.functional.max_pool1d": 4, "nn.functional.max_pool3d": 4}
"""Entries of which every so manieth sample is taken: their samples are those of `max_pool2d` once more."""


def entries(wanted: str = "") -> Iterator[tuple[str, Any, Adapter]]:
    """The group, entry and adapter of everything that is driven."""
    from torch.testing._internal.common_methods_invocations import op_db

    known = {full_name(op): op for op in reversed(op_db)}
    for group, adapters in groups().items():
        for name, adapter in adapters.items():
            if wanted in (group, name, "") and name in known and torch.float32 in known[name].dtypes:
                yield group, known[name], adapter


def run(wanted: str = "", every: int = 1, device_every: int = 10) -> Tally:
    """Every so manieth sample of every entry, judged; every so manieth of those on the cpu device too."""
    tally, count = Tally(), 0
    stride, every = max(1, every // 12), min(every, 12)  # of a thin sample whole entries are left out: they take time
    for group, op, adapter in list(entries(wanted))[::stride]:
        name = full_name(op)
        for number_, sample in enumerate(samples(op)):
            if number_ % THINNED.get(name, 1):
                continue
            count += 1
            if (count - 1) % every:
                continue
            try:
                case, owned = case_of(group, op, adapter, sample, f"{name}/{number_}")
            except Skip as skip:
                tally.skip(group, str(skip))
                continue
            fault = judge(case, owned, device=not count % device_every)
            if fault:
                tally.fault(group, case.name, fault)
            else:
                tally.right(group)
    return tally
