"""The graph of a model and what belongs to it, and the context in which a model builder writes that graph."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xinheng.core import ops
from xinheng.core.errors import ModelError
from xinheng.core.hal.weight import WeightSource
from xinheng.core.ir import Builder, DType, Graph, StateType, TensorType, Value, paged_kv, paged_latent, sym, verify
from xinheng.core.ir.dtype import float32, int32

from ..kv_cache import CacheGroup
from ..weights import Checkpoint
from .config import ModelConfig
from .shard import GROUP, WHOLE, HeadRange, Shard, border, head_unit


@dataclass(frozen=True, slots=True)
class ModelProgram:
    """One step of a model over a flattened batch.

    Inputs: token_ids, positions int32 [tokens]; query_start int32 [seqs + 1]; seq_lens int32 [seqs]; logit_rows int32
    [rows]; and per cache group slots.<group> int32 [tokens] and block_table.<group> int32 [seqs, blocks]. Output:
    logits float32 [rows, vocabulary]. Parameters have Hugging Face names, with a suffix where only a part of a
    tensor is meant; `sources` holds the lazy weights by these names, and `cuts` says which part of which tensor
    others are. `read` are the tensors of the checkpoint that the graph uses. The state of layer n is called cache.n.
    The graph of a shard has collectives, and its states hold the heads of its rank only.
    """

    graph: Graph
    config: ModelConfig
    groups: tuple[CacheGroup, ...]
    dtype: DType
    sources: Mapping[str, WeightSource]
    read: frozenset[str]
    cuts: Mapping[str, tuple[str, int, int]]


@dataclass(frozen=True, slots=True)
class GroupInputs:
    """Where one cache group keeps the keys and values of this step."""

    group: CacheGroup
    slots: Value
    block_table: Value


class ModelContext:
    """What a model builder works with: the inputs of a step, parameters by name, and the parts all decoders share."""

    def __init__(
        self, config: ModelConfig, checkpoint: Checkpoint, dtype: DType, cache_scheme: str, shard: Shard = WHOLE
    ) -> None:
        self.config, self.checkpoint, self.dtype, self.shard = config, checkpoint, dtype, shard
        self.builder = Builder(config.model_type)
        tokens, seqs, rows = sym("tokens"), sym("seqs"), sym("rows")
        self.token_ids = self.builder.input("token_ids", TensorType(int32, (tokens,)))
        self.positions = self.builder.input("positions", TensorType(int32, (tokens,)))
        self.query_start = self.builder.input("query_start", TensorType(int32, (seqs + 1,)))
        self.seq_lens = self.builder.input("seq_lens", TensorType(int32, (seqs,)))
        self.logit_rows = self.builder.input("logit_rows", TensorType(int32, (rows,)))
        self.tokens, self.seqs = tokens, seqs
        self._parameters: dict[str, Value] = {}
        self._sources: dict[str, WeightSource] = {}
        self._read: set[str] = set()
        self._cuts: dict[str, tuple[str, int, int]] = {}
        self.held = self._held()
        if config.mla is not None:
            state = paged_latent(config.mla.latent_dim, config.mla.rope_dim, cache_scheme)
        else:
            state = paged_kv(self.held.kv_count, config.head_dim, config.head_dim, cache_scheme)
        self.groups = tuple(self._group(*found, state) for found in _layers_by_window(config).items())
        self._of_layer = {layer: g for g in self.groups for layer in g.group.layers}
        self._caches = {
            layer: self.builder.state(f"cache.{layer}", g.group.state) for layer, g in sorted(self._of_layer.items())
        }

    def _held(self) -> HeadRange:
        """The heads of this rank: in all layers the same, whose output projections are all cut at their borders."""
        config = self.config
        if self.shard.ranks == 1:
            return HeadRange(0, config.num_heads, 0, config.num_kv_heads)
        width = config.head_dim if config.mla is None else config.mla.value_dim
        names = [f"model.layers.{layer}.self_attn.o_proj.weight" for layer in range(config.num_layers)]
        outputs = [self.source(name, config.hidden_size, config.num_heads * width) for name in names]
        unit = math.lcm(*(head_unit(source, width) for source in outputs))
        # all heads of latent attention read one cache, which every rank holds: it does not bind them together
        kv_heads = config.num_kv_heads if config.mla is None else config.num_heads
        return self.shard.heads(config.num_heads, kv_heads, unit)

    def _group(self, window: int | None, layers: Sequence[int], state: StateType) -> GroupInputs:
        name = "full" if window is None else f"window{window}"
        group = CacheGroup(name, tuple(layers), state, window)
        slots = self.builder.input(f"slots.{name}", TensorType(int32, (self.tokens,)))
        table = self.builder.input(f"block_table.{name}", TensorType(int32, (self.seqs, sym(f"blocks_{name}"))))
        return GroupInputs(group, slots, table)

    def source(self, name: str, rows: int, columns: int) -> WeightSource:
        """A matrix of the checkpoint; ModelError if it has another shape than the config asks for."""
        source = self.checkpoint.source(name)
        if source.shape != (rows, columns):
            raise ModelError(f"tensor {name!r} is {list(source.shape)}, the config asks for {[rows, columns]}")
        self._read.add(name)
        return source

    def _declare(self, name: str, source: WeightSource) -> Value:
        self._sources[name] = source
        self._parameters[name] = self.builder.parameter(name, source.type)
        return self._parameters[name]

    def weight(self, name: str, rows: int, columns: int) -> Value:
        """A weight parameter [rows, columns] in the scheme the checkpoint stores it in."""
        if name in self._parameters:
            return self._parameters[name]
        return self._declare(name, self.source(name, rows, columns))

    def stacked(self, name: str, sources: Sequence[WeightSource]) -> Value:
        """Weights of one shape [rows, columns] as one of shape [count, rows, columns]."""
        return self._declare(name, WeightSource.stack(name, sources))

    def head_rows(self, tensor: str, heads: int, rows: int, start: int, stop: int, columns: int) -> Value:
        """Rows start to stop of the `rows` rows of each head held, as one weight [heads, stop - start, columns]."""
        whole, held = self.source(tensor, heads * rows, columns), self.held
        name = f"{tensor}[{start}:{stop}]"
        if held.count < heads:
            name = f"{tensor}[{held.start}:{held.stop}][{start}:{stop}]"
        return self.stacked(name, [whole.rows(h * rows + start, h * rows + stop) for h in range(held.start, held.stop)])

    def columns_held(self, total: int, sources: Sequence[WeightSource], what: str) -> tuple[int, int]:
        """This rank's run of the `total` columns of some weights, cut at block borders of all of them."""
        if self.shard.ranks == 1:
            return 0, total
        return self.shard.range(total, math.lcm(*map(border, sources)), what)

    def parameter(self, name: str, type: TensorType) -> Value:
        """A tensor parameter in a dtype of its own."""
        if name not in self._parameters:
            found = self.checkpoint.shape(name)
            if found != type.shape:
                raise ModelError(f"tensor {name!r} is {list(found)}, the config asks for {list(type.shape)}")
            self._read.add(name)
            self._parameters[name] = self.builder.parameter(name, type)
        return self._parameters[name]

    def tensor(self, name: str, *shape: int) -> Value:
        """A small parameter such as a norm weight or a bias, in the dtype of the activations."""
        return self.parameter(name, TensorType(self.dtype, shape))

    def tensor_part(self, name: str, start: int, stop: int, size: int) -> Value:
        """Elements start to stop of a small parameter of `size` elements."""
        if (start, stop) == (0, size):
            return self.tensor(name, size)
        if (found := self.checkpoint.shape(name)) != (size,):
            raise ModelError(f"tensor {name!r} is {list(found)}, the config asks for {[size]}")
        self._read.add(name)
        part = f"{name}[{start}:{stop}]"
        self._cuts[part] = name, start, stop
        self._parameters[part] = self.builder.parameter(part, TensorType(self.dtype, (stop - start,)))
        return self._parameters[part]

    def linear(self, x: Value, prefix: str, rows: int, bias: bool = False) -> Value:
        """x times `prefix`.weight transposed, plus `prefix`.bias."""
        return self.linear_rows(x, prefix, 0, rows, rows, bias)

    def linear_rows(self, x: Value, prefix: str, start: int, stop: int, rows: int, bias: bool = False) -> Value:
        """x times rows start to stop, of `rows`, of `prefix`.weight, transposed, plus that part of `prefix`.bias."""
        columns, tensor = x.shape[-1], f"{prefix}.weight"
        assert isinstance(columns, int)
        name = tensor if (start, stop) == (0, rows) else f"{tensor}[{start}:{stop}]"
        if name not in self._parameters:
            self._declare(name, self.source(tensor, rows, columns).rows(start, stop))
        added = self.tensor_part(f"{prefix}.bias", start, stop, rows) if bias else None
        result: Value = ops.linear(x, self._parameters[name], added)
        return result

    def linear_columns(
        self, x: Value, prefix: str, rows: int, start: int, stop: int, columns: int, bias: bool = False
    ) -> Value:
        """x times `prefix`.weight transposed, plus `prefix`.bias, where x is columns start to stop of `columns`.

        The other ranks hold the other columns, and all get the sum.
        """
        if self.shard.ranks == 1:
            return self.linear(x, prefix, rows, bias)
        tensor = f"{prefix}.weight"
        part = self.source(tensor, rows, columns).columns(start, stop)
        weight = self._declare(f"{tensor}[:][{start}:{stop}]", part)
        added = self.tensor(f"{prefix}.bias", rows) if bias else None
        result: Value = ops.matmul_all_reduce(x, weight, added, group=GROUP, size=self.shard.ranks)
        return result

    def summed(self, x: Value) -> Value:
        """The sum of what the ranks computed of one value."""
        if self.shard.ranks == 1:
            return x
        total: Value = ops.all_reduce(x, group=GROUP, size=self.shard.ranks)
        return total

    def norm(self, x: Value, prefix: str, eps: float | None = None) -> Value:
        """RMS norm with `prefix`.weight over the last axis; `eps` is the config's by default."""
        width = x.shape[-1]
        assert isinstance(width, int)
        scale = self.tensor(f"{prefix}.weight", width)
        result: Value = ops.rms_norm(x, scale, eps=self.config.rms_norm_eps if eps is None else eps)
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

    def attend_latent(self, layer: int, q_latent: Value, q_rope: Value, latent: Value, rope: Value) -> Value:
        """Write latents and rotary keys of this step into the layer's cache, then attend: [tokens, heads, latent]."""
        inputs = self._of_layer[layer]
        cache = ops.write_latent_cache(self._caches[layer], latent, rope, inputs.slots)
        self._caches[layer] = cache
        out, _ = ops.mla_attention(
            q_latent,
            q_rope,
            cache,
            self.query_start,
            self.seq_lens,
            inputs.block_table,
            scale=self.config.attention_scale,
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
        logits = self._head(ops.cast(x, dtype=float32), name, config.vocab_size)
        if config.final_softcap:
            logits = ops.mul(ops.tanh(ops.div(logits, config.final_softcap)), config.final_softcap)
        graph = verify(self.builder.build(logits=logits))
        groups = tuple(g.group for g in self.groups)
        return ModelProgram(graph, config, groups, self.dtype, self._sources, frozenset(self._read), self._cuts)

    def _head(self, x: Value, name: str, rows: int) -> Value:
        """The logits; ranks compute equal parts of them, unless each holds the whole table anyway as an embedding."""
        ranks = self.shard.ranks
        if ranks == 1 or self.config.tie_word_embeddings or rows % ranks:
            return self.linear(x, name, rows)
        part = self.linear_rows(x, name, *self.shard.range(rows, rows // ranks, name), rows)
        result: Value = ops.all_gather(part, axis=1, group=GROUP, size=ranks)
        return result


def _layers_by_window(config: ModelConfig) -> Mapping[int | None, list[int]]:
    found: dict[int | None, list[int]] = {}
    for layer in range(config.num_layers):
        found.setdefault(config.window(layer), []).append(layer)
    return found
