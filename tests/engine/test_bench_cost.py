"""What ops cost: counted by hand for one node of each kind."""

from __future__ import annotations

import pytest

from xinheng.core import ops
from xinheng.core.ir import Builder, Node, TensorType, WeightType, paged_kv, sym
from xinheng.core.ir.dtype import float32, int32
from xinheng.engine.bench.cost import Cost, Step, cost
from xinheng.engine.bench.result import Share, Spread

TOKENS, SEQS = sym("tokens"), sym("seqs")


def linear_node(scheme: str) -> Node:
    b = Builder("g")
    x = b.input("x", TensorType(float32, (TOKENS, 64)))
    return b.build(ops.linear(x, b.parameter("w", WeightType((32, 64), scheme)))).nodes[-1]


def cost_of(node: Node, step: Step, fast: bool = False) -> Cost:
    found = cost(node, step, {"tokens": step.tokens, "seqs": len(step.queries), "blocks": 4}, fast)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("scheme", "fast", "kind", "weights"),
    [
        ("float32", True, "float32", 32 * 64 * 4),
        ("bfloat16", True, "bfloat16", 32 * 64 * 2),
        ("bfloat16", False, "float32", 32 * 64 * 2),
        ("q8_0", True, "int8", 32 * 2 * 34),
        ("q4_0", False, "float32", 32 * 2 * 18),
    ],
)
def test_a_product_reads_its_weight_once(scheme: str, fast: bool, kind: str, weights: int) -> None:
    found = cost_of(linear_node(scheme), Step((3,), (3,)), fast)
    assert found == Cost(2 * 3 * 32 * 64, kind, weights, 0, 3 * (64 + 32) * 4)


@pytest.mark.parametrize(
    ("step", "window", "pairs", "keys"),
    [
        (Step((4,), (4,)), None, 1 + 2 + 3 + 4, 4),
        (Step((1, 1), (10, 5)), None, 15, 15),
        (Step((1, 1), (10, 5)), 6, 11, 11),
        (Step((3,), (10,)), 4, 12, 6),
    ],
)
def test_attention_sees_what_is_before_it_and_in_its_window(
    step: Step, window: int | None, pairs: int, keys: int
) -> None:
    b = Builder("g")
    q = b.input("q", TensorType(float32, (TOKENS, 8, 16)))
    cache = b.state("cache", paged_kv(2, 16, 16, "float32"))
    start, lens = b.input("start", TensorType(int32, (SEQS + 1,))), b.input("lens", TensorType(int32, (SEQS,)))
    table = b.input("table", TensorType(int32, (SEQS, sym("blocks"))))
    out, _ = ops.paged_attention(q, cache, start, lens, table, scale=1.0, window=window)
    found = cost_of(b.build(out).nodes[-1], step)
    assert found.operations == 2 * 8 * (16 + 16) * pairs
    assert found.cache == keys * 2 * (16 + 16) * 4


def test_spreads_have_quartiles_and_shares_name_their_limit() -> None:
    assert Spread.of([5.0, 1.0, 3.0]) == Spread(3.0, 1.0, 5.0, 2.0, 4.0, 3)
    assert Spread.of([2.0]) == Spread(2.0, 2.0, 2.0, 2.0, 2.0, 1)
    assert (Share(0.5, 0.2).limit, Share(0.1, 0.2).limit) == ("bandwidth", "arithmetic")
