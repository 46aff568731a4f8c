"""The latent cache and attention over it, and what is read out of paged caches."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
from mindspore import ops as msops
from numpy.typing import NDArray

from xinheng.core import ops
from xinheng.core.ir.dtype import int32
from xinheng.core.ops.varlen import places

from ..handles import MindSporePagedKV, MindSporePagedLatent
from ..tensors import DTYPES, converted, to_tensor
from .attention import paged_attention, readable, write_cache
from .movement import zeros
from .registry import FLOATS, MINDSPORE_KERNELS, indexing, narrow, wide


@MINDSPORE_KERNELS.register(ops.write_latent_cache, name="mindspore_write_latent_cache", dtypes=FLOATS, when=readable)
def write_latent_cache(cache: MindSporePagedLatent, latent: Any, rope: Any, slots: Any) -> MindSporePagedLatent:
    write_cache(MindSporePagedKV(cache.latent, cache.rope, cache.kind), latent, rope, slots)
    return cache


@MINDSPORE_KERNELS.register(
    ops.mla_attention,
    name="mindspore_mla_attention",
    dtypes=FLOATS,
    when=readable,
    host=("query_start", "seq_lens", "block_table"),
)
def mla_attention(
    q_latent: Any,
    q_rope: Any,
    cache: MindSporePagedLatent,
    query_start: NDArray[Any],
    seq_lens: NDArray[Any],
    block_table: NDArray[Any],
    *,
    scale: float,
    causal: bool = True,
) -> tuple[Any, Any]:
    # only the blocks that this step reads are put side by side, as keys of one head that all query heads share
    blocks = cache.latent.shape[0]
    used, table = np.unique(np.clip(block_table, 0, max(blocks - 1, 0)), return_inverse=True)
    chosen = to_tensor(used, int32)
    if not used.size:
        latent, rope = zeros((0, *cache.latent.shape[1:]), cache.latent), zeros((0, *cache.rope.shape[1:]), cache.rope)
    else:
        latent, rope = msops.gather(cache.latent, chosen, 0), msops.gather(cache.rope, chosen, 0)
    keys = (
        msops.cat((latent, rope), -1)
        if used.size
        else zeros((0, latent.shape[1], latent.shape[2] + rope.shape[2]), latent)
    )
    pages = MindSporePagedKV(keys.expand_dims(2), latent.expand_dims(2), cache.kind)
    q = msops.cat((wide(q_latent), wide(q_rope)), -1)
    out, lse = paged_attention(
        q, pages, query_start, seq_lens, table.reshape(block_table.shape), scale=scale, causal=causal
    )
    return narrow(out, q_latent), lse


def _rows(pages: Any, slots: NDArray[Any], kind: Any) -> Any:
    """Rows of pages [blocks, block_size, ...] by slot in a dtype; zeros for -1."""
    flat = pages.reshape((-1, *pages.shape[2:]))
    if not slots.size:
        return converted(zeros((0, *flat.shape[1:]), flat), kind)
    there = ms.Tensor((slots >= 0).reshape(-1, *(1,) * (flat.ndim - 1)))
    rows = msops.gather(flat, to_tensor(np.maximum(slots, 0), int32), 0)
    return converted(msops.select(there, rows, msops.zeros_like(rows)), kind)


@MINDSPORE_KERNELS.register(
    ops.gather_kv_cache, name="mindspore_gather_kv_cache", when=readable, host=("seq_lens", "block_table")
)
def gather_kv_cache(cache: MindSporePagedKV, seq_lens: NDArray[Any], block_table: NDArray[Any]) -> tuple[Any, Any, Any]:
    starts, slots = places(cache.k.shape[:2], seq_lens, block_table)
    kind = DTYPES[cache.kind]
    return _rows(cache.k, slots, kind), _rows(cache.v, slots, kind), to_tensor(starts, int32)


@MINDSPORE_KERNELS.register(
    ops.gather_latent_cache, name="mindspore_gather_latent_cache", when=readable, host=("seq_lens", "block_table")
)
def gather_latent_cache(
    cache: MindSporePagedLatent, seq_lens: NDArray[Any], block_table: NDArray[Any]
) -> tuple[Any, Any, Any]:
    starts, slots = places(cache.latent.shape[:2], seq_lens, block_table)
    kind = DTYPES[cache.kind]
    return _rows(cache.latent, slots, kind), _rows(cache.rope, slots, kind), to_tensor(starts, int32)


@MINDSPORE_KERNELS.register(ops.copy_blocks, name="mindspore_copy_blocks", when=readable)
def copy_blocks(cache: MindSporePagedKV | MindSporePagedLatent, pairs: Any) -> MindSporePagedKV | MindSporePagedLatent:
    if not pairs.shape[0]:
        return cache
    pairs = indexing(pairs)
    source, target = pairs[:, 0], pairs[:, 1:]
    for pages in (cache.k, cache.v) if isinstance(cache, MindSporePagedKV) else (cache.latent, cache.rope):
        msops.scatter_nd_update(pages, target, msops.gather(pages, source, 0))
    return cache
