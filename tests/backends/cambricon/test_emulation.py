"""Emulated cards with a new, an old and no torch_mlu_ops: kernels, refusals, and models against the processor.

Torch has room for one device of this kind in a process, so everything runs in a process of its own.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from ...engine import tiny

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
    assert new.notes() == ()
    assert opened("cambricon:mlu370").capabilities.preferred_dtype == "float16"
    assert new.capabilities.preferred_dtype == "bfloat16"
"""
KERNELS = """
    from xinheng.backends._torch import TORCH_KERNELS
    from xinheng.backends._torch.handles import TorchPagedKV
    plain = {op: TORCH_KERNELS.candidates(op)[0].function for op in TORCH_KERNELS.ops()}
    torch.manual_seed(0)
    for spec in ("cambricon:mlu590", "cambricon:mlu590@tmo_1_3", "cambricon:mlu370"):
        device = opened(spec)
        def both(op, *given, **named):
            mine = device.kernels.candidates(op)[0]
            assert mine.name.startswith("tmo_"), mine.name
            there = [x.to(device.device) if isinstance(x, torch.Tensor) else x for x in given]
            keep = [x.clone() for x in there if isinstance(x, torch.Tensor)]
            made = mine.function(*there, **named)
            for before, after in zip(keep, [x for x in there if isinstance(x, torch.Tensor)]):
                assert before.cpu().equal(after.cpu()), f"{mine.name} changed an operand"
            want = plain[op](*given, **named)
            made, want = (x if isinstance(x, tuple) else (x,) for x in (made, want))
            for a, b in zip(made, want, strict=True):
                assert a.dtype is b.dtype and a.shape == b.shape, mine.name
                assert torch.allclose(a.cpu().float(), b.float(), rtol=4e-3, atol=4e-3), (spec, mine.name)
        for kind in (torch.float16, torch.float32):
            x, y, w = torch.randn(5, 64).to(kind), torch.randn(5, 64).to(kind), torch.randn(64).to(kind)
            both("rms_norm", x, w, eps=1e-6)
            both("add_rms_norm", x, y, w, eps=1e-6)
            both("layer_norm", x, w, y[0].contiguous(), eps=1e-6)
            both("silu_and_mul", x, y)
            both("gelu_and_mul", x, y)
            heads, turn = torch.randn(5, 3, 64).to(kind), torch.randn(5, 16)
            for interleaved in (False, True):
                both("rotary_embedding", heads, turn.cos(), turn.sin(), interleaved=interleaved)
            experts = torch.randint(0, 4, (5, 2), dtype=torch.int32)
            both("moe_permute", x, experts, num_experts=4)
            rows, order, counts = plain["moe_permute"](x, experts, num_experts=4)
            both("moe_unpermute", rows, order, torch.rand(5, 2))
            both("moe_gating_topk", torch.randn(5, 8).to(kind), k=2, renormalise=True, scale=2.0)
            both("dynamic_quant", x)
        a, b = (torch.randint(-127, 128, shape, dtype=torch.int8) for shape in ((5, 64), (7, 64)))
        both("quant_matmul", a, b, torch.rand(5, 1) / 99, torch.rand(7) / 99, None, dtype=dtype("float16"))
"""
ATTENTION = """
    from xinheng.backends._torch import TORCH_KERNELS
    from xinheng.backends._torch.handles import TorchPagedKV
    plain = TORCH_KERNELS.candidates("paged_attention")[0].function
    torch.manual_seed(1)
    cards = ("cambricon:mlu590", torch.bfloat16, 520), ("cambricon:mlu370@tmo_1_3", torch.float16, 260)
    for spec, kind, heads in cards:
        device = opened(spec)
        attend = device.kernels.candidates("paged_attention")[0].function
        write = device.kernels.candidates("write_cache")[0].function
        for q_heads, keys in ((4, 2), (heads, 1)):
            held = [device._keys((6, 16, keys, 32), kind) for _ in range(2)]
            assert held[0].shape == (6, 16, keys, 32) and held[0].transpose(1, 2).is_contiguous()
            cache = TorchPagedKV(*held)
            slots = torch.randperm(96)[:40].to(torch.int32); slots[3] = -1
            k, v = torch.randn(40, keys, 32).to(kind), torch.randn(40, keys, 32).to(kind)
            write(cache, k.to(device.device), v.to(device.device), slots.to(device.device))
            want = torch.zeros(96, keys, 32, dtype=kind); want[slots[slots >= 0].long()] = k[slots >= 0]
            assert held[0].cpu().reshape(96, keys, 32).equal(want)
            host = TorchPagedKV(held[0].cpu(), held[1].cpu())
            table = torch.tensor([[2, 0, 1], [4, 3, -1]], dtype=torch.int32)
            steps = ([0, 1, 2], [33, 20]), ([0, 2, 2], [33, 20]), ([0, 1, 1], [7, 0]), ([0, 3, 7], [40, 18])
            for starts, lens in steps:
                for window in (None, 5):
                    tokens = max(starts[-1], 2)
                    q = torch.randn(tokens, q_heads, 32).to(kind)
                    s, n = (np.array(t, np.int32) for t in (starts, lens))
                    there = [t.to(device.device) for t in (q, torch.tensor(s), torch.tensor(n), table)]
                    out, lse = attend(there[0], cache, *there[1:], scale=0.2, window=window)
                    good, sums = plain(q, host, s, n, table, scale=0.2, window=window)
                    assert torch.allclose(out.cpu().float(), good.float(), atol=2e-2), (spec, starts, window)
                    assert torch.allclose(lse.cpu(), sums, atol=1e-3), (spec, starts, window)
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
    def decode(q=q, k=cache, out=out, table=n(1, 1), lens=n(1), right=-1, lib=new):
        return lib.single_query_cached_kv_attn(q, k, k, out, table, lens, None, None, None, 16, -1, right, 1.0)
    def rotary(x, sin, ids, ends):
        return new.apply_rotary(x, sin, sin, ids, ends, False, True, False, 2)
    x, sin = t(2, 3, 32), t(2, 32)
    half = torch.float16
    wide = t(1, 1, 258, 32, kind=half)
    decode(), rotary(x, sin, n(2), n(2))
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
    ]:
        with pytest.raises(RuntimeError, match=what):
            wrong()
    with pytest.raises(TypeError, match="max_m"):
        new.group_gemm(t(2, 4), t(1, 3, 4), n(1) + 2, None, None, None, None)
"""
MODEL = """
    from pathlib import Path
    from xinheng.core.settings import RuntimeSettings
    from xinheng.engine import LLM, EngineSettings
    ids = list(np.random.default_rng(3).integers(4, 280, 24))
    def logits(device, kind):
        runtime = RuntimeSettings(device=device, dtype=kind)
        with LLM(Path(sys.argv[1]), runtime=runtime, settings=EngineSettings()) as llm:
            return llm.logits([int(i) for i in ids], chunk=7), llm.receipt
    want, _ = logits("cpu:0", "float32")
    for device in sys.argv[2:]:
        made, receipt = logits(device, "float16")
        assert {line.device for line in receipt.lines} == {device}
        assert ("@torch" in device) != any(line.kernel.startswith("tmo_") for line in receipt.lines)
        assert ("@torch" in device) == any("torch_mlu_ops is not installed" in note for note in receipt.notes)
        assert float(np.abs(made - want).max()) < 2e-2 * float(np.ptp(want)), device
        top = np.sort(want, -1)
        sure = top[:, -1] - top[:, -2] > 1e-2 * np.ptp(want)
        assert (made.argmax(-1) == want.argmax(-1))[sure].all() and sure.sum() > 5, device
"""


def run(body: str, *arguments: str) -> None:
    """Run a program in a process of its own."""
    program = HEAD + textwrap.dedent(body)
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("body", [NAMES, KERNELS, ATTENTION, REFUSES], ids=["names", "kernels", "attention", "refuses"])
def test_kernels_over_doubles(body: str) -> None:
    run(body)


@pytest.mark.parametrize(
    ("config", "devices"),
    [
        ("LLAMA", ("cambricon:mlu370", "cambricon:mlu590@tmo_1_3", "cambricon:mlu590@torch")),
        ("QWEN3_MOE", ("cambricon:mlu590",)),
        ("GLM4", ("cambricon:mlu590",)),
        ("DEEPSEEK_V3", ("cambricon:mlu590",)),
    ],
)
def test_models_answer_as_on_the_processor(tmp_path: Path, config: str, devices: tuple[str, ...]) -> None:
    folder = tiny.write_model(tmp_path / "model", getattr(tiny, config), seed=1)
    run(MODEL, str(folder), *devices)
