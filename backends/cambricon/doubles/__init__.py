"""Doubles of torch_mlu_ops: what its functions compute and refuse, in plain torch, as two releases have them.

Sums are in float64 and results are rounded once, so that a row has the same bits whatever rows are beside it.
"""

from __future__ import annotations

from .library import library_of

__all__ = ["library_of"]
