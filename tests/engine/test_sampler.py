"""The sampler: exact where its result is determined, and distributed as asked where it is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from xinheng.core.hal import Device, Numerics
from xinheng.core.ir.dtype import float32
from xinheng.engine.batch import SamplingArrays
from xinheng.engine.request import Request, SamplingParams, Sequence
from xinheng.engine.sampler import Sampler

VOCABULARY = 12
LOGITS = np.array([0.3, 2.0, -1.0, 1.5, 1.5, -4.0, 0.0, 0.9, -0.5, 1.1, -2.0, 0.6])
ROWS = 6000
CRITICAL = {1: 10.83, 2: 13.82, 3: 16.27, 4: 18.47, 11: 31.26}
"""By degrees of freedom, what chi-square exceeds once in a thousand times (tables of the distribution)."""


@pytest.fixture(scope="module")
def sampler(device: Device) -> Sampler:
    return Sampler(device, VOCABULARY, ROWS, None, Numerics())


def arrays(rows: int, seeds: Any = None, counters: Any = None, **params: float) -> SamplingArrays:
    """One row per seed, all with the same parameters."""
    one = SamplingArrays.of([Sequence(Request("r", (1,), SamplingParams(**{"seed": 0} | params)), 1)])  # type: ignore[arg-type]
    seed = np.zeros((rows, 2), np.uint32)
    seed[:, 0] = np.arange(rows) if seeds is None else seeds
    counter = np.zeros(rows, np.uint32)
    counter[:] = 0 if counters is None else counters
    fixed = {name: np.repeat(getattr(one, name), rows, axis=0) for name in ("temperature", "top_k", "top_p", "min_p")}
    return SamplingArrays(seed=seed, counter=counter, **fixed)


def draw(device: Device, sampler: Sampler, logits: Any, given: SamplingArrays, greedy: bool = False) -> list[int]:
    rows = len(given.temperature)
    values = np.broadcast_to(np.asarray(logits, np.float32), (rows, VOCABULARY))
    buffer = device.upload(np.ascontiguousarray(values), float32)
    ids: list[int] = device.download(sampler.run(buffer, given, greedy)).tolist()
    return ids


def probabilities(temperature: float = 1.0, kept: list[int] | None = None) -> NDArray[np.float64]:
    """What tokens should be drawn with, given which ones are kept."""
    p: NDArray[np.float64] = np.exp(LOGITS / temperature)
    if kept is not None:
        p[[i for i in range(VOCABULARY) if i not in kept]] = 0
    p /= p.sum()
    return p


def check(ids: list[int], p: NDArray[np.float64]) -> None:
    """Pearson's test at one in a thousand; the seeds are fixed, so it passes always or never."""
    counts = np.bincount(ids, minlength=VOCABULARY)
    assert (counts[p == 0] == 0).all()
    possible = p > 0
    want = p[possible] * len(ids)
    assert ((counts[possible] - want) ** 2 / want).sum() < CRITICAL[int(possible.sum()) - 1]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_tokens_are_drawn_with_the_probabilities_of_the_softmax(
    device: Device, sampler: Sampler, temperature: float
) -> None:
    ids = draw(device, sampler, LOGITS, arrays(ROWS, temperature=temperature))
    check(ids, probabilities(temperature))


def test_one_seed_draws_independently_along_its_counter(device: Device, sampler: Sampler) -> None:
    ids = draw(device, sampler, LOGITS, arrays(ROWS, seeds=77, counters=np.arange(ROWS)))
    check(ids, probabilities())
    one, next_one = np.array(ids[:-1]), np.array(ids[1:])
    p = probabilities()
    for a in (1, 3):
        for b in (1, 3):
            assert abs(np.mean((one == a) & (next_one == b)) - p[a] * p[b]) < 0.01


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        ({"top_k": 1}, [1]),
        ({"top_k": 2}, [1, 3]),  # 3 and 4 are equal: the lower index is kept
        ({"top_k": 3}, [1, 3, 4]),
        ({"top_k": VOCABULARY}, list(range(VOCABULARY))),
        ({"top_k": 10**6}, list(range(VOCABULARY))),
        ({"top_k": 0}, list(range(VOCABULARY))),
        ({"top_k": -1}, list(range(VOCABULARY))),
        ({"top_p": 1e-30}, [1]),
        ({"top_p": 0.27}, [1]),  # the first has 0.2725
        ({"top_p": 0.28}, [1, 3]),
        ({"top_p": 0.47}, [1, 3, 4]),
        ({"top_p": 0.65}, [1, 3, 4, 9]),
        ({"top_p": 1.0}, list(range(VOCABULARY))),
        ({"min_p": 0.6}, [1, 3, 4]),
        ({"min_p": 0.999}, [1]),
        ({"min_p": 0.4}, [1, 3, 4, 9]),
        ({"top_k": 3, "top_p": 0.6, "min_p": 0.1}, [1, 3]),  # top_p counts within the three that top_k leaves
        ({"temperature": 0.2, "top_p": 0.95}, [1, 3, 4]),
        ({"temperature": 1e-6}, [1]),
        ({"temperature": 1e-30}, [1]),
    ],
    ids=str,
)
def test_only_tokens_that_the_parameters_leave_are_drawn(
    device: Device, sampler: Sampler, params: dict[str, float], kept: list[int]
) -> None:
    ids = draw(device, sampler, LOGITS, arrays(ROWS, **params))
    assert sorted(set(ids)) == sorted(kept)
    if len(kept) > 1 and len(kept) - 1 in CRITICAL:
        check(ids, probabilities(params.get("temperature", 1.0), kept))


def test_temperature_zero_is_greedy_and_ties_go_to_the_lowest_index(device: Device, sampler: Sampler) -> None:
    tied = np.where(np.arange(VOCABULARY) % 5 == 3, 2.0, 0.0)
    given = arrays(4, temperature=0.0)
    assert draw(device, sampler, tied, given) == [3] * 4
    assert draw(device, sampler, tied, given, greedy=True) == [3] * 4
    assert draw(device, sampler, LOGITS, given, greedy=True) == [1] * 4


def test_greedy_and_sampled_rows_share_a_batch(device: Device, sampler: Sampler) -> None:
    alone = draw(device, sampler, LOGITS, arrays(64))
    given = arrays(64)
    given.temperature[::2] = 0.0
    mixed = draw(device, sampler, LOGITS, given)
    assert mixed[::2] == [1] * 32
    assert mixed[1::2] == alone[1::2]


def test_a_draw_depends_on_its_seed_and_counter_alone(device: Device, sampler: Sampler) -> None:
    first = draw(device, sampler, LOGITS, arrays(200))
    assert draw(device, sampler, LOGITS, arrays(200)) == first
    order = np.random.default_rng(1).permutation(200)
    assert draw(device, sampler, LOGITS, arrays(200, seeds=order)) == [first[i] for i in order]
    assert draw(device, sampler, LOGITS, arrays(1, seeds=[17])) == [first[17]]
    assert draw(device, sampler, LOGITS, arrays(200, counters=1)) != first
    other = arrays(200)
    other.seed[:, 1] = 1  # the high word counts too
    assert draw(device, sampler, LOGITS, other) != first


def test_impossible_tokens_are_never_drawn(device: Device, sampler: Sampler) -> None:
    logits = np.full(VOCABULARY, -np.inf)
    logits[[4, 9]] = 1.0
    assert set(draw(device, sampler, logits, arrays(500))) == {4, 9}
    logits[9] = -np.inf
    assert set(draw(device, sampler, logits, arrays(500))) == {4}
    assert set(draw(device, sampler, LOGITS * 1e30, arrays(500))) == {1}


def test_there_may_be_no_rows(device: Device, sampler: Sampler) -> None:
    assert draw(device, sampler, LOGITS, arrays(0)) == []
    assert draw(device, sampler, LOGITS, arrays(0), greedy=True) == []
