"""Private cache layouts hold what the contract says, and ops of caches compute on them what their references do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from xinheng.backends.sim.cache_layouts import AsDeclared, CacheLayout, Contiguous, Fractal, HeadsFirst
from xinheng.backends.sim.device import SimDevice
from xinheng.core import ops
from xinheng.core.compiler import compile
from xinheng.core.errors import DeviceError
from xinheng.core.hal import StateSpace
from xinheng.core.ir import Builder, StateType, TensorType, paged_kv, paged_latent, sym
from xinheng.core.ir.dtype import float32, int32
from xinheng.core.ops import KVPages, LatentPages

LAYOUTS = [AsDeclared, HeadsFirst, Fractal, Contiguous]
RNG = np.random.default_rng(0)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("heads", "dim"), [(2, 16), (3, 5), (1, 1)])
def test_what_is_written_is_read(layout: type[CacheLayout], heads: int, dim: int) -> None:
    part = layout(4, 32, heads, dim, np.dtype(np.float32))
    block, offset = np.divmod(RNG.permutation(4 * 32)[:50], 32)
    values = RNG.normal(size=(50, heads, dim)).astype(np.float32)
    part.write(block, offset, values)
    want = np.zeros((4, 32, heads, dim), np.float32)
    want[block, offset] = values
    np.testing.assert_array_equal(part.read(np.array([3, 0, 1, 2])), want[[3, 0, 1, 2]])
    part.write(block[:0], offset[:0], values[:0])
    np.testing.assert_array_equal(part.read(np.arange(4)), want)


def test_memory_is_ordered_as_the_layout_says() -> None:
    values = np.arange(2 * 24, dtype=np.float32).reshape(1, 2, 24)
    at = (np.array([1]), np.array([17]))
    first, tiles, regions = (made(3, 32, 2, 24, np.dtype(np.float32)) for made in (HeadsFirst, Fractal, Contiguous))
    for part in (first, tiles, regions):
        part.write(*at, values)
    np.testing.assert_array_equal(first.data[1, 1, 17], values[0, 1])
    np.testing.assert_array_equal(tiles.data[1, 2, 1, 1], values.reshape(-1)[32:48])
    np.testing.assert_array_equal(regions.data[1, 1, :, 17], values[0, 1])


def device(layout: type[CacheLayout]) -> SimDevice:
    return SimDevice("sim:layout", "a layout", layout=layout)


def run(on: SimDevice, graph: Any, inputs: dict[str, Any], state: Any) -> dict[str, Any]:
    bound = compile(graph, on).bind({"cache": state})
    bound.run(inputs).wait()
    return {name: on.download(buffer) for name, buffer in bound.outputs.items()}


def filled(on: SimDevice, kind: StateType, space: StateSpace, parts: list[Any]) -> Any:
    """A state that holds the given pages, written through the op, as its layout is private."""
    b = Builder("fill")
    tokens = space.blocks * space.block_size
    state = b.state("cache", kind)
    first, second = (b.input(f"x{i}", TensorType(float32, (tokens, *x.shape[2:]))) for i, x in enumerate(parts))
    slots = b.input("slots", TensorType(int32, (tokens,)))
    if kind.kind == "paged_kv":
        ops.write_cache(state, first, second, slots)
    else:
        ops.write_latent_cache(state, first, second, slots)
    executable = compile(b.build(), on)
    made = executable.allocate_state(space)
    inputs = {f"x{i}": x.reshape(-1, *x.shape[2:]) for i, x in enumerate(parts)}
    executable.bind(made).run({**inputs, "slots": np.arange(tokens, dtype=np.int32)}).wait()
    return made["cache"]


QUERY = {
    "query_start": np.array([0, 3, 4], np.int32),
    "seq_lens": np.array([20, 7], np.int32),
    "block_table": np.array([[2, 0], [1, -1]], np.int32),
}


def paged_inputs(b: Builder) -> list[Any]:
    return [b.input(name, TensorType(int32, array.shape)) for name, array in QUERY.items()]


@pytest.mark.parametrize("layout", [AsDeclared, HeadsFirst, Fractal])
def test_paged_attention_gather_and_copies(layout: type[CacheLayout]) -> None:
    on, space = device(layout), StateSpace(4, 16)
    pages = KVPages(*(RNG.normal(size=(4, 16, 2, d)).astype(np.float32) for d in (6, 10)))
    state = filled(on, paged_kv(2, 6, 10, "float32"), space, list(pages))
    q = RNG.normal(size=(4, 4, 6)).astype(np.float32)

    b = Builder("read")
    cache = b.state("cache", paged_kv(2, 6, 10, "float32"))
    start, lengths, table = paged_inputs(b)
    out, lse = ops.paged_attention(b.input("q", TensorType(float32, q.shape)), cache, start, lengths, table, scale=0.3)
    keys, values, starts = ops.gather_kv_cache(cache, lengths, table)
    made = run(on, b.build(out=out, lse=lse, keys=keys, values=values, starts=starts), {"q": q, **QUERY}, state)
    wide = KVPages(*(x.astype(np.float64) for x in pages))
    want = ops.paged_attention.reference(q.astype(np.float64), wide, *QUERY.values(), scale=0.3)
    np.testing.assert_array_equal(made["out"], want[0].astype(np.float32))
    np.testing.assert_array_equal(made["lse"], want[1].astype(np.float32))
    gathered = ops.gather_kv_cache.reference(pages, QUERY["seq_lens"], QUERY["block_table"])
    for name, expected in zip(("keys", "values", "starts"), gathered, strict=True):
        np.testing.assert_array_equal(made[name], expected)

    b = Builder("copy")
    ops.copy_blocks(b.state("cache", paged_kv(2, 6, 10, "float32")), b.input("pairs", TensorType(int32, (2, 2))))
    run(on, b.build(), {"pairs": np.array([[2, 3], [0, 1]], np.int32)}, state)
    moved = ops.copy_blocks.reference(pages, np.array([[2, 3], [0, 1]]))
    for part, expected in zip(state.payload.parts, moved, strict=True):
        np.testing.assert_array_equal(part.read(np.arange(4)), expected)


@pytest.mark.parametrize("layout", [AsDeclared, HeadsFirst, Fractal])
def test_latent_attention(layout: type[CacheLayout]) -> None:
    on, kind = device(layout), paged_latent(12, 4, "float32")
    pages = LatentPages(*(RNG.normal(size=(4, 16, d)).astype(np.float32) for d in (12, 4)))
    state = filled(on, kind, StateSpace(4, 16), list(pages))
    queries = [RNG.normal(size=(4, 3, d)).astype(np.float32) for d in (12, 4)]
    b = Builder("read")
    wide_q, rope_q = (b.input(f"q{i}", TensorType(float32, x.shape)) for i, x in enumerate(queries))
    start, lengths, table = paged_inputs(b)
    out, lse = ops.mla_attention(wide_q, rope_q, b.state("cache", kind), start, lengths, table, scale=0.3)
    made = run(on, b.build(out=out, lse=lse), {"q0": queries[0], "q1": queries[1], **QUERY}, state)
    wide = LatentPages(*(x.astype(np.float64) for x in pages))
    latent, rope = (x.astype(np.float64) for x in queries)
    want = ops.mla_attention.reference(latent, rope, wide, *QUERY.values(), scale=0.3)
    np.testing.assert_array_equal(made["out"], want[0].astype(np.float32))
    np.testing.assert_array_equal(made["lse"], want[1].astype(np.float32))


def test_slot_minus_one_writes_nothing_and_values_are_rounded_once() -> None:
    on = device(HeadsFirst)
    b = Builder("write")
    tokens = sym("tokens")
    x = b.input("x", TensorType(float32, (tokens, 1, 4)))
    slots = b.input("slots", TensorType(int32, (tokens,)))
    ops.write_cache(b.state("cache", paged_kv(1, 4, 4, "float16")), x, x, slots)
    executable = compile(b.build(), on)
    made = executable.allocate_state(StateSpace(2, 16))
    values = RNG.normal(size=(3, 1, 4)).astype(np.float32)
    executable.bind(made).run({"x": values, "slots": np.array([17, -1, 0], np.int32)}).wait()
    pages = made["cache"].payload.parts[0].read(np.arange(2))
    assert pages.dtype == np.float16
    np.testing.assert_array_equal(pages[1, 1], values[0].astype(np.float16))
    np.testing.assert_array_equal(pages[0, 0], values[2].astype(np.float16))
    assert np.count_nonzero(pages) == 8


def test_packed_caches_are_refused() -> None:
    with pytest.raises(DeviceError, match=r"holds states of .*not state<paged_kv .*q8_0"):
        device(HeadsFirst).allocate_state(paged_kv(2, 32, 32, "q8_0"), StateSpace(2, 16))
