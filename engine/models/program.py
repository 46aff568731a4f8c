"""The graph of a model and what belongs to it, and the context in which a model builder writes that graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xinheng.core import ops
from xinheng.core.errors import ModelError
from xinheng.core.ir import Builder, DType, Graph, StateType, TensorType, Value, paged_kv, sym, verify
from xinheng.core.ir.dtype import float32, int32

from ..kv_cache import CacheGroup
from ..weights import Checkpoint
from .config import ModelConfig


@dataclass(frozen=True, slots=True)
class ModelProgram:
    """One step of a model over a flattened batch.

    Inputs: token_ids, positions int32 [tokens]; query_start int32 [seqs + 1]; seq_lens int32 [seqs]; logit_rows int32
    [rows]; and per cache group slots.<group> int32 [tokens] and block_table.<group> int32 [seqs, blocks]. Output:
    logits float32 [rows, vocabulary]. Parameters have Hugging Face names; the state of layer n is called cache.n.
    """

    graph: Graph
    config: ModelConfig
    groups: tuple[CacheGroup, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class GroupInputs:
    """Where one cache group keeps the keys and values of this step."""

    group: CacheGroup
    slots: Value
    block_table: Value


class ModelContext:
    """What a model builder works with: the inputs of a step, parameters by name, and the parts all decoders share."""

    def __init__(self, config: ModelConfig, checkpoint: Checkpoint, dtype: DType, cache_scheme: str) -> None:
        self.config, self.checkpoint, self.dtype = config, checkpoint, dtype
        self.builder = Builder(config.model_type)
        tokens, seqs, rows = sym("tokens"), sym("seqs"), sym("rows")
        self.token_ids = self.builder.input("token_ids", TensorType(int32, (tokens,)))
        self.positions = self.builder.input("positions", TensorType(int32, (tokens,)))
        self.query_start = self.builder.input("query_start", TensorType(int32, (seqs + 1,)))
        self.seq_lens = self.builder.input("seq_lens", TensorType(int32, (seqs,)))
        self.logit_rows = self.builder.input("logit_rows", TensorType(int32, (rows,)))
        self.tokens, self.seqs = tokens, seqs
        self._parameters: dict[str, Value] = {}
        state = paged_kv(config.num_kv_heads, config.head_dim, config.head_dim, cache_scheme)
        self.groups = tuple(self._group(*found, state) for found in _layers_by_window(config).items())
        self._of_layer = {layer: g for g in self.groups for layer in g.group.layers}
        self._caches = {
            layer: self.builder.state(f"cache.{layer}", g.group.state) for layer, g in sorted(self._of_layer.items())
        }

    def _group(self, window: int | None, layers: Sequence[int], state: StateType) -> GroupInputs:
        name = "full" if window is None else f"window{window}"
        group = CacheGroup(name, tuple(layers), state, window)
        slots = self.builder.input(f"slots.{name}", TensorType(int32, (self.tokens,)))
        table = self.builder.input(f"block_table.{name}", TensorType(int32, (self.seqs, sym(f"blocks_{name}"))))
        return GroupInputs(group, slots, table)

    def weight(self, name: str, rows: int, columns: int) -> Value:
        """A weight parameter [rows, columns] in the scheme the checkpoint stores it in."""
        if name not in self._parameters:
            kind = self.checkpoint.source(name).type
            if kind.shape != (rows, columns):
                raise ModelError(f"tensor {name!r} is {list(kind.shape)}, the config asks for {[rows, columns]}")
            self._parameters[name] = self.builder.parameter(name, kind)
        return self._parameters[name]

    def tensor(self, name: str, *shape: int) -> Value:
        """A small parameter such as a norm weight or a bias, in the dtype of the activations."""
        if name not in self._parameters:
            found = self.checkpoint.shape(name)
            if found != shape:
                raise ModelError(f"tensor {name!r} is {list(found)}, the config asks for {list(shape)}")
            self._parameters[name] = self.builder.parameter(name, TensorType(self.dtype, shape))
        return self._parameters[name]

    def linear(self, x: Value, prefix: str, rows: int, bias: bool = False) -> Value:
        """x times `prefix`.weight transposed, plus `prefix`.bias."""
        columns = x.shape[-1]
        assert isinstance(columns, int)
        weight = self.weight(f"{prefix}.weight", rows, columns)
        result: Value = ops.linear(x, weight, self.tensor(f"{prefix}.bias", rows) if bias else None)
        return result

    def norm(self, x: Value, prefix: str) -> Value:
        """RMS norm with `prefix`.weight over the last axis."""
        width = x.shape[-1]
        assert isinstance(width, int)
        result: Value = ops.rms_norm(x, self.tensor(f"{prefix}.weight", width), eps=self.config.rms_norm_eps)
        return result

    def embed(self) -> Value:
        """Token embeddings [tokens, hidden]."""
        config = self.config
        table = self.weight("model.embed_tokens.weight", config.vocab_size, config.hidden_size)
        result: Value = ops.embedding(self.token_ids, table, dtype=self.dtype)
        return result

    def attend(self, layer: int, q: Value, k: Value, v: Value) -> Value:
        """Write keys and values of this step into the layer's cache, then attend: [tokens, heads, head_dim]."""
        config, inputs = self.config, self._of_layer[layer]
        cache = ops.write_cache(self._caches[layer], k, v, inputs.slots)
        self._caches[layer] = cache
        out, _ = ops.paged_attention(
            q,
            cache,
            self.query_start,
            self.seq_lens,
            inputs.block_table,
            scale=config.attention_scale,
            window=inputs.group.window,
            softcap=config.attn_softcap,
        )
        result: Value = out
        return result

    def heads(self, x: Value, count: int) -> Value:
        """[tokens, count * head_dim] as [tokens, count, head_dim]."""
        result: Value = ops.reshape(x, shape=(self.tokens, count, self.config.head_dim))
        return result

    def finish(self, x: Value) -> ModelProgram:
        """Keep the rows whose logits are wanted, apply the final norm and the head, and close the graph."""
        config = self.config
        x = self.norm(ops.index_select(x, self.logit_rows), "model.norm")
        name = "model.embed_tokens" if config.tie_word_embeddings else "lm_head"
        # float32 from here on: 16-bit logits of a large vocabulary tie, and the lowest id would win by accident
        logits = self.linear(ops.cast(x, dtype=float32), name, config.vocab_size)
        if config.final_softcap:
            logits = ops.mul(ops.tanh(ops.div(logits, config.final_softcap)), config.final_softcap)
        graph = verify(self.builder.build(logits=logits))
        return ModelProgram(graph, config, tuple(g.group for g in self.groups), self.dtype)


def _layers_by_window(config: ModelConfig) -> Mapping[int | None, list[int]]:
    found: dict[int | None, list[int]] = {}
    for layer in range(config.num_layers):
        found.setdefault(config.window(layer), []).append(layer)
    return found
