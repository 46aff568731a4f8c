"""`sdpa_varlen` by flash-attn (version 2.1 or newer, where the last query stands at the last key)."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from xinheng.core import ops
from xinheng.core.hal import KernelRegistry

from .conditions import HALVES, filled, heads_in

Tensor = torch.Tensor


def register_flash_attn(registry: KernelRegistry) -> None:
    """Enter the kernel; the package is imported now.

    Its call for paged caches wants blocks of a multiple of 256, which nothing else here likes, so it is not used.
    """
    attend: Any = import_module("flash_attn").flash_attn_varlen_func

    @registry.register(
        ops.sdpa_varlen,
        name="flash_attn_varlen",
        dtypes=HALVES,
        when=heads_in(range(8, 257, 8), "flash-attn"),
        host=("query_start", "key_start"),
        priority=10,
    )
    def sdpa_varlen(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        query_start: NDArray[Any],
        key_start: NDArray[Any],
        *,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        causal: bool = True,
    ) -> tuple[Tensor, Tensor]:
        starts, keys = (np.asarray(x, np.int32) for x in (query_start, key_start))
        used, read = int(starts[-1]), int(keys[-1])
        if not used:
            empty = torch.empty(0, q.shape[1], device=q.device)
            return filled(q.new_empty(0, q.shape[1], v.shape[2]), empty, q.shape[0])
        left = -1 if window is None else window - 1
        out, lse, _ = attend(
            q[:used].contiguous(),
            k[:read].contiguous(),
            v[:read].contiguous(),
            torch.from_numpy(starts).to(q.device),
            torch.from_numpy(keys).to(q.device),
            int(np.diff(starts).max()),
            int(np.diff(keys).max()),
            softmax_scale=scale,
            causal=causal,
            window_size=(left, 0 if causal else -1),
            softcap=softcap or 0.0,
            return_attn_probs=True,
        )
        # it gives +inf for rows without a key
        sums = torch.where(lse == torch.inf, -torch.inf, lse).transpose(0, 1)
        return filled(out, sums, q.shape[0])
