"""Writing keys and values into a paged cache."""

from __future__ import annotations

import torch

from xinheng.core import ops
from xinheng.core.hal import KernelRegistry
from xinheng.core.ir.graph import Node

from ...._torch.handles import NAMES
from ...._torch.kernels.elementwise import cast
from ...._torch.kernels.registry import cache_type
from ..handles import NPUPagedKV, NPUPagedLatent
from .conditions import FLOATS, filled

Tensor = torch.Tensor


def register_cache(kernels: KernelRegistry) -> None:
    """Enter the kernels of generations with `npu_scatter_pa_kv_cache`."""

    @kernels.register(ops.write_cache, name="npu_scatter_pa_kv_cache", dtypes=FLOATS, when=_writable)
    def write_cache(cache: NPUPagedKV, k: Tensor, v: Tensor, slots: Tensor) -> NPUPagedKV:
        _scatter(k, v, *cache.whole, slots)
        return cache

    @kernels.register(ops.write_latent_cache, name="npu_scatter_pa_kv_cache", dtypes=FLOATS, when=_writable)
    def write_latent_cache(cache: NPUPagedLatent, latent: Tensor, rope: Tensor, slots: Tensor) -> NPUPagedLatent:
        latents, turned = (memory[:, :, None] for memory in cache.whole)
        _scatter(latent[:, None], rope[:, None], latents, turned, slots)
        return cache


def _scatter(k: Tensor, v: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> None:
    rows = (cast(x, dtype=NAMES[keys.dtype]).contiguous() for x in (k, v))
    torch.ops.npu.npu_scatter_pa_kv_cache(*rows, keys, values, placed(slots, keys), cache_mode="Norm")


def placed(slots: Tensor, memory: Tensor, size: int | None = None) -> Tensor:
    """Slots with those of -1 moved into the spare last block of memory, to different places as far as it has any."""
    size = memory.shape[1] if size is None else size
    spare = torch.arange(slots.shape[0], dtype=torch.int32, device=slots.device) % size + (memory.shape[0] - 1) * size
    return torch.where(slots < 0, spare, slots.to(torch.int32))


def _writable(node: Node) -> bool | str:
    coding = cache_type(node)["scheme"]
    if coding not in {kind.name for kind in FLOATS}:
        return f"writes no cache of {coding}"
    return filled(*node.operands) or "does not take empty tensors"
