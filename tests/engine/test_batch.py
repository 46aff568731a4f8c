"""The message between scheduler and runner survives a process border unchanged, and damage is noticed."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xinheng.core.errors import FormatError
from xinheng.engine.batch import Batch, BatchResult, GroupBatch, SamplingArrays
from xinheng.engine.request import Request, SamplingParams, Sequence


def batch(lengths: list[int], wanted: list[bool], groups: int, seed: int = 0, names: str = "r") -> Batch:
    rng = np.random.default_rng(seed)
    start = np.cumsum([0, *lengths]).astype(np.int32)
    total, width = int(start[-1]), 3

    def random(*shape: int) -> npt.NDArray[np.int32]:
        return rng.integers(-1, 2**31 - 1, shape, dtype=np.int32)

    rows = [i for i, want in enumerate(wanted) if want]
    ids = tuple(f"{names}{i}" for i in rows)
    params = [SamplingParams(seed=i, temperature=float(i % 2), top_p=0.5, top_k=i) for i in rows]
    runs = [Sequence(Request(name, (1,), p), 5) for name, p in zip(ids, params, strict=True)]
    return Batch(
        tokens=random(total),
        positions=random(total),
        query_start=start,
        seq_lens=random(len(lengths)),
        groups={f"组{i}": GroupBatch(random(total), random(len(lengths), width)) for i in range(groups)},
        logit_rows=np.array([start[i + 1] - 1 for i in rows], np.int32),
        sampling=SamplingArrays.of(runs),
        request_ids=ids,
        adapter_index=random(len(lengths)) if seed % 2 else None,
        step=seed,
    )


def arrays(message: Batch) -> dict[str, npt.NDArray[np.generic]]:
    named: dict[str, npt.NDArray[np.generic]] = {
        name: getattr(message, name) for name in ("tokens", "positions", "query_start", "seq_lens", "logit_rows")
    }
    named |= {name: getattr(message.sampling, name) for name in SamplingArrays.__annotations__}
    for name, group in message.groups.items():
        named |= {f"{name}.slots": group.slots, f"{name}.table": group.block_table}
    return named


def assert_same(left: Batch, right: Batch) -> None:
    assert list(left.groups) == list(right.groups)
    assert left.request_ids == right.request_ids and left.step == right.step
    for (name, a), b in zip(arrays(left).items(), arrays(right).values(), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a, b), name
    assert (left.adapter_index is None) == (right.adapter_index is None)
    if left.adapter_index is not None and right.adapter_index is not None:
        assert np.array_equal(left.adapter_index, right.adapter_index)


@settings(deadline=None, max_examples=60)
@given(
    sequences=st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=8),
    groups=st.integers(1, 3),
    seed=st.integers(0, 2**20),
    names=st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
)
def test_round_trip(sequences: list[tuple[int, bool]], groups: int, seed: int, names: str) -> None:
    message = batch([n for n, _ in sequences], [w for _, w in sequences], groups, seed, names)
    data = message.to_bytes()
    assert_same(message, Batch.from_bytes(data))
    assert_same(message, Batch.from_bytes(bytearray(data)))
    assert Batch.from_bytes(data).to_bytes() == data


def test_arrays_of_a_bytearray_are_writable() -> None:
    assert Batch.from_bytes(bytearray(batch([2], [True], 1).to_bytes())).tokens.flags.writeable


def test_result_round_trip() -> None:
    result = BatchResult(("a", "b"), np.array([5, 2**31 - 1], np.int32))
    again = BatchResult.from_bytes(result.to_bytes())
    assert again.request_ids == result.request_ids and again.token_ids.tolist() == [5, 2**31 - 1]
    empty = BatchResult.from_bytes(BatchResult((), np.array([], np.int32)).to_bytes())
    assert empty.request_ids == () and empty.token_ids.shape == (0,)


RUNNER = """
import sys
from xinheng.engine.batch import Batch, BatchResult
message = Batch.from_bytes(sys.stdin.buffer.read())
sys.stdout.buffer.write(BatchResult(message.request_ids, message.tokens[message.logit_rows]).to_bytes())
"""


def test_crosses_a_process_border() -> None:
    message = batch([3, 1, 2], [True, True, False], 2)
    run = subprocess.run([sys.executable, "-c", RUNNER], input=message.to_bytes(), capture_output=True, check=True)
    result = BatchResult.from_bytes(run.stdout)
    assert result.request_ids == message.request_ids
    assert result.token_ids.tolist() == message.tokens[[2, 3]].tolist()


def test_every_truncation_and_any_tail_is_noticed() -> None:
    data = batch([2, 1], [True, True], 1).to_bytes()
    for length in range(len(data)):
        with pytest.raises(FormatError):
            Batch.from_bytes(data[:length])
    with pytest.raises(FormatError, match="bytes more"):
        Batch.from_bytes(data + b"\0")
    with pytest.raises(FormatError, match="begins with"):
        Batch.from_bytes(b"PK\3\4" + data[4:])


def test_impossible_headers_are_noticed() -> None:
    data = BatchResult(("a",), np.array([1], np.int32)).to_bytes()
    for old, new in ((b"[1]", b"[9]"), (b"<i4", b"|O8"), (b"[1]", b"[x]"), (b"[[", b"[7")):
        with pytest.raises(FormatError):
            BatchResult.from_bytes(data.replace(old, new))


def test_one_kind_of_message_is_not_taken_for_the_other() -> None:
    with pytest.raises(FormatError, match="token_ids"):
        BatchResult.from_bytes(batch([1], [True], 1).to_bytes())
    with pytest.raises(FormatError, match="another kind"):
        Batch.from_bytes(BatchResult((), np.array([], np.int32)).to_bytes())


def test_all_greedy_looks_at_every_row() -> None:
    message = batch([1, 1], [True, True], 1)
    assert not message.all_greedy
    rows = [Sequence(Request("g", (1,), SamplingParams(temperature=0)), 5)] * 2
    assert replace(message, sampling=SamplingArrays.of(rows)).all_greedy


def test_sampling_rows() -> None:
    first = Sequence(Request("a", (1,), SamplingParams(seed=-1, top_k=5, temperature=0.5)), 9)
    first.append(3)
    second = Sequence(Request("b", (1, 2), SamplingParams(seed=2**32 + 7, top_p=1e-300, min_p=0.25)), 9)
    rows = SamplingArrays.of([first, second])
    assert (
        rows.temperature.tolist() == [0.5, 1.0] and rows.top_k.tolist() == [5, 0] and rows.min_p.tolist() == [0, 0.25]
    )
    assert rows.seed.tolist() == [[2**32 - 1, 2**32 - 1], [7, 1]] and rows.counter.tolist() == [1, 0]
    assert (rows.top_p > 0).all()
    assert SamplingArrays.of([]).seed.shape == (0, 2)
