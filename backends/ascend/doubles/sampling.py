"""Double of the operator that filters logits before sampling."""

from __future__ import annotations

import torch

from .rules import FLOATS, demand, demand_dtype, double

Tensor = torch.Tensor


@double("npu::npu_top_k_top_p", ("910b", "910c"))
def npu_top_k_top_p(logits: Tensor, p: Tensor | None = None, k: Tensor | None = None) -> Tensor:
    """Logits below the k-th largest become -inf, and those behind a share p of the softmax of what is left."""
    name = "npu_top_k_top_p"
    demand_dtype(name, "logits", logits, FLOATS)
    demand(name, logits.dim() == 2, f"logits must have two axes, not {logits.dim()}")
    demand(name, p is not None or k is not None, "p and k must not both be left out")
    rows, size = logits.shape
    ordered, index = torch.sort(logits.double(), dim=-1, stable=True)
    if k is not None:
        demand_dtype(name, "k", k, (torch.int32,))
        demand(name, tuple(k.shape) == (rows,), f"k must be [{rows}]")
        most = min(size, 1024)
        demand(name, bool(((k >= 1) & (k <= most)).all()), f"k must lie in 1 to {most}")
        least = ordered.gather(1, size - k.long()[:, None])
        ordered = ordered.masked_fill(ordered < least, -torch.inf)
    if p is not None:
        demand(name, p.dtype is logits.dtype, "p must have the dtype of logits")
        demand(name, tuple(p.shape) == (rows,), f"p must be [{rows}]")
        demand(name, bool(((p >= 0) & (p <= 1)).all()), "p must lie in 0 to 1")
        below = torch.cumsum(torch.softmax(ordered, -1), -1) <= 1 - p.double()[:, None]
        below[:, -1:] = False
        ordered = ordered.masked_fill(below, -torch.inf)
    return torch.empty_like(ordered).scatter_(1, index, ordered).to(logits.dtype)
