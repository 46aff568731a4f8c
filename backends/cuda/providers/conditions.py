"""What attention libraries take, as conditions on nodes, and rows that they leave out."""

from __future__ import annotations

from collections.abc import Callable, Container

import torch

from xinheng.core.ir.dtype import bfloat16, float16
from xinheng.core.ir.graph import Node
from xinheng.core.ir.types import StateType

Tensor = torch.Tensor

HALVES = frozenset({float16, bfloat16})


def heads_in(widths: Container[int], library: str) -> Callable[[Node], bool | str]:
    """Heads of keys and values of one of these widths; a cache in the dtype of the queries."""

    def holds(node: Node) -> bool | str:
        q, cache = node.operand("q"), node.operand("cache") if "cache" in _names(node) else None
        assert q is not None
        if cache is None:
            k, v = node.operand("k"), node.operand("v")
            assert k is not None and v is not None
            given = (k.shape[2], v.shape[2])
        else:
            assert isinstance(cache.type, StateType)
            given = (cache.type["k_dim"], cache.type["v_dim"])
            if cache.type["scheme"] != q.tensor.dtype.name:
                return f"{library} wants a cache in the dtype of the queries"
        fits = isinstance(given[0], int) and given[0] == given[1] and given[0] in widths
        return fits or f"{library} has no heads of {given[0]} and {given[1]} elements"

    return holds


def _names(node: Node) -> list[str]:
    return [operand.name for operand in node.op.operands]


def filled(out: Tensor, lse: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Results with rows of 0 and -inf behind those that a library computed, up to so many."""
    missing = rows - out.shape[0]
    if not missing:
        return out, lse
    nothing = torch.full((missing, *lse.shape[1:]), -torch.inf, dtype=lse.dtype, device=lse.device)
    return torch.cat((out, out.new_zeros(missing, *out.shape[1:]))), torch.cat((lse, nothing))
