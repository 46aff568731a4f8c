"""The place of one process among those that run a model together."""

from __future__ import annotations

from dataclasses import dataclass, replace

from xinheng.core.errors import SettingsError
from xinheng.core.hal import Device, DeviceSpec

from .layers import Shard
from .layers.shard import GROUP


@dataclass(frozen=True, slots=True)
class Seat:
    """Rank `rank` of `ranks`, which meet at `address`."""

    rank: int
    ranks: int
    address: str

    @property
    def shard(self) -> Shard:
        """The part of the model that this rank computes."""
        return Shard(self.rank, self.ranks)

    def device(self, setting: str) -> str:
        """The device of this rank: the ordinal at its place where several are named, else the one that is named.

        Raises:
            SettingsError: there are several ordinals, but not one for each rank.
        """
        spec = DeviceSpec.parse(setting)
        if len(spec.ordinals) < 2:
            return setting
        if len(spec.ordinals) != self.ranks:
            raise SettingsError(
                f"runtime.device {setting} names {len(spec.ordinals)} devices, but engine.tensor_parallel_size is "
                f"{self.ranks}; name one device for each rank"
            )
        return str(replace(spec, ordinals=(spec.ordinals[self.rank],)))

    def join(self, device: Device) -> None:
        """Meet the other ranks; DeviceError if the device has no collective library, or not all of them come."""
        device.join(GROUP, self.rank, self.ranks, self.address)
