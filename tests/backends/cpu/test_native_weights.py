"""The native readers of packed weights give the exact values, rounded once to the asked type."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from xinheng.backends._torch import TorchWeight, TorchWeightPart
from xinheng.core.errors import DeviceError
from xinheng.core.ir.dtype import DType, bfloat16, float16, float32, float64, round_to

PACKED = ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs", "mxfp4"]
DENSE = ["float32", "bfloat16", "float16"]
FLOATS = [float32, bfloat16, float16]


def as_float64(x: torch.Tensor) -> Any:
    return x.double().numpy()


@pytest.mark.parametrize("target", FLOATS, ids=str)
@pytest.mark.parametrize("name", PACKED + DENSE)
def test_dequantize_rounds_the_exact_value_once(
    build: SimpleNamespace, random_weight: Any, exact: Any, name: str, target: DType
) -> None:
    weight = random_weight([(name, 64)], 512 if name in PACKED else 37, wild=True)
    got = build.dequantize(weight, dtype=target)
    want = round_to(exact(weight), target)
    np.testing.assert_array_equal(as_float64(got), want)


def test_a_weight_of_every_exponent_reads_exactly_in_mxfp4(build: SimpleNamespace, exact: Any) -> None:
    data = np.zeros((256, 17), np.uint8)
    data[:, 0] = np.arange(256)
    data[:, 1:] = np.arange(16) | (15 - np.arange(16)) << 4
    weight = TorchWeight((256, 32), (TorchWeightPart("mxfp4", 256, torch.from_numpy(data)),))
    want = round_to(exact(weight), float32)
    np.testing.assert_array_equal(as_float64(build.dequantize(weight, dtype=float32)), want)


@pytest.mark.parametrize("index_type", [torch.int32, torch.int64])
@pytest.mark.parametrize("target", FLOATS, ids=str)
def test_embedding_gathers_rows_across_parts(
    build: SimpleNamespace, random_weight: Any, exact: Any, index_type: torch.dtype, target: DType
) -> None:
    weight = random_weight([("q4_1", 5), ("q6_k", 3), ("float16", 4)], 256)
    indices = torch.tensor([[0, 11, 4], [5, 7, 8]], dtype=index_type)
    got = build.embedding(indices, weight, dtype=target)
    assert got.shape == (2, 3, 256)
    want = round_to(exact(weight)[indices.numpy()], target)
    np.testing.assert_array_equal(as_float64(got), want)


def test_embedding_on_two_threads_equals_one(native: SimpleNamespace, random_weight: Any) -> None:
    weight = random_weight([("q4_k", 300)], 512)
    indices = torch.from_numpy(np.random.default_rng(0).integers(0, 300, 1000))
    on_two = native.embedding(indices, weight, dtype=float32)
    native.library.set_threads(1)
    assert torch.equal(on_two, native.embedding(indices, weight, dtype=float32))


@pytest.mark.parametrize("index", [-1, 12, 2**31])
def test_embedding_refuses_indices_outside_the_weight(
    native: SimpleNamespace, random_weight: Callable[..., TorchWeight], index: int
) -> None:
    weight = random_weight([("q4_0", 12)], 32)
    with pytest.raises(DeviceError, match=rf"index {index} is outside the 12 rows"):
        native.embedding(torch.tensor([3, index]), weight, dtype=float32)


def test_readers_refuse_types_they_cannot_write(native: SimpleNamespace, random_weight: Any) -> None:
    weight = random_weight([("q4_0", 12)], 32)
    with pytest.raises(DeviceError, match="float64"):
        native.dequantize(weight, dtype=float64)


def before_a_guard_page(data: torch.Tensor) -> torch.Tensor:
    """A copy of `data` whose last byte is the last one that may be read; it stays until the process ends."""
    pages = -(-data.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, pages + mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(address + pages), mmap.PAGESIZE, 0) == 0
    copy = torch.frombuffer(memory, dtype=data.dtype, count=data.numel(), offset=pages - data.nbytes)
    return copy.view(data.shape).copy_(data)


@pytest.mark.skipif(sys.platform != "linux", reason="needs mprotect and fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.parametrize("name", PACKED + DENSE)
def test_nothing_behind_the_last_row_is_read(build: SimpleNamespace, random_part: Any, name: str) -> None:
    child = os.fork()
    if child == 0:
        for columns in (512,) if name in PACKED else (512, 37):
            part = random_part(name, 11, columns)
            weight = TorchWeight((11, columns), (TorchWeightPart(name, 11, before_a_guard_page(part.data)),))
            for tokens in (1, 2, 3, 4, 9):
                build.linear(before_a_guard_page(torch.ones(tokens, columns)), weight)
            build.dequantize(weight, dtype=float32)
            build.embedding(torch.tensor([10]), weight, dtype=bfloat16)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
