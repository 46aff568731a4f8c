"""Teacher forcing: a batch that computes a part of a given text instead of choosing tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .batch import Batch, GroupBatch, SamplingArrays
from .kv_cache import KVCache


def forced_batch(cache: KVCache, name: str, ids: Sequence[int], start: int, stop: int) -> Batch:
    """Tokens start to stop of a text, for which the cache has room, as a batch that wants the logits of all of them."""
    rows = cache.rows([name])
    positions = np.arange(start, stop, dtype=np.int32)
    token_rows = np.repeat(rows, stop - start)
    return Batch(
        tokens=np.array(ids[start:stop], np.int32),
        positions=positions,
        query_start=np.array([0, stop - start], np.int32),
        seq_lens=np.array([stop], np.int32),
        groups={
            n: GroupBatch(g.slots(token_rows, positions), g.block_table(rows, stop)) for n, g in cache.groups.items()
        },
        logit_rows=np.arange(stop - start, dtype=np.int32),
        sampling=SamplingArrays.of(()),
        request_ids=(),
    )
