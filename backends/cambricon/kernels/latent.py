"""Attention over cached latents (MLA in absorbed form) by the decode function, whose values may be part of its keys.

Without a cache of values those are the first `head_size_v` numbers of each key (torch_mlu_ops 1.12). Releases without
this parameter keep plain torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from xinheng.core import ops
from xinheng.core.hal import KernelRegistry
from xinheng.core.ir.graph import Node

from ..._torch.kernels.attention import nothing
from ..._torch.kernels.registry import cache_type
from ..._torch.planner import Planner
from ..handles import JointLatent, joint
from .attention import HALVES, batch_of, by_token, stored, whole

if TYPE_CHECKING:
    from ..device import CambriconDevice

Tensor = torch.Tensor


def register(kernels: KernelRegistry, device: CambriconDevice) -> None:
    """Enter these kernels for a release whose decode function reads values out of keys."""
    if not device.joint_latents:
        return
    kernels.register(ops.mla_attention, name="tmo_latent_attention", dtypes=HALVES, when=_takes)(
        Planner(lambda node: LatentAttention(device, device.reads(node.results[1])))
    )
    if "reshape_paged_cache" in device.functions:
        kernels.register(ops.write_latent_cache, name="tmo_reshape_paged_cache", dtypes=HALVES, when=_writable)(
            Planner(lambda _: _written(device))
        )


def _writable(node: Node) -> bool | str:
    latent, rope = node.operand("latent"), node.operand("rope")
    assert latent is not None and rope is not None
    if latent.dtype != rope.dtype:
        return f"latent is {latent.dtype}, rope is {rope.dtype}"
    return stored(node, "latent") if joint(cache_type(node)) else "writes latents and rotary keys that lie side by side"


def _written(device: CambriconDevice) -> Callable[..., JointLatent]:
    store, place = device.functions["reshape_paged_cache"], device.step.place()

    def write_latent_cache(cache: JointLatent, latent: Tensor, rope: Tensor, slots: Tensor) -> JointLatent:
        step = place.enter()
        if latent.shape[0]:
            store(torch.cat((latent, rope), -1)[:, None], None, cache.whole[:, None], None, whole(step, slots))
        return cache

    return write_latent_cache


def _takes(node: Node) -> bool | str:
    cache = cache_type(node)
    if not joint(cache):
        return f"reads no latents of {cache['dim']} and rotary keys of {cache['rope_dim']} in {cache['scheme']}"
    if not isinstance(node.results[0].shape[1], int):
        return "the number of heads is not known"
    return stored(node, "q_latent")


class LatentAttention:
    """The attention of one node; each row is a sequence of its own, so that prompts need no other function."""

    def __init__(self, device: CambriconDevice, wants_lse: bool) -> None:
        self._decode = device.functions["single_query_cached_kv_attn"]
        self._place, self._wants_lse = device.step.place(), wants_lse

    def __call__(
        self,
        q_latent: Tensor,
        q_rope: Tensor,
        cache: JointLatent,
        query_start: Tensor,
        seq_lens: Tensor,
        block_table: Tensor,
        *,
        scale: float,
        causal: bool = True,
    ) -> tuple[Tensor, Tensor | None]:
        step, (tokens, heads, width) = self._place.enter(), q_latent.shape
        if tokens == 0 or seq_lens.shape[0] == 0:
            return nothing(q_latent, width)
        blocks, size = cache.whole.shape[:2]
        batch = batch_of(step, tokens, query_start, seq_lens, block_table, blocks, causal)
        rows, out = batch.rows(step), q_latent.new_empty((tokens, heads, width))
        q, keys = torch.cat((q_latent, q_rope), -1), cache.whole[:, None]
        lse = by_token(
            self._decode, q, keys, None, out, rows, batch.visible, rows.shape[1] * size, -1, scale, head_size_v=width
        )
        return batch.seen(out, lse if self._wants_lse else None)
