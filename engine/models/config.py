"""What a model builder needs to know of a model, read from `config.json` or from GGUF metadata."""

from __future__ import annotations

from dataclasses import dataclass

from xinheng.core.errors import ModelError

from .rope import Rope

LAYER_TYPES = ("full_attention", "sliding_attention")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes and choices of a decoder model; names are those of Hugging Face configs.

    `layer_types` says per layer "full_attention" or "sliding_attention"; `rope` and `local_rope` belong to these.
    `attention_scale` multiplies q.k. `interleaved` is the rotary pairing of the stored weights.
    """

    model_type: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position: int
    rms_norm_eps: float
    rope: Rope
    layer_types: tuple[str, ...]
    local_rope: Rope | None = None
    sliding_window: int | None = None
    attention_scale: float = 0.0
    interleaved: bool = False
    hidden_act: str = "silu"
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = False
    attn_softcap: float | None = None
    final_softcap: float | None = None
    eos_ids: tuple[int, ...] = ()
    bos_id: int | None = None

    def __post_init__(self) -> None:
        """Refuse sizes that do not fit each other; ModelError names them."""
        if self.num_heads % self.num_kv_heads:
            raise ModelError(
                f"{self.num_heads} attention heads cannot share {self.num_kv_heads} key-value heads evenly"
            )
        unknown = set(self.layer_types) - set(LAYER_TYPES)
        if unknown or len(self.layer_types) != self.num_layers:
            raise ModelError(
                f"layer_types must say for each of {self.num_layers} layers {' or '.join(LAYER_TYPES)}; "
                f"it has {len(self.layer_types)} entries{f', among them {min(unknown)!r}' if unknown else ''}"
            )
        if "sliding_attention" in self.layer_types and self.sliding_window is None:
            raise ModelError("layer_types has sliding_attention, but there is no sliding_window")

    def window(self, layer: int) -> int | None:
        """The sliding window of a layer, None for full attention."""
        return self.sliding_window if self.layer_types[layer] == "sliding_attention" else None


def layer_pattern(layers: int, every: int) -> tuple[str, ...]:
    """Sliding layers with each `every`-th one full."""
    return tuple("full_attention" if (i + 1) % every == 0 else "sliding_attention" for i in range(layers))
