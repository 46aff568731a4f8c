"""The paged cache and attention over it, sequence by sequence; lengths and block tables are read on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import ops as msops
from numpy.typing import NDArray

from xinheng.core import ops
from xinheng.core.ir.graph import Node
from xinheng.core.ir.types import StateType

from ..handles import MindSporePagedKV
from ..tensors import DTYPES, converted
from .movement import piece
from .registry import FLOATS, MINDSPORE_KERNELS, double, indexing, narrow, wide

_MAX: Any = msops.ReduceMax(True)
_SUM: Any = msops.ReduceSum(True)
RUN = 64
"""Keys are taken in runs of so many, and runs added in their order, so that no bit of a query's result depends on how
many keys behind it are there. Products without a transposed operand have the same bits for any number of rows and runs
as long as their sums are short; those of queries and keys are cut at `_WIDTH`."""
_WIDTH = 128


def readable(node: Node) -> bool | str:
    """Whether the cache of a node holds floats."""
    cache = node.operand("cache")
    coding = cache.type["scheme"] if cache is not None and isinstance(cache.type, StateType) else None
    return coding in {kind.name for kind in FLOATS} or f"this runtime has no kernels for a cache of {coding}"


@MINDSPORE_KERNELS.register(ops.write_cache, name="mindspore_write_cache", dtypes=FLOATS, when=readable)
def write_cache(cache: MindSporePagedKV, k: Any, v: Any, slots: Any) -> MindSporePagedKV:
    slots = indexing(slots)
    kept = msops.nonzero(slots >= 0).reshape((-1,))
    if not kept.shape[0]:
        return cache
    size = cache.k.shape[1]
    chosen = msops.gather(slots, kept, 0)
    at = msops.stack((msops.floor_div(chosen, size), msops.floor_mod(chosen, size)), -1)
    for pages, new in ((cache.k, k), (cache.v, v)):
        rounded = converted(converted(new, DTYPES[cache.kind]), pages.dtype)
        msops.scatter_nd_update(pages, at, msops.gather(rounded, kept, 0))
    return cache


@MINDSPORE_KERNELS.register(
    ops.paged_attention,
    name="mindspore_paged_attention",
    dtypes=FLOATS,
    when=readable,
    host=("query_start", "seq_lens", "block_table"),
)
def paged_attention(
    q: Any,
    cache: MindSporePagedKV,
    query_start: NDArray[Any],
    seq_lens: NDArray[Any],
    block_table: NDArray[Any],
    sinks: Any = None,
    bias: Any = None,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    causal: bool = True,
) -> tuple[Any, Any]:
    size = cache.k.shape[1]
    pages = [x.reshape((x.shape[0] * size, *x.shape[2:])) for x in (cache.k, cache.v)]

    def slots(s: int, keys: NDArray[Any]) -> NDArray[Any]:
        made: NDArray[Any] = block_table[s][keys // size].astype(np.int64) * size + keys % size
        return made

    how = (scale, window, softcap, causal)
    return _attention(q, pages, query_start, seq_lens, slots, sinks, bias, how)


@MINDSPORE_KERNELS.register(
    ops.sdpa_varlen, name="mindspore_sdpa_varlen", dtypes=FLOATS, host=("query_start", "key_start")
)
def sdpa_varlen(
    q: Any,
    k: Any,
    v: Any,
    query_start: NDArray[Any],
    key_start: NDArray[Any],
    sinks: Any = None,
    bias: Any = None,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    causal: bool = True,
) -> tuple[Any, Any]:
    def slots(s: int, keys: NDArray[Any]) -> NDArray[Any]:
        made: NDArray[Any] = keys + int(key_start[s])
        return made

    how = (scale, window, softcap, causal)
    return _attention(q, [wide(k), wide(v)], query_start, np.diff(key_start), slots, sinks, bias, how)


Slots = Callable[[int, NDArray[Any]], NDArray[Any]]
"""The rows of keys and values that hold some positions of a sequence."""


def _attention(
    q: Any,
    rows: list[Any],
    query_start: NDArray[Any],
    lengths: NDArray[Any],
    slots: Slots,
    sinks: Any,
    bias: Any,
    how: tuple[float, int | None, float | None, bool],
) -> tuple[Any, Any]:
    """Sequence by sequence; `rows` are keys and values [slots, kv_heads, width], `how` the attributes of the ops."""
    scale, window, softcap, causal = how
    outputs, sums, v_width = [], [], rows[1].shape[-1]
    for s, length in enumerate(lengths.tolist()):
        begin, end = int(query_start[s]), int(query_start[s + 1])
        n = end - begin
        if n == 0:
            continue
        first = max(0, length - n - window + 1) if window else 0
        keys, positions = _runs(first, length), np.arange(length - n, length)
        visible = _visible(keys, positions, window, causal)
        if not visible.any():
            made = _nothing(n, q, v_width)
        else:
            # filled places take the values of a row that exists, and are zeroed
            at = np.where(keys < 0, length - 1, keys)
            k, v = (_in_runs(x, slots(s, at), keys >= 0) for x in rows)
            part = None
            if bias is not None:
                part = msops.gather(wide(bias)[begin:end], ms.Tensor(at.astype(np.int32)), 2)
            made = _attend(q[begin:end], k, v, visible, sinks, part, scale, softcap)
        outputs.append(made[0])
        sums.append(made[1])
    done = int(query_start[-1])
    if done < q.shape[0] or not outputs:
        out, lse = _nothing(q.shape[0] - done, q, v_width)
        outputs.append(out)
        sums.append(lse)
    if len(outputs) == 1:
        return narrow(outputs[0], q), sums[0]
    return narrow(msops.cat(outputs, 0), q), msops.cat(sums, 0)


def _visible(keys: NDArray[Any], positions: NDArray[Any], window: int | None, causal: bool) -> NDArray[np.bool_]:
    """Which key each query sees, [queries, keys]."""
    seen = (positions[:, None] >= 0) & (keys >= 0)
    if causal:
        seen = seen & (keys <= positions[:, None])
    if window:
        seen = seen & (positions[:, None] - keys < window)
    return seen


def _nothing(n: int, q: Any, width: int) -> tuple[Any, Any]:
    """The result of n queries that see no key."""
    heads = q.shape[1]
    out = ms.Tensor(np.zeros((n, heads, width), np.float32))
    return out, ms.Tensor(np.full((n, heads), -np.inf, np.float32))


def _in_runs(x: Any, slots: NDArray[Any], there: NDArray[np.bool_]) -> Any:
    """Rows of x [rows, heads, width] at slots of whole runs, float32 [heads, runs, RUN, width]; zeros if not there."""
    heads, width = x.shape[1:]
    rows = wide(msops.gather(x, ms.Tensor(slots.astype(np.int32)), 0))
    if not there.all():
        rows = msops.select(ms.Tensor(there.reshape(-1, 1, 1)), rows, ms.Tensor(0.0, ms.float32))
    return msops.transpose(rows, (1, 0, 2)).reshape((heads, -1, RUN, width))


def _runs(first: int, length: int) -> NDArray[Any]:
    """Positions first to length - 1 as whole runs, which begin at multiples of RUN; -1 for others."""
    keys = np.arange(first - first % RUN, length + -length % RUN)
    return np.where((keys >= first) & (keys < length), keys, -1)


def _logits(grouped: Any, k: Any) -> Any:
    """Products float64 [kv_heads, rows, m] of queries [kv_heads, rows, width] and keys [kv_heads, runs, RUN, width]."""
    kv_heads, rows, width = grouped.shape
    queries, keys, total = grouped.expand_dims(1), msops.transpose(k, (0, 1, 3, 2)), None
    for start in range(0, width, _WIDTH):
        stop = min(start + _WIDTH, width)
        part = double(msops.matmul(piece(queries, -1, start, stop), piece(keys, 2, start, stop)))
        total = part if total is None else total + part
    return msops.transpose(total, (0, 2, 1, 3)).reshape((kv_heads, rows, -1))


def _mixed(shares: Any, v: Any) -> Any:
    """Shares float32 [kv_heads, rows, m] of values [kv_heads, runs, RUN, width], float32 [kv_heads, rows, width]."""
    kv_heads, rows, _ = shares.shape
    runs = msops.transpose(shares.reshape((kv_heads, rows, -1, RUN)), (0, 2, 1, 3))
    parts = msops.matmul(runs, v)
    total = parts[:, 0] + 0.0
    for run in range(1, parts.shape[1]):
        total = total + parts[:, run]
    return total


def _attend(
    q: Any, k: Any, v: Any, visible: NDArray[np.bool_], sinks: Any, bias: Any, scale: float, softcap: float | None
) -> tuple[Any, Any]:
    """One sequence: q [n, heads, k_dim] over k, v [kv_heads, runs, RUN, width] to float32 ([n, heads, v_dim], lse)."""
    (n, heads, width), kv_heads, m = q.shape, k.shape[0], visible.shape[1]
    grouped = msops.transpose(wide(q), (1, 0, 2)).reshape((kv_heads, heads // kv_heads * n, width))
    logits = _logits(grouped, k).reshape((heads, n, m)) * scale
    if softcap:
        logits = msops.tanh(logits / softcap) * softcap
    if bias is not None:
        logits = logits + double(msops.transpose(wide(bias), (1, 0, 2)))
    logits = msops.select(ms.Tensor(visible), logits, ms.Tensor(-np.inf, ms.float64))
    seen = ms.Tensor(visible.any(-1)[:, None])
    top = msops.select(seen, _MAX(logits, -1), ms.Tensor(0.0, ms.float64))
    sink = None if sinks is None else double(sinks).reshape((heads, 1, 1))
    if sink is not None:
        top = msops.maximum(top, sink)
    p = msops.exp(logits - top)
    total = _total(p)
    if sink is not None:
        total = total + msops.exp(sink - top)
    safe = msops.select(seen, total, ms.Tensor(1.0, ms.float64))
    shares = converted(p / safe, ms.float32).reshape((kv_heads, heads // kv_heads * n, m))
    out = _mixed(shares, v).reshape((heads, n, v.shape[-1]))
    lse = narrow(msops.select(seen, top + msops.log(safe), ms.Tensor(-np.inf, ms.float64)), v)
    return msops.transpose(out, (1, 0, 2)), msops.transpose(lse.reshape((heads, n)), (1, 0))


def _total(p: Any) -> Any:
    """The sums of rows [heads, n, m], as [heads, n, 1]: of each run, then of runs in their order."""
    heads, n, _ = p.shape
    runs = _SUM(p.reshape((heads, n, -1, RUN)), -1)
    total = runs[:, :, 0]
    for run in range(1, runs.shape[2]):
        total = total + runs[:, :, run]
    return total
