"""Sampling without a stable sort of the vocabulary: `npu_top_k_top_p` where no row has a top-k, else the k largest.

The operator is not asked for both at once. It keeps all logits that equal the k-th largest, where the op keeps k, so
that the probabilities behind which top-p cuts would be others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from xinheng.core import ops
from xinheng.core.hal import KernelRegistry
from xinheng.core.ir.graph import Node

from ...._torch.kernels.sampling import top_k_top_p_sample as sorting
from .conditions import filled

if TYPE_CHECKING:
    from ..device import AscendDevice

Tensor = torch.Tensor
MOST = 1024
"""Tokens of a row that are told apart without sorting it."""


def register_sampling(kernels: KernelRegistry, device: AscendDevice) -> None:
    """Enter the kernel of generations with the operator."""

    @kernels.register(
        ops.top_k_top_p_sample, name="npu_top_k_top_p", when=_filled, host=("temperature", "top_k", "top_p")
    )
    def top_k_top_p_sample(
        logits: Tensor,
        uniform: Tensor,
        temperature: NDArray[Any],
        top_k: NDArray[Any],
        top_p: NDArray[Any],
        min_p: Tensor,
    ) -> Tensor:
        greedy, size = temperature <= 0, logits.shape[1]
        heat = device.placed(np.where(greedy, 1.0, temperature).astype(np.float32))
        scaled = logits / heat[:, None]
        shares = np.where(greedy, 0.0, top_p)
        counts = np.where(greedy, 1, top_k)
        if bool(((counts > 0) & (counts <= MOST)).all()):
            best = torch.topk(scaled, min(int(counts.max()), size)).values
            kept = _nucleus(best, device.placed(counts), device.placed(shares.astype(np.float32)))
            return _chosen(scaled, best, kept, uniform, min_p)
        if not (top_k[~greedy] > 0).any() and bool((shares < 1).all()):
            p = device.placed(np.clip(shares, 0, 1).astype(np.float32))
            inside = torch.ops.npu.npu_top_k_top_p(scaled, p, None)
            survivors = (inside > -torch.inf).sum(-1)
            if int(survivors.max()) <= MOST:
                best = torch.topk(inside, min(MOST, size)).values
                rank = torch.arange(best.shape[1], device=best.device)
                return _chosen(scaled, best, rank < survivors[:, None], uniform, min_p)
        return sorting(logits, uniform, device.placed(temperature), device.placed(top_k), device.placed(top_p), min_p)


def _nucleus(best: Tensor, counts: Tensor, shares: Tensor) -> Tensor:
    """Which of the largest logits of each row [rows, n], descending, top-k and top-p keep."""
    allowed = torch.arange(best.shape[1], device=best.device) < counts[:, None]
    p = torch.softmax(best.masked_fill(~allowed, -torch.inf), -1)
    before = torch.cumsum(p, -1) - p
    return allowed & (before < shares[:, None])


def _chosen(scaled: Tensor, best: Tensor, kept: Tensor, uniform: Tensor, min_p: Tensor) -> Tensor:
    """The token of each row at which the running sum of kept probabilities passes its uniform number.

    Which of several equal logits it is follows from their order by index, as in a stable sort of the whole row.
    """
    weight = torch.exp(best - best[:, :1])
    kept = kept & (weight >= min_p[:, None])
    kept[:, 0] = True
    running = torch.cumsum(torch.where(kept, weight, 0.0), -1)
    passed = (running <= uniform[:, None] * running[:, -1:]).sum(-1)
    place = torch.minimum(passed, (kept & (weight > 0)).sum(-1) - 1).clamp(min=0)
    value = best.gather(1, place[:, None])
    earlier = place - (best > value).sum(-1)
    hits = torch.cumsum(scaled == value, -1)
    return (hits <= earlier[:, None]).sum(-1).to(torch.int32)


def _filled(node: Node) -> bool | str:
    return filled(*node.operands) or "does not take empty tensors"
