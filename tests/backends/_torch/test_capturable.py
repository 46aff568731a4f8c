"""Caches and attention in plain torch inside captured steps: the bits of steps that run kernel by kernel.

Torch has room for one emulated device in a process, so everything runs in processes of its own.
"""

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
from xinheng.core.hal import ANY_ORDER, Arithmetic, Capabilities, StateSpace
from xinheng.core.ir.dtype import dtype, float16, float32, int32
from xinheng.core.ir.types import TensorType, paged_kv

KINDS = frozenset(map(dtype, ("float32", "float16", "bfloat16", "int8", "uint8", "int32", "int64", "bool")))
BLOCKS, SIZE, HEADS, KV, DIM = 12, 4, 6, 2, 8
NAMES = (("q", HEADS), ("k", KV), ("v", KV))

class Device(AcceleratorDevice):
    def __init__(self, capture, level="D4"):
        where = install("musa", EmulatedChip("card", 1 << 28), "MUSAGraph")
        arithmetic = Arithmetic(ANY_ORDER, determinism=level)
        capabilities = Capabilities(KINDS, arithmetic=arithmetic, cache_schemes=frozenset({"int8"}))
        super().__init__("musa:emulated", "card", where, capabilities, graph="MUSAGraph", capture=capture)

def step(coding, kind=float16, sinks=False, layers=2, **how):
    b, tokens, seqs = Builder("step"), sym("tokens"), sym("seqs")
    q, k, v = (b.input(n, TensorType(kind, (tokens, h, DIM))) for n, h in NAMES)
    start = b.input("query_start", TensorType(int32, (seqs + 1,)))
    lengths, slots = b.input("seq_lens", TensorType(int32, (seqs,))), b.input("slots", TensorType(int32, (tokens,)))
    table = b.input("block_table", TensorType(int32, (seqs, sym("blocks"))))
    sink = b.parameter("sink", TensorType(float32, (HEADS,))) if sinks else None
    for layer in range(layers):
        cache = b.state(f"cache{layer}", paged_kv(KV, DIM, DIM, coding))
        cache = ops.write_cache(cache, k, v, slots)
        q, lse = ops.paged_attention(q, cache, start, lengths, table, sink, scale=DIM**-0.5, **how)
    return b.build(y=q, lse=lse)

def runs(graph, capture, level="D4"):
    "Three sequences whose lengths cross blocks, sometimes two of them, token by token."
    exe = compile(graph, Device(capture, level))
    sink = np.linspace(-1, 1, HEADS, dtype=np.float32)
    buffers = {value.name: exe.prepare(value.name, sink) for value in graph.parameters}
    states = exe.allocate_state(StateSpace(BLOCKS, SIZE))
    for state in states.values():
        if state.k.is_floating_point():
            state.k.fill_(float("nan")), state.v.fill_(float("nan"))
    bound, rng = exe.bind({**buffers, **states}), np.random.default_rng(1)
    table, lengths, found = np.arange(9, dtype=np.int32).reshape(3, 3)[::-1] + 2, np.zeros(3, np.int32), []
    for turn in range(11):
        n = 2 if turn % 4 == 3 else 3
        lengths[:n] += 1
        used = -(-int(lengths[:n].max()) // SIZE)
        slots = np.array([table[s, (lengths[s] - 1) // SIZE] * SIZE + (lengths[s] - 1) % SIZE for s in range(n)])
        given = {name: rng.standard_normal((n, h, DIM)).astype(np.float16) for name, h in NAMES}
        given |= {"query_start": np.arange(n + 1, dtype=np.int32), "seq_lens": lengths[:n].copy(),
                  "slots": slots.astype(np.int32), "block_table": np.ascontiguousarray(table[:n, :used])}
        bound.run(given).wait()
        found.append({name: exe.device.download(x).copy() for name, x in bound.outputs.items()})
    held = [x.cpu() for state in states.values() for x in state.parts]
    return found, held, bound, exe
"""

SAME = """
    for coding, how in [("float16", {}), ("int8", {"window": 3}), ("float32", {"softcap": 5.0, "sinks": True}),
                        ("float16", {"causal": False}), ("float16", {"sinks": True, "window": 5})]:
        graph = step(coding, **how)
        (got, held, bound, exe), (want, kept, plain, _) = (runs(graph, capture) for capture in (True, False))
        for ours, theirs in zip(got, want, strict=True):
            for name in theirs:
                assert np.isfinite(theirs[name]).all() and np.array_equal(ours[name], theirs[name]), (coding, how, name)
        assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(held, kept, strict=True))
        assert bound.captured >= 3 and not bound.refused, bound.refused
        assert not hasattr(plain, "captured")
    names = {line.kernel for line in exe.receipt.lines}
    assert names == {"torch_write_cache", "torch_paged_attention_by_token"}, names
"""
CLOSE = """
    got, want = (runs(step("float16"), capture, "D1")[0] for capture in (True, False))
    assert all(np.allclose(a["y"], b["y"], atol=2e-3) for a, b in zip(got, want, strict=True))
"""
TOLD = """
    *_, bound, exe = runs(step("float16"), True)
    told = exe.receipt.notes
    (sizes,) = (note for note in told if note.startswith("captured as graphs: "))
    assert len(sizes.split("; ")) == bound.captured and "blocks=2 seqs=4 tokens=4" in sizes, sizes
    prompt = {name: np.zeros((5, h, DIM), np.float16) for name, h in NAMES}
    prompt |= {"query_start": np.array([0, 5], np.int32), "seq_lens": np.array([5], np.int32),
               "slots": np.arange(5, dtype=np.int32), "block_table": np.zeros((1, 2), np.int32)}
    for _ in range(3):
        bound.run(prompt).wait()
    (why,) = (note for note in exe.receipt.notes if note.startswith("not captured: "))
    assert "blocks=2 seqs=1 tokens=8: attention of several queries per sequence" in why, why
    assert len(exe.receipt.notes) == len(told) + 1
    *_, exe = runs(step("float16", layers=1), False)
    assert "nothing is captured: runtime.graph is false" in exe.receipt.notes
    Device(True).runtime.__dict__.pop("MUSAGraph")
    exe = compile(step("float16"), Device(True))
    assert any("torch.musa has no MUSAGraph; install a newer" in note for note in exe.receipt.notes), exe.receipt.notes
"""
NOWHERE = """
    exe = compile(step("float16", layers=1), Device(False))
    (state,) = exe.allocate_state(StateSpace(BLOCKS, SIZE)).values()
    write = exe.functions[0]
    before, new = state.k.cpu().clone(), torch.ones((3, KV, DIM), dtype=torch.float16, device=state.k.device)
    def written(*slots):
        write(state, new, new, torch.tensor(slots, dtype=torch.int32, device=new.device))
        return state.k.cpu().reshape(-1, KV, DIM).abs().sum((1, 2)).nonzero().reshape(-1).tolist()
    assert written(-1, -1, -1) == [] and written(-1, 0, -1) == [0] and written(-1, 7, -1) == [0, 7]
    new.zero_()
    assert written(-1, -1, 7) == [0], "a row without a slot does not bring back what was there"
    write(state, new[:0], new[:0], torch.zeros(0, dtype=torch.int32, device=new.device))
"""


@pytest.mark.parametrize("body", [SAME, CLOSE, TOLD, NOWHERE], ids=["same", "close", "told", "nowhere"])
def test_captured_attention(body: str) -> None:
    program = HEAD + textwrap.dedent(body)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2500:]
