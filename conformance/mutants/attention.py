"""Mutants of attention: masks, scales, heads, sinks, pages, and what is done with rows that see nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from xinheng.core.ir.dtype import bfloat16, float16, float32
from xinheng.core.ops import OPSET

from ..call import Call
from ..selftests.simulated import narrow, rebuilt
from .mutant import FLOATS, given, having, operand, saying, summed, wrong
from .norms import low

SINGLE = (float32, float16)
OPS = "paged_attention sdpa_varlen"
EVERY = f"{OPS} mla_attention"

summed(EVERY, "bf16 sums", "keeps partial sums in bfloat16", narrow(bfloat16, 16), SINGLE)
summed(EVERY, "f16 sums", "keeps partial sums in float16", narrow(float16, 16), (float32,))


def _mask(positions: Any, keys: Any, window: int | None, causal: bool, fault: str) -> Any:
    """Which query sees which key."""
    n, ahead = positions.size, {"future key": 1, "own key missing": -1}.get(fault, 0)
    row = positions[:, None]
    if fault == "aligned at the start":
        row = np.arange(n)[:, None]
    visible = (keys <= row + ahead) if causal else np.ones((n, keys.size), bool)
    if window and fault != "window ignored":
        more = {"window + 1": 1, "window - 1": -1, "window beyond 512": -int(window > 512)}
        visible = visible & (row - keys < window + more.get(fault, 0))
    if fault == "window both sides" and window:
        visible = visible & (np.abs(row - keys) < window)
    return visible & (positions >= 0)[:, None]


def _logits(q: Any, k: Any, scale: float, softcap: float | None, visible: Any, bias: Any, fault: str) -> Any:
    scale = {"scale missing": 1.0, "scale twice": scale * scale, "scale off": 1.02 * scale}.get(fault, scale)
    s = np.matmul(q, np.swapaxes(k, -1, -2)) * scale
    cap = None if fault == "softcap ignored" else softcap
    if cap and fault != "softcap after mask":
        s = s / scale if fault == "softcap before scale" else s
        s = np.tanh(s / cap) * cap
    if bias is not None and fault != "bias ignored":
        s = s + (bias * scale if fault == "bias scaled" else bias)
    s = np.where(visible, s, np.float32(-1e4 if fault == "mask of -1e4" else -np.inf))
    if cap and fault == "softcap after mask":
        s = np.tanh(np.maximum(s, -1e30) / cap) * cap
    return s


def _attend(
    q: Any, k: Any, v: Any, positions: Any, keys: Any, sinks: Any, bias: Any,
    *, scale: float, window: int | None, softcap: float | None, causal: bool, fault: str,
) -> Any:  # fmt: skip
    """One sequence, as `attend` of the reference, with one thing wrong."""
    n, heads, group = q.shape[0], q.shape[1], q.shape[1] // k.shape[1]
    if fault == "last key dropped" and keys.size > 1:
        k, v, keys = k[:-1], v[:-1], keys[:-1]
    if keys.size == 0:
        return np.zeros((n, heads, v.shape[-1])), np.full((n, heads), -np.inf)
    visible = _mask(positions, keys, window, causal, fault)
    k, v = (np.transpose(x, (1, 0, 2)) for x in (k, v))
    if fault == "head map" or (fault == "head map of three" and group == 3):
        k, v = (np.concatenate([x] * group, axis=0) for x in (k, v))
    else:
        k, v = (np.repeat(x, group, axis=0) for x in (k, v))
    offsets = None if bias is None else np.transpose(bias[..., keys], (1, 0, 2))
    logits = _logits(np.transpose(q, (1, 0, 2)), k, scale, softcap, visible, offsets, fault)
    top = np.maximum(np.max(logits, axis=-1, keepdims=True), np.float32(-1e30))
    if fault == "no maximum":
        top = top * 0
    p = np.exp(logits - top)
    p = low(p) if fault == "probs in bf16" else p
    total = np.sum(p, axis=-1, keepdims=True)
    if sinks is not None and fault != "sink ignored":
        sink = np.reshape(sinks, (heads, 1, 1))
        sink = sink * scale if fault == "sink scaled" else sink
        total = total + np.exp(sink - top)
        if fault == "sink with a value":
            p = p + np.exp(sink - top) / p.shape[-1]
    return _normed(p, v, total, top, visible, fault)


def _normed(p: Any, v: Any, total: Any, top: Any, visible: Any, fault: str) -> Any:
    seen = np.any(visible, axis=-1)[:, None]
    if fault in ("rows without keys", "mask of -1e4"):
        seen = np.ones_like(seen)
    safe = np.where(seen, total, np.float32(1))
    out = np.where(seen, np.matmul(p, v) / safe, np.float32(0))
    out = np.matmul(p, v) if fault == "not normalised" else out
    lse = np.where(seen, top + np.log(safe), np.float32(-np.inf))
    lse = np.log2(safe) + top if fault == "lse to base two" else lse
    lse = np.where(seen, top, lse) if fault == "maximum for lse" else lse
    return np.transpose(out, (1, 0, 2)), np.transpose(lse[..., 0], (1, 0))


def _faulty(ops: str, faults: dict[str, str], where: Any = FLOATS) -> None:
    for op in ops.split():
        for name, text in faults.items():
            wrong(op, name, text, rebuilt(OPSET[op].reference, attend=partial(_attend, fault=name)), where)


_faulty(
    EVERY,
    {
        "future key": "lets each query see one key too many",
        "own key missing": "hides its own key from each query",
        "aligned at the start": "aligns queries with the first keys instead of the last",
        "last key dropped": "ends one key early",
        "scale missing": "forgets the scale",
        "scale twice": "scales twice",
        "scale off": "computes the scale of another head width",
        "no maximum": "does not subtract the maximum",
        "rows without keys": "divides by zero where a row sees no key",
        "not normalised": "does not divide by the total",
        "lse to base two": "returns the logarithm to base two",
        "maximum for lse": "returns the maximum for the log-sum-exp",
    },
)
_faulty(
    OPS,
    {
        "mask of -1e4": "masks with -10000 instead of -inf",
        "head map": "deals query heads out in turn over key heads",
        "head map of three": "deals query heads out in turn where there are three per key head",
        "window + 1": "sees one key more than the window",
        "window - 1": "sees one key less than the window",
        "window beyond 512": "sees one key less than windows of more than 512",
        "window ignored": "sees beyond the window",
        "window both sides": "cuts the window off on the other side too",
        "softcap ignored": "never caps",
        "softcap after mask": "caps what is masked too",
        "softcap before scale": "caps logits before they are scaled",
        "sink ignored": "leaves sinks out of the total",
        "sink scaled": "multiplies sinks by the scale",
        "sink with a value": "gives sinks a value",
        "bias ignored": "never adds the bias",
        "bias scaled": "multiplies the bias by the scale",
    },
)
_faulty(EVERY, {"probs in bf16": "keeps probabilities in bfloat16"}, SINGLE)


# ------------------------------------------------------------------------------------------------ pages and sequences
def _lengths(call: Call, by: int) -> Call:
    """Contexts that are longer or shorter, never beyond their blocks or before their queries."""
    lengths, starts = np.asarray(operand(call, "seq_lens")), np.asarray(operand(call, "query_start"))
    pages = operand(call, "cache")[0].shape[1]
    room = -(-lengths // pages) * pages
    return having(call, seq_lens=np.clip(lengths + by, np.minimum(lengths, np.diff(starts)), np.maximum(room, 0)))


def _used(call: Call) -> Any:
    """How many blocks each sequence uses."""
    return -(-np.asarray(operand(call, "seq_lens")) // operand(call, "cache")[0].shape[1])


def _last_block(call: Call) -> Call:
    """The last page of each sequence is the one before it."""
    table = np.array(operand(call, "block_table"))
    for row, used in zip(table, _used(call), strict=True):
        if used > 1 and 0 <= row[used - 2] < operand(call, "cache")[0].shape[0]:
            row[used - 1] = row[used - 2]
    return having(call, block_table=table)


def _next_sequence(call: Call) -> Call:
    """The pages of the sequence after."""
    table = np.asarray(operand(call, "block_table"))
    moved, used = np.roll(table, -1, axis=0), _used(call)
    fits = (np.roll(used, -1) >= used)[:, None] if len(used) else True
    blocks = operand(call, "cache")[0].shape[0]
    return having(call, block_table=np.where(fits & (moved >= 0) & (moved < blocks), moved, table))


def _pages_reversed(call: Call) -> Call:
    """Offsets counted from the end of a block."""
    cache = operand(call, "cache")
    return having(call, cache=type(cache)(*(np.flip(x, axis=1) for x in cache)))


PAGED = "paged_attention mla_attention"
given(PAGED, "context + 1", "reads one key beyond the context", lambda call: _lengths(call, 1))
given(PAGED, "context - 1", "ends the context one key early", lambda call: _lengths(call, -1))
given(PAGED, "last block", "reads the last page from the block before it", _last_block)
given(PAGED, "next sequence", "reads the pages of the sequence after", _next_sequence)
given(PAGED, "offsets reversed", "counts offsets from the end of a block", _pages_reversed)
given(
    EVERY, "causal flag", "does the opposite of what `causal` says", lambda call: saying(call, causal=not _causal(call))
)


def _causal(call: Call) -> bool:
    return bool(call.attributes.get("causal", True))


def _freed(call: Call) -> Any:
    """Attention over the whole context, block table entries that nobody may read included, seen through the window."""
    window = call.attributes.get("window")
    if not window:
        return None
    blocks = operand(call, "cache")[0].shape[0]
    table = np.clip(np.asarray(operand(call, "block_table")), 0, blocks - 1)
    return saying(having(call, block_table=table), window=window + operand(call, "cache")[0].shape[1])


given("paged_attention", "freed block", "reads freed blocks before the window", _freed)


def _one_start(call: Call) -> Call:
    """Rows of all sequences given to the first one as far as they go."""
    starts = np.array(operand(call, "query_start"))
    if len(starts) > 2:
        starts[1:-1] = np.minimum(starts[1:-1] + 1, starts[-1])
    return having(call, query_start=starts)


given(EVERY, "starts off", "gives the first row of each sequence to the one before", _one_start)


def _stale_rows(reference: Callable[..., Any]) -> Callable[..., Any]:
    """Rows beyond the last sequence keep what was there."""

    def program(q: Any, *rest: Any, **attributes: Any) -> Any:
        out, lse = reference(q, *rest, **attributes)
        starts = rest[2 if reference is not OPSET["paged_attention"].reference else 1]
        behind = np.arange(out.shape[0]) >= starts[-1]
        return np.where(behind[:, None, None], np.float32(7), out), lse

    return program


for _op in OPS.split():
    wrong(_op, "rows behind", "does not write rows beyond the last sequence", _stale_rows(OPSET[_op].reference))


def _rope_ignored(q_latent: Any, q_rope: Any, *rest: Any, **attributes: Any) -> Any:
    return OPSET["mla_attention"].reference(q_latent, q_rope * 0, *rest, **attributes)


wrong("mla_attention", "rope ignored", "forgets the rotary part of keys", _rope_ignored)
