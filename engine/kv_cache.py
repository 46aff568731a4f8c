"""Who owns which block of key and value memory: block pools, and per cache group one block table per sequence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from xinheng.core.errors import ModelError, SettingsError, XinhengError
from xinheng.core.ir.types import StateType

Int32 = npt.NDArray[np.int32]
_NEVER = 2**62


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers of a model that keep the same kind of state for the same span of positions.

    With a `window`, the query at position q sees only keys at positions p with 0 <= q - p < window.
    """

    name: str
    layers: tuple[int, ...]
    state: StateType
    window: int | None = None

    def first_visible(self, query: int) -> int:
        """The oldest position that the query at position `query` can see."""
        return 0 if self.window is None else max(0, query - self.window + 1)

    def first_blind(self, stop: int) -> int:
        """The first query that sees no position below `stop`."""
        return _NEVER if self.window is None else self.window + stop - 1

    def peak_blocks(self, tokens: int, chunk: int, block_size: int) -> int:
        """The most blocks a sequence of `tokens` holds at any time when no step computes more than `chunk` of them."""
        whole = -(-tokens // block_size)
        if self.window is None:
            return whole
        span = self.window - 1 + chunk
        return min(whole, (span + block_size - 2) // block_size + 1)


class BlockPool:
    """The blocks of one group, each free or held by one or more owners (a block that is shared is counted)."""

    def __init__(self, blocks: int, block_size: int) -> None:
        if blocks < 1 or block_size < 1 or blocks * block_size > 2**31 - 1:
            raise SettingsError(
                f"a cache of {blocks} blocks of {block_size} tokens is impossible; both must be at least 1 "
                f"and slots must fit in int32"
            )
        self.blocks = blocks
        self.block_size = block_size
        self._owners = [0] * blocks
        self._free = list(range(blocks - 1, -1, -1))

    @property
    def free_blocks(self) -> int:
        return len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Take `count` free blocks; XinhengError if there are not so many (ask `free_blocks` first)."""
        if count > len(self._free):
            raise XinhengError(f"{count} blocks were taken from a pool with {len(self._free)} free ones")
        taken = [self._free.pop() for _ in range(count)]
        for block in taken:
            self._owners[block] = 1
        return taken

    def share(self, blocks: Iterable[int]) -> None:
        """Add an owner to each of `blocks`, which must be held already."""
        for block in blocks:
            if not self._owners[block]:
                raise XinhengError(f"block {block} is free and cannot be shared")
            self._owners[block] += 1

    def free(self, blocks: Iterable[int]) -> None:
        """Take one owner from each of `blocks`; a block without owners is free again. XinhengError on a double free."""
        for block in blocks:
            if not self._owners[block]:
                raise XinhengError(f"block {block} is freed twice")
            self._owners[block] -= 1
            if not self._owners[block]:
                self._free.append(block)

    def reclaimable(self, blocks: Iterable[int]) -> int:
        """How many of `blocks` would be free again if their holder freed them."""
        return sum(self._owners[block] == 1 for block in blocks)


class GroupCache:
    """Pool and block tables of one group: `table` int32 [rows, logical blocks], one row per sequence, -1 = no block."""

    def __init__(self, group: CacheGroup, blocks: int, block_size: int) -> None:
        self.group = group
        self.pool = BlockPool(blocks, block_size)
        self.block_size = block_size
        self.table: Int32 = np.full((8, 8), -1, np.int32)

    def grow(self, rows: int, columns: int) -> None:
        """Make the table at least [rows, columns]; doubling keeps the cost per added block constant."""
        height, width = self.table.shape
        if rows > height or columns > width:
            new_height = height if rows <= height else max(rows, 2 * height)
            new_width = width if columns <= width else max(columns, 2 * width)
            table: Int32 = np.full((new_height, new_width), -1, np.int32)
            table[:height, :width] = self.table
            self.table = table

    def slots(self, rows: npt.NDArray[np.intp], positions: Int32) -> Int32:
        """The slot of each position [T], in the sequences whose table rows are `rows` [T]."""
        block, offset = np.divmod(positions, np.int32(self.block_size))
        slots: Int32 = self.table[rows, block] * np.int32(self.block_size) + offset
        return slots

    def block_table(self, rows: npt.NDArray[np.intp], longest: int) -> Int32:
        """The tables [S, B] of the sequences in `rows` [S], wide enough for `longest` tokens."""
        return self.table[rows, : -(-longest // self.block_size)]


@dataclass(slots=True)
class _Lease:
    """What one sequence holds: its table row, and per group the range of logical blocks [first, stop)."""

    row: int
    first: list[int]
    stop: list[int]
    tokens: int = 0
    room: int = 0  # tokens that fit without another block
    release_at: int = _NEVER  # query position from which on the oldest block of some group is out of sight


@dataclass(frozen=True, slots=True)
class GroupUsage:
    """How many blocks a group has and how many of them are held."""

    blocks: int
    used: int

    @property
    def fraction(self) -> float:
        return self.used / self.blocks


@dataclass(frozen=True, slots=True)
class _Change:
    """What an allocation will do in one group: free these blocks, and hold the logical blocks first..stop."""

    freed: list[int]
    first: int
    stop: int


class KVCache:
    """Block tables of all sequences in all cache groups; a sequence grows in every group or in none.

    The memory itself belongs to the executables; a block id indexes it. Every group has its own number of blocks.
    """

    def __init__(self, groups: Iterable[CacheGroup], blocks: Mapping[str, int], block_size: int) -> None:
        groups = tuple(groups)
        names = [group.name for group in groups]
        if not groups or len(set(names)) != len(names) or set(names) != set(blocks):
            raise ModelError(
                f"cache groups {names} must be distinct and match the block counts given, {sorted(blocks)}"
            )
        for group in groups:
            if not group.state.kind.startswith("paged_") or (group.window is not None and group.window < 1):
                raise ModelError(f"cache group {group.name!r} ({group.state}, window {group.window}) cannot be paged")
        self.block_size = block_size
        self.groups = {group.name: GroupCache(group, blocks[group.name], block_size) for group in groups}
        self._groups = list(self.groups.values())
        self._leases: dict[str, _Lease] = {}
        self._rows: list[int] = []

    def allocate(self, sequence_id: str, total_tokens: int) -> bool:
        """Make room for the first `total_tokens` tokens of a sequence; False, with nothing changed, if blocks lack.

        The tokens of earlier calls count as computed: the next query stands right behind them, so blocks that it cannot
        see are freed first.
        """
        lease = self._leases.get(sequence_id)
        if lease is None:
            lease = _Lease(-1, [0] * len(self._groups), [0] * len(self._groups))
        if total_tokens < max(lease.tokens, 1):
            raise XinhengError(
                f"sequence {sequence_id!r} holds {lease.tokens} tokens and cannot shrink to {total_tokens}"
            )
        if total_tokens > lease.room or lease.tokens >= lease.release_at:
            changes = [self._change(i, lease, total_tokens) for i in range(len(self._groups))]
            for group, change, stop in zip(self._groups, changes, lease.stop, strict=True):
                if change.stop - stop > group.pool.free_blocks + group.pool.reclaimable(change.freed):
                    return False
            if lease.row < 0:
                self._leases[sequence_id] = lease
                lease.row = self._rows.pop() if self._rows else len(self._leases) - 1
            for i, change in enumerate(changes):
                self._apply(i, lease, change)
            lease.room = min(lease.stop) * self.block_size
            oldest = zip(self._groups, lease.first, strict=True)
            lease.release_at = min(group.group.first_blind((first + 1) * self.block_size) for group, first in oldest)
        lease.tokens = total_tokens
        return True

    def _change(self, index: int, lease: _Lease, total_tokens: int) -> _Change:
        group, first, stop = self._groups[index], lease.first[index], lease.stop[index]
        visible = max(first, group.group.first_visible(lease.tokens) // self.block_size)
        freed = group.table[lease.row, first:visible].tolist() if visible > first else []
        return _Change(freed, visible, max(stop, -(-total_tokens // self.block_size)))

    def _apply(self, index: int, lease: _Lease, change: _Change) -> None:
        group, first, stop = self._groups[index], lease.first[index], lease.stop[index]
        group.grow(lease.row + 1, change.stop)
        row = group.table[lease.row]
        if change.freed:
            group.pool.free(change.freed)
            row[first : change.first] = -1
        if change.stop > stop:
            row[stop : change.stop] = group.pool.allocate(change.stop - stop)
        lease.first[index], lease.stop[index] = change.first, change.stop

    def release(self, sequence_id: str) -> None:
        """Free every block of a sequence and forget it; nothing happens if it holds none."""
        lease = self._leases.pop(sequence_id, None)
        if lease is None:
            return
        for group, first, stop in zip(self._groups, lease.first, lease.stop, strict=True):
            row = group.table[lease.row]
            group.pool.free(row[first:stop].tolist())
            row[:stop] = -1
        self._rows.append(lease.row)

    def rows(self, sequence_ids: Iterable[str]) -> npt.NDArray[np.intp]:
        """The table row of each sequence, for `GroupCache.slots` and `GroupCache.block_table`."""
        leases = self._leases
        return np.array([leases[sequence_id].row for sequence_id in sequence_ids], np.intp)

    def slots(self, sequence_id: str, start: int, stop: int) -> dict[str, Int32]:
        """Per group the slots int32 [stop - start] of positions start..stop of one sequence, negative where freed."""
        positions = np.arange(start, stop, dtype=np.int32)
        rows = np.full(stop - start, self._leases[sequence_id].row, np.intp)
        return {name: group.slots(rows, positions) for name, group in self.groups.items()}

    def block_table(self, sequence_id: str) -> dict[str, list[int]]:
        """Per group the block of each logical block of one sequence, -1 where it was freed."""
        lease = self._leases[sequence_id]
        stops = zip(self.groups.items(), lease.stop, strict=True)
        return {name: group.table[lease.row, :stop].tolist() for (name, group), stop in stops}

    def blocks_needed(self, tokens: int, chunk: int = 1) -> dict[str, int]:
        """Per group the most blocks one sequence of `tokens` ever holds, computed in steps of at most `chunk`."""
        return {name: g.group.peak_blocks(tokens, chunk, self.block_size) for name, g in self.groups.items()}

    def capacity(self, tokens: int, chunk: int = 1) -> bool:
        """Whether one sequence of `tokens` fits when it has the cache for itself."""
        return all(self.groups[name].pool.blocks >= need for name, need in self.blocks_needed(tokens, chunk).items())

    def longest(self, limit: int, chunk: int = 1) -> int:
        """The longest sequence, up to `limit` tokens, that fits when it has the cache for itself."""
        for group in self._groups:
            if group.group.peak_blocks(limit, chunk, self.block_size) > group.pool.blocks:
                limit = group.pool.blocks * self.block_size
        return limit

    def has_room(self, tokens: int, chunk: int, spare: int, growing: Mapping[str, int]) -> bool:
        """Whether a new sequence of `tokens` fits now, with `spare` blocks of each group left over.

        What the sequences in `growing` still need to reach the tokens given there counts as taken.
        """
        for i, group in enumerate(self._groups):
            need = spare + group.group.peak_blocks(tokens, chunk, self.block_size)
            for sequence_id, total in growing.items():
                lease = self._leases[sequence_id]
                held = lease.stop[i] - lease.first[i]
                need += max(0, group.group.peak_blocks(total, chunk, self.block_size) - held)
            if need > group.pool.free_blocks:
                return False
        return True

    def usage(self) -> dict[str, GroupUsage]:
        """Per group how many blocks there are and how many are held."""
        pools = ((name, group.pool) for name, group in self.groups.items())
        return {name: GroupUsage(pool.blocks, pool.blocks - pool.free_blocks) for name, pool in pools}
