"""Native mixtures of experts against the references in float64, whatever other tokens there are."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from xinheng.backends._torch import TorchWeight
from xinheng.backends.cpu.kernels import by_group, tileable, tiled
from xinheng.core import ops
from xinheng.core.errors import DeviceError
from xinheng.core.hal import WeightPart, WeightSource

Tensor = torch.Tensor
KINDS = [torch.float32, torch.bfloat16, torch.float16]
EPS = {torch.float32: 2.0**-23, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
SCHEMES = ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k", "bfloat16", "float16", "float32"]


def normal(rng: np.random.Generator, *shape: int, kind: torch.dtype = torch.float32) -> Tensor:
    return torch.from_numpy(rng.standard_normal(shape).astype(np.float32)).to(kind)


# ------------------------------------------------------------------------------------------------------------- choosing
RULES: list[dict[str, Any]] = [
    {"k": 2},
    {"k": 8, "renormalise": False},
    {"k": 3, "score": "sigmoid", "scale": 2.5, "groups": 4, "groups_kept": 2},
    {"k": 4, "score": "sigmoid", "groups": 8, "groups_kept": 4, "group_score": "max"},
    {"k": 64},
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_experts_are_those_of_the_reference(
    build: SimpleNamespace, rng: np.random.Generator, rule: dict[str, Any], biased: bool, kind: torch.dtype
) -> None:
    logits = normal(rng, 33, 64, kind=kind)
    bias = normal(rng, 64) / 4 if biased else None
    known: dict[str, Any] = {
        "score": "softmax",
        "renormalise": True,
        "scale": 1.0,
        "groups": 1,
        "groups_kept": 1,
        "group_score": "top2",
    }
    weights, chosen = build.moe_gating_topk(logits, bias, **rule)
    wide = None if bias is None else bias.double().numpy()
    expected, experts = ops.moe_gating_topk.reference(logits.double().numpy(), wide, **known | rule)
    np.testing.assert_array_equal(chosen.numpy(), experts)
    np.testing.assert_allclose(weights.numpy(), expected, rtol=2e-7)
    assert (weights.dtype, chosen.dtype) == (torch.float32, torch.int32)


def test_equal_scores_are_taken_by_index(build: SimpleNamespace) -> None:
    logits = torch.tensor([[1.0, 2.0, 2.0, 1.0, 2.0, 1.0]])
    assert build.moe_gating_topk(logits, k=5)[1].tolist() == [[1, 2, 4, 0, 3]]
    wall = torch.tensor([float("-inf")] * 6)
    assert build.moe_gating_topk(logits, wall, k=3)[1].tolist() == [[0, 1, 2]]
    grouped = build.moe_gating_topk(torch.zeros(1, 6), k=2, score="sigmoid", groups=3, groups_kept=1)
    assert grouped[1].tolist() == [[0, 1]]


# -------------------------------------------------------------------------------------------------------------- sorting
@pytest.mark.parametrize("kind", [*KINDS, torch.int32], ids=str)
@pytest.mark.parametrize("tokens", [0, 1, 5, 300])
def test_rows_are_sorted_by_expert_and_summed_again(
    build: SimpleNamespace, rng: np.random.Generator, tokens: int, kind: torch.dtype
) -> None:
    x, experts = normal(rng, tokens, 37, kind=kind), rng.integers(0, 7, (tokens, 3)).astype(np.int32)
    rows, order, counts = build.moe_permute(x, torch.from_numpy(experts), num_experts=7)
    plain = (x if kind is torch.int32 else x.double()).numpy()
    expected = ops.moe_permute.reference(plain, experts, num_experts=7)
    for made, wanted in zip((rows, order, counts), expected, strict=True):
        np.testing.assert_array_equal(made.double().numpy(), wanted)
    if kind is torch.int32:
        return
    weights = normal(rng, tokens, 3).abs()
    total = build.moe_unpermute(rows, order, weights)
    wanted = ops.moe_unpermute.reference(rows.double().numpy(), order.numpy(), weights.double().numpy())
    assert total.dtype is kind
    np.testing.assert_allclose(total.double().numpy(), wanted, atol=16 * EPS[kind] * 4, rtol=EPS[kind])


def test_rows_of_views_are_sorted_too(build: SimpleNamespace, rng: np.random.Generator) -> None:
    x, experts = normal(rng, 6, 64)[:, 8:40], torch.from_numpy(rng.integers(0, 4, (6, 2)))
    assert torch.equal(
        build.moe_permute(x, experts, num_experts=4)[0], build.moe_permute(x.clone(), experts, num_experts=4)[0]
    )


def test_impossible_experts_orders_and_counts_are_errors(build: SimpleNamespace, random_weight: Any) -> None:
    x = torch.ones(2, 32)
    with pytest.raises(DeviceError, match=r"moe_permute: expert 4 of choice 3 is outside 0 \.\. 3"):
        build.moe_permute(x, torch.tensor([[0, 1], [2, 4]]), num_experts=4)
    with pytest.raises(DeviceError, match="moe_unpermute: order is no permutation: element 2 is 0"):
        build.moe_unpermute(torch.ones(4, 3), torch.tensor([0, 1, 0, 2]), torch.ones(2, 2))
    weight = stacked(random_weight([("q8_0", 12)], 32), 3)
    for counts, message in (
        ([1, 2, 0], "2 rows for group 1, 3 in all, but x has 2"),
        ([1, 0, 0], "0 rows for group 2, 1 in all"),
        ([-1, 2, 1], "-1 rows for group 0"),
    ):
        with pytest.raises(DeviceError, match=f"grouped_linear: counts tell {message}"):
            build.grouped_linear(x, weight, torch.tensor(counts))


# ------------------------------------------------------------------------------------------------------------- products
def stacked(weight: TorchWeight, groups: int) -> TorchWeight:
    rows, columns = weight.shape
    return TorchWeight((groups, rows // groups, columns), weight.parts)


def in_tiles(library: Any, weight: TorchWeight) -> Any:
    """The same weight for the kernels with int8 activations."""

    def load(data: Tensor) -> Callable[[], Any]:
        return lambda: data.contiguous().view(torch.uint8).reshape(len(data), -1).numpy()

    parts = tuple(WeightPart(part.scheme, part.rows, load(part.data)) for part in weight.parts)
    return tiled(library, by_group(WeightSource("w", weight.shape, parts)))


def expected_rows(x: Tensor, values: Any, counts: list[int]) -> Any:
    ends = list(itertools.accumulate(counts))
    pieces = [
        x[end - n : end].double().numpy() @ values[g].T for g, (n, end) in enumerate(zip(counts, ends, strict=True))
    ]
    return np.concatenate(pieces)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("name", SCHEMES)
def test_each_row_meets_the_weight_of_its_group(
    native: SimpleNamespace, rng: np.random.Generator, random_weight: Any, exact: Any, name: str, kind: torch.dtype
) -> None:
    groups, out, columns, counts = 5, 24, 512, [3, 0, 17, 1, 6]
    weight = stacked(random_weight([(name, groups * out)], columns), groups)
    x = normal(rng, sum(counts), columns, kind=kind)
    made = native.grouped_linear(x, weight, torch.tensor(counts))
    values = exact(TorchWeight((groups * out, columns), weight.parts)).reshape(weight.shape)
    wanted = expected_rows(x, values, counts)
    scale = np.abs(values).max() * np.sqrt(columns) * 4
    np.testing.assert_allclose(made.double().numpy(), wanted, atol=scale * 2.0**-18, rtol=EPS[kind])
    if tileable(native.library, ((name, groups * out),), columns) is not None:
        return
    rough = native.grouped_linear(x, in_tiles(native.library, weight), torch.tensor(counts))
    np.testing.assert_allclose(rough.double().numpy(), wanted, atol=scale / 127, rtol=EPS[kind])


def test_groups_may_be_runs_of_several_schemes(
    build: SimpleNamespace, rng: np.random.Generator, random_weight: Any, exact: Any
) -> None:
    weight = stacked(random_weight([("q4_0", 20), ("q8_0", 7), ("q4_0", 21)], 64), 3)
    counts, x = [2, 5, 1], normal(rng, 8, 64)
    values = exact(TorchWeight((48, 64), weight.parts)).reshape(weight.shape)
    wanted = expected_rows(x, values, counts)
    made = build.grouped_linear(x, weight, torch.tensor(counts))
    np.testing.assert_allclose(made.numpy(), wanted, atol=1e-4)
    rough = build.grouped_linear(x, in_tiles(build.library, weight), torch.tensor(counts))
    np.testing.assert_allclose(rough.numpy(), wanted, atol=np.abs(wanted).max() / 20)


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("tiles", [False, True])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_row_has_the_same_bits_in_any_company(
    native: SimpleNamespace, rng: np.random.Generator, random_weight: Any, kind: torch.dtype, tiles: bool, threads: int
) -> None:
    groups, columns, counts = 9, 256, [1, 0, 40, 7, 2, 13, 0, 5, 1]
    weight: Any = stacked(random_weight([("q4_k", groups * 33)], columns), groups)
    weight = in_tiles(native.library, weight) if tiles else weight
    x = normal(rng, sum(counts), columns, kind=kind)
    native.library.set_threads(threads)
    whole = native.grouped_linear(x, weight, torch.tensor(counts))
    owners = [g for g, n in enumerate(counts) for _ in range(n)]
    for row in (0, 3, 40, 41, 50, 60, len(owners) - 1):
        alone = torch.zeros(groups, dtype=torch.int64)
        alone[owners[row]] = 1
        assert torch.equal(native.grouped_linear(x[row : row + 1], weight, alone), whole[row : row + 1])


# --------------------------------------------------------------------------------------------------------- in one piece
@pytest.mark.parametrize("tiles", [False, True])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_networks_are_those_of_the_reference_in_any_company(
    build: SimpleNamespace, rng: np.random.Generator, random_weight: Any, exact: Any, kind: torch.dtype, tiles: bool
) -> None:
    count, inner, width, tokens = 5, 32, 64, 21
    shapes = ((inner, width), (inner, width), (width, inner))
    flat = [random_weight([("q8_0", count * rows)], columns) for rows, columns in shapes]
    held: list[Any] = [stacked(weight, count) for weight in flat]
    values = [exact(weight).reshape(w.shape) for weight, w in zip(flat, held, strict=True)]
    if tiles:
        held = [in_tiles(build.library, weight) for weight in held]
    x, weights = normal(rng, tokens, width, kind=kind), normal(rng, tokens, 3).abs()
    experts = torch.from_numpy(np.stack([rng.permutation(count)[:3] for _ in range(tokens)]))
    made = build.fused_moe(x, weights, experts, *held)
    wide: Any = (x.double().numpy(), weights.double().numpy(), experts.numpy())
    wanted = ops.fused_moe.reference(*wide, *values)
    assert made.dtype is kind
    scale = np.abs(wanted).max()
    np.testing.assert_allclose(made.double().numpy(), wanted, atol=scale * (0.05 if tiles else 1e-5), rtol=EPS[kind])
    for start, stop in ((0, 1), (4, 9), (20, 21)):
        alone = build.fused_moe(x[start:stop], weights[start:stop], experts[start:stop], *held)
        assert torch.equal(alone, made[start:stop])
    with pytest.raises(DeviceError, match=r"fused_moe: expert 5 of choice 2 is outside 0 \.\. 4"):
        build.fused_moe(x[:1], weights[:1], torch.tensor([[0, 1, 5]]), *held)
