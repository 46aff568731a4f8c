"""Collectives over several ranks: what each rank gets, on what they agree, and how those that are out of step end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from xinheng.conformance.bounds import Bounded, check, operand
from xinheng.core import ops
from xinheng.core.compiler import compile
from xinheng.core.errors import DeviceError, GraphError
from xinheng.core.hal import LoopbackCommunicator, ReferenceDevice, WeightPart, WeightSource
from xinheng.core.ir import Builder, Graph, TensorType, WeightType
from xinheng.core.ir.dtype import bfloat16, float32, int32
from xinheng.core.schemes import scheme

RNG = np.random.default_rng(5)
RANKS = 3


def on_ranks(run: Callable[[int, LoopbackCommunicator], Any], size: int = RANKS, timeout: float = 20.0) -> list[Any]:
    """What `run` returns on each rank of a group of threads."""
    ends = LoopbackCommunicator.group(size, timeout)
    with ThreadPoolExecutor(size) as pool:
        return [made.result() for made in [pool.submit(run, rank, end) for rank, end in enumerate(ends)]]


def by_reference(op: Any, values: Sequence[Any], **attributes: Any) -> list[Any]:
    def run(rank: int, end: LoopbackCommunicator) -> Any:
        with ops.among({"tp": end}):
            return op.reference(values[rank], group="tp", size=RANKS, **attributes)

    return on_ranks(run)


def on_devices(graph: Callable[[], Graph], inputs: Sequence[dict[str, Any]], parameters: Any = None) -> list[Any]:
    def run(rank: int, end: LoopbackCommunicator) -> Any:
        device = ReferenceDevice()
        device.connect("tp", end)
        exe = compile(graph(), device)
        bound = exe.bind({p.name: exe.prepare(p.name, parameters[rank][p.name]) for p in exe.graph.parameters})
        bound.run(inputs[rank]).wait()
        return device.download(bound.outputs["out0"])

    return on_ranks(run)


VALUES = [RNG.normal(size=(3, 6)).astype(np.float32) for _ in range(RANKS)]


def test_references_of_all_collectives() -> None:
    total = np.sum(np.stack(VALUES).astype(np.float64), axis=0)
    wide = [value.astype(np.float64) for value in VALUES]
    for made in by_reference(ops.all_reduce, wide):
        np.testing.assert_array_equal(made, total)
    for made in by_reference(ops.all_reduce, wide, reduction="max"):
        np.testing.assert_array_equal(made, np.max(np.stack(wide), axis=0))
    for made in by_reference(ops.all_gather, wide, axis=-1):
        np.testing.assert_array_equal(made, np.concatenate(wide, axis=-1))
    for rank, made in enumerate(by_reference(ops.reduce_scatter, wide, axis=1)):
        np.testing.assert_array_equal(made, total[:, 2 * rank : 2 * rank + 2])
    for rank, made in enumerate(by_reference(ops.all_to_all, wide)):
        np.testing.assert_array_equal(made, np.concatenate([w[rank : rank + 1] for w in wide]))


def test_bounds_of_sums_hold_for_any_order_of_ranks() -> None:
    bounded = [operand(value, float32) for value in VALUES]
    (made, *_) = by_reference(ops.all_reduce, bounded)
    assert isinstance(made, Bounded)
    assert check(made, VALUES[2] + VALUES[0] + VALUES[1], float32).ok
    assert not check(made, VALUES[0] + VALUES[1], float32).ok


def test_integers_wrap() -> None:
    values = [np.array([2**31 - 1, 1], np.int32), np.array([1, 2], np.int32), np.array([0, 3], np.int32)]
    for made in by_reference(ops.all_reduce, values):
        assert made.tolist() == [-(2**31), 6]


def test_sizes_are_inferred() -> None:
    b = Builder()
    x = b.input("x", TensorType(float32, (6, 4)))
    assert ops.all_gather(x, axis=-1, group="tp", size=3).shape == (6, 12)
    assert ops.reduce_scatter(x, axis=0, group="tp", size=3).shape == (2, 4)
    with pytest.raises(GraphError, match="does not fall into 4 equal pieces"):
        ops.all_to_all(x, group="tp", size=4)
    with pytest.raises(GraphError, match="reduction must be"):
        ops.all_reduce(x, group="tp", size=2, reduction="mean")
    with pytest.raises(GraphError, match="at least one rank"):
        ops.all_reduce(x, group="tp", size=0)


def test_sharded_products_are_those_of_one_rank() -> None:
    x = RNG.normal(size=(4, 96)).astype(np.float32)
    values, bias = RNG.normal(size=(5, 96)).astype(np.float32), RNG.normal(size=5).astype(np.float32)
    pack = scheme("q8_0").pack
    assert pack is not None
    whole = WeightSource("w", (5, 96), (WeightPart("q8_0", 5, lambda: pack(values)),))

    def graph() -> Graph:
        b = Builder()
        here, w = b.input("x", TensorType(float32, (4, 32))), b.parameter("w", WeightType((5, 32), "q8_0"))
        bias = b.input("bias", TensorType(float32, (5,)))
        return b.build(ops.matmul_all_reduce(here, w, bias, group="tp", size=RANKS))

    pieces = [np.s_[32 * r : 32 * r + 32] for r in range(RANKS)]
    feeds = [{"x": x[:, piece], "bias": bias} for piece in pieces]
    made = on_devices(graph, feeds, [{"w": whole.columns(piece.start, piece.stop)} for piece in pieces])
    expected = x.astype(np.float64) @ whole.unpack(np.float64).T + bias
    for result in made:
        np.testing.assert_array_equal(result, expected.astype(np.float32))


def test_sums_of_narrow_floats_round_once_and_are_equal_on_all_ranks() -> None:
    values = [np.array([1.0, 256.0]), np.array([2.0**-8, 1.0]), np.array([2.0**-8, 1.0])]

    def graph() -> Graph:
        b = Builder()
        return b.build(ops.all_reduce(b.input("x", TensorType(bfloat16, (2,))), group="tp", size=RANKS))

    made = on_devices(graph, [{"x": value.astype(bfloat16.numpy)} for value in values])
    for result in made:
        assert result.astype(float).tolist() == [1 + 2.0**-7, 258.0]


def test_ranks_out_of_step_are_found_out() -> None:
    def run(rank: int, end: LoopbackCommunicator) -> None:
        with ops.among({"tp": end}), pytest.raises(DeviceError, match=r"out of step: rank \d makes all_"):
            if rank:
                ops.all_reduce.reference(VALUES[0], group="tp", size=RANKS)
            else:
                ops.all_gather.reference(VALUES[0], axis=0, group="tp", size=RANKS)

    on_ranks(run)


def test_other_shapes_are_found_out() -> None:
    def run(rank: int, end: LoopbackCommunicator) -> None:
        value, told = VALUES[0][rank // 2 :], r"float32\[2, 6\].*float32\[3, 6\]|float32\[3, 6\].*float32\[2, 6\]"
        with ops.among({"tp": end}), pytest.raises(DeviceError, match=told):
            ops.all_reduce.reference(value, group="tp", size=RANKS)

    on_ranks(run)


def test_a_rank_that_stays_away_is_an_error() -> None:
    first, second = LoopbackCommunicator.group(2, timeout=0.05)
    with pytest.raises(DeviceError, match=r"rank 0 of 2 waited .* within 0\.05 s"):
        first.exchange(VALUES[0], "all_reduce")
    second.close()


def test_a_closed_rank_releases_the_others() -> None:
    first, second = LoopbackCommunicator.group(2, timeout=20.0)
    errors: list[DeviceError] = []

    def wait() -> None:
        try:
            first.exchange(VALUES[0], "all_reduce")
        except DeviceError as error:
            errors.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    second.close()
    waiting.join(10)
    assert len(errors) == 1


def test_a_group_that_nobody_joined_is_named() -> None:
    with pytest.raises(GraphError, match="group 'tp' should have 2 ranks, but nobody"):
        ops.all_reduce.reference(VALUES[0], group="tp", size=2)
    b = Builder()
    graph = b.build(ops.all_reduce(b.input("x", TensorType(int32, (2,))), group="tp", size=2))
    with pytest.raises(DeviceError, match="'reference' belongs to no group 'tp'"):
        compile(graph, ReferenceDevice()).bind({}).run({"x": np.zeros(2, np.int32)})
    with pytest.raises(DeviceError, match="no collective library"):
        ReferenceDevice().join("tp", 0, 2, "tcp://127.0.0.1:1")
    with pytest.raises(DeviceError, match="rank 2 is not one of 0 to 1"):
        LoopbackCommunicator.group(2)[0].__class__(2, 2, LoopbackCommunicator.group(2)[0]._board)
