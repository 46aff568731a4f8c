"""Groups of processes that reach each other through a vendor's collective library, as `torch.distributed` wraps it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
from torch import distributed

from xinheng.core.errors import DeviceError
from xinheng.core.hal import Communicator
from xinheng.core.hal.collective import described

from .collective import TIMEOUT, store


class DistributedCommunicator(Communicator):
    """One process of a group of `torch.distributed`; tensors stay on the device."""

    def __init__(self, backend: str, rank: int, size: int, address: str, timeout: float = TIMEOUT) -> None:
        """Meet the other ranks at `address`: tcp://host:port, where rank 0 listens, or file:///path of a new file.

        `backend` is what torch calls the library: nccl, hccl, cncl and so on.

        Raises:
            DeviceError: torch has no such library, the address is of another form, or not all ranks came.
        """
        super().__init__(rank, size)
        limit = timedelta(seconds=timeout)
        try:
            if not distributed.is_initialized():
                distributed.init_process_group(
                    backend, store=store(address, rank, size, limit), rank=rank, world_size=size, timeout=limit
                )
            self._group: Any = distributed.new_group(list(range(size)), timeout=limit, backend=backend)
        except (RuntimeError, ValueError) as error:
            raise DeviceError(
                f"rank {rank} of {size} did not meet the others at {address!r} by {backend}: {error}"
            ) from error

    def exchange(self, value: torch.Tensor, what: str) -> list[torch.Tensor]:
        if value.numel() == 0:
            return [value] * self.size
        parts = [torch.empty_like(value) for _ in range(self.size)]
        try:
            distributed.all_gather(parts, value.contiguous(), group=self._group)
        except RuntimeError as error:
            words = described(value, what)
            raise DeviceError(f"rank {self.rank} of {self.size}: {words} failed: {error}") from error
        return parts

    def close(self) -> None:
        if self._group is not None:
            distributed.destroy_process_group(self._group)
            self._group = None
