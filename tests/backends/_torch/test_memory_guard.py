"""Guarded memory of torch devices: what kernels in C++ write beside their tensors is told, and nothing else is."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
import torch

from xinheng.backends.cpu.torch_device import TorchCPUDevice
from xinheng.conformance.cases import find
from xinheng.conformance.trial import Trial
from xinheng.core.hal import BAND, Device, DeviceOptions, StateSpace
from xinheng.core.ir import paged_kv
from xinheng.core.ir.dtype import bfloat16, float32, int32


@pytest.fixture(scope="module")
def cpu() -> Device:
    return TorchCPUDevice(DeviceOptions(), "torch kernels are what is tested")


MADE: dict[str, Any] = {
    "empty": lambda: torch.empty((3, 5)),
    "empty_like": lambda: torch.empty_like(torch.ones(3, 5)),
    "new_empty": lambda: torch.ones(1).new_empty((3, 5)),
    "zeros": lambda: torch.zeros((3, 5)),
    "full": lambda: torch.full((3, 5), 2.0),
    "contiguous": lambda: torch.ones(5, 3).T.contiguous(),
    "to": lambda: torch.ones((3, 5), dtype=torch.float64).to(torch.float32),
}


@pytest.mark.parametrize("how", MADE)
@pytest.mark.parametrize("side", ["before", "behind"])
def test_a_write_beside_a_tensor_is_told(cpu: Device, how: str, side: str) -> None:
    with cpu.guard_memory() as guard:  # type: ignore[union-attr]
        made = MADE[how]()
        assert guard.violations() == []
        ctypes.memset(made.data_ptr() - 4 if side == "before" else made.data_ptr() + 4 * 15, 0, 4)
    assert guard.violations() == [f"memory {side} a tensor float32 [3, 5] was written to"]


def test_uninitialised_memory_is_no_number_and_other_memory_keeps_its_numbers(cpu: Device) -> None:
    with cpu.guard_memory() as guard:  # type: ignore[union-attr]
        assert torch.empty(7).isnan().all()
        assert torch.empty(7, dtype=torch.bfloat16).isnan().all()
        assert (torch.empty(7, dtype=torch.int64) == -6510615555426900571).all()
        turned = torch.arange(6.0).reshape(2, 3).T.clone()
        assert torch.equal(turned, torch.tensor([[0.0, 3], [1, 4], [2, 5]]))
        assert torch.full((2,), 3.5).tolist() == [3.5, 3.5]
        assert torch.empty((0, 3)).shape == (0, 3)
    assert guard.violations() == []


def test_tensors_stay_aligned(cpu: Device) -> None:
    with cpu.guard_memory():  # type: ignore[union-attr]
        assert all(torch.empty(n).data_ptr() % 64 == 0 for n in (1, 3, 100))
    assert BAND % 64 == 0


def test_uploads_and_states_are_guarded_while_somebody_watches(cpu: Device) -> None:
    with cpu.guard_memory() as guard:  # type: ignore[union-attr]
        x = cpu.upload(np.ones(3, np.float32), bfloat16)
        ids = cpu.upload(np.ones(3, np.int32), int32)
        state = cpu.allocate_state(paged_kv(1, 4, 4, "float32"), StateSpace(2, 16))
        assert not state.k.any()
        for address in (x.data_ptr() + 6, ids.data_ptr() - 4, state.v.data_ptr() - 16):
            ctypes.memset(address, 0, 2)
    assert guard.violations() == [
        "memory behind a tensor bfloat16 [3] was written to",
        "memory before a tensor int32 [3] was written to",
        "memory before a tensor float32 [2, 16, 1, 4] was written to",
    ]
    plain = cpu.upload(np.ones(3, np.float32), float32)
    assert len(plain.untyped_storage()) == 12


@pytest.mark.parametrize(
    "id",
    [
        "linear/f32/2x3x320,33x320_float32-bias/normal/0",
        "write_cache/f32/odd/normal/0",
        "paged_attention/bf16/window/normal/0",
        "rms_norm/f16/T3xD321/normal/0",
        "gelu/bf16/3x5/normal/0",
        "topk/f32/7x65_k=8/normal/0",
        "conv/f32/plane/normal/0",
        "matmul/bf16/3x5,5x7/normal/0",
    ],
)
def test_kernels_give_the_same_bits_and_no_alarm(cpu: Device, id: str) -> None:
    call = find(id).call
    want = Trial(call, cpu).run()
    with cpu.guard_memory() as guard:  # type: ignore[union-attr]
        got = Trial(call, cpu).run()
    assert guard.violations() == []
    for x, y in zip(got, want, strict=True):
        for a, b in zip(*(z if isinstance(z, tuple) else (z,) for z in (x, y)), strict=True):
            assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
