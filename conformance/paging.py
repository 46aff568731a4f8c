"""Calls on paged caches, laid out again in blocks of a size that a device declares.

Cases have small blocks, so that a few tokens already span several; many chips take blocks of 16 or 128 only, and some
no blocks at all. The call that such a chip gets means the same, and what it returns is brought back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xinheng.core.errors import UnsupportedOp
from xinheng.core.hal import Capabilities
from xinheng.core.ir import StateType, TensorType
from xinheng.core.ops import OPSET

from .call import Call

SPARE = 2
"""Blocks that no sequence owns."""


def repaged(call: Call, capabilities: Capabilities) -> Call:
    """A call that means the same on a cache of blocks that the device takes; itself if they are so already.

    Raises:
        UnsupportedOp: the blocks that are written or copied are larger than the largest of the device.
    """
    names = [operand.name for operand in OPSET[call.op].operands]
    if "cache" not in names:
        return call
    size, sizes = _block_size(call.values[names.index("cache")]), capabilities.block_sizes
    if "block_table" in names:
        longest = max((1, *map(int, call.values[names.index("seq_lens")])))
        return call if size in sizes else _dealt(call, names, min(sizes, default=longest))
    if size in sizes or not sizes:
        return call
    larger = [other for other in sizes if other > size]
    if not larger:
        raise UnsupportedOp(f"{call.id} has blocks of {size} tokens; the largest of the device have {max(sizes)}")
    return _widened(call, names, min(larger))


def restored(call: Call, made: tuple[Any, ...]) -> tuple[Any, ...]:
    """The results of the call that `repaged` made of `call`, as those of `call`."""
    names = [operand.name for operand in OPSET[call.op].operands]
    if "cache" not in names or not any(isinstance(kind, StateType) for kind in call.result_types):
        return made
    size = _block_size(call.values[names.index("cache")])
    return tuple(type(x)(*(p[:, :size] for p in x)) if hasattr(x, "_fields") else x for x in made)


def _block_size(cache: Any) -> int:
    return int(cache[0].shape[1])


def _widened(call: Call, names: Sequence[str], size: int) -> Call:
    """Each block grows by zeros at its end; block numbers stay."""
    old = _block_size(call.values[names.index("cache")])

    def wider(pages: Any) -> Any:
        return type(pages)(*(np.pad(p, [(0, 0), (0, size - old)] + [(0, 0)] * (p.ndim - 2)) for p in pages))

    def moved(slots: NDArray[Any]) -> NDArray[Any]:
        return np.where(slots >= 0, slots // old * size + slots % old, slots).astype(slots.dtype)

    change = {"cache": wider, "slots": moved}
    values = [change[n](v) if n in change else v for n, v in zip(names, call.values, strict=False)]
    return replace(call, values=tuple(values))


def _dealt(call: Call, names: Sequence[str], size: int) -> Call:
    """The positions of each sequence in new blocks, the last sequence first; zeros where the table named no block."""
    at = {name: names.index(name) for name in ("cache", "block_table", "seq_lens")}
    cache, table, lengths = (call.values[i] for i in at.values())
    blocks, old = cache[0].shape[:2]
    needed = [-(-int(length) // size) for length in lengths]
    slots = np.full((sum(needed) + SPARE, size), -1)
    new = np.full((len(needed), max((1, *needed))), -1)
    free = len(slots)
    for s, count in enumerate(needed):
        position = np.arange(min(count * size, table.shape[1] * old))
        block = table[s][position // old]
        there = (block >= 0) & (block < blocks)
        found = np.full(count * size, -1)
        found[: position.size] = np.where(there, block * old + position % old, -1)
        for j, part in enumerate(found.reshape(count, size)):
            if (part >= 0).any():
                free -= 1
                slots[free], new[s, j] = part, free

    def gathered(pages: NDArray[Any]) -> NDArray[Any]:
        flat = pages.reshape(-1, *pages.shape[2:])
        return np.where((slots >= 0).reshape(*slots.shape, *[1] * (pages.ndim - 2)), flat[slots], 0.0)

    kind = call.types[at["block_table"]]
    assert isinstance(kind, TensorType)
    values, types = list(call.values), list(call.types)
    values[at["cache"]] = type(cache)(*map(gathered, cache))
    values[at["block_table"]] = new.astype(table.dtype)
    types[at["block_table"]] = TensorType(kind.dtype, new.shape)
    return replace(call, values=tuple(values), types=tuple(types))
