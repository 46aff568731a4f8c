"""What the host lists of a step mean to attention in a captured graph, which is frozen but for what is renewed here.

A graph is padded: all its rows must belong to a sequence, and the block table has a row more, of zeros, for those that
belong to none. Rows that see no key come out as anything, so they are overwritten behind the operator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from xinheng.core.errors import DeviceError

from ..._torch.capture import LARGEST
from ..chips import BLOCK_SIZE
from .batches import Batch

if TYPE_CHECKING:
    from .device import AscendDevice

Tensor = torch.Tensor
Array = NDArray[np.int64]


class SequenceLists:
    """The lists as they are: queries of a sequence one after the other, those of padding in a last sequence.

    `seen` [rows, 1] says which rows see a key. All nodes of a graph that read the same lists share one of these.
    """

    layout = "TND"

    def __init__(self, device: AscendDevice, sequences: int) -> None:
        """Buffers for any number of rows: filling them while a graph is captured would be part of each replay."""
        self._device, self._sequences, self._tokens, self._width = device, sequences, 0, 0
        self._start: Array = np.zeros(1, np.int64)
        self._lengths: Array = np.zeros(0, np.int64)
        self._queries: list[int] = []
        self._keys: list[int] = []
        self._stale = True
        self._tables: tuple[Tensor, Tensor] | None = None
        self.seen = torch.zeros((LARGEST, 1), dtype=torch.bool, device=device.device)

    def renew(self, host: dict[str, NDArray[Any]]) -> None:
        """Take the lists of the next run; once a graph was captured, tell it by the buffers what they mean."""
        start, lengths = host["query_start"].astype(np.int64), host["seq_lens"].astype(np.int64)
        if not self._stale and np.array_equal(start, self._start) and np.array_equal(lengths, self._lengths):
            return
        self._start, self._lengths = start, lengths
        if self._tokens:
            self._fill(Batch.of(start, lengths, self._tokens))
            self._stale = False

    def bind(self, tokens: int, table: Tensor) -> Tensor:
        """The block table that the operator reads in a graph of so many rows, int32; for use inside the capture.

        Raises:
            DeviceError: there are more rows than graphs have.
        """
        if tokens > LARGEST:
            raise DeviceError(f"{self._device.spec}: a graph of {tokens} rows has more than {LARGEST}")
        if self._tables is None or self._tables[0] is not table:
            self._tokens, self._width = tokens, table.shape[1]
            self._understood(Batch.of(self._start, self._lengths, tokens))
            spare = table.new_zeros((1, self._width), dtype=torch.int32)
            self._tables = table, self._arranged(torch.cat((table.to(torch.int32), spare)))
        return self._tables[1]

    def _arranged(self, table: Tensor) -> Tensor:
        """The rows of the operator's sequences from a block table with a row more [sequences + 1, blocks]."""
        return table

    def lists(self) -> tuple[list[int], list[int]]:
        """Queries and keys as the operator wants them."""
        return self._queries, self._keys

    def _fill(self, batch: Batch) -> None:
        self._understood(batch)
        seen = np.zeros((self._tokens, 1), bool)
        seen[batch.rows] = True
        self.seen[: self._tokens].copy_(self._device.placed(seen))

    def _understood(self, batch: Batch) -> None:
        """Running sums of queries up to all rows, and the keys of each sequence."""
        ends, lengths = [int(end) for end in self._start[1:]], [int(length) for length in self._lengths]
        rest = self._tokens - (ends[-1] if ends else 0)
        self._queries = [*ends, self._tokens]
        self._keys = [*lengths, min(rest, self._width * BLOCK_SIZE)]


class RowLists(SequenceLists):
    """Each row as a sequence of its own, which needs no sparse mode: its keys are those up to its own position.

    With a window a row reads only the blocks that its window reaches, and `hidden` [rows, 1, 1, keys] hides the rest of
    the first of them. Which rows of the block table these are is renewed like the lists.
    """

    def __init__(self, device: AscendDevice, sequences: int, window: int | None = None) -> None:
        super().__init__(device, sequences)
        self._window, self.layout = window, "TND" if window is None else "BSND"
        # rows read the table's last row, which is padding, until lists are told
        self._owner = torch.full((LARGEST,), sequences, dtype=torch.int64, device=device.device)
        if window is not None:
            self._blocks = -(-(window + BLOCK_SIZE - 1) // BLOCK_SIZE)
            self._columns = torch.zeros((LARGEST, self._blocks), dtype=torch.int64, device=device.device)
            shape = (LARGEST, 1, 1, self._blocks * BLOCK_SIZE)
            self.hidden = torch.zeros(shape, dtype=torch.bool, device=device.device)

    def _arranged(self, table: Tensor) -> Tensor:
        owner = self._owner[: self._tokens]
        return table[owner] if self._window is None else table[owner[:, None], self._columns[: self._tokens]]

    def _fill(self, batch: Batch) -> None:
        super()._fill(batch)
        tokens, owner = self._tokens, np.full(self._tokens, self._sequences)
        owner[batch.rows] = batch.divided(1).sequences
        self._owner[:tokens].copy_(self._device.placed(owner))
        if self._window is None:
            return
        columns = np.minimum(self._skipped[:, None] + np.arange(self._blocks), self._width - 1)
        self._columns[:tokens].copy_(self._device.placed(columns))
        places, keys = np.arange(self._blocks * BLOCK_SIZE), np.array(self._keys)[:, None]
        hidden = (places < keys - self._window) | (places >= keys)
        self.hidden[:tokens].copy_(self._device.placed(hidden)[:, None, None])

    def _understood(self, batch: Batch) -> None:
        """One query each, and the keys up to it; rows that see none are given one."""
        tokens = self._tokens
        keys = np.ones(tokens, np.int64)
        keys[batch.rows] = batch.divided(1).lengths
        self._skipped = np.zeros(tokens, np.int64)
        if self._window is not None:
            self._skipped = np.maximum(keys - self._window, 0) // BLOCK_SIZE
        self._keys = [int(n) for n in keys - self._skipped * BLOCK_SIZE]
        self._queries = [1] * tokens if self.layout == "BSND" else list(range(1, tokens + 1))
