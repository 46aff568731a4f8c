"""The two versions of the vendor's fused attention, which take the same things under different names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Version:
    """An operator by its name, and the names of its keywords.

    Attributes:
        heads, scale: heads of queries, and the factor of logits, whose default of 1 is never meant.
        queries, keys: lists of the host: of queries, as layouts count them, and keys of each sequence.
        sums: whether it gives log-sum-exps.
    """

    name: str
    heads: str
    scale: str
    queries: str
    keys: str
    sums: str

    def operator(self) -> Any:
        """The operator as callers see it."""
        return getattr(torch.ops.npu, self.name)

    def workspace(self) -> Any:
        """The operator that gives the workspace which a call into a graph needs."""
        return getattr(torch.ops.npu, f"_{self.name}_get_max_workspace")

    def lists(self, queries: Sequence[int], keys: Sequence[int]) -> dict[str, Any]:
        """The keywords of the lists."""
        return {self.queries: list(queries), self.keys: list(keys)}


FIRST = Version(
    "npu_fused_infer_attention_score",
    heads="num_heads",
    scale="scale",
    queries="actual_seq_lengths",
    keys="actual_seq_lengths_kv",
    sums="softmax_lse_flag",
)
SECOND = Version(
    "npu_fused_infer_attention_score_v2",
    heads="num_query_heads",
    scale="softmax_scale",
    queries="actual_seq_qlen",
    keys="actual_seq_kvlen",
    sums="return_softmax_lse",
)
"""The one that knows sinks."""
