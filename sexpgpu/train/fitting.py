"""Whether a checkpoint's tensors are those that a program's slots hold."""

from __future__ import annotations

from collections.abc import Sequence

from sexpgpu.diagnostics import Diagnostic, DiagnosticError
from sexpgpu.ir.program import Slot
from sexpgpu.ir.types import NUMPY_DTYPES
from sexpgpu.train.checkpoint import Checkpoint

_MAX_NOTES = 5


def refuse_misfits(slots: Sequence[Slot], checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint that lacks the tensor of a slot, or has another shape or dtype for it.

    Raises: E-CKPT-003
    """
    wrong = []
    for slot in slots:
        tensor = checkpoint.tensors.get(slot.name)
        if tensor is None:
            wrong.append(f"`{slot.name}` {slot.type} is not in the checkpoint")
        elif tensor.shape != slot.type.shape or tensor.dtype != NUMPY_DTYPES[slot.type.dtype]:
            found = f"({' '.join(map(str, (tensor.dtype, *tensor.shape)))})"
            wrong.append(f"`{slot.name}` is {slot.type} in the file and {found} in the checkpoint")
    if wrong:
        raise DiagnosticError(
            Diagnostic(
                "E-CKPT-003",
                f"the checkpoint is of another model: {wrong[0]}",
                help=("use the file, variant and --set of the run",),
                notes=tuple(wrong[1 : 1 + _MAX_NOTES]),
            )
        )
