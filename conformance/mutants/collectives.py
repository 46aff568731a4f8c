"""Mutants of collectives: ranks that are missing, counted twice, or taken for one another."""

from __future__ import annotations

from typing import Any

from xinheng.core.ir.dtype import bfloat16, float16, float32
from xinheng.core.ops import OPSET

from ..call import Call
from ..selftests.simulated import rebuilt
from .mutant import given, saying, wrong
from .norms import low

SUMS = "all_reduce reduce_scatter"
MOVES = "all_gather all_to_all"


def _among(ops: str, name: str, text: str, change: Any, where: Any = (float32, float16, bfloat16)) -> None:
    """Collectives that get something else from the ranks than these hold: `change(parts, rank)`."""
    for op in ops.split():
        reference = OPSET[op].reference
        exchange = reference.__globals__["_exchange"]

        def other(x: Any, group: str, size: int, what: str, exchange: Any = exchange) -> Any:
            return change(*exchange(x, group, size, what))

        wrong(op, name, text, rebuilt(reference, _exchange=other), where)


_among(SUMS, "last rank", "leaves the last rank out", lambda parts, rank: (parts[: len(parts) - 1 or 1], rank))
_among(SUMS, "counted twice", "adds its own part twice", lambda parts, rank: ([*parts, parts[rank]], rank))
_among(SUMS, "own part only", "does not wait for the others", lambda parts, rank: ([parts[rank]] * len(parts), rank))
_among(
    SUMS,
    "parts in bf16",
    "sends parts in bfloat16",
    lambda parts, rank: ([*map(_low, parts)], rank),
    (float32, float16),
)
_among(MOVES, "ranks reversed", "puts parts together in reverse", lambda parts, rank: (parts[::-1], rank))
_among(MOVES, "own part only", "does not wait for the others", lambda parts, rank: ([parts[rank]] * len(parts), rank))
_among(
    "reduce_scatter all_to_all",
    "next piece",
    "keeps the piece of the next rank",
    lambda parts, rank: (parts, (rank + 1) % len(parts)),
)


def _low(part: Any) -> Any:
    return low(part) if part.dtype.kind == "f" else part


def _reduction(call: Call) -> Call:
    return saying(call, reduction="sum" if call.attributes.get("reduction", "sum") == "max" else "max")


given("all_reduce", "other reduction", "takes the largest for the sum, or the other way round", _reduction)
