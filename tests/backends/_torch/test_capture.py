"""Small steps replayed as graphs of a device: the same numbers as kernel by kernel, with lists renewed."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

HEAD = """
import numpy as np, torch, pytest
from xinheng.backends._torch import AcceleratorDevice
from xinheng.backends._torch.emulation import EmulatedChip, install
from xinheng.core import Builder, compile, ops, sym
from xinheng.core.hal import ANY_ORDER, Arithmetic, Capabilities
from xinheng.core.hal.kernel import KernelRegistry
from xinheng.core.ir.dtype import dtype, float32, int32
from xinheng.core.ir.types import StateType, TensorType
from xinheng.core.hal import StateSpace

KINDS = frozenset(map(dtype, ("float32", "float16", "int32", "int64", "bool")))

class Device(AcceleratorDevice):
    def __init__(self, graph="MUSAGraph"):
        where = install("musa", EmulatedChip("card", 1 << 30), "MUSAGraph")
        capabilities = Capabilities(KINDS, arithmetic=Arithmetic(ANY_ORDER))
        super().__init__("musa:emulated", "card", where, capabilities, graph=graph)

def scaled():
    b = Builder("scaled")
    x = b.input("x", TensorType(float32, (sym("rows"), 4)))
    w = b.parameter("w", TensorType(float32, (4,)))
    return b.build(y=ops.softmax(ops.mul(x, w), axis=-1))

rng = np.random.default_rng(0)
"""

SAME = """
    bound, plain = (compile(scaled(), Device(g)) for g in ("MUSAGraph", None))
    exes = (bound, plain)
    w = {"w": np.arange(4, dtype=np.float32)}
    bound, plain = (exe.bind({"w": exe.prepare("w", w["w"])}) for exe in exes)
    assert any("captured as graphs" in note for note in exes[0].receipt.notes)
    for rows in (3, 3, 3, 4, 1, 1, 2, 3, 4, 2, 2):
        x = {"x": rng.standard_normal((rows, 4)).astype(np.float32)}
        got, want = (run(b, x) for b in (bound, plain))
        assert got.shape == (rows, 4) and np.array_equal(got, want)
    assert bound.captured == 3 and not bound.refused, (bound.captured, bound.refused)
    buffered = {"x": exes[0].device.upload(x["x"], float32)}
    assert np.array_equal(run(bound, buffered), want), "inputs that are on the device already"
"""
LARGE = """
    exe = compile(scaled(), Device())
    bound = exe.bind({"w": exe.prepare("w", np.ones(4, np.float32))})
    for _ in range(3):
        run(bound, {"x": np.ones((600, 4), np.float32)})
    assert bound.captured == 0
"""
REFUSED = """
    class Reads(Device):
        def __init__(self):
            super().__init__()
            @self.kernels.register(ops.softmax, name="reads", priority=9)
            def softmax(x, *, axis):
                return torch.softmax(x, axis) if float(x.sum().item()) > -1e9 else x
    exe = compile(scaled(), Reads())
    bound = exe.bind({"w": exe.prepare("w", np.ones(4, np.float32))})
    for _ in range(4):
        run(bound, {"x": np.ones((2, 4), np.float32)})
    assert bound.captured == 0 and "waits for musa:0" in next(iter(bound.refused.values()))
"""
HOSTED = """
    def graph():
        b = Builder("lists")
        x = b.input("x", TensorType(float32, (sym("rows"), 4)))
        at = b.input("at", TensorType(int32, (sym("rows"),)))
        return b.build(y=ops.index_select(x, at, axis=0))
    class Planned:
        def __init__(self, renewing): self.renewing = renewing
        def plan(self, node, bounds): return Renewing() if self.renewing else Frozen()
    class Frozen:
        def __call__(self, x, indices, *, axis):
            return x[torch.tensor(indices.tolist(), device=x.device)]
    class Renewing:
        def __call__(self, x, indices, *, axis):
            if device.record is None:
                return x.index_select(axis, torch.from_numpy(indices.astype(np.int64)).to(x.device))
            return x.index_select(axis, device.record.notes[id(self)])
        def update(self, host):
            new = torch.from_numpy(host["indices"].astype(np.int64))
            made = torch.zeros(len(new), dtype=torch.int64, device=device.device)
            device.record.notes.setdefault(id(self), made).copy_(new)
    for renewing in (False, True):
        device = Device()
        device.kernels.register(ops.index_select, name="planned", priority=9, host=("indices",))(Planned(renewing))
        exe = compile(graph(), device)
        bound = exe.bind({})
        for i in range(5):
            x, at = rng.standard_normal((2, 4)).astype(np.float32), np.array([i % 2, 1], np.int32)
            assert np.array_equal(run(bound, {"x": x, "at": at}), x[at])
        if renewing: assert bound.captured == 1, getattr(bound, "refused", exe.receipt.notes)
        else: assert any("that it cannot renew" in note for note in exe.receipt.notes)
"""
RUN = """
def run(bound, inputs):
    bound.run(inputs).wait()
    return bound.outputs["y"].cpu().numpy()
"""


@pytest.mark.parametrize("body", [SAME, LARGE, REFUSED, HOSTED], ids=["same", "large", "refused", "hosted"])
def test_captured_steps(body: str) -> None:
    program = HEAD + RUN + textwrap.dedent(body)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2500:]
