"""A torch device written in Python computes as the processor does, and refuses what a real device refuses.

Torch has room for one such name in a process, so everything runs in a process of its own.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

HEAD = """
import torch
import pytest
from xinheng.backends._torch.emulation import EmulatedChip, device_function, install, require
from xinheng.core.errors import DeviceError

dev = install("npu", EmulatedChip("large", memory=1 << 30, major=5), "NPUGraph")
small = install("npu", EmulatedChip("small", 1 << 26, lacking=frozenset({torch.bfloat16}),
                                    unsupported=frozenset({"aten::multinomial"})), "NPUGraph")
x, y = torch.randn(4, 8).to(dev), torch.ones(4, 8, device=dev)
"""

COMPUTES = """
    assert install("npu", EmulatedChip("large", memory=1 << 30, major=5), "NPUGraph") == dev != small
    assert (x + y).cpu().equal(x.cpu() + 1) and (x + y).device == dev
    z = torch.zeros(3, 4, device=dev); z[1] = 5.0; z[:, 2] += 1
    assert z.cpu()[1, 2] == 6 and z[torch.tensor([2, 0], device=dev)].shape == (2, 4)
    assert torch.arange(5, device=dev).device == dev and torch.nn.Linear(8, 4).to(dev)(x).device == dev
    assert torch.cat([x, y]).shape == (8, 8) and x.view(torch.int32).dtype == torch.int32 and x.T.stride() == (1, 8)
    with torch.inference_mode():
        assert x.to("cpu").device.type == "cpu" and x.half().dtype == torch.float16 and x.to(small).device == small
    q = torch.randn(1, 2, 3, 8, device=dev)
    got = torch.nn.functional.scaled_dot_product_attention(q, q, q)
    want = torch.nn.functional.scaled_dot_product_attention(q.cpu(), q.cpu(), q.cpu())
    assert torch.allclose(got.cpu(), want, atol=1e-6) and torch.topk(x, 2).values.device == dev
    alias = y.view(-1); alias.mul_(3); assert y.cpu().eq(3).all(), "views share memory"
    assert torch.npu.get_device_properties(dev).major == 5
"""
REFUSES = """
    for wrong, what in [
        (lambda: x + torch.ones(4, 8), "same device"),
        (lambda: x + torch.ones(4, 8, device=small), "same device"),
        (lambda: torch.ones(2, dtype=torch.bfloat16).to(small), "small does not support torch.bfloat16"),
        (lambda: torch.empty(1 << 27, dtype=torch.uint8, device=small), "out of memory"),
        (lambda: torch.multinomial(torch.ones(3, device=small), 1), "aten::multinomial"),
        (lambda: torch.npu.set_device(7), "invalid device ordinal 7"),
    ]:
        with pytest.raises((RuntimeError, NotImplementedError), match=what):
            wrong()
    with pytest.raises(TypeError, match="numpy"):
        x.numpy()
    with pytest.raises(DeviceError, match="'mlu' cannot be emulated in a process that has devices called 'npu'"):
        install("mlu", EmulatedChip("other"))
"""
MEMORY = """
    before = torch.npu.memory_allocated(dev)
    held = torch.empty(1 << 20, device=dev)
    view = held[:3]
    assert torch.npu.memory_allocated(dev) == before + (1 << 22) and torch.npu.max_memory_allocated(dev) >= 1 << 22
    del held
    assert torch.npu.memory_allocated(dev) == before + (1 << 22), "a view holds the memory"
    del view
    assert torch.npu.memory_allocated(dev) == before
    assert torch.npu.mem_get_info(dev) == ((1 << 30) - before, 1 << 30)
"""
GRAPHS = """
    a, w = torch.ones(2, 3, device=dev), torch.randn(3, 3, device=dev)
    g = torch.npu.NPUGraph()
    with torch.npu.graph(g):
        b = (a @ w).relu()
        c = b.t().contiguous()
        c.add_(1)
        assert torch.npu.is_current_stream_capturing()
        for wrong in (lambda: b.cpu(), lambda: b.sum().item(), lambda: b.nonzero(), torch.npu.synchronize):
            with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
                wrong()
    held = torch.zeros(2, 2, device=dev)
    twice = torch.npu.NPUGraph()
    with torch.npu.graph(twice):
        held.add_(1)
    assert held.cpu().eq(0).all(), "capturing computes nothing"
    twice.replay()
    twice.replay()
    assert held.cpu().eq(2).all()
    a.copy_(torch.full((2, 3), 2.0))
    g.replay()
    assert torch.allclose(c.cpu(), (a.cpu() @ w.cpu()).relu().t() + 1)
"""
DOUBLES = """
    library = torch.library.Library("npu", "DEF")
    library.define("npu_twice(Tensor x) -> Tensor")
    bodies = torch.library.Library("npu", "IMPL", "CPU")
    def npu_twice(x):
        require(x.dtype == torch.float16, "npu_twice", "x is float16")
        return x * 2
    bodies.impl("npu_twice", npu_twice)
    assert torch.ops.npu.npu_twice(x.half()).device == dev
    with pytest.raises(RuntimeError, match="npu_twice: x is float16"):
        torch.ops.npu.npu_twice(x)
    @device_function
    def add_into(out, other):
        out += other
        return out
    assert add_into(y, x) is y and torch.equal(y.cpu(), 1 + x.cpu())
    with pytest.raises(RuntimeError, match="add_into: a tensor is on the host"):
        add_into(y, torch.ones(4, 8))
"""


@pytest.mark.parametrize(
    "body", [COMPUTES, REFUSES, MEMORY, GRAPHS, DOUBLES], ids=["computes", "refuses", "memory", "graphs", "doubles"]
)
def test_the_device(body: str) -> None:
    program = HEAD + textwrap.dedent(body)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
