"""Memory of torch devices: what goes in comes out, weights are not copied, caches have the declared layout."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from xinheng.backends._torch import TorchDevice, TorchPagedKV, TorchPagedLatent, TorchSequenceState, TorchWeight
from xinheng.backends._torch.handles import DTYPES as TORCH_DTYPES
from xinheng.core.errors import DeviceError, OutOfMemory
from xinheng.core.hal import Capabilities, StateSpace, WeightPart, WeightSource
from xinheng.core.ir import DTYPES, DType, TensorType, paged_kv, paged_latent, sequence_state
from xinheng.core.ir.dtype import bfloat16, float16, float32, int32
from xinheng.core.schemes import scheme


class Host(TorchDevice):
    """A torch device without kernels."""

    def __init__(self) -> None:
        super().__init__("host:0", "host", torch.device("cpu"), Capabilities(frozenset(TORCH_DTYPES)))


HOST = Host()


def source(values: Any, *parts: tuple[str, int]) -> WeightSource:
    first, made = 0, []
    for name, rows in parts:
        pack = scheme(name).pack
        assert pack is not None
        packed = pack(values[first : first + rows])
        packed.flags.writeable = False
        made.append(WeightPart(name, rows, partial(np.asarray, packed)))
        first += rows
    return WeightSource("w", values.shape, tuple(made))


def test_torch_leaves_other_device_plugins_alone() -> None:
    assert os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] == "0"


@pytest.mark.parametrize("kind", TORCH_DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3), (1,)], ids=str)
def test_arrays_survive_the_way_to_the_device_and_back(kind: DType, shape: tuple[int, ...]) -> None:
    array = np.arange(1, 1 + int(np.prod(shape))).reshape(shape).astype(kind.numpy)
    buffer = HOST.upload(array, kind)
    assert HOST.shape(buffer) == shape
    back = HOST.download(buffer)
    assert back.dtype == kind.numpy
    np.testing.assert_array_equal(back, array)


def test_strided_and_foreign_arrays_are_uploaded() -> None:
    array = np.arange(24, dtype=np.float32).reshape(4, 6)
    for given in (array[::2, ::-1], array.T, array.astype(">f4"), np.broadcast_to(array[:1], (3, 6))):
        np.testing.assert_array_equal(HOST.download(HOST.upload(given, float32)), given.astype(np.float32))
        np.testing.assert_array_equal(HOST.download(HOST.upload(given, bfloat16)), given.astype(bfloat16.numpy))


def test_uploads_round_once() -> None:
    trap = np.array([1 + 2.0**-8 + 2.0**-40, -(1 + 2.0**-8 + 2.0**-40)])
    assert HOST.download(HOST.upload(trap, bfloat16)).astype(float).tolist() == [1 + 2.0**-7, -(1 + 2.0**-7)]
    assert HOST.download(HOST.upload(np.array([70000.0]), float16)).tolist() == [np.inf]


def test_unknown_dtypes_are_refused() -> None:
    with pytest.raises(DeviceError, match="host:0: torch has no dtype int4"):
        HOST.upload(np.zeros(2), DTYPES["int4"])


def test_weights_stay_in_the_memory_they_came_in() -> None:
    values = np.random.default_rng(0).normal(size=(6, 64))
    for name in ("float32", "bfloat16", "q8_0", "q4_0"):
        weight = source(values, (name, 6))
        made = HOST.prepare(weight, ["linear"])
        assert isinstance(made, TorchWeight)
        loaded = weight.parts[0].load()
        assert made.parts[0].data.data_ptr() == loaded.ctypes.data
        assert made.nbytes == weight.nbytes == loaded.nbytes
        assert HOST.layout_of(made) == ("as stored", loaded.nbytes)


def test_chunks_cover_all_parts() -> None:
    values = np.random.default_rng(1).normal(size=(9, 32))
    weight = source(values, ("q8_0", 4), ("float32", 5))
    made = HOST.prepare(weight, ["linear"])
    pieces = list(made.chunks(torch.float32, 3))
    assert [(first, tuple(piece.shape)) for first, piece in pieces] == [
        (0, (3, 32)), (3, (1, 32)), (4, (3, 32)), (7, (2, 32)),
    ]  # fmt: skip
    np.testing.assert_array_equal(torch.cat([piece for _, piece in pieces]).numpy(), weight.unpack(np.float32))


def test_caches_are_zero_and_have_the_declared_layout() -> None:
    made = HOST.allocate_state(paged_kv(3, 8, 6, "bfloat16"), StateSpace(5, 16))
    assert isinstance(made, TorchPagedKV)
    assert made.k.shape == (5, 16, 3, 8)
    assert made.v.shape == (5, 16, 3, 6)
    assert made.k.dtype is torch.bfloat16
    assert not made.k.any()
    assert not made.v.any()


def test_latents_and_states_of_sequences_are_zero_and_have_the_declared_layout() -> None:
    latent = HOST.allocate_state(paged_latent(8, 4, "float16"), StateSpace(3, 16))
    assert isinstance(latent, TorchPagedLatent)
    assert (latent.latent.shape, latent.rope.shape) == ((3, 16, 8), (3, 16, 4))
    memory = HOST.allocate_state(sequence_state((2, 4, 3), float32), StateSpace(5, 1))
    assert isinstance(memory, TorchSequenceState)
    assert (memory.data.shape, memory.data.dtype) == ((5, 2, 4, 3), torch.float32)
    assert not latent.latent.any()
    assert not memory.data.any()


@pytest.mark.parametrize(
    "state",
    [paged_kv(1, 32, 32, "q8_0"), paged_kv(1, 2, 2, "int4"), paged_latent(8, 4, "q4_0"), sequence_state((2,), int32)],
)
def test_other_states_are_refused(state: Any) -> None:
    with pytest.raises(DeviceError, match="holds states of "):
        HOST.allocate_state(state, StateSpace(1, 16))


def test_a_cache_that_does_not_fit_is_out_of_memory() -> None:
    with pytest.raises(OutOfMemory, match="no room for 1000000000000 cache blocks"):
        HOST.allocate_state(paged_kv(64, 128, 128, "float32"), StateSpace(10**12, 128))


def test_a_device_says_that_it_cannot_measure_memory() -> None:
    with pytest.raises(DeviceError, match=r"set engine\.cache_memory"):
        HOST.memory()


def test_empty_buffers_have_type_and_shape() -> None:
    kind = TensorType(int32, (2, 3))
    assert HOST.download(HOST.empty((2, 3), kind.dtype)).shape == (2, 3)
