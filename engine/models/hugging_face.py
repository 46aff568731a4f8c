"""What most decoder configs of Hugging Face say in the same words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xinheng.core.errors import ModelError

from ..layers import ModelConfig, Rope
from .fields import Fields, ids
from .rope_parameters import read_rope_parameters


def decoder_config(
    config: Mapping[str, Any],
    model_type: str,
    *,
    head_dim: int | None = None,
    rope_width: int | None = None,
    **given: Any,
) -> ModelConfig:
    """Read a `config.json` in the standard words.

    `head_dim` and `rope_width` override what the config says or implies; `given` are further fields of `ModelConfig`,
    which win over what is read.

    Raises:
        ModelError: a value is missing or impossible, or the activation is not SiLU.
    """
    fields = Fields(config, "config.json")
    heads, hidden, layers = (
        fields.size("num_attention_heads"),
        fields.size("hidden_size"),
        fields.size("num_hidden_layers"),
    )
    width = head_dim or fields.size("head_dim", default=hidden // heads)
    act = fields.get("hidden_act", default="silu")
    if act != "silu":
        raise ModelError(f"config.json: hidden_act {act!r} is not what a {model_type} model uses; expected 'silu'")
    values: dict[str, Any] = {
        "model_type": model_type,
        "hidden_size": hidden,
        "intermediate_size": fields.size("intermediate_size"),
        "num_layers": layers,
        "num_heads": heads,
        "num_kv_heads": fields.size("num_key_value_heads", default=heads),
        "head_dim": width,
        "vocab_size": fields.size("vocab_size"),
        "max_position": fields.size("max_position_embeddings", default=2048),
        "rms_norm_eps": fields.number("rms_norm_eps", default=1e-6),
        "rope": read_rope(fields, rope_width or width),
        "layer_types": ("full_attention",) * layers,
        "attention_scale": width**-0.5,
        "tie_word_embeddings": fields.flag("tie_word_embeddings", default=False),
        "eos_ids": ids(config.get("eos_token_id")),
        "bos_id": config.get("bos_token_id"),
    }
    return ModelConfig(**values | given)


def read_rope(fields: Fields, width: int, partial: float = 1.0) -> Rope:
    """The rotary embedding in either spelling; `partial` is the rotated share where the config does not say."""
    parameters, scaling = fields.table("rope_parameters", default={}), fields.table("rope_scaling", default={})
    if parameters and any(parameters.get(key) != value for key, value in scaling.items()):
        raise ModelError(f"{fields.where}: rope_parameters and rope_scaling disagree; keep one of them")
    if parameters:
        theta = parameters.get("rope_theta") or fields.number("rope_theta")
    else:
        parameters = scaling
        theta = fields.number("rope_theta", default=1e4)
    share = fields.number("partial_rotary_factor", default=partial)
    return read_rope_parameters({"partial_rotary_factor": share, **parameters}, theta, width)


def sliding_layers(fields: Fields, layers: int) -> dict[str, Any]:
    """Window and layer types of Qwen configs: with `use_sliding_window`, layers from `max_window_layers` on slide."""
    types = fields.get("layer_types", default=[])
    if not isinstance(types, list):
        raise ModelError(f"{fields.where}: layer_types is {types!r}, it must be a list")
    if not fields.flag("use_sliding_window", default=False):
        if "sliding_attention" in types:
            raise ModelError(f"{fields.where}: layer_types has sliding_attention, but use_sliding_window is not set")
        return {}
    first = fields.number("max_window_layers", default=28)
    usual = tuple("sliding_attention" if i >= first else "full_attention" for i in range(layers))
    return {"sliding_window": fields.size("sliding_window"), "layer_types": tuple(types) or usual}
