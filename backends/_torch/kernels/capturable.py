"""The paged cache without a look at the host: sizes follow from shapes, and lists come from tensors that are renewed.

For devices with a queue of their own. Writing waits for nothing there; attention does so only while a step is captured,
and is sequence by sequence otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from xinheng.core import ops
from xinheng.core.errors import DeviceError
from xinheng.core.hal import Kernel, KernelRegistry
from xinheng.core.ir.graph import Node

from ..handles import NAMES, TorchPagedKV
from ..planner import Planner
from .attention import readable, rows_of, values_of, weighed, working
from .elementwise import cast, wide
from .registry import FLOATS

if TYPE_CHECKING:
    from ..accelerator import AcceleratorDevice

Tensor = torch.Tensor
GATHERED = 1 << 25
"""Numbers of keys, and as many of values, that are put side by side at once."""


def register_capturable(registry: KernelRegistry, device: AcceleratorDevice, captures: bool) -> None:
    """Register the kernels in front of those of the parent, under their names; attention only where `captures`."""
    registry.register(ops.write_cache, name="torch_write_cache", dtypes=FLOATS, when=readable)(write_cache)
    parent = registry.parent
    if not captures or parent is None:
        return
    for kernel in parent.candidates(ops.paged_attention.name):
        registry.register(
            ops.paged_attention,
            name=kernel.name,
            dtypes=kernel.dtypes,
            when=_condition(kernel),
            host=sorted(kernel.host),
        )(Planner(partial(_planned, device, kernel)))


def _condition(kernel: Kernel) -> Callable[[Node], bool | str]:
    """The condition of a kernel, with that on attributes it does not know."""

    def when(node: Node) -> bool | str:
        for attribute in node.op.attributes:
            if attribute.name not in kernel.parameters and node.attributes[attribute.name] != attribute.default:
                return f"does not know attribute {attribute.name!r}"
        return True if kernel.when is None else kernel.when(node)

    return when


def write_cache(cache: TorchPagedKV, k: Tensor, v: Tensor, slots: Tensor) -> TorchPagedKV:
    """As in `attention`, with a result whose size no number on the device decides."""
    if slots.numel() == 0:
        return cache
    there = slots >= 0
    # a row without a slot repeats one that has a slot; if none has, all write what is there
    rows = torch.arange(slots.numel(), device=slots.device)
    source = torch.where(there, rows, there.int().argmax())
    index = slots[source].long().clamp(min=0)
    for pages, new in zip(cache.parts, rows_of(cache, k, v), strict=True):
        at = index // pages.shape[1], index % pages.shape[1]
        pages[at] = torch.where(there.any(), cast(new, dtype=NAMES[pages.dtype])[source], pages[at])
    return cache


def _planned(device: AcceleratorDevice, kernel: Kernel, node: Node) -> PlannedAttention:
    return PlannedAttention(device, kernel)


class PlannedAttention:
    """Attention of one node by a kernel of plain torch; in a captured step by `decode_attention`."""

    def __init__(self, device: AcceleratorDevice, kernel: Kernel) -> None:
        self._device, self._plain = device, kernel.function
        self._forgotten = {a.name for a in ops.paged_attention.attributes} - kernel.parameters

    def __call__(
        self,
        q: Tensor,
        cache: TorchPagedKV,
        query_start: Any,
        seq_lens: Any,
        block_table: Tensor,
        sinks: Tensor | None = None,
        bias: Tensor | None = None,
        **attributes: Any,
    ) -> tuple[Tensor, Tensor]:
        record = self._device.record
        if record is None:
            for name in self._forgotten:
                attributes.pop(name)
            found: tuple[Tensor, Tensor] = self._plain(
                q, cache, query_start, seq_lens, block_table, sinks, bias, **attributes
            )
            return found
        if bias is not None or q.shape[0] != block_table.shape[0]:
            what = "with a bias" if bias is not None else "of several queries per sequence"
            raise DeviceError(f"attention {what} runs sequence by sequence in plain torch, which cannot be captured")
        lists: Lists = record.notes[id(self)]
        return decode_attention(q, cache, lists.query_start, lists.seq_lens, block_table, sinks, **attributes)

    def update(self, host: Mapping[str, NDArray[Any]]) -> None:
        """Bring the lists of this run to where the graph that is captured, or is about to be replayed, reads them."""
        record = self._device.record
        assert record is not None
        if id(self) not in record.notes:
            same = (x for x in record.notes.values() if isinstance(x, Lists) and x.holds(host))
            record.notes[id(self)] = next(same, None) or Lists(self._device, host)
        record.notes[id(self)].renew(host, record.lists)


class Lists:
    """`query_start` and `seq_lens` as int32 tensors that stay; kernels of one graph that read the same share them."""

    def __init__(self, device: AcceleratorDevice, host: Mapping[str, NDArray[Any]]) -> None:
        self._given = dict(host)
        self._step: Any = None
        self.query_start, self.seq_lens = (
            torch.zeros(host[name].shape, dtype=torch.int32, device=device.device)
            for name in ("query_start", "seq_lens")
        )

    def holds(self, host: Mapping[str, NDArray[Any]]) -> bool:
        """Whether it was last filled with these very arrays."""
        return all(self._given[name] is array for name, array in host.items())

    def renew(self, host: Mapping[str, NDArray[Any]], step: Mapping[str, NDArray[Any]]) -> None:
        """Fill the tensors, once per step."""
        if self._step is step:
            return
        self._given, self._step = dict(host), step
        for tensor, name in ((self.query_start, "query_start"), (self.seq_lens, "seq_lens")):
            tensor.copy_(torch.from_numpy(np.ascontiguousarray(host[name], np.int32)))


def decode_attention(
    q: Tensor,
    cache: TorchPagedKV,
    query_start: Tensor,
    seq_lens: Tensor,
    block_table: Tensor,
    sinks: Tensor | None = None,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    causal: bool = True,
) -> tuple[Tensor, Tensor]:
    """Attention of each row of q [rows, heads, k_dim] by itself, over all keys that a row of the block table can name.

    `query_start` and `seq_lens` are tensors of the device, so that neither a shape nor a loop depends on what is in
    them. Rows behind the last sequence get 0 and -inf, as those that see no key.
    """
    row, ends = torch.arange(q.shape[0], device=q.device), query_start[1:].long()
    owner = (row[:, None] >= ends).sum(1).clamp(max=ends.numel() - 1)
    length = torch.where(row < ends[-1], seq_lens.long()[owner], 0)
    position = length - (ends[owner] - row)
    blocks = block_table[owner].long().clamp(0, cache.k.shape[0] - 1)
    keys = torch.arange(blocks.shape[1] * cache.k.shape[1], device=q.device)
    visible = (keys < length[:, None]) & (position >= 0)[:, None]
    if causal:
        visible = visible & (keys <= position[:, None])
    if window:
        visible = visible & (position[:, None] - keys < window)
    per_row = keys.numel() * cache.k.shape[2] * max(cache.k.shape[3], cache.v.shape[3])
    step = max(1, GATHERED // max(1, per_row))
    made = [
        _attend(q[at], values_of(cache, blocks[at]), visible[at], sinks, scale, softcap)
        for at in (slice(start, start + step) for start in range(0, q.shape[0], step))
    ]
    return torch.cat([out for out, _ in made]), torch.cat([lse for _, lse in made])


def _attend(
    q: Tensor, pages: tuple[Tensor, Tensor], visible: Tensor, sinks: Tensor | None, scale: float, softcap: float | None
) -> tuple[Tensor, Tensor]:
    """Rows q [rows, heads, k_dim] over pages [rows, blocks, size, kv_heads, dim] of their own, where `visible`."""
    kind = working(q, pages[0])
    k, v = (x.flatten(1, 2).to(kind).transpose(1, 2) for x in pages)
    v = torch.where(visible[:, None, :, None], v, 0.0)  # 0 times what an unused page holds may be NaN
    rows, heads = q.shape[0], k.shape[1]
    logits = q.to(kind).reshape(rows, heads, -1, q.shape[2]) @ k.transpose(2, 3) * scale
    if softcap:
        logits = torch.tanh(logits / softcap) * softcap
    sink = None if sinks is None else wide(sinks).to(kind).reshape(1, heads, -1, 1).expand(rows, -1, -1, 1)
    out, lse = weighed(logits, v, visible[:, None, None], sink)
    return out.reshape(rows, -1, v.shape[3]).to(q.dtype), lse.reshape(rows, -1).float()
