"""The paged cache and attention over it: one function for decode, another for prompts, both without host lists."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from xinheng.core import ops
from xinheng.core.hal import KernelRegistry
from xinheng.core.ir.dtype import bfloat16, float16, float32
from xinheng.core.ir.graph import Node

from ..._torch.handles import TorchPagedKV
from ..._torch.kernels.attention import nothing
from ..._torch.kernels.registry import cache_type
from ..._torch.planner import Planner
from ..chips import GROUP, GROUP_BF16, HEADS
from ..step import Step

if TYPE_CHECKING:
    from ..device import CambriconDevice

Tensor = torch.Tensor
HALVES = frozenset({float16, bfloat16})


def register(kernels: KernelRegistry, device: CambriconDevice) -> None:
    """Enter these kernels for the functions that are there."""
    if "reshape_paged_cache" in device.functions:
        _write(kernels, device)
    if "flash_attention" in device.functions and "single_query_cached_kv_attn" in device.functions:
        kernels.register(ops.paged_attention, name="tmo_attention", dtypes=HALVES, when=_takes)(
            Planner(lambda node: PagedAttention(device, device.reads(node.results[1])))
        )


def stored(node: Node, name: str) -> bool | str:
    """Whether an operand has the dtype of the cache."""
    x, scheme = node.operand(name), cache_type(node)["scheme"]
    assert x is not None
    return scheme == x.dtype.name or f"{name} is {x.dtype}, the cache {scheme}"


def _writable(node: Node) -> bool | str:
    k, v, cache = node.operand("k"), node.operand("v"), cache_type(node)
    assert k is not None and v is not None
    if k.dtype != v.dtype:
        return f"k is {k.dtype}, v is {v.dtype}"
    if cache["k_dim"] != cache["v_dim"]:
        return f"writes keys and values of one width, not {cache['k_dim']} and {cache['v_dim']}"
    return stored(node, "k")


def _write(kernels: KernelRegistry, device: CambriconDevice) -> None:
    store = device.functions["reshape_paged_cache"]

    def planned(_: Node) -> Callable[..., TorchPagedKV]:
        place = device.step.place()

        def write_cache(cache: TorchPagedKV, k: Tensor, v: Tensor, slots: Tensor) -> TorchPagedKV:
            step = place.enter()
            if k.shape[0]:
                store(k.contiguous(), v.contiguous(), *pages(cache), whole(step, slots))
            return cache

        return write_cache

    kernels.register(ops.write_cache, name="tmo_reshape_paged_cache", dtypes=[float32, *HALVES], when=_writable)(
        Planner(planned)
    )


def whole(step: Step, numbers: Tensor) -> Tensor:
    """Integers as contiguous int32."""
    return step.get(("int32",), (numbers,), lambda: numbers.to(torch.int32).contiguous())


def pages(cache: TorchPagedKV) -> tuple[Tensor, Tensor]:
    """Keys and values as they lie in memory: [blocks, heads, block, width]."""
    return cache.k.transpose(1, 2), cache.v.transpose(1, 2)


def _takes(node: Node) -> bool | str:
    q, cache = node.operand("q"), cache_type(node)
    assert q is not None
    width = cache["k_dim"]
    for name, given in (("bias", node.operand("bias")), ("softcap", node.attributes["softcap"])):
        if given is not None:
            return f"takes no {name}"
    if width not in HEADS or width != cache["v_dim"]:
        return f"heads of {width} and {cache['v_dim']} are not of one size among {', '.join(map(str, sorted(HEADS)))}"
    if node.attributes["window"] and not node.attributes["causal"]:
        return "windows are those of causal attention"
    if not isinstance(q.shape[1], int):
        return "the number of heads is not known"
    return stored(node, "q")


class PagedAttention:
    """The attention of one node; `wants_lse` says whether anything reads its log-sum-exps."""

    def __init__(self, device: CambriconDevice, wants_lse: bool) -> None:
        self._flash = device.functions["flash_attention"]
        self._decode = device.functions["single_query_cached_kv_attn"]
        self._place, self._wants_lse = device.step.place(), wants_lse

    def __call__(
        self,
        q: Tensor,
        cache: TorchPagedKV,
        query_start: Tensor,
        seq_lens: Tensor,
        block_table: Tensor,
        sinks: Tensor | None = None,
        bias: Tensor | None = None,
        *,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        causal: bool = True,
    ) -> tuple[Tensor, Tensor | None]:
        step, tokens = self._place.enter(), q.shape[0]
        if tokens == 0 or seq_lens.shape[0] == 0:
            return nothing(q, cache.v.shape[-1])
        batch = batch_of(step, tokens, query_start, seq_lens, block_table, cache.k.shape[0], causal)
        left, block = window - 1 if window else -1, cache.k.shape[1]
        out = torch.empty((tokens, q.shape[1], cache.v.shape[-1]), dtype=q.dtype, device=q.device)
        if tokens == seq_lens.shape[0]:
            rows = batch.rows(step)
            lse = by_token(self._decode, q, *pages(cache), out, rows, batch.visible, rows.shape[1] * block, left, scale)
        else:
            table = batch.table
            _, lse = self._flash(
                q.contiguous(), *pages(cache), out, batch.starts, batch.ends(step), None, None, tokens,
                table.shape[1] * block, scale, causal, left, -1, torch.float32, True, table,
            )  # fmt: skip
            lse = lse.transpose(0, 1)
        if sinks is not None:
            out, lse = _with_sinks(out, lse, sinks)
        return batch.seen(out, lse if self._wants_lse else None)


def _with_sinks(out: Tensor, lse: Tensor, sinks: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs and log-sum-exps [tokens, heads] with one more logit per head in the denominator.

    Newer releases take sinks themselves. What their log-sum-exp then is, they do not say.
    """
    ahead = lse - sinks.float()
    return (out * torch.sigmoid(ahead)[..., None]).to(out.dtype), lse + F.softplus(-ahead)


@dataclass(frozen=True)
class Batch:
    """The sequences of a step on the device, all int32.

    Attributes:
        starts: the first row of each sequence, and the end of the last one, [seqs + 1].
        lens: keys of each sequence, [seqs].
        table: blocks of each sequence [seqs, blocks]; entries that name no block, which nobody reads, name some.
        owner: the sequence of each row, [tokens]; the number of sequences for rows that belong to none.
        visible: how many leading keys of its sequence each row may see, [tokens]; 0 for rows of no sequence.
    """

    starts: Tensor
    lens: Tensor
    table: Tensor
    owner: Tensor
    visible: Tensor
    some: Tensor

    def rows(self, step: Step) -> Tensor:
        """The blocks of the sequence of each row, [tokens, blocks]."""
        last = self.table.shape[0] - 1
        return step.get(("rows",), (self.table,), lambda: self.table[self.owner.clamp(max=last)].contiguous())

    def ends(self, step: Step) -> Tensor:
        """Running sums of keys from 0, [seqs + 1]."""

        def make() -> Tensor:
            return torch.cat((self.lens.new_zeros(1), self.lens.cumsum(0, dtype=torch.int32)))

        return step.get(("ends",), (self.lens,), make)

    def seen(self, out: Tensor, lse: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Results with 0 and -inf in rows that see no key."""
        kept = torch.where(self.some[..., None], out, 0.0)
        return kept, None if lse is None else torch.where(self.some, lse, -torch.inf)


def batch_of(
    step: Step, tokens: int, query_start: Tensor, seq_lens: Tensor, block_table: Tensor, blocks: int, causal: bool
) -> Batch:
    """The batch of a step, which all of its attention shares."""

    def make() -> Batch:
        starts, lens = whole(step, query_start), whole(step, seq_lens)
        table = block_table.to(torch.int32).clamp(0, blocks - 1).contiguous()
        rows = torch.arange(tokens, dtype=torch.int32, device=starts.device)
        owner = (starts[1:] <= rows[:, None]).sum(-1, dtype=torch.int32)
        mine = owner.clamp(max=lens.shape[0] - 1)
        until = lens[mine] - starts[1:][mine] + rows + 1
        seen = until.clamp(min=0) if causal else torch.where(until > 0, lens[mine], 0)
        visible = torch.where(owner < lens.shape[0], seen, 0).to(torch.int32)
        return Batch(starts, lens, table, owner, visible, (visible > 0)[:, None])

    return step.get(("batch", tokens, blocks, causal), (query_start, seq_lens, block_table), make)


def by_token(
    decode: Callable[..., Any], q: Tensor, k: Tensor, v: Tensor | None, out: Tensor, rows: Tensor, visible: Tensor,
    longest: int, left: int, scale: float, **more: Any,
) -> Tensor:  # fmt: skip
    """Each row as a sequence of its own, which is right for any mixture; the log-sum-exps [tokens, heads]."""
    limit = GROUP_BF16 if k.dtype is torch.bfloat16 else GROUP
    runs = _splits(q.shape[1], k.shape[1], limit)
    sums = []
    for first, last, key in runs:
        part = out if len(runs) == 1 else torch.empty_like(out[:, first:last]).contiguous()
        keys, values = (x if x is None or len(runs) == 1 else x[:, key].contiguous() for x in (k, v))
        made = decode(
            q[:, first:last].contiguous()[:, None], keys, values, part[:, None], rows, visible, None, None, None,
            longest, left, -1, scale, True, **more,
        )  # fmt: skip
        if part is not out:
            out[:, first:last] = part
        sums.append(made[1][:, :, 0])
    return sums[0] if len(sums) == 1 else torch.cat(sums, dim=1)


def _splits(heads: int, keys: int, limit: int) -> list[tuple[int, int, slice]]:
    """Runs of query heads, each with the key heads it reads, of at most `limit` queries per key head."""
    group = heads // keys
    if group <= limit:
        return [(0, heads, slice(0, keys))]
    return [
        (key * group + at, key * group + min(at + limit, group), slice(key, key + 1))
        for key in range(keys)
        for at in range(0, group, limit)
    ]
