"""Commands of the paged cache and of attention over it."""

from __future__ import annotations

from xinheng.core.ir.dtype import DType
from xinheng.core.ir.graph import Node, Value
from xinheng.core.ir.types import StateType

from ..program import Argument, NotPlannable, Planner, cache_code
from .encoder import encodes, operands_of, require_int32


@encodes("native_write_cache")
def write_cache(plan: Planner, node: Node) -> None:
    cache, k, v, slots = operands_of(node, "cache", "k", "v", "slots")
    state, scales = _state(cache), _scales(plan, cache)
    require_int32(plan, slots)
    for part, new in enumerate((k, v)):
        if not plan.place(new).contiguous:
            raise NotPlannable("write_cache of a view")
        tokens, heads, width = new.shape
        plan.command(
            "write_cache",
            node,
            plan.address(new),
            plan.type_code(new),
            *map(plan.number, (tokens, heads, heads * width, width, width)),
            plan.address(slots),
            plan.state_part(cache, part),
            plan.number(cache_code(state)),
            plan.state_size(cache, "blocks"),
            plan.state_size(cache, "block_size"),
            *_strides(plan, cache, part),
            *scales[part],
        )
    plan.share_state(cache, node.results[0])


@encodes("native_paged_attention")
def paged_attention(plan: Planner, node: Node) -> None:
    q, cache, start, lengths, table = operands_of(node, "q", "cache", "query_start", "seq_lens", "block_table")
    if node.operand("bias") is not None or not plan.place(q).contiguous:
        raise NotPlannable("paged_attention with a bias, or of a view")
    require_int32(plan, start, lengths, table)
    sinks, kind = node.operand("sinks"), cache.type
    assert isinstance(kind, StateType)
    tokens, heads, width = q.shape
    out, lse = node.results
    scales = _scales(plan, cache)
    spec = (kind["heads"], kind["k_dim"], kind["v_dim"])
    attributes = node.attributes
    plan.command(
        "attention",
        node,
        plan.address(q),
        plan.state_part(cache, 0),
        plan.state_part(cache, 1),
        *(plan.address(x) for x in (start, lengths, table, sinks)),
        plan.result(out),
        plan.result(lse) if _is_read(plan, lse) else plan.number(0),
        *map(plan.number, (tokens, heads, *spec, heads * width, width)),
        plan.state_size(cache, "blocks"),
        plan.state_size(cache, "block_size"),
        *map(plan.number, (lengths.shape[0], table.shape[1], table.shape[1])),
        *_strides(plan, cache, 0),
        *_strides(plan, cache, 1),
        plan.number(float(attributes["scale"])),
        plan.number(float(attributes["softcap"] or 0.0)),
        plan.number(attributes["window"]),
        plan.type_code(q),
        plan.number(cache_code(_state(cache))),
        plan.type_code(sinks),
        plan.number(attributes["causal"]),
        *(scale[0] for scale in scales),
        *(step for scale in scales for step in scale[1:]),
    )


def _is_read(plan: Planner, value: Value) -> bool:
    """Whether anything wants to know a value; the kernel spares the logarithms that nobody reads."""
    return id(value) in plan.read


def _strides(plan: Planner, cache: Value, part: int) -> list[Argument]:
    """Strides of keys (0) or values (1), in the order of `PageStrides` in csrc/attention.h."""
    return [plan.state_size(cache, f"stride {part} {axis}") for axis in range(4)]


def _scales(plan: Planner, cache: Value) -> list[list[Argument]]:
    """The address of the scales of keys and of values, and their strides; nothing for a cache that has none."""
    assert isinstance(cache.type, StateType)
    if not cache.type.quantized:
        return [[plan.number(0)] * 5] * 2
    steps = [[plan.state_size(cache, f"stride {part} {axis}") for axis in range(3)] for part in (2, 3)]
    return [[plan.state_part(cache, part), *step, plan.number(0)] for part, step in zip((2, 3), steps, strict=True)]


def _state(cache: Value) -> DType:
    assert isinstance(cache.type, StateType)
    if cache.type.kind != "paged_kv":
        raise NotPlannable(f"commands read no {cache.type}")
    return cache.type.parts[0].dtype
