"""Doubles of the operators that write keys and values into a paged cache."""

from __future__ import annotations

import torch

from .rules import EVERY, FLOATS, FUSED, demand, demand_contiguous, demand_dtype, double

Tensor = torch.Tensor


@double("npu::npu_scatter_pa_kv_cache", FUSED)
def npu_scatter_pa_kv_cache(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    *,
    compress_lens: Tensor | None = None,
    compress_seq_offsets: Tensor | None = None,
    seq_lens: Tensor | None = None,
    cache_mode: str | None = "PA_NZ",
) -> None:
    name = "npu_scatter_pa_kv_cache"
    demand(name, compress_lens is compress_seq_offsets is seq_lens is None, "this double knows no compression")
    demand(name, cache_mode in (None, "Norm", "PA_NZ"), f"cache_mode {cache_mode!r} is neither Norm nor PA_NZ")
    _scatter(name, key, value, key_cache, value_cache, slot_mapping, (torch.int32, torch.int64), cache_mode == "PA_NZ")


@double("atb::_npu_reshape_and_cache", EVERY)
def _npu_reshape_and_cache(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_indices: Tensor
) -> None:
    name = "_npu_reshape_and_cache"
    demand(name, slot_indices.numel() > 0, "slot_indices is empty")
    tiled = key_cache.shape[-1] == 16 and key_cache.shape[-2:] != key.shape[-2:]
    _scatter(name, key, value, key_cache, value_cache, slot_indices, (torch.int32,), tiled)


def _scatter(
    name: str,
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slots: Tensor,
    kinds: tuple[torch.dtype, ...],
    tiled: bool,
) -> None:
    demand_dtype(name, "key", key, FLOATS)
    demand_dtype(name, "the slots", slots, kinds)
    demand_contiguous(name, key=key, value=value, key_cache=key_cache, value_cache=value_cache, slots=slots)
    same = len({x.dtype for x in (key, value, key_cache, value_cache)}) == 1
    demand(name, same, "key, value and both caches must have one dtype")
    demand(name, key.dim() == value.dim() == 3 and key.shape[:2] == value.shape[:2], "key and value must be [T, N, D]")
    demand(name, slots.dim() == 1 and slots.shape[0] == key.shape[0], "there must be one slot per token")
    size = key_cache.shape[2] if tiled else key_cache.shape[1]
    total = key_cache.shape[0] * size
    inside = slots.numel() == 0 or (int(slots.min()) >= 0 and int(slots.max()) < total)
    demand(name, inside, f"slots must lie in 0 to {total - 1}")
    index = slots.long()
    # what repeated slots hold afterwards is not defined
    _, which, times = torch.unique(index, return_inverse=True, return_counts=True)
    repeated = times[which] > 1
    for new, cache in ((key, key_cache), (value, value_cache)):
        demand(name, cache.dim() == 4, f"a cache has 4 axes, not {cache.dim()}")
        width = new.shape[1] * new.shape[2]
        expected = (width // 16, size, 16) if tiled else (size, *new.shape[1:])
        demand(
            name, tuple(cache.shape[1:]) == expected, f"the cache must be [blocks, {expected}], not {list(cache.shape)}"
        )
        rows = torch.where(repeated[:, None, None], torch.nan, new)
        if tiled:
            cache[index // size, :, index % size] = rows.reshape(-1, width // 16, 16)
        else:
            cache[index // size, index % size] = rows
