"""The hardware abstraction: what a vendor's plugin implements."""

from __future__ import annotations

from .backend import API_VERSION, Backend, DeviceInfo, Finding
from .device import Buffer, Capabilities, Device, DeviceOptions, Done, Event, MemoryStats, Numerics, StateSpace
from .executable import Bound, Choice, Executable, KernelExecutable, Placement
from .kernel import Kernel, KernelRegistry, Refusal
from .profile import Profile
from .reference import ReferenceDevice
from .spec import DeviceSpec
from .weight import WeightPart, WeightSource

__all__ = [
    "API_VERSION",
    "Backend",
    "Bound",
    "Buffer",
    "Capabilities",
    "Choice",
    "Device",
    "DeviceInfo",
    "DeviceOptions",
    "DeviceSpec",
    "Done",
    "Event",
    "Executable",
    "Finding",
    "Kernel",
    "KernelExecutable",
    "KernelRegistry",
    "MemoryStats",
    "Numerics",
    "Placement",
    "Profile",
    "ReferenceDevice",
    "Refusal",
    "StateSpace",
    "WeightPart",
    "WeightSource",
]
