"""Attention libraries are called as their documentation says: doubles check the calls and compute in plain torch."""

from __future__ import annotations

import math
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from xinheng.backends._torch.handles import TorchPagedKV
from xinheng.backends._torch.kernels.attention import paged_attention, sdpa_varlen
from xinheng.backends.cuda.providers import conditions, flash_attn, flashinfer
from xinheng.core import Builder, TensorType, ops
from xinheng.core.hal import KernelRegistry
from xinheng.core.ir import paged_kv
from xinheng.core.ir.dtype import bfloat16, float16, float32, int32

STARTS, LENGTHS = np.array([0, 3, 4], np.int32), np.array([21, 33], np.int32)
TABLE = torch.tensor([[2, 4, -1], [0, 5, 3]], dtype=torch.int32)


class FlashInfer:
    """`BatchPrefillWithPagedKVCacheWrapper` of FlashInfer, with pages in the order NHD."""

    def __init__(self) -> None:
        self.plans = 0
        self.BatchPrefillWithPagedKVCacheWrapper = self._made

    def _made(self, workspace: Any, layout: str) -> Any:
        assert workspace.dtype is torch.uint8
        assert layout == "NHD"
        return SimpleNamespace(plan=self._plan, run=self._run)

    def _plan(
        self, starts: Any, pages: Any, indices: Any, last: Any, heads: int, kv: int, dim: int, size: int, **how: Any
    ) -> None:
        assert {x.dtype for x in (starts, pages, indices, last)} == {torch.int32}
        assert indices.numel() == int(pages[-1])
        assert ((last >= 1) & (last <= size)).all()
        assert how.keys() == {
            "causal", "sm_scale", "window_left", "logits_soft_cap", "q_data_type", "kv_data_type",
        }  # fmt: skip
        self.plans += 1
        self._step = (starts, pages, indices, last, size, how)

    def _run(self, q: Any, pages: Any, return_lse: bool) -> Any:
        assert return_lse
        starts, counts, indices, last, size, how = self._step
        assert (q.dtype, pages[0].dtype) == (how["q_data_type"], how["kv_data_type"])
        spans = counts.diff()
        lengths = (spans - 1).clamp(min=0) * size + last
        table = torch.full((len(spans), int(spans.max())), -1)
        for s, span in enumerate(spans.tolist()):
            table[s, :span] = indices[counts[s] : counts[s] + span]
        window = None if how["window_left"] < 0 else how["window_left"] + 1
        out, lse = paged_attention(
            q, TorchPagedKV(*pages), starts.numpy(), lengths.numpy(), table, scale=how["sm_scale"], window=window,
            softcap=how["logits_soft_cap"] or None, causal=how["causal"],
        )  # fmt: skip
        return out, lse / math.log(2)


def flash_attn_varlen_func(q: Any, k: Any, v: Any, starts: Any, keys: Any, longest: int, most: int, **how: Any) -> Any:
    """That of flash-attn 2: rows without a key have a log-sum-exp of +inf, which is [heads, tokens]."""
    assert {starts.dtype, keys.dtype} == {torch.int32}
    assert (longest, most) == (int(starts.diff().max()), int(keys.diff().max()))
    assert how.keys() == {"softmax_scale", "causal", "window_size", "softcap", "return_attn_probs"}
    assert (q.shape[0], k.shape[0]) == (int(starts[-1]), int(keys[-1]))
    left, right = how["window_size"]
    assert right == (0 if how["causal"] else -1)
    out, lse = sdpa_varlen(
        q, k, v, starts, keys, scale=how["softmax_scale"], window=None if left < 0 else left + 1,
        softcap=how["softcap"] or None, causal=how["causal"],
    )  # fmt: skip
    return out, torch.where(lse.isinf(), torch.inf, lse).transpose(0, 1), None


def normal(*shape: int) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(math.prod(shape)))


HOWS = [{}, {"window": 7}, {"softcap": 5.0}, {"causal": False}, {"causal": False, "window": 9}]


@pytest.fixture
def provided(monkeypatch: pytest.MonkeyPatch) -> tuple[KernelRegistry, FlashInfer]:
    registry, library = KernelRegistry(), FlashInfer()
    monkeypatch.setitem(sys.modules, "flashinfer", library)
    monkeypatch.setitem(sys.modules, "flash_attn", SimpleNamespace(flash_attn_varlen_func=flash_attn_varlen_func))
    flashinfer.register_flashinfer(registry)
    flash_attn.register_flash_attn(registry)
    return registry, library


@pytest.mark.parametrize("how", HOWS)
def test_flashinfer(provided: tuple[KernelRegistry, FlashInfer], how: dict[str, Any]) -> None:
    (kernel,) = provided[0].candidates("paged_attention")
    q, cache = normal(6, 4, 64), TorchPagedKV(normal(6, 16, 2, 64), normal(6, 16, 2, 64))
    out, lse = kernel.function(q, cache, STARTS, LENGTHS, TABLE, scale=0.1, **how)
    want = paged_attention(q, cache, STARTS, LENGTHS, TABLE, scale=0.1, **how)
    torch.testing.assert_close(out, want[0])
    torch.testing.assert_close(lse, want[1])
    assert not out[4:].any()
    assert (lse[4:] == -torch.inf).all()


def test_flashinfer_plans_a_step_once(provided: tuple[KernelRegistry, FlashInfer]) -> None:
    (kernel,), library = provided[0].candidates("paged_attention"), provided[1]
    q, cache = normal(4, 4, 64), TorchPagedKV(normal(6, 16, 2, 64), normal(6, 16, 2, 64))
    for _ in range(3):
        kernel.function(q, cache, STARTS, LENGTHS, TABLE, scale=0.1)
    assert library.plans == 1
    kernel.function(q, cache, STARTS, LENGTHS, TABLE, scale=0.1, window=4)
    kernel.function(q, cache, STARTS.copy(), LENGTHS, TABLE, scale=0.1, window=4)
    assert library.plans == 3


@pytest.mark.parametrize("how", HOWS)
def test_flash_attn(provided: tuple[KernelRegistry, FlashInfer], how: dict[str, Any]) -> None:
    (kernel,) = provided[0].candidates("sdpa_varlen")
    q, k, v, keys = normal(11, 4, 64), normal(25, 2, 64), normal(25, 2, 64), np.array([0, 2, 23], np.int32)
    starts = np.array([0, 4, 9], np.int32)
    out, lse = kernel.function(q, k, v, starts, keys, scale=0.1, **how)
    tensors = torch.from_numpy(starts), torch.from_numpy(keys)
    want = sdpa_varlen(q, k, v, *tensors, scale=0.1, **how)
    torch.testing.assert_close(out, want[0])
    torch.testing.assert_close(lse, want[1])
    assert (lse[:2] == -torch.inf).all()  # more queries than keys


def test_no_rows_need_no_library(provided: tuple[KernelRegistry, FlashInfer]) -> None:
    registry, library = provided
    none, q = np.zeros(2, np.int32), normal(3, 4, 64)
    cache = TorchPagedKV(normal(6, 16, 2, 64), normal(6, 16, 2, 64))
    paged = registry.candidates("paged_attention")[0].function(q, cache, none, none[:1], TABLE[:1], scale=0.1)
    plain = registry.candidates("sdpa_varlen")[0].function(q, cache.k[0], cache.v[0], none, none, scale=0.1)
    for out, lse in (paged, plain):
        assert out.shape == q.shape
        assert not out.any()
        assert (lse == -torch.inf).all()
    assert library.plans == 0


@pytest.mark.parametrize(
    ("kind", "scheme", "widths", "sinks", "taken"),
    [
        (bfloat16, "bfloat16", (64, 64), False, True),
        (float16, "float16", (128, 128), False, True),
        (float32, "float32", (64, 64), False, False),
        (bfloat16, "float16", (64, 64), False, False),
        (bfloat16, "bfloat16", (80, 80), False, False),
        (bfloat16, "bfloat16", (64, 128), False, False),
        (bfloat16, "bfloat16", (64, 64), True, False),
    ],
)
def test_what_flashinfer_takes(
    provided: tuple[KernelRegistry, FlashInfer],
    kind: Any,
    scheme: str,
    widths: tuple[int, int],
    sinks: bool,
    taken: bool,
) -> None:
    b = Builder("step")
    q = b.input("q", TensorType(kind, (4, 8, widths[0])))
    cache = b.state("cache", paged_kv(2, *widths, scheme))
    lists = [b.input(n, TensorType(int32, s)) for n, s in (("starts", (3,)), ("lengths", (2,)), ("table", (2, 4)))]
    sunk = b.input("sinks", TensorType(kind, (8,))) if sinks else None
    out, _ = ops.paged_attention(q, cache, lists[0], lists[1], lists[2], sunk, scale=0.1)
    graph = b.build(out=out)
    kernel, refusals = provided[0].select(graph.nodes[0])
    assert (kernel is not None) is taken, refusals


def test_rows_behind_the_last_sequence() -> None:
    out, lse = conditions.filled(torch.ones(2, 3, 4), torch.ones(2, 3), 5)
    assert out[:2].all()
    assert not out[2:].any()
    assert (lse[2:] == -torch.inf).all()
