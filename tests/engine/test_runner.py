"""How many cache blocks a runner gives itself, and what it tells about itself."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xinheng.core.errors import SettingsError
from xinheng.core.ir.types import paged_kv
from xinheng.core.settings import RuntimeSettings
from xinheng.engine import LLM, EngineSettings
from xinheng.engine.kv_cache import CacheGroup
from xinheng.engine.loading import load_runner, peak_memory, resident_memory
from xinheng.engine.runner import block_bytes, cache_blocks

from . import tiny

FULL = CacheGroup("full", (5,), paged_kv(1, 32, 32, "float32"))
SLIDING = CacheGroup("window8", (0, 1, 2, 3, 4, 6), paged_kv(1, 32, 32, "float32"), 8)
MIXED = CacheGroup("mixed", (7,), paged_kv(2, 32, 64, "int8"), 100)


def test_a_block_takes_what_its_layers_keep() -> None:
    assert block_bytes(FULL, 16) == 16 * 1 * (32 + 32) * 4
    assert block_bytes(SLIDING, 16) == 6 * block_bytes(FULL, 16)
    assert block_bytes(MIXED, 16) == 16 * 2 * (32 + 4 + 64 + 4)


@given(
    st.lists(st.sampled_from([FULL, SLIDING, MIXED]), min_size=1, max_size=3, unique=True),
    st.sampled_from([16, 32]),
    st.integers(2, 300),
    st.integers(1, 9),
    st.integers(1, 64) | st.none(),
    st.integers(1, 3_000_000),
)
def test_blocks_fit_in_the_memory_and_use_it(
    groups: list[CacheGroup], size: int, longest: int, seqs: int, chunk: int | None, memory: int
) -> None:
    settings = EngineSettings(max_num_seqs=seqs, prefill_chunk=chunk)
    per_block = {group.name: block_bytes(group, size) for group in groups}

    def cost(blocks: dict[str, int]) -> int:
        return sum(blocks[name] * each for name, each in per_block.items())

    step = chunk or settings.max_num_batched_tokens
    full = {group.name: seqs * group.peak_blocks(longest, step, size) for group in groups}
    try:
        blocks = cache_blocks(tuple(groups), size, longest, settings, memory)
    except SettingsError as error:
        assert str(memory) in str(error)
        assert memory < sum(per_block.values())
        return
    assert all(1 <= blocks[name] <= full[name] for name in full)
    assert cost(blocks) <= memory
    if cost(full) <= memory:
        assert blocks == full
    else:
        one_more_of_each = cost({name: count + 1 for name, count in blocks.items()})
        assert one_more_of_each > memory or len(groups) > 1


def test_memory_is_measured() -> None:
    before = resident_memory()
    with mmap.mmap(-1, 30_000_000) as held:  # pages of its own, which an allocator might have left over
        held.write(b"x" * 30_000_000)
        after = resident_memory()
    assert before > 10**6
    assert after - before > 20_000_000
    assert peak_memory() > after - 5_000_000


def test_an_override_by_an_unknown_kernel_names_those_there_are(llama_folder: Path) -> None:
    runtime = RuntimeSettings(device="cpu:0", overrides={"rms_norm": "@fastest"})
    with pytest.raises(SettingsError, match=r"cpu:0 has no kernel 'fastest'; it has .*torch_rms_norm"):
        load_runner(llama_folder, runtime, EngineSettings())


@pytest.mark.parametrize("choice", ["decompose", "reference"])
def test_overrides_change_how_an_op_runs_and_stand_in_the_receipt(llama_folder: Path, choice: str) -> None:
    plain = tiny.open_llm(llama_folder, "cpu:0")
    want = plain.logits(tiny.text_ids(20))
    plain.close()
    runtime = RuntimeSettings(device="cpu:0", dtype="float32", overrides={"rms_norm": choice, "silu_and_mul": choice})
    runner = load_runner(llama_folder, runtime, EngineSettings(max_num_batched_tokens=256))
    receipt = runner.runner.receipt
    if choice == "decompose":
        assert {entry.op: entry.count for entry in receipt.decomposed}["rms_norm"] == 5
        assert "rms_norm" not in {line.op for line in receipt.lines}
    else:
        (line,) = [line for line in receipt.lines if line.op == "rms_norm"]
        assert (line.count, line.moved) == (5, True)
        assert receipt.moved == 7
    runner.runner.close()
    with LLM(llama_folder, runtime=runtime) as llm:
        assert np.abs(llm.logits(tiny.text_ids(20)) - want).max() < 1e-4


def test_closing_twice_is_closing_once(llama_folder: Path) -> None:
    runner = load_runner(llama_folder, RuntimeSettings(device="sim:exact"), EngineSettings()).runner
    runner.close()
    runner.close()
