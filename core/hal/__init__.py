"""The hardware abstraction: what a vendor's plugin implements."""

from __future__ import annotations

from .arithmetic import ANY_ORDER, HF32, TF32, Arithmetic
from .backend import API_VERSION, Backend, DeviceInfo, Finding
from .bucketed import BucketedExecutable
from .collective import Communicator, LoopbackCommunicator
from .conversion import converted
from .device import (
    Buffer,
    Capabilities,
    Copied,
    Device,
    DeviceOptions,
    Done,
    Event,
    HostCopy,
    MemoryStats,
    Numerics,
    StateSpace,
)
from .executable import Bound, Choice, Executable, KernelExecutable, Placement
from .graph_executable import GraphExecutable
from .kernel import Kernel, KernelRegistry, Refusal
from .limits import Limits
from .memory_guard import BAND, MemoryGuard, Region, RegionGuard, canary
from .partitioned import PartitionedExecutable
from .profile import Profile, Span, chrome_trace
from .reference import ReferenceDevice
from .replaying import ReplayingExecutable
from .spec import DeviceSpec
from .weight import WeightPart, WeightSource, between

__all__ = [
    "ANY_ORDER",
    "API_VERSION",
    "BAND",
    "HF32",
    "TF32",
    "Arithmetic",
    "Backend",
    "Bound",
    "BucketedExecutable",
    "Buffer",
    "Capabilities",
    "Choice",
    "Communicator",
    "Copied",
    "Device",
    "DeviceInfo",
    "DeviceOptions",
    "DeviceSpec",
    "Done",
    "Event",
    "Executable",
    "Finding",
    "GraphExecutable",
    "HostCopy",
    "Kernel",
    "KernelExecutable",
    "KernelRegistry",
    "Limits",
    "LoopbackCommunicator",
    "MemoryGuard",
    "MemoryStats",
    "Numerics",
    "PartitionedExecutable",
    "Placement",
    "Profile",
    "ReferenceDevice",
    "Refusal",
    "Region",
    "RegionGuard",
    "ReplayingExecutable",
    "Span",
    "StateSpace",
    "WeightPart",
    "WeightSource",
    "between",
    "canary",
    "chrome_trace",
    "converted",
]
