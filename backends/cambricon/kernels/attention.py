"""The paged cache and attention over it: one function for decode, another for prompts, both without host lists."""

from __future__ import annotations

import torch

from xinheng.core import ops
from xinheng.core.hal import KernelRegistry
from xinheng.core.ir.dtype import bfloat16, float16, float32
from xinheng.core.ir.graph import Node
from xinheng.core.ir.types import StateType

from ..._torch.handles import TorchPagedKV
from ..chips import GROUP, GROUP_BF16, HEADS
from ..functions import Functions

Tensor = torch.Tensor
HALVES = frozenset({float16, bfloat16})


def register(kernels: KernelRegistry, functions: Functions) -> None:
    """Enter these kernels for the functions that are there."""
    if "reshape_paged_cache" in functions:
        _write(kernels, functions)
    if "flash_attention" in functions and "single_query_cached_kv_attn" in functions:
        _attend(kernels, functions)


def _same(node: Node, name: str) -> bool | str:
    cache, x = node.operand("cache"), node.operand(name)
    assert cache is not None and isinstance(cache.type, StateType) and x is not None
    return cache.type["scheme"] == x.dtype.name or f"{name} is {x.dtype}, the cache {cache.type['scheme']}"


def _write(kernels: KernelRegistry, functions: Functions) -> None:
    store = functions["reshape_paged_cache"]

    def fits(node: Node) -> bool | str:
        k, v = node.operand("k"), node.operand("v")
        assert k is not None and v is not None
        if k.dtype != v.dtype:
            return f"k is {k.dtype}, v is {v.dtype}"
        return _same(node, "k")

    @kernels.register(ops.write_cache, name="tmo_reshape_paged_cache", dtypes=[float32, *HALVES], when=fits)
    def write_cache(cache: TorchPagedKV, k: Tensor, v: Tensor, slots: Tensor) -> TorchPagedKV:
        if k.shape[0]:
            store(k.contiguous(), v.contiguous(), *pages(cache), slots.to(torch.int32).contiguous())
        return cache


def pages(cache: TorchPagedKV) -> tuple[Tensor, Tensor]:
    """Keys and values as they lie in memory: [blocks, heads, block, width]."""
    return cache.k.transpose(1, 2), cache.v.transpose(1, 2)


def _takes(node: Node) -> bool | str:
    q, cache = node.operand("q"), node.operand("cache")
    assert q is not None and cache is not None and isinstance(cache.type, StateType)
    width, heads = cache.type["k_dim"], q.shape[1]
    if width not in HEADS or width != cache.type["v_dim"]:
        return (
            f"heads of {width} and {cache.type['v_dim']} are not of one size among {', '.join(map(str, sorted(HEADS)))}"
        )
    if node.attributes["window"] and not node.attributes["causal"]:
        return "windows are those of causal attention"
    if not isinstance(heads, int):
        return "the number of heads is not known"
    return _same(node, "q")


def _attend(kernels: KernelRegistry, functions: Functions) -> None:
    flash, decode = functions["flash_attention"], functions["single_query_cached_kv_attn"]

    @kernels.register(ops.paged_attention, name="tmo_attention", dtypes=HALVES, when=_takes)
    def paged_attention(
        q: Tensor,
        cache: TorchPagedKV,
        query_start: Tensor,
        seq_lens: Tensor,
        block_table: Tensor,
        *,
        scale: float,
        window: int | None = None,
        causal: bool = True,
    ) -> tuple[Tensor, Tensor]:
        tokens, heads = q.shape[:2]
        seqs = seq_lens.shape[0]
        out = torch.zeros((tokens, heads, cache.v.shape[-1]), dtype=q.dtype, device=q.device)
        if tokens == 0 or seqs == 0:
            return out, torch.full((tokens, heads), -torch.inf, dtype=torch.float32, device=q.device)
        starts, lens, table = (t.to(torch.int32).contiguous() for t in (query_start, seq_lens, block_table))
        table = table.clamp(0, cache.k.shape[0] - 1)
        left = window - 1 if window else -1
        visible = _visible(tokens, starts, lens, causal)
        if tokens == seqs:
            lse = _by_token(decode, q, cache, out, starts, table, visible, left, scale)
        else:
            reach = table.shape[1] * cache.k.shape[1]
            ends = torch.cat((lens.new_zeros(1), torch.cumsum(lens, 0, dtype=torch.int32)))
            _, lse = flash(
                q.contiguous(), *pages(cache), out, starts, ends, None, None, tokens, reach, scale, causal, left, -1,
                torch.float32, True, table,
            )  # fmt: skip
            lse = lse.transpose(0, 1)
        seen = (visible > 0)[:, None]
        return torch.where(seen[..., None], out, 0.0).to(q.dtype), torch.where(seen, lse, -torch.inf)


def _owner(tokens: int, starts: Tensor) -> Tensor:
    """The sequence of each row, int32; the number of sequences for rows that belong to none."""
    rows = torch.arange(tokens, dtype=torch.int32, device=starts.device)
    return (starts[1:] <= rows[:, None]).sum(-1, dtype=torch.int32)


def _visible(tokens: int, starts: Tensor, lens: Tensor, causal: bool) -> Tensor:
    """How many leading keys of its sequence each row may see, int32 [tokens]; 0 for rows of no sequence."""
    owner = _owner(tokens, starts)
    inside = owner < lens.shape[0]
    mine = owner.clamp(max=lens.shape[0] - 1)
    rows = torch.arange(tokens, dtype=torch.int32, device=starts.device)
    until = lens[mine] - starts[1:][mine] + rows + 1
    seen = until.clamp(min=0) if causal else torch.where(until > 0, lens[mine], 0)
    return torch.where(inside, seen, 0).to(torch.int32)


def _by_token(
    decode: object, q: Tensor, cache: TorchPagedKV, out: Tensor, starts: Tensor, table: Tensor, visible: Tensor,
    left: int, scale: float,
) -> Tensor:  # fmt: skip
    """Each row as a sequence of its own, which is right for any mixture and needs no list on the host."""
    assert callable(decode)
    tokens, heads = q.shape[:2]
    k, v = pages(cache)
    mine = table[_owner(tokens, starts).clamp(max=table.shape[0] - 1)].contiguous()
    limit = GROUP_BF16 if k.dtype is torch.bfloat16 else GROUP
    sums = []
    for first, last, key in _splits(heads, k.shape[1], limit):
        held = [p if p.shape[1] == key.stop - key.start else p[:, key].contiguous() for p in (k, v)]
        part = torch.empty_like(out[:, None, first:last]).contiguous()
        made = decode(
            q[:, None, first:last].contiguous(), *held, part, mine, visible, None, None, None,
            mine.shape[1] * cache.k.shape[1], left, -1, scale, True,
        )  # fmt: skip
        out[:, first:last] = part[:, 0]
        sums.append(made[1][:, :, 0])
    return torch.cat(sums, dim=1)


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
