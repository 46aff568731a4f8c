"""The module `torch.<name>` of an emulated device, and its registration with torch."""

from __future__ import annotations

import contextlib
import time
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from xinheng.core.errors import DeviceError

from .board import BOARDS, CURRENT, Board, board_of, index_of
from .chip import EmulatedChip
from .graph import EmulatedGraph, graph
from .tensor import EmulatedTensor, placed, run

LIBRARY: Any = torch.library.Library  # torch does not type it
_installed: dict[str, types.ModuleType] = {}
_kept: list[Any] = []  # what torch forgets when nobody holds it


class EmulatedStream:
    """A queue; what is given to it is done at once."""

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        self.device = BOARDS[index_of(device)].device

    def synchronize(self) -> None:
        board_of(self.device).reading("synchronize")

    def wait_stream(self, stream: Any) -> None: ...

    def wait_event(self, event: Any) -> None: ...

    def record_event(self, event: Any = None) -> Any:
        made = event or EmulatedEvent()
        made.record(self)
        return made

    def query(self) -> bool:
        return True


class EmulatedEvent:
    """A point in a queue, with the time at which it was reached."""

    def __init__(self, enable_timing: bool = False, **_: Any) -> None:
        self._time: float | None = None

    def record(self, stream: Any = None) -> None:
        self._time = time.perf_counter()

    def elapsed_time(self, other: EmulatedEvent) -> float:
        """Milliseconds until another event."""
        if self._time is None or other._time is None:
            raise RuntimeError("both events have to be recorded first")
        return (other._time - self._time) * 1e3

    def synchronize(self) -> None:
        board_of(None).reading("synchronize")

    def wait(self, stream: Any = None) -> None: ...

    def query(self) -> bool:
        return True


class EmulatedRuntime(types.ModuleType):
    """What a program finds as `torch.cuda` for CUDA, for an emulated device."""

    Stream, Event, graph = EmulatedStream, EmulatedEvent, staticmethod(graph)
    emulated = True
    """Modules of vendors have no such attribute."""

    def device_count(self) -> int:
        return len(BOARDS)

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def init(self) -> None: ...

    def current_device(self) -> int:
        return CURRENT[0]

    def set_device(self, device: Any) -> None:
        CURRENT[0] = board_of(torch.device(self.__name__.rpartition(".")[2], index_of(device))).device.index

    def synchronize(self, device: Any = None) -> None:
        self._board(device).reading("synchronize")

    def empty_cache(self) -> None: ...

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        """Free and total bytes."""
        board = self._board(device)
        return board.chip.memory - board.used(), board.chip.memory

    def memory_allocated(self, device: Any = None) -> int:
        return self._board(device).used()

    memory_reserved = memory_allocated

    def max_memory_allocated(self, device: Any = None) -> int:
        board = self._board(device)
        return max(board.peak, board.used())

    def reset_peak_memory_stats(self, device: Any = None) -> None:
        board = self._board(device)
        board.peak = board.used()

    def get_device_name(self, device: Any = None) -> str:
        return self._board(device).chip.name

    def get_device_properties(self, device: Any = None) -> types.SimpleNamespace:
        chip = self._board(device).chip
        return types.SimpleNamespace(name=chip.name, total_memory=chip.memory, major=chip.major, minor=chip.minor)

    def get_device_capability(self, device: Any = None) -> tuple[int, int]:
        chip = self._board(device).chip
        return chip.major, chip.minor

    def is_bf16_supported(self) -> bool:
        return torch.bfloat16 not in self._board(None).chip.lacking

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [kind for kind in (torch.float16, torch.bfloat16) if kind not in self._board(None).chip.lacking]

    def current_stream(self, device: Any = None) -> EmulatedStream:
        return EmulatedStream(device)

    default_stream = current_stream

    @contextlib.contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        yield

    @contextlib.contextmanager
    def device(self, device: Any) -> Iterator[None]:
        before = CURRENT[0]
        self.set_device(device)
        try:
            yield
        finally:
            CURRENT[0] = before

    def is_current_stream_capturing(self) -> bool:
        return self._board(None).graph is not None

    def graph_pool_handle(self) -> tuple[int, int]:
        return (0, 1)

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        torch.set_rng_state(state)

    def _is_in_bad_fork(self) -> bool:
        return False

    def _board(self, device: Any) -> Board:
        return board_of(torch.device(self.__name__.rpartition(".")[2], index_of(device)))


def install(name: str, chip: EmulatedChip, graph_class: str = "Graph") -> torch.device:
    """A device of torch called `name` that emulates a chip: the one that does already, or a new one.

    `graph_class` is what the framework of the vendor calls its class of captured graphs.

    Raises:
        DeviceError: this process emulates devices of another name, or has the real ones.
    """
    if name not in _installed:
        taken = torch._C._get_privateuse1_backend_name()
        if _installed or taken != "privateuseone":
            raise DeviceError(
                f"devices called {name!r} cannot be emulated in a process that has devices called {taken!r}, since "
                'torch has room for one such name; set engine.runner = "subprocess", or use another process'
            )
        _installed[name] = _registered(name)
        setattr(_installed[name], graph_class, EmulatedGraph)
    for board in BOARDS.values():
        if board.chip == chip:
            return board.device
    device = torch.device(name, len(BOARDS))
    BOARDS[device.index] = Board(device, chip)
    return device


def _registered(name: str) -> EmulatedRuntime:
    runtime = EmulatedRuntime(f"torch.{name}")
    _setup_privateuseone_for_python_backend(name, backend_module=runtime)
    library = LIBRARY("aten", "IMPL")

    def empty(size: Any, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None,
              memory_format: Any = None) -> Any:  # fmt: skip
        made = torch.empty(size, dtype=dtype, memory_format=memory_format or torch.contiguous_format)
        return placed(made, board_of(device), "empty")

    def empty_strided(size: Any, stride: Any, dtype: Any = None, layout: Any = None, device: Any = None,
                      pin_memory: Any = None) -> Any:  # fmt: skip
        return placed(torch.empty_strided(size, stride, dtype=dtype), board_of(device), "empty_strided")

    library.impl("empty.memory_format", empty, "PrivateUse1")
    library.impl("empty_strided", empty_strided, "PrivateUse1")
    library.impl("_copy_from", _copy_from, "PrivateUse1")
    for op, overload in _factories():
        library.impl(op, _factory(overload), "PrivateUse1")
    cast = LIBRARY("_", "IMPL", "AutocastPrivateUse1")
    cast.fallback(torch.library.fallthrough_kernel)  # autocast does not cast on these devices
    _kept.extend((library, cast))
    return runtime


def _copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    held = source.host if isinstance(source, EmulatedTensor) else source
    if isinstance(target, EmulatedTensor):
        target.host.copy_(held)
        return target
    return target.copy_(held)


def _factories() -> Iterator[tuple[str, Any]]:
    """The ops of torch that make a tensor on a device they are told, and take none."""
    for full in torch._C._dispatch_get_all_op_names():
        name, _, overload = full.removeprefix("aten::").partition(".")
        if not full.startswith("aten::") or name in ("empty", "empty_strided"):
            continue
        packet = getattr(torch.ops.aten, name, None)
        op = getattr(packet, overload or "default", None)
        keys = ("CPU", "CompositeExplicitAutograd")
        if op is None or not any(torch._C._dispatch_has_kernel_for_dispatch_key(full, key) for key in keys):
            continue
        arguments = op._schema.arguments
        if any(a.name == "device" for a in arguments) and not any("Tensor" in str(a.type) for a in arguments):
            yield full.removeprefix("aten::"), op


def _factory(op: Any) -> Any:
    return lambda *args, **kwargs: run(op, args, kwargs)
