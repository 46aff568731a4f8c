"""Commands of latent attention, its cache, and the per-head products around it."""

from __future__ import annotations

from xinheng.core.ir.dim import Dim
from xinheng.core.ir.dtype import DTYPES
from xinheng.core.ir.graph import Node, Value
from xinheng.core.ir.types import StateType, WeightType

from ..program import NotPlannable, Planner, code_of
from .encoder import encodes, matrix_of, operands_of, require_int32


@encodes("native_write_latent_cache")
def write_latent_cache(plan: Planner, node: Node) -> None:
    cache, latent, rope, slots = operands_of(node, "cache", "latent", "rope", "slots")
    require_int32(plan, slots)
    for part, new in enumerate((latent, rope)):
        tokens, stride = matrix_of(plan, new)
        width = new.shape[1]
        plan.command(
            "write_cache",
            node,
            plan.address(new),
            plan.type_code(new),
            *map(plan.number, (tokens, 1, stride, width, width)),
            plan.address(slots),
            plan.state_part(cache, part),
            plan.number(_coding(cache)),
            plan.state_size(cache, "blocks"),
            plan.state_size(cache, "block_size"),
            plan.state_size(cache, f"stride {part} 0"),
            plan.state_size(cache, f"stride {part} 1"),
            plan.number(0),
            plan.state_size(cache, f"stride {part} 2"),
            *[plan.number(0)] * 5,  # no scales
        )
    plan.share_state(cache, node.results[0])


@encodes("native_mla_attention")
def mla_attention(plan: Planner, node: Node) -> None:
    q_latent, q_rope, cache = operands_of(node, "q_latent", "q_rope", "cache")
    lengths = operands_of(node, "query_start", "seq_lens", "block_table")
    require_int32(plan, *lengths)
    tokens, heads, dim = q_latent.shape
    seqs, blocks = lengths[2].shape
    plan.command(
        "latent_attention",
        node,
        plan.address(q_latent),
        plan.address(q_rope),
        plan.state_part(cache, 0),
        plan.state_part(cache, 1),
        *map(plan.address, lengths),
        *map(plan.result, node.results),
        *map(plan.number, (tokens, heads, dim, q_rope.shape[2])),
        *map(plan.number, (*_head_strides(plan, q_latent), *_head_strides(plan, q_rope))),
        plan.state_size(cache, "blocks"),
        plan.state_size(cache, "block_size"),
        *map(plan.number, (seqs, blocks)),
        plan.number(float(node.attributes["scale"])),
        plan.type_code(q_latent),
        plan.number(_coding(cache)),
        plan.number(node.attributes["causal"]),
    )


@encodes("native_batched_linear")
def batched_linear(plan: Planner, node: Node) -> None:
    x, weight = operands_of(node, "x", "weight")
    assert isinstance(weight.type, WeightType)
    result = node.results[0]
    plan.command(
        "batched",
        node,
        plan.address(x),
        plan.weight_table(weight)[0],
        plan.result(result),
        *map(plan.number, (*x.shape, result.shape[2], *_head_strides(plan, x))),
        plan.type_code(x),
        plan.number(node.attributes["transposed"]),
    )


def _head_strides(plan: Planner, x: Value) -> tuple[Dim, Dim]:
    """The distances of tokens and of heads of [tokens, heads, width] in values."""
    row = plan.place(x).row
    return x.shape[1] * row, row


def _coding(cache: Value) -> int:
    assert isinstance(cache.type, StateType)
    kind = DTYPES.get(cache.type["scheme"])
    if kind is None:
        raise NotPlannable(f"commands read no {cache.type}")
    return code_of(kind)
