"""Native linear: right within the bound of float32 sums; the same bits however rows, chunks and threads are split."""

from __future__ import annotations

import os
import signal
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from xinheng.backends._torch import TorchWeight
from xinheng.core.errors import DeviceError

PACKED = ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs", "mxfp4"]
DENSE = ["float32", "bfloat16", "float16"]
FLOATS = [torch.float32, torch.bfloat16, torch.float16]
UNIT = 2.0**-24
OUTPUT_UNIT = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


def assert_close(got: torch.Tensor, x: torch.Tensor, values: Any, bias: torch.Tensor | None = None) -> None:
    """Within the classic bound of a float32 sum of columns / 16 terms and a tree, and the rounding of the output."""
    wide = x.double().numpy()
    want, size = wide @ values.T, np.abs(wide) @ np.abs(values).T
    if bias is not None:
        want, size = want + bias.double().numpy(), size + np.abs(bias.double().numpy())
    terms = values.shape[1] / 16 + 8
    bound = size * terms * UNIT * 1.01 + np.abs(want) * OUTPUT_UNIT[got.dtype] * 1.01 + 1e-7
    assert got.shape == want.shape
    assert (np.abs(got.double().numpy() - want) <= bound).all()


@pytest.mark.parametrize("tokens", [1, 3, 9])
@pytest.mark.parametrize("name", PACKED + DENSE)
def test_linear_computes_the_product(
    build: SimpleNamespace, random_weight: Any, exact: Any, name: str, tokens: int
) -> None:
    weight = random_weight([(name, 37)], 768)
    x = torch.randn(tokens, 768, generator=torch.Generator().manual_seed(tokens))
    assert_close(build.linear(x, weight), x, exact(weight))


@pytest.mark.parametrize("columns", [1, 17, 100, 160])
@pytest.mark.parametrize("name", DENSE)
def test_dense_weights_have_any_number_of_columns(
    build: SimpleNamespace, random_weight: Any, exact: Any, name: str, columns: int
) -> None:
    weight = random_weight([(name, 23)], columns)
    for tokens in (1, 6):
        x = torch.randn(tokens, columns)
        assert_close(build.linear(x, weight), x, exact(weight))


@pytest.mark.parametrize("kind", FLOATS, ids=str)
def test_parts_bias_and_element_types(
    build: SimpleNamespace, random_weight: Any, exact: Any, kind: torch.dtype
) -> None:
    weight = random_weight([("q4_k", 21), ("q6_k", 7), ("float16", 5), ("q8_0", 1)], 512)
    x, bias = torch.randn(2, 3, 512).to(kind), torch.randn(34).to(kind)
    got = build.linear(x, weight, bias)
    assert got.dtype is kind
    assert_close(got, x, exact(weight), bias)


def test_strided_and_empty_inputs(native: SimpleNamespace, random_weight: Any) -> None:
    weight = random_weight([("q4_1", 48)], 64)
    wide = torch.randn(10, 256)
    for view in (wide[:, 64:128], wide.view(10, 64, 4)[:, :, 1], wide[::3, :64], wide.view(2, 5, 256)[:, :, :64]):
        assert torch.equal(native.linear(view, weight), native.linear(view.contiguous(), weight))
    assert native.linear(torch.empty(0, 64), weight).shape == (0, 48)
    assert native.linear(torch.randn(64), weight).shape == (48,)


@pytest.mark.parametrize("name", PACKED + DENSE)
def test_a_row_has_the_same_bits_alone_and_in_any_batch(native: SimpleNamespace, random_weight: Any, name: str) -> None:
    columns = 256 if name in PACKED else 100
    weight = random_weight([(name, 41)], columns)
    x = torch.randn(37, columns)
    alone = torch.cat([native.linear(row[None], weight) for row in x])
    for tokens in range(1, 38):
        assert torch.equal(native.linear(x[:tokens], weight), alone[:tokens]), f"{tokens} tokens"


@pytest.mark.parametrize("kind", FLOATS, ids=str)
def test_long_inputs_are_converted_in_blocks_without_a_trace(
    native: SimpleNamespace, random_weight: Any, kind: torch.dtype
) -> None:
    weight = random_weight([("q4_1", 19)], 64)
    x = torch.randn(1100, 64).to(kind)
    whole = native.linear(x, weight)
    for rows in (slice(0, 1), slice(511, 514), slice(1023, 1100)):
        assert torch.equal(native.linear(x[rows], weight), whole[rows])


@pytest.mark.parametrize("tokens", [1, 4, 33])
def test_threads_do_not_change_bits(native: SimpleNamespace, random_weight: Any, tokens: int) -> None:
    weight = random_weight([("q4_1", 700), ("q6_k", 331)], 512)
    x = torch.randn(tokens, 512)
    results = []
    for threads in (1, 2, 3, 7):
        assert native.library.set_threads(threads) == threads
        results.append(native.linear(x, weight))
    assert all(torch.equal(results[0], other) for other in results[1:])


def test_python_threads_may_call_at_the_same_time(native: SimpleNamespace, random_weight: Any) -> None:
    weight = random_weight([("q4_1", 6000)], 512)
    inputs = [torch.randn(1 + i, 512) for i in range(4)]
    want = [native.linear(x, weight) for x in inputs]
    wrong: list[int] = []

    def repeat(i: int) -> None:
        wrong.extend(i for _ in range(50) if not torch.equal(native.linear(inputs[i], weight), want[i]))

    threads = [threading.Thread(target=repeat, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    native.library.set_threads(3)
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_computes_with_threads_of_its_own(native: SimpleNamespace, random_weight: Any) -> None:
    weight = random_weight([("q4_1", 2000)], 512)
    x = torch.randn(1, 512)
    want = native.linear(x, weight).numpy().tobytes()
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # waiting for the parent's threads would take forever
        same = native.linear(x, weight).numpy().tobytes() == want
        for threads in (3, 2):
            native.library.set_threads(threads)
            same = same and native.linear(x, weight).numpy().tobytes() == want
        os._exit(0 if same else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_infinities_and_nan_reach_only_their_row(native: SimpleNamespace, random_weight: Any) -> None:
    weight = random_weight([("q4_1", 16)], 64)
    x = torch.randn(6, 64)
    clean = native.linear(x, weight)
    x[2, 5], x[4, 0] = torch.inf, torch.nan
    got = native.linear(x, weight)
    assert not torch.isfinite(got[2]).any() and torch.isnan(got[4]).all()
    assert torch.equal(got[[0, 1, 3, 5]], clean[[0, 1, 3, 5]])


def test_linear_refuses_what_it_cannot_read(native: SimpleNamespace, random_weight: Any) -> None:
    weight: TorchWeight = random_weight([("q4_1", 16)], 64)
    with pytest.raises(DeviceError, match="x has 32 columns, the weight has 64"):
        native.linear(torch.randn(2, 32), weight)
    with pytest.raises(DeviceError, match="float64"):
        native.linear(torch.randn(2, 64, dtype=torch.float64), weight)
    strange = SimpleNamespace(shape=(1, 64), parts=[SimpleNamespace(scheme="int8", rows=1, data=torch.zeros(1, 64))])
    with pytest.raises(DeviceError, match="'int8'"):
        native.linear(torch.randn(2, 64), strange)
