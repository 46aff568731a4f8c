"""A model on disk: its checkpoint, its config, and the builder that knows its architecture."""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xinheng.core.errors import FormatError, ModelError
from xinheng.core.hal.weight import WeightSource
from xinheng.core.ir import DType, TensorType, Value

from ..layers import WHOLE, ModelConfig, ModelProgram, Shard
from ..weights import Checkpoint, open_checkpoint
from .fields import ids

_HARMLESS = re.compile(r"(^|\.)(rope_freqs\.weight|rotary_emb\.inv_freq)$")
"""Tensors that repeat what the config says, or that builders read as constants."""

ALIASES = {"gemma3_text": "gemma3", "mistral": "llama"}
"""Architectures that another builder covers."""


@dataclass(frozen=True, slots=True)
class Model:
    """An opened model; its weights are read when a runner asks for them."""

    path: Path
    checkpoint: Checkpoint
    config: ModelConfig
    module: ModuleType

    def build(self, dtype: DType, cache_scheme: str, shard: Shard = WHOLE) -> ModelProgram:
        """The graph of one step of a shard, with activations in `dtype` and the cache in `cache_scheme`."""
        program: ModelProgram = self.module.build(self.config, self.checkpoint, dtype, cache_scheme, shard)
        self._check_surplus(program)
        return program

    def _check_surplus(self, program: ModelProgram) -> None:
        """Refuse tensors that the graph does not read: a bias or a scale left out gives silently wrong numbers."""
        known = set(program.read)
        if self.config.tie_word_embeddings:
            known.add("lm_head.weight")
        first = self.config.num_layers
        behind = [f"model.layers.{layer}." for layer in range(first, first + self.config.extra_layers)]
        # this tensor, which joins a hidden state and an embedding, tells such a layer from one that should be run
        unrun = tuple(prefix for prefix in behind if f"{prefix}eh_proj.weight" in self.checkpoint)
        surplus = [
            name
            for name in self.checkpoint.names()
            if name not in known and not _HARMLESS.search(name) and not name.startswith(unrun)
        ]
        if surplus:
            more = f" and {len(surplus) - 4} more" if len(surplus) > 4 else ""
            raise ModelError(
                f"{self.path}: a {self.config.model_type} model of this config has no place for "
                f"{', '.join(surplus[:4])}{more}; it would compute something else without them"
            )

    def parameter(self, program: ModelProgram, value: Value) -> WeightSource | NDArray[Any]:
        """The source of a parameter of the graph: lazy for weights, an array for small tensors."""
        if not isinstance(value.type, TensorType):
            return program.sources[value.name]
        tensor, start, stop = program.cuts.get(value.name, (value.name, None, None))
        array = self.checkpoint.array(tensor)[start:stop]
        offset = getattr(self.module, "OFFSET_NORMS", False) and self.checkpoint.format != "gguf"
        return array + np.float32(1) if offset and value.name.endswith("norm.weight") else array


def open_model(path: Path | str) -> Model:
    """Open a checkpoint and find the builder of its architecture.

    Raises:
        FormatError: the files are damaged.
        ModelError: there is no builder for the architecture, or the config does not make sense.
    """
    checkpoint = open_checkpoint(path)
    metadata: Mapping[str, Any] = checkpoint.metadata
    if checkpoint.format == "gguf":
        name = str(metadata.get("general.architecture"))
        module = _module(name, checkpoint.path)
        if not hasattr(module, "from_gguf"):
            raise ModelError(
                f"{checkpoint.path}: {name} is read from a folder with safetensors only, not from GGUF yet"
            )
        return Model(checkpoint.path, checkpoint, module.from_gguf(metadata, checkpoint), module)
    module = _module(str(metadata.get("model_type")), checkpoint.path)
    if quantization := metadata.get("quantization_config"):
        method = quantization.get("quant_method") if isinstance(quantization, Mapping) else quantization
        raise ModelError(f"{checkpoint.path}: quantization_config asks for {method!r}, which is not supported yet")
    config: ModelConfig = module.from_hugging_face(metadata)
    ends = dict.fromkeys((*config.eos_ids, *_generation_ends(checkpoint.path)))
    return Model(checkpoint.path, checkpoint, replace(config, eos_ids=tuple(ends)), module)


def _generation_ends(path: Path) -> tuple[int, ...]:
    """The end tokens in generation_config.json, which may be more than those in config.json (01-ai/Yi#223)."""
    file = (path if path.is_dir() else path.parent) / "generation_config.json"
    if not file.is_file():
        return ()
    try:
        return ids(json.loads(file.read_bytes()).get("eos_token_id"))
    except (ValueError, AttributeError):
        raise FormatError(f"{file} is not a JSON object; download it again or delete it") from None


def architectures() -> list[str]:
    """The architectures there are builders for: modules of this package that have a `build`."""
    package = importlib.import_module(__package__ or "")
    names = [m.name for m in pkgutil.iter_modules(package.__path__)]
    return sorted(name for name in names if name not in ("fields", "gguf", "hugging_face", "model", "rope_parameters"))


def _module(name: str, path: Path) -> ModuleType:
    name = ALIASES.get(name, name)
    if name not in architectures():
        raise ModelError(f"{path}: no builder for architecture {name!r}; there are {', '.join(architectures())}")
    return importlib.import_module(f"{__package__}.{name}")
