"""Groups of processes that reach each other through Gloo, torch's transport over host memory."""

from __future__ import annotations

import zlib
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import torch
from torch import distributed
from torch._C._distributed_c10d import FileStore, TCPStore

from xinheng.core.errors import DeviceError
from xinheng.core.hal import Communicator
from xinheng.core.hal.collective import described

TIMEOUT = 300.0
"""Seconds that a rank waits for the others."""


class GlooCommunicator(Communicator):
    """One process of a group; tensors of any dtype and device travel as bytes through host memory.

    Every exchange is preceded by one of a checksum of its name, dtype and shape, since Gloo itself would wait forever,
    or read beyond a buffer, when ranks are out of step.
    """

    def __init__(self, rank: int, size: int, address: str, timeout: float = TIMEOUT) -> None:
        """Meet the other ranks at `address`: tcp://host:port, where rank 0 listens, or file:///path of a new file.

        Raises:
            DeviceError: the address is of another form, or not all ranks came.
        """
        super().__init__(rank, size)
        limit = timedelta(seconds=timeout)
        try:
            self._group: Any = distributed.ProcessGroupGloo(store(address, rank, size, limit), rank, size, limit)
        except (RuntimeError, ValueError) as error:
            raise DeviceError(f"rank {rank} of {size} did not meet the others at {address!r}: {error}") from error

    def exchange(self, value: torch.Tensor, what: str) -> list[torch.Tensor]:
        words = described(value, what)
        sums = self._gather(torch.tensor([zlib.crc32(words.encode())]), words)
        other = next((r for r, theirs in enumerate(sums) if int(theirs) != int(sums[self.rank])), None)
        if other is not None:
            raise DeviceError(f"ranks are out of step: rank {self.rank} makes {words}, rank {other} something else")
        if value.numel() == 0:
            return [value] * self.size
        flat = value.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
        parts = self._gather(flat, words)
        return [part.view(value.dtype).reshape(value.shape).to(value.device) for part in parts]

    def _gather(self, mine: torch.Tensor, words: str) -> list[torch.Tensor]:
        parts = [torch.empty_like(mine) for _ in range(self.size)]
        try:
            self._group.allgather([parts], [mine]).wait()
        except RuntimeError as error:
            raise DeviceError(f"rank {self.rank} of {self.size}: {words} failed: {error}") from error
        return parts

    def close(self) -> None:
        self._group = None


def store(address: str, rank: int, size: int, limit: timedelta) -> Any:
    """Where ranks meet; DeviceError if the address has another form than `GlooCommunicator` says."""
    place = urlsplit(address)
    if place.scheme == "tcp" and place.hostname and place.port:
        return TCPStore(place.hostname, place.port, size, rank == 0, limit)
    if place.scheme == "file" and place.path:
        return FileStore(place.path, size)
    raise DeviceError(f"address {address!r} is neither tcp://host:port nor file:///path")
