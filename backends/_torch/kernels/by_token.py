"""Attention in torch, one query after another: sums do not depend on how many tokens of a prompt come in one step.

Torch multiplies all queries of a sequence by all keys at once, in an order that follows their numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from xinheng.core import ops
from xinheng.core.hal import KernelRegistry

from .attention import paged_attention, readable
from .latent import mla_attention
from .registry import FLOATS

Tensor = torch.Tensor


def apart(query_start: Any, seq_lens: Any, block_table: Tensor) -> tuple[NDArray[np.int32], NDArray[np.int32], Tensor]:
    """Sequences of one token each that stand for those given: `query_start`, `seq_lens` and the block table."""
    start, lengths = np.asarray(query_start), np.asarray(seq_lens)
    counts = np.diff(start)
    owner = np.repeat(np.arange(len(counts)), counts)
    tokens = np.arange(start[0], start[0] + len(owner))
    seen = lengths[owner] - (start[owner + 1] - 1 - tokens)
    ends = np.arange(start[0], start[0] + len(owner) + 1, dtype=np.int32)
    return ends, np.maximum(seen, 0).astype(np.int32), block_table[torch.from_numpy(owner)]


def register_by_token(registry: KernelRegistry) -> None:
    """Register the kernels; those that are not causal see all keys anyway, and stay as they are."""
    host = ("query_start", "seq_lens")

    @registry.register(
        ops.paged_attention, name="torch_paged_attention_by_token", dtypes=FLOATS, when=readable, host=host
    )
    def by_token(
        q: Tensor,
        cache: Any,
        query_start: Any,
        seq_lens: Any,
        block_table: Tensor,
        sinks: Tensor | None = None,
        bias: Tensor | None = None,
        *,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
    ) -> tuple[Tensor, Tensor]:
        given = apart(query_start, seq_lens, block_table)
        return paged_attention(q, cache, *given, sinks, bias, scale=scale, window=window, softcap=softcap)

    @registry.register(ops.mla_attention, name="torch_mla_attention_by_token", dtypes=FLOATS, when=readable, host=host)
    def latent_by_token(
        q_latent: Tensor,
        q_rope: Tensor,
        cache: Any,
        query_start: Any,
        seq_lens: Any,
        block_table: Tensor,
        *,
        scale: float,
    ) -> tuple[Tensor, Tensor]:
        return mla_attention(q_latent, q_rope, cache, *apart(query_start, seq_lens, block_table), scale=scale)
