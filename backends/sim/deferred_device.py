"""A simulated device that computes nothing before somebody waits for it: the slowest worker there can be.

What reads too early on a fast machine by luck, or after the host has reused its arrays, fails here every time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xinheng.core.errors import DeviceError
from xinheng.core.hal import Buffer, Event, HostCopy

from .device import SimDevice
from .handles import SimTensor
from .kernels import Launch


class DeferredDevice(SimDevice):
    """Queues every kernel call in order; events, downloads and questions for a shape let the queue run up to them."""

    def __init__(self, spec: str, name: str, **limits: Any) -> None:
        super().__init__(spec, name, **limits)
        self._queue: deque[Launch] = deque()
        self._given = self._done = 0
        self._failures: list[tuple[range, DeviceError]] = []

    def launch(self, launch: Launch) -> None:
        self._queue.append(launch)
        self._given += 1

    @property
    def given(self) -> int:
        """How many calls have been queued so far."""
        return self._given

    def run_until(self, position: int) -> None:
        """Compute the calls queued up to a position. One that fails takes all that are queued behind it with it."""
        while self._done < position and self._queue:
            launch = self._queue.popleft()
            self._done += 1
            try:
                super().launch(launch)
            except Exception as error:
                failed = DeviceError(f"{launch.kernel.node.op.name} failed: {error}")
                failed.__cause__ = error
                self._give_up([launch, *self._queue], failed)

    def _give_up(self, launches: list[Launch], error: DeviceError) -> None:
        for launch in launches:
            for tensor in launch.made:
                tensor.error = error
        self._queue.clear()
        self._failures.append((range(self._done, self._given + 1), error))
        self._done = self._given

    def raise_at(self, position: int) -> None:
        """DeviceError if the call at a position failed, or was given up."""
        for positions, error in self._failures:
            if position in positions:
                raise DeviceError(f"{self.spec}: {error}") from error

    def event(self) -> Event:
        return DeferredEvent(self, self._given)

    def synchronize(self) -> None:
        self.event().wait()

    def download(self, buffer: Buffer) -> NDArray[Any]:
        if self.mine(buffer).pending:
            self.run_until(self._given)
        return super().download(buffer)

    def copy_async(self, buffer: Buffer) -> HostCopy:
        return DeferredCopy(self.mine(buffer), DeferredEvent(self, self._given))

    def shape(self, buffer: Buffer) -> tuple[int, ...]:
        if self.mine(buffer).pending:
            self.run_until(self._given)
        return super().shape(buffer)

    def close(self) -> None:
        self._queue.clear()


@dataclass(frozen=True, slots=True)
class DeferredEvent:
    """The point behind the first so many calls."""

    device: DeferredDevice
    position: int

    def wait(self) -> None:
        self.device.run_until(self.position)
        self.device.raise_at(self.position)


@dataclass(frozen=True, slots=True)
class DeferredCopy:
    """A copy that is complete when what it copies is."""

    tensor: SimTensor
    event: DeferredEvent

    def wait(self) -> NDArray[Any]:
        self.event.wait()
        return self.array

    @property
    def array(self) -> NDArray[Any]:
        return np.array(self.tensor.array)
