"""A backend written before ops had what they have now; it must keep working without a change.

When it was written, `linear` had no bias, `rotary_embedding` no interleaved pairs, `paged_attention` no sinks, no bias,
no window and no softcap, and `Device` only its abstract methods.
"""

from typing import Any

import numpy as np

from xinheng.core import Backend, Capabilities, Device, DeviceInfo, KernelRegistry, MemoryStats, ops
from xinheng.core.ir.dtype import DTYPES, dtype

KERNELS = KernelRegistry()


@KERNELS.register(ops.linear, name="veteran_linear")
def linear(x: Any, weight: Any) -> Any:
    return x @ weight.T


@KERNELS.register(ops.rotary_embedding, name="veteran_rotary_embedding")
def rotary_embedding(x: Any, cos: Any, sin: Any) -> Any:
    half = cos.shape[-1]
    cos, sin = cos[:, None, :], sin[:, None, :]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=-1)


@KERNELS.register(ops.write_cache, name="veteran_write_cache")
def write_cache(cache: Any, k: Any, v: Any, slots: Any) -> Any:
    for pages, new in zip(cache, (k, v), strict=True):
        flat = pages.reshape(-1, *pages.shape[2:])
        flat[slots[slots >= 0]] = new[slots >= 0]
    return cache


@KERNELS.register(ops.paged_attention, name="veteran_paged_attention")
def paged_attention(q: Any, cache: Any, query_start: Any, seq_lens: Any, block_table: Any, *, scale: Any) -> Any:
    keys, values = (pages.reshape(-1, *pages.shape[2:]) for pages in cache)
    size, groups = cache[0].shape[1], q.shape[1] // keys.shape[1]
    out = np.zeros((*q.shape[:2], values.shape[-1]), np.float32)
    lse = np.full(q.shape[:2], -np.inf, np.float32)
    for s, length in enumerate(seq_lens):
        start, stop = query_start[s : s + 2]
        places = np.arange(length)
        rows = block_table[s, places // size] * size + places % size
        k, v = (np.repeat(pages[rows], groups, axis=1) for pages in (keys, values))
        logits = np.einsum("thd,nhd->thn", q[start:stop], k) * np.float32(scale)
        seen = places <= np.arange(length - (stop - start), length)[:, None]
        logits = np.where(seen[:, None, :], logits, -np.inf)
        top = logits.max(axis=-1, keepdims=True)
        weights = np.exp(logits - top)
        total = weights.sum(axis=-1, keepdims=True)
        out[start:stop] = np.einsum("thn,nhd->thd", weights / total, v)
        lse[start:stop] = (np.log(total) + top)[..., 0]
    return out, lse


class VeteranBackend(Backend):
    name = "veteran"
    api_version = (1, 0)

    def probe(self) -> list[DeviceInfo]:
        return [DeviceInfo("veteran:0", "an old card")]

    def open(self, spec: Any, options: Any = None) -> Device:
        return VeteranDevice()


class VeteranDevice(Device):
    spec, name, kernels = "veteran:0", "an old card", KERNELS
    capabilities = Capabilities(frozenset(DTYPES.values()))

    def upload(self, array: Any, dtype: Any) -> Any:
        return np.array(array, dtype.numpy)

    def download(self, buffer: Any) -> Any:
        return np.asarray(buffer)

    def prepare(self, source: Any, uses: Any) -> Any:
        return source.unpack(np.float32)

    def allocate_state(self, type: Any, space: Any) -> Any:
        lead = (space.blocks, space.block_size, type["heads"])
        return tuple(np.zeros((*lead, type[width]), dtype(type["scheme"]).numpy) for width in ("k_dim", "v_dim"))

    def shape(self, buffer: Any) -> Any:
        return np.shape(buffer)

    def memory(self) -> MemoryStats:
        return MemoryStats(2**30, 2**30)
