"""The engine's side of measuring devices by whole models: teacher-forced logits and layers of one model on a device."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from importlib import resources
from importlib.resources.abc import Traversable
from itertools import islice, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xinheng.core.errors import ModelError, RequestError
from xinheng.core.hal import Device, Numerics
from xinheng.core.model_probe import MeasuredModel, ModelProbe, Text
from xinheng.core.passes import state_groups
from xinheng.core.settings import RuntimeSettings

from .forced import forced_batch
from .hub import Store, resolve
from .kv_cache import KVCache
from .llm import open_tokenizer
from .models import Model, open_model
from .revealed import RevealedModel, layer_name
from .runner import ModelRunner
from .settings import EngineSettings

LENGTH = 1024
"""Tokens of a text, or fewer where the model was made for fewer."""
CHUNK = 256
"""Tokens that are computed together, or fewer of a large vocabulary."""
ALONE = 16
"""Tokens at the end of a text that are computed one by one, as when text is generated."""
LOGITS = 2**24
"""Most logits that are computed together."""


class EngineModel(MeasuredModel):
    """A model as the engine finds it: by path, `pypi:<package>`, or the name of a stored one."""

    def __init__(self, reference: str) -> None:
        path = resolve(reference, Store(RuntimeSettings().cache_dir))
        self.model = open_model(path)
        self.name = path.stem or "model"

    @cached_property
    def _identity(self) -> str:
        checkpoint, digest = self.model.checkpoint, hashlib.sha256()
        digest.update(json.dumps(checkpoint.metadata, sort_keys=True, default=str).encode())
        for name in sorted(checkpoint.names()):
            digest.update(name.encode())
            for data in self._stored(name):
                digest.update(np.ascontiguousarray(data).data)
        return digest.hexdigest()

    def _stored(self, name: str) -> Iterator[NDArray[Any]]:
        """The bytes of a tensor as they are in the file, or the values of one that is no matrix."""
        try:
            source = self.model.checkpoint.source(name)
        except ModelError:
            yield self.model.checkpoint.array(name)
            return
        for part in source.parts:
            yield part.load()

    @property
    def identity(self) -> str:
        return self._identity

    def texts(self, tokens: int) -> tuple[Text, ...]:
        """Consecutive pieces of the sources of the op set: prose and code, in every installation, free to use.

        Raises:
            RequestError: they are not that long.
        """
        tokenizer = open_tokenizer(self.model)
        longest = min(LENGTH, self.model.config.max_position)
        ids, texts = iter(tokenizer.encode(_prose())), list[Text]()
        begin = (tokenizer.bos_id,) if tokenizer.add_bos and tokenizer.bos_id is not None else ()
        while (left := tokens - sum(map(len, texts))) > 0:
            size = min(longest, left)
            text = (*begin, *islice(ids, size - len(begin)))
            if len(text) < size:
                raise RequestError(f"the text that models are measured by has no {tokens} tokens; ask for fewer")
            texts.append(text)
        return tuple(texts)

    def open(self, device: Device, numerics: Numerics, dtype: str = "auto") -> EngineProbe:
        return EngineProbe(self.model, device, numerics, dtype)


def _prose() -> str:
    folder = resources.files("xinheng.core.ops")
    files: list[Traversable] = sorted(folder.iterdir(), key=lambda file: file.name)
    return "\n\n".join(file.read_text(encoding="utf-8") for file in files if file.name.endswith(".py"))


class EngineProbe(ModelProbe):
    """A model on a device that somebody else has opened, with room for one text."""

    def __init__(self, model: Model, device: Device, numerics: Numerics, dtype: str) -> None:
        self._model, self._device = model, device
        longest = min(LENGTH, model.config.max_position, device.capabilities.max_length or LENGTH)
        self._chunk = max(1, min(CHUNK, longest, LOGITS // model.config.vocab_size))
        # as they are given here, whatever the environment says
        self._runtime = RuntimeSettings.model_construct(
            device=device.spec, numerics=numerics.mode, overrides=dict(numerics.overrides), dtype=dtype
        )
        self._settings = EngineSettings.model_construct(
            max_num_seqs=1, max_num_batched_tokens=self._chunk, prefill_chunk=self._chunk, max_model_len=longest
        )
        self._runner = ModelRunner(model, device, self._runtime, self._settings)
        program = self._runner.program
        self.dtype = program.dtype
        self.longest_sum = max(source.shape[-1] for source in program.sources.values())
        held = [frozenset(node.op.name for node in nodes) for _, nodes in state_groups(program.graph)]
        alone = {node.op.name for node in program.graph.nodes} - {op for ops in held for op in ops}
        self.movable = (*dict.fromkeys(held), *(frozenset({op}) for op in sorted(alone)))

    def logits(self, text: Text) -> Iterator[NDArray[np.float32]]:
        last = max(len(text) - ALONE, 0)
        steps = [*range(0, last, self._chunk), *range(last, len(text) + 1)]
        return (made["logits"] for made in _forced(self._runner, text, steps))

    def layers(self, text: Text) -> Sequence[NDArray[Any]]:
        model = self._model
        shown = RevealedModel(model.path, model.checkpoint, model.config, model.module)
        runner = ModelRunner(shown, self._device, self._runtime, self._settings)
        steps = [*range(0, len(text), self._chunk), len(text)]
        made = list(_forced(runner, text, steps))
        names = map(layer_name, range(model.config.num_layers + 1))
        return [np.concatenate([outputs[name] for outputs in made]) for name in names]

    def close(self) -> None:
        del self._runner


def _forced(runner: ModelRunner, text: Text, steps: Sequence[int]) -> Iterator[Mapping[str, NDArray[Any]]]:
    """The outputs of a model for a text, computed from each step to the next."""
    info = runner.info
    cache = KVCache(info.groups, info.blocks, info.block_size)
    for start, stop in pairwise(steps):
        if not cache.allocate("text", stop):
            raise RequestError(f"a text of {len(text)} tokens does not fit in the key-value cache")
        yield runner.outputs(forced_batch(cache, "text", text, start, stop))
