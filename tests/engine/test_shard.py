"""How models are cut for ranks: shards put together are the whole, and compute what the whole computes."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from xinheng.core.errors import ModelError
from xinheng.core.hal import LoopbackCommunicator, ReferenceDevice, WeightPart, WeightSource
from xinheng.core.ir import paged_kv, parse_graph, print_graph
from xinheng.core.ir.dtype import float32
from xinheng.core.ops import OPSET
from xinheng.core.plugins import PluginManager
from xinheng.core.schemes import scheme
from xinheng.core.settings import RuntimeSettings
from xinheng.engine import EngineSettings
from xinheng.engine.batch import Batch, GroupBatch, SamplingArrays
from xinheng.engine.layers import WHOLE, Shard
from xinheng.engine.layers.shard import GROUP
from xinheng.engine.models import Model, ModelProgram, open_model
from xinheng.engine.runner import ModelRunner
from xinheng.engine.weights import Checkpoint

from . import tiny
from .tiny import text_ids


@given(st.integers(1, 9), st.integers(1, 40), st.sampled_from([1, 2, 32, 256]))
def test_ranges_share_everything_evenly(ranks: int, units: int, unit: int) -> None:
    shards = [Shard(rank, ranks) for rank in range(ranks)]
    if units < ranks:
        with pytest.raises(ModelError, match=rf"cannot be shared by {ranks} ranks; set .* to {units} or less"):
            shards[0].range(units * unit, unit, "this")
        return
    ranges = [shard.range(units * unit, unit, "this") for shard in shards]
    assert [start for start, _ in ranges] == [0, *(stop for _, stop in ranges[:-1])]
    assert ranges[-1][1] == units * unit
    sizes = [stop - start for start, stop in ranges]
    assert all(size % unit == 0 for size in sizes)
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= unit


@given(st.integers(1, 8), st.integers(1, 6), st.integers(1, 12), st.sampled_from([1, 2, 3]))
def test_every_query_head_is_computed_once_with_its_keys(kv_heads: int, group: int, ranks: int, unit: int) -> None:
    heads = kv_heads * group
    try:
        held = [Shard(rank, ranks).heads(heads, kv_heads, unit) for rank in range(ranks)]
    except ModelError as error:
        assert "ranks" in str(error)
        assert unit > 1 or (ranks % kv_heads != 0 and ranks > kv_heads) or ranks // kv_heads > group
        return
    assert [head for part in held for head in range(part.start, part.stop)] == list(range(heads))
    for part in held:
        assert part.count % part.kv_count == 0
        assert part.start % unit == part.stop % unit == 0
        for head in range(part.count):
            key = part.kv_start + head // (part.count // part.kv_count)
            assert key == (part.start + head) // group


def test_heads_that_cannot_be_shared_say_what_could() -> None:
    with pytest.raises(ModelError, match=r"2 key-value heads cannot be held by 3 ranks evenly; .* to 2 or less, or to"):
        Shard(0, 3).heads(8, 2)
    with pytest.raises(ModelError, match="key-value heads: 3 in units of 2 cannot be shared by 2 ranks"):
        Shard(0, 2).heads(3, 3, unit=2)
    with pytest.raises(ModelError, match="rank 2 is not one of 0 to 1"):
        Shard(2, 2)


CONFIGS: Mapping[str, tuple[tiny.Config, int]] = {
    "llama": (tiny.LLAMA, 2),
    "biases": (tiny.LLAMA_BIAS, 2),
    "one key-value head for two ranks": (tiny.LLAMA, 4),
    "tied, uneven heads": (tiny.LLAMA3 | {"num_key_value_heads": 3}, 2),
    "windows, one key-value head": (tiny.GEMMA3, 2),
    "vocabulary that does not divide": (tiny.LLAMA | {"vocab_size": 305}, 2),
    "gate and up in one tensor": (tiny.GLM4, 2),
    "experts": (tiny.QWEN3_MOE, 2),
    "latent attention, uneven": (tiny.DEEPSEEK_V3, 3),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("shards")
    return {
        name: tiny.write_model(root / name.replace(" ", "-"), config, seed=5) for name, (config, _) in CONFIGS.items()
    }


def values(model: Model, program: ModelProgram) -> dict[str, NDArray[Any]]:
    """All parameters of a program."""
    found = {}
    for value in program.graph.parameters:
        source = model.parameter(program, value)
        found[value.name] = source.unpack() if isinstance(source, WeightSource) else source
    return found


@pytest.mark.parametrize("name", CONFIGS)
def test_shards_put_together_are_the_whole(folders: dict[str, Path], name: str) -> None:
    model, ranks = open_model(folders[name]), CONFIGS[name][1]
    whole = values(model, model.build(float32, "float32"))
    programs = [model.build(float32, "float32", Shard(rank, ranks)) for rank in range(ranks)]
    parts = [values(model, program) for program in programs]
    text = print_graph(programs[-1].graph)
    assert print_graph(parse_graph(text, OPSET)) == text
    # parameters come in the same order in all graphs
    for index, (tensor, array) in enumerate(whole.items()):
        pieces = [list(part.items())[index] for part in parts]
        assert all(key == tensor or key.startswith(f"{tensor.split('[')[0]}[") for key, _ in pieces)
        held = dict(pieces)  # ranks may hold the same
        axes = {axis for _, piece in pieces for axis in range(array.ndim) if piece.shape[axis] != array.shape[axis]}
        assert len(axes) <= 1
        together = np.concatenate(list(held.values()), axes.pop()) if axes else pieces[-1][1]
        np.testing.assert_array_equal(together, array, err_msg=tensor)


def test_the_graph_of_one_rank_has_no_collectives(folders: dict[str, Path]) -> None:
    model = open_model(folders["llama"])
    whole, shard = (model.build(float32, "float32", part).graph for part in (WHOLE, Shard(1, 2)))
    collectives = {"all_reduce", "all_gather", "matmul_all_reduce"}
    assert not {node.op.name for node in whole.nodes} & collectives
    found = [node for node in shard.nodes if node.op.name in collectives]
    assert [node.op.name for node in found] == ["matmul_all_reduce"] * 4 + ["all_gather"]
    assert {(node.attributes["group"], node.attributes["size"]) for node in found} == {(GROUP, 2)}
    assert {state.type for state, _ in shard.states} == {paged_kv(1, 16, 16, "float32")}


@dataclass(frozen=True)
class Packed:
    """A checkpoint whose matrices are stored in another scheme."""

    inner: Checkpoint
    scheme: str

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __contains__(self, name: object) -> bool:
        return name in self.inner

    def source(self, name: str) -> WeightSource:
        source = self.inner.source(name)
        pack = scheme(self.scheme).pack
        assert pack is not None
        data = pack(source.unpack())
        return WeightSource(name, source.shape, (WeightPart(self.scheme, source.shape[0], lambda: data),))


def packed(folder: Path, kind: str) -> Model:
    model = open_model(folder)
    return replace(model, checkpoint=Packed(model.checkpoint, kind))


def test_blocks_are_never_cut(folders: dict[str, Path]) -> None:
    model = packed(folders["llama"], "q4_0")
    widths = []
    for rank in range(2):
        sources = model.build(float32, "float32", Shard(rank, 2)).sources
        (down,) = (s for name, s in sources.items() if name.startswith("model.layers.1.mlp.down_proj.weight"))
        (gate,) = (s for name, s in sources.items() if name.startswith("model.layers.1.mlp.gate_proj.weight"))
        assert down.shape[1] == gate.shape[0]
        widths.append(down.shape[1])
    assert widths == [64, 32]  # 96 columns are three blocks
    with pytest.raises(ModelError, match="2 query heads of a key-value head, in units of 2, cannot be shared by 2"):
        model.build(float32, "float32", Shard(0, 4))


def step(runner: ModelRunner, ids: Sequence[int]) -> NDArray[np.float32]:
    """The logits of a text computed in one step."""
    count, size = len(ids), runner.block_size
    positions = np.arange(count, dtype=np.int32)
    table = np.arange(-(-count // size), dtype=np.int32)[None]
    batch = Batch(
        tokens=np.array(ids, np.int32),
        positions=positions,
        query_start=np.array([0, count], np.int32),
        seq_lens=np.array([count], np.int32),
        groups={group.name: GroupBatch(positions, table) for group in runner.info.groups},
        logit_rows=positions,
        sampling=SamplingArrays.of(()),
        request_ids=(),
    )
    return runner.logits(batch)


def in_threads(model: Model, ranks: int, device: str, ids: Sequence[int]) -> list[NDArray[np.float32]]:
    """The logits that each rank computes, the ranks being threads."""
    ends = LoopbackCommunicator.group(ranks)
    settings = EngineSettings(max_num_batched_tokens=32, max_num_seqs=1)
    runtime = RuntimeSettings(device=device, dtype="float32", numerics="strict")
    building = threading.Lock()

    def rank(number: int) -> NDArray[np.float32]:
        with building:
            opened = ReferenceDevice() if device == "reference" else PluginManager().open(device)
            opened.connect(GROUP, ends[number])
            runner = ModelRunner(model, opened, runtime, settings, shard=Shard(number, ranks))
        return step(runner, ids)

    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(rank, range(ranks)))


@pytest.mark.parametrize(
    ("name", "kind"), [*((name, None) for name in CONFIGS), *((name, "q4_0") for name in ("llama", "biases"))]
)
def test_ranks_compute_what_one_computes(folders: dict[str, Path], name: str, kind: str | None) -> None:
    model = packed(folders[name], kind) if kind else open_model(folders[name])
    ids = text_ids(11)
    (alone,) = in_threads(model, 1, "cpu:0", ids)
    together = in_threads(model, CONFIGS[name][1], "cpu:0", ids)
    for logits in together:
        np.testing.assert_array_equal(logits, together[0])
        assert np.abs(logits - alone).max() <= 2e-5 * np.ptp(alone)


def test_references_reach_the_other_ranks_too(folders: dict[str, Path]) -> None:
    model, ids = open_model(folders["biases"]), text_ids(4)
    (alone,) = in_threads(model, 1, "reference", ids)
    for logits in in_threads(model, 2, "reference", ids):
        assert np.abs(logits - alone).max() <= 2e-5 * np.ptp(alone)
