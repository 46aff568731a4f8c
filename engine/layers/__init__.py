"""What decoders are made of: sizes, the context in which a graph is written, and layers as functions over values."""

from __future__ import annotations

from .attention import grouped_query_attention
from .config import ExpertConfig, LatentConfig, ModelConfig, layer_pattern
from .context import ModelContext, ModelProgram
from .feed_forward import feed_forward
from .latent_attention import latent_attention
from .mlp import gated_mlp
from .moe import mixture_of_experts
from .rope import Rope, rope_tables
from .shard import WHOLE, HeadRange, Shard

__all__ = [
    "WHOLE",
    "ExpertConfig",
    "HeadRange",
    "LatentConfig",
    "ModelConfig",
    "ModelContext",
    "ModelProgram",
    "Rope",
    "Shard",
    "feed_forward",
    "gated_mlp",
    "grouped_query_attention",
    "latent_attention",
    "layer_pattern",
    "mixture_of_experts",
    "rope_tables",
]
