"""`paged_attention` by FlashInfer, which plans a step once for all layers."""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from xinheng.core import ops
from xinheng.core.hal import KernelRegistry

from ..._torch.handles import TorchPagedKV
from .conditions import HALVES, filled, heads_in

Tensor = torch.Tensor

WORKSPACE = 128 << 20
"""Bytes that its documentation recommends for the sums of parts."""
WIDTHS = (64, 128, 256)


class PagedPlan:
    """The plan of one step: kept while layers come with the same lists, of which it holds on to the last ones."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._wrapper: Any = None
        self._lists: tuple[Any, ...] = ()
        self._how: tuple[Any, ...] = ()

    def run(self, q: Tensor, cache: TorchPagedKV, lists: tuple[Any, ...], how: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Outputs [tokens, heads, width] and log-sum-exps to the base e [tokens, heads]."""
        same = len(lists) == len(self._lists) and all(a is b for a, b in zip(lists, self._lists, strict=True))
        kind = (q.shape, q.dtype, cache.k.shape[1:], *how.items())
        if not same or kind != self._how:
            self._plan(q, cache, lists, how)
            self._lists, self._how = lists, kind
        out, lse = self._wrapper.run(q, (cache.k, cache.v), return_lse=True)
        return out, lse * math.log(2)  # its logarithms are to the base 2

    def _plan(
        self,
        q: Tensor,
        cache: TorchPagedKV,
        lists: tuple[Any, ...],
        how: dict[str, Any],
    ) -> None:
        query_start, seq_lens, table = lists
        if self._wrapper is None:
            room = torch.zeros(WORKSPACE, dtype=torch.uint8, device=q.device)
            self._wrapper = self._library.BatchPrefillWithPagedKVCacheWrapper(room, "NHD")
        size, lengths = cache.k.shape[1], np.asarray(seq_lens, np.int32)
        blocks = -(-lengths // size)
        starts = np.concatenate([[0], np.cumsum(blocks)]).astype(np.int32)
        owner = np.repeat(np.arange(len(blocks)), blocks)
        place = np.arange(len(owner)) - starts[owner]
        held = table[torch.from_numpy(owner).to(q.device), torch.from_numpy(place).to(q.device)].to(torch.int32)
        # blocks that no query sees may be anything, and it may read them
        indices = torch.where((held >= 0) & (held < cache.k.shape[0]), held, 0)
        self._wrapper.plan(
            torch.from_numpy(np.asarray(query_start, np.int32)),
            torch.from_numpy(starts),
            indices,
            torch.from_numpy((lengths - np.maximum(blocks - 1, 0) * size).astype(np.int32)),
            q.shape[1],
            cache.k.shape[2],
            q.shape[2],
            size,
            causal=how["causal"],
            sm_scale=how["scale"],
            window_left=-1 if how["window"] is None else how["window"] - 1,
            logits_soft_cap=how["softcap"] or 0.0,
            q_data_type=q.dtype,
            kv_data_type=cache.k.dtype,
        )


def register_flashinfer(registry: KernelRegistry) -> None:
    """Enter the kernel; the package is imported now."""
    plan = PagedPlan(import_module("flashinfer"))

    @registry.register(
        ops.paged_attention,
        name="flashinfer_paged_attention",
        dtypes=HALVES,
        when=heads_in(WIDTHS, "FlashInfer"),
        host=("query_start", "seq_lens"),
        priority=10,
    )
    def paged_attention(
        q: Tensor,
        cache: TorchPagedKV,
        query_start: NDArray[Any],
        seq_lens: NDArray[Any],
        block_table: Tensor,
        *,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        causal: bool = True,
    ) -> tuple[Tensor, Tensor]:
        used = int(query_start[-1])
        if not used:
            empty = torch.empty(0, q.shape[1], device=q.device)
            return filled(q.new_empty(0, q.shape[1], cache.v.shape[-1]), empty, q.shape[0])
        how = {"scale": scale, "window": window, "softcap": softcap, "causal": causal}
        found = plan.run(q[:used].contiguous(), cache, (query_start, seq_lens, block_table), how)
        return filled(*found, q.shape[0])
