"""Rules that many functions of torch_mlu_ops share."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ..._torch.emulation import require
from ..chips import Chip

Tensor = torch.Tensor
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
HALVES = (torch.float16, torch.bfloat16)


def floats(op: str, chip: Chip, tensors: dict[str, Tensor | None], kinds: Iterable[torch.dtype] = FLOATS) -> None:
    """Contiguous tensors of one float type that the chip has."""
    given = {name: t for name, t in tensors.items() if t is not None}
    found = {t.dtype for t in given.values()}
    require(
        len(found) == 1 and found <= set(kinds),
        op,
        f"{', '.join(given)} must be of one type among {tuple(kinds)}, not {found}",
    )
    require(chip.bfloat16 or torch.bfloat16 not in found, op, f"{chip.name} has no bfloat16")
    for name, t in given.items():
        require(t.is_contiguous(), op, f"{name} must be contiguous")


def indices(op: str, **tensors: Tensor | None) -> None:
    """Contiguous int32 tensors."""
    for name, t in tensors.items():
        if t is not None:
            require(t.dtype is torch.int32 and t.is_contiguous(), op, f"{name} must be contiguous int32, not {t.dtype}")
