"""The latent cache, attention over it, and the per-head products around it."""

from __future__ import annotations

from typing import Any

import torch

from xinheng.core import ops

from ..handles import TorchPagedKV, TorchPagedLatent, TorchWeight
from .attention import gather_slots, paged_attention, places, readable, write_cache
from .elementwise import wide
from .registry import FLOATS, TORCH_KERNELS

Tensor = torch.Tensor


@TORCH_KERNELS.register(ops.batched_linear, name="torch_batched_linear", dtypes=FLOATS)
def batched_linear(x: Tensor, weight: TorchWeight, *, transposed: bool = False) -> Tensor:
    per_head, values = wide(x).transpose(0, 1), weight.values(wide(x).dtype)
    return torch.bmm(per_head, values if transposed else values.transpose(1, 2)).transpose(0, 1).to(x.dtype)


@TORCH_KERNELS.register(ops.write_latent_cache, name="torch_write_latent_cache", dtypes=FLOATS, when=readable)
def write_latent_cache(cache: TorchPagedLatent, latent: Tensor, rope: Tensor, slots: Tensor) -> TorchPagedLatent:
    write_cache(TorchPagedKV(cache.latent, cache.rope), latent, rope, slots)
    return cache


@TORCH_KERNELS.register(ops.gather_latent_cache, name="torch_gather_latent_cache")
def gather_latent_cache(
    cache: TorchPagedLatent, seq_lens: Tensor, block_table: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    starts, slots = places(cache.latent.shape[:2], seq_lens, block_table)
    return gather_slots(cache.latent, slots), gather_slots(cache.rope, slots), starts


@TORCH_KERNELS.register(
    ops.mla_attention, name="torch_mla_attention", dtypes=FLOATS, when=readable, host=("query_start", "seq_lens")
)
def mla_attention(
    q_latent: Tensor,
    q_rope: Tensor,
    cache: TorchPagedLatent,
    query_start: Any,
    seq_lens: Any,
    block_table: Tensor,
    *,
    scale: float,
    causal: bool = True,
) -> tuple[Tensor, Tensor]:
    # only the blocks that this step reads are put side by side, as keys of one head that all query heads share
    inside = block_table.clamp(0, cache.latent.shape[0] - 1)
    used, table = torch.unique(inside, return_inverse=True)
    latent = cache.latent[used.long()]
    keys = torch.cat((latent, cache.rope[used.long()]), dim=-1)
    pages = TorchPagedKV(keys[:, :, None], latent[:, :, None])
    q = torch.cat((q_latent, q_rope), dim=-1)
    return paged_attention(q, pages, query_start, seq_lens, table, scale=scale, causal=causal)
