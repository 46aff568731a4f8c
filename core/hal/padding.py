"""Which value fills each input of a graph that is padded to larger sizes, and proof that padding changes no result.

Padding appends rows at the end of an axis. It is harmless where every op treats the rows of that axis one by one, or by
its own contract ignores those behind the last sequence. Ops that are not known to do so are refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import UnsupportedOp
from ..ir.dim import Dim, symbols
from ..ir.graph import Graph, Node, Value
from ..ir.types import TensorType
from ..ops import FAMILIES

EDGE = "edge"
"""Fill with the last value there is: the start of a sequence that has no rows."""
Fill = int | str

FILLS: dict[str, Fill] = {"slots": -1, "query_start": EDGE, "key_start": EDGE, "seq_lens": 0}
"""What makes padding invisible to the ops of `PAGED`, by operand: these have to be inputs of the graph."""
PAGED = {
    "causal_conv1d", "gated_delta_rule", "kv_norm_rope_cache", "mla_attention", "paged_attention", "sdpa_varlen",
    "write_cache", "write_latent_cache",
}  # fmt: skip

ELEMENTWISE = {op.name for family in ("elementwise", "transcendental", "division") for op in FAMILIES.get(family, ())}
ROWS = {
    "add_rms_norm", "add_rms_norm_quant", "all_reduce", "batched_linear", "dynamic_quant", "embedding", "fused_moe",
    "gelu_and_mul", "layer_norm", "linear", "matmul_all_reduce", "moe_gating_topk", "quant_matmul", "random_uniform",
    "rms_norm", "rotary_embedding", "silu_and_mul", "silu_and_mul_quant", "top_k_top_p_sample", "topk",
}  # fmt: skip
"""Ops that treat the rows of the first axis one by one."""
ALONG = {
    "amax", "argmax", "concat", "cumprod", "cumsum", "mean", "prod", "slice", "softmax", "split", "sum",
}  # fmt: skip
"""Ops that mix the elements of their attribute `axis` only."""
SORTED = {"grouped_linear", "silu_and_mul", "gelu_and_mul", *ELEMENTWISE}
"""Ops that may read rows sorted by expert, among which padded rows lie anywhere."""


def fills_of(graph: Graph) -> dict[str, Fill]:
    """The filling of each input of `graph`, 0 where any will do.

    Raises:
        UnsupportedOp: results would depend on how far the inputs are padded; the message names the op and the size.
    """
    fills: dict[str, Fill] = {}
    mixed: set[int] = set()
    for node in graph.nodes:
        reason = _reason(node, mixed)
        if reason is not None:
            raise UnsupportedOp(f"{node.op.name} cannot be computed with padded sizes: {reason}")
        for operand, value in _read(node):
            wanted = FILLS.get(operand) if node.op.name in PAGED else None
            if wanted is not None and fills.setdefault(value.name, wanted) != wanted:
                raise UnsupportedOp(f"input {value.name!r} cannot be padded: two ops want other fillings of it")
    for name, value in graph.outputs.items():
        if id(value) in mixed:
            raise UnsupportedOp(f"output {name!r} cannot be computed with padded sizes: its rows are sorted by expert")
    return {value.name: fills.get(value.name, 0) for value in graph.inputs}


def _read(node: Node) -> list[tuple[str, Value]]:
    """The operands of a node that are there, by name."""
    last = len(node.op.operands) - 1
    return [(node.op.operands[min(i, last)].name, v) for i, v in enumerate(node.operands) if v is not None]


def padded_axes(value: Value | None) -> tuple[int, ...]:
    """The axes of a tensor whose sizes are not numbers."""
    shape = value.type.shape if value is not None and isinstance(value.type, TensorType) else ()
    return tuple(axis for axis, dim in enumerate(shape) if _free(dim))


def _free(attribute: Any) -> bool:
    if isinstance(attribute, tuple):
        return any(map(_free, attribute))
    return not isinstance(attribute, int | float | str | bool) and _has_symbols(attribute)


def _has_symbols(dim: Any) -> bool:
    return hasattr(dim, "terms") and any(True for _ in symbols(dim))


def _reason(node: Node, mixed: set[int]) -> str | None:
    """Why a node is not indifferent to padding, None if it is; notes the results that are sorted by expert."""
    name, values = node.op.name, [v for v in (*node.operands, *node.results) if v is not None]
    free = [key for key, attribute in node.attributes.items() if _free(attribute)]
    if not free and not any(padded_axes(v) for v in values):
        return None
    if name == "moe_permute":
        mixed.update(map(id, node.results))
        return None
    if name != "moe_unpermute" and any(id(v) in mixed for v in values):
        mixed.update(map(id, node.results))
        return None if name in SORTED else "it reads rows that are sorted by expert"
    rule = _RULES.get(name)
    if rule is None:
        return "it is not known to treat padded rows apart from the others"
    wrong = [key for key in free if (name, key) not in _SIZED]
    return f"its attribute {wrong[0]!r} is a size that padding changes" if wrong else rule(node)


_SIZED = {("arange", "size"), ("full", "shape"), ("reshape", "shape"), ("expand", "shape")}
"""Attributes that only say how long a result is."""


def _never(node: Node) -> str | None:
    return None


def _first_axis(node: Node) -> str | None:
    for value in (*node.operands, *node.results):
        if any(axis > 0 for axis in padded_axes(value)):
            assert value is not None
            return f"{value.type} is padded inside its rows"
    return None


def _one_axis(node: Node) -> str | None:
    for value in node.operands:
        if value is not None and node.attributes["axis"] % value.tensor.rank in padded_axes(value):
            return f"it mixes elements along a padded axis of {value.type}"
    return None


def _matmul(node: Node) -> str | None:
    a, b = node.operands
    assert a is not None and b is not None
    inner = a.tensor.rank - 1 in padded_axes(a) or b.tensor.rank - 2 in padded_axes(b)
    return "its inner size is padded" if inner else None


def _reshape(node: Node) -> str | None:
    source, result = node.operands[0], node.results[0]
    assert source is not None
    before, after = source.shape, result.shape
    same = 0
    while same < min(len(before), len(after)) and before[same] == after[same]:
        same += 1
    if not any(map(_free, (*before[same:], *after[same:]))) or _lead(before, same) == _lead(after, same) == (0,):
        return None
    return f"it joins or splits a padded axis of {source.type}"


def _lead(shape: tuple[Dim, ...], same: int) -> tuple[int, ...]:
    """The padded axes of a shape, if nothing before its first difference from another shape is kept."""
    return tuple(axis for axis, dim in enumerate(shape) if _free(dim)) if same == 0 else ()


def _paged(node: Node) -> str | None:
    for operand, value in _read(node):
        if operand in FILLS and value.kind != "input":
            return f"{operand} is computed inside the graph, where nobody can pad it"
        if operand != "block_table" and any(axis > 0 for axis in padded_axes(value)):
            return f"{operand} {value.type} is padded inside its rows"
    return None


_RULES: dict[str, Callable[[Node], str | None]] = {
    **dict.fromkeys(ELEMENTWISE, _never),
    **dict.fromkeys(("arange", "full", "permute", "expand", "index_select", "gather", "moe_unpermute"), _never),
    **dict.fromkeys(ROWS, _first_axis),
    **dict.fromkeys(ALONG, _one_axis),
    **dict.fromkeys(PAGED, _paged),
    "matmul": _matmul,
    "reshape": _reshape,
}
