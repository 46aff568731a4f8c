"""The simulated chips by name: contract witnesses, each of which takes the difficult side of one contract.

All of them compute what `sim:exact` computes, so a program that respects the contracts gives the same numbers on each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from xinheng.core.hal import Device, ReferenceDevice
from xinheng.core.ir.dtype import bfloat16, float64, int64, uint32, uint64

from .cache_layouts import Contiguous, Fractal, HeadsFirst
from .deferred_device import DeferredDevice
from .device import SimDevice
from .recording_device import RecordingDevice
from .static_device import StaticDevice


@dataclass(frozen=True, slots=True)
class SimProfile:
    """One simulated chip: a sentence about it, and what makes it from its spec and that sentence."""

    text: str
    make: Callable[[str, str], Device]


LENGTHS = dict.fromkeys(("paged_attention", "mla_attention"), ("query_start", "seq_lens"))
HOST_LISTS = LENGTHS | {"gather_kv_cache": ("seq_lens",)}
LONGEST = 2048
"""The longest sequence of the chip without paging."""

PROFILES = {
    "exact": SimProfile("every op in float64, each result rounded once", ReferenceDevice),
    "heads-first-cache": SimProfile(
        "keeps caches as [heads, blocks, block_size, dim]", partial(SimDevice, layout=HeadsFirst)
    ),
    "nz-cache": SimProfile("keeps caches in fractal tiles of 16 by 16", partial(SimDevice, layout=Fractal)),
    "contiguous-cache": SimProfile(
        f"knows no cache blocks, only sequences of at most {LONGEST} tokens, one region each",
        partial(SimDevice, layout=Contiguous, block_sizes=(), max_length=LONGEST),
    ),
    "host-lengths": SimProfile(
        "attention wants the lengths of sequences as host lists", partial(SimDevice, host=HOST_LISTS)
    ),
    "static-buckets": SimProfile("compiles fixed sizes only, to which inputs are padded", StaticDevice),
    "async": SimProfile("computes nothing before an event or a download waits for it", DeferredDevice),
    "graph-capture": SimProfile(
        "records a run once per size and replays it in the same buffers", partial(RecordingDevice, host=LENGTHS)
    ),
    "int32-only": SimProfile(
        "has no int64, uint64, uint32 or float64; random numbers are made on the host",
        partial(SimDevice, without=(int64, uint64, uint32, float64), host={"random_uniform": ("seed", "counter")}),
    ),
    "no-bf16": SimProfile(
        "has no bfloat16; weights in it become float16 if it holds them exactly, else float32",
        partial(SimDevice, without=(bfloat16,)),
    ),
}
"""The simulated chips by name."""
