"""Random numbers and sampling against independent implementations and known answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xinheng.core import ops
from xinheng.core.errors import GraphError
from xinheng.core.ir import Builder, TensorType, sym
from xinheng.core.ir.dtype import float32, int32, uint32
from xinheng.core.ops.sampling import philox

MASK = 0xFFFFFFFF


def philox4x32(counter: list[int], key: list[int]) -> list[int]:
    """Ten rounds in Python integers, after Salmon et al. 2011, section 3.3."""
    c, k = list(counter), list(key)
    for _ in range(10):
        left, right = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(right >> 32) ^ c[1] ^ k[0], right & MASK, (left >> 32) ^ c[3] ^ k[1], left & MASK]
        k = [(k[0] + 0x9E3779B9) & MASK, (k[1] + 0xBB67AE85) & MASK]
    return c


def test_the_python_form_gives_the_known_answers_of_random123() -> None:
    assert philox4x32([0] * 4, [0] * 2) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert philox4x32([MASK] * 4, [MASK] * 2) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    pi = [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344]
    assert philox4x32(pi, [0xA4093822, 0x299F31D0]) == [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]


def test_the_first_known_answer() -> None:
    assert hex(int(philox(np.zeros((1, 2), np.uint32), np.zeros(1, np.uint32))[0])) == "0x6627e8d5"
    out = ops.random_uniform.reference(np.zeros((1, 2), np.uint32), np.zeros(1, np.uint32))
    assert out.tolist() == [0x6627E8 / 2**24]


WORDS = st.one_of(st.integers(0, MASK), st.sampled_from([0, 1, MASK, MASK - 1, 2**31, 2**31 - 1]))


@given(st.lists(st.tuples(WORDS, WORDS, WORDS), min_size=1, max_size=5))
def test_random_uniform(rows: list[tuple[int, int, int]]) -> None:
    seed = np.array([row[:2] for row in rows], np.uint32)
    counter = np.array([row[2] for row in rows], np.uint32)
    want = [(philox4x32([c, 0, 0, 0], [a, b])[0] >> 8) / 2**24 for a, b, c in rows]
    assert ops.random_uniform.reference(seed, counter).tolist() == want


def test_numbers_are_uniform_and_below_one() -> None:
    seed = np.tile(np.array([[7, 9]], np.uint32), (20000, 1))
    out = ops.random_uniform.reference(seed, np.arange(20000, dtype=np.uint32))
    assert out.min() >= 0
    assert out.max() < 1
    histogram = np.histogram(out, 20, (0, 1))[0]
    assert ((histogram - 1000) ** 2 / 1000).sum() < 50
    assert np.unique(out).size > 19900


def chosen(logits: Any, u: float, temperature: float, top_k: int, top_p: float, min_p: float) -> int:
    """One row of the sampler, written as a loop over the sorted candidates."""
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    if temperature <= 0:
        return order[0]
    order = order[:top_k] if top_k > 0 else order
    scaled = [float(logits[i]) / temperature for i in order]
    weights = [np.exp(x - scaled[0]) for x in scaled]
    total = sum(weights)
    kept: list[float] = []
    before = 0.0
    for rank, weight in enumerate(weights):
        p = weight / total
        inside = before < top_p and p >= min_p * weights[0] / total
        if rank == 0 or inside:
            kept.append(p)
        before += p
    target, running = u * sum(kept), 0.0
    for rank, p in enumerate(kept):
        running += p
        if running > target:
            return order[rank]
    return order[len([p for p in kept if p > 0]) - 1]


def sample(
    logits: Any, u: Any, temperature: Any = 1.0, top_k: Any = 0, top_p: Any = 1.0, min_p: Any = 0.0
) -> list[int]:
    rows = len(logits)
    given = [np.broadcast_to(np.asarray(x), rows) for x in (u, temperature, top_k, top_p, min_p)]
    made: list[int] = ops.top_k_top_p_sample.reference(np.asarray(logits, float), *given).tolist()
    return made


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from([-3.0, -1.0, 0.0, 0.25, 0.5, 2.0, 4.0, -np.inf]), min_size=1, max_size=9),
    st.floats(0, 1, exclude_max=True, width=32),
    st.sampled_from([0.0, 0.3, 1.0, 2.5, -1.0]),
    st.integers(-1, 11),
    st.sampled_from([0.0, 0.21, 0.5, 0.83, 1.0]),
    st.sampled_from([0.0, 0.07, 0.4, 1.0, 1.5]),
)
def test_sampling(logits: list[float], u: float, temperature: float, top_k: int, top_p: float, min_p: float) -> None:
    if max(logits) == -np.inf:
        logits[0] = 0.0
    got = sample([logits], u, temperature, top_k, top_p, min_p)[0]
    near = {
        chosen(logits, min(max(u + d, 0), 1), temperature, top_k, top_p + e, min_p + f)
        for d in (-1e-12, 0, 1e-12)
        for e in (-1e-12, 0, 1e-12)
        for f in (-1e-12, 0, 1e-12)
    }
    assert got in near


LOGITS = [[1.0, 3.0, 2.0, 3.0]]


def test_greedy_takes_the_lowest_of_equals() -> None:
    assert sample(LOGITS, 0.99, temperature=0.0) == [1]
    assert sample(LOGITS, 0.99, temperature=-1.0, top_k=1) == [1]
    assert sample([[2.0, 2.0, 2.0]], 0.0, temperature=0.0) == [0]


def test_equal_logits_come_in_the_order_of_their_index() -> None:
    equal = np.zeros((8, 4))
    assert sample(equal, np.arange(8) / 8) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_the_first_candidate_always_stays() -> None:
    for limits in (
        {"top_p": 0.0},
        {"top_p": -1.0},
        {"min_p": 2.0},
        {"top_k": 1},
        {"top_p": 0.0, "min_p": 9.0, "top_k": 3},
    ):
        assert sample(LOGITS, 0.999, **limits) == [1]


def test_top_p_keeps_the_shortest_run_that_reaches_it() -> None:
    halves = np.log([[0.5, 0.25, 0.125, 0.125]])
    assert sample(halves, 0.999, top_p=0.5) == [0]
    assert sample(halves, 0.999, top_p=0.51) == [1]
    assert sample(halves, 0.999, top_p=0.75) == [1]
    assert sample(halves, 0.66, top_p=0.51) == [0]
    assert sample(halves, 0.67, top_p=0.51) == [1]
    assert sample(halves, 0.999, top_p=1.0) == [3]


def test_min_p_is_relative_to_the_largest() -> None:
    halves = np.log([[0.5, 0.25, 0.125, 0.125]])
    assert sample(halves, 0.999, min_p=0.49) == [1]
    assert sample(halves, 0.999, min_p=0.51) == [0]
    assert sample(halves, 0.999, min_p=0.24) == [3]


def test_top_k_comes_before_top_p() -> None:
    equal = np.zeros((1, 10))
    # Half of the two that top_k keeps is one token; half of all ten would be five.
    assert sample(equal, 0.999, top_k=2, top_p=0.5) == [0]
    assert sample(equal, 0.999, top_p=0.45) == [4]


def test_masked_tokens_are_never_chosen() -> None:
    masked = [[-np.inf, 0.0, -np.inf, 0.0]]
    for u in np.linspace(0, 0.9999, 50):
        assert sample(masked, u)[0] in (1, 3)


def test_rows_are_independent() -> None:
    rng = np.random.default_rng(0)
    logits, u = rng.normal(size=(6, 20)), rng.uniform(size=6)
    temperature, top_k = np.array([0, 1, 0.5, 2, 1, 1]), np.array([0, 0, 3, 1, 5, 99])
    together = sample(logits, u, temperature, top_k, 0.9, 0.05)
    alone = [sample(logits[i : i + 1], u[i], temperature[i], top_k[i], 0.9, 0.05)[0] for i in range(6)]
    assert together == alone


def test_frequencies_follow_the_distribution() -> None:
    logits = np.log([0.4, 0.3, 0.2, 0.1])
    u = np.random.default_rng(1).uniform(size=8000)
    counts = np.bincount(sample(np.tile(logits, (8000, 1)), u, top_k=3), minlength=4) / 8000
    np.testing.assert_allclose(counts, [4 / 9, 3 / 9, 2 / 9, 0], atol=0.02)


@pytest.mark.parametrize(
    ("changed", "kind", "message"),
    [
        (0, TensorType(float32, (3,)), r"logits must be float32 \[rows, vocabulary\]"),
        (1, TensorType(float32, (4,)), r"has not one element per row"),
        (2, TensorType(int32, (3,)), r"temperature must be float32 \[rows\]"),
        (3, TensorType(float32, (3,)), r"top_k must be int32 \[rows\]"),
        (3, TensorType(int32, ()), r"top_k must be int32 \[rows\]"),
        (5, TensorType(float32, (3, 1)), r"min_p must be float32 \[rows\]"),
    ],
)
def test_wrong_types(changed: int, kind: TensorType, message: str) -> None:
    b = Builder()
    row = TensorType(float32, (3,))
    kinds = [TensorType(float32, (3, 8)), row, row, TensorType(int32, (3,)), row, row]
    kinds[changed] = kind
    with pytest.raises(GraphError, match=message):
        ops.top_k_top_p_sample(*(b.input(f"x{i}", k) for i, k in enumerate(kinds)))


def test_wrong_types_of_random_numbers() -> None:
    b = Builder()
    seed, counter = (
        b.input("seed", TensorType(uint32, (sym("n"), 2))),
        b.input("counter", TensorType(uint32, (sym("n"),))),
    )
    assert ops.random_uniform(seed, counter).type == TensorType(float32, (sym("n"),))
    with pytest.raises(GraphError, match="seed and counter must be uint32"):
        ops.random_uniform(seed, b.input("c", TensorType(int32, (sym("n"),))))
    with pytest.raises(GraphError, match=r"seed must be \[rows, 2\]"):
        ops.random_uniform(counter, counter)
    with pytest.raises(GraphError, match="different numbers of rows"):
        ops.random_uniform(seed, b.input("d", TensorType(uint32, (sym("n") + 1,))))
