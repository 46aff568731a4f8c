"""What a device can do: hold memory, prepare weights, run kernels, and compile graphs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import DeviceError, GraphError
from ..ir.dtype import DType
from ..ir.graph import Graph, Node
from ..ir.types import StatePart, StateType
from .arithmetic import Arithmetic
from .collective import Communicator
from .kernel import Kernel, KernelRegistry, Refusal
from .limits import Limits
from .memory_guard import MemoryGuard
from .weight import WeightSource

if TYPE_CHECKING:
    from .executable import Executable, Placement

Buffer = Any
"""Memory of a device, opaque to everyone but the device's own kernels."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a device declares about itself.

    Args:
        dtypes: the dtypes tensors may have.
        dynamic_shapes: sizes may change from run to run without compiling again.
        block_sizes: cache block sizes its attention kernels take, best first; none means that caches are not paged:
            each sequence has one block, as long as the longest sequence may be.
        max_length: the longest sequence its attention kernels take; None for any.
        unified_memory: the host can read a buffer without a copy.
        preferred_dtype: what `dtype = "auto"` computes in.
        arithmetic: how its kernels compute; conformance needs it from level L1 on.
        cache_schemes: schemes of key-value caches that it holds besides float dtypes, such as int8.
        narrow_cache: what `cache_dtype = "auto"` means for activations of float32, where the device would rather read
            less than keep all bits; None: float32.
    """

    dtypes: frozenset[DType]
    dynamic_shapes: bool = True
    block_sizes: tuple[int, ...] = (16, 32, 64, 128)
    unified_memory: bool = False
    preferred_dtype: str = "float32"
    max_length: int | None = None
    arithmetic: Arithmetic | None = None
    narrow_cache: str | None = None
    cache_schemes: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class MemoryStats:
    """Memory of a device in bytes."""

    total: int
    available: int


@dataclass(frozen=True, slots=True)
class StateSpace:
    """How much of a state to allocate; of one per sequence, `blocks` counts its slots."""

    blocks: int
    block_size: int


class Event(Protocol):
    """A point in the device's work that can be waited for."""

    def wait(self) -> None:
        """Block until everything before this point is done; DeviceError if it failed."""


class HostCopy(Protocol):
    """An array on its way from a device to the host."""

    def wait(self) -> NDArray[Any]:
        """Block until the copy is complete and return it; DeviceError if what it copies failed."""
        ...

    @property
    def array(self) -> NDArray[Any]:
        """The copy; DeviceError while it is not complete, never old numbers."""
        ...


@dataclass(frozen=True, slots=True)
class Copied:
    """A `HostCopy` that is complete already."""

    array: NDArray[Any]

    def wait(self) -> NDArray[Any]:
        return self.array


@dataclass(slots=True)
class Done:
    """The event of a device that has finished when a call returns."""

    def wait(self) -> None:
        return


@dataclass(frozen=True, slots=True)
class Numerics:
    """How a device may compute: `mode` is strict or fast, and `overrides` maps ops to how they must be run."""

    mode: str = "strict"
    overrides: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """How a user wants a device opened.

    Args:
        threads: host threads to compute with; None lets the backend decide.
        cache_dir: where compiled kernels may be kept.
        numerics: the arithmetic mode and overrides.
        sharers: processes that compute on this host together; where the backend decides, each takes its part of the
            threads.
        graph: whether small steps may be captured as graphs of the device, where it can do that.
    """

    threads: int | None = None
    cache_dir: Path | None = None
    numerics: Numerics = field(default_factory=Numerics)
    sharers: int = 1
    graph: bool = True


class Device(ABC):
    """An opened device. Buffers belong to it; its kernels take them as they are."""

    spec: str
    name: str
    capabilities: Capabilities
    kernels: KernelRegistry

    @abstractmethod
    def upload(self, array: NDArray[Any], dtype: DType) -> Buffer:
        """Copy an array to the device in `dtype` (its numpy type may be any; one rounding)."""

    @abstractmethod
    def download(self, buffer: Buffer) -> NDArray[Any]:
        """Wait for a buffer and copy it to the host in its own dtype."""

    @abstractmethod
    def prepare(self, source: WeightSource, uses: Sequence[str]) -> Buffer:
        """Bring a weight into the layout its readers like; `uses` names the ops that read it.

        One buffer serves all uses. The packed values are not expanded unless the device has no other way, and then the
        layout is told by `layout_of`.
        """

    @abstractmethod
    def allocate_state(self, type: StateType, space: StateSpace) -> Buffer:
        """Zeroed memory for a state, in the device's own layout; OutOfMemory if there is not enough."""

    def parts(self, type: StateType) -> tuple[StatePart, ...]:
        """The tensors of a state.

        Raises:
            DeviceError: the capabilities do not list what it is held in, or nobody knows such a state.
        """
        known, schemes = self.capabilities.dtypes, self.capabilities.cache_schemes
        try:
            parts = type.parts
        except GraphError:
            parts = ()
        listed = type["scheme"] in schemes if type.quantized else all(part.dtype in known for part in parts)
        if not parts or not listed:
            floats = sorted(kind.name for kind in known if kind.is_float)
            raise DeviceError(f"{self.spec} holds states of {', '.join([*floats, *sorted(schemes)])}, not {type}")
        return parts

    def read_state(self, state: Buffer, type: StateType) -> tuple[NDArray[Any], ...]:
        """A copy of a state as references see it, such as `KVPages(k, v)`, in its own dtype; waits for the device."""
        raise DeviceError(f"{self.spec} does not show what its states hold; implement Device.read_state")

    def write_state(self, state: Buffer, type: StateType, pages: tuple[NDArray[Any], ...]) -> None:
        """Overwrite a state with what references would see, of the shapes that `read_state` returns."""
        raise DeviceError(f"{self.spec} does not let its states be set; implement Device.write_state")

    def guard_memory(self) -> MemoryGuard | None:
        """A guard to enter while kernels run in a test; None where memory cannot be watched, which reports say."""
        return None

    @abstractmethod
    def shape(self, buffer: Buffer) -> tuple[int, ...]:
        """The sizes of a tensor buffer."""

    @abstractmethod
    def memory(self) -> MemoryStats:
        """Total and available memory."""

    def out_of_memory(self, error: BaseException) -> bool:
        """Whether an error of the device's software means that its memory is full."""
        return isinstance(error, MemoryError)

    def shortage(self, error: BaseException) -> tuple[int | None, int | None]:
        """Bytes that work which ran out of memory asked for, and bytes that are free; None for what nobody tells."""
        try:
            return None, self.memory().available
        except DeviceError:
            return None, None

    def owns(self, buffer: Buffer) -> bool:
        """Whether a numpy array is a buffer of this device (for devices whose buffers are arrays)."""
        return False

    def synchronize(self) -> None:  # noqa: B027 (nothing to wait for is a valid answer)
        """Wait until all work given to the device is done."""

    def event(self) -> Event:
        """A point after all work given so far."""
        return Done()

    def layout_of(self, buffer: Buffer) -> tuple[str, int]:
        """One phrase on how a prepared weight lies in memory, and its bytes there, for the receipt."""
        return "as stored", 0

    def limits(self, working_set: int) -> Limits | None:
        """Measure what the device gives at most when `working_set` bytes are read again and again.

        None from a device that cannot measure itself; shares of limits are left out then.
        """
        return None

    def notes(self) -> tuple[str, ...]:
        """Sentences that every receipt of this device should carry, such as why its faster kernels are missing."""
        return ()

    def empty(self, shape: tuple[int, ...], dtype: DType) -> Buffer:
        """An uninitialised tensor buffer."""
        return self.upload(np.zeros(shape, dtype.numpy), dtype)

    def host_list(self, buffer: Buffer) -> NDArray[Any]:
        """The values of an input that was given as a buffer, for a kernel that reads it on the host.

        Fetching them means that the run waits for the device; DeviceError where that must not happen behind the back
        of the caller, who then has to give them by `host` of `Bound.run`.
        """
        return self.download(buffer)

    def copy_async(self, buffer: Buffer) -> HostCopy:
        """Start to copy a buffer to the host behind all work given so far; unlike `download` it does not wait."""
        return Copied(self.download(buffer))

    def crop(self, buffer: Buffer, shape: tuple[int, ...], dtype: DType) -> Buffer:
        """A tensor of the first `shape` elements of each axis; through the host unless the device can do better."""
        return self.upload(self.download(buffer)[tuple(map(slice, shape))], dtype)

    def select(self, node: Node, only: str | None = None) -> tuple[Kernel | None, list[Refusal]]:
        """The kernel that runs a node here, and why better ones were refused; `only` admits one name.

        No kernel runs a node with a tensor on the device of a dtype that `capabilities` does not list.
        """
        return self.kernels.select(node, only, self.capabilities.dtypes)

    def supports(self, node: Node) -> bool:
        """Whether this device has a kernel for this very node."""
        return self.select(node)[0] is not None

    def compile(self, graph: Graph, placement: Placement, bounds: Mapping[str, int]) -> Executable:
        """Make a graph ready to run; `placement` holds the kernel chosen for each node.

        The default resolves kernels once and runs them one after another. Devices that take whole graphs override it.
        """
        from .executable import KernelExecutable

        return KernelExecutable(graph, self, placement, bounds)

    def close(self) -> None:  # noqa: B027 (nothing to release is a valid answer)
        """Release everything; the device cannot be used afterwards."""

    def join(self, group: str, rank: int, size: int, address: str) -> None:
        """Become a rank of a group through the device's own library; returns when all `size` ranks have joined.

        `group` is what collectives of graphs call it. All ranks are given one `address`, such as tcp://host:port.
        """
        raise DeviceError(f"device {self.spec!r} has no collective library; run it with one rank")

    def connect(self, group: str, communicator: Communicator) -> None:
        """Become the rank of a group that `communicator` is the end of."""
        self.__dict__.setdefault("_groups", {})[group] = communicator

    def communicator(self, group: str) -> Communicator:
        """This device's end of a group; DeviceError if it belongs to none of that name."""
        groups: dict[str, Communicator] = self.__dict__.get("_groups", {})
        if group not in groups:
            raise DeviceError(
                f"device {self.spec!r} belongs to no group {group!r}; join or connect it before it runs a collective"
            )
        return groups[group]
