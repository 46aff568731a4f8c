"""Doubles of fused attention, `npu_fused_infer_attention_score` and its second version.

The rules are those of the operator manual of torch_npu 2.13 for layouts TND and BSND over a paged cache of shape
[blocks, block, H], and for TND without pages. Where the manual says that an argument has no effect, it has none here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .rules import FUSED, HALVES, demand, demand_contiguous, demand_dtype, double

Tensor = torch.Tensor
Lengths = Sequence[int] | None
MASK = 2048
"""The fixed size of the compressed mask."""
FAR = 2147483647

_checked_masks: set[tuple[int, int]] = set()


@dataclass(frozen=True, slots=True)
class Request:
    """A call of either version, under the names of the first."""

    name: str
    query: Tensor
    key: Tensor
    value: Tensor
    heads: int
    kv_heads: int
    scale: float
    layout: str
    mask: Tensor | None
    q_lengths: Lengths
    kv_lengths: Lengths
    table: Tensor | None
    block: int
    mode: int
    before: int
    after: int
    precise: int
    lse: bool
    query_rope: Tensor | None = None
    key_rope: Tensor | None = None
    sink: Tensor | None = None


@double("npu::npu_fused_infer_attention_score", FUSED, spoken=("scale", "num_heads", "input_layout"))
def first(query: Tensor, key: Tensor, value: Tensor, **given: Any) -> tuple[Tensor, Tensor]:
    return _run(_first_request("npu_fused_infer_attention_score", query, key, value, given))


@double("npu::npu_fused_infer_attention_score.out", FUSED, spoken=("scale", "num_heads", "input_layout"))
def first_out(query: Tensor, key: Tensor, value: Tensor, **given: Any) -> tuple[Tensor, Tensor]:
    name = "npu_fused_infer_attention_score.out"
    workspace, out = given.pop("workspace", None), given.pop("out")
    return _into(_first_request(name, query, key, value, given), workspace, out)


@double("npu::npu_fused_infer_attention_score_v2", FUSED, spoken=("softmax_scale", "num_query_heads", "input_layout"))
def second(query: Tensor, key: Tensor, value: Tensor, **given: Any) -> tuple[Tensor, Tensor]:
    return _run(_second_request("npu_fused_infer_attention_score_v2", query, key, value, given))


@double(
    "npu::npu_fused_infer_attention_score_v2.out", FUSED, spoken=("softmax_scale", "num_query_heads", "input_layout")
)
def second_out(query: Tensor, key: Tensor, value: Tensor, **given: Any) -> tuple[Tensor, Tensor]:
    name = "npu_fused_infer_attention_score_v2.out"
    workspace, out = given.pop("workspace", None), given.pop("out")
    return _into(_second_request(name, query, key, value, given), workspace, out)


@double("npu::_npu_fused_infer_attention_score_v2_get_max_workspace", FUSED)
def second_workspace(query: Tensor, key: Tensor, value: Tensor, **given: Any) -> Tensor:
    _check(_second_request("_npu_fused_infer_attention_score_v2_get_max_workspace", query, key, value, given))
    return torch.empty(query.numel() * 4, dtype=torch.uint8)


@double("npu::_npu_fused_infer_attention_score_get_max_workspace", FUSED)
def first_workspace(query: Tensor, key: Tensor, value: Tensor, **given: Any) -> Tensor:
    _check(_first_request("_npu_fused_infer_attention_score_get_max_workspace", query, key, value, given))
    return torch.empty(query.numel() * 4, dtype=torch.uint8)


def _first_request(name: str, query: Tensor, key: Tensor, value: Tensor, given: dict[str, Any]) -> Request:
    names = {
        "heads": ("num_heads", 1),
        "kv_heads": ("num_key_value_heads", 0),
        "scale": ("scale", 1.0),
        "q_lengths": ("actual_seq_lengths", None),
        "kv_lengths": ("actual_seq_lengths_kv", None),
        "lse": ("softmax_lse_flag", False),
    }
    return _request(name, query, key, value, given, names)


def _second_request(name: str, query: Tensor, key: Tensor, value: Tensor, given: dict[str, Any]) -> Request:
    names = {
        "heads": ("num_query_heads", 1),
        "kv_heads": ("num_key_value_heads", 0),
        "scale": ("softmax_scale", 1.0),
        "q_lengths": ("actual_seq_qlen", None),
        "kv_lengths": ("actual_seq_kvlen", None),
        "lse": ("return_softmax_lse", False),
        "sink": ("learnable_sink", None),
    }
    return _request(name, query, key, value, given, names)


def _request(
    name: str, query: Tensor, key: Tensor, value: Tensor, given: dict[str, Any], names: dict[str, tuple[str, Any]]
) -> Request:
    names |= {
        "layout": ("input_layout", "BSH"),
        "mask": ("atten_mask", None),
        "table": ("block_table", None),
        "block": ("block_size", 0),
        "mode": ("sparse_mode", 0),
        "before": ("pre_tokens", FAR),
        "after": ("next_tokens", FAR),
        "precise": ("inner_precise", 0),
        "query_rope": ("query_rope", None),
        "key_rope": ("key_rope", None),
    }
    known = {theirs for theirs, _ in names.values()}
    odd = [word for word, value in given.items() if word not in known and value not in (None, 0, False)]
    demand(name, not odd, f"this double knows no {', '.join(odd)}")
    return Request(name, query, key, value, **{ours: given.get(*theirs) for ours, theirs in names.items()})


def _into(r: Request, workspace: Tensor | None, out: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    demand(r.name, workspace is None or workspace.dtype is torch.uint8, "workspace must be what the vendor gave")
    made = _run(r)
    for x, held in zip(made, out, strict=True):
        demand(r.name, held.dtype is x.dtype, "results must have the dtype of what they are written to")
        demand(
            r.name, held.shape == x.shape or not r.lse, f"a result of {list(x.shape)} does not fit {list(held.shape)}"
        )
        if x.numel():
            held.copy_(x)
    return out[0], out[1]


def _check(r: Request) -> None:
    name = r.name
    demand_dtype(name, "query", r.query, HALVES)
    same = r.query.dtype is r.key.dtype is r.value.dtype
    demand(name, same, "query, key and value must have one dtype")
    demand_contiguous(
        name, query=r.query, key=r.key, value=r.value, mask=r.mask, block_table=r.table,
        query_rope=r.query_rope, key_rope=r.key_rope, learnable_sink=r.sink,
    )  # fmt: skip
    demand(name, r.layout in ("TND", "BSND"), f"layout {r.layout!r} is not known; this double knows TND and BSND")
    demand(
        name, r.query.dim() == (3 if r.layout == "TND" else 4), f"{r.layout} does not fit query {list(r.query.shape)}"
    )
    heads, dim = r.query.shape[-2:]
    kv = r.kv_heads or r.heads
    demand(name, r.heads == heads, f"num_heads is {r.heads}, query has {heads} heads")
    demand(name, heads % kv == 0 and heads // kv <= 64, f"{heads} heads must be 1 to 64 times {kv} key heads")
    demand(name, heads <= 256, f"there are {heads} heads, at most 256 are allowed")
    demand(name, dim <= 512 and dim % 16 == 0, f"the head dim {dim} must be a multiple of 16 up to 512")
    demand(name, r.q_lengths is not None and r.kv_lengths is not None, "lengths of queries and keys must be given")
    assert r.q_lengths is not None and r.kv_lengths is not None
    demand(name, len(r.q_lengths) == len(r.kv_lengths), "there must be as many lengths of keys as of queries")
    if r.layout == "TND":
        ascending = all(a <= b for a, b in zip([0, *r.q_lengths], r.q_lengths, strict=False))
        demand(name, ascending, f"lengths of queries {list(r.q_lengths)} must be running sums (TND)")
        total = r.q_lengths[-1] if r.q_lengths else 0
        demand(name, total == r.query.shape[0], f"the last length must be {r.query.shape[0]} tokens, is {total}")
    else:
        demand(name, len(r.q_lengths) == r.query.shape[0], "BSND needs one length per row of query")
        demand(name, max(r.q_lengths, default=0) <= r.query.shape[1], "a length exceeds its row of queries")
    demand(name, min(r.kv_lengths, default=0) >= 0, "lengths must not be negative")
    _check_pages(r, kv, dim) if r.table is not None else _check_packed(r, kv, dim)
    _check_mask(r)
    _check_rope(r, kv)
    if r.sink is not None:
        demand_dtype(name, "learnable_sink", r.sink, (torch.bfloat16,))
        demand(name, tuple(r.sink.shape) == (heads,), f"learnable_sink must be [{heads}]")
        demand(
            name, r.layout == "TND" and r.value.shape[-1] // kv <= 128, "learnable_sink needs TND and values up to 128"
        )


def _longest(r: Request) -> int:
    assert r.q_lengths is not None
    lengths = r.q_lengths
    if r.layout == "TND":
        lengths = [b - a for a, b in zip([0, *lengths], lengths, strict=False)]
    return max(lengths, default=0)


def _check_pages(r: Request, kv: int, dim: int) -> None:
    name, table = r.name, r.table
    assert table is not None and r.kv_lengths is not None
    demand(name, table.dtype is torch.int32 and table.dim() == 2, "block_table must be int32 of two axes")
    demand(name, table.shape[0] == len(r.kv_lengths), "block_table must have one row per sequence")
    many = _longest(r) > 1 and r.query_rope is None
    allowed = r.block % 128 == 0 and 128 <= r.block <= 512 if many else 0 < r.block <= 512 and r.block % 16 == 0
    demand(name, allowed, f"block_size {r.block} is not allowed for {'several queries' if many else 'one query'} each")
    demand(name, r.key.shape == r.value.shape, "caches of keys and values must have one shape")
    shape = (r.key.shape[0], r.block, kv * dim)
    demand(
        name, tuple(r.key.shape) == shape, f"the cache must be [blocks, {r.block}, {kv * dim}], not {list(r.key.shape)}"
    )
    demand(name, kv * dim <= 65535, f"a row of the cache has {kv * dim} numbers, at most 65535 are allowed")
    demand(name, r.key.numel() < 2**31, "a cache must have fewer than 2**31 numbers")
    room = table.shape[1] * r.block
    demand(name, max(r.kv_lengths, default=0) <= room, f"a sequence is longer than the {room} tokens of block_table")
    for row, length in zip(table.tolist(), r.kv_lengths, strict=True):
        used = row[: -(-length // r.block)]
        demand(name, all(0 <= b < r.key.shape[0] for b in used), f"block_table names blocks that are not there: {used}")


def _check_packed(r: Request, kv: int, dim: int) -> None:
    name = r.name
    assert r.kv_lengths is not None and r.q_lengths is not None
    demand(name, r.layout == "TND", "without block_table this double takes TND")
    demand_dtype(name, "query of TND without block_table", r.query, (torch.bfloat16,))
    ascending = all(a <= b for a, b in zip([0, *r.kv_lengths], r.kv_lengths, strict=False))
    demand(name, ascending and (r.kv_lengths or [0])[-1] == r.key.shape[0], "lengths of keys must be running sums")
    demand(name, r.key.shape[1] == r.value.shape[1] == kv, f"keys and values must have {kv} heads")
    widths = (dim, r.key.shape[2], r.value.shape[2])
    demand(name, widths in ((128, 128, 128), (192, 192, 128), (192, 192, 192)), f"head dims {widths} are not allowed")
    demand(name, r.mode in (0, 3, 4), "sparse_mode must be 0, 3 or 4")


def _check_mask(r: Request) -> None:
    name, mask = r.name, r.mask
    demand(name, r.mode in (0, 1, 2, 3, 4), f"sparse_mode {r.mode} is not known")
    if mask is None:
        demand(name, r.mode == 0, f"sparse_mode {r.mode} needs a mask")
        return
    demand_dtype(name, "atten_mask", mask, (torch.bool, torch.int8, torch.uint8))
    if r.mode in (2, 3, 4):
        demand(
            name, tuple(mask.shape[-2:]) == (MASK, MASK) and mask.numel() == MASK * MASK, "the mask must be 2048 x 2048"
        )
        key = (mask.data_ptr(), mask.element_size())
        if key not in _checked_masks:
            upper = torch.ones(MASK, MASK, dtype=torch.bool).triu(1)
            demand(
                name, bool((mask.reshape(MASK, MASK).bool() == upper).all()), "the mask must be 1 above the diagonal"
            )
            _checked_masks.add(key)
        return
    demand(name, r.layout == "BSND", "a whole mask is for BSND")
    assert r.table is not None
    wide = r.table.shape[1] * r.block
    rows = tuple(mask.shape)
    fits = mask.dim() == 4 and rows[0] in (1, r.query.shape[0]) and rows[1] == 1 and rows[2] == r.query.shape[1]
    demand(name, fits and rows[3] >= wide, f"the mask must be [batch, 1, queries, {wide} or more], not {list(rows)}")


def _check_rope(r: Request, kv: int) -> None:
    name, dim = r.name, r.query.shape[-1]
    demand(name, (r.query_rope is None) == (r.key_rope is None), "query_rope and key_rope come together")
    if r.query_rope is None:
        demand(name, dim <= 256 or r.layout != "TND", f"TND with a head dim of {dim} needs query_rope")
        return
    assert r.key_rope is not None
    demand(name, r.query_rope.dtype is r.key_rope.dtype is r.query.dtype, "rope parts must have the dtype of query")
    demand(
        name,
        dim == 512 and kv == 1 and r.query_rope.shape[-1] == 64,
        "this double takes heads of 512 + 64, one key head",
    )
    demand(name, r.heads in (1, 2, 4, 8, 16, 32, 64, 128), f"{r.heads} heads are no power of two up to 128")
    demand(name, r.block in (16, 128) and r.table is not None, "query_rope needs pages of 16 or 128 tokens")
    demand(name, tuple(r.key_rope.shape) == (*r.key.shape[:2], 64), "key_rope must be pages like those of key")
    demand(name, 1 <= _longest(r) <= 16, f"a sequence has {_longest(r)} queries, 1 to 16 are allowed")
    simple = (r.mode == 0 and r.mask is None) if _longest(r) == 1 else r.mode == 3
    demand(name, simple, "one query needs sparse_mode 0 without a mask, several need sparse_mode 3")


def _run(r: Request) -> tuple[Tensor, Tensor]:
    _check(r)
    assert r.q_lengths is not None and r.kv_lengths is not None
    kv, dim = r.kv_heads or r.heads, r.query.shape[-1]
    width = dim if r.table is not None else r.value.shape[-1]
    out = torch.full((*r.query.shape[:-1], width), torch.nan, dtype=torch.float32)
    sums = torch.full((*r.query.shape[:-1], 1), torch.nan, dtype=torch.float32)
    single = _longest(r) == 1
    for s, length in enumerate(r.kv_lengths):
        if r.layout == "TND":
            start, stop = (r.q_lengths[s - 1] if s else 0), r.q_lengths[s]
            rows, place = r.query[start:stop], slice(start, stop)
        else:
            start, stop = 0, r.q_lengths[s]
            rows, place = r.query[s, :stop], slice(0, stop)
        if start == stop:
            continue
        k, v = _keys(r, s, kv, dim)
        q = rows.double()
        if r.query_rope is not None:
            q = torch.cat((q, r.query_rope[place].double()), -1)
        hidden = _hidden(r, s, q.shape[0], k.shape[0], single)
        found = _attend(q, k, v, hidden, r)
        (out if r.layout == "TND" else out[s])[place], (sums if r.layout == "TND" else sums[s])[place] = found
        del length
    # sums of tokens that are not packed are [batch, heads, tokens, 1]
    told = sums if r.layout == "TND" else sums.transpose(1, 2).contiguous()
    return out.to(r.query.dtype), told if r.lse else torch.empty(0)


def _keys(r: Request, s: int, kv: int, dim: int) -> tuple[Tensor, Tensor]:
    """Keys and values [length, kv heads, dim] of one sequence."""
    assert r.kv_lengths is not None
    if r.table is None:
        start = r.kv_lengths[s - 1] if s else 0
        return r.key[start : r.kv_lengths[s]].double(), r.value[start : r.kv_lengths[s]].double()
    length = r.kv_lengths[s]
    blocks = r.table[s, : -(-length // r.block)].long()
    k, v = (x[blocks].reshape(-1, x.shape[-1])[:length].reshape(length, kv, dim).double() for x in (r.key, r.value))
    if r.key_rope is not None:
        turned = r.key_rope[blocks].reshape(-1, 64)[:length].reshape(length, 1, 64).double()
        k = torch.cat((k, turned), -1)
    return k, v


def _hidden(r: Request, s: int, queries: int, keys: int, single: bool) -> Tensor:
    """Which keys each query does not see, [queries, keys]."""
    none = torch.zeros((queries, keys), dtype=torch.bool)
    if r.mode == 0:
        if r.mask is None:
            return none
        return r.mask[s if r.mask.shape[0] > 1 else 0, 0, :queries, :keys].bool()
    if single and r.query_rope is None:
        return none  # sparse modes have no effect on single queries
    row, column = torch.arange(queries)[:, None], torch.arange(keys)
    at = row + (0 if r.mode == 2 else keys - queries)
    if r.mode == 4:
        return (column > at + r.after) | (column < at - r.before)
    return column > at


def _attend(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor, r: Request) -> tuple[Tensor, Tensor]:
    """Output [n, heads, dim] and log-sum-exp [n, heads, 1]; rows that see nothing are undefined unless corrected."""
    if k.shape[0] == 0:
        return torch.zeros((*q.shape[:2], v.shape[-1])), torch.full((*q.shape[:2], 1), torch.inf)
    group = q.shape[1] // k.shape[1]
    keyed, valued = (x.transpose(0, 1).repeat_interleave(group, 0) for x in (k, v))
    logits = (q.transpose(0, 1) @ keyed.transpose(1, 2) * r.scale).masked_fill(hidden, -torch.inf)
    if r.sink is not None:
        logits = torch.cat((logits, r.sink.double().reshape(-1, 1, 1).expand(-1, q.shape[0], 1)), -1)
    total = torch.logsumexp(logits, -1, keepdim=True)
    out = torch.exp(logits - total)[..., : k.shape[0]] @ valued
    blind = hidden.all(-1)[None, :, None]
    out = torch.where(blind, 0.0 if r.precise & 2 else torch.nan, out)
    return out.transpose(0, 1), total.transpose(0, 1)
