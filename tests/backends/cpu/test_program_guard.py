"""Watched programs: their results lie apart, start as a canary, and what a kernel writes beside one is told."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from xinheng.backends.cpu.commands import ENCODERS
from xinheng.backends.cpu.device import CPUDevice
from xinheng.backends.cpu.executable import CPUExecutable
from xinheng.backends.cpu.program import Planner
from xinheng.conformance.checks.memory import canaries
from xinheng.core import ops
from xinheng.core.compiler import compile
from xinheng.core.hal import BAND, DeviceOptions, StateSpace
from xinheng.core.ir import Builder, Graph, TensorType, paged_kv
from xinheng.core.ir.dtype import bfloat16, float32, int32


@pytest.fixture
def cpu() -> CPUDevice:
    opened = CPUDevice(DeviceOptions())
    if opened.notes():
        pytest.skip("no C++ compiler on this machine: there are no native programs")
    return opened


def chain() -> Graph:
    b = Builder("chain")
    x = b.input("x", TensorType(float32, (3, 5)))
    y = ops.neg(ops.neg(ops.neg(x)))
    return b.build(y=y, z=ops.exp(y))


def bound(graph: Graph, cpu: CPUDevice) -> Any:
    executable = compile(graph, cpu)
    assert isinstance(executable, CPUExecutable)
    assert executable.program is not None
    return executable.bind({})


def outputs(bound: Any, cpu: CPUDevice) -> dict[str, Any]:
    bound.run({"x": np.arange(15, dtype=np.float32).reshape(3, 5)}).wait()
    return {name: cpu.download(buffer).copy() for name, buffer in bound.outputs.items()}


def test_watched_or_not_a_program_has_the_same_results(cpu: CPUDevice) -> None:
    plain = outputs(bound(chain(), cpu), cpu)
    with cpu.guard_memory() as guard:  # type: ignore[union-attr]
        watched = outputs(bound(chain(), cpu), cpu)
    assert guard.violations() == []
    np.testing.assert_array_equal(plain["y"], watched["y"])
    np.testing.assert_array_equal(plain["z"], watched["z"])


@pytest.mark.parametrize(("side", "shift"), [("before", -4), ("behind", 60)])
def test_a_write_beside_a_result_is_told(cpu: CPUDevice, side: str, shift: int) -> None:
    with cpu.guard_memory() as guard:  # type: ignore[union-attr]
        watched = bound(chain(), cpu)
        outputs(watched, cpu)
        ctypes.memset(watched.outputs["y"].ctypes.data + shift, 0, 4)
    assert guard.violations() == [f"memory {side} a tensor float32[3, 5] was written to"]


def test_what_no_kernel_writes_stays_a_canary(cpu: CPUDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    def unwritten(plan: Planner, node: Any) -> None:
        plan.result(node.results[0])

    monkeypatch.setitem(ENCODERS, "native_exp", unwritten)
    with cpu.guard_memory():  # type: ignore[union-attr]
        made = outputs(bound(chain(), cpu), cpu)
    assert canaries(made["y"]) == 0
    assert canaries(made["z"]) == 15


def test_only_watched_results_lie_apart(cpu: CPUDevice) -> None:
    plain = compile(chain(), cpu)
    with cpu.guard_memory():  # type: ignore[union-attr]
        watched = compile(chain(), cpu)
    assert isinstance(plain, CPUExecutable)
    assert isinstance(watched, CPUExecutable)
    assert plain.program is not None
    assert watched.program is not None
    assert plain.program.rooms == []
    assert len(watched.program.rooms) == 4
    assert watched.program.arena == 4 * (64 + 2 * BAND)
    assert outputs(watched.bind({}), cpu).keys() == {"y", "z"}  # watched when it was compiled, and no more


def test_uploads_states_and_tensors_of_torch_are_guarded_while_somebody_watches(cpu: CPUDevice) -> None:
    b = Builder("sum")
    summed = compile(b.build(y=ops.sum(b.input("x", TensorType(float32, (2, 3))), axis=-1)), cpu)
    assert summed.receipt.lines[0].kernel == "torch_sum"
    with cpu.guard_memory() as guard:  # type: ignore[union-attr]
        x = cpu.upload(np.ones(3, np.float32), bfloat16)
        ids = cpu.upload(np.ones(3, np.int32), int32)
        state = cpu.allocate_state(paged_kv(1, 4, 4, "float32"), StateSpace(2, 16))
        assert not state.k.any() and not state.v.any()
        assert all(held.ctypes.data % 64 == 0 for held in (ids, state.k, state.v))
        made = summed.bind({})
        made.run({"x": np.ones((2, 3), np.float32)}).wait()
        assert cpu.download(made.outputs["y"]).tolist() == [3, 3]
        assert guard.violations() == []
        for address in (x.ctypes.data + 6, ids.ctypes.data - 4, state.v.ctypes.data - 16):
            ctypes.memset(address, 0, 2)
    assert guard.violations() == [
        "memory behind a tensor bfloat16 [3] was written to",
        "memory before a tensor int32 [3] was written to",
        "memory before a tensor float32 [2, 16, 1, 4] was written to",
    ]
