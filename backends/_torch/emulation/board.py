"""One emulated device: its memory, and the graph that is being captured on it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.multiprocessing import reductions

from .chip import EmulatedChip

if TYPE_CHECKING:
    from .graph import EmulatedGraph

WEAK: Any = reductions.StorageWeakRef  # torch does not type it
SWEEP = 4096
"""So many storages are noted before those that are gone are looked for."""


@dataclass
class Board:
    """A device of some index. `peak` is the most memory that was in use since it was last reset."""

    device: torch.device
    chip: EmulatedChip
    graph: EmulatedGraph | None = None
    peak: int = 0
    _held: dict[int, tuple[Any, int]] = field(default_factory=dict)
    _used: int = 0

    def keep(self, host: torch.Tensor) -> None:
        """Count the memory of a new tensor.

        Raises:
            torch.OutOfMemoryError: the device has not that much.
        """
        storage = host.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._held and not self._held[key][0].expired():
            return
        if self._used + size > self.chip.memory or len(self._held) > SWEEP:
            self._sweep()
        if self._used + size > self.chip.memory:
            raise torch.OutOfMemoryError(
                f"{self.device} out of memory. Tried to allocate {size / 2**20:.2f} MiB ({self.device}; "
                f"{self.chip.memory / 2**20:.2f} MiB total capacity; {self._used / 2**20:.2f} MiB already allocated)"
            )
        self._held[key] = (WEAK(storage), size)
        self._used += size
        self.peak = max(self.peak, self._used)

    def used(self) -> int:
        """Bytes of the tensors that are alive."""
        self._sweep()
        return self._used

    def reading(self, what: str) -> None:
        """RuntimeError if the host may not wait for the device, because a graph is being captured."""
        if self.graph is not None:
            raise RuntimeError(f"operation not permitted when stream is capturing: {what} waits for {self.device}")

    def require(self, kind: torch.dtype, what: str) -> None:
        """RuntimeError if the chip has no such element type."""
        if kind in self.chip.lacking:
            raise RuntimeError(f"{what}: {self.chip.name} does not support {kind}")

    def _sweep(self) -> None:
        gone = [key for key, (reference, _) in self._held.items() if reference.expired()]
        for key in gone:
            self._used -= self._held.pop(key)[1]


BOARDS: dict[int, Board] = {}
"""The emulated devices of this process by index."""


def board_of(device: torch.device | None) -> Board:
    """The board of a device; of the current one where no index is given."""
    index = CURRENT[0] if device is None or device.index is None else device.index
    if index not in BOARDS:
        raise RuntimeError(f"invalid device ordinal {index}: there are {len(BOARDS)}")
    return BOARDS[index]


CURRENT = [0]
"""The index of the current device."""


def index_of(device: Any) -> int:
    """The index that a user means by a number, a string, a `torch.device` or None."""
    if device is None:
        return CURRENT[0]
    if isinstance(device, int):
        return device
    found = torch.device(device).index
    return CURRENT[0] if found is None else found
