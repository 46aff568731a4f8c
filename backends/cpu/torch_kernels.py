"""Torch kernels on the arrays of the CPU: they see the same memory as tensors. Importing this imports torch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from xinheng.core.hal import Communicator, Device, Kernel, KernelRegistry
from xinheng.core.ir.dtype import from_numpy
from xinheng.core.ir.graph import Node
from xinheng.core.ops import OPSET, KVPages, LatentPages, QuantizedKVPages, SequenceSlots

from .._torch import (
    TORCH_KERNELS,
    TorchPagedKV,
    TorchPagedLatent,
    TorchQuantizedKV,
    TorchSequenceState,
    TorchWeight,
    TorchWeightPart,
)
from .._torch.collective import GlooCommunicator
from .._torch.handles import DTYPES, array_of
from .._torch.kernels.by_token import register_by_token
from .._torch.kernels.collective import register_collectives
from .._torch.kernels.movement import register_makers
from .arrays import Array, bits_type
from .handles import HostWeight
from .kernels.unsigned import register_unsigned

if TYPE_CHECKING:
    from .device import CPUDevice

_STATES = {
    KVPages: TorchPagedKV,
    QuantizedKVPages: TorchQuantizedKV,
    LatentPages: TorchPagedLatent,
    SequenceSlots: TorchSequenceState,
}


def torch_registry(device: Any) -> KernelRegistry:
    """The torch kernels for host memory; they take tensors, and collectives those of the groups of `device`."""
    registry = KernelRegistry(TORCH_KERNELS)
    register_makers(registry, torch.device("cpu"))
    register_collectives(registry, device)
    register_unsigned(registry)
    register_by_token(registry)
    return registry


class TorchKernels(KernelRegistry):
    """The torch kernels for a device with arrays."""

    def __init__(self, device: CPUDevice) -> None:
        super().__init__()
        torch.set_num_threads(device.threads)
        self._device, self._inner = device, torch_registry(_Groups(device))
        self._made: dict[str, list[Kernel]] = {}

    def candidates(self, op: str) -> list[Kernel]:
        if op not in self._made:
            self._made[op] = [
                replace(kernel, function=_Bridge(kernel, self._device)) for kernel in self._inner.candidates(op)
            ]
        return self._made[op]

    def ops(self) -> list[str]:
        return self._inner.ops()


class _Groups:
    """The groups of a device, whose ranks exchange arrays, as torch kernels want them."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def communicator(self, group: str) -> _Rank:
        """The end of a group for tensors."""
        return _Rank(self._device.communicator(group))


class _Rank:
    def __init__(self, inner: Communicator) -> None:
        self._inner, self.rank = inner, inner.rank

    def exchange(self, value: torch.Tensor, what: str) -> list[torch.Tensor]:
        return [_tensor(other) for other in self._inner.exchange(array_of(value), what)]


class GlooOfArrays(GlooCommunicator):
    """Processes that reach each other through Gloo and exchange arrays."""

    def exchange(self, value: Any, what: str) -> list[Any]:
        return [array_of(other) for other in super().exchange(_tensor(value), what)]


class _Bridge:
    """A torch kernel whose operands and results are arrays; those that it wants on the host are arrays anyway."""

    def __init__(self, kernel: Kernel, device: CPUDevice) -> None:
        self._function, self._device = kernel.function, device
        self.__name__ = kernel.name
        names = [operand.name for operand in OPSET[kernel.op].operands if operand.name in kernel.parameters]
        self._on_host = frozenset(i for i, name in enumerate(names) if name in kernel.host)

    def plan(self, node: Node, bounds: Mapping[str, int]) -> Callable[..., Any]:
        """The kernel for one node."""
        planned = self._function.plan(node, bounds) if hasattr(self._function, "plan") else self._function
        return partial(self._run, planned)

    def _run(self, function: Callable[..., Any], *operands: Any, **attributes: Any) -> Any:
        if self._device.guard is not None:
            self._device.guard.watch_torch()
        given = [x if i in self._on_host else tensor_of(x) for i, x in enumerate(operands)]
        made = function(*given, **attributes)
        known = {id(there): here for there, here in zip(given, operands, strict=True)}
        if isinstance(made, tuple):
            return tuple(known[id(x)] if id(x) in known else array_of(x) for x in made)
        return known[id(made)] if id(made) in known else array_of(made)


def tensor_of(x: Any) -> Any:
    """An array, weight or state as torch kernels take it, in the same memory; what is neither stays as it is."""
    if isinstance(x, np.ndarray):
        return _tensor(x)
    if isinstance(x, HostWeight):
        if "torch" not in x.__dict__:  # made once, as other lasting views of a weight
            parts = tuple(TorchWeightPart(part.scheme, part.rows, _tensor(part.data)) for part in x.parts)
            x.__dict__["torch"] = TorchWeight(x.shape, parts, x.layout)
        return x.__dict__["torch"]
    state = _STATES.get(type(x))
    return x if state is None else state(*map(_tensor, x))


def _tensor(x: Array) -> torch.Tensor:
    bits = bits_type(x.dtype)
    plain = x if bits is x.dtype else x.view(bits)
    if plain.flags.c_contiguous:  # where numpy tells any stride for an axis of one element, and torch goes by it
        plain = plain.reshape(-1)
    if plain.flags.writeable:
        made = torch.from_numpy(plain)
    else:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            made = torch.from_numpy(plain)
    made = made if bits is x.dtype else made.view(DTYPES[from_numpy(x.dtype)])
    return made.view(x.shape) if x.flags.c_contiguous else made
