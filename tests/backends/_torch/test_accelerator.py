"""Devices with memory of their own: what is said when it is full, and how they form groups.

Torch has room for one emulated device in a process, so everything runs in processes of its own.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

HEAD = """
import sys
import numpy as np, pytest, torch
from xinheng.backends._torch import AcceleratorDevice
from xinheng.backends._torch.emulation import EmulatedChip, install
from xinheng.core import Builder, compile, ops, sym
from xinheng.core.errors import DeviceError, OutOfMemory
from xinheng.core.hal import ANY_ORDER, Arithmetic, Capabilities, StateSpace, WeightPart, WeightSource
from xinheng.core.ir.dtype import dtype, float32
from xinheng.core.ir.types import TensorType, paged_kv

MIB = 1 << 20
KINDS = frozenset(map(dtype, ("float32", "int32", "int64", "bool")))

class Device(AcceleratorDevice):
    def __init__(self, memory=16 * MIB, graph=None, collective="mccl"):
        where = install("musa", EmulatedChip("card", memory), "MUSAGraph")
        capabilities = Capabilities(KINDS, arithmetic=Arithmetic(ANY_ORDER))
        super().__init__("musa:emulated", "card", where, capabilities, collective, graph, "torch_musa of its vendor")

def table(columns):
    b = Builder("table")
    x = b.input("x", TensorType(float32, (sym("rows"), 1)))
    y = b.input("y", TensorType(float32, (1, columns)))
    return b.build(y=ops.add(x, y))
"""

FULL = """
    device, wide = Device(), np.zeros((2048, 4096), np.float32)
    source = WeightSource("w", wide.shape, (WeightPart("float32", 2048, lambda: wide.view(np.uint8)),))
    for fails, what in [
        (lambda: device.empty(wide.shape, float32), "no room for float32 .2048, 4096.: 32 MiB are asked for, 1. MiB"),
        (lambda: device.upload(wide, float32), "no room for float32 .2048, 4096.: 32 MiB are asked for, 1. MiB are"),
        (lambda: device.prepare(source, ["linear"]), "no room for weight 'w': 32 MiB are asked for, 1. MiB are free"),
        (lambda: device.allocate_state(paged_kv(8, 64, 64, "float32"), StateSpace(64, 16)),
         "no room for 64 cache blocks: 4 MiB are asked for, 1 MiB are free.*lower engine.cache_memory"),
    ]:
        held = device.empty((15 * MIB // 4,), float32) if "cache" in what else None
        with pytest.raises(OutOfMemory, match=what) as caught:
            fails()
        assert caught.value.asked == (4 if held is not None else 32) * MIB
        assert caught.value.free <= (2 if held is not None else 16) * MIB
    assert np.array_equal(device.download(device.upload(wide[:2], float32)), wide[:2]), "it works on"
"""
STEP = """
    bound = compile(table(8192), Device()).bind({})
    with pytest.raises(OutOfMemory, match="'torch_add' of add failed to compute.*MiB are free") as caught:
        bound.run({"x": np.zeros((600, 1), np.float32), "y": np.ones((1, 8192), np.float32)})
    assert caught.value.asked == pytest.approx(600 * 8192 * 4, rel=0.01) and 15 * MIB < caught.value.free <= 16 * MIB
"""
CAPTURE = """
    bound = compile(table(4096), Device(12 * MIB, "MUSAGraph")).bind({})
    x, y = np.arange(300, dtype=np.float32)[:, None], np.ones((1, 4096), np.float32)
    for _ in range(4):
        bound.run({"x": x, "y": y}).wait()
        assert np.array_equal(bound.outputs["y"].cpu().numpy(), x + y)
    (reason,) = bound.refused.values()
    assert bound.captured == 0 and "out of memory" in reason and "MiB are free" in reason, reason
"""
UNKNOWN = """
    Device().runtime.emulated = False
    with pytest.raises(DeviceError, match="musa:emulated: .*'mccl'.*type 'musa'.*install torch_musa of its vendor"):
        Device().join("tp", 0, 2, "tcp://127.0.0.1:1")
    device = Device(collective="gloo")
    with pytest.raises(DeviceError, match="neither tcp://host:port nor file:///path"):
        device.join("tp", 0, 2, "nowhere")
"""


def _run(body: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HEAD + textwrap.dedent(body), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("body", [FULL, STEP, CAPTURE, UNKNOWN], ids=["full", "step", "capture", "unknown"])
def test_what_cannot_be_done_is_said(body: str) -> None:
    with _run(body) as process:
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors[-2500:]


GROUP = """
    from xinheng.backends.generic import GenericBackend
    from xinheng.core.hal import DeviceSpec
    rank, device = int(sys.argv[1]), GenericBackend().open(DeviceSpec.parse("musa:emulated"))
    device.join("tp", rank, 2, sys.argv[2])
    b = Builder("sums")
    x = b.input("x", TensorType(float32, (2, 3)))
    group = {"group": "tp", "size": 2}
    graph = b.build(sum=ops.all_reduce(x, **group), all=ops.all_gather(x, axis=0, **group))
    bound = compile(graph, device).bind({})
    ones = np.full((2, 3), rank + 1, np.float32)
    bound.run({"x": ones}).wait()
    assert bound.outputs["sum"].device == device.device
    assert (device.download(bound.outputs["sum"]) == 3).all()
    assert device.download(bound.outputs["all"])[:, 0].tolist() == [1, 1, 2, 2]
"""


def test_two_processes_with_emulated_devices_are_a_group(tmp_path: Path) -> None:
    ranks = [_run(GROUP, str(rank), f"file://{tmp_path / 'meet'}") for rank in range(2)]
    ended = [(process.communicate(timeout=120)[1], process.returncode) for process in ranks]
    assert all(code == 0 for _, code in ended), "\n".join(text[-1500:] for text, _ in ended)
