"""D3: a row of a batch has the bits that it has alone, so that what a request gets does not depend on the others.

The tables say which operands of an op carry the batch. Exact ops are left out: their results are the same in any
company as long as they are right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from xinheng.core.ir import TensorType, Tolerance
from xinheng.core.ops import FAMILIES, OPSET

from ..call import Call
from ..draw import stream
from .bits import difference, flat
from .experiment import Experiment, Finding, Results

ELEMENTWISE = frozenset(
    op.name for family in ("elementwise", "transcendental", "division") for op in FAMILIES[family]
) | {"silu_and_mul", "gelu_and_mul"}
"""Ops whose operands are broadcast, or equal in shape."""

REDUCTIONS = frozenset({"softmax", "sum", "mean", "amax", "cumsum", "prod", "cumprod", "argmax", "topk"})
"""Ops along one axis of their only operand; the batch is the first axis, unless it is that one."""

ROWS: Mapping[str, Sequence[str]] = {
    "add_rms_norm": ("x", "residual"),
    "add_rms_norm_quant": ("x", "residual"),
    "average_pool": ("x",),
    "batched_linear": ("x",),
    "conv": ("x",),
    "conv_transpose": ("x",),
    "dynamic_quant": ("x",),
    "fused_moe": ("x", "weights", "experts"),
    "layer_norm": ("x",),
    "linear": ("x",),
    "matmul_all_reduce": ("x",),
    "moe_gating_topk": ("logits",),
    "quant_matmul": ("x", "x_scale"),
    "random_uniform": ("seed", "counter"),
    "rejection_sample": ("draft_ids", "draft_probs", "target_probs", "uniform"),
    "rms_norm": ("x",),
    "rotary_embedding": ("x", "cos", "sin"),
    "silu_and_mul_quant": ("gate", "up"),
    "top_k_top_p_sample": ("logits", "uniform", "temperature", "top_k", "top_p", "min_p"),
}
"""Operands whose first axis is the batch, as is that of all results."""


@dataclass(frozen=True)
class Sequences:
    """Operands of an op on sequences side by side: tokens by the bounds of queries, keys by others, and lists."""

    tokens: Sequence[str]
    starts: str = "query_start"
    keys: Sequence[str] = ()
    key_starts: str = ""
    listed: Sequence[str] = ()


SEQUENCES: Mapping[str, Sequences] = {
    "causal_conv1d": Sequences(("x",), listed=("slots", "fresh")),
    "gated_delta_rule": Sequences(("q", "k", "v", "gate", "beta"), listed=("slots", "fresh")),
    "mla_attention": Sequences(("q_latent", "q_rope"), listed=("seq_lens", "block_table")),
    "paged_attention": Sequences(("q", "bias"), listed=("seq_lens", "block_table")),
    "sdpa_varlen": Sequences(("q", "bias"), keys=("k", "v"), key_starts="key_start"),
}
"""Ops whose batch consists of sequences of several tokens; states are whole in either case."""

CACHED = frozenset({"mla_attention", "paged_attention"})
"""Those whose keys are all in the cache, so that a prompt may come in one piece or token by token."""

WITHOUT: Mapping[str, str] = {
    "all_reduce": "the ranks of a group share its result",
    "dequantize": "a weight is no batch",
    "dequantize_linear": "each element has its own result",
    "grouped_linear": "the rows of an expert are a batch by themselves; `fused_moe` is checked",
    "kv_norm_rope_cache": "its only result is the cache",
    "moe_unpermute": "rows are gathered from all places; `fused_moe` is checked",
    "quantize": "each element has its own result",
    "reduce_scatter": "the ranks of a group share its result",
    "scatter": "several updates may meet in one place",
}
"""Ops that are not exact and yet have no rows to compare, and why."""


@dataclass(frozen=True)
class Part:
    """A part of a batch as a call of its own, and where its results are among those of the whole."""

    name: str
    call: Call
    rows: slice
    axis: int = 0


def parts(call: Call, key: str = "") -> Iterator[Part]:
    """Two parts of the batch of a call, the last one and one that `key` chooses; none where there is no batch of two.

    Where keys are in a cache, the last token of a sequence of several, too.

    `axis` of a part counts from the front, or from the back if it is negative.
    """
    if OPSET[call.op].tolerance is Tolerance.EXACT or call.op in WITHOUT:
        return
    count, cut = _batch(call)
    if count > 1:
        for i in sorted({count - 1, int(stream("batch", key or call.id).integers(0, count))}):
            yield cut(i)
    if call.op in CACHED and call.attributes.get("causal", True):
        yield from _last_token(call, SEQUENCES[call.op])


def batch_slice(experiment: Experiment) -> tuple[Finding | None, bool]:
    """Whether parts of the batch, run alone, have the bits they have in it.

    Returns:
        What differs, and whether there was anything to compare.
    """
    compared = False
    for part in parts(experiment.trial.call):
        alone = experiment.run(experiment.prepare(part.call))
        text = difference(_tensors(part.call, alone), _taken(part, experiment.first))
        compared = True
        if text is not None:
            found = experiment.judge(part.call, alone)
            if not found.ok:
                return Finding(found.defect, f"{part.name} alone is wrong: {found.message}"), True
            return Finding("batch", f"{part.name} alone has other bits than in the batch: {text}"), True
    return None, compared


def _tensors(call: Call, made: Results) -> Results:
    pairs = zip(made, call.result_types, strict=True)
    return tuple(np.asarray(x) for x, kind in pairs if isinstance(kind, TensorType))


def _taken(part: Part, whole: Results) -> Results:
    tensors = _tensors(part.call, whole)
    return tuple(x[(*[slice(None)] * (part.axis % x.ndim), part.rows)] for x in flat(tensors))


Cut = Callable[[int], Part]


def _batch(call: Call) -> tuple[int, Cut]:
    """How many parts the batch of a call has, and what cuts one out."""
    names = [operand.name for operand in OPSET[call.op].operands]
    first = call.values[0]
    if call.op in SEQUENCES:
        return _sequences(call, names, SEQUENCES[call.op])
    if call.op in ("matmul", "int_matmul"):
        return _cutting(call, {0}, -2) if np.ndim(first) > 1 else (0, _nothing)
    if call.op in REDUCTIONS:
        axis = call.attributes.get("axis", -1) % max(np.ndim(first), 1)
        return _cutting(call, {0}) if np.ndim(first) > 1 and axis else (0, _nothing)
    if call.op in ROWS:
        carrying = {i for i, name in enumerate(names) if name in ROWS[call.op] and _present(call, i)}
        whole_rows = np.ndim(first) > 1 or call.op in ("random_uniform",)
        return _cutting(call, carrying) if whole_rows else (0, _nothing)
    if call.op in ELEMENTWISE:
        return _broadcast(call)
    return 0, _nothing


def _nothing(i: int) -> Part:
    raise IndexError(i)


def _present(call: Call, i: int) -> bool:
    return i < len(call.values) and call.values[i] is not None


def _broadcast(call: Call) -> tuple[int, Cut]:
    result = call.result_types[0]
    shape = result.shape if isinstance(result, TensorType) else ()
    if not shape or not isinstance(shape[0], int) or any(not isinstance(t, TensorType) for t in call.types if t):
        return 0, _nothing
    rank = len(shape)
    carrying = {i for i, v in enumerate(call.values) if np.ndim(v) == rank and np.shape(v)[0] == shape[0]}
    return _cutting(call, carrying) if carrying else (0, _nothing)


def _cutting(call: Call, carrying: set[int], axis: int = 0) -> tuple[int, Cut]:
    """Parts that are one place of an axis of the operands that carry it, and of the results."""
    count = int(np.shape(call.values[min(carrying)])[axis])

    def cut(i: int) -> Part:
        rows = slice(i, i + 1)

        def taken(x: Any) -> Any:
            return x[(*[slice(None)] * (axis % np.ndim(x)), rows)]

        values = tuple(taken(v) if j in carrying else v for j, v in enumerate(call.values))
        return Part(f"row {i}", _with(call, values, f"row {i}"), rows, axis)

    return count, cut


def _sequences(call: Call, names: Sequence[str], table: Sequences) -> tuple[int, Cut]:
    """Parts that are one sequence."""
    starts = np.asarray(call.values[names.index(table.starts)])
    filled = [s for s in range(len(starts) - 1) if starts[s] < starts[s + 1]]

    def cut(i: int) -> Part:
        s = filled[i]
        return _tokens(call, table, s, slice(int(starts[s]), int(starts[s + 1])), f"sequence {s}")

    return len(filled), cut


def _last_token(call: Call, table: Sequences) -> Iterator[Part]:
    """The last token of the longest piece of a prompt, if that has several; it sees the keys it saw before."""
    names = [operand.name for operand in OPSET[call.op].operands]
    starts = np.asarray(call.values[names.index(table.starts)])
    s = int(np.argmax(np.diff(starts))) if len(starts) > 1 else 0
    if len(starts) > 1 and starts[s + 1] - starts[s] > 1:
        stop = int(starts[s + 1])
        yield _tokens(call, table, s, slice(stop - 1, stop), f"the last token of sequence {s}")


def _tokens(call: Call, table: Sequences, s: int, rows: slice, what: str) -> Part:
    """Some tokens of sequence `s`, up to its last one."""
    names = [operand.name for operand in OPSET[call.op].operands]
    given = dict(zip(names, call.values, strict=False))
    made = dict(given)
    made[table.starts] = np.array([0, rows.stop - rows.start], np.asarray(given[table.starts]).dtype)
    if table.key_starts:
        bounds = np.asarray(given[table.key_starts])
        keys = slice(int(bounds[s]), int(bounds[s + 1]))
        made[table.key_starts] = np.array([0, keys.stop - keys.start], bounds.dtype)
        made |= {name: given[name][keys] for name in table.keys}
        if given.get("bias") is not None:
            made["bias"] = given["bias"][..., : keys.stop - keys.start]
    made |= {name: made[name][rows] for name in table.tokens if given.get(name) is not None}
    made |= {name: given[name][s : s + 1] for name in table.listed}
    return Part(what, _with(call, tuple(made[n] for n in given), what), rows)


def _with(call: Call, values: tuple[Any, ...], what: str) -> Call:
    """A call of other values, whose tensors have sizes to match."""
    types = tuple(
        TensorType(kind.dtype, np.shape(value)) if isinstance(kind, TensorType) else kind
        for kind, value in zip(call.types, values, strict=True)
    )
    return replace(call, id=f"{call.id}, {what}", values=values, types=types)
