"""A run of a model in which every kernel call is timed."""

from __future__ import annotations

from pathlib import Path

from xinheng.core.hal import Profile
from xinheng.core.receipt import Receipt
from xinheng.core.settings import RuntimeSettings

from .kv_cache import KVCache
from .loading import load_runner
from .request import Request, SamplingParams
from .scheduler import Scheduler
from .settings import EngineSettings


def timed_run(
    path: Path, runtime: RuntimeSettings, settings: EngineSettings, prompt: int, tokens: int
) -> tuple[Receipt, dict[str, Profile]]:
    """Prefill `prompt` tokens and generate `tokens` more, once to warm up and once timed.

    Returns the receipt and the profiles of the steps that prefill and of those that decode.
    """
    runner = load_runner(path, runtime, settings).runner
    info = runner.info
    profiles = {"prefill": Profile(), "decode": Profile()}
    for timed in (False, True):
        scheduler = Scheduler(
            KVCache(info.groups, info.blocks, info.block_size),
            max_num_seqs=1,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            max_model_len=info.max_model_len,
            prefill_chunk=settings.prefill_chunk,
        )
        text = tuple((7 * i + 3) % info.vocab_size for i in range(prompt))
        scheduler.add(Request("timed", text, SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)))
        while (batch := scheduler.schedule()) is not None:
            phase = "decode" if batch.num_tokens == 1 else "prefill"
            scheduler.update(batch, runner.run(batch, profiles[phase] if timed else None))
    receipt = runner.receipt
    runner.close()
    return receipt, profiles
