"""Guarded memory of a torch device: tensors that kernels make lie inside larger ones, between bands of a canary.

Kernels in C++ get the addresses of tensors that were made by torch in Python. So what Python asks torch to make, and
what is uploaded, is moved into guarded memory; tensors that torch makes inside its own operations are its own affair.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from xinheng.core.hal import BAND, Region, RegionGuard, canary

from .handles import NAMES

if TYPE_CHECKING:
    from .device import TorchDevice

_ATEN = torch.ops.aten
_EMPTY = {
    _ATEN.empty.memory_format,
    _ATEN.empty_like.default,
    _ATEN.empty_strided.default,
    _ATEN.new_empty.default,
    _ATEN.new_empty_strided.default,
}
"""What makes tensors without values."""
_FILLED = {
    _ATEN.zeros.default,
    _ATEN.zeros_like.default,
    _ATEN.ones.default,
    _ATEN.ones_like.default,
    _ATEN.full.default,
    _ATEN.full_like.default,
    _ATEN.new_zeros.default,
    _ATEN.new_ones.default,
    _ATEN.new_full.default,
    _ATEN.clone.default,
    _ATEN._to_copy.default,
}
"""What makes tensors of values that operations of a kernel then change, or whose addresses a kernel in C++ takes."""


class TorchRegion(Region):
    """A tensor in the middle of a larger one; strides are kept."""

    def __init__(self, like: torch.Tensor, filled: bool) -> None:
        kind = NAMES[like.dtype]
        self.what = f"{kind} {list(like.shape)}"
        pattern = torch.frombuffer(bytearray(canary(kind)), dtype=torch.uint8).to(like.device)
        size = like.element_size()
        inside = 1 + sum((n - 1) * step for n, step in zip(like.shape, like.stride(), strict=True))
        inside = inside if like.numel() else 0
        self._bytes = pattern.repeat(inside + 2 * BAND // size)
        self._clean = pattern.repeat(BAND // size)
        whole = self._bytes.view(like.dtype)
        self.tensor = whole.as_strided(like.shape, like.stride(), BAND // size)
        if filled:
            self.tensor.copy_(like)

    def intact(self) -> tuple[bool, bool]:
        return self._bytes[:BAND].equal(self._clean), self._bytes[-BAND:].equal(self._clean)


class TorchGuard(RegionGuard[Region]):
    """Moves new tensors of a device into regions while it is entered."""

    def __init__(self, device: TorchDevice) -> None:
        super().__init__(device)
        self._mode = _Mode(self)

    def moved(self, tensor: torch.Tensor, filled: bool = True) -> torch.Tensor:
        """A tensor in guarded memory: with the numbers of the given one, or with the canary."""
        if tensor.dtype not in NAMES or tensor.device.type != self._device.device.type:
            return tensor
        with _disable_current_modes():
            region = TorchRegion(tensor, filled)
            self.kept(region)
            return region.tensor

    def __enter__(self) -> Self:
        super().__enter__()
        self._mode.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._mode.__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        super().__exit__(kind, error, trace)


class _Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operation of torch that Python calls."""

    def __init__(self, guard: TorchGuard) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._guard = guard

    def __torch_dispatch__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        return self._guard.moved(made, func in _FILLED) if func in _EMPTY or func in _FILLED else made
