"""One attention layer over a paged cache, the smallest program that meets all contracts, and what it computes."""

from __future__ import annotations

from typing import Any

import numpy as np

from xinheng.backends.sim import SimBackend
from xinheng.core import ops
from xinheng.core.compiler import compile
from xinheng.core.hal import Bound, Device, DeviceSpec, Executable, StateSpace
from xinheng.core.ir import Builder, Graph, TensorType, paged_kv, sym
from xinheng.core.ir.dtype import float32, int32

BOUNDS = {"tokens": 12, "seqs": 4, "blocks": 3}
SPACE = StateSpace(6, 16)


def graph(kind: str = "float32") -> Graph:
    """Write k and v, attend with q; q, k and v have two heads of 8."""
    b = Builder("layer")
    tokens, seqs = sym("tokens"), sym("seqs")
    q, k, v = (b.input(name, TensorType(float32, (tokens, 2, 8))) for name in "qkv")
    slots = b.input("slots", TensorType(int32, (tokens,)))
    start = b.input("query_start", TensorType(int32, (seqs + 1,)))
    lengths = b.input("seq_lens", TensorType(int32, (seqs,)))
    table = b.input("block_table", TensorType(int32, (seqs, sym("blocks"))))
    cache = ops.write_cache(b.state("cache", paged_kv(2, 8, 8, kind)), k, v, slots)
    out, _ = ops.paged_attention(q, cache, start, lengths, table, scale=0.5)
    return b.build(out=out)


def open_device(word: str) -> Device:
    return SimBackend().open(DeviceSpec.parse(f"sim:{word}"))


def built(device: Device, **options: Any) -> Executable:
    return compile(graph(), device, bounds=BOUNDS, **options)


def bound(device: Device, space: StateSpace = SPACE) -> Bound:
    """The layer on a device, with an empty cache."""
    executable = built(device)
    return executable.bind(executable.allocate_state(space))


def step(*lengths: int, first: int = 0, seed: int = 0, size: int = 16) -> dict[str, Any]:
    """Inputs of a step in which sequence s, whose block is s, gets its positions `first` to lengths[s]."""
    rng = np.random.default_rng(seed)
    counts = [length - first for length in lengths]
    slots = [s * size + p for s, length in enumerate(lengths) for p in range(first, length)]
    q, k, v = rng.normal(size=(3, sum(counts), 2, 8)).astype(np.float32)
    return {
        "q": q,
        "k": k,
        "v": v,
        "slots": np.array(slots, np.int32),
        "query_start": np.cumsum([0, *counts]).astype(np.int32),
        "seq_lens": np.array(lengths, np.int32),
        "block_table": np.arange(len(lengths), dtype=np.int32)[:, None],
    }


def answer(layer: Bound, device: Device, inputs: dict[str, Any]) -> Any:
    """One step and its result on the host."""
    layer.run(inputs).wait()
    return device.download(layer.outputs["out"])
