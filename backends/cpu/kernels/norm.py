"""Native rms_norm: float32 inside, rounded once."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .library import Library, check, rows_of, type_code


def rms_norm_kernel(library: Library) -> Callable[..., torch.Tensor]:
    """The kernel of `rms_norm`."""
    run = library.rms_norm

    def rms_norm(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
        kind, scale = type_code(x), weight.contiguous()
        flat, rows = rows_of(x)
        out = torch.empty(x.shape, dtype=x.dtype)
        result = run(flat.data_ptr(), kind, *rows, x.shape[-1], scale.data_ptr(), type_code(scale), eps, out.data_ptr())
        check(result, "rms_norm")
        return out

    return rms_norm


def add_rms_norm_kernel(library: Library) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """The kernel of `add_rms_norm`: the sum is stored, then normed."""
    norm = rms_norm_kernel(library)

    def add_rms_norm(
        x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, *, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        total = x + residual
        return norm(total, weight, eps=eps), total

    return add_rms_norm
