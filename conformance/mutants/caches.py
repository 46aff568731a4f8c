"""Mutants of writes to paged caches, and of moves between caches and tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from xinheng.core.ops import OPSET

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
