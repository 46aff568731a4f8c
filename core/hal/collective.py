"""How the ranks of a group reach each other: what a device's collective kernels are given."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import DeviceError


class Communicator(ABC):
    """One rank's end of a group. All ranks make the same exchanges in the same order.

    Collectives are exchanges followed by arithmetic in the order of ranks, so that every rank gets the same bits. A
    vendor whose library reduces on the way adds its own methods and registers kernels that call them.
    """

    def __init__(self, rank: int, size: int) -> None:
        if not 0 <= rank < size:
            raise DeviceError(f"rank {rank} is not one of 0 to {size - 1}")
        self._rank, self._size = rank, size

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self._size

    @abstractmethod
    def exchange(self, value: Any, what: str) -> list[Any]:
        """The values of all ranks by rank, each of the same dtype and shape; they are not changed afterwards.

        Args:
            value: a tensor buffer.
            what: the name of the collective, by which ranks that are out of step are found out.

        Raises:
            DeviceError: another rank stopped, or makes another exchange.
        """

    def close(self) -> None:  # noqa: B027 (nothing to release is a valid answer)
        """Leave the group; other ranks that wait for this one get an error."""


def described(value: Any, what: str) -> str:
    """What an exchange carries, in words that are equal on ranks that are in step."""
    return f"{what} of {getattr(value, 'dtype', type(value).__name__)}{list(value.shape)}"


def require_same(words: Sequence[str], rank: int) -> None:
    """Demand that all ranks make the same exchange; DeviceError names the first that does not."""
    for other, theirs in enumerate(words):
        if theirs != words[rank]:
            raise DeviceError(f"ranks are out of step: rank {rank} makes {words[rank]}, rank {other} {theirs}")


class _Board:
    """What the ranks of one process share."""

    def __init__(self, size: int, timeout: float) -> None:
        self.values: list[Any] = [None] * size
        self.words = [""] * size
        self.barrier = threading.Barrier(size)
        self.timeout = timeout


class LoopbackCommunicator(Communicator):
    """Ranks that are threads of one process and hand each other their values."""

    def __init__(self, rank: int, size: int, board: _Board) -> None:
        super().__init__(rank, size)
        self._board = board

    @classmethod
    def group(cls, size: int, timeout: float = 60.0) -> list[LoopbackCommunicator]:
        """The ends of a new group; a rank waits `timeout` seconds for the others."""
        board = _Board(size, timeout)
        return [cls(rank, size, board) for rank in range(size)]

    def exchange(self, value: Any, what: str) -> list[Any]:
        board = self._board
        # a copy, since the owner may go on and reuse its memory while others still read
        board.values[self.rank] = value.clone() if hasattr(value, "clone") else _copied(value)
        board.words[self.rank] = described(value, what)
        self._wait(what)
        words, values = list(board.words), list(board.values)
        self._wait(what)
        require_same(words, self.rank)
        return values

    def _wait(self, what: str) -> None:
        try:
            self._board.barrier.wait(self._board.timeout)
        except threading.BrokenBarrierError:
            raise DeviceError(
                f"rank {self.rank} of {self.size} waited for the others to make {what}, but one of them stopped or did "
                f"not come within {self._board.timeout:g} s"
            ) from None

    def close(self) -> None:
        self._board.barrier.abort()


def _copied(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else value
