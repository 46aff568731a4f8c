"""Mutants of writes to paged caches, and of moves between caches and tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from xinheng.core.ir.dtype import float32
from xinheng.core.ops import OPSET, QuantizedKVPages
from xinheng.core.ops.attention import quantized, scatter_slots

from ..call import Call
from .mutant import given, having, operand, saying, wrong

WRITES = "write_cache write_latent_cache kv_norm_rope_cache"
GATHERS = "gather_kv_cache gather_latent_cache"


def _slots(change: Any) -> Any:
    """A write to other slots."""

    def changed(call: Call) -> Call:
        cache, slots = operand(call, "cache"), np.asarray(operand(call, "slots"))
        return having(call, slots=change(slots, cache[0].shape[0], cache[0].shape[1]))

    return changed


given(
    WRITES,
    "slot -1",
    "writes slot -1, which is the last one to those who count from the end",
    _slots(lambda s, blocks, size: np.where(s < 0, blocks * size - 1, s)),
)
given(WRITES, "slot -1 at 0", "writes what belongs nowhere to slot 0", _slots(lambda s, blocks, size: np.maximum(s, 0)))
given(
    WRITES,
    "next slot",
    "writes one slot too far",
    _slots(lambda s, blocks, size: np.where(s < 0, s, (s + 1) % (blocks * size))),
)
given(
    WRITES,
    "block and offset exchanged",
    "takes offsets for blocks",
    _slots(lambda s, blocks, size: np.where(s < 0, s, s % size % blocks * size + s // size % size)),
)
given(
    WRITES,
    "last token",
    "does not write the last token",
    _slots(lambda s, blocks, size: np.where(np.arange(s.size) == s.size - 1, -1, s)),
)


def _exchanged(call: Call) -> Call | None:
    k, v = operand(call, "k"), operand(call, "v")
    return having(call, k=v, v=k) if k.shape == v.shape else None


given("write_cache", "k and v exchanged", "writes values to the keys", _exchanged)
given("write_cache", "heads reversed", "writes heads in reverse", lambda call: _flipped(call, "k", 1))
given("write_latent_cache", "rope stale", "writes no rotary key", lambda call: _flipped(call, "rope", 1))


def _flipped(call: Call, name: str, axis: int) -> Call:
    return having(call, **{name: np.flip(operand(call, name), axis=axis)})


def _coded(rows: Any) -> Any:
    """A write that gets the codes and scales of an int8 cache from `rows`."""

    def program(cache: Any, k: Any, v: Any, slots: Any) -> Any:
        if not isinstance(cache, QuantizedKVPages) or k.shape[0] == 0:
            return OPSET["write_cache"].reference(cache, k, v, slots)
        parts = zip(cache, rows(k, v), strict=True)
        return QuantizedKVPages(*(scatter_slots(pages, new, slots) for pages, new in parts))

    return program


def _truncated(k: Any, v: Any) -> Any:
    held = quantized(k, v)
    codes = (np.trunc(x / scale[..., None]) for x, scale in ((k, held.k_scale), (v, held.v_scale)))
    return *codes, held.k_scale, held.v_scale


def _all_codes(k: Any, v: Any) -> Any:
    """The range of int8 with -128, and its scale."""
    scales = [np.max(np.abs(x), axis=-1) / 128 for x in (k, v)]
    pairs = zip((k, v), scales, strict=True)
    return *(np.clip(np.rint(x / scale[..., None]), -128, 127) for x, scale in pairs), *scales


def _per_token(k: Any, v: Any) -> Any:
    scales = [np.max(np.abs(x), axis=(-2, -1), keepdims=True) / 127 for x in (k, v)]
    codes = [np.rint(x / scale) for x, scale in zip((k, v), scales, strict=True)]
    return *codes, *(np.broadcast_to(scale[..., 0], x.shape[:2]) for x, scale in zip((k, v), scales, strict=True))


wrong("write_cache", "codes truncated", "rounds the codes of an int8 cache towards zero", _coded(_truncated))
wrong("write_cache", "codes to 128", "divides by 128 for the scale of an int8 cache", _coded(_all_codes))
wrong("write_cache", "scale per token", "has one scale for all heads of a token", _coded(_per_token))


def _scales(change: Any) -> Any:
    """A read of an int8 cache with other scales."""

    def changed(call: Call) -> Call | None:
        cache = operand(call, "cache")
        return having(call, cache=change(cache)) if isinstance(cache, QuantizedKVPages) else None

    return changed


_OTHER_SCALES = {
    "scale of keys": ("scales values by what keys need", lambda c: c._replace(v_scale=c.k_scale)),
    "scales ignored": ("takes codes for numbers", lambda c: c._replace(k_scale=c.k_scale * 0 + 1)),
    "scale of the next head": (
        "scales keys by what the next head needs",
        lambda c: c._replace(k_scale=np.roll(c.k_scale, 1, axis=2)),
    ),
}
for _name, (_text, _change) in _OTHER_SCALES.items():
    given("paged_attention", _name, _text, _scales(_change))
    given("gather_kv_cache", _name, _text, _scales(_change), where=(float32,))  # which is what it makes of codes


def _whole_norm(
    kv: Any, weight: Any, cos: Any, sin: Any, cache: Any, slots: Any, *, eps: float, interleaved: bool
) -> Any:
    """The norm over latent and rotary key together."""
    dim = weight.shape[0]
    scale = np.sqrt(np.mean(kv[:, :dim] ** 2, axis=-1, keepdims=True) + eps)
    whole = np.sqrt(np.mean(kv**2, axis=-1, keepdims=True) + eps)
    again = np.concatenate([kv[:, :dim] * (scale / whole), kv[:, dim:]], axis=-1)
    latent = again[:, :dim] / scale * weight
    parts = OPSET["kv_norm_rope_cache"].reference.__globals__
    rope = parts["rotary_embedding"].reference(np.expand_dims(kv[:, dim:], 1), cos, sin, interleaved=interleaved)
    return parts["write_latent_cache"].reference(cache, latent, np.reshape(rope, (kv.shape[0], -1)), slots)


wrong("kv_norm_rope_cache", "norm of all", "norms latent and rotary key together", _whole_norm)
given(
    "kv_norm_rope_cache",
    "weight ignored",
    "never multiplies by the weight",
    lambda call: having(call, weight=np.ones_like(operand(call, "weight"))),
)
given(
    "kv_norm_rope_cache", "eps * 10", "takes 1e-4 for 1e-5", lambda call: saying(call, eps=10 * call.attributes["eps"])
)


def _next_block(call: Call) -> Call:
    """The block after the one that is named, in the cache of that size."""
    table, blocks = np.asarray(operand(call, "block_table")), operand(call, "cache")[0].shape[0]
    return having(call, block_table=np.where((table >= 0) & (table < blocks), (table + 1) % blocks, table))


given(GATHERS, "next block", "reads the block after", _next_block)
given(
    GATHERS,
    "freed blocks read",
    "reads block 0 where the table names none",
    lambda call: having(
        call, block_table=np.clip(operand(call, "block_table"), 0, operand(call, "cache")[0].shape[0] - 1)
    ),
)


def _starts_as_lengths(reference: Any) -> Any:
    def program(cache: Any, seq_lens: Any, block_table: Any) -> Any:
        *rows, starts = reference(cache, seq_lens, block_table)
        return (*rows, np.concatenate([np.asarray(seq_lens), [0]])[: starts.size])

    return program


for _op in GATHERS.split():
    wrong(_op, "lengths for starts", "returns lengths, not running sums", _starts_as_lengths(OPSET[_op].reference))
given(
    "copy_blocks",
    "source and target exchanged",
    "copies from target to source",
    lambda call: having(call, pairs=np.flip(np.asarray(operand(call, "pairs")), axis=1)),
)
given(
    "copy_blocks",
    "last pair",
    "leaves the last copy out",
    lambda call: having(call, pairs=np.asarray(operand(call, "pairs"))[:-1]),
)
