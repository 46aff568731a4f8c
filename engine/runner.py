"""Runs batches of one model on one device: the graph, its weights, the cache and the sampler."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xinheng.core.compiler import compile
from xinheng.core.errors import SettingsError
from xinheng.core.hal import Device, Numerics, Profile, StateSpace
from xinheng.core.ir import DType
from xinheng.core.ir.dtype import DTYPES, dtype, float32
from xinheng.core.receipt import Receipt
from xinheng.core.settings import RuntimeSettings

from .batch import Batch, BatchResult
from .kv_cache import CacheGroup
from .layers import WHOLE, Shard
from .layers.config import ModelConfig
from .layers.shard import GROUP
from .models import Model
from .sampler import Sampler
from .settings import EngineSettings

Progress = Callable[[str, int, int], None]
"""Told of long work: what is being done, how much is done, how much there is."""


@dataclass(frozen=True, slots=True)
class RunnerInfo:
    """What the engine has to know of a runner: where it runs, and the shape of its cache."""

    device: str
    device_name: str
    numerics: str
    dtype: str
    groups: tuple[CacheGroup, ...]
    blocks: Mapping[str, int]
    block_size: int
    max_model_len: int
    vocab_size: int
    stop_ids: tuple[int, ...]
    receipt: Mapping[str, Any]
    receipt_summary: str


class ModelRunner:
    """A model that is ready to compute batches."""

    def __init__(
        self,
        model: Model,
        device: Device,
        runtime: RuntimeSettings,
        settings: EngineSettings,
        *,
        fallback: Device | None = None,
        progress: Progress | None = None,
        shard: Shard = WHOLE,
    ) -> None:
        """Build, compile, load the weights and allocate the cache; of a shard, `device` must have joined the ranks.

        Raises:
            ModelError: the model does not fit its checkpoint.
            UnsupportedOp: the device cannot run some op and there is no fallback.
            SettingsError: a setting is impossible here, or the cache memory holds not even one block.
        """
        self.device, self.settings, self.config, self.shard = device, settings, model.config, shard
        numerics = Numerics(runtime.numerics, runtime.overrides)
        kind, cache = coding_of(device, runtime, settings, self.config)
        self.program = model.build(kind, cache, shard)
        self.block_size, self.max_model_len = cache_shape(device, settings, self.config.max_position)
        tokens = settings.max_num_batched_tokens
        bounds = size_bounds(self.program.groups, settings, self.block_size, self.max_model_len)
        self.executable = compile(self.program.graph, device, bounds=bounds, fallback=fallback, numerics=numerics)
        self._load(model, progress)
        self.sampler = Sampler(device, self.config.vocab_size, tokens, fallback, numerics)
        self.info = self._info(runtime, kind.name)
        self._bind()

    def _load(self, model: Model, progress: Progress | None) -> None:
        self._buffers: dict[str, Any] = {}
        parameters = self.executable.graph.parameters
        for done, value in enumerate(parameters):
            if progress is not None:
                progress("loading weights", done, len(parameters))
            self._buffers[value.name] = self.executable.prepare(value.name, model.parameter(self.program, value))
        if progress is not None:
            progress("loading weights", len(parameters), len(parameters))

    def _info(self, runtime: RuntimeSettings, kind: str) -> RunnerInfo:
        size, longest = self.block_size, self.max_model_len
        blocks = cache_blocks(self.program.groups, size, longest, self.settings, self._cache_memory())
        return RunnerInfo(
            device=self.device.spec,
            device_name=self.device.name,
            numerics=runtime.numerics,
            dtype=kind,
            groups=self.program.groups,
            blocks=blocks,
            block_size=size,
            max_model_len=longest,
            vocab_size=self.config.vocab_size,
            stop_ids=self.config.eos_ids,
            receipt=self.receipt.to_json(),
            receipt_summary=self.receipt.summary(),
        )

    def _cache_memory(self) -> int:
        if self.settings.cache_memory is not None:
            return self.settings.cache_memory // self.shard.ranks
        # ranks on host memory all see the same
        share = 0.25 / self.shard.ranks if self.device.capabilities.unified_memory else 0.9
        return int(self.device.memory().available * share)

    def _bind(self) -> None:
        spaces = {
            f"cache.{layer}": StateSpace(self.info.blocks[group.name], self.info.block_size)
            for group in self.info.groups
            for layer in group.layers
        }
        self._bound = self.executable.bind({**self._buffers, **self.executable.allocate_state(spaces)})

    @property
    def receipt(self) -> Receipt:
        """What runs where in the model's graph."""
        return self.executable.receipt

    def run(self, batch: Batch, profile: Profile | None = None) -> BatchResult:
        """Compute one batch and choose its tokens."""
        self._forward(batch, profile)
        if not batch.request_ids:
            return BatchResult((), np.zeros(0, np.int32))
        ids = self.sampler.run(self._bound.outputs["logits"], batch.sampling, batch.all_greedy)
        return BatchResult(batch.request_ids, self.device.download(ids).astype(np.int32, copy=False))

    def forward(self, batch: Batch, profile: Profile | None = None) -> None:
        """Compute one batch and choose nothing."""
        self._forward(batch, profile)

    def logits(self, batch: Batch) -> NDArray[np.float32]:
        """Compute one batch and return the logits float32 [rows, vocabulary] of its `logit_rows`."""
        return self.outputs(batch)["logits"]

    def outputs(self, batch: Batch) -> dict[str, NDArray[Any]]:
        """Compute one batch and return the outputs of the graph by name; models may have more than the logits."""
        self._forward(batch, None)
        return {name: self.device.download(buffer) for name, buffer in self._bound.outputs.items()}

    def _forward(self, batch: Batch, profile: Profile | None) -> None:
        inputs = {
            "token_ids": batch.tokens,
            "positions": batch.positions,
            "query_start": batch.query_start,
            "seq_lens": batch.seq_lens,
            "logit_rows": batch.logit_rows,
        }
        for name, group in batch.groups.items():
            inputs[f"slots.{name}"] = group.slots
            inputs[f"block_table.{name}"] = np.ascontiguousarray(group.block_table)
        self._bound.run(inputs, profile=profile).wait()

    def close(self) -> None:
        """Let go of weights, cache and device; nothing can be run afterwards. A second call does nothing."""
        if self._buffers:
            self._buffers.clear()
            del self._bound
            if self.shard.ranks > 1:
                self.device.communicator(GROUP).close()
            self.device.close()


def size_bounds(groups: tuple[CacheGroup, ...], settings: EngineSettings, block: int, longest: int) -> dict[str, int]:
    """The largest value of each size in the graph of a step; tables are as wide as the longest sequence needs."""
    tokens = settings.max_num_batched_tokens
    tables = {f"blocks_{group.name}": -(-longest // block) for group in groups}
    return {"tokens": tokens, "seqs": settings.max_num_seqs, "rows": tokens, **tables}


def cache_shape(device: Device, settings: EngineSettings, longest: int) -> tuple[int, int]:
    """Tokens per cache block, and the longest sequence; the model was made for `longest` tokens.

    A device without block sizes gets one block per sequence.

    Raises:
        SettingsError: a setting asks for more than the model or the device can do, or for blocks it does not take.
    """
    capabilities = device.capabilities
    asked = settings.max_model_len or min(longest, capabilities.max_length or longest)
    if asked > longest:
        raise SettingsError(f"engine.max_model_len is {asked}; the model was made for {longest} tokens")
    if capabilities.max_length is not None and asked > capabilities.max_length:
        raise SettingsError(
            f"engine.max_model_len is {asked}; {device.spec} takes sequences of at most {capabilities.max_length}"
        )
    sizes = capabilities.block_sizes or (asked,)
    size = settings.block_size or sizes[0]
    if size not in sizes:
        raise SettingsError(f"engine.block_size is {size}; {device.spec} takes {', '.join(map(str, sizes))}")
    return size, asked


def coding_of(
    device: Device, runtime: RuntimeSettings, settings: EngineSettings, config: ModelConfig
) -> tuple[DType, str]:
    """The element type of activations, and what the cache is held in: a float dtype, or a scheme of the device.

    Raises:
        SettingsError: one is unknown, or nothing that the device has, or not for this kind of model.
    """
    floats = [t for t in DTYPES.values() if t.kind == "float" and t in device.capabilities.dtypes]
    schemes = sorted(device.capabilities.cache_schemes) if config.mla is None else []

    def chosen(setting: str, name: str, auto: str, allowed: list[str], what: str) -> str:
        found = auto if name == "auto" else name
        if found not in allowed:
            raise SettingsError(f"{setting} is {name!r}; {device.spec} can {what} {', '.join(allowed)}")
        return found

    names = [t.name for t in floats]
    kind = chosen("runtime.dtype", runtime.dtype, device.capabilities.preferred_dtype, names, "compute in")
    narrow = device.capabilities.narrow_cache if kind == float32.name else None
    what = "hold the latents of this model in" if config.mla is not None else "hold a cache in"
    cache = chosen("engine.cache_dtype", settings.cache_dtype, narrow or kind, [*names, *schemes], what)
    return dtype(kind), cache


def block_bytes(group: CacheGroup, block_size: int) -> int:
    """Bytes of one block of a group, over all its layers."""
    row: int = sum(math.prod(part.shape) * part.dtype.bits // 8 for part in group.state.parts)
    return len(group.layers) * block_size * row


def cache_blocks(
    groups: tuple[CacheGroup, ...], block_size: int, longest: int, settings: EngineSettings, memory: int
) -> dict[str, int]:
    """How many blocks each group gets: what `max_num_seqs` sequences of full length need, or what fits in `memory`.

    The groups shrink together, so that all of them run out at the same number of tokens.

    Raises:
        SettingsError: the memory does not hold one block of each group.
    """
    chunk = min(settings.prefill_chunk or settings.max_num_batched_tokens, settings.max_num_batched_tokens)

    def wanted(tokens: int, seqs: int) -> dict[str, int]:
        return {g.name: seqs * g.peak_blocks(tokens, chunk, block_size) for g in groups}

    def cost(blocks: Mapping[str, int]) -> int:
        return sum(blocks[g.name] * block_bytes(g, block_size) for g in groups)

    full = wanted(longest, settings.max_num_seqs)
    if cost(full) <= memory:
        return full
    low, high = 0, longest * settings.max_num_seqs
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if cost(_share(wanted, middle, longest)) <= memory else (low, middle - 1)
    if low == 0:
        raise SettingsError(
            f"engine.cache_memory of {memory} bytes holds not even one block of {block_size} tokens "
            f"({cost(wanted(block_size, 1))} bytes); give the cache more memory"
        )
    return _share(wanted, low, longest)


def _share(wanted: Callable[[int, int], dict[str, int]], tokens: int, longest: int) -> dict[str, int]:
    """Blocks for `tokens` tokens in all, as whole sequences of the longest length and the rest as one more."""
    whole, rest = divmod(tokens, longest)
    parts = [wanted(longest, whole)] if whole else []
    parts += [wanted(rest, 1)] if rest else []
    return {name: sum(part[name] for part in parts) for name in parts[0]} if parts else dict.fromkeys(wanted(1, 1), 0)
