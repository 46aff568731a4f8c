"""Steps of a runner without an engine: sequences of random ids that are prefilled and then decoded together."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np

from ..batch import Batch, BatchResult
from ..kv_cache import KVCache
from ..request import Request, SamplingParams
from ..runner import ModelRunner
from ..scheduler import Scheduler
from ..settings import EngineSettings


def random_prompts(count: int, length: int, vocabulary: int, seed: int = 0) -> list[list[int]]:
    """Random ids, always the same for one seed."""
    source = random.Random(seed)
    return [[source.randrange(vocabulary) for _ in range(length)] for _ in range(count)]


def greedy(tokens: int) -> SamplingParams:
    """Exactly `tokens` tokens, whatever they are."""
    return SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)


def batches(
    runner: ModelRunner, settings: EngineSettings, prompts: list[list[int]], tokens: int
) -> Iterator[tuple[Batch, bool]]:
    """The batches of `prompts` with `tokens` tokens each, for the caller to compute; True for a full decode step.

    Which tokens are chosen does not matter for the time that a step takes, so random ones follow. A caller that stops
    early leaves nothing behind.
    """
    info = runner.info
    scheduler = Scheduler(
        KVCache(info.groups, info.blocks, info.block_size),
        max_num_seqs=max(settings.max_num_seqs, len(prompts)),
        max_num_batched_tokens=max(settings.max_num_batched_tokens, len(prompts)),
        max_model_len=info.max_model_len,
        prefill_chunk=settings.prefill_chunk,
    )
    for i, prompt in enumerate(prompts):
        scheduler.add(Request(f"sequence {i}", tuple(prompt), greedy(tokens)))
    source = random.Random(1)
    while (batch := scheduler.schedule()) is not None:
        full = batch.num_tokens == len(prompts) == len(batch.request_ids)
        yield batch, full
        chosen = [source.randrange(info.vocab_size) for _ in batch.request_ids]
        scheduler.update(batch, BatchResult(batch.request_ids, np.array(chosen, np.int32)))
