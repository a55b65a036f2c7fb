"""JAX's harnesses of its primitives in f32 and bf16: values, and gradients where JAX has them.

Each harness is traced to a jaxpr, and each of its equations is written in our language by the adapter of its primitive.
Operands that are indices are known as arrays too, since our files count places from one axis at a time.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")  # most of the time is compilation

import jax

from tests.oracles.cases import DTYPE_NAMES, NARROWED, ArrayWriter, Case, Skip, judge
from tests.oracles.tally import Tally

INLINED = ("pjit", "jit", "closed_call", "custom_jvp_call", "custom_vjp_call", "core_call", "remat")
BOUNDS = {"float32": (2e-4, 2e-4), "bfloat16": (1.6e-2, 1.6e-2)}
NONE_OF_OURS = {
    "linear algebra": ("cholesky", "qr", "svd", "eig", "eigh", "lu", "triangular_solve", "custom_linear_solve",
                       "tridiagonal_solve", "fft"),
    "random draws": ("random_gamma", "random_categorical", "random_uniform"),
}  # fmt: skip
"""Harnesses that are about none of our groups."""


def dtype_of(dtype: Any) -> str:
    """A NumPy dtype as our files call it, or what holds its values here. Raises Skip."""
    dtype = np.dtype(NARROWED.get(np.dtype(dtype).name, dtype))
    if dtype not in DTYPE_NAMES:
        raise Skip(f"the dtype {dtype.name}")
    return DTYPE_NAMES[dtype]


@dataclass
class Known:
    """A value of a jaxpr: how it is written, and what it is."""

    text: str
    array: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def ndim(self) -> int:
        return self.array.ndim

    @property
    def dtype(self) -> str:
        """The dtype as our files call it."""
        return dtype_of(self.array.dtype)


Adapter = Callable[..., "str | Sequence[str]"]
"""From a writer, the operands and the parameters of an equation to its value, or to its values."""


@dataclass
class _Writing:
    writer: ArrayWriter
    adapters: dict[str, Adapter]
    bound: list[str] = field(default_factory=list)
    count: int = 0

    def run(self, jaxpr: Any, consts: Sequence[Any], operands: Sequence[Known]) -> list[Known]:
        """The outputs of a jaxpr; its equations are bound to names on the way."""
        env: dict[Any, Known] = {}
        env.update(zip(jaxpr.constvars, [self.constant(c) for c in consts], strict=True))
        env.update(zip(jaxpr.invars, operands, strict=True))

        def read(atom: Any) -> Known:
            return self.constant(atom.val) if hasattr(atom, "val") else env[atom]

        for eqn in jaxpr.eqns:
            env.update(zip(eqn.outvars, self.equation(eqn, [read(v) for v in eqn.invars]), strict=True))
        return [read(v) for v in jaxpr.outvars]

    def constant(self, value: Any) -> Known:
        array = np.asarray(value)
        return Known(self.writer(array), array)

    def equation(self, eqn: Any, operands: list[Known]) -> list[Known]:
        name = eqn.primitive.name
        if name in INLINED:
            inner = eqn.params.get("jaxpr") or eqn.params.get("call_jaxpr") or eqn.params.get("fun_jaxpr")
            return self.run(inner.jaxpr, inner.consts, operands)
        values = eqn.primitive.bind(*[o.array for o in operands], **eqn.params)
        arrays = [np.asarray(v) for v in (values if eqn.primitive.multiple_results else [values])]
        if name not in self.adapters:
            raise Skip(f"`{name}`, which we lack")
        made = self.adapters[name](self.writer, *operands, **eqn.params)
        texts = [made] if isinstance(made, str) else list(made)
        found = []
        for text, array in zip(texts, arrays, strict=True):
            self.bound += [f"v{self.count}", text]
            found.append(Known(f"v{self.count}", array))
            self.count += 1
        return found


def primitives() -> dict[str, Adapter]:
    """The adapters by the name of the primitive."""
    from tests.oracles.jax_index import INDEX
    from tests.oracles.jax_math import MATH
    from tests.oracles.jax_windows import WINDOWS

    return {**MATH, **INDEX, **WINDOWS}


def case_of(harness: Any) -> Case:
    """The case of a harness. Raises Skip."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        args = harness.dyn_args_maker(np.random.RandomState(0))
        args = [np.asarray(jax.numpy.asarray(a)) for a in args]
        if any(a.dtype.name.startswith(("key", "complex")) for a in args):
            raise Skip("complex numbers or keys")
        closed = jax.make_jaxpr(harness.dyn_fun)(*args)
        writer = ArrayWriter()
        writing = _Writing(writer, primitives())
        operands = [Known(writer(a), a) for a in args]
        outputs = writing.run(closed.jaxpr, closed.consts, operands)
    parts = [o.text for o in outputs]
    body = parts[0] if len(parts) == 1 else "[" + " ".join(parts) + "]"
    text = f"(let [{' '.join(writing.bound)}] {body})" if writing.bound else body
    dtype = np.dtype(harness.dtype).name
    expected: list[np.ndarray | None] = [np.asarray(o.array) for o in outputs]
    if harness.group_name == "approx_top_k":
        expected[1] = None  # of a tie it may give any place
    bounds = BOUNDS[dtype]
    if dtype == "bfloat16" and harness.group_name in ("cumsum", "cumprod"):
        bounds = (3e-2, 6e-2)  # JAX rounds every partial sum, we round once
    gradients, cotangents = _gradients(harness, args, operands) if dtype == "float32" else ({}, {})
    return Case(dtype, harness.fullname[:70], text, writer.arrays, expected, gradients, cotangents,
                single=bounds, double=(1e-3, 1e-3))  # fmt: skip


def _gradients(harness: Any, args: list[Any], operands: list[Known]) -> tuple[dict[str, Any], dict[int, Any]]:
    """Gradients by JAX of all f32 operands; none where it has no rule, or where ties are divided."""
    wanted = [i for i, a in enumerate(args) if a.dtype == np.float32]
    if not wanted or harness.group_name in NO_GRADIENT or "inf_nan" in harness.fullname:
        return {}, {}

    def function(*floats: Any) -> Any:
        given = list(args)
        for i, value in zip(wanted, floats, strict=True):
            given[i] = value
        return jax.tree_util.tree_leaves(harness.dyn_fun(*given))

    try:
        values, pull = jax.vjp(function, *[args[i] for i in wanted])
        rng = np.random.default_rng(2)
        seeds = [
            rng.uniform(0.5, 1.5, v.shape).astype(np.float32) if v.dtype == np.float32
            else np.zeros(v.shape, v.dtype if v.dtype.kind in "fV" else jax.dtypes.float0) for v in values
        ]  # fmt: skip
        found = pull(seeds)
    except (NotImplementedError, ValueError, TypeError, AssertionError):
        return {}, {}
    cotangents = {i: s for i, s in enumerate(seeds) if s.dtype == np.float32}
    return {operands[i].text: np.asarray(g, np.float64) for i, g in zip(wanted, found, strict=True)}, cotangents


NO_GRADIENT = ("reduce_precision", "approx_top_k", "stop_gradient", "erf_inv")
"""Harnesses whose gradients JAX defines outside of the jaxpr, or outside of where the function is defined."""


def harnesses() -> Iterator[Any]:
    """The harnesses in f32 and bf16 that are about our groups."""
    from jax._src.internal_test_util import test_harnesses

    left_out = {name for names in NONE_OF_OURS.values() for name in names}
    for harness in test_harnesses.all_harnesses:
        if np.dtype(harness.dtype).name in BOUNDS and harness.group_name not in left_out:
            yield harness


def run(wanted: str = "", every: int = 1, device_every: int = 5) -> Tally:
    """Every so manieth harness, judged; every so manieth of those on the cpu device too."""
    tally, count = Tally(), 0
    for harness in harnesses():
        if wanted not in ("", harness.group_name, np.dtype(harness.dtype).name):
            continue
        count += 1
        if (count - 1) % every:
            continue
        group = np.dtype(harness.dtype).name
        try:
            made = case_of(harness)
        except Skip as skip:
            tally.skip(group, str(skip))
            continue
        fault = judge(made, device=not count % device_every)
        if fault:
            tally.fault(group, made.name, fault)
        else:
            tally.right(group)
    return tally
