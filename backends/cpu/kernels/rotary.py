"""Native rotary_embedding, half-split and interleaved, of all or the first elements of each head."""

from __future__ import annotations

from collections.abc import Callable

import torch

from xinheng.core.errors import DeviceError

from .library import Library, check, rows_of, type_code


def rotary_kernel(library: Library) -> Callable[..., torch.Tensor]:
    """The kernel of `rotary_embedding`."""
    run = library.rotary

    def rotary_embedding(
        x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, interleaved: bool = False
    ) -> torch.Tensor:
        kind, half = type_code(x), cos.shape[1]
        if x.stride(2) != 1:
            x = x.contiguous()
        fits = cos.shape == sin.shape and cos.shape[0] == x.shape[0] and 2 * half <= x.shape[2]
        if not fits or cos.dtype is not torch.float32 or sin.dtype is not torch.float32:
            raise DeviceError(f"rotary_embedding: tables {list(cos.shape)} of {cos.dtype} do not fit x {list(x.shape)}")
        cos, sin = cos.contiguous(), sin.contiguous()
        flat, rows = rows_of(x)
        out = torch.empty(x.shape, dtype=x.dtype)
        result = run(
            flat.data_ptr(),
            kind,
            *rows,
            x.shape[2],
            cos.data_ptr(),
            sin.data_ptr(),
            half,
            interleaved,
            out.data_ptr(),
        )
        check(result, "rotary_embedding")
        return out

    return rotary_embedding
