"""Emulated cards with a new, an old and no torch_mlu_ops: kernels, what a step shares, and refusals.

Torch has room for one device of this kind in a process, so everything runs in a process of its own.
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
from xinheng.core import Builder, StateType, TensorType, compile, dtype, ops, sym
from xinheng.core.plugins import PluginManager
from xinheng.backends.cambricon import CambriconBackend
from xinheng.core.hal import DeviceSpec

def opened(spec):
    return CambriconBackend().open(DeviceSpec.parse(spec))
"""
NAMES = """
    new, old, none = (opened("cambricon:mlu590@" + r) for r in ("tmo_1_12", "tmo_1_3", "torch"))
    def best(device, op):
        return device.kernels.candidates(op)[0].name
    assert best(new, "quant_matmul") == "tmo_scaled_matmul" and best(old, "quant_matmul") == "tmo_smooth_quant_matmul"
    assert best(new, "dynamic_quant") == "tmo_scaled_quantize"
    assert best(old, "dynamic_quant") == "tmo_per_token_smooth_quantize"
    for op in ("rms_norm", "linear", "paged_attention", "write_cache", "rotary_embedding", "grouped_linear"):
        assert best(new, op).startswith("tmo_") and best(old, op).startswith("tmo_")
        assert not best(none, op).startswith("tmo_"), op
    assert "torch_mlu_ops is not installed" in none.notes()[0]
    assert old.notes() == ("this torch_mlu_ops has no moe_sigmoid_topk: plain torch runs instead",)
    assert new.joint_latents and not old.joint_latents
    assert new.notes() == ()
    assert opened("cambricon:mlu370").capabilities.preferred_dtype == "float16"
    assert new.capabilities.preferred_dtype == "bfloat16"
"""
KERNELS = """
    sys.path.insert(0, sys.argv[1])
    from tests.samples import EVERY, demand
    from xinheng.core.ir import DTYPES
    def drive(spec):
        device, tried = opened(spec), set()
        for op in device.kernels.ops():
            for kernel in device.kernels.own(op):
                for sample in (s for s in EVERY if s.op == op and not s.label.startswith(("B32", "B64", "B128"))):
                    kind = DTYPES["float16"]
                    node = sample.in_dtype(kind).graph().nodes[-1]
                    if device.select(node, kernel.name)[0] is not None and (op, kernel.name) not in tried:
                        demand(sample, kind, device, kernel.name)
                        tried.add((op, kernel.name))
        return {name for _, name in tried}
    new, old, small = (drive(spec) for spec in ("cambricon:mlu590", "cambricon:mlu590@tmo_1_3", "cambricon:mlu370"))
    assert {"tmo_scaled_matmul", "tmo_moe_sigmoid_topk", "tmo_apply_rotary", "tmo_moe"} <= new
    assert "tmo_weight_only_quant_matmul" in old and "torch_random_uniform_int32" in new & old & small
"""
LAYERS = """
    from xinheng.core.hal import ReferenceDevice, StateSpace
    from xinheng.core.ir.types import paged_kv

    def layers(count=3):
        b = Builder()
        tokens, seqs, blocks = sym("tokens"), sym("seqs"), sym("blocks")
        q = b.input("q", TensorType(dtype("float16"), (tokens, 4, 32)))
        names = (("start", seqs + 1), ("lengths", seqs))
        start, lengths = (b.input(n, TensorType(dtype("int32"), (s,))) for n, s in names)
        table = b.input("table", TensorType(dtype("int32"), (seqs, blocks)))
        made = {}
        for n in range(count):
            cache = b.state(f"cache{n}", paged_kv(2, 32, 32, "float16"))
            window = 9 if n else None
            made[f"y{n}"], lse = ops.paged_attention(q, cache, start, lengths, table, scale=0.2, window=window)
        return b.build(lse=lse, **made)

    rng, made = np.random.default_rng(0), {}
    pages = tuple(rng.normal(size=(4, 16, 2, 32)).astype(np.float16) for _ in range(2))
    steps = [([1, 1, 1], [5, 30, 20]), ([1, 1, 1], [6, 31, 21]), ([1, 1, 1], [7, 32, 9]), ([1, 1], [8, 3]),
             ([2, 1], [9, 3]), ([1, 1, 1], [5, 32, 11]), ([1, 2], [3, 30]), ([2, 1], [2, 7])]
    queries = [rng.normal(size=(sum(counts), 4, 32)).astype(np.float16) for counts, _ in steps]
    for device, copied in ((opened("cambricon:mlu590"), 0), (opened("cambricon:mlu590"), 1), (ReferenceDevice(), 0)):
        graph = layers()
        exe = compile(graph, device, bounds={"tokens": 8, "seqs": 4, "blocks": 2})
        states = exe.allocate_state(StateSpace(4, 16))
        for value, _ in graph.states:
            device.write_state(states[value.name], value.type, pages)
        bound, results, held = exe.bind(states), [], {}
        for (counts, keys), q in zip(steps, queries):
            given = {"q": q, "table": np.array([[2, 0], [1, 3], [3, 1]], np.int32)[: len(keys)],
                     "start": np.cumsum([0, *counts]).astype(np.int32), "lengths": np.array(keys, np.int32)}
            if copied:  # the same buffers with other numbers in them, kernel by kernel
                fresh = {n: torch.from_numpy(x).to(device.device) for n, x in given.items()}
                for n, x in fresh.items():
                    key = n, tuple(x.shape)
                    fresh[n] = held[key].copy_(x) if key in held else held.setdefault(key, x)
                bound._plain.run(fresh).wait()
                bound.outputs = bound._plain.outputs
            else:
                bound.run(given).wait()
            results.append([np.asarray(device.download(bound.outputs[n]), np.float64) for n in bound.outputs])
        made[device.spec, copied] = results
        if hasattr(bound, "captured") and not copied:
            assert (bound.captured, dict(bound.refused)) == (2, {}), (bound.captured, bound.refused)
    *ours, theirs = made.values()
    assert len(ours) == 2
    for results in ours:
        for mine, good in zip(results, theirs):
            for a, b in zip(mine, good, strict=True):
                np.testing.assert_allclose(a, b, atol=2e-3)

    # what a step shares is made once, by the first layer
    from torch.utils._python_dispatch import TorchDispatchMode
    from xinheng.backends._torch.emulation.tensor import EmulatedTensor
    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if any(isinstance(x, EmulatedTensor) for x in args) or "mlu" in str((kwargs or {}).get("device")):
                seen.append(str(function))
            return function(*args, **(kwargs or {}))
    def ran(count):
        exe = compile(layers(count), opened("cambricon:mlu590"), bounds={"tokens": 8, "seqs": 4, "blocks": 2})
        seen.clear()
        with Count():
            exe.bind(exe.allocate_state(StateSpace(4, 16)))._plain.run(given)
        return list(seen)
    seen = []
    one, three = ran(1), ran(3)
    assert sum(name.startswith("aten.arange") for name in three) == 1, three
    assert sum(name.startswith("aten.sum") for name in three) == 1, three
    assert (len(three) - len(one)) / 2 < 16 < len(one), (len(one), three)
"""
REFUSES = """
    from xinheng.backends.cambricon.chips import CHIPS
    from xinheng.backends.cambricon.doubles import library_of
    device, old = opened("cambricon:mlu590").device, CHIPS[0]
    new, dated, small = library_of("tmo_1_12", CHIPS[1]), library_of("tmo_1_3", CHIPS[1]), library_of("tmo_1_12", old)
    assert not hasattr(new, "smooth_quant_matmul") and not hasattr(dated, "scaled_matmul")
    def t(*shape, kind=torch.bfloat16):
        return torch.zeros(shape, dtype=kind, device=device)
    def n(*shape, kind=torch.int32):
        return torch.zeros(shape, dtype=kind, device=device)
    q, cache, out = t(1, 1, 4, 32), t(2, 2, 16, 32), t(1, 1, 4, 32)
    def decode(q=q, k=cache, out=out, table=n(1, 1), lens=n(1), right=-1, lib=new, v=0, **more):
        v = k if v == 0 else v
        return lib.single_query_cached_kv_attn(q, k, v, out, table, lens, None, None, None, 16, -1, right, 1.0, **more)
    codes = n(3, 128, kind=torch.int8)
    def coded(scale, bits, wide=torch.bfloat16):
        return new.scaled_matmul(t(2, 128, kind=wide), codes, None, scale, wide, None, None, "none", bits)
    def rotary(x, sin, ids, ends):
        return new.apply_rotary(x, sin, sin, ids, ends, False, True, False, 2)
    x, sin = t(2, 3, 32), t(2, 32)
    half = torch.float16
    wide = t(1, 1, 258, 32, kind=half)
    decode(), rotary(x, sin, n(2), n(2)), coded(t(3, 2), 8), coded(t(3, kind=torch.float32), 8)
    for wrong, what in [
        (lambda: decode(table=n(1, 1, kind=torch.int64)), "block_tables must be contiguous int32"),
        (lambda: decode(lens=n(1, kind=torch.int64)), "context_lens must be contiguous int32"),
        (lambda: decode(k=t(2, 2, 24, 32)), "blocks of 24"),
        (lambda: decode(k=t(2, 16, 2, 32).transpose(1, 2)), "must be contiguous"),
        (lambda: decode(out=q), "must not alias"),
        (lambda: decode(right=0), "windows_size_right"),
        (lambda: decode(t(1, 1, 514, 32), out=t(1, 1, 514, 32)), "Sq . Hq / Hkv is 257, at most 256"),
        (lambda: decode(wide, t(2, 2, 16, 32, kind=half), torch.empty_like(wide)), "at most 128"),
        (lambda: decode(t(1, 1, 4, 48), t(2, 2, 16, 48), t(1, 1, 4, 48)), "no heads of 48"),
        (lambda: decode(lib=small), "MLU370 has no bfloat16"),
        (lambda: rotary(x, sin.float(), n(2), n(2)), "must be of one type"),
        (lambda: rotary(x, t(2, 16), n(2), n(2)), "full width"),
        (lambda: rotary(x, sin, n(2, kind=torch.int64), n(2)), "ids must be int32"),
        (lambda: rotary(t(2, 3, 258), t(2, 258), n(2), n(2)), "2 to 256"),
        (lambda: new.reshape_paged_cache(t(2, 2, 32), t(2, 2, 32), cache, cache, n(2, kind=torch.int64)), "int32"),
        (lambda: new.reshape_paged_cache(t(2, 16, 32), t(2, 16, 32), cache, cache, n(2)), "caches are"),
        (lambda: new.group_gemm(t(2, 4), t(1, 3, 4), n(1) + 2, None, None, None, None, 1), "none above max_m"),
        (lambda: new.scaled_matmul(n(2, 4, kind=torch.int8), n(3, 4, kind=torch.int8), t(2, kind=torch.float32),
                                   t(3, kind=torch.float32), torch.float32), "results cannot be"),
        (lambda: new.matmul(t(2, 4), t(3, 4).cpu()), "on the host"),
        (lambda: new.reshape_paged_cache(t(2, 2, 32), t(2, 2, 16), cache, cache, n(2)), "shape of k"),
        (lambda: coded(t(2, 2), 8), "scales of groups are .* like a"),
        (lambda: coded(t(3, 4), 8), "no groups of 32"),
        (lambda: coded(t(3, kind=torch.float32), 4), "128 bytes in a row"),
        (lambda: coded(t(3, 2), 8, wide=half), "like a"),
        (lambda: dated.weight_only_quant_matmul(t(2, 128), codes, t(3, 2), t(3)), "zero is not supported"),
        (lambda: decode(v=None, out=t(1, 1, 4, 16), head_size_v=16), "no heads of 16"),
        (lambda: new.moe_sigmoid_topk(t(2, 6), 2, True, 4, 2), "groups of one size"),
    ]:
        with pytest.raises(RuntimeError, match=what):
            wrong()
    with pytest.raises(TypeError, match="max_m"):
        new.group_gemm(t(2, 4), t(1, 3, 4), n(1) + 2, None, None, None, None)
"""


def run(body: str, *arguments: str) -> None:
    """Run a program in a process of its own."""
    program = HEAD + textwrap.dedent(body)
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("body", [NAMES, KERNELS, LAYERS, REFUSES], ids=["names", "kernels", "layers", "refuses"])
def test_kernels_over_doubles(body: str) -> None:
    run(body, str(Path(__file__).parents[3]))
