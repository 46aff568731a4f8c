"""What a model builder needs to know of a model: its sizes and its choices."""

from __future__ import annotations

from dataclasses import dataclass

from xinheng.core.errors import ModelError

from .rope import Rope

LAYER_TYPES = ("full_attention", "sliding_attention")


@dataclass(frozen=True, slots=True)
class ExpertConfig:
    """A mixture of experts: how many there are and are chosen, how, and how wide they are.

    `layers` says per layer whether it has experts or one dense network; `shared_inner` is the width of the expert that
    every token passes, 0 for none. The other fields are the attributes of op `moe_gating_topk`.
    """

    experts: int
    chosen: int
    inner: int
    layers: tuple[bool, ...]
    shared_inner: int = 0
    score: str = "softmax"
    renormalise: bool = True
    scale: float = 1.0
    selection_bias: bool = False
    groups: int = 1
    groups_kept: int = 1
    group_score: str = "top2"

    def __post_init__(self) -> None:
        """Refuse a choice of experts that cannot be made; ModelError names the fields as Hugging Face configs do."""
        width = self.experts // self.groups
        if self.experts % self.groups:
            raise ModelError(f"n_group is {self.groups}, which does not divide {self.experts} experts evenly")
        if self.groups_kept > self.groups:
            raise ModelError(f"topk_group is {self.groups_kept}, more than the n_group of {self.groups}")
        if self.groups > 1 and self.group_score == "top2" and width < 2:
            raise ModelError(f"n_group is {self.groups} for {self.experts} experts; a group needs at least two of them")
        if self.chosen > self.groups_kept * width:
            raise ModelError(
                f"num_experts_per_tok is {self.chosen}, but only {self.groups_kept * width} experts can be chosen from"
            )


@dataclass(frozen=True, slots=True)
class LatentConfig:
    """Multi-head latent attention: rank of the compressed query (None: not compressed), widths of latent and heads."""

    query_rank: int | None
    latent_dim: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    norm_eps: float


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes and choices of a decoder model; names are those of Hugging Face configs.

    `layer_types` says per layer "full_attention" or "sliding_attention"; `rope` and `local_rope` belong to these.
    `attention_scale` multiplies q.k. `attention_bias` is that of q, k and v, `output_bias` that of the projection
    behind. `interleaved` is the rotary pairing of the stored weights. `extra_layers` more layers than `num_layers` may
    be stored; they predict further tokens, and no step runs them.
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
    output_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = False
    attn_softcap: float | None = None
    final_softcap: float | None = None
    eos_ids: tuple[int, ...] = ()
    bos_id: int | None = None
    moe: ExpertConfig | None = None
    mla: LatentConfig | None = None
    extra_layers: int = 0

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
