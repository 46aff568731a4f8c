"""States as references see them: a named tuple of arrays per kind, whose fields are the parts of its type."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from ..ir.types import StateType


class KVPages(NamedTuple):
    """A `paged_kv` state of a float dtype.

    k is [blocks, block_size, heads, k_dim], v [blocks, block_size, heads, v_dim].
    """

    k: Any
    v: Any


class QuantizedKVPages(NamedTuple):
    """A `paged_kv` state of scheme int8.

    k and v are codes like those of `KVPages`, k_scale and v_scale float32 [blocks, block_size, heads].
    """

    k: Any
    v: Any
    k_scale: Any
    v_scale: Any


class LatentPages(NamedTuple):
    """A `paged_latent` state: latent is [blocks, block_size, dim], rope [blocks, block_size, rope_dim]."""

    latent: Any
    rope: Any


class SequenceSlots(NamedTuple):
    """A `sequence_state`: data is [slots, *shape]."""

    data: Any


Held = KVPages | QuantizedKVPages | LatentPages | SequenceSlots
STATES = (KVPages, QuantizedKVPages, LatentPages, SequenceSlots)


def state_of(kind: StateType, parts: Iterable[Any]) -> Held:
    """The parts of a state, in the order of `StateType.parts`, as the tuple of its kind."""
    if kind.kind == "paged_kv":
        return QuantizedKVPages(*parts) if kind.quantized else KVPages(*parts)
    return LatentPages(*parts) if kind.kind == "paged_latent" else SequenceSlots(*parts)
